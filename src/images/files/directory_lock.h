// SPDX-License-Identifier: MIT
// One writer at a time in a checkpoint's directory: a dump, a pre-dump or a flatten. Two at once would remove
// or name each other's files.
//
// flock(2) of the directory itself, so no file of it stays, and the kernel releases it with the process. No
// file system sends locks of directories to a server: it keeps out writers of this machine, not of another.
// Readers take none. Movable; any thread.
#pragma once

#include "base/result.h"
#include "base/unique_fd.h"

namespace sluice {

class DirectoryLock {
 public:
  DirectoryLock() = default;  // of nothing
  DirectoryLock(DirectoryLock&&) = default;
  DirectoryLock& operator=(DirectoryLock&& other) noexcept;
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;
  // Releases it, also where a forked process has inherited the descriptor.
  ~DirectoryLock();

  // `directory`: borrowed. Where locks are not supported, nobody is refused. Errors: EBUSY, with an id, while
  // another one is at work; those of opening the directory.
  static Result<DirectoryLock> take(int directory);

  explicit operator bool() const { return directory_.valid(); }

 private:
  explicit DirectoryLock(UniqueFd directory) : directory_(std::move(directory)) {}

  UniqueFd directory_;  // an open file of its own
};

}  // namespace sluice
