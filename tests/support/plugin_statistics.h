// SPDX-License-Identifier: MIT
// The plugin's statistics of a run, and what they show about several KFD files.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include <nlohmann/json.hpp>

namespace sluice::test {

// One per KFD file.
using PluginStatistics = std::vector<nlohmann::json>;

// All `sluice-stats-<direction>-*.json` of a directory, which need not exist. Throws if one is no JSON.
inline PluginStatistics plugin_statistics(const std::filesystem::path& directory,
                                          const std::string& direction) {
  PluginStatistics files;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("sluice-stats-" + direction + "-") || !name.ends_with(".json")) continue;
    files.push_back(nlohmann::json::parse(std::ifstream(entry.path())));
  }
  return files;
}

// Each began before any other's last lane had ended.
inline bool all_at_once(const PluginStatistics& files) {
  std::int64_t last_begin = INT64_MIN, first_end = INT64_MAX;
  for (const nlohmann::json& file : files) {
    std::int64_t end = INT64_MIN;
    for (const nlohmann::json& gpu : file.at("gpus")) {
      last_begin = std::max(last_begin, gpu.at("began_ns").get<std::int64_t>());
      end = std::max(end, gpu.at("ended_ns").get<std::int64_t>());
    }
    first_end = std::min(first_end, end);
  }
  return last_begin < first_end;
}

// Every lane began before the host waited for its file.
inline bool begun_before_joined(const PluginStatistics& files) {
  return std::all_of(files.begin(), files.end(), [](const nlohmann::json& file) {
    const nlohmann::json& gpus = file.at("gpus");
    return std::all_of(gpus.begin(), gpus.end(),
                       [&](const nlohmann::json& gpu) { return gpu.at("began_ns") < file.at("joined_ns"); });
  });
}

}  // namespace sluice::test
