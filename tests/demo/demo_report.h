// SPDX-License-Identifier: MIT
// The demo's figures, and how they are told: as a table and as JSON. Plain values, pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice::demo {

// What the plugin's statistics files of one direction say, all KFD files together.
struct PluginStats {
  std::uint64_t bytes = 0;
  std::uint64_t zero_bytes = 0;
  std::uint64_t io_bytes = 0;       // written, or read
  std::uint64_t parent_bytes = 0;   // not written, because the parent has them
  std::uint64_t replica_bytes = 0;  // not written, because another GPU's file has them
  std::uint64_t disk_bytes = 0;     // that the file system gave out; not from the statistics
  std::uint64_t pinned_bytes = 0;
  double frozen_seconds = 0;  // of a dump: the longest that any file's statistics tell
  double seconds = 0;         // from the first file's begin to the last one's end
  std::string slowest_stage;
  bool found = false;

  // Bytes that reached the disk, per second, in 10^9.
  double gbps() const { return seconds > 0 ? static_cast<double>(bytes - zero_bytes) / seconds / 1e9 : 0; }
};

// Sums `sluice-stats-<direction>-*.json` of a directory: bytes add up.
PluginStats read_plugin_stats(const std::string& directory, const std::string& direction);

struct Report {
  std::uint32_t gpus = 0;
  std::uint32_t processes = 1;
  std::uint64_t bos = 0;
  PluginStats dump, restore;
  std::optional<PluginStats> on_parent;  // the dump that was restored, where that is not `dump`
  std::optional<PluginStats> apart;      // a dump of the same that shares nothing
  double raw_write_gbps = 0;
  double raw_read_gbps = 0;
  std::uint64_t peak_rss_bytes = 0;
  bool verified = false;
};

std::string table_of(const Report& report);
// A full dump beside one on it. REQUIRES: there is one.
std::string parent_table_of(const Report& report);
// A dump that writes each GPU, compared with one that writes once what they have alike. REQUIRES: there are
// both.
std::string replicas_table_of(const Report& report);
std::string json_of(const Report& report);

std::string readable_bytes(std::uint64_t bytes);

}  // namespace sluice::demo
