// SPDX-License-Identifier: MIT
#include "cli/plan/planned_machine.h"

#include <algorithm>

#include "cli/plan/flow_times.h"
#include "pipeline/slot_workers.h"

namespace sluice::cli {
namespace {

// Servers, each with its part of the machine.
class Servers {
 public:
  explicit Servers(std::optional<Part> without) : without_(without) {}

  std::size_t add(Part part, double rate) {
    parts_.push_back(part);
    rates_.push_back(rate);
    return rates_.size() - 1;
  }
  // Adds a server to the flow's way, unless its part is left out.
  void visit(Flow& flow, std::size_t server, double portion) const {
    if (parts_[server] != without_) flow.route.push_back({server, portion});
  }

  std::span<const double> rates() const { return rates_; }
  Part part(std::size_t server) const { return parts_[server]; }

 private:
  std::optional<Part> without_;
  std::vector<Part> parts_;
  std::vector<double> rates_;
};

}  // namespace

std::uint64_t Machine::gpu_count() const {
  std::uint64_t count = 0;
  for (const GpuGroup& group : gpus) count += group.count;
  return count;
}

std::uint64_t Machine::bytes() const {
  std::uint64_t sum = 0;
  for (const GpuGroup& group : gpus) sum += group.count * group.bytes;
  return sum;
}

std::uint64_t Machine::nonzero_bytes() const {
  return without_parent().changed_bytes();
}

std::uint64_t Machine::changed_bytes() const {
  std::uint64_t sum = 0;
  for (const GpuGroup& group : gpus) {
    const double of_one = static_cast<double>(group.bytes) * (1 - group.zero) * group.changed;
    const double others = static_cast<double>(group.count - 1) * (1 - group.alike);
    sum += static_cast<std::uint64_t>(of_one) + static_cast<std::uint64_t>(of_one * others);
  }
  return sum;
}

bool Machine::has_parent() const {
  return std::any_of(gpus.begin(), gpus.end(), [](const GpuGroup& group) { return group.changed < 1; });
}

Machine Machine::without_parent() const {
  Machine full = *this;
  for (GpuGroup& group : full.gpus) group.changed = 1;
  return full;
}

const char* name_of(Part part) {
  switch (part) {
    case Part::Copy:
      return "copy";
    case Part::Link:
      return "link";
    case Part::Checksum:
      return "checksum";
    case Part::Disk:
      break;
  }
  return "disks";
}

Forecast forecast(const Machine& machine, Direction direction, std::uint64_t chunk_bytes,
                  std::optional<Part> without) {
  const bool dump = direction == Direction::Dump;
  Servers servers(without);
  double disk_rate = 0;
  for (const DiskGroup& group : machine.disks)
    disk_rate += static_cast<double>(group.count) * (dump ? group.write_rate : group.read_rate);
  const std::size_t disks = servers.add(Part::Disk, disk_rate);
  const std::size_t cpus =
      servers.add(Part::Checksum, static_cast<double>(machine.cpus) * machine.checksum_rate);
  // A lane's thread hashes if it has no workers.
  const unsigned hashing = std::max(1U, workers_of_lane(machine.cpus, machine.gpu_count()));
  const bool lanes_share_cpus = machine.cpus < machine.gpu_count() * hashing;

  std::vector<Flow> flows;
  for (const GpuGroup& group : machine.gpus) {
    // All bytes are searched for zeros. Zeros are not written, read or hashed again, but filled in.
    const double nonzero = 1 - group.zero;
    std::size_t link = 0;
    for (std::uint64_t i = 0; i < group.count; ++i) {
      Flow flow{static_cast<double>(group.bytes), static_cast<double>(chunk_bytes), {}};
      servers.visit(flow, servers.add(Part::Copy, group.copy_rate), 1);
      if (group.link_rate > 0) {
        if (i % group.per_link == 0) link = servers.add(Part::Link, group.link_rate);
        servers.visit(flow, link, dump ? 1 : nonzero);
      }
      servers.visit(flow, servers.add(Part::Checksum, hashing * machine.checksum_rate), dump ? 1 : nonzero);
      if (lanes_share_cpus) servers.visit(flow, cpus, dump ? 1 : nonzero);
      const double own = i == 0 ? 1 : 1 - group.alike;
      servers.visit(flow, disks, (dump ? nonzero * group.changed : nonzero) * own);
      flows.push_back(std::move(flow));
    }
  }

  const FlowTimes times = flow_times(servers.rates(), flows);
  Forecast result;
  result.seconds = times.seconds;
  for (std::size_t server = 0; server < servers.rates().size(); ++server) {
    double& busiest = result.busy[static_cast<std::size_t>(servers.part(server))];
    busiest = std::max(busiest, result.seconds > 0 ? times.busy[server] / result.seconds : 0);
  }
  for (const Part part : kParts) {
    if (result.busy[static_cast<std::size_t>(part)] > result.busy[static_cast<std::size_t>(result.slowest)])
      result.slowest = part;
  }
  return result;
}

}  // namespace sluice::cli
