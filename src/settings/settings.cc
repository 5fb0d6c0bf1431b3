// SPDX-License-Identifier: MIT
#include "settings/settings.h"

#include <dlfcn.h>

namespace sluice::settings {

namespace {

constexpr const char* kFileBeside = "sluice.conf";

// An address inside the plugin, to find its path.
constexpr char kInThePlugin = 0;

}  // namespace

std::vector<std::string> settings_files() {
  std::vector<std::string> files;
  Dl_info info{};
  if (::dladdr(&kInThePlugin, &info) != 0 && info.dli_fname != nullptr) {
    const std::string path = info.dli_fname;
    if (const std::size_t slash = path.rfind('/'); slash != std::string::npos)
      files.push_back(path.substr(0, slash + 1) + kFileBeside);
  }
  if (files.empty() || files.front() != kConfigFile) files.emplace_back(kConfigFile);
  return files;
}

Lookup plugin_settings(LogLines& lines) {
  return environment_and_files(settings_files(), lines);
}

}  // namespace sluice::settings
