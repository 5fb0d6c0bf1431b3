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
// Where the host gives the guest no CPU for a while, the kernel wonders, once, why a timer's interrupt took
// so long. AMD's driver notes what it answers with an error. A dump asks by a call that fails whether a
// process is debugged, and whether a second file of /dev/kfd is of the same process. The driver also reads
// the read pointer of an SDMA queue that ends, which a process need not have mapped. It tries to reach memory
// of another GPU before it moves that to where both can. 7.2 then counts that memory wrongly, and says so at
// the end of the process. The plugin asks whether a process is dumped already by a checkpoint, which is
// refused if it is not. A task that is killed while the KFD gives it its memory again leaves that call in the
// middle (EINTR). containerd mounts what a container has written a second time, while the container goes on
// writing. A container that is denied every GPU of the machine opens /dev/kfd: 7.2 warns.
constexpr std::array<std::string_view, 14> kExpected = {"hrtimer: interrupt took",
                                                        "not debug enabled for op 11",
                                                        "Failed to copy process information to user",
                                                        "Failed to dump CRIU ret:-14",
                                                        "Failed to read SDMA queue counter",
                                                        "Failed to map peer:",
                                                        "is non-zero when fini",
                                                        "queues are not in evicted state",
                                                        "Failed to dump CRIU ret:-22",
                                                        "Failed to register MMU notifier: -4",
                                                        "Could not create the BO",
                                                        "Failed to restore CRIU ret:-4",
                                                        "lowerdir is in-use as upperdir/workdir",
                                                        "no gpu node! Cannot create KFD process"};

// What AMD's driver says of every emulated card that is bound to it, on Linux 6.1, 6.12 and 7.2. Nothing else
// may be said then.
constexpr std::array<std::string_view, 9> kOfACard = {
    "disabled ip block: ",                            // ip_block_mask leaves them out: SMU, video, JPEG
    "Poison setting is inconsistent in DF/UMC(0:1)",  // the card has no RAS, so its memory controllers say 0
    "System can't access extended configuration space",  // needed to resize BARs, which are as large as VRAM
    "memory partition mode query is not supported",      // 7.2 asks; an MI210 has one partition
    "Cannot access FRU, EEPROM accessor not initialized",  // only the SMU reaches it, and the card has none
    "CP firmware version too old",               // 6.1 goes by the version in a firmware file, which is empty
    "loading out-of-tree module taints kernel",  // of a given driver (scripts/vm --modules)
    "SRAT table not found",                      // 6.1 looks for the NUMA node, and the guest has one
    "aldebaran_ip_discovery.bin",  // this chip's IP blocks are in the driver; it asks all the same
};

// A fault of Linux's own: a process that was restored on other GPUs ends, and the page of its events is still
// pinned, because kfd_process_kunmap_signal_bo looks for the GPU by its gpu_id at the dump (kfd_process.c).
// The report is left out from this line on up to its last.
constexpr std::string_view kKnownReport = " ttm_bo_release+", kEndOfReport = "---[ end trace";
// Before every report, so it says nothing of its own.
constexpr std::string_view kCutHere = "------------[ cut here ]------------";

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

std::vector<std::string> KernelLog::complaints_of_binding() {
  std::vector<std::string> lines = complaints();
  std::erase_if(lines, [](const std::string& line) { return has_one_of(line, kOfACard); });
  return lines;
}

std::vector<std::string> KernelLog::complaints() {
  std::vector<std::string> lines;
  std::array<char, 8192> record{};
  for (;;) {
    const ssize_t length = ::read(file_.get(), record.data(), record.size());
    if (length < 0 && (errno == EPIPE || errno == EINTR)) continue;  // overwritten meanwhile: go on after it
    if (length <= 0) return lines;
    // "priority,sequence,time,flags;text\n", then lines of a dictionary.
    const std::string_view whole(record.data(), static_cast<std::size_t>(length));
    const int level = std::atoi(record.data()) & 7;
    const std::size_t semicolon = whole.find(';');
    if (semicolon == std::string_view::npos) continue;
    const std::string_view text = whole.substr(semicolon + 1, whole.find('\n', semicolon) - semicolon - 1);
    if (text.find("WARNING:") != std::string_view::npos && text.find(kKnownReport) != std::string_view::npos)
      in_known_report_ = true;
    if (text == kCutHere) continue;
    if (in_known_report_) {
      in_known_report_ = text.find(kEndOfReport) == std::string_view::npos;
      continue;
    }
    if ((level <= kWarning || has_one_of(text, kBugs)) && !has_one_of(text, kExpected))
      lines.emplace_back(text);
  }
}

}  // namespace sluice::vm_test
