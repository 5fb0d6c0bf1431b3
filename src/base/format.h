// SPDX-License-Identifier: MIT
// Text from a constant with {} for the values, checked by the compiler: formatted("GPU {} has {} bytes", id,
// bytes). A message's constant can be searched for. A thin front of libfmt, whose code is compiled into us
// once, in format.cc: criu loads no libfmt. Values: integers, text, bool. Throws std::bad_alloc, as
// std::string does. Any thread.
#pragma once

#include <fmt/core.h>

#include <string>

namespace sluice {

// `formatted` without the types of its values.
std::string format_values(fmt::string_view constant, fmt::format_args values);

template <class... Values>
std::string formatted(fmt::format_string<Values...> constant, const Values&... values) {
  return format_values(constant, fmt::make_format_args(values...));
}

}  // namespace sluice
