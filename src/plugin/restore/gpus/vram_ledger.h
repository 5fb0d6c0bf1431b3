// SPDX-License-Identifier: MIT
// How much VRAM the restores under way on this machine are about to allocate. Between reading sysfs and
// allocating, another restore must not choose the same GPU.
//
// A file that all of them map (/run/sluice/vram): a lock, and a slot for each CRIU main process. A process
// owns its slot while it holds a record lock (fcntl F_SETLK) on the slot's byte. The lock ends with the
// process, however it ends, and no task inherits it. The map is inherited across namespaces, so tasks need no
// descriptor, which CRIU would close.
//
// Order: a reader reads reservations before usage, and an allocator allocates before it takes its reservation
// back. So memory may briefly count twice, but never not at all.
//
// Only the file's owner and mode are trusted. Its contents are range-checked; at worst they make GPUs look
// full. Each process writes only to its own slot, so a lock taken from a stuck holder leaves nothing damaged.
// If the file is unavailable, restores choose without knowing of each other.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "plugin/restore/gpus/futex_lock.h"

namespace sluice::plugin {

inline constexpr const char* kLedgerDirectory = "/run/sluice";

class VramLedger {
 public:
  static constexpr unsigned kSlots = 128;  // concurrent restores; others do not see more

  // In the main process, before any task is forked. Creates directory and file; takes a slot and empties
  // those with dead owners. Errors: EPERM for a directory or file that is not root's or this user's, or that
  // others can write; EBADMSG for a file of another form; EAGAIN if all slots are taken; those of the calls.
  static Result<std::unique_ptr<VramLedger>> open(const std::string& directory = kLedgerDirectory);
  // Whether a restore has made the file. Without it there are no reservations to read.
  static bool exists(const std::string& directory = kLedgerDirectory);
  ~VramLedger();  // empties and releases the slot; main only
  VramLedger(const VramLedger&) = delete;
  VramLedger& operator=(const VramLedger&) = delete;

  // Main and tasks: during its life nobody else looks, chooses or reserves, for a while at least, see
  // FutexLock.
  [[nodiscard]] FutexLocked lock();
  void lock_into(std::optional<FutexLocked>& locked);

  // Bytes that other restores have reserved on a local GPU.
  std::uint64_t reserved_by_others(std::uint32_t gpu_id) const;
  // REQUIRES for both: the caller holds the lock.
  void reserve(std::uint32_t gpu_id, std::uint64_t bytes);
  // They have been allocated.
  void take_back(std::uint32_t gpu_id, std::uint64_t bytes);

  // Everything has been allocated.
  void clear();

 private:
  struct File;
  struct Slot;
  VramLedger(UniqueFd fd, File* file, unsigned slot) : fd_(std::move(fd)), file_(file), slot_(slot) {}

  UniqueFd fd_;  // the main process'; its record lock ends with it
  File* file_;
  unsigned slot_;
};

}  // namespace sluice::plugin
