// SPDX-License-Identifier: MIT
// Protobuf messages of very many tiny parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

namespace sluice::test {

// How many fit, and do not fit, into the memory for unpacking a message (proto/unpack_memory.h): three bytes
// each, and about a hundred when unpacked.
inline constexpr std::size_t kFieldsThatFit = 300'000, kFieldsThatDoNot = 4'000'000;

// The message with appended fields that no schema has; they are kept all the same.
inline std::vector<std::uint8_t> with_unknown_fields(std::vector<std::uint8_t> message, std::size_t count) {
  constexpr std::uint8_t kField[] = {0xb8, 0x3e, 0};  // 999 is 0
  message.reserve(message.size() + count * sizeof kField);
  for (; count > 0; --count) message.insert(message.end(), std::begin(kField), std::end(kField));
  return message;
}

}  // namespace sluice::test
