// SPDX-License-Identifier: MIT
// What `sluice check` finds out, part by part. Every function looks only: nothing is written, nothing is
// opened for writing, no process is stopped. Functions without state; one thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <istream>
#include <optional>
#include <string>
#include <vector>

#include "kfd/processes.h"
#include "kfd/topology.h"
#include "plugin/config.h"

namespace sluice::cli {

// A Problem makes a dump fail; a Warning makes it slower, or unsafe in a way that is said.
enum class Weight { Good, Warning, Problem };

struct Finding {
  Weight weight = Weight::Good;
  std::string subject;  // "criu", "plugin", ...: fixed words, also in the JSON
  std::string text;
  std::string remedy;  // what to do about it; empty for Good
};
using Findings = std::vector<Finding>;

// CRIU in the PATH, asked for its version. Started at once, so that it runs beside the rest; a criu that does
// not answer is killed.
class CriuQuestion {
 public:
  CriuQuestion();
  ~CriuQuestion();
  CriuQuestion(const CriuQuestion&) = delete;
  CriuQuestion& operator=(const CriuQuestion&) = delete;
  // Waits for the answer, for a moment. Call once.
  Finding answer();

 private:
  std::string path_;
  pid_t pid_ = -1;
  int output_ = -1;
};

// The plugin where CRIU looks for it: installed, ours, loadable.
Finding check_plugin();
// io_uring, pinned memory, the caller's capabilities, the configuration, the key of images in use.
Findings check_host(const plugin::Config& config);

// The KFD and its GPUs. `topology` is for the process' check; empty on a machine without.
struct GpuCheck {
  Findings findings;
  std::optional<kfd::Topology> topology;
};
GpuCheck check_gpus();

// A process and everything it has started, parents first, each once: one that starts others meanwhile does
// not hold this up for ever.
std::vector<pid_t> tree_of(pid_t root, const std::string& proc_path = kfd::kProcPath);

// VRAM and GTT of an open render file, as the driver tells them in its fdinfo (/proc/PID/fdinfo/N). Several
// descriptors of one file, of one process or of those that inherited it, are one client.
struct DrmClient {
  std::string id;  // of the machine: device and number
  std::uint64_t bytes = 0;
};
// Nothing where the driver tells no memory.
std::optional<DrmClient> read_drm_client(std::istream& fdinfo);

// A process and its descendants: what criu dumps. `bytes`: of GPU memory, where the kernel tells.
struct ProcessCheck {
  Findings findings;
  std::optional<std::uint64_t> bytes;
};
ProcessCheck check_processes(pid_t root, const std::optional<kfd::Topology>& topology,
                             const std::string& kfd_proc = "/sys/class/kfd/kfd/proc");

// The directory that images would go to. `need`: bytes, where known.
Findings check_directory(const std::string& path, std::optional<std::uint64_t> need);

}  // namespace sluice::cli
