// SPDX-License-Identifier: MIT
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string_view>

#include "cli/check/check.h"
#include "cli/check/obstacles/dump_obstacles.h"
#include "cli/text.h"
#include "kfd/device.h"
#include "kfd/driver.h"
#include "proc/directory.h"
#include "proc/processes.h"
#include "proc/task_status.h"

namespace sluice::cli {
namespace {

std::string proc(pid_t pid) {
  return std::string(proc::kProcPath) + "/" + std::to_string(pid);
}

// Bytes of VRAM that the KFD has allocated for the process; nothing if unknown.
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
    const auto threads = proc::numbered_entries(tasks);
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

namespace {

// The devices handled by our plugin: the KFD first.
std::vector<dev_t> plugin_devices(const std::optional<kfd::Topology>& topology) {
  std::vector<dev_t> devices;
  const auto kfd_device = kfd::kfd_device_number();
  if (kfd_device && *kfd_device != 0) devices.push_back(*kfd_device);
  if (topology) {
    for (const kfd::Node& node : topology->nodes)
      if (node.is_gpu()) devices.push_back(kfd::render_node_device(node.drm_render_minor));
  }
  return devices;
}

// The tree's use of GPUs.
struct GpuUse {
  std::size_t tasks = 0;  // with a file of one
  std::size_t dma_bufs = 0;
  std::optional<std::uint64_t> bytes;
};

GpuUse gpu_use(const DumpTree& tree, const std::vector<dev_t>& devices,
               const std::optional<kfd::Topology>& topology, const std::string& kfd_proc) {
  GpuUse use;
  std::optional<std::uint64_t> vram;
  std::map<std::string, std::uint64_t> bytes_by_client;
  const auto kfd_device = kfd::kfd_device_number();
  for (const TaskFacts& task : tree.tasks) {
    bool has_gpu = false;
    for (const OpenDescriptor& descriptor : task.descriptors) {
      if (descriptor.link.starts_with("/dmabuf")) ++use.dma_bufs;
      if (!descriptor.file || !S_ISCHR(descriptor.file->mode) ||
          std::find(devices.begin(), devices.end(), descriptor.file->number) == devices.end())
        continue;
      has_gpu = true;
      if (kfd_device && descriptor.file->number == *kfd_device) continue;
      std::ifstream fdinfo(task.directory + "/fdinfo/" + std::to_string(descriptor.fd));
      if (const auto client = read_drm_client(fdinfo)) bytes_by_client[client->id] = client->bytes;
    }
    if (has_gpu) ++use.tasks;
    if (!topology) continue;
    if (const auto bytes = kfd_vram(task.pid, *topology, kfd_proc)) vram = vram.value_or(0) + *bytes;
  }
  std::uint64_t of_clients = 0;
  for (const auto& [client, bytes] : bytes_by_client) of_clients += bytes;
  if (vram || !bytes_by_client.empty()) use.bytes = std::max(vram.value_or(0), of_clients);
  return use;
}

Finding summary(const std::string& name, const DumpTree& tree, const GpuUse& use) {
  std::string text =
      name + ": " + std::to_string(tree.tasks.size()) +
      (tree.tasks.size() == 1 ? " process, " : " processes, ") + std::to_string(use.tasks) + " with GPUs, " +
      (use.bytes ? bytes_text(*use.bytes) + " of GPU memory" : "GPU memory not told by this kernel");
  if (use.dma_bufs > 0) text += ", " + count_text(use.dma_bufs, "open dma-buf");
  if (use.tasks > 0) return {Weight::Good, "process", text, ""};
  return {Weight::Warning, "process", text + ": the plugin will have nothing to do",
          "look for the process of the tree that has /dev/kfd open", "no-gpu"};
}

// Processes that have used the KFD and are not of the tree.
std::size_t other_gpu_processes(const DumpTree& tree, const std::string& kfd_proc) {
  const auto pids = proc::numbered_entries(kfd_proc);
  if (!pids) return 0;
  return static_cast<std::size_t>(std::count_if(pids->begin(), pids->end(), [&](int pid) {
    return std::none_of(tree.tasks.begin(), tree.tasks.end(),
                        [pid](const TaskFacts& task) { return task.pid == pid; });
  }));
}

}  // namespace

ProcessCheck check_processes(pid_t root, const std::optional<kfd::Topology>& topology,
                             const DumpProgram& criu, const std::string& kfd_proc) {
  ProcessCheck check;
  const std::string name = "process " + std::to_string(root);
  const auto status = proc::read_task_status(proc(root));
  if (!status) {
    check.findings.push_back(
        {Weight::Problem, "process", name + " does not exist", "name a process that runs", "no-process"});
    return check;
  }
  if (status->tgid != root) {
    check.findings.push_back(
        {Weight::Problem, "process",
         std::to_string(root) + " is a thread of process " + std::to_string(status->tgid), "name the process",
         "thread"});
    return check;
  }
  DumpSurroundings around;
  around.criu = criu.version;
  around.criu_dumps_bpf_maps = criu.dumps_bpf_maps;
  around.other_plugins = criu.other_plugins;
  around.plugin_devices = plugin_devices(topology);
  const auto tree = read_dump_tree(tree_of(root), proc::kProcPath);
  if (!tree) {
    check.findings.push_back({Weight::Problem, "process", tree.error().what, "run as root", "not-allowed"});
    return check;
  }
  for (const TaskFacts& task : tree->tasks) {
    if (task.tracer == 0) continue;
    check.findings.push_back({Weight::Problem, "process",
                              process_text(task) + " is traced by " + std::to_string(task.tracer),
                              "wait for the other dump, or end the debugger", "traced"});
  }
  for (const TaskFacts& task : tree->tasks) check.tasks.emplace_back(task.pid, task.inner_pid);
  const GpuUse use = gpu_use(*tree, around.plugin_devices, topology, kfd_proc);
  check.bytes = use.bytes;
  check.findings.push_back(summary(name + " (" + status->name + ")", *tree, use));
  if (use.dma_bufs > 0) {
    check.findings.push_back(
        {Weight::Warning, "dma-buf",
         "an open dma-buf whose memory is of no /dev/kfd or render file of these processes ends the "
         "dump where a process outside has it, too, or it is of another driver; so does a mapped one",
         "close dma-bufs that came from elsewhere before the dump"});
  }
  // Who shares memory by IPC handles, only a stopped process tells.
  const std::size_t others = kfd::out_of_tree_version().empty() ? 0 : other_gpu_processes(*tree, kfd_proc);
  if (use.tasks > 0 && others > 0) {
    check.findings.push_back(
        {Weight::Warning, "ipc",
         count_text(others, "other process", "other processes") +
             " on the GPUs: if these have imported memory from one of them by an IPC handle, the dump is "
             "refused; if one of them has imported memory from these, it keeps it, and the restored process "
             "gets its own",
         "dump all that share memory as one tree"});
  }
  Obstacles obstacles;
  find_process_obstacles(*tree, around, obstacles);
  find_file_obstacles(*tree, around, obstacles);
  find_map_obstacles(*tree, around, obstacles);
  find_socket_obstacles(*tree, around, obstacles);
  Findings found = obstacles.findings();
  std::move(found.begin(), found.end(), std::back_inserter(check.findings));
  check.options = obstacles.options();
  return check;
}

}  // namespace sluice::cli
