// SPDX-License-Identifier: MIT
// That the limit is one: a process below it ends, one that needs more is killed.
#include "measure/memory_limit.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/units.h"

namespace sluice::bench {
namespace {

constexpr std::uint64_t kLimitBytes = 64 * kMiB;
constexpr std::uint64_t kLittleBytes = 4 * kMiB;  // a sanitizer takes several times as much beside it

// The wait status of a child that joins, then writes so much memory.
int status_of_child(const MemoryLimit& limit, std::uint64_t bytes) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (!limit.join()) ::_exit(2);
    void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) ::_exit(3);
    for (std::uint64_t at = 0; at < bytes; at += 4 * kKiB) static_cast<volatile char*>(memory)[at] = 1;
    ::_exit(0);
  }
  int status = -1;
  (void)::waitpid(child, &status, 0);
  return status;
}

TEST(MemoryLimit, KillsWhatNeedsMore) {
  const auto limit = MemoryLimit::make(kLimitBytes);
  if (!limit) GTEST_SKIP() << limit.error().what;
  const int below = status_of_child(*limit, kLittleBytes);
  EXPECT_TRUE(WIFEXITED(below) && WEXITSTATUS(below) == 0) << below;
  if (limit->peak_bytes() > 0) {
    EXPECT_GE(limit->peak_bytes(), kLittleBytes);
    EXPECT_LT(limit->peak_bytes(), kLimitBytes);
  }
  const int above = status_of_child(*limit, kLimitBytes * 2);
  EXPECT_TRUE(WIFSIGNALED(above) && WTERMSIG(above) == SIGKILL) << above;
}

// Its name is made of the process' id: a second one could not be made beside it.
TEST(MemoryLimit, IsGoneInTheEnd) {
  for (int i = 0; i < 2; ++i) {
    const auto limit = MemoryLimit::make(kLimitBytes);
    if (!limit) GTEST_SKIP() << limit.error().what;
  }
}

}  // namespace
}  // namespace sluice::bench
