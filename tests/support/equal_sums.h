// SPDX-License-Identifier: MIT
// Two contents of one unit that XXH3-128 with seed 0 gives one sum. Somebody who sends data to a job can make
// such.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "support/rng.h"

namespace sluice::test {

// `bytes`: at least 1 KiB. They differ in 16 bytes of their first 72; all else is random.
inline std::pair<std::vector<std::byte>, std::vector<std::byte>> contents_with_one_sum(std::size_t bytes) {
  // The first 16 bytes of XXH3's own secret. In these two places the upper half of data and secret is equal,
  // so the product of the halves is zero whatever the lower one is. Only the sum of both words is left.
  constexpr std::uint64_t kSecret[2] = {0xbe4ba423396cfeb8, 0x1cad21f72c81017c};
  constexpr std::uint64_t kUpper = 0xffffffff00000000;
  constexpr std::uint64_t kShift = 0x00abcdef;
  std::vector<std::byte> one(bytes);
  Rng(17).fill(one);
  const auto put = [](std::vector<std::byte>& where, std::uint64_t first, std::uint64_t second) {
    std::memcpy(where.data(), &first, sizeof first);
    std::memcpy(&where[64], &second, sizeof second);
  };
  const std::uint64_t first = (kSecret[0] & kUpper) | 0x11111111;
  const std::uint64_t second = (kSecret[1] & kUpper) | 0x22222222;
  put(one, first, second);
  std::vector<std::byte> other = one;
  put(other, first + kShift, second - kShift);
  return {std::move(one), std::move(other)};
}

}  // namespace sluice::test
