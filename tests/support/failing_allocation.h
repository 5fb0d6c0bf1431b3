// SPDX-License-Identifier: MIT
// The n-th call fails, once. For allocations by operator new in programs linked with failing_allocation.cc
// (dep_failing_allocation), which replaces it.
#pragma once

#include <atomic>

namespace sluice::test {

// Thread-safe.
class NthFails {
 public:
  void arm(int nth) { left_ = nth; }  // 0: the next
  // Whether the failing call has not come yet.
  bool disarm() { return left_.exchange(kNever) >= 0; }
  // Called by each: whether it is the one that fails.
  bool is_this_one() { return left_.load() != kNever && left_.fetch_sub(1) == 0; }

 private:
  static constexpr int kNever = -1;
  std::atomic<int> left_{kNever};
};

// Allocations of all threads except spared ones.
NthFails& failing_allocation();
void spare_allocations_of_this_thread();

}  // namespace sluice::test
