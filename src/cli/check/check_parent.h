// SPDX-License-Identifier: MIT
// What a dump with a parent would write and how long it would stop the job, as far as known while the job
// runs. Only a dump makes the sums that decide what is written. The KFD lists the buffers of a process only
// while its queues are stopped. So buffers are recognised by the processes' maps.
//
// Changes nothing. Functions without state; one thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>

#include "cli/check/check.h"
#include "cli/plan/planned_machine.h"
#include "images/files/key.h"
#include "proc/mapped_files.h"

namespace sluice::cli {

// A buffer of a checkpoint: the process, in its own pid namespace, address and size in bytes.
using KnownBuffer = std::tuple<pid_t, std::uint64_t, std::uint64_t>;

// Buffers that a process has mapped, in numbers and bytes.
struct MappedBuffers {
  std::uint64_t known = 0;  // the parent has one of this address and size
  std::uint64_t known_bytes = 0;
  std::uint64_t others = 0;  // the parent does not: new ones, or of render nodes
  std::uint64_t other_bytes = 0;

  void add(const MappedBuffers& more);
};
// `maps`: of the process `inner_pid`, only those of render nodes.
MappedBuffers compare_buffers(std::span<const proc::DeviceMap> maps, pid_t inner_pid,
                              const std::set<KnownBuffer>& known);

struct ParentQuestion {
  std::string path;  // of the parent
  const ProcessCheck& processes;
  const std::optional<kfd::Topology>& topology;
  const std::optional<CriuVersion>& criu;
  const settings::Config& config;
  const ImageKeys& keys;
  const std::optional<cli::Machine>& machine;  // whose rates give the predicted time
};

struct ParentCheck {
  Findings findings;
  std::optional<nlohmann::ordered_json> json;  // nothing: a dump would write everything
};
ParentCheck check_parent(const ParentQuestion& question);

}  // namespace sluice::cli
