// SPDX-License-Identifier: MIT
#include "control/trace.h"

#include <cerrno>
#include <cinttypes>
#include <ctime>

namespace sluice::card {

Result<void> Trace::open(const std::string& path) {
  close();
  file_.reset(std::fopen(path.c_str(), "we"));
  if (file_ == nullptr) return make_error(errno, "open the trace " + path);
  // A trace is read when something went wrong, which may be the end of this process.
  (void)std::setvbuf(file_.get(), nullptr, _IOLBF, 1 << 16);
  return {};
}

void Trace::close() {
  if (file_ != nullptr) end_of_repeats();
  file_.reset();
  last_.clear();
}

void Trace::line(std::string_view text) {
  if (file_ == nullptr) return;
  if (text == last_) {
    ++repeats_;
    return;
  }
  end_of_repeats();
  timespec now{};
  (void)::clock_gettime(CLOCK_MONOTONIC, &now);
  (void)std::fprintf(file_.get(), "%lld.%06ld %.*s\n", static_cast<long long>(now.tv_sec), now.tv_nsec / 1000,
                     static_cast<int>(text.size()), text.data());
  last_ = text;
}

void Trace::end_of_repeats() {
  if (repeats_ != 0) (void)std::fprintf(file_.get(), "  … %" PRIu64 " times more\n", repeats_);
  repeats_ = 0;
}

}  // namespace sluice::card
