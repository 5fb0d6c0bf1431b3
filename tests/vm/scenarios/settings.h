// SPDX-License-Identifier: MIT
// Where things lie in the guest, told by the environment, and what differs between the versions of CRIU.
//
//   SLUICE_VM_PROGRAMS  directory of gpu-subject and sluice (this program's own)
//   SLUICE_VM_PLUGIN    the amdgpu_plugin.so under test (next to the programs)
//   SLUICE_VM_OTHER     a plugin that stands in for another vendor's (next to the programs)
//   SLUICE_VM_IMAGES    a directory on the disk that images go to (/mnt)
//   SLUICE_VM_OUT       where logs of failed scenarios are kept (none: they are only printed)
//   SLUICE_VM_FOREIGN   images that other suites made, one directory for each suite (none)
//   SLUICE_VM_SUITE     name of the suite (from /etc/os-release)
//
// Read once, before the first scenario. Immutable afterwards; any thread.
#pragma once

#include <filesystem>
#include <string>

namespace sluice::vm_test {

struct Settings {
  std::filesystem::path programs;
  std::filesystem::path plugin;
  std::filesystem::path other_plugin;
  std::filesystem::path images;
  std::filesystem::path out;
  std::filesystem::path foreign;
  std::string suite;
};
const Settings& settings();

// A version of Linux: 6.12 is {6, 12}.
struct KernelVersion {
  unsigned major = 0, minor = 0;
  auto operator<=>(const KernelVersion&) const = default;
};
const KernelVersion& kernel_version();  // the running one's

// Whether systemd is pid 1, so that it makes the cgroups of containers.
bool has_systemd();

// A version of criu: 3.17.1 is {3, 17, 1}.
struct CriuVersion {
  int major = 0, minor = 0, patch = 0;
  auto operator<=>(const CriuVersion&) const = default;
};

// What a version does in its own way. The table is in settings.cc; a version that it lacks is taken for the
// nearest older one.
struct CriuTraits {
  CriuVersion since;
  bool inventory_of_plugins;  // images name the plugins they need
  bool new_vdso_layout;       // moves a process from a kernel whose vDSO has more data pages than it knew
  bool takes_map_fds;         // takes the descriptor that UPDATE_VMA_MAP gives, instead of a dup of it
  bool begins_when_frozen;    // has CHECKPOINT_DEVICES: contents flow from the moment all tasks are frozen
  bool has_content_server;    // has POST_FORKING: contents flow while tasks restore their own memory
  const char* network_lock;   // option for a dump of a network namespace without iptables
};

// Asks `criu --version`, once.
const CriuVersion& criu_version();
const CriuTraits& criu_traits();

}  // namespace sluice::vm_test
