// SPDX-License-Identifier: MIT
#include "demo_report.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>

#include "base/units.h"
#include "support/plugin_statistics.h"

namespace sluice::demo {
namespace {

template <class... Arguments>
std::string text(const char* format, Arguments... arguments) {
  std::array<char, 512> buffer{};
  std::snprintf(buffer.data(), buffer.size(), format, arguments...);
  return buffer.data();
}

}  // namespace

PluginStats read_plugin_stats(const std::string& directory, const std::string& direction) {
  PluginStats sum;
  std::uint64_t began_ns = UINT64_MAX, ended_ns = 0;
  for (const nlohmann::json& file : test::plugin_statistics(directory, direction)) {
    const auto total = [&](const char* key) { return file.value(key, std::uint64_t{0}); };
    sum.found = true;
    sum.bytes += total("bytes");
    sum.zero_bytes += total("zero_bytes");
    sum.io_bytes += total("io_bytes");
    sum.parent_bytes += total("parent_bytes");
    sum.replica_bytes += total("replica_bytes");
    sum.pinned_bytes += total("pinned_bytes");
    sum.frozen_seconds = std::max(sum.frozen_seconds, file.value("frozen_seconds", 0.0));
    began_ns = std::min(began_ns, total("began_ns"));
    ended_ns = std::max(ended_ns, total("ended_ns"));
    const auto gpus = file.value("gpus", nlohmann::json::array());
    if (!gpus.empty()) sum.slowest_stage = gpus.front().value("slowest_stage", "");
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
  out += "             GPU memory         holes   seconds      GB/s  raw disk   of raw   slowest stage\n";
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

std::string parent_table_of(const Report& report) {
  const auto line = [](const char* name, const PluginStats& stats) {
    return text("  %-13s %12s %12s %12s %12s %10.3f s\n", name, readable_bytes(stats.bytes).c_str(),
                readable_bytes(stats.zero_bytes).c_str(), readable_bytes(stats.parent_bytes).c_str(),
                readable_bytes(stats.io_bytes).c_str(), stats.frozen_seconds);
  };
  std::string out = "                  GPU memory        holes   in the parent      written   queues stood\n";
  out += line("full dump", report.dump);
  out += line("on the parent", *report.on_parent);
  const double factor = report.on_parent->frozen_seconds > 0
                            ? report.dump.frozen_seconds / report.on_parent->frozen_seconds
                            : 0;
  out += text("  processes %" PRIu32 ", GPUs %" PRIu32 ", BOs %" PRIu64
              "; the queues were paused %.1f times as long for the full dump\n",
              report.processes, report.gpus, report.bos, factor);
  out += text("  verified, from both checkpoints of the chain: %s\n", report.verified ? "true" : "false");
  return out;
}

std::string replicas_table_of(const Report& report) {
  const auto line = [](const char* name, const PluginStats& stats) {
    return text("  %-9s %12s %12s %12s %12s %12s %9.2f\n", name, readable_bytes(stats.bytes).c_str(),
                readable_bytes(stats.zero_bytes).c_str(), readable_bytes(stats.replica_bytes).c_str(),
                readable_bytes(stats.io_bytes).c_str(), readable_bytes(stats.disk_bytes).c_str(),
                stats.seconds);
  };
  std::string out =
      "              GPU memory        holes       shared      written  on the disk   seconds\n";
  out += line("each GPU", *report.apart);
  out += line("once", report.dump);
  out += text("  processes %" PRIu32 ", GPUs %" PRIu32 ", BOs %" PRIu64
              "; verified: %s\n  on the disk: as df tells, with what others wrote meanwhile\n",
              report.processes, report.gpus, report.bos, report.verified ? "true" : "false");
  return out;
}

std::string json_of(const Report& report) {
  if (report.apart) {
    return text("{\"processes\": %" PRIu32 ", \"gpus\": %" PRIu32 ", \"bos\": %" PRIu64
                ", \"bytes\": %" PRIu64 ", \"zero_bytes\": %" PRIu64 ", \"replica_bytes\": %" PRIu64
                ", \"disk_bytes\": %" PRIu64 ", \"disk_bytes_apart\": %" PRIu64
                ", \"seconds\": %.6f, \"seconds_apart\": %.6f, \"verified\": %s}\n",
                report.processes, report.gpus, report.bos, report.dump.bytes, report.dump.zero_bytes,
                report.dump.replica_bytes, report.dump.disk_bytes, report.apart->disk_bytes,
                report.dump.seconds, report.apart->seconds, report.verified ? "true" : "false");
  }
  if (report.on_parent) {
    return text(
        "{\"processes\": %" PRIu32 ", \"gpus\": %" PRIu32 ", \"bos\": %" PRIu64 ", \"bytes\": %" PRIu64
        ", \"zero_bytes\": %" PRIu64 ", \"written_bytes\": %" PRIu64
        ", \"frozen_seconds\": %.6f, \"parent_bytes\": %" PRIu64 ", \"written_bytes_on_parent\": %" PRIu64
        ", \"frozen_seconds_on_parent\": %.6f, \"verified\": %s}\n",
        report.processes, report.gpus, report.bos, report.dump.bytes, report.dump.zero_bytes,
        report.dump.io_bytes, report.dump.frozen_seconds, report.on_parent->parent_bytes,
        report.on_parent->io_bytes, report.on_parent->frozen_seconds, report.verified ? "true" : "false");
  }
  return text(
      "{\"processes\": %" PRIu32 ", \"gpus\": %" PRIu32 ", \"bos\": %" PRIu64 ", \"bytes\": %" PRIu64
      ", \"zero_bytes\": %" PRIu64
      ", \"dump_gbps\": %.4f, \"restore_gbps\": %.4f, \"raw_write_gbps\": %.4f, \"raw_read_gbps\": %.4f, "
      "\"peak_rss_bytes\": %" PRIu64 ", \"pinned_bytes\": %" PRIu64 ", \"verified\": %s}\n",
      report.processes, report.gpus, report.bos, report.dump.bytes, report.dump.zero_bytes,
      report.dump.gbps(), report.restore.gbps(), report.raw_write_gbps, report.raw_read_gbps,
      report.peak_rss_bytes, report.dump.pinned_bytes, report.verified ? "true" : "false");
}

}  // namespace sluice::demo
