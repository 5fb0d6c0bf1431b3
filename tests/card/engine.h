// SPDX-License-Identifier: MIT
// What is between the GPU and its engines. A Chip is what an engine reaches the rest of the card by; a Queue
// is one ring that an engine works on, whether the driver's or a process'.
//
// The command processor maps and unmaps queues and the GPU lets them step; what a packet means is the queue's
// own affair. One thread; nothing throws.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "faults.h"
#include "memory/address_space.h"

namespace sluice::card {

struct Model;

// One entry of the interrupt ring, as amdgpu_ih.c decodes it (amdgpu_ih_decode_iv_helper).
struct InterruptEntry {
  unsigned client = 0;  // SOC15_IH_CLIENTID_*
  unsigned source = 0;
  unsigned ring_id = 0;
  unsigned vmid = 0;
  std::uint32_t pasid = 0;
  bool mm_hub = false;  // the vmid is the MM hub's (SDMA)
  unsigned node = 0;    // the die that it comes from
  std::array<std::uint32_t, 4> data{};
};

// An XCC's part in the partition of the card that is one GPU to the driver.
struct Partition {
  unsigned xcc = 0;         // its number there; the first one is the master of the queues
  unsigned xccs = 1;        // of the partition
  unsigned first_sdma = 0;  // SDMA engine of the card that is the partition's first
};

// The rest of the card.
class Chip {
 public:
  Chip() = default;
  Chip(const Chip&) = delete;
  Chip& operator=(const Chip&) = delete;
  virtual ~Chip() = default;

  // Registers by byte offset, as packets reach them: with the same behaviour as by the bus.
  virtual std::uint32_t read_register(std::uint32_t byte) = 0;
  virtual void write_register(std::uint32_t byte, std::uint32_t value) = 0;

  virtual void interrupt(const InterruptEntry& entry) = 0;
  // An engine met a VM fault: the hub's status registers and an interrupt tell the driver. The engine stops
  // the queue by itself.
  virtual void report(const Fault& fault) = 0;

  // The address space of a vmid as the hub's registers have it: 0 the driver's, 1..15 a job's.
  virtual AddressSpace space(Hub hub, unsigned vmid) = 0;
  virtual std::uint64_t clock() = 0;  // 100 MHz, monotonic

  virtual const Model& model() const = 0;
  // Of the XCC whose engines this is for.
  virtual Partition partition() const { return {}; }
  // A hub's VM_L2_PROTECTION_FAULT_CNTL.
  virtual std::uint32_t fault_control(Hub hub) const = 0;
  virtual Faults& faults() = 0;
  virtual Counters& counters() = 0;
  // One line of the trace, without its end. Ask tracing() before a line is put together.
  virtual bool tracing() const = 0;
  virtual void trace(std::string_view line) = 0;
};

// One ring with packets in it.
class Queue {
 public:
  enum class State : std::uint8_t {
    kIdle,     // nothing between the pointers: until its doorbell rings
    kReady,    // there is more to do
    kWaiting,  // for memory or a register to change, or a fault on demand to be taken back
    kStopped,  // by a fault of its own, for good; it can be unmapped, and its pointers stay where they were
  };

  Queue() = default;
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  virtual ~Queue() = default;

  virtual const std::string& name() const = 0;  // for the trace: "sdma2", "user 0x8001 aql 0x1008"
  // The doorbell was written with `value`.
  virtual void ring(std::uint64_t value) = 0;
  // Executes some packets: a bounded number, and a bounded number of bytes (some MiB). A packet that waits
  // can be resumed, in an IB, too.
  virtual State step() = 0;
  // As MQDs hold them: see UserRing.
  virtual std::uint64_t read_pointer() const = 0;
  virtual std::uint64_t write_pointer() const = 0;
  // It is about to be unmapped: what runs in the middle is saved to where the process and its MQD keep it.
  // True: the MQD says that there are waves.
  virtual bool save() { return false; }
};

// Of two queues together: there is more to do, or one waits, or neither. One that is stopped does nothing.
constexpr Queue::State busier(Queue::State a, Queue::State b) {
  for (const Queue::State state : {Queue::State::kReady, Queue::State::kWaiting}) {
    if (a == state || b == state) return state;
  }
  return Queue::State::kIdle;
}

// A ring of a process, out of its MQD (v9_structs.h: v9_mqd, v9_sdma_mqd) and MAP_QUEUES.
struct UserRing {
  enum class Kind : std::uint8_t { kAql, kPm4, kSdma };
  Kind kind = Kind::kAql;
  unsigned engine = 0;             // SDMA's
  std::uint64_t base = 0;          // address in the process
  std::uint64_t bytes = 0;         // a power of two
  std::uint64_t read_pointer = 0;  // AQL and PM4: dwords, not modulo the ring; SDMA: bytes
  std::uint64_t write_pointer = 0;
  std::uint64_t read_pointer_report = 0;  // address in the process where the read pointer is written (AQL: in
                                          // packets; PM4: dword of the ring; SDMA: bytes); 0: nowhere
  std::uint64_t write_pointer_address = 0;  // in the process, of MAP_QUEUES; in its own unit (AQL: packets)
  unsigned ring_id = 0;                     // of its interrupts

  // ---- AQL: for waves ----
  std::uint64_t tba = 0;  // the trap handler, of MAP_PROCESS; 0: none
  std::uint64_t tma = 0;  // and its memory
  // Of MAP_PROCESS: where the apertures of scratch (low half) and LDS begin, >> 48.
  std::uint32_t sh_mem_bases = 0;
  std::uint32_t doorbell = 0;  // byte in BAR 2
  // Where waves are saved, of each XCC of the partition: as its MQD has it.
  struct Save {
    std::uint64_t mqd = 0;   // address in vmid 0
    std::uint64_t area = 0;  // in the process
    std::uint32_t area_bytes = 0, stack_bytes = 0, stack_offset = 0;
  };
  std::vector<Save> saves;
};

// Both in queues/: consumers of what processes write. `space` is the process' (of_process()): hub GC for AQL
// and PM4, MM for SDMA. The write pointer is read from the process at once; a page that is not mapped then
// leaves the queue empty until its doorbell rings. `chip` outlives the queue.
std::unique_ptr<Queue> make_user_queue(Chip& chip, const AddressSpace& space, const UserRing& ring);

// The driver's ring of an SDMA engine, out of the engine's registers (sdma_v4_0_gfx_resume) when RB_CNTL's
// bit 0 is written 1. In vmid 0 of the MM hub.
struct SdmaRing {
  unsigned engine = 0;
  std::uint64_t base = 0;
  std::uint64_t bytes = 0;                // a power of two
  std::uint64_t read_pointer = 0;         // bytes
  std::uint64_t read_pointer_report = 0;  // 64 bits of bytes are written there; 0: nowhere
};

// In sdma/. The write pointer is the read pointer until ring() gives another: the doorbell, or RB_WPTR.
std::unique_ptr<Queue> make_sdma_ring(Chip& chip, const SdmaRing& ring);

}  // namespace sluice::card
