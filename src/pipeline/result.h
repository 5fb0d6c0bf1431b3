// SPDX-License-Identifier: MIT
// Result<T>: a value or an Error. The one way failures travel through sluice; no exceptions, no bare errno.
//
// `Error::err` is always a positive errno, turned once in the wrapper that met it (libdrm's and liburing's
// negatives, a system call's -1). `Error::what` names the object and what the user can do: "write
// amdgpu-pages-1-5759.img [68157440, 72351744): No space left on device". The first error of a run wins;
// cleanup never replaces it. Value type, thread-compatible.
#pragma once

#include <cassert>
#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <variant>

namespace sluice {

struct Error {
  int err = EIO;  // positive errno
  std::string what;
};

// As messages show addresses, flags and ids: "0x7f00".
inline std::string hex(std::uint64_t value) {
  char text[24];
  (void)std::snprintf(text, sizeof text, "0x%" PRIx64, value);
  return text;
}

// Builds an Error whose text ends with the errno's name in words.
inline Error make_error(int err, std::string what) {
  what += ": ";
  what += strerrordesc_np(err) != nullptr ? strerrordesc_np(err) : "unknown error";
  return Error{err, std::move(what)};
}

// The same error, with what it happened to in front.
inline Error explain(const std::string& object, const Error& error) {
  return Error{error.err, object + ": " + error.what};
}

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Error error)
      : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  // REQUIRES: ok().
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  // REQUIRES: !ok().
  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)), failed_(true) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return !failed_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const& { return error_; }
  Error&& error() && { return std::move(error_); }

 private:
  Error error_{0, {}};
  bool failed_ = false;
};

}  // namespace sluice

// Returns the error of a Result-valued expression from the enclosing function, else goes on.
#define SLUICE_TRY(expression)                                                                \
  do {                                                                                        \
    if (auto sluice_try_ = (expression); !sluice_try_) return std::move(sluice_try_).error(); \
  } while (false)

// SLUICE_TRY_ASSIGN(auto fd, open_it()): declares or assigns the value, or returns the error. Several
// statements: put braces around it behind an `if`.
#define SLUICE_TRY_ASSIGN(target, expression) \
  SLUICE_TRY_ASSIGN_(target, expression, SLUICE_TRY_NAME_(sluice_result_, __LINE__))
#define SLUICE_TRY_NAME_(a, b) SLUICE_TRY_NAME2_(a, b)
#define SLUICE_TRY_NAME2_(a, b) a##b
// NOLINTBEGIN(bugprone-macro-parentheses): these arguments declare names
#define SLUICE_TRY_ASSIGN_(target, expression, name) \
  auto name = (expression);                          \
  if (!name) return std::move(name).error();         \
  target = std::move(name).value()
// NOLINTEND(bugprone-macro-parentheses)
