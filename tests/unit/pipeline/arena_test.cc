// SPDX-License-Identifier: MIT
// StagingArena: aligned, touched, not inherited by a fork, unmapped unless abandoned.
#include "pipeline/arena.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/units.h"
#include "pipeline/slot.h"
#include "support/lane.h"
#include "support/refuse_system_call.h"

namespace sluice {
namespace {

StagingArena arena_of(std::uint64_t slot_bytes, std::uint32_t slots, int node = -1) {
  return std::move(StagingArena::make(slot_bytes, slots, node)).value();
}

// mincore fails with ENOMEM where nothing is mapped.
bool is_mapped(const std::byte* at) {
  unsigned char state = 0;
  return ::mincore(const_cast<std::byte*>(at), 1, &state) == 0;
}

TEST(Arena, BuffersAreAlignedDisjointAndInside) {
  const StagingArena arena = arena_of(3 * kBufferAlignment, 5);
  EXPECT_EQ(arena.slots(), 5U);
  EXPECT_EQ(arena.bytes().size(), 15 * kBufferAlignment);
  for (std::uint32_t i = 0; i < 5; ++i) {
    EXPECT_TRUE(is_aligned(reinterpret_cast<std::uintptr_t>(arena.buffer(i).data()), kBufferAlignment));
    EXPECT_EQ(arena.buffer(i).data(), arena.bytes().data() + i * 3 * kBufferAlignment);
    EXPECT_EQ(arena.buffer(i).size(), 3 * kBufferAlignment);
  }
}

TEST(Arena, EveryPageIsPresentAndZero) {
  const StagingArena arena = arena_of(kMiB, 3);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> state(arena.bytes().size() / page);
  ASSERT_EQ(::mincore(arena.bytes().data(), arena.bytes().size(), state.data()), 0);
  EXPECT_TRUE(std::all_of(state.begin(), state.end(), [](unsigned char s) { return (s & 1U) != 0; }));
  EXPECT_TRUE(
      std::all_of(arena.bytes().begin(), arena.bytes().end(), [](std::byte b) { return b == std::byte{0}; }));
}

TEST(Arena, UnmappedAtTheEnd) {
  const std::byte* at = nullptr;
  {
    const StagingArena arena = arena_of(kBufferAlignment, 2);
    at = arena.bytes().data();
    EXPECT_TRUE(is_mapped(at));
  }
  EXPECT_FALSE(is_mapped(at));
}

TEST(Arena, AbandonedStaysMapped) {
  std::span<std::byte> bytes;
  {
    StagingArena arena = arena_of(kBufferAlignment, 2);
    bytes = arena.bytes();
    arena.abandon();
    const StagingArena moved = std::move(arena);
    EXPECT_TRUE(moved.abandoned());
  }
  EXPECT_TRUE(is_mapped(bytes.data()));
  EXPECT_EQ(::munmap(bytes.data(), bytes.size()), 0);
}

// Of a ring that takes nothing nobody knows what it has.
TEST(Arena, IsAbandonedWithARingThatBroke) {
  if (const std::string why = test::unavailable(test::ReactorKind::Uring); !why.empty()) GTEST_SKIP() << why;
  for (const bool broken : {false, true}) {
    StagingArena arena = arena_of(kBufferAlignment, 1);
    std::thread([&arena, broken] {
      const UniqueFd zeros(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
      const auto reactor = std::move(UringReactor::make(1)).value();
      const ArenaKeeper keeper(arena, *reactor);
      ASSERT_TRUE(!broken || test::refuse_system_call(SYS_io_uring_enter, EIO));
      Op op;
      reactor->read(op, zeros.get(), arena.buffer(0), 0);
      std::array<Completion, 1> completions;
      EXPECT_EQ(reactor->wait(completions).ok(), !broken);
    }).join();
    EXPECT_EQ(arena.abandoned(), broken);
  }
}

TEST(Arena, MoveAssignmentUnmapsTheOldOne) {
  StagingArena arena = arena_of(kBufferAlignment, 1);
  const std::byte* const old = arena.bytes().data();
  StagingArena other = arena_of(kBufferAlignment, 4);
  const std::byte* const kept = other.bytes().data();
  arena = std::move(other);
  EXPECT_EQ(arena.bytes().data(), kept);
  EXPECT_EQ(arena.slots(), 4U);
  EXPECT_FALSE(is_mapped(old));
}

// Asks the kernel instead of forking: "dc" is VM_DONTCOPY.
TEST(Arena, AForkWillNotHaveIt) {
  const StagingArena arena = arena_of(kBufferAlignment, 1);
  const auto address = reinterpret_cast<std::uintptr_t>(arena.bytes().data());
  std::ifstream smaps("/proc/self/smaps");
  bool within = false;
  for (std::string line; std::getline(smaps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &begin, &end) == 2) {
      within = begin <= address && address < end;
    } else if (within && line.rfind("VmFlags:", 0) == 0) {
      EXPECT_NE((line + " ").find(" dc "), std::string::npos) << line;
      return;
    }
  }
  ADD_FAILURE() << "the arena is not listed";
}

// A sidecar may have blocks of up to 64 MiB, and a chunk holds whole blocks.
TEST(Arena, LargerSlotsAreFewer) {
  EXPECT_EQ(slots_in(64 * kMiB, 4 * kMiB), 16U);
  EXPECT_EQ(slots_in(64 * kMiB, 16 * kMiB), 4U);
  EXPECT_EQ(slots_in(64 * kMiB, 64 * kMiB), kFewestSlots);
  EXPECT_EQ(slots_in(0, 64 * kMiB), kFewestSlots);
}

TEST(Arena, ANodeThatIsNotThereIsNoError) {
  EXPECT_TRUE(StagingArena::make(kBufferAlignment, 1, 0).ok());
  EXPECT_TRUE(StagingArena::make(kBufferAlignment, 1, 999).ok());
  EXPECT_TRUE(StagingArena::make(kBufferAlignment, 1, 100'000).ok());
}

TEST(Arena, RefusesBadSizesAndWhatNobodyHas) {
  EXPECT_EQ(StagingArena::make(kBufferAlignment + 1, 1, -1).error().err, EINVAL);
  EXPECT_EQ(StagingArena::make(0, 1, -1).error().err, EINVAL);
  EXPECT_EQ(StagingArena::make(kBufferAlignment, 0, -1).error().err, EINVAL);
  EXPECT_EQ(StagingArena::make(align_down(UINT64_MAX, kBufferAlignment), 7, -1).error().err, ENOMEM);
  EXPECT_EQ(StagingArena::make(std::uint64_t{1} << 62, 1, -1).error().err, ENOMEM);
}

}  // namespace
}  // namespace sluice
