// SPDX-License-Identifier: MIT
// In front of an older libfmt's.
#pragma once

#include_next <fmt/core.h>

#include <fmt/format.h>
