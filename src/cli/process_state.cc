// SPDX-License-Identifier: MIT
#include "cli/process_state.h"

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string_view>
#include <vector>

#include "proc/directory.h"
#include "proc/task_status.h"

namespace sluice::cli {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The directory's path below its hierarchy's root ("/a/b"), then its parents', ending with the root's ("").
std::vector<std::string> with_parents(std::string path) {
  std::vector<std::string> paths;
  if (path == "/") path.clear();
  for (;;) {
    paths.push_back(path);
    if (path.empty()) return paths;
    path.erase(path.rfind('/'));
  }
}

// Version 2: cgroup.freeze of the cgroup or of any ancestor.
std::optional<FrozenCgroup> frozen_v2(const std::string& path, const std::string& cgroups) {
  // If version 1 is in use as well, version 2 is mounted beside its controllers.
  for (const std::string& root : {cgroups, cgroups + "/unified"}) {
    for (const std::string& directory : with_parents(path)) {
      const std::string file = root + directory + "/cgroup.freeze";
      if (first_line(file) == "1") return FrozenCgroup{file, "0"};
    }
  }
  return std::nullopt;
}

// Version 1: freezer.state tells whether it is frozen, self_freezing which cgroup was told to be.
std::optional<FrozenCgroup> frozen_v1(const std::string& path, const std::string& cgroups) {
  const std::string root = cgroups + "/freezer";
  for (const std::string& directory : with_parents(path)) {
    const std::string place = root + directory;
    if (first_line(place + "/freezer.self_freezing") == "1") {
      return FrozenCgroup{place + "/freezer.state", "THAWED"};
    }
  }
  return std::nullopt;
}

// Lines are "0::/path" for version 2 and "4:freezer:/path" for version 1.
std::optional<FrozenCgroup> frozen_cgroup(const std::string& process, const std::string& cgroups) {
  std::ifstream file(process + "/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || line.substr(second + 1, 1) != "/") continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    std::optional<FrozenCgroup> frozen;
    if (controllers.empty()) frozen = frozen_v2(path, cgroups);
    if (controllers == "freezer") frozen = frozen_v1(path, cgroups);
    if (frozen) return frozen;
  }
  return std::nullopt;
}

// The program counter of a task in user space while it waits in a system call; 0 if it is not waiting. The
// file has "NUMBER ARGUMENTS... SP PC", or "running".
std::uint64_t program_counter(const std::string& task) {
  const std::string line = first_line(task + "/syscall");
  const std::size_t space = line.rfind(' ');
  std::uint64_t address = 0;
  if (space == std::string::npos || std::sscanf(line.c_str() + space, "%" SCNx64, &address) != 1) return 0;
  return address;
}

Parasite parasite_in(const std::string& process) {
  constexpr std::string_view kMemoryName = "/memfd:CRIUMFD";
  const std::uint64_t counter = program_counter(process);
  Parasite parasite = Parasite::None;
  std::ifstream maps(process + "/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(kMemoryName) == std::string::npos) continue;
    std::uint64_t start = 0;
    std::uint64_t end = 0;
    (void)std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64, &start, &end);
    if (start <= counter && counter < end) return Parasite::Running;
    parasite = Parasite::Mapped;
  }
  return parasite;
}

}  // namespace

ProcessState read_process_state(pid_t pid, const std::string& proc, const std::string& cgroups) {
  const std::string process = proc + "/" + std::to_string(pid);
  ProcessState state;
  if (const auto threads = proc::numbered_entries(process + "/task")) {
    for (const int thread : *threads) {
      const auto status = proc::read_task_status(process + "/task/" + std::to_string(thread));
      if (!status) continue;
      state.threads++;
      if (status->state == 'T') state.stopped++;
    }
  }
  state.frozen = frozen_cgroup(process, cgroups);
  state.parasite = parasite_in(process);
  return state;
}

}  // namespace sluice::cli
