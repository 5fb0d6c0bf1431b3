// SPDX-License-Identifier: MIT
// Text from a constant with {} for the values, checked by the compiler: formatted("GPU {} has {} bytes", id,
// bytes). A message's constant can be searched for. A thin front of libfmt, whose code is compiled into us
// once, in format.cc: criu loads no libfmt. Values: integers, text, bool. Throws std::bad_alloc, as
// std::string does. Any thread.
#pragma once

#if __has_include(<fmt/base.h>)  // libfmt 11, whose core.h is all of libfmt
#include <fmt/base.h>
#else
#include <fmt/core.h>
#endif

#include <string>

namespace sluice {

// `formatted` without the types of its values.
std::string format_values(fmt::string_view constant, fmt::format_args values);

template <class... Values>
std::string formatted(fmt::format_string<Values...> constant, const Values&... values) {
  if constexpr (requires { constant.get(); })  // from libfmt 10 on
    return format_values(constant.get(), fmt::make_format_args(values...));
  else
    return format_values(constant, fmt::make_format_args(values...));
}

}  // namespace sluice
