// SPDX-License-Identifier: MIT
// What a run tells its operator: one line per GPU for CRIU's log, and sluice-stats-*.json beside the images.
#pragma once

#include <span>
#include <string>

#include "plugin/contents.h"

namespace sluice::plugin {

std::string stats_name(Direction direction, int id);  // sluice-stats-<dump|restore>-<id>.json

// "dump GPU 0x5759: 159 BOs, 1024 MiB (768 MiB zero) in 0.52 s, 2.06 GB/s; slowest stage store, 12.3 of 16
// slots busy".
std::string summary_line(Direction direction, const GpuOutcome& gpu);

// The JSON text. `seconds` is from the hook's start to its join, durable.
std::string stats_json(int id, double seconds, std::span<const GpuOutcome> gpus);

}  // namespace sluice::plugin
