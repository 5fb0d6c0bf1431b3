// SPDX-License-Identifier: MIT
#include "support/seeds.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

namespace sluice::test {
namespace {

volatile std::uint64_t current_seed = 0;

void on_abort(int) {
  std::array<char, 80> line{};
  const int length =
      std::snprintf(line.data(), line.size(), "replay with SLUICE_SEED=%" PRIu64 "\n", current_seed);
  const ssize_t ignored = ::write(STDERR_FILENO, line.data(), static_cast<std::size_t>(length));
  (void)ignored;
}

}  // namespace

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  if (text == nullptr) return otherwise;
  const std::string_view digits = text;
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size())
    throw std::invalid_argument(std::string(variable) + "='" + text + "' is no number");
  return number;
}

Seeds seeds_of_test(std::uint64_t usual_count) {
  if (std::getenv("SLUICE_SEED") != nullptr) return {number_from("SLUICE_SEED", 0), 1, true};
  return {0, number_from("SLUICE_SEEDS", usual_count), false};
}

std::string replay_with(std::uint64_t seed) {
  return "replay with SLUICE_SEED=" + std::to_string(seed);
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
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

}  // namespace sluice::test
