// SPDX-License-Identifier: MIT
// The parts of `sluice check`. No function changes anything: nothing is written or opened for writing, no
// process is stopped. Functions without state; one thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <istream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/check/criu_binary.h"
#include "cli/check/obstacles/finding.h"
#include "kfd/topology.h"
#include "proc/processes.h"
#include "settings/config.h"

namespace sluice::cli {

// CRIU in the PATH, started to print its version. It runs beside the other checks; a criu that does not
// answer is killed.
class CriuQuestion {
 public:
  CriuQuestion();
  ~CriuQuestion();
  CriuQuestion(const CriuQuestion&) = delete;
  CriuQuestion& operator=(const CriuQuestion&) = delete;

  struct Answer {
    Finding finding;
    std::optional<CriuVersion> version;  // nothing: unknown
  };
  // Waits for it, briefly after the start. If the program's file contains a version it waits longer, because
  // loading may take time on a busy machine. Call once.
  Answer answer(const CriuBinary& binary);

  // Its name on a command line.
  const std::string& name() const { return name_; }
  // Facts from its file.
  CriuBinary binary() const { return read_criu_binary(path_); }

 private:
  std::string path_, name_;
  std::chrono::steady_clock::time_point began_;
  pid_t pid_ = -1;
  int output_ = -1;
};

// The plugin where CRIU looks for it: installed, ours, loadable. `others`: other plugins are there, too.
struct PluginCheck {
  Finding finding;
  bool others = false;
};
PluginCheck check_plugin(const CriuBinary& criu);
// io_uring, pinned memory, the caller's capabilities, the configuration, the key of images in use.
// `gpus`: how many are here, and may be dumped at once.
Findings check_host(const settings::Config& config, const ImageKeys& keys, std::size_t gpus);

// The KFD and its GPUs. `topology` is for the check of the process; empty on a machine without.
struct GpuCheck {
  Findings findings;
  std::optional<kfd::Topology> topology;
};
GpuCheck check_gpus();

// A process and its descendants, parents first, each once: a process that starts others meanwhile does not
// make this endless.
std::vector<pid_t> tree_of(pid_t root, const std::string& proc_path = proc::kProcPath);

// VRAM and GTT of an open render file, from the driver's fdinfo (/proc/PID/fdinfo/N). Several descriptors of
// one file, in one process or inherited, are one client.
struct DrmClient {
  std::string id;  // within the machine: device and number
  std::uint64_t bytes = 0;
};
// Nothing if the driver reports no memory.
std::optional<DrmClient> read_drm_client(std::istream& fdinfo);

// The criu program, and the plugins beside ours.
struct DumpProgram {
  std::optional<CriuVersion> version;  // nothing: not known
  bool dumps_bpf_maps = false;
  bool other_plugins = false;
};

// A process and its descendants, which criu dumps together. `bytes`: of GPU memory, if the kernel tells.
// `options`: words of criu's command line that this dump needs.
struct ProcessCheck {
  Findings findings;
  std::optional<std::uint64_t> bytes;
  std::vector<std::string> options;
  std::vector<std::pair<pid_t, pid_t>> tasks;  // the pid, and that in its own pid namespace
};
ProcessCheck check_processes(pid_t root, const std::optional<kfd::Topology>& topology,
                             const DumpProgram& criu,
                             const std::string& kfd_proc = "/sys/class/kfd/kfd/proc");

// The directory for the images. `need`: bytes, if known.
Findings check_directory(const std::string& path, std::optional<std::uint64_t> need);

}  // namespace sluice::cli
