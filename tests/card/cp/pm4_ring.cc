// SPDX-License-Identifier: MIT
#include "cp/pm4_ring.h"

#include <utility>

namespace sluice::card {

namespace {

// Of one call of step().
constexpr unsigned kRingPackets = 256;
constexpr std::uint64_t kRingBytes = 4 << 20;

// Dword indices of registers that jobs may write: shader (SH) and user configuration (UCONFIG).
constexpr bool open_to_jobs(std::uint32_t index) {
  return (index >= 0x2c00 && index < 0x3000) || (index >= 0xc000 && index < 0x10000);
}

Pm4Ring& ring_of(void* self) {
  return *static_cast<Pm4Ring*>(self);
}

}  // namespace

Pm4Ring::Pm4Ring(Chip& chip, Scheduler* scheduler, std::string name, const KernelRing& ring)
    : chip_(chip),
      scheduler_(scheduler),
      name_(std::move(name)),
      ring_(ring),
      space_(chip.space(Hub::kGc, 0)) {
  queue_.ring = ring.base;
  queue_.ring_bytes = ring.bytes;
  queue_.read = queue_.write = ring.read_pointer;
  rules_.groups = PKT_PM4_SYNC | PKT_PM4_SHADERS;
  owner_.self = this;
  owner_.space = [](void* self, std::uint32_t vmid) { return ring_of(self).space_of(vmid); };
  owner_.read_register = [](void* self, std::uint32_t index, std::uint32_t* value) {
    return ring_of(self).read_register(index, value);
  };
  owner_.write_register = [](void* self, std::uint32_t index, std::uint32_t value) {
    return ring_of(self).write_register(index, value);
  };
  owner_.clock = [](void* self) { return ring_of(self).chip_.clock(); };
  owner_.moved = [](void* self, pkt_queue*) { return ring_of(self).moved(); };
  owner_.interrupt = [](void* self, pkt_queue*, std::uint32_t context) {
    return ring_of(self).interrupt(context);
  };
  owner_.pm4 = [](void* self, pkt_queue*, const pkt_space*, std::uint32_t op, const std::uint32_t* body,
                  std::uint32_t dwords) { return ring_of(self).scheduler_packet(op, body, dwords); };
  if (ring.kind == KernelRing::Kind::kCompute) {
    owner_.holds_fence = [](void* self, pkt_queue*) {
      Pm4Ring& me = ring_of(self);
      Faults& faults = me.chip_.faults();
      if (faults.fence == Faults::Fence::kHang) {
        me.hangs_ = true;
        faults.fence = Faults::Fence::kPass;
      }
      return me.hangs_ || faults.fence == Faults::Fence::kHold ? 1 : 0;
    };
  }
}

const pkt_space* Pm4Ring::space_of(std::uint32_t vmid) {
  if (vmid == 0) return space_.c();
  return job_spaces_.try_emplace(vmid, chip_.space(Hub::kGc, vmid)).first->second.c();
}

int Pm4Ring::read_register(std::uint32_t index, std::uint32_t* value) {
  *value = chip_.read_register(index * 4);
  return 0;
}

int Pm4Ring::write_register(std::uint32_t index, std::uint32_t value) {
  if (in_job() && !open_to_jobs(index)) {
    privileged_register_ = true;
    return 1;
  }
  chip_.write_register(index * 4, value);
  return 0;
}

int Pm4Ring::moved() {
  ++chip_.counters().pm4_packets;
  if (ring_.read_pointer_report == 0) return 0;
  const auto place = static_cast<std::uint32_t>(queue_.read & (queue_.ring_bytes / 4 - 1));
  return space_.c()->write(space_.c()->self, ring_.read_pointer_report, &place, sizeof place);
}

int Pm4Ring::interrupt(std::uint32_t context) {
  InterruptEntry entry;
  entry.client = kIhGrbmCp;
  entry.source = kSourceEndOfPipe;
  entry.ring_id = ring_.ring_id;
  entry.data[0] = context;
  chip_.interrupt(entry);
  return 0;
}

int Pm4Ring::scheduler_packet(std::uint32_t op, const std::uint32_t* body, std::uint32_t dwords) {
  if (scheduler_ == nullptr || dwords > PKT_PM4_BODY || in_job()) return 1;
  Scheduler::Ib ib;
  const auto known = scheduler_->packet(op, std::span(body, dwords), ib);
  if (!known) {
    scheduler_fault_ = known.error();
    return 1;
  }
  if (!*known) return 1;
  return ib.dwords != 0 && pkt_enter_ib(&queue_, ib.address, ib.dwords, 0) != 0 ? 1 : 0;
}

bool Pm4Ring::held_by_fault() {
  if (ring_.kind != KernelRing::Kind::kHiq || !chip_.faults().refuse_preemption || queue_.depth > 0 ||
      queue_.read == queue_.write) {
    return false;
  }
  const auto header = space_.space().load32(queue_.ring + queue_.read * 4 % queue_.ring_bytes);
  if (!header) return false;
  const std::uint32_t op = *header >> 8 & 0xff;
  return op == scheduler::kUnmapQueues || op == scheduler::kQueryStatus || op == scheduler::kRunList;
}

Queue::State Pm4Ring::step() {
  if (queue_.fault != PKT_NO_FAULT) return State::kStopped;
  std::uint64_t budget = kRingBytes;
  for (unsigned i = 0; i < kRingPackets; ++i) {
    if (held_by_fault()) return State::kWaiting;
    const pkt_space* space = space_.c();
    switch (pkt_pm4_step(&queue_, space, &owner_, &rules_, &budget)) {
      case PKT_IDLE:
        return State::kIdle;
      case PKT_DONE:
        break;
      case PKT_WAITS:
        return State::kWaiting;
      case PKT_MORE:
        return State::kReady;
      case PKT_FAULT:
        stop();
        return State::kStopped;
    }
  }
  return State::kReady;
}

void Pm4Ring::stop() {
  ++chip_.counters().queues_stopped;
  std::optional<Fault> fault = std::exchange(scheduler_fault_, std::nullopt);
  if (!fault && queue_.fault != PKT_BAD_PACKET) {
    fault = space_.take_fault();
    for (auto& [vmid, space] : job_spaces_) {
      if (std::optional<Fault> of_job = space.take_fault()) fault = of_job;
    }
  }
  if (chip_.tracing()) {
    chip_.trace(name_ + " stands: " + (queue_.fault_why != nullptr ? queue_.fault_why : "") + ", packet " +
                hex(queue_.fault_header) + " at " + hex(queue_.fault_at) +
                (fault ? ", " + fault->text() : ""));
  }
  if (fault) {
    chip_.report(*fault);
    return;
  }
  InterruptEntry entry;
  entry.client = kIhGrbmCp;
  entry.source = privileged_register_ ? kSourcePrivilegedRegister : kSourceBadOpcode;
  entry.ring_id = ring_.ring_id;
  entry.vmid = queue_.depth > 0 ? queue_.ib[queue_.depth - 1].vmid : 0;
  chip_.interrupt(entry);
}

}  // namespace sluice::card
