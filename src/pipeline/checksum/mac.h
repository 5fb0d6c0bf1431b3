// SPDX-License-Identifier: MIT
// HMAC-SHA-256 (RFC 2104, FIPS 180-4). It cannot be forged without the key, even for chosen bytes; XXH3 can.
// It is a PRF, so the sums of two dumps with one key may be compared.
//
// OpenSSL's libcrypto computes it. It is loaded only when a key is set: processes without a key never have
// it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"

namespace sluice {

using MacKey = std::array<std::uint8_t, 32>;
using Mac = std::array<std::uint8_t, 32>;

// Loads this machine's libcrypto.so.3, or 1.1, and lets it initialise, including all files that it reads. It
// stays until the process ends. Call it before there are threads, and before the process changes its
// namespaces; further calls do nothing. Errors: ELIBACC, with the loader's reason.
Result<void> load_mac();

// Any number of bytes, at any alignment. Any thread. Throws std::bad_alloc if libcrypto has no memory.
// REQUIRES: load_mac() has succeeded.
Mac mac_of(std::span<const std::byte> bytes, const MacKey& key);

}  // namespace sluice
