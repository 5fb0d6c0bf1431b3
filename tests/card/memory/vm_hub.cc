// SPDX-License-Identifier: MIT
#include "memory/vm_hub.h"

namespace sluice::card {

namespace {

// Bits of VM_CONTEXTn_CNTL: interrupts for kinds of faults.
constexpr std::uint32_t kRangeInterrupt = 1 << 9;
constexpr std::uint32_t kPdeInterrupt = 1 << 13;
constexpr std::uint32_t kValidInterrupt = 1 << 15;
constexpr std::uint32_t kReadInterrupt = 1 << 17;
constexpr std::uint32_t kWriteInterrupt = 1 << 19;

// Fields of VM_L2_PROTECTION_FAULT_STATUS.
constexpr std::uint32_t kMoreFaults = 1 << 0;
constexpr unsigned kWalkerErrorShift = 1;
constexpr unsigned kPermissionShift = 4;  // 1 not valid, 2 no reading, 4 no writing
constexpr std::uint32_t kMappingError = 1 << 8;
constexpr unsigned kClientShift = 9;
constexpr std::uint32_t kFaultWrite = 1 << 18;
constexpr unsigned kVmidShift = 20;

// Clients of the hubs as gmc_v9_0.c names them.
constexpr std::uint32_t kClientCpc = 5;      // GC: the compute micro engine's front
constexpr std::uint32_t kClientSdma0 = 256;  // MM: + engine

constexpr unsigned kIhUtcl2 = 0x1b;
constexpr unsigned kIhVmc = 0x12;

bool is_write(const Fault& fault) {
  return fault.access == Access::kWrite;
}

std::uint32_t status_of(const Fault& fault) {
  const std::uint32_t direction = is_write(fault) ? 4 : 2;
  std::uint32_t status = fault.vmid << kVmidShift;
  const std::uint32_t client = fault.hub == Hub::kMm ? kClientSdma0 + fault.engine : kClientCpc;
  status |= client << kClientShift;
  if (is_write(fault)) status |= kFaultWrite;
  switch (fault.why) {
    case Fault::Why::kNoAperture:
    case Fault::Why::kNoTable:
      status |= 1 << kWalkerErrorShift;
      break;
    case Fault::Why::kNotValid:
      status |= (1 | direction) << kPermissionShift;
      if (fault.level > 0) status |= (fault.level + 1) << kWalkerErrorShift;
      break;
    case Fault::Why::kNotAllowed:
      status |= direction << kPermissionShift;
      break;
    case Fault::Why::kOutOfVram:
    case Fault::Why::kNoBusAddress:
      status |= kMappingError;
      break;
  }
  return status;
}

std::uint32_t interrupt_bit(const Fault& fault) {
  switch (fault.why) {
    case Fault::Why::kNoAperture:
    case Fault::Why::kNoTable:
      return kRangeInterrupt;
    case Fault::Why::kNotValid:
      return fault.level > 0 ? kPdeInterrupt : kValidInterrupt;
    default:
      return is_write(fault) ? kWriteInterrupt : kReadInterrupt;
  }
}

}  // namespace

VmHub::VmHub(const HubModel& model, Memory& memory, Registers& registers) : model_(model), memory_(memory) {
  attach_contexts(memory, registers);
  attach_invalidation(registers);
  attach_faults(registers);
}

void VmHub::reset() {
  semaphore_held_ = {};
  request_ = {};
  fault_control_ = fault_status_ = 0;
  fault_page_ = 0;
}

void VmHub::attach_contexts(Memory& memory, Registers& registers) {
  const std::uint32_t base = model_.base;
  const std::uint32_t apertures = base + model_.apertures;
  HubRegisters& hub = memory.hub(model_.hub);
  for (unsigned vmid = 0; vmid < kVmids; ++vmid) {
    HubRegisters::Context& context = hub.contexts[vmid];
    registers.attach(base + reg::hub::kContextCntl + 4 * vmid, &context.control);
    registers.attach(base + reg::hub::kContextBaseLo + 8 * vmid, &context.base_lo);
    registers.attach(base + reg::hub::kContextBaseLo + 8 * vmid + 4, &context.base_hi);
    registers.attach(base + reg::hub::kContextStartLo + 8 * vmid, &context.start_lo);
    registers.attach(base + reg::hub::kContextStartLo + 8 * vmid + 4, &context.start_hi);
    registers.attach(base + reg::hub::kContextEndLo + 8 * vmid, &context.end_lo);
    registers.attach(base + reg::hub::kContextEndLo + 8 * vmid + 4, &context.end_hi);
  }
  registers.attach(apertures + reg::aperture::kFbLocationBase, &hub.fb_base);
  registers.attach(apertures + reg::aperture::kFbLocationTop, &hub.fb_top);
  registers.attach(apertures + reg::aperture::kAgpTop, &hub.agp_top);
  registers.attach(apertures + reg::aperture::kAgpBot, &hub.agp_bottom);
  registers.attach(apertures + reg::aperture::kAgpBase, &hub.agp_base);
}

void VmHub::attach_invalidation(Registers& registers) {
  const std::uint32_t base = model_.base;
  for (unsigned engine = 0; engine < reg::kInvalidateEngines; ++engine) {
    // A read that finds it free takes it; 0 gives it back.
    registers.attach(
        base + reg::hub::kInvalidateSem + 4 * engine,
        [this, engine]() -> std::uint32_t {
          if (semaphore_held_[engine]) return 0;
          semaphore_held_[engine] = true;
          return 1;
        },
        [this, engine](std::uint32_t value) { semaphore_held_[engine] = (value & 1) != 0; });
    registers.attach(base + reg::hub::kInvalidateReq + 4 * engine, &request_[engine]);
    // One bit a vmid, of those that were asked for.
    registers.attach(
        base + reg::hub::kInvalidateAck + 4 * engine, [this, engine] { return request_[engine] & 0xffff; },
        [](std::uint32_t) {});
  }
}

void VmHub::attach_faults(Registers& registers) {
  const std::uint32_t base = model_.base;
  const auto nothing = [](std::uint32_t) {};
  registers.attach(
      base + reg::hub::kFaultCntl, [this] { return fault_control_; },
      [this](std::uint32_t value) {
        fault_control_ = value & ~1U;
        if ((value & 1) != 0) fault_status_ = 0, fault_page_ = 0;
      });
  registers.attach(
      base + reg::hub::kFaultStatus, [this] { return fault_status_; }, nothing);
  registers.attach(
      base + reg::hub::kFaultAddrLo, [this] { return static_cast<std::uint32_t>(fault_page_); }, nothing);
  registers.attach(
      base + reg::hub::kFaultAddrHi, [this] { return static_cast<std::uint32_t>(fault_page_ >> 32); },
      nothing);
}

std::optional<InterruptEntry> VmHub::report(const Fault& fault) {
  if (fault_status_ != 0) {
    fault_status_ |= kMoreFaults;
  } else {
    fault_status_ = status_of(fault);
    fault_page_ = fault.address >> 12;
  }
  if ((memory_.hub(model_.hub).contexts[fault.vmid].control & interrupt_bit(fault)) == 0) return std::nullopt;

  InterruptEntry told;
  told.client = model_.hub == Hub::kMm ? kIhVmc : kIhUtcl2;
  told.node = model_.node;
  told.source = 0;
  const bool absent = fault.why != Fault::Why::kNotAllowed;
  told.ring_id = (absent ? 0x08U : 0U) | (is_write(fault) ? 0x20U : 0x10U);
  told.vmid = fault.vmid;
  told.pasid = fault.pasid;
  told.mm_hub = model_.hub == Hub::kMm;
  told.data[0] = static_cast<std::uint32_t>(fault.address >> 12);
  told.data[1] = static_cast<std::uint32_t>(fault.address >> 44 & 0xf) | (is_write(fault) ? 0x20U : 0U);
  return told;
}

}  // namespace sluice::card
