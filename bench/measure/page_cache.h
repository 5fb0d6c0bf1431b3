// SPDX-License-Identifier: MIT
// What the page cache holds of a file, and changing that. Sizes in bytes.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/result.h"

namespace sluice::bench {

// The share of the file that is cached, 0 to 1. By cachestat(2), before Linux 6.5 by mincore(2).
Result<double> cached_share(const std::filesystem::path& file);

// Takes the whole file out of the cache; asks for it only: a file system may keep it (tmpfs does).
Result<void> drop_cached(const std::filesystem::path& file);

// Reads [0, bytes) in, and takes out what follows.
Result<void> read_in(const std::filesystem::path& file, std::uint64_t bytes);

}  // namespace sluice::bench
