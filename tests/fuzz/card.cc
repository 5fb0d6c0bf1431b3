// SPDX-License-Identifier: MIT
// A guest that does anything to the emulated card: registers, doorbells, and memory that the engines take
// their rings, tables and packets from. Nothing may be touched but VRAM and guest memory, and no call may be
// endless.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "bus/vram.h"
#include "control/mailbox.h"
#include "fuzz.h"
#include "gpu.h"

namespace {

using namespace sluice::card;

sluice::fuzz::Goal an_sdma_ring("a ring of the copy engine that copies");
sluice::fuzz::Goal a_kiq("a ring of the command processor with a packet");
sluice::fuzz::Goal a_user_queue("a queue of a process, mapped by a runlist, that is executed");
sluice::fuzz::Goal a_fault("a VM fault that is reported");

constexpr std::size_t kVramBytes = 16 << 20;
constexpr std::size_t kGuestBytes = 256 << 10;
constexpr int kMostWork = 64;  // one call may copy some MiB

class Guest final : public GuestMemory {
 public:
  std::span<std::byte> at(std::uint64_t bus_address, std::size_t length) const override {
    if (bus_address >= kGuestBytes || length > kGuestBytes - bus_address) return {};
    return memory_.bytes().subspan(bus_address, length);
  }
  const Vram& memory() const { return memory_; }

 private:
  Vram memory_ = std::move(Vram::make(kGuestBytes)).value();
};

class NoInterrupt final : public Interrupt {
 public:
  void raise() override {}
};

struct World {
  Vram vram = std::move(Vram::make(kVramBytes)).value();
  Guest guest;

  void clear() const {
    for (const Vram* each : {&vram, &guest.memory()}) {
      const auto bytes = static_cast<off_t>(each->bytes().size());
      FUZZ_CHECK(::fallocate(each->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, bytes) == 0);
    }
  }
};

// What a guest does, in nine bytes: which, where, and a value.
struct Step {
  enum Kind : std::uint8_t { kWrite, kRead, kRing32, kRing64, kVram, kGuest, kWork, kOdd, kReset, kKinds };
  std::uint8_t kind;
  std::uint32_t where;
  std::uint32_t value;
};
constexpr std::size_t kRecordBytes = 9;

class Player {
 public:
  Player(const World& world, const Model& model)
      : world_(world), gpu_(model, world.vram.bytes(), world.guest, interrupt_, trace_) {}

  void play(const Step& step) {
    switch (step.kind % Step::kKinds) {
      case Step::kWrite:
        return write(Bar::kRegisters, step.where % kRegisterBytes & ~3U, &step.value, 4);
      case Step::kRead: {
        std::byte out[4];
        return card_.read(Bar::kRegisters, step.where % kRegisterBytes & ~3U, out);
      }
      case Step::kRing32:
        return write(Bar::kDoorbells, step.where % kDoorbellBytes & ~3U, &step.value, 4);
      case Step::kRing64: {
        const std::uint64_t value = step.value;
        return write(Bar::kDoorbells, step.where % kDoorbellBytes & ~7U, &value, 8);
      }
      case Step::kVram:
        return put(world_.vram.bytes(), step);
      case Step::kGuest:
        return put(world_.guest.memory().bytes(), step);
      case Step::kWork:
        if (work_++ < kMostWork) (void)card_.work();
        return;
      case Step::kOdd: {  // of any length, anywhere
        const std::size_t length = 1 + step.value % 16;
        const std::uint64_t at = step.where % (kRegisterBytes - length);
        const std::vector<std::byte> in(length, static_cast<std::byte>(step.value >> 8));
        std::vector<std::byte> out(length);
        card_.write(step.value & 0x10000 ? Bar::kRegisters : Bar::kDoorbells, at, in);
        return card_.read(step.value & 0x20000 ? Bar::kRegisters : Bar::kDoorbells, at, out);
      }
      default:
        return card_.reset();
    }
  }

  void finish() {
    while (work_++ < kMostWork && card_.work()) {
    }
    if (gpu_.counters().sdma_bytes != 0) an_sdma_ring.reach();
    if (gpu_.counters().pm4_packets != 0) a_kiq.reach();
    if (gpu_.counters().runlists != 0 && gpu_.counters().user_packets != 0) a_user_queue.reach();
    if (gpu_.counters().vm_faults != 0) a_fault.reach();
  }

 private:
  void write(Bar bar, std::uint64_t offset, const void* value, std::size_t bytes) {
    card_.write(bar, offset, {static_cast<const std::byte*>(value), bytes});
  }
  static void put(std::span<std::byte> memory, const Step& step) {
    std::memcpy(memory.data() + (step.where % memory.size() & ~std::size_t{3}), &step.value, 4);
  }

  const World& world_;
  NoInterrupt interrupt_;
  Trace trace_;
  Gpu gpu_;
  Control control_{gpu_.faults(), gpu_.counters(), world_.vram.bytes(), trace_};
  Mailbox card_{gpu_, control_};
  int work_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const World world;
  world.clear();
  // One byte after the last step: an MI300X.
  Player player(world, size % kRecordBytes == 1 ? mi300x() : mi210());
  for (std::size_t at = 0; at + kRecordBytes <= size; at += kRecordBytes) {
    Step step;
    step.kind = data[at];
    std::memcpy(&step.where, data + at + 1, sizeof step.where);
    std::memcpy(&step.value, data + at + 5, sizeof step.value);
    player.play(step);
  }
  player.finish();
  return 0;
}
