// SPDX-License-Identifier: MIT
// A PM4 ring of the driver: KIQ, HIQ or a compute ring, in vmid 0 of the GC hub. Packets are decoded by
// tests/vamdgpu/packets; those of the scheduler go to a Scheduler. IBs run in the vmid that their packet
// names; those of a job (vmid not 0) may write shader and user configuration registers only, as on hardware,
// where others are privileged.
//
// What the hardware answers with an interrupt (gfx_v9_0.c): an unknown or malformed packet with source 183, a
// privileged register with 184, an address that is not mapped with a VM fault. Then the ring stands.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "engine.h"
#include "packets/packets.h"
#include "queues/packet_queue.h"

namespace sluice::card {

// Packets of the scheduler (soc15d.h).
namespace scheduler {
constexpr std::uint32_t kInvalidateTlbs = 0x98;
constexpr std::uint32_t kSetResources = 0xa0;
constexpr std::uint32_t kMapProcess = 0xa1;
constexpr std::uint32_t kMapQueues = 0xa2;
constexpr std::uint32_t kUnmapQueues = 0xa3;
constexpr std::uint32_t kQueryStatus = 0xa4;
constexpr std::uint32_t kRunList = 0xa5;
}  // namespace scheduler

// Of interrupts of the command processor (soc15_ih_clientid.h, irqsrcs_gfx_9_0.h).
constexpr unsigned kIhGrbmCp = 0x14;
constexpr unsigned kSourceKiq = 178;
constexpr unsigned kSourceEndOfPipe = 181;
constexpr unsigned kSourceBadOpcode = 183;
constexpr unsigned kSourcePrivilegedRegister = 184;

// What the queues of the scheduler may do that others may not.
class Scheduler {
 public:
  Scheduler() = default;
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;
  virtual ~Scheduler() = default;

  struct Ib {
    std::uint64_t address = 0;
    std::uint32_t dwords = 0;  // 0: none
  };
  // Executes a packet of the scheduler. `ib`: what the packet calls. A VM fault ends the ring that has the
  // packet. False: not a packet that there is, or malformed.
  virtual OrFault<bool> packet(std::uint32_t op, std::span<const std::uint32_t> body, Ib& ib) = 0;
};

struct KernelRing {
  enum class Kind : std::uint8_t { kKiq, kHiq, kCompute };
  Kind kind = Kind::kCompute;
  std::uint64_t base = 0;
  std::uint64_t bytes = 0;                // a power of two
  std::uint64_t read_pointer = 0;         // dwords
  std::uint64_t read_pointer_report = 0;  // 32 bits of the dword in the ring are written there; 0: nowhere
  unsigned ring_id = 0;                   // of its interrupts: me << 2 | pipe | queue << 4
};

class Pm4Ring final : public PacketQueue {
 public:
  // `scheduler`: of KIQ and HIQ; nullptr: packets of the scheduler are unknown. Both outlive this.
  Pm4Ring(Chip& chip, Scheduler* scheduler, std::string name, const KernelRing& ring);

  void ring(std::uint64_t value) override { ring_.write = value; }
  std::uint64_t read_pointer() const override { return ring_.read; }
  std::uint64_t write_pointer() const override { return ring_.write; }

 private:
  pkt_result decode(const pkt_space& space, std::uint64_t& budget) override;
  bool write_back() override;
  void interrupt(std::uint32_t context) override;
  void executed() override { ++chip_.counters().pm4_packets; }
  bool hangs() override { return hangs_; }
  bool is_drivers() const override { return true; }
  std::optional<Fault> asked_fault() override { return std::exchange(scheduler_fault_, std::nullopt); }
  void tell(const std::optional<Fault>& fault) override;

  // True when the packet that comes next has to wait for a fault on demand to be taken back.
  bool refuses_preemption();
  bool holds_fence();
  int write_register(std::uint32_t index, std::uint32_t value);
  int scheduler_packet(std::uint32_t op, std::span<const std::uint32_t> body);
  std::uint32_t vmid() const { return ring_.depth > 0 ? ring_.ib[ring_.depth - 1].vmid : 0; }
  void send(unsigned source, std::uint32_t vmid, std::uint32_t data);

  Scheduler* scheduler_;
  const KernelRing kernel_;
  std::optional<Fault> scheduler_fault_;
  bool privileged_register_ = false;
  bool hangs_ = false;
};

}  // namespace sluice::card
