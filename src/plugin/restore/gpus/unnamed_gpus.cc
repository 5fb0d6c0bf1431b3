// SPDX-License-Identifier: MIT
#include "plugin/restore/gpus/unnamed_gpus.h"

#include <sys/stat.h>

#include <cerrno>

#include "base/device_node.h"
#include "base/format.h"
#include "kfd/device.h"
#include "plugin/host/criu_host.h"

namespace sluice::plugin {

namespace {

constexpr int kDeepest = 128;  // directories above the images; ".." of a root is the root

std::string gpus(std::size_t number) {
  return std::to_string(number) + (number == 1 ? " GPU" : " GPUs");
}

// The path from the image directory, which every task has open, to a file below the root of the main process'
// mounts.
std::string from_images(const std::string& name) {
  std::string path;
  for (int i = 0; i < kDeepest; ++i) path += "../";
  return path + name;
}

// Whether this task's /dev is another directory than that of CRIU's main process. False if unknown.
bool has_nodes_of_its_own() {
  struct stat own {
  }, machines{};
  return ::stat("/dev/dri", &own) == 0 &&
         ::fstatat(image_dir_fd(), from_images("dev/dri").c_str(), &machines, 0) == 0 &&
         (own.st_dev != machines.st_dev || own.st_ino != machines.st_ino);
}

}  // namespace

Result<UniqueFd> open_render_node_of_machine(std::uint32_t minor) {
  const std::string node = "dev/dri/renderD" + std::to_string(minor);
  const int images = image_dir_fd();
  if (images < 0) return make_error(EBADF, "open /" + node + " of the machine");  // unreached: a guard
  auto file = open_device_node(from_images(node), kfd::render_node_device(minor), images);
  if (file) return file;
  if (file.error().err != ENODEV) return make_error(file.error().err, "open /" + node + " of the machine");
  // unreached: no test
  return make_error(ENODEV, formatted("find this GPU's render node in /{} of the machine", node));
}

std::string sees_more_gpus(std::size_t had, std::size_t sees) {
  return formatted(
      "the container had {} at the dump and sees {} now, because its device cgroup is not in force yet; use "
      "runc, "
      "or systemd's cgroups with crun, or give it the nodes of all GPUs",
      gpus(had), gpus(sees));
}

void warn_of_more_gpus(std::uint32_t pid, std::size_t had, std::size_t sees, std::size_t outside) {
  if (outside != 0) {
    log_line(Level::Warning, formatted("process {} keeps GPUs whose nodes its container lacks: {} [SL-R19]",
                                       pid, sees_more_gpus(had, sees)));
  } else if (sees > had && has_nodes_of_its_own()) {
    log_line(
        Level::Warning,
        formatted("process {} had {} at the dump and sees {} now, and its container has the nodes of all, so "
                  "its own ones cannot be told apart; use the action script of sluice [SL-R20]",
                  pid, gpus(had), gpus(sees)));
  }
}

}  // namespace sluice::plugin
