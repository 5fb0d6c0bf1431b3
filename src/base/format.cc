// SPDX-License-Identifier: MIT
// Before every header of libfmt, so that its code is compiled here.
#define FMT_HEADER_ONLY
#include "base/format.h"

#include <fmt/format.h>

namespace sluice {

std::string format_values(fmt::string_view constant, fmt::format_args values) {
  return fmt::vformat(constant, values);
}

}  // namespace sluice
