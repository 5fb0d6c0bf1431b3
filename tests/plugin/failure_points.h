// SPDX-License-Identifier: MIT
// What may fail in a run of a host under the seam (tests/fault/seam), and which of it does.
//
// By default a share of the failures, drawn by seed: SLUICE_FAULT_SHARE (how many of each test, or "all"),
// SLUICE_FAULT_SEED. SLUICE_FAULT_POINT, as a test that fails tells it, is one and the same failure again.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fault/seam/plan.h"
#include "support/rng.h"
#include "support/seeds.h"

namespace sluice::plugin_test {

// A call of the plugin that fails.
struct Failure {
  seam::Kind kind = seam::kPass;
  std::uint64_t place = 0;
  std::uint32_t turn = 0;
  std::string call;
  std::string way;              // to the call, for addr2line
  std::uint32_t outermost = 0;  // of it: where in the plugin the host's call goes on

  std::string name() const;
};

// What becomes of a job that a GPU was given.
struct LostJob {
  std::uint32_t gpu = 0;
  std::uint64_t number = 0;  // of its fence, from 1
  bool hangs = false;        // or fails

  std::string name() const;
};

// At which turns of a place that a run comes to again and again.
enum class Turns {
  FirstAndMiddle,
  Many,  // these, each of the first 16, those of twice the number each time, and the last
};

// The plan that the test and the hosts share.
class FailurePlan {
 public:
  // In `file`, which is made. Throws std::system_error.
  explicit FailurePlan(const std::filesystem::path& file);
  ~FailurePlan();
  FailurePlan(const FailurePlan&) = delete;
  FailurePlan& operator=(const FailurePlan&) = delete;

  // For the next run: what fails in it.
  void arm(const Failure& failure);
  void disarm() { arm({}); }

  // Of the last run: whether what was armed has happened, and of which kind it was.
  bool fired() const { return plan_->fired; }
  // Whether the plugin has asked the kernel for what the seam does not know; the run has ended there.
  bool unlisted() const { return plan_->unlisted; }
  seam::Kind kind() const { return plan_->kind; }
  // Where it hangs: a process, 0 until then; whether its main thread; and when that has been sent SIGTERM,
  // which the seam sees to where another one hangs. Nothing: not yet.
  pid_t hung_process() const { return plan_->hung_process; }
  bool hangs_in_main() const { return hung_process() != 0 && plan_->hung_thread == hung_process(); }
  std::optional<std::chrono::steady_clock::time_point> signalled() const;
  // The call that was to fail; "" where the run did not come to it.
  std::string call() const;
  // How often it has made `call`, without the time at which it failed.
  std::uint32_t turns_at(const std::string& call) const;
  // What it could have failed of: each kind of `kinds` at each place, in a loop at `turns`. `places`: how
  // many they are.
  std::vector<Failure> failures(std::uint32_t kinds, Turns turns, std::size_t* places) const;

 private:
  seam::Plan* plan_;
};

// Whether this run of the test is to try all failures (SLUICE_FAULT_SHARE=all).
bool all_are_wanted();
// Whether it is to find one of them again (SLUICE_FAULT_POINT).
bool one_is_wanted();
// How many it is to try otherwise. Throws std::invalid_argument where SLUICE_FAULT_SHARE is no number, or 0:
// a test that tries nothing would pass.
std::uint64_t wanted_share(std::uint64_t usual);

// Those of `all` that are to happen in this run of the test; `share` of them by default.
template <class Any>
std::vector<Any> share_of(std::vector<Any> all, std::uint64_t share) {
  if (const char* one = std::getenv("SLUICE_FAULT_POINT"); one != nullptr) {
    std::erase_if(all, [one](const Any& failure) { return failure.name() != one; });
    return all;
  }
  if (all_are_wanted()) return all;
  share = wanted_share(share);
  test::Rng rng(test::number_from("SLUICE_FAULT_SEED", 1));
  std::vector<Any> drawn;
  while (drawn.size() < share && !all.empty()) {
    std::swap(all.back(), all[rng.between(0, all.size() - 1)]);
    drawn.push_back(std::move(all.back()));
    all.pop_back();
  }
  return drawn;
}

}  // namespace sluice::plugin_test
