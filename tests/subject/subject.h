// SPDX-License-Identifier: MIT
// The subject: a GPU process to be dumped and restored. It uses what a ROCm program uses (two kinds of device
// files, BOs in VRAM and GTT, USERPTR, doorbell and MMIO pages, SVM ranges, events with their page, queues,
// CPU maps), fills its memory with data that it can check, and then does what it is told, line by line.
//
// subject_start() builds everything in the arena; subject_continue() is the rest of its life and needs
// nothing but the arena: the host look-alike links this library and calls it in the restored process. What
// the look-alike cannot bring back (threads, FIFOs, a child, maps outside the arena) is for the real criu.
//
// One thread, and the waiter where there is one. Talks with read(2) and write(2) only, so that no stdio state
// is lost.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "subject/arena.h"
#include "subject/options.h"
#include "subject/pattern.h"

namespace sluice::subject {

struct Totals {
  std::uint64_t bos = 0;  // VRAM and GTT of KFD: those with contents
  std::uint64_t bytes = 0;
  std::uint64_t zero_bytes = 0;  // in zero units
};

// Makes the arena at its fixed address. Used by the subject at its start only.
Result<Arena*> create_arena();

// Opens the devices, allocates, maps, fills.
Result<void> subject_start(Arena& arena, const Options& options);

Totals totals_of(const Arena& arena);

// What is in the memory of a process without a GPU (Shape::Plain): the first piece of Arena::userptr.
Pattern plain_data(const Arena& arena);

// Checks every byte, size, handle, map, event, queue and file. Changes nothing that a later check would see.
Result<void> check_everything(Arena& arena);
// Goes on working: allocates, maps and fills a new BO, checks it, frees it; signals and waits; lets queues
// finish what they had and gives them more; changes SVM attributes.
Result<void> work_on(Arena& arena);
// On each GPU one BO of data gets other data, or is freed and another one allocated in its place.
Result<void> change_data(Arena& arena, bool largest);
Result<void> replace_data(Arena& arena);
// Ends the waiter and the child, destroys queues and events, unmaps and frees every BO.
Result<void> tear_down(Arena& arena);

// Reads commands from arena.in_fd and answers each with one line on arena.out_fd, until "quit" or end of
// file:
//   check -> "ok check bos=N bytes=N zero=N checks=N" | work -> "ok work" | quit -> "ok quit"
//   submit -> "ok submit", and a job uses a GEM BO (subject_gem.h)
//   change, replace -> "ok change", "ok replace", and a BO has other data, or is another
//   peek -> "ok peek N" | poke N -> "ok poke N", the first word of the BO that is shared (subject_share.h)
//   queue-progress -> "ok queue-progress runs consumed=N" or "ok queue-progress stands consumed=N"
//   queue-share PERCENT -> "ok queue-share PERCENT": UPDATE_QUEUE of every queue; 0 switches them off
//   svm-prefetch -> "ok svm-prefetch", and a GPU has SVM memory in its VRAM (svm.h)
//   a failure -> "bad REASON"
// Returns the exit status: 0 when nothing was bad. REQUIRES: arena.magic is right.
int subject_continue(Arena& arena);

// Writes one line to a descriptor.
void say(int fd, const std::string& line);

}  // namespace sluice::subject
