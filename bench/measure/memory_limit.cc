// SPDX-License-Identifier: MIT
#include "measure/memory_limit.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "base/unique_fd.h"
#include "measure/process.h"

namespace sluice::bench {
namespace {

namespace fs = std::filesystem;

Result<void> write_file(const fs::path& file, const std::string& text) {
  const UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd || ::write(fd.get(), text.data(), text.size()) < 0) return make_error(errno, file);
  return {};
}

// Whether `word` is in a list separated by commas.
bool is_among(const std::string& word, const std::string& list) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

// Where control groups of that kind ("cgroup2", "cgroup") are mounted with that option (v1: a controller);
// empty: nowhere.
fs::path mount_point(const std::string& kind, const std::string& option) {
  std::ifstream mounts("/proc/self/mounts");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string device, directory, type, options;
    if (words >> device >> directory >> type >> options && type == kind && is_among(option, options))
      return directory;
  }
  return {};
}

// This process' group, as a path below the mount point: for v1 that of a controller, for v2 that of "".
fs::path own_group(const std::string& controller) {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    std::istringstream fields(line);
    std::string id, controllers, path;
    if (std::getline(fields, id, ':') && std::getline(fields, controllers, ':') &&
        std::getline(fields, path) && is_among(controller, controllers))
      return fs::path(path).relative_path();
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

// The group in which a limited group can be made; empty: none.
fs::path parent_of_v2() {
  const fs::path top = mount_point("cgroup2", "rw");
  if (top.empty()) return {};
  fs::path parent = top / own_group("");
  while (!shares_out_memory(parent)) {
    if (parent == top || !parent.has_relative_path()) return {};
    parent = parent.parent_path();
  }
  return parent;
}

fs::path parent_of_v1() {
  const fs::path top = mount_point("cgroup", "memory");
  return top.empty() ? fs::path() : top / own_group("memory");
}

}  // namespace

Result<MemoryLimit> MemoryLimit::make(std::uint64_t bytes) {
  const std::string limit = std::to_string(bytes);
  if (const fs::path parent = parent_of_v2(); !parent.empty())
    return make(parent, {"memory.max", limit}, {"memory.swap.max", "0"}, "memory.peak");
  if (const fs::path parent = parent_of_v1(); !parent.empty()) {
    return make(parent, {"memory.limit_in_bytes", limit}, {"memory.memsw.limit_in_bytes", limit},
                "memory.max_usage_in_bytes");
  }
  return make_error(ENOTSUP, "no group above this process shares out memory, by cgroup v2 or v1");
}

Result<MemoryLimit> MemoryLimit::make(const fs::path& parent, const Setting& memory, const Setting& swap,
                                      const char* peak) {
  const fs::path group = parent / ("sluice-bench-" + std::to_string(::getpid()));
  if (::mkdir(group.c_str(), 0755) != 0) return make_error(errno, group);
  MemoryLimit limit(group, group / peak);
  SLUICE_TRY(write_file(group / memory.file, memory.value));
  // Without swap accounting, a limit only works on a machine without swap.
  Result<void> bounded = write_file(group / swap.file, swap.value);
  if (!bounded && memory_line("SwapTotal") > 0) return std::move(bounded).error();
  return limit;
}

MemoryLimit::MemoryLimit(MemoryLimit&& other) noexcept
    : group_(std::exchange(other.group_, {})), peak_(std::move(other.peak_)) {}

MemoryLimit::~MemoryLimit() {
  if (!group_.empty()) (void)::rmdir(group_.c_str());
}

Result<void> MemoryLimit::join() const {
  return write_file(group_ / "cgroup.procs", "0");
}

std::uint64_t MemoryLimit::peak_bytes() const {
  std::uint64_t bytes = 0;
  std::ifstream(peak_) >> bytes;
  return bytes;
}

}  // namespace sluice::bench
