// SPDX-License-Identifier: MIT
// Queues of processes: AQL and PM4 on the command processor, SDMA on its engines. Nothing that they hold
// reaches registers, and whatever is wrong with them stops that queue only.
#include <utility>

#include "queues/packet_queue.h"
#include "sdma/sdma.h"

namespace sluice::card {

namespace {

// Interrupt of the command processor: soc15_ih_clientid.h, irqsrcs_gfx_9_0.h.
constexpr unsigned kClientCp = 0x14;
constexpr unsigned kSourceEndOfPipe = 181;

constexpr std::uint64_t kAqlDwords = 16;

class UserQueue : public PacketQueue {
 public:
  std::uint64_t read_pointer() const override { return ring_.read; }
  std::uint64_t write_pointer() const override { return ring_.write; }

 protected:
  UserQueue(Chip& chip, const AddressSpace& space, const UserRing& ring, const char* kind)
      : PacketQueue(chip, space, "user " + std::to_string(space.pasid()) + " " + kind), user_(ring) {
    ring_.ring = ring.base;
    ring_.ring_bytes = ring.bytes;
    // An IB of a process is in the process' own memory, whatever vmid its packet names.
    owner_.space = [](void* self, std::uint32_t) {
      return static_cast<UserQueue*>(static_cast<PacketQueue*>(self))->memory_of(0);
    };
  }

  // The write pointer in the process' memory, or nothing where that page is not mapped (yet).
  std::optional<std::uint64_t> written() const {
    if (user_.write_pointer_address == 0) return std::nullopt;
    const auto value = space_.space().load64(user_.write_pointer_address);
    if (!value) return std::nullopt;
    return *value;
  }
  bool report(std::uint64_t value, unsigned bytes) {
    return user_.read_pointer_report == 0 || store(user_.read_pointer_report, value, bytes);
  }
  void executed() override { ++chip_.counters().user_packets; }
  void raise(unsigned client, unsigned source, bool mm_hub, std::uint32_t context) {
    InterruptEntry entry;
    entry.client = client;
    entry.source = source;
    entry.ring_id = user_.ring_id;
    entry.vmid = space_.space().vmid();
    entry.pasid = space_.space().pasid();
    entry.mm_hub = mm_hub;
    entry.data[0] = context;
    chip_.interrupt(entry);
  }

  const UserRing user_;
};

class AqlQueue final : public UserQueue {
 public:
  AqlQueue(Chip& chip, const AddressSpace& space, const UserRing& ring)
      : UserQueue(chip, space, ring, "aql") {
    ring_.read = ring_.write = ring.read_pointer / kAqlDwords;
    const auto write = written();
    if (!write) return;
    // The MQD has 32 bits of the read pointer, in dwords; what is above them is that of the write pointer.
    const auto ahead =
        static_cast<std::int32_t>(static_cast<std::uint32_t>(*write * kAqlDwords - ring.read_pointer));
    if (ahead < 0) return;  // memory that was not restored yet: the doorbell will tell
    ring_.write = *write;
    ring_.read = *write - static_cast<std::uint32_t>(ahead) / kAqlDwords;
  }
  // The doorbell names the last packet.
  void ring(std::uint64_t value) override {
    if (static_cast<std::int64_t>(value + 1 - ring_.write) > 0) ring_.write = value + 1;
  }
  std::uint64_t read_pointer() const override { return ring_.read * kAqlDwords; }
  std::uint64_t write_pointer() const override { return ring_.write * kAqlDwords; }

 private:
  pkt_result decode(const pkt_space& space, std::uint64_t&) override {
    return pkt_aql_step(&ring_, &space, &owner_);
  }
  bool write_back() override { return report(ring_.read, 8); }
  void interrupt(std::uint32_t event) override { raise(kClientCp, kSourceEndOfPipe, false, event); }
};

class Pm4Queue final : public UserQueue {
 public:
  Pm4Queue(Chip& chip, const AddressSpace& space, const UserRing& ring)
      : UserQueue(chip, space, ring, "pm4") {
    ring_.read = ring_.write = ring.read_pointer;
    if (const auto write = written()) this->ring(*write);
  }
  // The read pointer may have been reported as a place in the ring, so only the write pointer's place counts.
  void ring(std::uint64_t value) override {
    const std::uint64_t dwords = user_.bytes / 4;
    if (dwords != 0) ring_.write = ring_.read + (value - ring_.read) % dwords;
  }

 private:
  pkt_result decode(const pkt_space& space, std::uint64_t& budget) override {
    static constexpr pkt_pm4_rules kRules{PKT_PM4_SYNC | PKT_PM4_SHADERS};
    return pkt_pm4_step(&ring_, &space, &owner_, &kRules, &budget);
  }
  bool write_back() override { return report(ring_.read % (user_.bytes / 4), 4); }
  void interrupt(std::uint32_t context) override { raise(kClientCp, kSourceEndOfPipe, false, context); }
};

class SdmaUserQueue final : public UserQueue {
 public:
  SdmaUserQueue(Chip& chip, const AddressSpace& space, const UserRing& ring)
      : UserQueue(chip, space, ring, "sdma"), pace_(chip) {
    ring_.read = ring_.write = ring.read_pointer;
    if (const auto write = written()) ring_.write = *write;
  }
  void ring(std::uint64_t value) override { ring_.write = value; }

 private:
  pkt_result decode(const pkt_space& space, std::uint64_t& budget) override {
    return pkt_sdma_step(&ring_, &space, &owner_, &kSdmaUserRules, &budget);
  }
  bool write_back() override { return report(ring_.read, 8); }
  void interrupt(std::uint32_t context) override {
    raise(kSdmaClients[user_.engine % kSdmaEngines], kSourceSdmaTrap, true, context);
  }
  std::uint64_t budget() override { return pace_.budget(); }
  unsigned sdma_engine() const override { return user_.engine % kSdmaEngines; }
  void moved_bytes(std::uint64_t bytes) override {
    chip_.counters().sdma_bytes += bytes;
    pace_.moved(bytes);
  }

  SdmaPace pace_;
};

}  // namespace

std::unique_ptr<Queue> make_user_queue(Chip& chip, const AddressSpace& space, const UserRing& ring) {
  switch (ring.kind) {
    case UserRing::Kind::kAql:
      return std::make_unique<AqlQueue>(chip, space, ring);
    case UserRing::Kind::kPm4:
      return std::make_unique<Pm4Queue>(chip, space, ring);
    case UserRing::Kind::kSdma:
      break;
  }
  return std::make_unique<SdmaUserQueue>(chip, space, ring);
}

}  // namespace sluice::card
