// SPDX-License-Identifier: MIT
#include "support/process_state.h"

#include <dirent.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>

namespace sluice::test {
namespace {

std::vector<std::string> list(const char* path) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(path), ::closedir);
  while (const dirent* entry = directory ? ::readdir(directory.get()) : nullptr) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  return names;
}

template <class Condition>
bool comes_true(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    (void)::sched_yield();
  }
  return true;
}

}  // namespace

std::size_t open_fds() {
  return list("/proc/self/fd").size() - 1;
}

std::vector<std::string> thread_names() {
  std::vector<std::string> names;
  for (const std::string& tid : list("/proc/self/task")) {
    std::ifstream comm("/proc/self/task/" + tid + "/comm");
    std::string name;
    if (std::getline(comm, name)) names.push_back(name);  // else it has ended
  }
  return names;
}

std::size_t own_threads() {
  const std::vector<std::string> names = thread_names();
  return static_cast<std::size_t>(std::count_if(
      names.begin(), names.end(), [](const std::string& name) { return name.rfind("iou-", 0) != 0; }));
}

bool threads_come_down_to(std::size_t count) {
  return comes_true([count] { return thread_names().size() <= count; });
}

bool own_threads_come_down_to(std::size_t count) {
  return comes_true([count] { return own_threads() <= count; });
}

}  // namespace sluice::test
