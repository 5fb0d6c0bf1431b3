// SPDX-License-Identifier: MIT
// What SLUICE_TRACE has written, read back. Whoever looks at a trace may have it from somebody else: sizes
// and numbers are bounded, and an error says which event is wrong.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "pipeline/trace.h"

namespace sluice::bench {

struct TracedLane {
  std::string name;  // "dump GPU 0x5759"
  std::vector<TraceEvent> events;
};

struct SavedTrace {
  std::vector<std::string> stages;  // names, as they first occur; TraceEvent::stage is the place here
  std::vector<TracedLane> lanes;    // in the order of the file
};

// Errors: ENOENT and what else opening gives, EFBIG (more than 512 MiB), EINVAL (not one of ours).
Result<SavedTrace> read_trace(const std::filesystem::path& file);

}  // namespace sluice::bench
