// SPDX-License-Identifier: MIT
// Tests of what a process does with signals: in processes of their own, by the way in which they end.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>

namespace sluice::test {

inline bool is_blocked(int signal) {
  sigset_t blocked;
  (void)pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  return sigismember(&blocked, signal) == 1;
}

inline bool is_pending(int signal) {
  sigset_t pending;
  (void)sigpending(&pending);
  return sigismember(&pending, signal) == 1;
}

inline constexpr int kAllIsWell = 2;

// `body` runs in a process of its own, and says whether all is well there. The process ends by exit(), or in
// `body`.
template <class Body>
void expect_well(const Body& body) {
  EXPECT_EXIT(std::exit(body() ? kAllIsWell : 1), ::testing::ExitedWithCode(kAllIsWell), "");
}

// The same, where a signal ends it, at exit() or before. `said`: on standard error by then.
template <class Body>
void expect_killed(int signal, const Body& body, const char* said = "") {
  EXPECT_EXIT((body(), std::exit(1)), ::testing::KilledBySignal(signal), said);
}

}  // namespace sluice::test
