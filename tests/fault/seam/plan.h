// SPDX-License-Identifier: MIT
// What the seam (seam.h) and the test that started the host tell each other: which call is to fail, and which
// calls were made. A file that both map; its path is in kPlanVariable.
//
// A place is where the plugin calls something that can fail: the function that is called, the line that calls
// it, and the plugin's functions that are under way. A point is one turn at a place. Turns are counted over
// all threads and processes of a run.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>

namespace sluice::seam {

inline constexpr const char* kPlanVariable = "SLUICE_TEST_SEAM";
// Beside it, where a test wants to know what the plugin opens: a file for one line each, "r PATH" or "w
// PATH", the latter of what is made, renamed or removed, too.
inline constexpr const char* kOpenedVariable = "SLUICE_TEST_OPENED";

// Bits: what may be done at a point.
enum Kind : std::uint32_t {
  kPass = 0,
  kError = 1,   // the call is not made (close: it is) and reports a failure
  kShort = 2,   // a transfer of half of the bytes
  kKill = 4,    // SIGKILL of the process before the call
  kSignal = 8,  // SIGTERM for the process before the call, which is made; in its main thread
  kHang = 16,   // the call, or what a ring was asked to do, never ends, as long as the process lives
};

struct Place {
  std::atomic<std::uint64_t> id;  // a digest of it, the same in every run of the same plugin; 0: free
  std::atomic<std::uint32_t> turns;
  std::atomic<std::uint32_t> kinds;  // what can be done here, at some turn
  std::array<char, 32> call;
  // Where in the plugin's file the calls return to, for addr2line; innermost first.
  std::array<std::uint32_t, 16> way;
};

struct Plan {
  // The test's, before the host starts.
  Kind kind;
  std::uint64_t place;
  std::uint32_t turn;  // from 1

  // The seam's.
  std::atomic<bool> fired;
  std::atomic<pid_t> hung_process;  // of kHang: where, 0 until then; and in which thread
  std::atomic<pid_t> hung_thread;
  // When it has been sent SIGTERM since, where another thread than the main one hangs; 0: it has not. By
  // CLOCK_MONOTONIC.
  std::atomic<std::int64_t> signalled_ns;
  std::atomic<bool> full;      // there were more places than there is room for
  std::atomic<bool> unlisted;  // the plugin has asked the kernel for something that nobody has thought of
  std::array<Place, 1U << 12> places;
};

// The plan in a file, mapped. nullptr with errno: no such file.
inline Plan* map_plan(const char* path, bool make) {
  const int fd = ::open(path, O_RDWR | O_CLOEXEC | (make ? O_CREAT : 0), 0600);
  if (fd < 0) return nullptr;
  void* mapped = MAP_FAILED;
  if (!make || ::ftruncate(fd, sizeof(Plan)) == 0)
    mapped = ::mmap(nullptr, sizeof(Plan), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  (void)::close(fd);
  return mapped == MAP_FAILED ? nullptr : static_cast<Plan*>(mapped);
}

}  // namespace sluice::seam
