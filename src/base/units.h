// SPDX-License-Identifier: MIT
// Sizes in bytes and arithmetic on them.
#pragma once

#include <bit>
#include <cstdint>

namespace sluice {

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;
inline constexpr std::uint64_t kGiB = 1024 * kMiB;

// REQUIRES for both: alignment is a power of two; for align_up: value + alignment - 1 does not overflow.
constexpr std::uint64_t align_down(std::uint64_t value, std::uint64_t alignment) {
  return value & ~(alignment - 1);
}
constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) {
  return align_down(value + alignment - 1, alignment);
}
constexpr bool is_aligned(std::uint64_t value, std::uint64_t alignment) {
  return (value & (alignment - 1)) == 0;
}
constexpr std::uint64_t div_ceil(std::uint64_t dividend, std::uint64_t divisor) {
  return dividend / divisor + (dividend % divisor != 0 ? 1 : 0);
}

}  // namespace sluice
