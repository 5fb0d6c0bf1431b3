// SPDX-License-Identifier: MIT
// Seeds of simulations: one seed is one run, and what fails names it.
//
//   SLUICE_SIM_SEEDS=n  that many seeds a test (by default what the test says)
//   SLUICE_SIM_SEED=n   this seed alone, to replay a failure
#pragma once

#include <cstdint>

namespace sluice::sim {

// The seeds of a test: [first, first + count).
struct Seeds {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  bool replay = false;  // one alone: it shows nothing of how often things happen
};
Seeds seeds_of_test(std::uint64_t usual_count);

// The seed of the run under way. Printed by fail() and, on SIGABRT (an assert of the code under test), by the
// handler that this installs.
void announce_seed(std::uint64_t seed);
[[noreturn]] void fail(const char* what);

}  // namespace sluice::sim
