// SPDX-License-Identifier: MIT
#include "demo_report.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "harness.h"
#include "pipeline/units.h"

namespace sluice::host_test {
namespace {

template <class... Arguments>
std::string text(const char* format, Arguments... arguments) {
  std::array<char, 512> buffer{};
  std::snprintf(buffer.data(), buffer.size(), format, arguments...);
  return buffer.data();
}

// The text after `"key":` at its first place, which is the outer object's: the files put the totals first.
std::string_view value_of(std::string_view json, const std::string& key) {
  const std::size_t at = json.find("\"" + key + "\"");
  if (at == std::string_view::npos) return {};
  const std::size_t colon = json.find(':', at);
  const std::size_t start =
      colon == std::string_view::npos ? colon : json.find_first_not_of(" \t\n\"", colon + 1);
  return start == std::string_view::npos ? std::string_view() : json.substr(start);
}

std::uint64_t number_of(std::string_view json, const std::string& key) {
  return std::strtoull(std::string(value_of(json, key).substr(0, 32)).c_str(), nullptr, 10);
}

}  // namespace

PluginStats read_plugin_stats(const std::string& directory, const std::string& direction) {
  PluginStats sum;
  const std::string prefix = "sluice-stats-" + direction + "-";
  std::uint64_t began_ns = UINT64_MAX, ended_ns = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix) || !name.ends_with(".json")) continue;
    const std::string json = read_file(entry.path());
    sum.found = true;
    sum.bytes += number_of(json, "bytes");
    sum.zero_bytes += number_of(json, "zero_bytes");
    sum.pinned_bytes += number_of(json, "pinned_bytes");
    began_ns = std::min(began_ns, number_of(json, "began_ns"));
    ended_ns = std::max(ended_ns, number_of(json, "ended_ns"));
    const std::string_view stage = value_of(json, "slowest_stage");
    sum.slowest_stage = stage.substr(0, stage.find('"'));
  }
  if (sum.found) sum.seconds = static_cast<double>(ended_ns - began_ns) / 1e9;
  return sum;
}

std::string readable_bytes(std::uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes >= kGiB) return text("%.2f GiB", value / static_cast<double>(kGiB));
  if (bytes >= kMiB) return text("%.1f MiB", value / static_cast<double>(kMiB));
  return text("%" PRIu64 " bytes", bytes);
}

std::string table_of(const Report& report) {
  const auto share = [](double rate, double ceiling) { return ceiling > 0 ? 100 * rate / ceiling : 0; };
  const auto line = [&](const char* name, const PluginStats& stats, double ceiling) {
    return text("  %-8s %12s %12s %9.2f %9.2f %9.2f %7.0f %%   %s\n", name,
                readable_bytes(stats.bytes).c_str(), readable_bytes(stats.zero_bytes).c_str(), stats.seconds,
                stats.gbps(), ceiling, share(stats.gbps(), ceiling), stats.slowest_stage.c_str());
  };
  std::string out;
  out += "             GPU memory    of it zero   seconds      GB/s  raw disk   of raw   slowest stage\n";
  out += line("dump", report.dump, report.raw_write_gbps);
  out += line("restore", report.restore, report.raw_read_gbps);
  out += text("  processes %" PRIu32 ", GPUs %" PRIu32 ", BOs %" PRIu64
              "; GB/s are 10^9 bytes that reached or left the disk, durable\n",
              report.processes, report.gpus, report.bos);
  out +=
      text("  peak resident memory of the dumping process %s, pinned memory %s\n",
           readable_bytes(report.peak_rss_bytes).c_str(), readable_bytes(report.dump.pinned_bytes).c_str());
  out += text("  verified: %s\n", report.verified ? "true" : "false");
  return out;
}

std::string json_of(const Report& report) {
  return text(
      "{\"processes\": %" PRIu32 ", \"gpus\": %" PRIu32 ", \"bos\": %" PRIu64 ", \"bytes\": %" PRIu64
      ", \"zero_bytes\": %" PRIu64
      ", \"dump_gbps\": %.4f, \"restore_gbps\": %.4f, \"raw_write_gbps\": %.4f, \"raw_read_gbps\": %.4f, "
      "\"peak_rss_bytes\": %" PRIu64 ", \"pinned_bytes\": %" PRIu64 ", \"verified\": %s}\n",
      report.processes, report.gpus, report.bos, report.dump.bytes, report.dump.zero_bytes,
      report.dump.gbps(), report.restore.gbps(), report.raw_write_gbps, report.raw_read_gbps,
      report.peak_rss_bytes, report.dump.pinned_bytes, report.verified ? "true" : "false");
}

}  // namespace sluice::host_test
