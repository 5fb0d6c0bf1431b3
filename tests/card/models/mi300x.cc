// SPDX-License-Identifier: MIT
// An MI300X (Aqua Vanjaram, gfx942), as small as the driver takes one: one AID with two XCCs and four SDMA
// engines. Real ones have four, eight and sixteen.
//
// The driver adds offsets of its asic_reg headers (gc_9_4_3, mmhub_1_8_0, osssys_4_4_2, nbio_7_9_0,
// sdma_4_4_2, smuio_13_0_3, mp_13_0_6) to the bases of the discovery table, so bases are free to choose.
// These are chosen such that all that an MI210 has too is where an MI210 has it.
#include <algorithm>
#include <array>

#include "models/discovery.h"
#include "models/model.h"

namespace sluice::card {

namespace {

// Dword addresses. The low 16 bits of an XCC's register are the same in all XCCs: its own rings name it by
// them (gfx_v9_4_3_normalize_xcc_reg_offset).
constexpr std::uint32_t kGc0 = 0x2000, kGc1 = 0xa000, kNextXcc = 0x100000;
constexpr std::uint32_t kMmhub = 0x18000;
constexpr std::array<std::uint32_t, 4> kSdma = {0x1260, 0x1660, 0x1a60, 0x19000};
constexpr std::uint32_t kNbio2 = 0xd20, kNbio5 = 0x4040000, kNbio8 = 0x4a00000;
constexpr std::uint32_t kSmuio1 = 0x16800;
constexpr std::uint32_t kMp0 = 0x16000;

constexpr unsigned kXccs = 2;
constexpr std::uint32_t kApertures = 0x480;
constexpr std::uint32_t kGcHub = (kGc0 + 0x827) * 4, kMmHub = (kMmhub + 0xb67) * 4;

// Fields of registers that say how the card is divided.
constexpr std::uint32_t kNps1 = 1 << 4;       // PARTITION_MEM_STATUS
constexpr std::uint32_t kRevision = 1 << 24;  // gfx942 begins with it (kfd_device.c)
constexpr std::uint32_t kModule = 1 << 2;     // SMUIO_MCM_CONFIG: an OAM, which is no APU

const RegisterRow kOwnRows[] = {
    // ---- NBIO ----
    {0x44, "PCIE_INDEX2_HI"},
    {(kNbio2 + 0x16) * 4, "RCC_DEV0_EPF0_STRAP0", Behaviour::kLatch, kRevision},
    {(kNbio2 + 0xfe) * 4, "BIF_DOORBELL_INT_CNTL"},
    {(kNbio2 + 0x100) * 4, "BIF_FB_EN"},
    {(kNbio2 + 0x10b) * 4, "BACO_CNTL"},
    {(kNbio2 + 0x162) * 4, "PARTITION_MEM_CAP", Behaviour::kFixed, 1},
    {(kNbio2 + 0x163) * 4, "PARTITION_COMPUTE_STATUS", Behaviour::kPart},
    {(kNbio2 + 0x164) * 4, "PARTITION_MEM_STATUS", Behaviour::kFixed, kNps1},
    {(kNbio5 + 0x740c) * 4, "XCC_DOORBELL_FENCE"},
    {(kNbio5 + 0x7a81) * 4, "S2A_DOORBELL_ENTRY_#_CTRL", Behaviour::kLatch, 0, 16},
    {(kNbio8 + 0xcd00) * 4, "DOORBELL0_CTRL_ENTRY_#", Behaviour::kLatch, 0, 32},
    {(kNbio8 + 0xcf6e) * 4, "BIFC_DOORBELL_ACCESS_EN_PF"},
    {(kNbio8 + 0xe8ad) * 4, "BIFC_GFX_INT_MONITOR_MASK"},
    {0x1a000, "HDP_MEM_COHERENCY_FLUSH_CNTL (remapped)"},
    {0x1a004, "HDP_REG_COHERENCY_FLUSH_CNTL (remapped)"},
    // ---- IH ----
    {0x4628, "IH_RETRY_INT_CAM_CNTL"},
    {0x48b4, "IH_CHICKEN"},
    // ---- SMUIO ----
    {(kSmuio1 + 0x23) * 4, "SMUIO_MCM_CONFIG", Behaviour::kFixed, kModule},
    // ---- GC ----
    {(kGc1 + 0x5828) * 4, "CP_HYP_XCP_CTL", Behaviour::kPart},
    {0x8010, "GRBM_STATUS", Behaviour::kFixed},
    {0x8008, "GRBM_STATUS2", Behaviour::kFixed},
    {0x8020, "GRBM_SOFT_RESET"},
    {0x8708, "CP_RB_WPTR_POLL_CNTL"},
    {0xc204, "CP_CPC_DEBUG"},
    {0xc74c, "SPI_GDBG_PER_VMID_CNTL"},
    {0x3b010, "RLC_STAT", Behaviour::kFixed},
    {kGcHub + 0x4c0, "GC.MC_VM_XGMI_LFB_CNTL"},
    {kGcHub + 0x4c4, "GC.MC_VM_XGMI_LFB_SIZE"},
    {kMmHub + 0x4c0, "MM.MC_VM_XGMI_LFB_CNTL"},
    {kMmHub + 0x4c4, "MM.MC_VM_XGMI_LFB_SIZE"},
};

std::vector<IpBlock> blocks() {
  std::vector<IpBlock> all = {
      {255, 0, 13, 0, 6, {kMp0}},                                                      // MP0, the PSP
      {1, 0, 13, 0, 6, {kMp0}},                                                        // MP1, the SMU
      {4, 0, 13, 0, 3, {0, kSmuio1, 0x16a00}},                                         // SMUIO
      {108, 0, 7, 9, 0, {0, 0x14, kNbio2, 0x10400, 0x241b000, kNbio5, 0, 0, kNbio8}},  // NBIF
      {40, 0, 4, 4, 2, {0x10a0}},                                                      // OSSSYS
      {41, 0, 4, 4, 2, {0xf20}},                                                       // HDP
      {34, 0, 1, 8, 0, {kMmhub}},                                                      // MMHUB
      {35, 0, 1, 8, 0, {0xc00, 0x14000}},                                              // ATHUB
      {12, 0, 4, 0, 3, {0x7800, 0x7e00}},  // VCN, left out by a mask
  };
  for (unsigned xcc = 0; xcc < kXccs; ++xcc) {
    all.push_back(
        {11, static_cast<std::uint8_t>(xcc), 9, 4, 3, {kGc0 + xcc * kNextXcc, kGc1 + xcc * kNextXcc}});
  }
  for (unsigned engine = 0; engine < kSdma.size(); ++engine) {
    all.push_back({42, static_cast<std::uint8_t>(engine), 4, 4, 2, {kSdma[engine]}});
  }
  return all;
}

void fill_vram(std::span<std::byte> vram) {
  static const std::vector<std::byte> table = make_discovery_table(blocks(), {4, 10, 4, 16});
  std::copy(table.begin(), table.end(), vram.end() - kDiscoveryFromEnd);
}

Model make() {
  Model model;
  model.name = "MI300X";
  model.rom_file = "vbios-mi300x.rom";
  model.device_id = 0x74a1;  // amdgpu_drv.c
  model.subsystem_id = 0x74a1;
  // Nodes: four an AID, of which the first is the AID itself (kfd_setup_interrupt_bitmap).
  for (unsigned xcc = 0; xcc < kXccs; ++xcc)
    model.xccs.push_back({xcc * kNextXcc * 4, 1 + xcc % 2 + 4 * (xcc / 2)});
  model.hubs = {{Hub::kGc, "GC.", kGcHub, kApertures, model.xccs[0].node},
                {Hub::kMm, "MM.", kMmHub, kApertures, 0},
                {Hub::kGcOfXcc1, "XCC1.GC.", kGcHub + kNextXcc * 4, kApertures, model.xccs[1].node}};
  model.sdma = {{kSdma[0] * 4, 8}, {kSdma[1] * 4, 9}, {kSdma[2] * 4, 1}, {kSdma[3] * 4, 4}};
  model.sdma_f32_cntl = 2 * 4;
  model.sdma_rows = {{0x6b * 4, "POWER_CNTL"},
                     {0x6c * 4, "CLK_CTRL"},
                     {0x6d * 4, "CNTL"},
                     {0x6f * 4, "GB_ADDR_CONFIG"},
                     {0x70 * 4, "GB_ADDR_CONFIG_READ"}};
  model.partition_status = (kNbio2 + 0x163) * 4;
  model.presets_scratch = true;
  model.partition_control = (kGc1 + 0x5828) * 4;
  // From 153 on mec means more work for the driver (gfx_v9_4_3.c).
  model.firmware = {
      {"gc_9_4_3_mec.bin", 1, 9, 4, 150, 46, 4096},
      {"gc_9_4_3_rlc.bin", 2, 9, 4, 17, 1, 256},
      {"sdma_4_4_2.bin", 1, 4, 4, 16, 44, 256},
  };
  model.fill_vram = fill_vram;
  model.registers = make_register_table(model, kOwnRows);
  return model;
}

}  // namespace

const Model& mi300x() {
  static const Model model = make();
  return model;
}

}  // namespace sluice::card
