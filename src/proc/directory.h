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

namespace sluice::proc {

// `text` as a number, if all of it is a decimal number from 0 to INT_MAX.
std::optional<int> parse_number(std::string_view text);

// The remedy where there is no /proc, for with_remedy().
inline constexpr char kMountProc[] = "; mount /proc in the container [SL-R03]";

// The names in a directory that are numbers, in listed order; other names are skipped. `at`: the directory,
// borrowed, where a relative path begins. Errors: those of opendir and readdir.
Result<std::vector<int>> listed_numbers(const std::string& path, int at = AT_FDCWD);

// The same, ascending.
Result<std::vector<int>> numbered_entries(const std::string& path, int at = AT_FDCWD);

}  // namespace sluice::proc
