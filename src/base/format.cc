// SPDX-License-Identifier: MIT
#include "base/format.h"

#define FMT_HEADER_ONLY
#include <fmt/format.h>

namespace sluice {

std::string format_values(fmt::string_view constant, fmt::format_args values) {
  return fmt::vformat(constant, values);
}

}  // namespace sluice
