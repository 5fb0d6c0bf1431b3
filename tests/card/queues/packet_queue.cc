// SPDX-License-Identifier: MIT
#include "queues/packet_queue.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "registers/names.h"

namespace sluice::card {

namespace {

// Of VM_L2_PROTECTION_FAULT_CNTL: VALID_PROTECTION_FAULT_ENABLE_DEFAULT. The driver sets those of all kinds
// of faults together (gfxhub_v1_0_set_fault_enable_default).
constexpr std::uint32_t kToDummyPage = 1 << 9;

std::string hex(std::uint64_t value) {
  char text[19];
  (void)std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

}  // namespace

PacketQueue::PacketQueue(Chip& chip, const AddressSpace& space, std::string name)
    : chip_(chip),
      space_(space),
      name_(std::move(name)),
      memory_(
          space_, [this](const Fault& fault) { return failed(fault); }, [this] { return copy_fails(); }) {
  owner_.self = this;
  owner_.moved = [](void* self, pkt_queue*) { return static_cast<PacketQueue*>(self)->write_back() ? 0 : 1; };
  owner_.interrupt = [](void* self, pkt_queue*, std::uint32_t context) {
    static_cast<PacketQueue*>(self)->interrupt(context);
    return 0;
  };
  owner_.clock = [](void* self) { return static_cast<PacketQueue*>(self)->chip_.clock(); };
  owner_.seen = [](void* self, const pkt_queue*, const std::uint32_t* dwords, std::uint32_t count) {
    static_cast<PacketQueue*>(self)->seen(dwords, count);
  };
}

void PacketQueue::trace(std::string_view what) const {
  if (chip_.tracing()) chip_.trace(name_ + ": " + std::string(what));
}

void PacketQueue::seen(const std::uint32_t* dwords, std::uint32_t count) {
  if (!chip_.tracing()) return;
  const std::uint32_t at = ring_.depth != 0 ? ring_.ib[ring_.depth - 1].at : 0;
  if (ring_.read == traced_read_ && ring_.depth == traced_depth_ && at == traced_at_) return;
  traced_read_ = ring_.read;
  traced_depth_ = ring_.depth;
  traced_at_ = at;
  std::string line = ring_.depth != 0 ? "ib " + hex(ring_.ib[ring_.depth - 1].address) + "+" + hex(4ull * at)
                                      : "at " + hex(ring_.read);
  for (std::uint32_t i = 0; i < count && i < 12; ++i) line += " " + hex(dwords[i]);
  trace(line);
}

void PacketQueue::reach_as_driver() {
  owner_.space = [](void* self, std::uint32_t vmid) {
    return static_cast<PacketQueue*>(self)->memory_of(vmid);
  };
  owner_.read_register = [](void* self, std::uint32_t index, std::uint32_t* value) {
    *value = static_cast<PacketQueue*>(self)->chip_.read_register(4 * index);
    return 0;
  };
}

const pkt_space* PacketQueue::memory_of(std::uint32_t vmid) {
  if (vmid == 0) return memory_.c();
  const AddressSpace space = chip_.space(space_.space().hub(), vmid);
  if (ib_space_ == nullptr) {
    ib_space_ = std::make_unique<PacketSpace>(space);
    ib_memory_ = std::make_unique<DummyPageSpace>(
        *ib_space_, [this](const Fault& fault) { return failed(fault); }, [this] { return copy_fails(); });
  } else {
    ib_space_->use(space);
  }
  return ib_memory_->c();
}

bool PacketQueue::failed(const Fault& fault) {
  if (!is_drivers() || (chip_.fault_control(fault.hub) & kToDummyPage) == 0) {
    fatal_ = fault;
    return false;
  }
  const std::uint32_t at = ring_.depth != 0 ? ring_.ib[ring_.depth - 1].at : 0;
  if (ring_.read == reported_read_ && at == reported_at_) return true;
  reported_read_ = ring_.read;
  reported_at_ = at;
  Fault told = fault;
  told.engine = sdma_engine();
  chip_.report(told);
  return true;
}

Queue::State PacketQueue::stop() {
  stopped_ = true;
  ++chip_.counters().queues_stopped;
  trace(std::string("stopped: ") + pkt_fault_name(ring_.fault) + ": " +
        (ring_.fault_why != nullptr ? ring_.fault_why : "") + ", packet " + hex(ring_.fault_header) + " at " +
        hex(ring_.fault_at) + ", address " + hex(ring_.fault_va));
  std::optional<Fault> fault = asked_fault();
  if (!fault && ring_.fault == PKT_BAD_ADDRESS) {
    fault = std::exchange(fatal_, std::nullopt);
    if (!fault) fault = space_.take_fault();  // of the read pointer's place
  }
  if (fault) fault->engine = sdma_engine();
  tell(fault);
  return State::kStopped;
}

Queue::State PacketQueue::step() {
  if (stopped_) return State::kStopped;
  if (hangs()) return State::kWaiting;
  const std::uint64_t allowed = budget();
  if (allowed == 0) return ring_.read == ring_.write ? State::kIdle : State::kWaiting;
  std::uint64_t left = allowed;
  pkt_result result = PKT_DONE;
  for (unsigned packets = 0; packets < kStepPackets && result == PKT_DONE; ++packets) {
    result = decode(*memory_.c(), left);
    if (result == PKT_DONE) executed();
  }
  moved_bytes(allowed - left);
  switch (result) {
    case PKT_IDLE:
      return State::kIdle;
    case PKT_WAITS:
      return State::kWaiting;
    case PKT_FAULT:
      return stop();
    default:
      return State::kReady;
  }
}

}  // namespace sluice::card
