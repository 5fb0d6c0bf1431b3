// SPDX-License-Identifier: MIT
#include "cp/pm4_ring.h"

#include <utility>

namespace sluice::card {

namespace {

// Dword indices of registers that jobs may write: shader (SH) and user configuration (UCONFIG).
constexpr bool open_to_jobs(std::uint32_t index) {
  return (index >= 0x2c00 && index < 0x3000) || (index >= 0xc000 && index < 0x10000);
}

Pm4Ring& me(void* self) {
  return *static_cast<Pm4Ring*>(static_cast<PacketQueue*>(self));
}

}  // namespace

Pm4Ring::Pm4Ring(Chip& chip, Scheduler* scheduler, std::string name, const KernelRing& ring)
    : PacketQueue(chip, chip.space(Hub::kGc, 0), std::move(name)), scheduler_(scheduler), kernel_(ring) {
  ring_.ring = ring.base;
  ring_.ring_bytes = ring.bytes;
  ring_.read = ring_.write = ring.read_pointer;
  reach_as_driver();
  owner_.write_register = [](void* self, std::uint32_t index, std::uint32_t value) {
    return me(self).write_register(index, value);
  };
  owner_.pm4 = [](void* self, pkt_queue*, const pkt_space*, std::uint32_t op, const std::uint32_t* body,
                  std::uint32_t dwords) {
    return dwords > PKT_PM4_BODY ? 1 : me(self).scheduler_packet(op, std::span(body, dwords));
  };
  if (ring.kind == KernelRing::Kind::kCompute) {
    owner_.holds_fence = [](void* self, pkt_queue*) { return me(self).holds_fence() ? 1 : 0; };
  }
}

pkt_result Pm4Ring::decode(const pkt_space& space, std::uint64_t& budget) {
  static constexpr pkt_pm4_rules kRules{PKT_PM4_SYNC | PKT_PM4_SHADERS};
  if (refuses_preemption()) return PKT_WAITS;
  return pkt_pm4_step(&ring_, &space, &owner_, &kRules, &budget);
}

bool Pm4Ring::write_back() {
  return kernel_.read_pointer_report == 0 ||
         store(kernel_.read_pointer_report, ring_.read % (ring_.ring_bytes / 4), 4);
}

int Pm4Ring::write_register(std::uint32_t index, std::uint32_t value) {
  if (vmid() != 0 && !open_to_jobs(index)) {
    privileged_register_ = true;
    return 1;
  }
  chip_.write_register(index * 4, value);
  return 0;
}

int Pm4Ring::scheduler_packet(std::uint32_t op, std::span<const std::uint32_t> body) {
  if (scheduler_ == nullptr || vmid() != 0) return 1;
  Scheduler::Ib ib;
  const auto known = scheduler_->packet(op, body, ib);
  if (!known) {
    scheduler_fault_ = known.error();
    return 1;
  }
  if (!*known) return 1;
  return ib.dwords != 0 && pkt_enter_ib(&ring_, ib.address, ib.dwords, 0) != 0 ? 1 : 0;
}

// ---- faults on demand ----

bool Pm4Ring::refuses_preemption() {
  if (kernel_.kind != KernelRing::Kind::kHiq || !chip_.faults().refuse_preemption || ring_.depth > 0 ||
      ring_.read == ring_.write) {
    return false;
  }
  const auto header = space_.space().load32(ring_.ring + ring_.read % (ring_.ring_bytes / 4) * 4);
  if (!header) return false;
  const std::uint32_t op = *header >> 8 & 0xff;
  return op == scheduler::kUnmapQueues || op == scheduler::kQueryStatus || op == scheduler::kRunList;
}

bool Pm4Ring::holds_fence() {
  Faults& faults = chip_.faults();
  if (faults.fence == Faults::Fence::kHang) {
    faults.fence = Faults::Fence::kPass;
    hangs_ = true;
    trace("hangs at a fence, as asked");
  }
  return hangs_ || faults.fence == Faults::Fence::kHold;
}

// ---- interrupts ----

void Pm4Ring::send(unsigned source, std::uint32_t vmid, std::uint32_t data) {
  InterruptEntry entry;
  entry.client = kIhGrbmCp;
  entry.source = source;
  entry.ring_id = kernel_.ring_id;
  entry.vmid = vmid;
  entry.data[0] = data;
  chip_.interrupt(entry);
}

void Pm4Ring::interrupt(std::uint32_t context) {
  send(kSourceEndOfPipe, 0, context);
}

void Pm4Ring::tell(const std::optional<Fault>& fault) {
  if (fault) return chip_.report(*fault);
  send(privileged_register_ ? kSourcePrivilegedRegister : kSourceBadOpcode, vmid(), 0);
}

}  // namespace sluice::card
