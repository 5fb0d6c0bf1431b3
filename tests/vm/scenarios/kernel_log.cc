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

constexpr std::array<std::string_view, 6> kBugs = {"BUG:",       "WARNING:",           "Call Trace",
                                                   "INFO: task", "possible recursive", "KASAN"};
// A module from elsewhere taints the kernel, which is said once. And where the host gives the guest no CPU
// for a while, the kernel wonders, once, why a timer's interrupt took so long. AMD's driver notes what
// it answers with an error: a dump asks whether a process is debugged, and, of a second file of /dev/kfd,
// whether it is the same process, by a call that fails. And it looks into the read pointer of an SDMA queue
// that ends, which a process need not have mapped.
constexpr std::array<std::string_view, 7> kExpected = {"taints kernel",
                                                       "tainting kernel",
                                                       "hrtimer: interrupt took",
                                                       "not debug enabled for op 11",
                                                       "Failed to copy process information to user",
                                                       "Failed to dump CRIU ret:-14",
                                                       "Failed to read SDMA queue counter"};

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

std::vector<std::string> KernelLog::found(int worst) {
  std::vector<std::string> lines;
  std::array<char, 8192> record{};
  for (;;) {
    const ssize_t length = ::read(file_.get(), record.data(), record.size());
    if (length < 0 && (errno == EPIPE || errno == EINTR)) continue;  // overwritten meanwhile: go on behind it
    if (length <= 0) return lines;
    // "priority,sequence,time,flags;text\n", then lines of a dictionary.
    const std::string_view whole(record.data(), static_cast<std::size_t>(length));
    const int level = std::atoi(record.data()) & 7;
    const std::size_t semicolon = whole.find(';');
    if (semicolon == std::string_view::npos) continue;
    const std::string_view text = whole.substr(semicolon + 1, whole.find('\n', semicolon) - semicolon - 1);
    if ((level <= worst || has_one_of(text, kBugs)) && !has_one_of(text, kExpected)) lines.emplace_back(text);
  }
}

}  // namespace sluice::vm_test
