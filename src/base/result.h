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
#include <string_view>
#include <utility>
#include <variant>

namespace sluice {

// What an error is about, where its errno alone does not tell what its reader can do. Whoever shows errors
// knows a remedy for each errno of these.
enum class Topic : std::uint8_t {
  Unknown,
  Said,     // `what` says what to do itself
  Images,   // the image directory, or a file in it
  Threads,  // of the process: no more can be made
};

struct Error {
  int err = EIO;  // positive errno
  std::string what;
  Topic topic = Topic::Unknown;
};

// As messages show addresses, flags and ids: "0x7f00".
inline std::string hex(std::uint64_t value) {
  char text[24];
  (void)std::snprintf(text, sizeof text, "0x%" PRIx64, value);
  return text;
}

// Builds an Error whose text ends with the errno's name in words.
inline Error make_error(int err, std::string what, Topic topic = Topic::Unknown) {
  what += ": ";
  what += strerrordesc_np(err) != nullptr ? strerrordesc_np(err) : "unknown error";
  return Error{err, std::move(what), topic};
}

// The same error, with what it happened to in front.
inline Error explain(const std::string& object, const Error& error) {
  return Error{error.err, object + ": " + error.what, error.topic};
}

// The same error, whose text goes on with what can be done about it; with nothing, it is as it was.
inline Error with_remedy(const Error& error, std::string_view remedy) {
  if (remedy.empty()) return error;
  return Error{error.err, error.what + std::string(remedy), Topic::Said};
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

// The same result; an error of which nothing else is known is about `topic`.
template <class T>
Result<T> about(Topic topic, Result<T> result) {
  if (result || result.error().topic != Topic::Unknown) return result;
  Error error = std::move(result).error();
  error.topic = topic;
  return error;
}

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
