// SPDX-License-Identifier: MIT
// What a run tells its operator: one line per GPU for CRIU's log, and beside the images sluice-stats-*.json
// and, where it is asked for, sluice-trace-*.json, which Perfetto and chrome://tracing open.
#pragma once

#include <span>
#include <string>

#include "plugin/contents/contents.h"

namespace sluice::plugin {

std::string stats_name(Direction direction, int id);  // sluice-stats-<dump|restore>-<id>.json
std::string trace_name(Direction direction, int id);  // sluice-trace-<dump|restore>-<id>.json

// "dump GPU 0x5759: 159 BOs, 1024 MiB (768 MiB zero) in 0.52 s, 2.06 GB/s; slowest stage store, 12.3 of 16
// slots busy".
std::string summary_line(Direction direction, const GpuOutcome& gpu);

// When the GPU memory of one KFD file was on its way, in nanoseconds of CLOCK_MONOTONIC. Between `began` and
// `joined` the host did something else meanwhile.
struct FileTimes {
  std::uint64_t began_ns = 0;   // its first ioctl, or request
  std::uint64_t joined_ns = 0;  // the host came to wait for it
  std::uint64_t ended_ns = 0;   // all of it was durable, or in place

  double seconds() const { return static_cast<double>(ended_ns - began_ns) / 1e9; }
};

// The JSON text.
std::string stats_json(int id, const FileTimes& times, std::span<const GpuOutcome> gpus);

// The trace of one GPU, `number` of its file, as events of a JSON list: for each chunk and stage, in the line
// of its slot, when it was there.
std::string trace_events(Direction direction, std::size_t number, const GpuOutcome& gpu);

}  // namespace sluice::plugin
