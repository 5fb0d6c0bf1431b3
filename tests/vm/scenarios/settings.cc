// SPDX-License-Identifier: MIT
#include "settings.h"

#include <sys/utsname.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <stdexcept>

namespace sluice::vm_test {
namespace {

namespace fs = std::filesystem;

fs::path setting(const char* name, const fs::path& otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? fs::path(value) : otherwise;
}

// VERSION_CODENAME of /etc/os-release; a suite under test has no other name for itself.
std::string codename() {
  std::ifstream file("/etc/os-release");
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kKey = "VERSION_CODENAME=";
    if (line.starts_with(kKey)) return line.substr(kKey.size());
  }
  return "unknown";
}

Settings read_settings() {
  Settings read;
  read.programs = setting("SLUICE_VM_PROGRAMS", fs::read_symlink("/proc/self/exe").parent_path());
  read.plugin = setting("SLUICE_VM_PLUGIN", read.programs / "amdgpu_plugin.so");
  read.other_plugin = setting("SLUICE_VM_OTHER", read.programs / "other_plugin.so");
  read.images = setting("SLUICE_VM_IMAGES", "/mnt");
  read.out = setting("SLUICE_VM_OUT", {});
  read.foreign = setting("SLUICE_VM_FOREIGN", {});
  read.suite = setting("SLUICE_VM_SUITE", codename()).string();
  return read;
}

struct CloseStream {
  void operator()(std::FILE* stream) const { (void)::pclose(stream); }
};

CriuVersion ask_version() {
  const std::unique_ptr<std::FILE, CloseStream> stream(::popen("criu --version", "re"));
  CriuVersion version;
  std::array<char, 256> line{};
  if (!stream || std::fgets(line.data(), line.size(), stream.get()) == nullptr ||
      std::sscanf(line.data(), "Version: %d.%d.%d", &version.major, &version.minor, &version.patch) < 2) {
    throw std::runtime_error("criu does not say its version");
  }
  return version;
}

//                                        since      inventory vDSO frozen server network lock
constexpr std::array<CriuTraits, 3> kTraits = {{{{3, 17, 0}, false, false, false, false, false, "nftables"},
                                                {{4, 1, 0}, true, false, true, true, false, "skip"},
                                                {{4, 2, 0}, true, true, true, true, true, "skip"}}};

}  // namespace

const Settings& settings() {
  static const Settings read = read_settings();
  return read;
}

const KernelVersion& kernel_version() {
  static const KernelVersion version = [] {
    utsname names{};
    KernelVersion running;
    if (::uname(&names) != 0 || std::sscanf(names.release, "%u.%u", &running.major, &running.minor) != 2)
      throw std::runtime_error("this kernel does not say its version");
    return running;
  }();
  return version;
}

bool has_systemd() {
  return fs::exists("/run/systemd/system");
}

const CriuVersion& criu_version() {
  static const CriuVersion version = ask_version();
  return version;
}

const CriuTraits& criu_traits() {
  const CriuTraits* best = &kTraits.front();
  for (const CriuTraits& traits : kTraits) {
    if (criu_version() >= traits.since) best = &traits;
  }
  return *best;
}

}  // namespace sluice::vm_test
