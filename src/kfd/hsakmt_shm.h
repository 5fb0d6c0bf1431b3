// SPDX-License-Identifier: MIT
// The shared memory that ROCm's libhsakmt keeps in /dev/shm: a small file whose first four bytes are a magic
// number, and a POSIX semaphore beside it. A restored ROCm process maps the one and locks the other, so both
// must exist, on a machine (or in a container) where no ROCm process may have run yet.
//
// Functions without state. The directory is a parameter for tests. Names and modes: libhsakmt's (0666:
// processes of all users share them). What exists is never touched.
#pragma once

#include <cstdint>
#include <optional>

#include "base/result.h"

namespace sluice::kfd {

struct HsakmtShm {
  std::uint64_t bytes = 0;
  std::uint32_t magic = 0;  // the first four bytes, native order

  bool operator==(const HsakmtShm&) const = default;
};

inline constexpr char kShmDirectory[] = "/dev/shm";

// What the file is now; nothing when there is none, or what could not be made again: something else under its
// name, or a file too short for a magic number or larger than any library makes. Anybody may put that there
// (the directory is everybody's), and it must neither stop a dump nor spoil it. Does not wait.
Result<std::optional<HsakmtShm>> read_hsakmt_shm(const char* directory = kShmDirectory);

// Makes the file and the semaphore (value 1) where they are missing, whole or not at all, also when two tasks
// do it at once. The directory is the container's: a link in its place is refused (ENOTDIR), for no system
// with a driver of our age has one there (long ago it was one to /run/shm). It must know O_TMPFILE, as a
// tmpfs does, and /proc must be there (else ENOENT). REQUIRES: shm.bytes >= 4 (else EINVAL). Errors: EACCES,
// ENOSPC and others of the file system.
Result<void> restore_hsakmt_shm(const HsakmtShm& shm, const char* directory = kShmDirectory);

}  // namespace sluice::kfd
