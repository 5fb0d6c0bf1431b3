// SPDX-License-Identifier: MIT
#include "plugin/contents/local_machine.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <string>

#include "base/format.h"
#include "base/unique_fd.h"
#include "images/files/files.h"
#include "plugin/host/criu_host.h"

namespace sluice::plugin {

Result<kfd::Topology> local_topology() {
  auto topology = kfd::read_topology();
  if (!topology && topology.error().err == EBADMSG) return Error{EPROTO, topology.error().what};
  return topology;
}

int numa_node_of_render_minor(std::uint32_t minor) {
  std::array<char, 64> path{};
  (void)std::snprintf(path.data(), path.size(), "/sys/class/drm/renderD%" PRIu32 "/device/numa_node", minor);
  const UniqueFd fd(open(path.data(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return -1;
  std::array<char, 16> text{};
  const ssize_t got = TEMP_FAILURE_RETRY(read(fd.get(), text.data(), text.size()));
  int node = -1;
  if (got > 0) (void)std::from_chars(text.data(), text.data() + got, node);
  return node;
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
