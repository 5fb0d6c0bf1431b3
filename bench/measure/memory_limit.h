// SPDX-License-Identifier: MIT
// A limit on the memory of processes, swap included, enforced by the kernel. It is a control group (cgroup
// v2, or v1 if that has the memory controller), removed in the end. Sizes in bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/result.h"

namespace sluice::bench {

class MemoryLimit {
 public:
  // Made as close to this process' own group as memory is distributed: in the group itself if it may have
  // both processes and groups, else in one above. Errors: ENOTSUP (no such group), EACCES, EPERM, EROFS (not
  // allowed), ENOENT (there is swap without a limit).
  static Result<MemoryLimit> make(std::uint64_t bytes);
  MemoryLimit(MemoryLimit&& other) noexcept;
  MemoryLimit& operator=(MemoryLimit&&) = delete;
  ~MemoryLimit();  // REQUIRES: all processes that joined have ended

  // Puts the calling process under the limit: its allocations count from now on.
  Result<void> join() const;
  // The peak so far, including page cache and the kernel's own memory; 0 before Linux 5.19.
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
  std::filesystem::path peak_;  // the file with the peak
};

}  // namespace sluice::bench
