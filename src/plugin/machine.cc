// SPDX-License-Identifier: MIT
#include "plugin/machine.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cinttypes>

#include "images/files.h"
#include "pipeline/unique_fd.h"
#include "plugin/criu_host.h"

namespace sluice::plugin {

int numa_node_of_render_minor(std::uint32_t minor) {
  std::array<char, 64> path{};
  (void)std::snprintf(path.data(), path.size(), "/sys/class/drm/renderD%" PRIu32 "/device/numa_node", minor);
  const UniqueFd fd(open(path.data(), O_RDONLY | O_CLOEXEC));
  if (!fd) return -1;
  std::array<char, 16> text{};
  const ssize_t got = TEMP_FAILURE_RETRY(read(fd.get(), text.data(), text.size()));
  int node = -1;
  if (got > 0) (void)std::from_chars(text.data(), text.data() + got, node);
  return node;
}

void write_stats(Direction direction, int id, const FileTimes& times, std::span<const GpuOutcome> gpus) {
  for (const GpuOutcome& gpu : gpus) log_line(Level::Info, summary_line(direction, gpu));
  if (streaming()) return;  // nothing goes to the local disk
  const std::string name = stats_name(direction, id);
  const std::string text = stats_json(id, times, gpus);
  const UniqueFd fd(
      openat(image_dir_fd(), name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd ||
      TEMP_FAILURE_RETRY(write(fd.get(), text.data(), text.size())) != static_cast<ssize_t>(text.size())) {
    log_line(Level::Warning, "cannot write " + name + ": " + strerrordesc_np(errno));
  }
}

}  // namespace sluice::plugin
