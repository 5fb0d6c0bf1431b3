// SPDX-License-Identifier: MIT
#include "plugin/contents/stats.h"

#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>

#include "base/format.h"
#include "base/units.h"
#include "plugin/host/criu_host.h"

namespace sluice::plugin {

namespace {

[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, pattern);
  // NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): a false alarm
  (void)std::vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

const char* word(Direction direction) {
  return direction == Direction::Dump ? "dump" : "restore";
}

double per_second(std::uint64_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0;
}

std::string gpu_json(const GpuOutcome& gpu) {
  return format("{\"gpu_id\": %" PRIu32 ", \"bos\": %" PRIu64 ", \"bytes\": %" PRIu64
                ", \"zero_bytes\": %" PRIu64 ", \"io_bytes\": %" PRIu64 ", \"parent_bytes\": %" PRIu64
                ", \"replica_bytes\": %" PRIu64 ", \"skipped_bytes\": %" PRIu64 ", \"pinned_bytes\": %" PRIu64
                ", \"began_ns\": %" PRIu64 ", \"ended_ns\": %" PRIu64
                ", \"seconds\": %.6f, \"direct_io\": %s, \"verified\": %s, \"slowest_stage\": \"%s\"}",
                gpu.gpu_id, gpu.bos, gpu.bytes, gpu.zero_bytes, gpu.io_bytes, gpu.parent_bytes,
                gpu.replica_bytes, gpu.skipped_bytes, gpu.pinned_bytes, gpu.began_ns, gpu.ended_ns,
                gpu.seconds(), gpu.direct_io ? "true" : "false", gpu.verified ? "true" : "false",
                gpu.stats.slowest().name);
}

std::string file_name(const char* kind, Direction direction, int id, bool predump) {
  return format("sluice-%s-%s%s-%d.json", kind, predump ? "pre" : "", word(direction), id);
}

}  // namespace

std::string stats_name(Direction direction, int id, bool predump) {
  return file_name("stats", direction, id, predump);
}

std::string trace_name(Direction direction, int id, bool predump) {
  return file_name("trace", direction, id, predump);
}

std::string summary_line(Direction direction, const GpuOutcome& gpu) {
  const PipelineStats::StageStats& slowest = gpu.stats.slowest();
  std::uint64_t slot_ns = 0;
  for (const PipelineStats::StageStats& stage : gpu.stats.stage) slot_ns += stage.slot_ns;
  const double slots =
      gpu.stats.elapsed_ns > 0 ? static_cast<double>(slot_ns) / static_cast<double>(gpu.stats.elapsed_ns) : 0;
  return format("%s GPU 0x%04" PRIx32 ": %" PRIu64 " BOs, %" PRIu64 " MiB (%" PRIu64
                " MiB zero) in %.2f s, %.2f GB/s%s%s; "
                "slowest stage %s, %.1f slots busy on average",
                word(direction), gpu.gpu_id, gpu.bos, gpu.bytes / kMiB, gpu.zero_bytes / kMiB, gpu.seconds(),
                per_second(gpu.io_bytes, gpu.seconds()), gpu.direct_io ? ", direct I/O" : ", buffered I/O",
                gpu.verified ? ", verified" : "", slowest.name, slots);
}

std::string stats_json(int id, const FileTimes& times, std::span<const GpuOutcome> gpus) {
  std::uint64_t bytes = 0;
  std::uint64_t zero_bytes = 0;
  std::uint64_t io_bytes = 0;
  std::uint64_t parent_bytes = 0;
  std::uint64_t replica_bytes = 0;
  std::uint64_t skipped_bytes = 0;
  std::uint64_t pinned_bytes = 0;
  std::string list;
  for (const GpuOutcome& gpu : gpus) {
    bytes += gpu.bytes;
    zero_bytes += gpu.zero_bytes;
    io_bytes += gpu.io_bytes;
    parent_bytes += gpu.parent_bytes;
    replica_bytes += gpu.replica_bytes;
    skipped_bytes += gpu.skipped_bytes;
    pinned_bytes += gpu.pinned_bytes;
    list += (list.empty() ? "\n    " : ",\n    ") + gpu_json(gpu);
  }
  return format("{\n  \"id\": %d,\n  \"began_ns\": %" PRIu64 ",\n  \"joined_ns\": %" PRIu64
                ",\n  \"ended_ns\": %" PRIu64
                ",\n  \"seconds\": %.6f,\n  \"frozen_seconds\": %.6f,\n  \"bytes\": %" PRIu64
                ",\n  \"zero_bytes\": %" PRIu64 ",\n  \"io_bytes\": %" PRIu64
                ",\n  \"parent_bytes\": %" PRIu64 ",\n  \"replica_bytes\": %" PRIu64
                ",\n  \"skipped_bytes\": %" PRIu64 ",\n  \"pinned_bytes\": %" PRIu64 ",\n  \"gpus\": [",
                id, times.began_ns, times.joined_ns, times.ended_ns, times.seconds(),
                static_cast<double>(times.frozen_ns) / 1e9, bytes, zero_bytes, io_bytes, parent_bytes,
                replica_bytes, skipped_bytes, pinned_bytes) +
         list + "\n  ]\n}\n";
}

std::string trace_events(Direction direction, std::size_t number, const GpuOutcome& gpu) {
  std::string text = format(
      "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%zu,\"args\":{\"name\":\"%s GPU 0x%04" PRIx32 "\"}}",
      number, word(direction), gpu.gpu_id);
  std::uint32_t slots = 0;
  for (const TraceEvent& event : gpu.trace.events()) slots = std::max(slots, event.slot + 1);
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    text += format(",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%zu,\"tid\":%" PRIu32
                   ",\"args\":{\"name\":\"slot %" PRIu32 "\"}}",
                   number, slot, slot);
  }
  for (const TraceEvent& event : gpu.trace.events()) {
    text += format(",\n{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%zu,\"tid\":%" PRIu32
                   ",\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"chunk\":%" PRIu64 "}}",
                   gpu.stats.stage[event.stage].name, number, event.slot,
                   static_cast<double>(event.began_ns) / 1e3,
                   static_cast<double>(event.ended_ns - event.began_ns) / 1e3, event.chunk);
  }
  return text;
}

void log_summaries(Direction direction, std::span<const GpuOutcome> gpus) {
  for (const GpuOutcome& gpu : gpus) log_line(Level::Info, summary_line(direction, gpu));
}

void write_stats(Direction direction, int id, const FileTimes& times, std::span<const GpuOutcome> gpus,
                 const settings::Config& config, ImageStore& store) {
  const auto write = [&store](const std::string& name, const std::string& text) {
    const auto written = store.save_statistics(name, text);
    if (!written)
      log_line(Level::Warning,
               formatted("the statistics could not be written: {}; the checkpoint is whole [SL-C16]",
                         written.error().what));
  };
  const bool predump = times.is_predump;
  if (config.stats) write(stats_name(direction, id, predump), stats_json(id, times, gpus));
  if (!config.trace) return;
  std::string trace;
  for (std::size_t number = 0; number < gpus.size(); ++number)
    trace += (number == 0 ? "" : ",\n") + trace_events(direction, number, gpus[number]);
  write(trace_name(direction, id, predump), "[\n" + trace + "\n]\n");
}

}  // namespace sluice::plugin
