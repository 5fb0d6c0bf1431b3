// SPDX-License-Identifier: MIT
// What restores of this machine that are under way are about to take of its GPUs' VRAM. Between the look at
// sysfs and the allocation there is time, in which another restore must not choose the same GPU.
//
// A file that all of them map (/run/sluice/vram): a lock, and a slot for each main process of CRIU's, which
// owns it for as long as it holds a record lock (fcntl F_SETLK) on the slot's byte; that goes with the
// process, however it ends, and no task inherits it. The map is inherited, into whatever namespaces: tasks
// need no descriptor, which CRIU would close.
//
// Order. Who looks reads what is reserved before what is in use; who allocates does that before the
// reservation is taken back: so something may count twice for a moment, never not at all.
//
// The file is not trusted further than its owner and mode; what is in it is bounded, and at worst makes GPUs
// look full. Each process writes into its own slot only, so a lock that was taken from somebody who is stuck
// leaves nothing damaged. Where the file is unavailable, restores choose without knowing of each other.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "plugin/restore/futex_lock.h"

namespace sluice::plugin {

inline constexpr const char* kLedgerDirectory = "/run/sluice";

class VramLedger {
 public:
  static constexpr unsigned kSlots = 128;  // restores at once; more are not seen by others

  // In the main process, before any task is forked. Makes directory and file; takes a slot and empties those
  // whose owners are dead. Errors: EPERM for a directory or file that is not root's or this user's or that
  // others may write; EBADMSG for a file of another form; EAGAIN where all slots are taken; those of the
  // calls.
  static Result<std::unique_ptr<VramLedger>> open(const std::string& directory = kLedgerDirectory);
  ~VramLedger();  // empties the slot and gives it back; main only
  VramLedger(const VramLedger&) = delete;
  VramLedger& operator=(const VramLedger&) = delete;

  // Main and tasks: nobody else looks, chooses or reserves while it lives; a while at least, see FutexLock.
  [[nodiscard]] FutexLocked lock();
  void lock_into(std::optional<FutexLocked>& locked);

  // Bytes that others have reserved on a GPU, by its gpu_id here.
  std::uint64_t reserved_by_others(std::uint32_t gpu_id) const;
  // REQUIRES for both: the caller holds the lock.
  void reserve(std::uint32_t gpu_id, std::uint64_t bytes);
  // These were allocated.
  void take_back(std::uint32_t gpu_id, std::uint64_t bytes);

  // Nothing is left to allocate.
  void clear();

 private:
  struct File;
  struct Slot;
  VramLedger(UniqueFd fd, File* file, unsigned slot) : fd_(std::move(fd)), file_(file), slot_(slot) {}

  UniqueFd fd_;  // of the main process; its record lock goes with it
  File* file_;
  unsigned slot_;
};

}  // namespace sluice::plugin
