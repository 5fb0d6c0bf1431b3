// SPDX-License-Identifier: MIT
// A described machine, and how long a dump or restore of its GPUs' memory takes there. Rates are measured, in
// bytes per second: copy by the GPU's DMA engines, disks and checksum by `sluice-bench limits`.
//
// Not included: CRIU's own work (freezing, the processes' other memory), and the driver's time to stop queues
// and make BOs. Pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "pipeline/stage.h"

namespace sluice::cli {

// Identical GPUs.
struct GpuGroup {
  std::uint64_t count = 1;
  std::uint64_t bytes = 0;     // dumped bytes of each GPU's memory
  double zero = 0;             // share of them that is zero, in whole blocks: 0 to 1
  double copy_rate = 0;        // per GPU, of its DMA engines
  double link_rate = 0;        // of the link to the host's memory; 0: included in the copy rate
  std::uint64_t per_link = 1;  // GPUs on one such link
  double changed = 1;          // share of the nonzero bytes that a dump writes: those not in its parent
  double alike = 0;  // share of the nonzero bytes that all GPUs of the group have: on the disks once
};

// Identical disks. The images' file system stripes over all disks: their rates add up.
struct DiskGroup {
  std::uint64_t count = 1;
  double write_rate = 0;  // per disk, until durable
  double read_rate = 0;
};

struct Machine {
  std::vector<GpuGroup> gpus;
  std::vector<DiskGroup> disks;
  std::uint64_t cpus = 1;
  double checksum_rate = 0;  // of one CPU

  // Limits, so that arithmetic does not overflow and answers come at once.
  static constexpr std::uint64_t kMostGpus = 256;
  static constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 50;  // of one GPU

  std::uint64_t gpu_count() const;
  std::uint64_t bytes() const;          // of all GPUs
  std::uint64_t nonzero_bytes() const;  // on the disks after a full dump, except metadata
  std::uint64_t changed_bytes() const;  // the same for a dump with a parent
  bool has_parent() const;              // some GPU has less to write
  Machine without_parent() const;       // the same machine, but every GPU has everything to write
};

// The parts that may set the pace, in the order of a dump.
enum class Part : std::uint8_t { Copy, Link, Checksum, Disk };
inline constexpr std::array kParts = {Part::Copy, Part::Link, Part::Checksum, Part::Disk};
const char* name_of(Part part);  // "copy", "link", "checksum", "disks"

struct Forecast {
  double seconds = 0;
  Part slowest = Part::Copy;  // the part that works longest
  // By part: share of the time that the busiest of its kind works, 0 to 1.
  std::array<double, kParts.size()> busy = {};
};

// REQUIRES: at least one GPU with bytes, and a disk; rates above 0 (link_rate: or 0); shares from 0 to 1;
// nothing above the limits. `chunk_bytes`: the engine's. `without`: a part that takes no time, to see what
// the others could do.
Forecast forecast(const Machine& machine, Direction direction, std::uint64_t chunk_bytes,
                  std::optional<Part> without = std::nullopt);

}  // namespace sluice::cli
