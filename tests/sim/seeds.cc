// SPDX-License-Identifier: MIT
#include "sim/seeds.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>

namespace sluice::sim {
namespace {

volatile std::uint64_t current_seed = 0;

void on_abort(int) {
  std::array<char, 80> line{};
  const int length =
      std::snprintf(line.data(), line.size(), "replay with SLUICE_SIM_SEED=%" PRIu64 "\n", current_seed);
  const ssize_t ignored = ::write(STDERR_FILENO, line.data(), static_cast<std::size_t>(length));
  (void)ignored;
}

}  // namespace

Seeds seeds_of_test(std::uint64_t usual_count) {
  if (const char* const one = std::getenv("SLUICE_SIM_SEED"))
    return {std::strtoull(one, nullptr, 10), 1, true};
  const char* const count = std::getenv("SLUICE_SIM_SEEDS");
  return {0, count != nullptr ? std::strtoull(count, nullptr, 10) : usual_count, false};
}

void announce_seed(std::uint64_t seed) {
  static const bool installed = [] {
    struct sigaction action {};
    action.sa_handler = on_abort;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    return ::sigaction(SIGABRT, &action, nullptr) == 0;
  }();
  (void)installed;
  current_seed = seed;
}

void fail(const char* what) {
  std::fprintf(stderr, "simulation: %s\n", what);
  std::abort();
}

}  // namespace sluice::sim
