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
  virtual const pkt_space& memory() { return *space_.c(); }
  virtual std::optional<Fault> asked_fault() { return std::nullopt; }  // on demand, of the packet at hand
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

  Chip& chip_;
  PacketSpace space_;
  std::unique_ptr<PacketSpace> ib_space_;  // of the last IB with a vmid of its own
  pkt_queue ring_{};
  pkt_owner owner_{};
  std::string name_;

 private:
  void seen(const std::uint32_t* dwords, std::uint32_t count);

  bool stopped_ = false;
  // The packet that the trace has already: one that waits is told once.
  std::uint64_t traced_read_ = ~std::uint64_t{0};
  std::uint32_t traced_at_ = 0;
};

}  // namespace sluice::card
