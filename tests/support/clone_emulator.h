// SPDX-License-Identifier: MIT
// FICLONERANGE on any file system: copies, and refuses what generic_remap_file_range_prep() and
// generic_remap_checks() of fs/remap_range.c refuse.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "base/units.h"

namespace sluice::test {

class CloneEmulator {
 public:
  explicit CloneEmulator(std::uint64_t block_bytes = 4096) : block_bytes_(block_bytes) {}

  // See CloneCall. Any thread.
  int operator()(int from_fd, std::uint64_t from, std::uint64_t bytes, int to_fd, std::uint64_t to) {
    struct stat source {};
    struct stat target {};
    if (::fstat(from_fd, &source) != 0 || ::fstat(to_fd, &target) != 0) return EBADF;
    if ((::fcntl(from_fd, F_GETFL) & O_ACCMODE) == O_WRONLY) return EBADF;
    if ((::fcntl(to_fd, F_GETFL) & O_ACCMODE) == O_RDONLY) return EBADF;
    if (source.st_dev != target.st_dev) return EXDEV;
    if (!S_ISREG(source.st_mode) || !S_ISREG(target.st_mode)) return EINVAL;
    const auto source_bytes = static_cast<std::uint64_t>(source.st_size);
    const auto target_bytes = static_cast<std::uint64_t>(target.st_size);
    if (bytes == 0) bytes = source_bytes > from ? source_bytes - from : 0;
    if (from + bytes > source_bytes) return EINVAL;
    if (!is_aligned(from, block_bytes_) || !is_aligned(to, block_bytes_)) return EINVAL;
    // A part of a block can be cloned only at the end of both files.
    if (!is_aligned(bytes, block_bytes_) && (from + bytes != source_bytes || to + bytes < target_bytes))
      return EINVAL;
    if (source.st_ino == target.st_ino && from < to + bytes && to < from + bytes) return EINVAL;
    const int result = copy(from_fd, from, bytes, to_fd, to);
    if (result == 0) ++calls_, bytes_ += bytes;
    return result;
  }

  std::uint64_t calls() const { return calls_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  // Through its own descriptors, because the given ones may be direct.
  static int copy(int from_fd, std::uint64_t from, std::uint64_t bytes, int to_fd, std::uint64_t to) {
    const UniqueFd source(::open(("/proc/self/fd/" + std::to_string(from_fd)).c_str(), O_RDONLY | O_CLOEXEC));
    const UniqueFd target(::open(("/proc/self/fd/" + std::to_string(to_fd)).c_str(), O_RDWR | O_CLOEXEC));
    if (!source || !target) return errno;
    std::vector<char> memory(static_cast<std::size_t>(bytes));
    const auto all = static_cast<ssize_t>(bytes);
    if (::pread(source.get(), memory.data(), memory.size(), static_cast<off_t>(from)) != all) return EIO;
    if (::pwrite(target.get(), memory.data(), memory.size(), static_cast<off_t>(to)) != all) return EIO;
    return 0;
  }

  const std::uint64_t block_bytes_;
  std::atomic<std::uint64_t> calls_{0}, bytes_{0};
};

}  // namespace sluice::test
