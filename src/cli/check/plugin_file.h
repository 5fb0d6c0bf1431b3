// SPDX-License-Identifier: MIT
// What a plugin's file says of itself. It is read, not loaded: nothing of another's runs. Functions without
// state.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::cli {

struct PluginFile {
  std::string sluice_version;  // empty: it is not ours
  bool is_amdgpu = false;      // its descriptor's name is amdgpu_plugin, CRIU's and ours
  // Of two plugins of one name some CRIU take the higher. The last member of a descriptor whose size
  // CR_PLUGIN_DESC_SIZE gives; 1 where the plugin has no such symbol, as ours and those of releases.
  std::uint32_t implementation_version = 1;
};
// A file that cannot be read, or is no plugin, says nothing.
PluginFile read_plugin_file(const std::string& path);

}  // namespace sluice::cli
