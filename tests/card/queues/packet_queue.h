// SPDX-License-Identifier: MIT
// What the queues of SDMA and of processes have in common: a ring that the packet decoders step through
// (tests/vamdgpu/packets), in an address space of the card, with its faults, its trace and its bounds.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine.h"
#include "memory/packet_space.h"
#include "packets/packets.h"
#include "queues/dummy_page.h"

namespace sluice::card {

class PacketQueue : public Queue {
 public:
  static constexpr std::uint64_t kStepBytes = 4 << 20;  // that one step moves at most
  static constexpr unsigned kStepPackets = 64;          // that one step executes at most

  const std::string& name() const override { return name_; }
  State step() override;

 protected:
  PacketQueue(Chip& chip, const AddressSpace& space, std::string name);

  // One packet: calls the decoder.
  virtual pkt_result decode(const pkt_space& space, std::uint64_t& budget) = 0;
  // ring_.read has gone on: writes it back. False: the place is not mapped; the space has the fault.
  virtual bool write_back() = 0;
  virtual void interrupt(std::uint32_t context) = 0;
  // Bytes that this step may move; 0: none now. And what it did move.
  virtual std::uint64_t budget() { return kStepBytes; }
  virtual void moved_bytes(std::uint64_t) {}
  virtual void executed() = 0;  // counts a packet
  virtual bool hangs() { return false; }
  virtual std::optional<Fault> asked_fault() { return std::nullopt; }  // of a packet that the owner refused
  // Of rings of the driver: an access that failed goes on with the dummy page, if the driver has set its hub
  // so. A process' queue stops: the driver takes it off the hardware anyway.
  virtual bool is_drivers() const { return false; }
  // Whether the copy or fill at hand fails, on demand.
  virtual bool copy_fails() { return false; }
  // The queue stands: tells the driver. `fault`: the access that failed, if it was that.
  virtual void tell(const std::optional<Fault>& fault) {
    if (fault) chip_.report(*fault);
  }
  virtual unsigned sdma_engine() const { return 0; }  // for faults

  bool store(std::uint64_t address, std::uint64_t value, unsigned bytes) {
    return space_.c()->write(space_.c()->self, address, &value, bytes) == 0;
  }
  void trace(std::string_view what) const;
  State stop();  // for good
  // Of a ring of the driver: its packets read registers, and its IBs may lie in any vmid.
  void reach_as_driver();
  // Of an IB: 0 is the ring's own space, others are those of the ring's hub.
  const pkt_space* memory_of(std::uint32_t vmid);

  Chip& chip_;
  PacketSpace space_;
  pkt_queue ring_{};
  pkt_owner owner_{};
  std::string name_;

 private:
  void seen(const std::uint32_t* dwords, std::uint32_t count);
  bool failed(const Fault& fault);

  DummyPageSpace memory_;
  std::unique_ptr<PacketSpace> ib_space_;  // of the last IB with a vmid of its own
  std::unique_ptr<DummyPageSpace> ib_memory_;
  std::optional<Fault> fatal_;  // the access that stops the queue
  // The packet whose first failed access was reported: one report a packet.
  std::uint64_t reported_read_ = ~std::uint64_t{0};
  std::uint32_t reported_at_ = 0;
  bool stopped_ = false;
  // The packet that the trace has already: one that waits is told once.
  std::uint64_t traced_read_ = ~std::uint64_t{0};
  std::uint32_t traced_depth_ = 0;
  std::uint32_t traced_at_ = 0;
};

}  // namespace sluice::card
