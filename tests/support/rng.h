// SPDX-License-Identifier: MIT
// Random numbers that are the same for one seed on every machine and library (splitmix64). Value type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace sluice::test {

class Rng {
 public:
  explicit Rng(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15;
    std::uint64_t mixed = state_;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    return mixed ^ (mixed >> 31);
  }

  // Uniform enough in [low, high].
  std::uint64_t between(std::uint64_t low, std::uint64_t high) { return low + next() % (high - low + 1); }
  bool percent(unsigned chance) { return next() % 100 < chance; }

  // Non-zero bytes nearly everywhere.
  void fill(std::span<std::byte> bytes) {
    std::size_t at = 0;
    while (at < bytes.size()) {
      const std::uint64_t word = next();
      const std::size_t count = bytes.size() - at < sizeof word ? bytes.size() - at : sizeof word;
      std::memcpy(&bytes[at], &word, count);
      at += count;
    }
  }

 private:
  std::uint64_t state_;
};

}  // namespace sluice::test
