// SPDX-License-Identifier: MIT
#include "pipeline/arena.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <string>
#include <utility>

#include "base/format.h"
#include "base/units.h"
#include "pipeline/slot.h"

namespace sluice {
namespace {

// Size of a transparent huge page on x86-64 and on arm64 with 4 KiB pages. Elsewhere only an alignment.
constexpr std::uint64_t kHugePageBytes = 2 * kMiB;

#ifdef MADV_POPULATE_WRITE
constexpr int kPopulateWrite = MADV_POPULATE_WRITE;
#else
constexpr int kPopulateWrite = 23;  // uapi asm-generic/mman-common.h, Linux 5.14
#endif

// Prefers `node` for pages not touched yet. A raw system call, because libnuma would be another library in
// the host's process.
void prefer_node(std::span<std::byte> memory, int node) {
  constexpr std::size_t kMaxNodes = 1024;
  constexpr std::size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;
  if (node < 0 || static_cast<std::size_t>(node) >= kMaxNodes) return;
  std::array<unsigned long, kMaxNodes / kWordBits> mask{};
  mask[static_cast<std::size_t>(node) / kWordBits] = 1UL << (static_cast<std::size_t>(node) % kWordBits);
  // The kernel reads maxnode - 1 bits.
  (void)::syscall(SYS_mbind, memory.data(), memory.size(), static_cast<unsigned long>(MPOL_PREFERRED),
                  mask.data(), kMaxNodes + 1, 0U);
}

// Faults every page in, so that the pipeline never does. In pieces, because the kernel holds the lock of the
// process' address space for a whole call, and other lanes' arenas wait for it.
void touch(std::span<std::byte> memory) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  while (!memory.empty()) {
    const std::span<std::byte> piece = memory.first(std::min<std::size_t>(memory.size(), kHugePageBytes));
    if (::madvise(piece.data(), piece.size(), kPopulateWrite) != 0) {
      // unreached: another machine
      for (std::size_t at = 0; at < piece.size(); at += page)
        *const_cast<volatile std::byte*>(&piece[at]) = std::byte{0};
    }
    memory = memory.subspan(piece.size());
  }
}

}  // namespace

Result<StagingArena> StagingArena::make(std::uint64_t slot_bytes, std::uint32_t slots, int numa_node) {
  if (slot_bytes == 0 || slots == 0 || !is_aligned(slot_bytes, kBufferAlignment)) {
    return make_error(EINVAL, formatted("staging arena of {} buffers of {} bytes", slots, slot_bytes));
  }
  std::uint64_t bytes = 0;
  std::uint64_t reserved = 0;
  if (__builtin_mul_overflow(slot_bytes, slots, &bytes) ||
      __builtin_add_overflow(bytes, kHugePageBytes, &reserved) || reserved > SIZE_MAX) {
    return make_error(ENOMEM, "staging arena of " + std::to_string(slots) + " buffers");
  }
  void* mapping = ::mmap(nullptr, static_cast<std::size_t>(reserved), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return make_error(errno, "staging arena of " + std::to_string(bytes) + " bytes");

  // Keep [begin, begin + bytes), huge page aligned, of the reserved range; unmap the ends.
  auto* const base = static_cast<std::byte*>(mapping);
  const auto address = reinterpret_cast<std::uintptr_t>(base);
  const auto head = static_cast<std::size_t>(align_up(address, kHugePageBytes) - address);
  const auto tail = static_cast<std::size_t>(reserved - bytes - head);
  if (head > 0) (void)::munmap(base, head);
  if (tail > 0) (void)::munmap(base + head + bytes, tail);

  StagingArena arena(std::span<std::byte>(base + head, static_cast<std::size_t>(bytes)), slot_bytes);
  (void)::madvise(arena.bytes_.data(), arena.bytes_.size(), MADV_HUGEPAGE);
  // Before the first touch, which decides what a fork copies, and the node.
  if (::madvise(arena.bytes_.data(), arena.bytes_.size(), MADV_DONTFORK) != 0) {
    return make_error(errno, "staging arena: MADV_DONTFORK");
  }
  prefer_node(arena.bytes_, numa_node);
  touch(arena.bytes_);
  return arena;
}

StagingArena::StagingArena(StagingArena&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})), slot_bytes_(other.slot_bytes_), abandoned_(other.abandoned_) {}

StagingArena& StagingArena::operator=(StagingArena&& other) noexcept {
  if (this != &other) {
    unmap();
    bytes_ = std::exchange(other.bytes_, {});
    slot_bytes_ = other.slot_bytes_;
    abandoned_ = other.abandoned_;
  }
  return *this;
}

StagingArena::~StagingArena() {
  unmap();
}

void StagingArena::unmap() {
  if (!bytes_.empty() && !abandoned_) (void)::munmap(bytes_.data(), bytes_.size());
  bytes_ = {};
}

std::vector<Slot> slots_of(const StagingArena& arena) {
  std::vector<Slot> slots(arena.slots());
  for (std::uint32_t i = 0; i < arena.slots(); ++i) {
    slots[i].index = i;
    slots[i].buffer = arena.buffer(i);
    slots[i].known_units.assign(slots[i].buffer.size() / kZeroUnitBytes, false);
  }
  return slots;
}

}  // namespace sluice
