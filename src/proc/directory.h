// SPDX-License-Identifier: MIT
// Directories whose entries are numbers: /proc, /proc/PID/fd, and the lists of sysfs. Functions without
// state.
#pragma once

#include <fcntl.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice::kfd {

// A whole text that is a decimal number from 0 to INT_MAX.
std::optional<int> parse_number(std::string_view text);

// The numbers among the names in a directory, in the order in which it lists them. Other names are passed
// over. `at`: the directory, borrowed, from which a relative path leads. Errors: those of opendir and
// readdir.
Result<std::vector<int>> listed_numbers(const std::string& path, int at = AT_FDCWD);

// The same, ascending.
Result<std::vector<int>> numbered_entries(const std::string& path, int at = AT_FDCWD);

}  // namespace sluice::kfd
