// SPDX-License-Identifier: MIT
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <string_view>

#include "cli/check.h"
#include "cli/text.h"
#include "kfd/device.h"
#include "kfd/directory.h"
#include "kfd/processes.h"
#include "kfd/task_status.h"

namespace sluice::cli {
namespace {

std::string proc(pid_t pid) {
  return std::string(kfd::kProcPath) + "/" + std::to_string(pid);
}

// Bytes of VRAM that the KFD has given the process; nothing where it does not tell.
std::optional<std::uint64_t> kfd_vram(pid_t pid, const kfd::Topology& topology, const std::string& kfd_proc) {
  std::optional<std::uint64_t> sum;
  for (const kfd::Node& node : topology.nodes) {
    if (!node.is_gpu()) continue;
    std::ifstream file(kfd_proc + "/" + std::to_string(pid) + "/vram_" + std::to_string(node.gpu_id));
    std::uint64_t bytes = 0;
    if (file >> bytes) sum = sum.value_or(0) + bytes;
  }
  return sum;
}

}  // namespace

std::optional<DrmClient> read_drm_client(std::istream& fdinfo) {
  DrmClient client;
  bool told = false;
  for (std::string line; std::getline(fdinfo, line);) {
    if (line.starts_with("drm-pdev:") || line.starts_with("drm-client-id:")) client.id += line;
    for (const std::string_view name : {"drm-memory-vram:", "drm-memory-gtt:"}) {
      if (!line.starts_with(name)) continue;
      char* unit = nullptr;
      const std::uint64_t number = std::strtoull(line.c_str() + name.size(), &unit, 10);
      const std::string_view rest(unit);
      const std::uint64_t scale = rest.ends_with("KiB") ? 1024 : rest.ends_with("MiB") ? 1024 * 1024 : 1;
      client.bytes += number > UINT64_MAX / scale ? 0 : number * scale;
      told = true;
    }
  }
  if (!told) return std::nullopt;
  return client;
}

std::vector<pid_t> tree_of(pid_t root, const std::string& proc_path) {
  std::vector<pid_t> tree{root};
  std::set<pid_t> known{root};
  for (std::size_t i = 0; i < tree.size(); ++i) {
    const std::string tasks = proc_path + "/" + std::to_string(tree[i]) + "/task";
    const auto threads = kfd::numbered_entries(tasks);
    if (!threads) continue;
    for (const int thread : *threads) {
      std::ifstream children(tasks + "/" + std::to_string(thread) + "/children");
      for (pid_t child = 0; children >> child;) {
        if (known.insert(child).second) tree.push_back(child);
      }
    }
  }
  return tree;
}

ProcessCheck check_processes(pid_t root, const std::optional<kfd::Topology>& topology,
                             const std::string& kfd_proc) {
  ProcessCheck check;
  const std::string name = "process " + std::to_string(root);
  const auto status = kfd::read_task_status(proc(root));
  if (!status) {
    check.findings.push_back(
        {Weight::Problem, "process", name + " does not exist", "name a process that runs"});
    return check;
  }
  if (status->tgid != root) {
    check.findings.push_back(
        {Weight::Problem, "process",
         std::to_string(root) + " is a thread of process " + std::to_string(status->tgid),
         "name the process"});
    return check;
  }
  std::vector<dev_t> devices;
  const auto kfd_device = kfd::kfd_device_number();
  if (kfd_device && *kfd_device != 0) devices.push_back(*kfd_device);
  if (topology) {
    for (const kfd::Node& node : topology->nodes)
      if (node.is_gpu()) devices.push_back(kfd::render_node_device(node.drm_render_minor));
  }
  const std::vector<pid_t> tree = tree_of(root);
  std::size_t gpu_tasks = 0;
  std::size_t dmabufs = 0;
  std::uint64_t vram = 0;
  bool told = false;
  std::map<std::string, std::uint64_t> bytes_by_client;
  for (const pid_t pid : tree) {
    const auto task = kfd::read_task_status(proc(pid));
    if (task && task->tracer != 0) {
      check.findings.push_back(
          {Weight::Problem, "process",
           "process " + std::to_string(pid) + " is traced by " + std::to_string(task->tracer),
           "wait for the other dump, or end the debugger"});
    }
    const auto files = kfd::device_descriptors(pid, std::span<const dev_t>(devices));
    if (!files) {
      check.findings.push_back({Weight::Problem, "process", files.error().what, "run as root"});
      return check;
    }
    for (const kfd::DeviceDescriptor& file : *files) {
      if (kfd_device && file.device == *kfd_device) continue;
      std::ifstream fdinfo(proc(pid) + "/fdinfo/" + std::to_string(file.fd));
      if (const auto client = read_drm_client(fdinfo)) bytes_by_client[client->id] = client->bytes;
    }
    if (topology) {
      if (const auto bytes = kfd_vram(pid, *topology, kfd_proc)) {
        vram += *bytes;
        told = true;
      }
    }
    if (!files->empty()) ++gpu_tasks;
    if (const auto open = kfd::dmabuf_descriptors(pid)) dmabufs += open->size();
  }
  std::uint64_t of_clients = 0;
  for (const auto& [client, bytes] : bytes_by_client) of_clients += bytes;
  if (told || !bytes_by_client.empty()) check.bytes = std::max(vram, of_clients);

  std::string text =
      name + " (" + status->name + "): " + std::to_string(tree.size()) +
      (tree.size() == 1 ? " process, " : " processes, ") + std::to_string(gpu_tasks) + " with GPUs, " +
      (check.bytes ? bytes_text(*check.bytes) + " of GPU memory" : "GPU memory not told by this kernel");
  if (dmabufs > 0) text += ", " + count_text(dmabufs, "open dma-buf");
  check.findings.push_back(
      gpu_tasks > 0 ? Finding{Weight::Good, "process", text, ""}
                    : Finding{Weight::Warning, "process", text + ": the plugin will have nothing to do",
                              "look for the process of the tree that has /dev/kfd open"});
  if (dmabufs > 0) {
    check.findings.push_back(
        {Weight::Warning, "dma-buf",
         "an open dma-buf whose memory is of no /dev/kfd or render file of these processes ends the "
         "dump; so does a mapped one",
         "close dma-bufs that came from elsewhere before the dump"});
  }
  return check;
}

}  // namespace sluice::cli
