// SPDX-License-Identifier: MIT
#include "kernel_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <system_error>

namespace sluice::vm_test {
namespace {

constexpr int kWarning = 4;
constexpr std::array<std::string_view, 6> kBugs = {"BUG:",       "WARNING:",           "Call Trace",
                                                   "INFO: task", "possible recursive", "KASAN"};
// A module from elsewhere taints the kernel, which is said once. And where the host gives the guest no CPU
// for a while, the kernel wonders, once, why a timer's interrupt took so long.
constexpr std::array<std::string_view, 3> kExpected = {"taints kernel", "tainting kernel",
                                                       "hrtimer: interrupt took"};

template <std::size_t N>
bool has_one_of(std::string_view text, const std::array<std::string_view, N>& words) {
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view word) { return text.find(word) != std::string_view::npos; });
}

}  // namespace

KernelLog::KernelLog() : file_(::open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  if (!file_ || ::lseek(file_.get(), 0, SEEK_END) < 0)
    throw std::system_error(errno, std::generic_category(), "/dev/kmsg");
}

std::vector<std::string> KernelLog::complaints() {
  std::vector<std::string> found;
  std::array<char, 8192> record{};
  for (;;) {
    const ssize_t length = ::read(file_.get(), record.data(), record.size());
    if (length < 0 && (errno == EPIPE || errno == EINTR)) continue;  // overwritten meanwhile: go on behind it
    if (length <= 0) return found;
    // "priority,sequence,time,flags;text\n", then lines of a dictionary.
    const std::string_view whole(record.data(), static_cast<std::size_t>(length));
    const int level = std::atoi(record.data()) & 7;
    const std::size_t semicolon = whole.find(';');
    if (semicolon == std::string_view::npos) continue;
    const std::string_view text = whole.substr(semicolon + 1, whole.find('\n', semicolon) - semicolon - 1);
    if ((level <= kWarning || has_one_of(text, kBugs)) && !has_one_of(text, kExpected))
      found.emplace_back(text);
  }
}

}  // namespace sluice::vm_test
