// SPDX-License-Identifier: MIT
// What a guest's driver and its processes can do to the emulated card: registers, doorbells and memory, in
// any order. QEMU is trusted, a guest is not: the card lives on, each call of it ends, and it keeps to its
// memory.
//
// An input is a list of steps: an opcode, then its operands.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <span>

#include "fuzz.h"
#include "gpu.h"

namespace {

using sluice::card::Bar;

sluice::fuzz::Goal an_sdma_ring("an SDMA ring that copies and interrupts");
sluice::fuzz::Goal a_user_queue("a queue of a process, mapped by a runlist, that is executed");
sluice::fuzz::Goal a_vm_fault("a VM fault that is reported");

constexpr std::size_t kVramBytes = 16 << 20, kGuestBytes = 1 << 20;
constexpr std::uint64_t kGuestBase = 0x100000000;
constexpr int kMostWork = 20;  // calls for one step: a packet that waits keeps a ring busy for ever

// Pages that read 0 and cost nothing until they are touched; behind them none.
class Pages {
 public:
  explicit Pages(std::size_t bytes)
      : bytes_(bytes),
        map_(::mmap(nullptr, bytes + kGap, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    FUZZ_CHECK(map_ != MAP_FAILED && ::mprotect(map_, bytes, PROT_READ | PROT_WRITE) == 0);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { ::munmap(map_, bytes_ + kGap); }
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(map_), bytes_}; }

 private:
  static constexpr std::size_t kGap = 64 << 10;
  std::size_t bytes_;
  void* map_;
};

class Guest final : public sluice::card::GuestMemory {
 public:
  std::span<std::byte> at(std::uint64_t bus_address, std::size_t length) const override {
    if (bus_address < kGuestBase || bus_address - kGuestBase > kGuestBytes ||
        length > kGuestBytes - (bus_address - kGuestBase)) {
      return {};
    }
    return pages_.bytes().subspan(bus_address - kGuestBase, length);
  }
  std::span<std::byte> bytes() const { return pages_.bytes(); }

 private:
  Pages pages_{kGuestBytes};
};

class Raised final : public sluice::card::Interrupt {
 public:
  void raise() override { ++count; }
  unsigned count = 0;
};

class Input {
 public:
  explicit Input(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  template <class T>
  T take() {
    T value{};
    const std::size_t count = std::min(sizeof value, bytes_.size());
    if (count != 0) std::memcpy(&value, bytes_.data(), count);
    bytes_ = bytes_.subspan(count);
    return value;
  }
  std::span<const std::uint8_t> take_bytes(std::size_t count) {
    const auto taken = bytes_.first(std::min(count, bytes_.size()));
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }
  bool empty() const { return bytes_.empty(); }

 private:
  std::span<const std::uint8_t> bytes_;
};

void put(std::span<std::byte> memory, std::uint32_t offset, std::span<const std::uint8_t> bytes) {
  offset %= static_cast<std::uint32_t>(memory.size());
  const std::size_t count = std::min<std::size_t>(bytes.size(), memory.size() - offset);
  if (count != 0) std::memcpy(memory.data() + offset, bytes.data(), count);
}

enum Step : std::uint8_t { kWrite, kRead, kDoorbell, kVram, kGuest, kWork, kReset, kFaults, kSteps };

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Pages vram(kVramBytes);
  const Guest guest;
  Raised raised;
  sluice::card::Trace trace;
  sluice::card::Gpu gpu(vram.bytes(), guest, raised, trace);
  Input input(std::span(data, size));
  while (!input.empty()) {
    switch (static_cast<Step>(input.take<std::uint8_t>() % kSteps)) {
      case kWrite: {
        const auto offset = input.take<std::uint32_t>() % sluice::card::kRegisterBytes;
        const auto bytes = input.take_bytes(4);
        if (offset + bytes.size() <= sluice::card::kRegisterBytes)
          gpu.write(Bar::kRegisters, offset, std::as_bytes(bytes));
        break;
      }
      case kRead: {
        std::byte out[8];
        const auto offset = input.take<std::uint32_t>() % (sluice::card::kRegisterBytes - sizeof out);
        gpu.read(Bar::kRegisters, offset, out);
        break;
      }
      case kDoorbell: {
        const auto offset = input.take<std::uint32_t>() % (sluice::card::kDoorbellBytes - 8);
        const auto value = input.take<std::uint64_t>();
        gpu.write(Bar::kDoorbells, offset, std::as_bytes(std::span(&value, 1)));
        break;
      }
      case kVram: {
        const auto offset = input.take<std::uint32_t>();
        put(vram.bytes(), offset, input.take_bytes(input.take<std::uint8_t>()));
        break;
      }
      case kGuest: {
        const auto offset = input.take<std::uint32_t>();
        put(guest.bytes(), offset, input.take_bytes(input.take<std::uint8_t>()));
        break;
      }
      case kWork:
        for (int i = 0; i < kMostWork && gpu.work(); ++i) {
        }
        break;
      case kReset:
        gpu.reset();
        break;
      case kFaults: {
        const auto bits = input.take<std::uint8_t>();
        sluice::card::Faults& faults = gpu.faults();
        faults.fence = static_cast<sluice::card::Faults::Fence>((bits & 3) % 3);
        faults.sdma_fault = (bits & 4) != 0;
        faults.refuse_preemption = (bits & 8) != 0;
        faults.sdma_bytes_per_s = (bits & 16) != 0 ? 1 << 20 : 0;
        break;
      }
      case kSteps:
        break;
    }
  }
  const sluice::card::Counters& counters = gpu.counters();
  FUZZ_CHECK(raised.count <= counters.interrupts);
  FUZZ_CHECK(counters.queues_unmapped <= counters.queues_mapped);
  if (counters.sdma_packets != 0 && counters.sdma_bytes != 0 && raised.count != 0) an_sdma_ring.reach();
  if (counters.runlists != 0 && counters.user_packets != 0) a_user_queue.reach();
  if (counters.vm_faults != 0 && raised.count != 0) a_vm_fault.reach();
  return 0;
}
