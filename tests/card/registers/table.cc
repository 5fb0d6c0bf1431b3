// SPDX-License-Identifier: MIT
#include "registers/table.h"

#include <string>
#include <utility>

#include "models/model.h"
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
    {0x84, "SEM_WAIT_FAIL_TIMER_CNTL", Behaviour::kLatch, 0},
    {0xb0, "PHASE0_QUANTUM", Behaviour::kLatch, 0},
    {0xb4, "PHASE1_QUANTUM", Behaviour::kLatch, 0},
    {0x11c, "UTCL1_TIMEOUT", Behaviour::kLatch, 0},
    {0x13c, "PHASE2_QUANTUM", Behaviour::kLatch, 0},
    {0x21c, "GFX_RB_WPTR_POLL_CNTL", Behaviour::kLatch, 0},
    {0x228, "GFX_IB_CNTL", Behaviour::kLatch, 0},
    {0x2c8, "GFX_RB_WPTR_POLL_ADDR_HI", Behaviour::kLatch, 0},
    {0x2cc, "GFX_RB_WPTR_POLL_ADDR_LO", Behaviour::kLatch, 0},
    {0x2d4, "GFX_MINOR_PTR_UPDATE", Behaviour::kLatch, 0},
};

// Of all chips. Those of an XCC are the first one's.
std::vector<RegisterRow> common_rows() {
  return {
      // ---- NBIO ----
      {reg::kMmIndex, "MM_INDEX"},
      {reg::kMmData, "MM_DATA", Behaviour::kPart},
      {reg::kMmIndexHi, "MM_INDEX_HI"},
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

      // ---- what the drivers of Linux 6.1 to 7.2 write and read, and nothing comes of ----
      {0x140, "BIOS_SCRATCH_4"},
      {0x258, "DRIVER_SCRATCH_2"},
      {reg::kDoorbellAperEn, "RCC_DOORBELL_APER_EN"},
      {0x3844, "INTERRUPT_CNTL"},
      {0x3848, "INTERRUPT_CNTL2"},
      {0x384c, "DOORBELL_SELFRING_GPA_APER_BASE_HIGH"},
      {0x3850, "DOORBELL_SELFRING_GPA_APER_BASE_LOW"},
      {0x3854, "DOORBELL_SELFRING_GPA_APER_CNTL"},
      {0x3d80, "HDP_NONSURFACE_BASE"},
      {0x3d88, "HDP_NONSURFACE_BASE_HI"},
      {0x3fcc, "HDP_MISC_CNTL"},
      {0x3fd0, "HDP_MEM_POWER_LS"},
      {0x44a0, "IH_DOORBELL_RETRY_CAM"},
      {0x44b0, "IH_RB_CNTL_RING1"},
      {0x44b4, "IH_RB_BASE_RING1"},
      {0x44b8, "IH_RB_BASE_HI_RING1"},
      {0x44bc, "IH_RB_RPTR_RING1"},
      {0x44c0, "IH_RB_WPTR_RING1"},
      {0x44cc, "IH_DOORBELL_RPTR_RING1"},
      {0x44e0, "IH_RB_CNTL_RING2"},
      {0x44e4, "IH_RB_BASE_RING2"},
      {0x44e8, "IH_RB_BASE_HI_RING2"},
      {0x44ec, "IH_RB_RPTR_RING2"},
      {0x44f0, "IH_RB_WPTR_RING2"},
      {0x44fc, "IH_DOORBELL_RPTR_RING2"},
      {0x45ec, "IH_CLK_CTRL"},
      {0x48a0, "IH_CLIENT_CFG_INDEX"},
      {0x48a4, "IH_CLIENT_CFG_DATA"},
      {0x8000, "GRBM_CNTL"},
      {reg::kCpMecCntl, "CP_MEC_CNTL"},
      {0x8c28, "SH_MEM_BASES"},
      {0x8c2c, "SQ_TIMEOUT_CONFIG"},
      {0x8c34, "SH_MEM_CONFIG"},
      {0x9508, "TA_CNTL_AUX"},
      {0x9834, "DB_DEBUG2"},
      {0x98f8, "GB_ADDR_CONFIG"},
      {0xac14, "TCP_ADDR_CONFIG"},
      {0xad74, "TCI_CNTL_3"},
      {0xc1a8, "CP_INT_CNTL_RING0"},
      {0xc1e4, "CP_MEM_SLP_CNTL"},
      {0xc20c, "CP_PQ_WPTR_POLL_CNTL"},
      {reg::kCpMeIntCntl, "CP_ME1_PIPE#_INT_CNTL", Behaviour::kLatch, 0, 4},
      {reg::kCpMeIntCntl + 16, "CP_ME2_PIPE#_INT_CNTL", Behaviour::kLatch, 0, 4},
      {0xc2c0, "CP_IQ_WAIT_TIME2"},
      {reg::kCpcIntCntl, "CPC_INT_CNTL", Behaviour::kPart},
      {0xc2e0, "CP_PQ_STATUS"},
      {0xc2e4, "CP_CPC_IC_BASE_LO"},
      {0xc2e8, "CP_CPC_IC_BASE_HI"},
      {0xc2ec, "CP_CPC_IC_BASE_CNTL"},
      {0xc71c, "SPI_WCL_PIPE_PERCENT_GFX"},
      {0xc728, "SPI_WCL_PIPE_PERCENT_CS1"},
      {0xc72c, "SPI_WCL_PIPE_PERCENT_CS2"},
      {0xc730, "SPI_WCL_PIPE_PERCENT_CS3"},
      {0xcad4, "TCP_UTCL1_CNTL1"},
      {0xcc00, "GDS_VMID#_BASE", Behaviour::kLatch, 0, 16, 8},
      {0xcc04, "GDS_VMID#_SIZE", Behaviour::kLatch, 0, 16, 8},
      {0xcc80, "GDS_GWS_VMID#", Behaviour::kLatch, 0, 16},
      {0xccc0, "GDS_OA_VMID#", Behaviour::kLatch, 0, 16},
      {0x30800, "GRBM_GFX_INDEX"},
      {0x3b000, "RLC_CNTL"},
      {0x3b018, "RLC_MEM_SLP_CNTL"},
      {0x3b120, "RLC_CGTT_MGCG_OVERRIDE"},
      {0x3b124, "RLC_CGCG_CGLS_CTRL"},
      {0x3b1c4, "RLC_SPM_MC_CNTL"},
      {0x3b288, "RLC_CSIB_ADDR_LO"},
      {0x3b28c, "RLC_CSIB_ADDR_HI"},
      {0x3b290, "RLC_CSIB_LENGTH"},
      {0x3b2a8, "RLC_CP_SCHEDULERS"},
      {0x3e068, "CP_MEC_ME1_UCODE_ADDR"},
      {0x3e0f0, "RLC_GPM_UCODE_ADDR"},
      // Bit 31: the card's own firmware is up. Linux 7.2 waits 16 s for that (amdgpu_discovery_get_tmr_info).
      {0x58184, "MP0_SMN_C2PMSG_33", Behaviour::kFixed, 0x80000000},
      {0x5a800, "IP_DISCOVERY_VERSION"},

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
}

void add_hub(const HubModel& hub, std::vector<RegisterRow>& table) {
  const auto add = [&](std::uint32_t offset, const char* name, Behaviour behaviour, std::uint32_t count = 1,
                       std::uint32_t stride = 4) {
    table.push_back({hub.base + offset, hub.name + name, behaviour, 0, count, stride});
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
  // 0: VRAM's own offsets are in the entries.
  add(hub.apertures + reg::aperture::kFbOffset, "MC_VM_FB_OFFSET", Behaviour::kFixed);
  add(hub.apertures + reg::aperture::kFbLocationBase, "MC_VM_FB_LOCATION_BASE", Behaviour::kPart);
  add(hub.apertures + reg::aperture::kFbLocationTop, "MC_VM_FB_LOCATION_TOP", Behaviour::kPart);
  add(hub.apertures + reg::aperture::kAgpTop, "MC_VM_AGP_TOP", Behaviour::kPart);
  add(hub.apertures + reg::aperture::kAgpBot, "MC_VM_AGP_BOT", Behaviour::kPart);
  add(hub.apertures + reg::aperture::kAgpBase, "MC_VM_AGP_BASE", Behaviour::kPart);
  add(0U - 0x1c, "VM_L2_CNTL", Behaviour::kLatch);
  add(0U - 0x18, "VM_L2_CNTL2", Behaviour::kLatch);
  add(0U - 0x14, "VM_L2_CNTL3", Behaviour::kLatch);
  add(0x4, "VM_L2_PROTECTION_FAULT_CNTL2", Behaviour::kLatch);
  add(0x1c, "VM_L2_PROTECTION_FAULT_DEFAULT_ADDR_LO32", Behaviour::kLatch);
  add(0x20, "VM_L2_PROTECTION_FAULT_DEFAULT_ADDR_HI32", Behaviour::kLatch);
  add(0x28, "VM_L2_CONTEXT1_IDENTITY_APERTURE_LOW_ADDR_LO32", Behaviour::kLatch);
  add(0x2c, "VM_L2_CONTEXT1_IDENTITY_APERTURE_LOW_ADDR_HI32", Behaviour::kLatch);
  add(0x30, "VM_L2_CONTEXT1_IDENTITY_APERTURE_HIGH_ADDR_LO32", Behaviour::kLatch);
  add(0x34, "VM_L2_CONTEXT1_IDENTITY_APERTURE_HIGH_ADDR_HI32", Behaviour::kLatch);
  add(0x38, "VM_L2_CONTEXT_IDENTITY_PHYSICAL_OFFSET_LO32", Behaviour::kLatch);
  add(0x3c, "VM_L2_CONTEXT_IDENTITY_PHYSICAL_OFFSET_HI32", Behaviour::kLatch);
  add(0x40, "VM_L2_CNTL4", Behaviour::kLatch);
  add(hub.apertures + 0x4, "MC_VM_SYSTEM_APERTURE_DEFAULT_ADDR_LSB", Behaviour::kLatch);
  add(hub.apertures + 0x8, "MC_VM_SYSTEM_APERTURE_DEFAULT_ADDR_MSB", Behaviour::kLatch);
  add(hub.apertures + 0x68, "MC_VM_SYSTEM_APERTURE_LOW_ADDR", Behaviour::kLatch);
  add(hub.apertures + 0x6c, "MC_VM_SYSTEM_APERTURE_HIGH_ADDR", Behaviour::kLatch);
  add(hub.apertures + 0x70, "MC_VM_MX_L1_TLB_CNTL", Behaviour::kLatch);
  add(0x200, "VM_INVALIDATE_ENG#_ADDR_RANGE_LO32", Behaviour::kLatch, reg::kInvalidateEngines, 8);
  add(0x204, "VM_INVALIDATE_ENG#_ADDR_RANGE_HI32", Behaviour::kLatch, reg::kInvalidateEngines, 8);
}

void add_sdma(const Model& model, std::vector<RegisterRow>& table) {
  for (std::size_t engine = 0; engine < model.sdma.size(); ++engine) {
    const std::uint32_t base = model.sdma[engine].base;
    const std::string prefix = "SDMA" + std::to_string(engine) + "_";
    for (const auto& row : kSdmaRows)
      table.push_back({base + row.offset, prefix + row.name, row.behaviour, row.value});
    table.push_back({base + model.sdma_f32_cntl, prefix + "F32_CNTL"});
    for (const RegisterRow& row : model.sdma_rows) table.push_back({base + row.byte, prefix + row.name});
  }
}

}  // namespace

RegisterTable::RegisterTable(std::vector<RegisterRow> rows) : rows_(std::move(rows)) {
  for (std::size_t at = 0; at < rows_.size(); ++at) {
    const RegisterRow& row = rows_[at];
    for (std::uint32_t i = 0; i < row.count; ++i) places_.emplace(row.byte + i * row.stride, Place{at, i});
  }
}

const RegisterRow* RegisterTable::row(std::uint32_t byte) const {
  const auto found = places_.find(byte);
  return found == places_.end() ? nullptr : &rows_[found->second.row];
}

std::string RegisterTable::name(std::uint32_t byte) const {
  const auto found = places_.find(byte);
  if (found == places_.end()) return "?";
  std::string name = rows_[found->second.row].name;
  const std::size_t place = name.find('#');
  if (place == std::string::npos) return name;
  return name.replace(place, 1, std::to_string(found->second.index));
}

RegisterTable make_register_table(const Model& model, std::span<const RegisterRow> own) {
  std::vector<RegisterRow> of_one = common_rows();
  of_one.insert(of_one.end(), own.begin(), own.end());
  std::vector<RegisterRow> table;
  for (std::size_t xcc = 0; xcc < model.xccs.size(); ++xcc) {
    for (const RegisterRow& row : of_one) {
      if (!is_of_xcc(row.byte) && xcc > 0) continue;
      RegisterRow& added = table.emplace_back(row);
      added.byte += model.xccs[xcc].registers;
      if (xcc > 0) added.name = "XCC" + std::to_string(xcc) + "." + row.name;
    }
  }
  for (const HubModel& hub : model.hubs) add_hub(hub, table);
  add_sdma(model, table);
  return RegisterTable(std::move(table));
}

}  // namespace sluice::card
