// SPDX-License-Identifier: MIT
// Tests driven by seeds: one seed is one case, and a failure names it. The environment sets the number of
// cases.
//
//   SLUICE_SEEDS=n  that many seeds (the test has a default)
//   SLUICE_SEED=n   only this seed, to replay a failure
#pragma once

#include <cstdint>
#include <string>

namespace sluice::test {

// A test's default number of cases: fewer under a sanitizer, which is several times slower.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__clang__)
inline constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool kSanitized = false;
#endif
constexpr std::uint64_t usual(std::uint64_t plain, std::uint64_t sanitized) {
  return kSanitized ? sanitized : plain;
}

// An environment variable as a number, else `otherwise`. Throws std::invalid_argument if it is set but no
// number: as 0, a test would do nothing and pass.
std::uint64_t number_from(const char* variable, std::uint64_t otherwise);

// The seeds of a test: [first, first + count).
struct Seeds {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  bool replay = false;  // only one: shows nothing about frequencies
};
Seeds seeds_of_test(std::uint64_t usual_count);

// For SCOPED_TRACE: how to see this case again.
std::string replay_with(std::uint64_t seed);

// The seed of the current case. Printed by fail() and, on SIGABRT (an assert of the code under test), by the
// handler that this installs.
void announce_seed(std::uint64_t seed);
[[noreturn]] void fail(const char* what);

}  // namespace sluice::test
