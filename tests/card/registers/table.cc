// SPDX-License-Identifier: MIT
#include "registers/table.h"

#include <vector>

#include "memory/fault.h"
#include "registers/names.h"

namespace sluice::card {

namespace {

// Rows of one SDMA engine; offsets from its base.
constexpr struct {
  std::uint32_t offset;
  const char* name;
  Behaviour behaviour;
  std::uint32_t value;
} kSdmaRows[] = {
    {0x0, "UCODE_ADDR", Behaviour::kLatch, 0},
    {0x4, "UCODE_DATA", Behaviour::kPort, 0},
    {reg::sdma::kStatusReg, "STATUS_REG", Behaviour::kFixed, 0x46dee557},  // idle
    {reg::sdma::kRbCntl, "GFX_RB_CNTL", Behaviour::kPart, 0},
    {reg::sdma::kRbBase, "GFX_RB_BASE", Behaviour::kLatch, 0},
    {reg::sdma::kRbBaseHi, "GFX_RB_BASE_HI", Behaviour::kLatch, 0},
    {reg::sdma::kRbRptr, "GFX_RB_RPTR", Behaviour::kPart, 0},
    {reg::sdma::kRbRptrHi, "GFX_RB_RPTR_HI", Behaviour::kPart, 0},
    {reg::sdma::kRbWptr, "GFX_RB_WPTR", Behaviour::kPart, 0},
    {reg::sdma::kRbWptrHi, "GFX_RB_WPTR_HI", Behaviour::kLatch, 0},
    {reg::sdma::kRbRptrAddrHi, "GFX_RB_RPTR_ADDR_HI", Behaviour::kLatch, 0},
    {reg::sdma::kRbRptrAddrLo, "GFX_RB_RPTR_ADDR_LO", Behaviour::kLatch, 0},
    {reg::sdma::kDoorbell, "GFX_DOORBELL", Behaviour::kLatch, 0},
    {reg::sdma::kDoorbellOffset, "GFX_DOORBELL_OFFSET", Behaviour::kLatch, 0},
};

std::vector<RegisterRow> make_table() {
  std::vector<RegisterRow> table = {
      // ---- NBIO ----
      {reg::kPcieIndex2, "PCIE_INDEX2"},
      {reg::kPcieData2, "PCIE_DATA2"},
      // Bit 9: the card is posted, so that no command table of the VBIOS is run (need_post()).
      {reg::kBiosScratch7, "BIOS_SCRATCH_7", Behaviour::kLatch, 0x200},
      {reg::kConfigMemsize, "RCC_CONFIG_MEMSIZE", Behaviour::kFixed},  // MiB of VRAM
      // Bit 0 clear: no virtual function. Not 0, which means passthrough (amdgpu_virt.c).
      {reg::kIovFuncIdentifier, "RCC_IOV_FUNC_IDENTIFIER", Behaviour::kFixed, 0x80000000},
      {0x3898, "GPU_HDP_FLUSH_REQ"},
      {0x389c, "GPU_HDP_FLUSH_DONE", Behaviour::kFixed, 0xffffffff},
      {0x3934, "REMAP_HDP_MEM_FLUSH_CNTL"},
      {0x3938, "REMAP_HDP_REG_FLUSH_CNTL"},
      {0x3bc0, "BIF_SDMA0_DOORBELL_RANGE"},
      {0x3bc4, "BIF_SDMA1_DOORBELL_RANGE"},
      {0x3bc8, "BIF_IH_DOORBELL_RANGE"},

      // ---- IH ----
      {reg::kIhVmidLut, "IH_VMID_#_LUT", Behaviour::kLatch, 0, 16},
      {reg::kIhVmidLutMm, "IH_VMID_#_LUT_MM", Behaviour::kLatch, 0, 16},
      {reg::kIhRbCntl, "IH_RB_CNTL", Behaviour::kPart},
      {reg::kIhRbBase, "IH_RB_BASE", Behaviour::kPart},
      {reg::kIhRbBaseHi, "IH_RB_BASE_HI", Behaviour::kPart},
      {reg::kIhRbRptr, "IH_RB_RPTR", Behaviour::kPart},
      {reg::kIhRbWptr, "IH_RB_WPTR", Behaviour::kPart},
      {reg::kIhRbWptrAddrHi, "IH_RB_WPTR_ADDR_HI", Behaviour::kPart},
      {reg::kIhRbWptrAddrLo, "IH_RB_WPTR_ADDR_LO", Behaviour::kPart},
      {reg::kIhDoorbellRptr, "IH_DOORBELL_RPTR", Behaviour::kPart},

      // ---- GC ----
      {reg::kGrbmGfxCntl, "GRBM_GFX_CNTL"},
      {reg::kCpcIntStatus, "CPC_INT_STATUS", Behaviour::kPart},
      {reg::kScratchReg0, "SCRATCH_REG#", Behaviour::kLatch, 0, 8},
      {reg::kRlcSafeMode, "RLC_SAFE_MODE", Behaviour::kPart},
      {0x3b184, "RLC_SERDES_CU_MASTER_BUSY", Behaviour::kFixed},
      {0x3b188, "RLC_SERDES_NONCU_MASTER_BUSY", Behaviour::kFixed},
      {reg::kRlcClockLsb, "RLC_GPU_CLOCK_COUNT_LSB", Behaviour::kPart},
      {reg::kRlcClockMsb, "RLC_GPU_CLOCK_COUNT_MSB", Behaviour::kPart},
      {reg::kRlcCaptureClock, "RLC_CAPTURE_GPU_CLOCK_COUNT", Behaviour::kPart},
      {0x3e06c, "CP_MEC_ME1_UCODE_DATA", Behaviour::kPort},
      {0x3e074, "CP_MEC_ME2_UCODE_DATA", Behaviour::kPort},
      {0x3e0f4, "RLC_GPM_UCODE_DATA", Behaviour::kPort},
      // All compute units are there.
      {0x89bc, "CC_GC_SHADER_ARRAY_CONFIG", Behaviour::kFixed},
      {0x89c0, "GC_USER_SHADER_ARRAY_CONFIG"},
      {0xc170, "CP_MEC_DOORBELL_RANGE_LOWER"},
      {0xc174, "CP_MEC_DOORBELL_RANGE_UPPER"},

      // ---- GC: queue slots ----
      {0xc914, "CP_MQD_BASE_ADDR", Behaviour::kPart},
      {0xc918, "CP_MQD_BASE_ADDR_HI", Behaviour::kPart},
      {0xc91c, "CP_HQD_ACTIVE", Behaviour::kPart},
      {0xc920, "CP_HQD_VMID", Behaviour::kPart},
      {0xc924, "CP_HQD_PERSISTENT_STATE", Behaviour::kPart},
      {0xc928, "CP_HQD_PIPE_PRIORITY", Behaviour::kPart},
      {0xc92c, "CP_HQD_QUEUE_PRIORITY", Behaviour::kPart},
      {0xc930, "CP_HQD_QUANTUM", Behaviour::kPart},
      {0xc934, "CP_HQD_PQ_BASE", Behaviour::kPart},
      {0xc938, "CP_HQD_PQ_BASE_HI", Behaviour::kPart},
      {0xc93c, "CP_HQD_PQ_RPTR", Behaviour::kPart},
      {0xc940, "CP_HQD_PQ_RPTR_REPORT_ADDR", Behaviour::kPart},
      {0xc944, "CP_HQD_PQ_RPTR_REPORT_ADDR_HI", Behaviour::kPart},
      {0xc948, "CP_HQD_PQ_WPTR_POLL_ADDR", Behaviour::kPart},
      {0xc94c, "CP_HQD_PQ_WPTR_POLL_ADDR_HI", Behaviour::kPart},
      {0xc950, "CP_HQD_PQ_DOORBELL_CONTROL", Behaviour::kPart},
      {0xc958, "CP_HQD_PQ_CONTROL", Behaviour::kPart},
      {0xc95c, "CP_HQD_IB_BASE_ADDR", Behaviour::kPart},
      {0xc960, "CP_HQD_IB_BASE_ADDR_HI", Behaviour::kPart},
      {0xc964, "CP_HQD_IB_RPTR", Behaviour::kPart},
      {0xc968, "CP_HQD_IB_CONTROL", Behaviour::kPart},
      {0xc96c, "CP_HQD_IQ_TIMER", Behaviour::kPart},
      {0xc970, "CP_HQD_IQ_RPTR", Behaviour::kPart},
      {0xc974, "CP_HQD_DEQUEUE_REQUEST", Behaviour::kPart},
      {0xc978, "CP_HQD_OFFLOAD", Behaviour::kPart},
      {0xc97c, "CP_HQD_SEMA_CMD", Behaviour::kPart},
      {0xc980, "CP_HQD_MSG_TYPE", Behaviour::kPart},
      {0xc984, "CP_HQD_ATOMIC0_PREOP_LO", Behaviour::kPart},
      {0xc988, "CP_HQD_ATOMIC0_PREOP_HI", Behaviour::kPart},
      {0xc98c, "CP_HQD_ATOMIC1_PREOP_LO", Behaviour::kPart},
      {0xc990, "CP_HQD_ATOMIC1_PREOP_HI", Behaviour::kPart},
      {0xc994, "CP_HQD_HQ_SCHEDULER0", Behaviour::kPart},
      {0xc998, "CP_HQD_HQ_CONTROL0", Behaviour::kPart},
      {0xc99c, "CP_MQD_CONTROL", Behaviour::kPart},
      {0xc9a0, "CP_HQD_HQ_STATUS1", Behaviour::kPart},
      {0xc9a4, "CP_HQD_HQ_CONTROL1", Behaviour::kPart},
      {0xc9a8, "CP_HQD_EOP_BASE_ADDR", Behaviour::kPart},
      {0xc9ac, "CP_HQD_EOP_BASE_ADDR_HI", Behaviour::kPart},
      {0xc9b0, "CP_HQD_EOP_CONTROL", Behaviour::kPart},
      {0xc9b4, "CP_HQD_EOP_RPTR", Behaviour::kPart},
      {0xc9b8, "CP_HQD_EOP_WPTR", Behaviour::kPart},
      {0xc9bc, "CP_HQD_EOP_EVENTS", Behaviour::kPart},
      {0xc9c0, "CP_HQD_CTX_SAVE_BASE_ADDR_LO", Behaviour::kPart},
      {0xc9c4, "CP_HQD_CTX_SAVE_BASE_ADDR_HI", Behaviour::kPart},
      {0xc9c8, "CP_HQD_CTX_SAVE_CONTROL", Behaviour::kPart},
      {0xc9cc, "CP_HQD_CNTL_STACK_OFFSET", Behaviour::kPart},
      {0xc9d0, "CP_HQD_CNTL_STACK_SIZE", Behaviour::kPart},
      {0xc9d4, "CP_HQD_WG_STATE_OFFSET", Behaviour::kPart},
      {0xc9d8, "CP_HQD_CTX_SAVE_SIZE", Behaviour::kPart},
      {0xc9dc, "CP_HQD_GDS_RESOURCE_STATE", Behaviour::kPart},
      {0xc9e0, "CP_HQD_ERROR", Behaviour::kPart},
      {0xc9e4, "CP_HQD_EOP_WPTR_MEM", Behaviour::kPart},
      {0xc9e8, "CP_HQD_AQL_CONTROL", Behaviour::kPart},
      {0xc9ec, "CP_HQD_PQ_WPTR_LO", Behaviour::kPart},
      {0xc9f0, "CP_HQD_PQ_WPTR_HI", Behaviour::kPart},
  };

  for (const Hub hub : {Hub::kGc, Hub::kMm}) {
    const std::uint32_t base = reg::kHubBase[static_cast<std::size_t>(hub)];
    const std::string prefix = hub == Hub::kGc ? "GC." : "MM.";
    const auto add = [&](std::uint32_t offset, const char* name, Behaviour behaviour, std::uint32_t count = 1,
                         std::uint32_t stride = 4) {
      table.push_back({base + offset, prefix + name, behaviour, 0, count, stride});
    };
    add(reg::hub::kFaultCntl, "VM_L2_PROTECTION_FAULT_CNTL", Behaviour::kPart);
    add(reg::hub::kFaultStatus, "VM_L2_PROTECTION_FAULT_STATUS", Behaviour::kPart);
    add(reg::hub::kFaultAddrLo, "VM_L2_PROTECTION_FAULT_ADDR_LO32", Behaviour::kPart);
    add(reg::hub::kFaultAddrHi, "VM_L2_PROTECTION_FAULT_ADDR_HI32", Behaviour::kPart);
    add(reg::hub::kContextCntl, "VM_CONTEXT#_CNTL", Behaviour::kPart, 16);
    add(reg::hub::kInvalidateSem, "VM_INVALIDATE_ENG#_SEM", Behaviour::kPart, reg::kInvalidateEngines);
    add(reg::hub::kInvalidateReq, "VM_INVALIDATE_ENG#_REQ", Behaviour::kPart, reg::kInvalidateEngines);
    add(reg::hub::kInvalidateAck, "VM_INVALIDATE_ENG#_ACK", Behaviour::kPart, reg::kInvalidateEngines);
    add(reg::hub::kContextBaseLo, "VM_CONTEXT#_PAGE_TABLE_BASE_ADDR_LO32", Behaviour::kPart, 16, 8);
    add(reg::hub::kContextBaseLo + 4, "VM_CONTEXT#_PAGE_TABLE_BASE_ADDR_HI32", Behaviour::kPart, 16, 8);
    add(reg::hub::kContextStartLo, "VM_CONTEXT#_PAGE_TABLE_START_ADDR_LO32", Behaviour::kPart, 16, 8);
    add(reg::hub::kContextStartLo + 4, "VM_CONTEXT#_PAGE_TABLE_START_ADDR_HI32", Behaviour::kPart, 16, 8);
    add(reg::hub::kContextEndLo, "VM_CONTEXT#_PAGE_TABLE_END_ADDR_LO32", Behaviour::kPart, 16, 8);
    add(reg::hub::kContextEndLo + 4, "VM_CONTEXT#_PAGE_TABLE_END_ADDR_HI32", Behaviour::kPart, 16, 8);
    add(0x490, "MC_VM_FB_OFFSET", Behaviour::kFixed);  // 0: VRAM's own offsets are in the entries
    add(reg::hub::kFbLocationBase, "MC_VM_FB_LOCATION_BASE", Behaviour::kPart);
    add(reg::hub::kFbLocationTop, "MC_VM_FB_LOCATION_TOP", Behaviour::kPart);
    add(reg::hub::kAgpTop, "MC_VM_AGP_TOP", Behaviour::kPart);
    add(reg::hub::kAgpBot, "MC_VM_AGP_BOT", Behaviour::kPart);
    add(reg::hub::kAgpBase, "MC_VM_AGP_BASE", Behaviour::kPart);
  }

  for (unsigned engine = 0; engine < reg::kSdmaEngines; ++engine) {
    for (const auto& row : kSdmaRows) {
      table.push_back({reg::kSdmaBase[engine] + row.offset, "SDMA" + std::to_string(engine) + "_" + row.name,
                       row.behaviour, row.value});
    }
  }
  return table;
}

}  // namespace

std::span<const RegisterRow> register_table() {
  static const std::vector<RegisterRow> table = make_table();
  return table;
}

std::string register_name(const RegisterRow& row, std::uint32_t index) {
  const std::size_t place = row.name.find('#');
  if (place == std::string::npos) return row.name;
  std::string name = row.name;
  return name.replace(place, 1, std::to_string(index));
}

}  // namespace sluice::card
