// SPDX-License-Identifier: MIT
// BLAKE3 with a key: what only who has the key can make, and the same wherever it is made. The default output
// of 32 bytes of the specification's keyed_hash (https://github.com/BLAKE3-team/BLAKE3-specs), held to its
// test vectors. Unlike XXH3 it withstands somebody who chooses the bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice {

using Blake3Key = std::array<std::uint8_t, 32>;

// Any number of bytes, at any alignment. Allocates nothing; 3 KiB of stack, and some hundred bytes for each
// doubling of the length. Any thread.
std::array<std::uint8_t, 32> blake3_keyed(std::span<const std::byte> bytes, const Blake3Key& key);

}  // namespace sluice
