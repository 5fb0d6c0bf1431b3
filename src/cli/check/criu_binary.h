// SPDX-License-Identifier: MIT
// What a criu program was built with, read from its file: `criu --version` does not tell. Functions without
// state.
#pragma once

#include <optional>
#include <string>

namespace sluice::cli {

struct CriuBinary {
  std::string version;  // "4.1.1"; empty: not known
  // Where it looks for plugins when nobody says otherwise (CR_PLUGIN_DEFAULT, criu/include/plugin.h), without
  // a slash at the end. Nothing: not known, as of a script that runs another criu.
  std::optional<std::string> plugin_directory;
  bool has_libbpf = false;  // and so dumps BPF maps
};
CriuBinary read_criu_binary(const std::string& path);

}  // namespace sluice::cli
