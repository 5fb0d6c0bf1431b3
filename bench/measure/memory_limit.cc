// SPDX-License-Identifier: MIT
#include "measure/memory_limit.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

#include "pipeline/unique_fd.h"

namespace sluice::bench {
namespace {

namespace fs = std::filesystem;

Result<void> write_file(const fs::path& file, const std::string& text) {
  const UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd || ::write(fd.get(), text.data(), text.size()) < 0) return make_error(errno, file);
  return {};
}

// Where cgroup v2 is mounted; empty: nowhere.
fs::path mount_point() {
  std::ifstream mounts("/proc/self/mounts");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string device, directory, type;
    if (words >> device >> directory >> type && type == "cgroup2") return directory;
  }
  return {};
}

// This process' group, as a path below the mount point.
fs::path own_group() {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (line.starts_with("0::/")) return line.substr(4);
  }
  return {};
}

bool shares_out_memory(const fs::path& group) {
  std::ifstream controllers(group / "cgroup.subtree_control");
  for (std::string controller; controllers >> controller;) {
    if (controller == "memory") return true;
  }
  return false;
}

}  // namespace

Result<MemoryLimit> MemoryLimit::make(std::uint64_t bytes) {
  const fs::path top = mount_point();
  if (top.empty()) return make_error(ENOTSUP, "no cgroup v2 is mounted");
  fs::path parent = top / own_group();
  while (!shares_out_memory(parent)) {
    if (parent == top || !parent.has_relative_path())
      return make_error(ENOTSUP, "no group above this process shares out memory by cgroup v2");
    parent = parent.parent_path();
  }
  const fs::path group = parent / ("sluice-bench-" + std::to_string(::getpid()));
  if (::mkdir(group.c_str(), 0755) != 0) return make_error(errno, group);
  MemoryLimit limit(group);
  SLUICE_TRY(write_file(group / "memory.max", std::to_string(bytes)));
  std::error_code no_swap_counted;
  if (fs::exists(group / "memory.swap.max", no_swap_counted))
    SLUICE_TRY(write_file(group / "memory.swap.max", "0"));
  return limit;
}

MemoryLimit::MemoryLimit(MemoryLimit&& other) noexcept : group_(std::exchange(other.group_, {})) {}

MemoryLimit::~MemoryLimit() {
  if (!group_.empty()) (void)::rmdir(group_.c_str());
}

Result<void> MemoryLimit::join() const {
  return write_file(group_ / "cgroup.procs", "0");
}

std::uint64_t MemoryLimit::peak_bytes() const {
  std::uint64_t bytes = 0;
  std::ifstream(group_ / "memory.peak") >> bytes;
  return bytes;
}

}  // namespace sluice::bench
