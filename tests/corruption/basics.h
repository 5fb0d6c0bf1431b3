// SPDX-License-Identifier: MIT
// What the parts of this folder have in common.
#pragma once

#include <cerrno>
#include <cstdint>
#include <string>
#include <system_error>

#include "base/units.h"

namespace sluice::corruption_test {

inline constexpr std::uint64_t kPage = 4 * kKiB;  // of what is damaged, whatever the machine's are

// What the test itself does to files does not fail.
inline void check(bool good, const std::string& what) {
  if (!good) throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace sluice::corruption_test
