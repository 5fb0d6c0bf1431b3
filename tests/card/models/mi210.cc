// SPDX-License-Identifier: MIT
#include "models/mi210.h"

#include "models/model.h"

namespace sluice::card {

namespace {

using namespace mi210_places;  // NOLINT(google-build-using-namespace): one chip's own numbers

// What the drivers of Linux 6.1 to 7.2 write and read of this chip alone. Nothing comes of most of it.
const RegisterRow kOwnRows[] = {
    {0x3bc0, "BIF_SDMA0_DOORBELL_RANGE"},
    {0x3bc4, "BIF_SDMA1_DOORBELL_RANGE"},
    {0x3bc8, "BIF_IH_DOORBELL_RANGE"},
    {0x34d4, "RCC_DEV0_EPF0_STRAP0"},
    {0x38ac, "BACO_CNTL"},
    {0x3bd8, "BIF_SDMA2_DOORBELL_RANGE"},
    {0x3bdc, "BIF_SDMA3_DOORBELL_RANGE"},
    {0x3be4, "BIF_SDMA4_DOORBELL_RANGE"},
    {0x4628, "IH_RETRY_INT_CAM_CNTL_ALDEBARAN"},
    {0x48b4, "IH_CHICKEN_ALDEBARAN"},
    {0xac0c, "TCP_CHAN_STEER_LO"},
    {0xac10, "TCP_CHAN_STEER_HI"},
    {0xac24, "TCP_CHAN_STEER_2"},
    {0xac28, "TCP_CHAN_STEER_3"},
    {0xac2c, "TCP_CHAN_STEER_4"},
    {0xac30, "TCP_CHAN_STEER_5"},
    {0xc74c, "SPI_GDBG_TRAP_MASK"},
    {0xc760, "SPI_GDBG_TRAP_DATA0"},
    {0xc764, "SPI_GDBG_TRAP_DATA1"},
    {0xca48, "GC_DIDT_WEIGHT_1"},
    {0xca6c, "GC_CAC_IND_DATA"},
    {0xca70, "SE_CAC_CGTT_CLK_CTRL"},
    {0xca74, "SE_CAC_IND_INDEX"},
    {0x1c190, "DF_GCM_AON0_DramMegaBaseAddress0"},
    {0x1d9f8, "DF_CS_UMC_AON0_HardwareAssertMaskLow"},
    {0x1d9fc, "DF_NCS_PG0_HardwareAssertMaskHigh"},
    {0x5014c, "UMCCH0_0_EccCtrl"},
    {0x5a090, "SMUIO_MCM_CONFIG"},
    {0x68178, "DAGB#_WRCLI_GPU_SNOOP_OVERRIDE", Behaviour::kLatch, 0, 5, 0x200},
    {0x6817c, "DAGB#_WRCLI_GPU_SNOOP_OVERRIDE_VALUE", Behaviour::kLatch, 0, 5, 0x200},
    {0x7f000, "HDP_MEM_COHERENCY_FLUSH_CNTL (remapped)"},
    {0x7f004, "HDP_REG_COHERENCY_FLUSH_CNTL (remapped)"},
    {kHubs[0] + 0x4c4, "GC.MC_VM_XGMI_LFB_CNTL"},
    {kHubs[0] + 0x4c8, "GC.MC_VM_XGMI_LFB_SIZE"},
    {kHubs[1] + 0x4c4, "MM.MC_VM_XGMI_LFB_CNTL"},
    {kHubs[1] + 0x4c8, "MM.MC_VM_XGMI_LFB_SIZE"},
};

Model make() {
  Model model;
  model.name = "MI210";
  model.rom_file = "vbios.rom";
  model.device_id = 0x740f;  // Aldebaran: amdgpu_drv.c
  model.subsystem_id = 0x0c34;
  model.xccs = {{}};
  model.hubs = {{Hub::kGc, "GC.", kHubs[0], kApertures}, {Hub::kMm, "MM.", kHubs[1], kApertures}};
  model.sdma = {{kSdma[0], 8}, {kSdma[1], 9}, {kSdma[2], 1}, {kSdma[3], 4}, {kSdma[4], 5}};
  model.sdma_f32_cntl = kSdmaF32Cntl;
  model.sdma_rows = {{0x68, "POWER_CNTL"},
                     {0x6c, "CLK_CTRL"},
                     {0x70, "CNTL"},
                     {0x78, "GB_ADDR_CONFIG"},
                     {0x7c, "GB_ADDR_CONFIG_READ"}};
  // Versions are of files that are in use: old ones are complained of, and from 88 on mec means more work for
  // the driver (gfx_v9_0.c).
  model.firmware = {
      {"aldebaran_mec.bin", 1, 9, 4, 96, 46, 4096},
      {"aldebaran_mec2.bin", 1, 9, 4, 96, 46, 4096},
      {"aldebaran_rlc.bin", 2, 9, 4, 17, 1, 256},
      {"aldebaran_sdma.bin", 1, 4, 4, 9, 44, 256},
  };
  model.registers = make_register_table(model, kOwnRows);
  return model;
}

}  // namespace

const Model& mi210() {
  static const Model model = make();
  return model;
}

}  // namespace sluice::card
