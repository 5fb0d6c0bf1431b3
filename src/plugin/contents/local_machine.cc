// SPDX-License-Identifier: MIT
#include "plugin/contents/local_machine.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cinttypes>

#include "base/unique_fd.h"

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

}  // namespace sluice::plugin
