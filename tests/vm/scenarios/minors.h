// SPDX-License-Identifier: MIT
// Render minors of the GPUs that this machine shows, ascending. Those of emulated cards have gaps: an MI300X
// has eight, one for each partition that it could have.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace sluice::vm_test {

inline std::vector<unsigned> render_minors() {
  std::vector<unsigned> minors;
  std::error_code none;
  for (const auto& node : std::filesystem::directory_iterator("/sys/class/kfd/kfd/topology/nodes", none)) {
    std::ifstream lines(node.path() / "properties");
    std::string key;
    for (unsigned long long value = 0; lines >> key >> value;) {
      if (key == "drm_render_minor" && value != 0) minors.push_back(static_cast<unsigned>(value));
    }
  }
  std::sort(minors.begin(), minors.end());
  return minors;
}

// The first `number`. REQUIRES: there are so many.
inline std::vector<unsigned> render_minors(std::size_t number) {
  std::vector<unsigned> minors = render_minors();
  minors.resize(number);
  return minors;
}

// What a device cgroup says of the GPU with this number.
inline std::string device_rule(std::size_t gpu) {
  return "c 226:" + std::to_string(render_minors().at(gpu)) + " rwm";
}

}  // namespace sluice::vm_test
