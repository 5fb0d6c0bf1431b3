// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include "base/unique_fd.h"
#include "cli/check/check.h"
#include "cli/text.h"
#include "drm/target_file.h"
#include "images/metadata.h"
#include "images/pages.h"
#include "kfd/device.h"
#include "kfd/driver.h"
#include "kfd/records/queue_records.h"

namespace sluice::cli {
namespace {

// The first that is known to save no control stack (kfd/records/queue_records.h).
constexpr std::uint32_t kKfdOfLinux72 = 23;

// Only a dump can tell whether kernels run.
void check_waves(std::uint32_t kfd_minor, const kfd::Topology& topology, Findings& findings) {
  const bool any_gfx9 = std::any_of(topology.nodes.begin(), topology.nodes.end(), [](const kfd::Node& node) {
    return node.is_gpu() && kfd::is_gfx9(node.gfx_target_version);
  });
  if (kfd_minor < kKfdOfLinux72 || !any_gfx9) return;
  findings.push_back(
      {Weight::Warning, "waves",
       "this kernel does not save running kernels of GFX9 GPUs, as MI200 and MI300 are: a dump "
       "waits for their end, and is refused if they do not end",
       "dump between kernels, raise SLUICE_WAVES_TIMEOUT, or use Linux 6.12"});
}

void check_dies(const kfd::Topology& topology, Findings& findings) {
  for (const kfd::Node& node : topology.nodes) {
    if (!node.is_gpu() || node.num_xcc < 2) continue;
    findings.push_back(
        {Weight::Warning, "dies",
         gpu_name(node.gpu_id) + " has " + std::to_string(node.num_xcc) +
             " dies (XCCs), and no known kernel saves and restores its compute queues on all of "
             "them: their dump is refused (SL-D97)",
         "write CPX to current_compute_partition of the card while no job uses it"});
  }
}

Finding check_render_node(const kfd::Node& gpu, std::map<std::string, bool>& drivers) {
  const std::string path = "/dev/dri/renderD" + std::to_string(gpu.drm_render_minor);
  const std::string name = gpu_name(gpu.gpu_id) + " (" + (gpu.name.empty() ? "unnamed" : gpu.name) + ", " +
                           bytes_text(gpu.vram_size) + " of VRAM)";
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) {
    return {Weight::Problem, "gpu", name + ": " + make_error(errno, path).what,
            "criu needs every GPU's render node, in a container too"};
  }
  const auto driver = drm::driver_of(fd.get());
  if (!driver || driver->name != "amdgpu") {
    return {Weight::Problem, "gpu", name + ": " + path + " is not amdgpu's", "load the amdgpu driver"};
  }
  const auto handles = drm::list_handles(fd.get());
  const bool lists = handles && *handles;
  drivers.emplace("amdgpu " + std::to_string(driver->major) + "." + std::to_string(driver->minor), lists);
  return {Weight::Good, "gpu", name + ", " + path, ""};
}

// Which driver runs: their private data differ.
std::string driver_text() {
  utsname names{};
  const std::string release = ::uname(&names) == 0 ? names.release : "(unknown)";
  const std::string version = kfd::out_of_tree_version();
  return version.empty() ? "the amdgpu of Linux " + release
                         : "AMD's out-of-tree amdgpu " + version + " on Linux " + release;
}

}  // namespace

GpuCheck check_gpus() {
  GpuCheck check;
  const auto version = kfd::read_version();
  if (!version) {
    const int err = version.error().err;
    const bool none = err == ENOENT || err == ENXIO || err == ENODEV;
    check.findings.push_back(
        {Weight::Problem, "kfd",
         none ? "this machine has no AMD GPU that can compute: there is no /dev/kfd here"
              : version.error().what,
         none ? "load the amdgpu driver (modprobe amdgpu); give a container --device /dev/kfd"
              : "run as root, or as a member of the group that owns /dev/kfd"});
    return check;
  }
  const std::string text = "interface " + std::to_string(version->major) + "." +
                           std::to_string(version->minor) + ", " + driver_text();
  const auto good = kfd::check_version(*version);
  check.findings.push_back(
      good ? Finding{Weight::Good, "kfd", text, ""}
           : Finding{Weight::Problem, "kfd", good.error().what, "use Linux 6.1 or newer"});
  auto topology = kfd::read_topology();
  if (!topology) {
    check.findings.push_back(
        {Weight::Problem, "topology", topology.error().what, "criu must see the host's /sys"});
    return check;
  }
  std::map<std::string, bool> drivers;
  for (const kfd::Node& node : topology->nodes) {
    if (node.is_gpu()) check.findings.push_back(check_render_node(node, drivers));
  }
  if (!topology->hidden.empty()) {
    check.findings.push_back({Weight::Warning, "gpu",
                              count_text(topology->hidden.size(), "GPU") + " hidden from this process",
                              "a device cgroup hides them; criu must see all GPUs of the process"});
  }
  for (const auto& [driver, lists] : drivers) {
    check.findings.push_back(
        {Weight::Good, "drm",
         driver + (lists ? ", lists the BOs of render nodes"
                         : ", does not list BOs of render nodes (Linux 6.18 does): a process that "
                           "maps such BOs is refused"),
         ""});
  }
  check_waves(version->minor, *topology, check.findings);
  check_dies(*topology, check.findings);
  check.topology = std::move(*topology);
  return check;
}

}  // namespace sluice::cli
