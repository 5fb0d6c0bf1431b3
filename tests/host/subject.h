// SPDX-License-Identifier: MIT
// The subject: a GPU process to be dumped and restored. It uses what a ROCm program uses (two kinds of device
// files, BOs in VRAM and GTT, USERPTR, doorbell and MMIO pages, events with their page, queues, CPU maps),
// fills its memory with data that it can check, and then does what it is told, line by line.
//
// subject_start() builds everything in the arena; subject_continue() is the rest of its life and needs
// nothing but the arena: the host look-alike links this library and calls it in the restored process.
//
// Single-threaded. Talks over descriptors 0 and 1 with read(2) and write(2) only, so that no stdio state is
// lost.
#pragma once

#include <cstdint>
#include <string>

#include "pipeline/result.h"
#include "pipeline/units.h"
#include "subject_arena.h"

namespace sluice::subject {

// Which sizes the BOs of a GPU have.
enum class BoSizes { Mixed, Small, Many, Huge };

struct Options {
  std::uint32_t gpus = 0;                // 0 = all
  std::uint64_t vram_bytes = 64 * kMiB;  // per GPU
  std::uint64_t gtt_bytes = 4 * kMiB;    // per GPU
  std::uint32_t zero_percent = 20;       // share of units that are zero
  std::uint64_t seed = 1;
  BoSizes sizes = BoSizes::Mixed;
  bool events = true;
  bool queues = true;
  bool second_kfd = false;  // opens /dev/kfd a second time
  bool dup_kfd = false;     // dups the first descriptor
};

struct Totals {
  std::uint64_t bos = 0;  // VRAM and GTT: those with contents
  std::uint64_t bytes = 0;
  std::uint64_t zero_bytes = 0;  // in zero units
};

// Makes the arena at its fixed address. Used by the subject at its start only.
Result<Arena*> create_arena();

// Opens the devices, allocates, maps, fills.
Result<void> subject_start(Arena& arena, const Options& options);

Totals totals_of(const Arena& arena);

// Checks every byte, size, handle, map, event and queue. Changes nothing that a later check would see.
Result<void> check_everything(Arena& arena);
// Goes on working: allocates, maps and fills a new BO, checks it, frees it; signals and waits; updates a
// queue.
Result<void> work_on(Arena& arena);
// Destroys queues and events, unmaps and frees every BO.
Result<void> tear_down(Arena& arena);

// Reads commands from descriptor 0 and answers each with one line on descriptor 1, until "quit" or end of
// file:
//   check -> "ok check bos=N bytes=N zero=N" | work -> "ok work" | quit -> "ok quit"; a failure -> "bad
//   REASON".
// Returns the exit status: 0 when nothing was bad. REQUIRES: arena.magic is right.
int subject_continue(Arena& arena);

// Writes one line to descriptor 1.
void say(const std::string& line);

}  // namespace sluice::subject
