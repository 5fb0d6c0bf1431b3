// SPDX-License-Identifier: MIT
// HMAC-SHA-256 (RFC 2104, FIPS 180-4). Without the key it cannot be made, even by somebody who chooses the
// bytes; XXH3 does not withstand that. It is a PRF, so sums of two dumps by one key may be compared.
//
// OpenSSL's libcrypto computes it. It is loaded when a key is set, and only then: processes without a key
// never have it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"

namespace sluice {

using MacKey = std::array<std::uint8_t, 32>;
using Mac = std::array<std::uint8_t, 32>;

// Loads libcrypto.so.3, or 1.1, of this machine and lets it set itself up, with all files that it reads. It
// stays until the process ends. Call it before there are threads, and before the process changes its
// namespaces; more calls do nothing. Errors: ELIBACC, with the loader's reason.
Result<void> load_mac();

// Any number of bytes, at any alignment. Any thread. Throws std::bad_alloc where libcrypto has no memory.
// REQUIRES: load_mac() has succeeded.
Mac mac_of(std::span<const std::byte> bytes, const MacKey& key);

}  // namespace sluice
