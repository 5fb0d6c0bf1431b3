// SPDX-License-Identifier: MIT
// How a criu program was built, read from its file, because `criu --version` does not tell. Functions without
// state.
#pragma once

#include <optional>
#include <string>

namespace sluice::cli {

struct CriuBinary {
  std::string version;  // "4.1.1"; empty: unknown
  // Its default plugin directory (CR_PLUGIN_DEFAULT, criu/include/plugin.h), without a trailing slash.
  // Nothing: unknown, as for a script that runs another criu.
  std::optional<std::string> plugin_directory;
  bool has_libbpf = false;  // so it dumps BPF maps
  // Of plugins with one name it takes the one with the highest implementation version, as some development
  // sources of CRIU do. All releases load every plugin.
  bool chooses_plugins = false;
};
CriuBinary read_criu_binary(const std::string& path);

}  // namespace sluice::cli
