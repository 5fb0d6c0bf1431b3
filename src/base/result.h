// SPDX-License-Identifier: MIT
// Result<T>: a value or an Error. The only way failures travel through sluice; no exceptions, no bare errno.
//
// `Error::err` is always a positive errno, turned once in the wrapper that met it (libdrm's and liburing's
// negatives, a system call's -1). `Error::what` names what failed and on what: "write
// amdgpu-pages-1-5759.img [68157440, 72351744): No space left on device". The first error of a run wins;
// cleanup never replaces it. Value type, thread-compatible.
//
// Ids: a message that includes its remedy ends with an id, " [SL-D14]", which never changes. The letter is
// the topic: dump D, restore R, images I, GPU and KFD G, contents C, settings S, host and environment H, the
// command T. The page docs/reference/messages.md explains each; tests/docs compares it with the sources. An
// id belongs to one place in the sources, and a number is never reused.
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

// What an error is about, where errno alone does not suggest a remedy. The code that shows errors knows a
// remedy for each errno of these topics. A message with an id includes its own.
enum class Topic : std::uint8_t {
  Unknown,
  Images,   // the image directory, or a file in it
  Threads,  // of the process: no more can be created
};

struct Error {
  int err = EIO;  // positive errno
  std::string what;
  Topic topic = Topic::Unknown;
};

// The form of addresses, flags and ids in messages: "0x7f00".
inline std::string hex(std::uint64_t value) {
  char text[24];
  (void)std::snprintf(text, sizeof text, "0x%" PRIx64, value);
  return text;
}

// Where a message's id begins, with the blank before it; the message's length if it has none.
inline std::size_t id_begin(std::string_view text) {
  const std::size_t begin = text.rfind(" [SL-");
  return begin != text.npos && text.find(']', begin) + 1 == text.size() ? begin : text.size();
}

inline bool has_id(std::string_view text) {
  return id_begin(text) != text.size();
}

// Builds an Error whose text ends with the errno in words, or with that and the id of `what`.
inline Error make_error(int err, std::string what, Topic topic = Topic::Unknown) {
  const char* const words = strerrordesc_np(err);
  what.insert(id_begin(what), std::string(": ") + (words != nullptr ? words : "unknown error"));
  return Error{err, std::move(what), topic};
}

// The same error, prefixed with the object it happened to.
inline Error explain(const std::string& object, const Error& error) {
  return Error{error.err, object + ": " + error.what, error.topic};
}

// The same error with a remedy and an id added: "; load the driver [SL-G01]". Unchanged if there is no
// remedy, or the text already has one.
inline Error with_remedy(const Error& error, std::string_view remedy) {
  if (has_id(error.what)) return error;
  return Error{error.err, error.what + std::string(remedy), error.topic};
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

// The same result; an error of unknown topic is about `topic`.
template <class T>
Result<T> about(Topic topic, Result<T> result) {
  if (result || result.error().topic != Topic::Unknown) return result;
  Error error = std::move(result).error();
  error.topic = topic;
  return error;
}

}  // namespace sluice

// Returns the error of a Result-valued expression from the enclosing function, or goes on.
#define SLUICE_TRY(expression)                                                                \
  do {                                                                                        \
    if (auto sluice_try_ = (expression); !sluice_try_) return std::move(sluice_try_).error(); \
  } while (false)

// SLUICE_TRY_ASSIGN(auto fd, open_it()): declares or assigns the value, or returns the error. Several
// statements: put braces around it after an `if`.
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
