// SPDX-License-Identifier: MIT
// Which parts of a file are in the page cache, and changing that. Sizes in bytes.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/result.h"

namespace sluice::bench {

// The share of the file that is cached, 0 to 1. By cachestat(2), before Linux 6.5 by mincore(2).
Result<double> cached_share(const std::filesystem::path& file);

// Requests that the whole file leave the cache; a file system may keep it (tmpfs does).
Result<void> drop_cached(const std::filesystem::path& file);

// Reads [0, bytes) in, and drops the rest.
Result<void> read_in(const std::filesystem::path& file, std::uint64_t bytes);

}  // namespace sluice::bench
