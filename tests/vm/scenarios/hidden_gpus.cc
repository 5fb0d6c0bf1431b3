// SPDX-License-Identifier: MIT
#include "hidden_gpus.h"

#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

#include "process.h"

namespace sluice::vm_test {
namespace {

namespace fs = std::filesystem;

const fs::path kController = "/run/vm-scenarios-devices";
const fs::path kGroup = kController / "machine";
constexpr const char* kDrmMajor = "226";

void enter_group() {
  if (!fs::exists(kGroup)) {
    fs::create_directories(kController);
    if (::mount("cgroup", kController.c_str(), "cgroup", 0, "devices") != 0)
      throw std::runtime_error(std::string("mount of the devices controller: ") + std::strerror(errno));
    fs::create_directory(kGroup);
  }
  // A run of this program before this one may have made it.
  write_file(kGroup / "cgroup.procs", "0");
}

}  // namespace

void show_gpus(const std::set<unsigned>& all, const std::set<unsigned>& shown) {
  enter_group();
  // A node of any number can be made on a machine that has no such card: that is not denied.
  for (const unsigned minor : all) {
    const bool show = shown.contains(minor);
    write_file(kGroup / (show ? "devices.allow" : "devices.deny"),
               std::string("c ") + kDrmMajor + ":" + std::to_string(minor) + " rw");
  }
}

void show_all_gpus() {
  if (fs::exists(kGroup)) write_file(kGroup / "devices.allow", "a");
}

fs::path own_device_group() {
  std::ifstream groups("/proc/self/cgroup");
  constexpr std::string_view kName = ":devices:";
  for (std::string line; std::getline(groups, line);) {
    if (const std::size_t at = line.find(kName); at != std::string::npos)
      return line.substr(at + kName.size());
  }
  return "/";
}

}  // namespace sluice::vm_test
