// SPDX-License-Identifier: MIT
// Data that can be checked: each 64-bit word of a BO is a function of the BO's seed and the word's place, so
// that a lost, moved, swapped or stale byte shows. Some units of it are zero, in the share asked for.
//
// A unit is 1 MiB in large BOs, 64 KiB in middle ones, 4 KiB in small ones. Pure functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "base/units.h"

namespace sluice::subject {

constexpr std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

// Word `index` of non-zero data. One multiplication: runs at memory speed.
constexpr std::uint64_t pattern_word(std::uint64_t seed, std::uint64_t index) {
  const std::uint64_t value = (seed + index) * 0x9e3779b97f4a7c15;
  return value ^ (value >> 32);
}

struct Pattern {
  std::uint64_t seed = 0;
  std::uint64_t bytes = 0;  // of the whole BO, a multiple of 8
  std::uint32_t zero_percent = 0;

  constexpr std::uint64_t unit_bytes() const {
    return bytes >= 16 * kMiB ? kMiB : bytes >= kMiB ? 64 * kKiB : 4 * kKiB;
  }
  constexpr bool zero_unit(std::uint64_t unit) const { return mix(seed ^ mix(unit)) % 100 < zero_percent; }

  // Calls piece(offset, length, zero) for the pieces of [offset, offset + length) that lie in one unit each;
  // stops at the first that answers false.
  template <class Piece>
  bool for_each_piece(std::uint64_t offset, std::uint64_t length, Piece piece) const {
    while (length > 0) {
      const std::uint64_t unit = offset / unit_bytes();
      const std::uint64_t here = std::min(length, (unit + 1) * unit_bytes() - offset);
      if (!piece(offset, here, zero_unit(unit))) return false;
      offset += here;
      length -= here;
    }
    return true;
  }

  // Writes the BO's bytes [offset, offset + data.size()). REQUIRES: offset and size multiples of 8.
  void fill(std::span<std::uint8_t> data, std::uint64_t offset) const {
    for_each_piece(offset, data.size(), [&](std::uint64_t at, std::uint64_t length, bool zero) {
      std::uint8_t* out = data.data() + (at - offset);
      if (zero) {
        std::memset(out, 0, length);
        return true;
      }
      auto* words = reinterpret_cast<std::uint64_t*>(out);
      for (std::uint64_t i = 0; i < length / 8; ++i) words[i] = pattern_word(seed, at / 8 + i);
      return true;
    });
  }

  // Offset within the BO of the first wrong 64-bit word of `data`, which should be [offset, offset +
  // data.size()).
  std::optional<std::uint64_t> first_difference(std::span<const std::uint8_t> data,
                                                std::uint64_t offset) const {
    std::optional<std::uint64_t> difference;
    for_each_piece(offset, data.size(), [&](std::uint64_t at, std::uint64_t length, bool zero) {
      const auto* words = reinterpret_cast<const std::uint64_t*>(data.data() + (at - offset));
      const std::uint64_t count = length / 8;
      std::uint64_t wrong = 0;
      if (zero) {
        for (std::uint64_t i = 0; i < count; ++i) wrong |= words[i];
      } else {
        for (std::uint64_t i = 0; i < count; ++i) wrong |= words[i] ^ pattern_word(seed, at / 8 + i);
      }
      if (wrong == 0) return true;
      for (std::uint64_t i = 0; i < count; ++i) {
        if (words[i] == (zero ? 0 : pattern_word(seed, at / 8 + i))) continue;
        difference = at + 8 * i;
        break;
      }
      return false;
    });
    return difference;
  }

  // Bytes of the BO that lie in zero units.
  std::uint64_t zero_bytes() const {
    std::uint64_t sum = 0;
    for_each_piece(0, bytes, [&](std::uint64_t, std::uint64_t length, bool zero) {
      sum += zero ? length : 0;
      return true;
    });
    return sum;
  }
};

}  // namespace sluice::subject
