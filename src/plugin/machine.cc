// SPDX-License-Identifier: MIT
#include "plugin/machine.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <string>
#include <string_view>
#include <vector>

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

namespace {

// A file beside the images, in place of an older one. False, with errno.
bool write_beside(const std::string& name, std::span<const std::string> texts) {
  const UniqueFd fd(
      openat(image_dir_fd(), name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return false;
  for (std::string_view rest : texts) {
    while (!rest.empty()) {
      const ssize_t wrote = TEMP_FAILURE_RETRY(write(fd.get(), rest.data(), rest.size()));
      if (wrote <= 0) return false;
      rest.remove_prefix(static_cast<std::size_t>(wrote));
    }
  }
  return true;
}

}  // namespace

void write_stats(Direction direction, int id, const FileTimes& times, std::span<const GpuOutcome> gpus,
                 const Config& config) {
  for (const GpuOutcome& gpu : gpus) log_line(Level::Info, summary_line(direction, gpu));
  if (streaming()) return;  // nothing goes to the local disk
  const auto write = [](const std::string& name, const std::vector<std::string>& texts) {
    if (!write_beside(name, texts))
      log_line(Level::Warning, "cannot write " + name + ": " + strerrordesc_np(errno));
  };
  if (config.stats) write(stats_name(direction, id), {stats_json(id, times, gpus)});
  if (!config.trace) return;
  std::vector<std::string> texts;
  for (const GpuOutcome& gpu : gpus)
    texts.push_back((texts.empty() ? "[\n" : ",\n") + trace_events(direction, texts.size(), gpu));
  texts.emplace_back(texts.empty() ? "[]\n" : "\n]\n");
  write(trace_name(direction, id), texts);
}

}  // namespace sluice::plugin
