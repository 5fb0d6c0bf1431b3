// SPDX-License-Identifier: MIT
// The n-th of something fails, once; and so of allocations by operator new, in programs that are linked with
// failing_allocation.cc (dep_failing_allocation), which replaces it.
#pragma once

#include <atomic>

namespace sluice::test {

// Thread-safe.
class NthFails {
 public:
  void arm(int nth) { left_ = nth; }  // 0: the next
  // Whether it has not come to the one that fails.
  bool disarm() { return left_.exchange(kNever) >= 0; }
  // Asked by each of them: whether it is the one.
  bool is_this_one() { return left_.load() != kNever && left_.fetch_sub(1) == 0; }

 private:
  static constexpr int kNever = -1;
  std::atomic<int> left_{kNever};
};

// Allocations of all threads but those that are spared.
NthFails& failing_allocation();
void spare_allocations_of_this_thread();

}  // namespace sluice::test
