// SPDX-License-Identifier: MIT
// A bound on the memory of processes, swap included, kept by the kernel: a control group of its own (cgroup
// v2, or v1 where that has the memory controller), removed in the end. Sizes in bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/result.h"

namespace sluice::bench {

class MemoryLimit {
 public:
  // Made as near to this process' own group as memory is shared out: in the group itself where it may have
  // both processes and groups, else in one above. Errors: ENOTSUP (no such group), EACCES, EPERM, EROFS
  // (not allowed), ENOENT (there is swap, and nothing that bounds it).
  static Result<MemoryLimit> make(std::uint64_t bytes);
  MemoryLimit(MemoryLimit&& other) noexcept;
  MemoryLimit& operator=(MemoryLimit&&) = delete;
  ~MemoryLimit();  // REQUIRES: what joined has ended

  // Puts the calling process under the limit: what it allocates from now on counts.
  Result<void> join() const;
  // The most that counted so far, page cache and the kernel's own memory included; 0 before Linux 5.19.
  std::uint64_t peak_bytes() const;

 private:
  struct Setting {
    const char* file;
    std::string value;
  };
  static Result<MemoryLimit> make(const std::filesystem::path& parent, const Setting& memory,
                                  const Setting& swap, const char* peak);
  MemoryLimit(std::filesystem::path group, std::filesystem::path peak)
      : group_(std::move(group)), peak_(std::move(peak)) {}

  std::filesystem::path group_;
  std::filesystem::path peak_;  // the file that tells it
};

}  // namespace sluice::bench
