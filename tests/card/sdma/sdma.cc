// SPDX-License-Identifier: MIT
#include "sdma/sdma.h"

#include <algorithm>
#include <string>
#include <utility>

#include "models/model.h"
#include "queues/packet_queue.h"

namespace sluice::card {

namespace {

constexpr std::uint64_t kTicksPerSecond = 100'000'000;  // of Chip::clock()

// The driver's ring of an engine: privileged, in vmid 0, its IBs in the vmids that their packets name.
class SdmaRingQueue final : public PacketQueue {
 public:
  SdmaRingQueue(Chip& chip, const SdmaRing& ring)
      : PacketQueue(chip, chip.space(Hub::kMm, 0), "sdma" + std::to_string(ring.engine)),
        engine_(ring.engine),
        pace_(chip),
        report_(ring.read_pointer_report) {
    ring_.ring = ring.base;
    ring_.ring_bytes = ring.bytes;
    ring_.read = ring_.write = ring.read_pointer;
    reach_as_driver();
    owner_.write_register = [](void* self, std::uint32_t index, std::uint32_t value) {
      return me(self).write_register(index, value) ? 0 : 1;
    };
    owner_.holds_fence = [](void* self, pkt_queue*) { return me(self).holds_fence() ? 1 : 0; };
  }

  // The doorbell, and RB_WPTR: bytes.
  void ring(std::uint64_t value) override { ring_.write = value; }
  std::uint64_t read_pointer() const override { return ring_.read; }
  std::uint64_t write_pointer() const override { return ring_.write; }

 private:
  static SdmaRingQueue& me(void* self) {
    return *static_cast<SdmaRingQueue*>(static_cast<PacketQueue*>(self));
  }

  pkt_result decode(const pkt_space& space, std::uint64_t& budget) override {
    if (running_vmid() == 0) return pkt_sdma_step(&ring_, &space, &owner_, &kSdmaKernelRules, &budget);
    const std::uint64_t allowed = chip_.faults().hold_copies ? 0 : std::min(budget, pace_.budget());
    if (allowed == 0) return PKT_WAITS;
    std::uint64_t left = allowed;
    const pkt_result result = pkt_sdma_step(&ring_, &space, &owner_, &kSdmaKernelRules, &left);
    pace_.moved(allowed - left);
    budget -= allowed - left;
    return result;
  }
  bool write_back() override { return report_ == 0 || store(report_, ring_.read, 8); }
  void interrupt(std::uint32_t context) override { raise(kSourceSdmaTrap, 0, context); }
  void raise(unsigned source, unsigned vmid, std::uint32_t data) {
    InterruptEntry entry;
    entry.client = chip_.model().sdma.at(engine_).client;
    entry.source = source;
    entry.vmid = vmid;
    entry.mm_hub = true;
    entry.data[0] = data;
    chip_.interrupt(entry);
  }
  // Of the IB that it is in.
  unsigned running_vmid() const { return ring_.depth != 0 ? ring_.ib[ring_.depth - 1].vmid : 0; }

  // Registers are the driver's: an IB of another vmid that writes one stops the ring.
  bool write_register(std::uint32_t index, std::uint32_t value) {
    if (const unsigned vmid = running_vmid(); vmid != 0) {
      raise(kSourceSdmaRegisterWrite, vmid, 4 * index);
      return false;
    }
    chip_.write_register(4 * index, value);
    return true;
  }
  void executed() override { ++chip_.counters().sdma_packets; }
  void moved_bytes(std::uint64_t bytes) override { chip_.counters().sdma_bytes += bytes; }
  bool hangs() override { return hung_; }
  unsigned sdma_engine() const override { return engine_; }

  // Faults on demand.
  bool holds_fence() {
    Faults& faults = chip_.faults();
    if (faults.fence == Faults::Fence::kHang) {
      faults.fence = Faults::Fence::kPass;
      hung_ = true;
      trace("hangs at a fence, as asked");
    }
    return hung_ || faults.fence == Faults::Fence::kHold;
  }
  bool is_drivers() const override { return true; }
  bool copy_fails() override {
    const std::uint32_t op = ring_.fault_header & 0xff;  // of the packet at hand; WRITE copies, too
    if (op != PKT_SDMA_COPY && op != PKT_SDMA_CONST_FILL) return false;
    return std::exchange(chip_.faults().sdma_fault, false);
  }

  const unsigned engine_;
  SdmaPace pace_;  // of jobs of processes
  const std::uint64_t report_;
  bool hung_ = false;
};

}  // namespace

std::uint64_t SdmaPace::budget() {
  const std::uint64_t rate = chip_.faults().sdma_bytes_per_s;
  if (rate == 0) {
    busy_until_ = 0;
    return PacketQueue::kStepBytes;
  }
  if (chip_.clock() < busy_until_) return 0;
  return std::clamp<std::uint64_t>(rate / 100, 4096, PacketQueue::kStepBytes);
}

void SdmaPace::moved(std::uint64_t bytes) {
  const std::uint64_t rate = chip_.faults().sdma_bytes_per_s;
  if (rate != 0) busy_until_ = std::max(chip_.clock(), busy_until_) + bytes * kTicksPerSecond / rate;
}

std::unique_ptr<Queue> make_sdma_ring(Chip& chip, const SdmaRing& ring) {
  return std::make_unique<SdmaRingQueue>(chip, ring);
}

}  // namespace sluice::card
