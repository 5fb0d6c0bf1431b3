// SPDX-License-Identifier: MIT
// What a run reports: one line per GPU in CRIU's log, and beside the images sluice-stats-*.json and, if
// configured, sluice-trace-*.json for Perfetto and chrome://tracing.
#pragma once

#include <span>
#include <string>

#include "plugin/contents/contents_job.h"
#include "plugin/host/image_store.h"

namespace sluice::plugin {

// sluice-stats-<dump|predump|restore>-<id>.json. `predump`: for a pre-dump's files, which it numbers itself.
std::string stats_name(Direction direction, int id, bool predump = false);
std::string trace_name(Direction direction, int id, bool predump = false);  // sluice-trace-...

// "dump GPU 0x5759: 159 BOs, 1024 MiB (768 MiB zero) in 0.52 s, 2.06 GB/s; slowest stage store, 12.3 of 16
// slots busy".
std::string summary_line(Direction direction, const GpuOutcome& gpu);

// When one KFD file's GPU memory was in transfer, in nanoseconds of CLOCK_MONOTONIC. Between `began` and
// `joined` the host did other work.
struct FileTimes {
  std::uint64_t began_ns = 0;   // its first ioctl or request
  std::uint64_t joined_ns = 0;  // the host began to wait for it
  std::uint64_t ended_ns = 0;   // everything was durable, or in place
  // Dump: how long queues were stopped, for all processes together; 0: none were, or unknown.
  std::uint64_t frozen_ns = 0;
  bool is_predump = false;  // its statistics have their own names

  double seconds() const { return static_cast<double>(ended_ns - began_ns) / 1e9; }
};

// The JSON text.
std::string stats_json(int id, const FileTimes& times, std::span<const GpuOutcome> gpus);

// The trace of one GPU, `number` of its file, as events of a JSON list: the time of each chunk in each stage,
// on its slot's row.
std::string trace_events(Direction direction, std::size_t number, const GpuOutcome& gpu);

// A line for each GPU.
void log_summaries(Direction direction, std::span<const GpuOutcome> gpus);

// Saves sluice-stats-*.json and sluice-trace-*.json beside the images, as configured. Never fails a run:
// errors are logged as a warning.
void write_stats(Direction direction, int id, const FileTimes& times, std::span<const GpuOutcome> gpus,
                 const settings::Config& config, ImageStore& store);

}  // namespace sluice::plugin
