// SPDX-License-Identifier: MIT
#include "hidden_gpus.h"

#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "process.h"

namespace sluice::vm_test {
namespace {

namespace fs = std::filesystem;

const fs::path kController = "/run/vm-scenarios-devices";
constexpr const char* kDrmMajor = "226";

void mount_controller() {
  if (fs::exists(kController)) return;
  fs::create_directories(kController);
  if (::mount("cgroup", kController.c_str(), "cgroup", 0, "devices") != 0)
    throw std::runtime_error(std::string("mount of the devices controller: ") + std::strerror(errno));
}

// Containers do not remove their groups, which deny what was denied when they were made.
void remove_groups_below(const fs::path& group) {
  for (const fs::directory_entry& entry : fs::directory_iterator(group)) {
    if (!entry.is_directory()) continue;
    remove_groups_below(entry.path());
    (void)::rmdir(entry.path().c_str());
  }
}

}  // namespace

void show_gpus(const std::set<unsigned>& all, const std::set<unsigned>& shown) {
  mount_controller();
  remove_groups_below(kController);
  // A node of any number can be made on a machine that has no such card: that is not denied.
  for (const unsigned minor : all) {
    const bool show = shown.contains(minor);
    write_file(kController / (show ? "devices.allow" : "devices.deny"),
               std::string("c ") + kDrmMajor + ":" + std::to_string(minor) + " rw");
  }
}

}  // namespace sluice::vm_test
