// SPDX-License-Identifier: MIT
// The shared memory that ROCm's libhsakmt keeps in /dev/shm: a small file whose first four bytes are a magic
// number, and a POSIX semaphore. A restored ROCm process maps the file and locks the semaphore. So both must
// exist, even on a machine (or in a container) where no ROCm process has run yet.
//
// Functions without state. The directory is a parameter for tests. Names and modes: libhsakmt's (0666:
// processes of all users share them). Existing files are never changed.
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

// The file now; nothing if there is none, or it could not be made again. That is something else under its
// name, or a file too short for a magic number or larger than any library makes. Anyone can put such a thing
// there (the directory is world-writable), and it must neither stop nor spoil a dump. Does not wait.
Result<std::optional<HsakmtShm>> read_hsakmt_shm(const char* directory = kShmDirectory);

// Creates the file and the semaphore (value 1) if missing, completely or not at all, even if two tasks do it
// at once. The directory is the container's: a link in its place is refused (ENOTDIR). No system with a
// driver of our age has one there; long ago it led to /run/shm. It must support O_TMPFILE, as a tmpfs does,
// and /proc must exist (else ENOENT). REQUIRES: shm.bytes >= 4 (else EINVAL). Errors: EACCES, ENOSPC and
// others of the file system.
Result<void> restore_hsakmt_shm(const HsakmtShm& shm, const char* directory = kShmDirectory);

}  // namespace sluice::kfd
