// SPDX-License-Identifier: MIT
// The command processor: hardware queue slots, the driver's rings in them, and the queues of processes that
// the scheduler (HIQ) maps.
//
// A slot is started in two ways. The driver writes its registers and ACTIVE (KIQ). KIQ's MAP_QUEUES fills a
// slot out of an MQD (HIQ, compute rings). HIQ's runlist maps queues of processes out of their MQDs: all of
// them run at once, however many there are; real hardware shares its slots and vmids by time. What is
// unmapped has its pointers written back to its MQD.
//
// The driver may make several XCCs one GPU. Then each has the HIQ, and each queue of a process has an MQD for
// each, `cp_mqd_stride_size` apart. The partition's first XCC is the master: it has the queues, deals the
// workgroups of dispatches to all, and answers the driver. How firmware divides this among the dies is not
// published.
//
// Facts: gfx_v9_0.c, amdgpu_amdkfd_gfx_v9.c, kfd_packet_manager_v9.c, kfd_pm4_headers_ai.h and _aldebaran.h.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cp/mqd.h"
#include "cp/pm4_ring.h"
#include "engine.h"
#include "memory/memory.h"
#include "registers/registers.h"

namespace sluice::card {

class CommandProcessor final : public Scheduler {
 public:
  // Attaches itself to the registers of its XCC. All outlive this.
  CommandProcessor(Chip& chip, const Memory& memory, RegisterBank registers);

  void reset();

  // True when a queue listens to the doorbell at this byte of BAR 2.
  bool doorbell(std::uint64_t offset, std::uint64_t value);

  // Lets each queue step: kReady while one has more to do, else kWaiting while one waits.
  Queue::State work();

  // Whether the pipe that an interrupt of the command processor comes from may send it.
  bool sends(const InterruptEntry& entry) const;

  // ---- for tests and counters ----
  std::size_t user_queues() const;
  const Queue* queue_at(std::uint32_t doorbell) const;

  // Scheduler:
  OrFault<bool> packet(std::uint32_t op, std::span<const std::uint32_t> body, Ib& ib) override;

 private:
  static constexpr std::size_t kMes = 4, kPipes = 4, kSlotsPerPipe = 8;
  static constexpr std::size_t kSlots = kMes * kPipes * kSlotsPerPipe;
  using Slot = std::array<std::uint32_t, mqd::compute::kSlotDwords>;
  static constexpr std::size_t kNoSlot = ~std::size_t{0};

  // A queue that runs.
  struct Mapped {
    std::unique_ptr<Queue> queue;
    std::uint32_t doorbell = 0;
    std::vector<std::uint64_t> mqds;  // of each XCC of its partition; none: started by registers
    std::size_t slot = kNoSlot;       // of the driver's rings
    bool sdma = false;
    bool user = false;
    bool is_static = false;
    std::uint32_t pasid = 0;
    unsigned ring_id = 0;
  };
  // The process that the runlist's queues belong to, of MAP_PROCESS.
  struct Process {
    std::uint32_t pasid = 0;
    std::uint64_t root = 0;
    unsigned vmid = 0;
    std::uint64_t tba = 0, tma = 0;
    std::uint32_t sh_mem_bases = 0;
  };

  // The HIQ of an XCC that is not its partition's master. All HIQs of a partition read the same packets, and
  // the master does what they say.
  class Follower final : public Scheduler {
   public:
    OrFault<bool> packet(std::uint32_t, std::span<const std::uint32_t>, Ib&) override { return true; }
  };

  std::size_t selected_slot() const;
  std::uint32_t selected_interrupts() const;  // the register that CPC_INT_CNTL stands for
  bool halted(const Mapped& mapped) const;
  static unsigned ring_id_of(std::size_t slot);
  Mapped* find(std::uint32_t doorbell);

  // Starts the driver's ring of a slot out of its registers.
  void start_slot(std::size_t slot, KernelRing::Kind kind, std::uint64_t mqd);
  void write_slot(std::size_t index, std::uint32_t value);
  std::uint32_t read_slot(std::size_t index);

  OrFault<bool> map_process(std::span<const std::uint32_t> body);
  OrFault<bool> map_queues(std::span<const std::uint32_t> body);
  OrFault<bool> map_kernel_queue(std::span<const std::uint32_t> body);
  OrFault<bool> map_user_queue(std::span<const std::uint32_t> body);
  OrFault<bool> start_user_queue(std::unique_ptr<Mapped> mapped, const UserRing& ring);
  static void read_sdma(std::span<const std::uint32_t> words, UserRing& ring);
  OrFault<void> read_compute(std::uint64_t mqd, std::span<const std::uint32_t> words, UserRing& ring) const;
  OrFault<bool> unmap_queues(std::span<const std::uint32_t> body);
  OrFault<bool> query_status(std::span<const std::uint32_t> body);
  OrFault<bool> run_list(std::span<const std::uint32_t> body, Ib& ib);

  // Unmaps what `which` says yes to; the MQDs get their pointers back.
  template <class Which>
  OrFault<void> unmap(Which which);
  OrFault<void> save(const Mapped& mapped);
  OrFault<void> save_pointers(const Mapped& mapped, std::uint64_t mqd, std::uint64_t read,
                              std::uint64_t write) const;
  OrFault<void> feign_waves(const AddressSpace& space, std::uint64_t slot);
  unsigned vmid_for(std::uint32_t pasid);
  unsigned free_ring_id() const;
  void trace(const std::string& line);

  Chip& chip_;
  const Memory& memory_;
  RegisterBank registers_;
  std::vector<Slot> slots_;
  std::vector<std::unique_ptr<Mapped>> mapped_;
  // Unmapped by a packet of a queue that may be the same one: they go when nobody steps.
  std::vector<std::unique_ptr<Mapped>> unmapped_;
  Process process_;
  std::uint32_t vmid_mask_ = 0;
  std::uint64_t queue_mask_ = 0;
  std::array<std::uint32_t, kVmids> vmid_pasid_{};  // of the runlist; 0: free
  unsigned kiq_ring_id_ = 0;
  Follower follower_;
};

}  // namespace sluice::card
