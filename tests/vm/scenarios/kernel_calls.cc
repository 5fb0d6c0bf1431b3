// SPDX-License-Identifier: MIT
#include "kernel_calls.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <stdexcept>
#include <string>

#include "base/unique_fd.h"
#include "process.h"

namespace sluice::vm_test {
namespace {

const std::filesystem::path kTracing = "/sys/kernel/tracing";
const std::filesystem::path kProbe = kTracing / "events/kprobes/sluice_criu";
// kfd_ioctl_criu(file, process, arguments): the operation is at byte 48 of kfd_ioctl_criu_args (kfd_ioctl.h).
constexpr const char* kDefinition = "p:sluice_criu amdgpu:kfd_ioctl_criu op=+48($arg3):u32\n";

void tell_kernel(const std::filesystem::path& file, const std::string& text, int how = O_APPEND) {
  const UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CLOEXEC | how));
  if (!fd || ::write(fd.get(), text.data(), text.size()) < 0)
    throw std::runtime_error(file.string() + ": " + std::strerror(errno));
}

std::map<std::uint32_t, std::uint64_t> counts() {
  std::map<std::uint32_t, std::uint64_t> found;
  std::istringstream lines(read_file(kProbe / "hist"));
  for (std::string line; std::getline(lines, line);) {
    unsigned op = 0;
    unsigned long long times = 0;
    if (std::sscanf(line.c_str(), "{ op: %u } hitcount: %llu", &op, &times) == 2) found[op] = times;
  }
  return found;
}

}  // namespace

CriuOperations::CriuOperations() {
  if (!std::filesystem::exists(kTracing / "kprobe_events") &&
      ::mount("tracefs", kTracing.c_str(), "tracefs", 0, nullptr) != 0)
    throw std::runtime_error(std::string("tracefs: ") + std::strerror(errno));
  if (!std::filesystem::exists(kProbe)) {
    tell_kernel(kTracing / "kprobe_events", kDefinition);
    tell_kernel(kProbe / "trigger", "hist:keys=op\n");
    tell_kernel(kProbe / "enable", "1\n");
  }
  before_ = counts();
}

std::uint64_t CriuOperations::count(std::uint32_t op) const {
  const auto now = counts();
  const auto is = now.find(op), was = before_.find(op);
  return (is == now.end() ? 0 : is->second) - (was == before_.end() ? 0 : was->second);
}

}  // namespace sluice::vm_test
