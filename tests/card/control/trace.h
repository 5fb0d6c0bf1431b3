// SPDX-License-Identifier: MIT
// What the card did, one line each, for somebody who looks for the reason of something. Off until it is
// opened. A line that comes again and again (a register that is polled) is written once, with a count after
// it. One thread.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace sluice::card {

class Trace {
 public:
  Trace() = default;
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;
  ~Trace() { close(); }

  // Begins the file anew. What was open is closed.
  Result<void> open(const std::string& path);
  void close();

  bool on() const { return file_ != nullptr; }
  // Without its end; ask on() before a line is put together.
  void line(std::string_view text);

 private:
  struct Close {
    void operator()(std::FILE* file) const { (void)std::fclose(file); }
  };
  void end_of_repeats();

  std::unique_ptr<std::FILE, Close> file_;
  std::string last_;
  std::uint64_t repeats_ = 0;
};

}  // namespace sluice::card
