// SPDX-License-Identifier: MIT
// What scenarios run with where it is not what they vary. Sizes in bytes.
#pragma once

#include <cstdint>

#include "pipeline/units.h"

namespace sluice::bench {

inline constexpr const char* kPagesName = "amdgpu-pages-1-0001.img";
inline constexpr std::uint64_t kTouchBytes = 256 * kMiB;  // of free memory, before a timed run

}  // namespace sluice::bench
