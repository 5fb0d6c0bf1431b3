// SPDX-License-Identifier: MIT
// What `sluice check` finds out, part by part. Every function looks only: nothing is written, nothing is
// opened for writing, no process is stopped. Functions without state; one thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <istream>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "cli/check/criu_binary.h"
#include "kfd/topology.h"
#include "proc/processes.h"
#include "settings/config.h"

namespace sluice::cli {

// A Problem makes a dump fail; a Warning makes it slower, or unsafe in a way that is said; an Option makes it
// fail unless criu's command line has an option for it.
enum class Weight { Good, Option, Warning, Problem };

struct Finding {
  Weight weight = Weight::Good;
  std::string subject;  // "criu", "plugin", ...: fixed words, also in the JSON
  std::string text;
  std::string remedy;  // what to do about it; empty for Good
  std::string code;    // tells the reason, fixed, in the JSON; empty: the subject does
};
using Findings = std::vector<Finding>;

// What criu --version says.
struct CriuVersion {
  int major = 0, minor = 0, patch = 0;

  bool operator<(const CriuVersion& other) const {
    return std::tie(major, minor, patch) < std::tie(other.major, other.minor, other.patch);
  }
};

// CRIU in the PATH, asked for its version. Started at once, so that it runs beside the rest; a criu that does
// not answer is killed.
class CriuQuestion {
 public:
  CriuQuestion();
  ~CriuQuestion();
  CriuQuestion(const CriuQuestion&) = delete;
  CriuQuestion& operator=(const CriuQuestion&) = delete;

  struct Answer {
    Finding finding;
    std::optional<CriuVersion> version;  // nothing: not told
  };
  // Waits for it, for a moment after the start; a program whose file tells the version has a longer time to
  // be loaded than that on a busy machine. Call once.
  Answer answer(const CriuBinary& binary);

  // How a command line names it.
  const std::string& name() const { return name_; }
  // What its file tells.
  CriuBinary binary() const { return read_criu_binary(path_); }

 private:
  std::string path_, name_;
  std::chrono::steady_clock::time_point began_;
  pid_t pid_ = -1;
  int output_ = -1;
};

// The plugin where CRIU looks for it: installed, ours, loadable. `others`: another plugin is beside it.
struct PluginCheck {
  Finding finding;
  bool others = false;
};
PluginCheck check_plugin(const CriuBinary& criu);
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

// What criu is, and what is beside our plugin.
struct DumpProgram {
  std::optional<CriuVersion> version;  // nothing: not known
  bool dumps_bpf_maps = false;
  bool other_plugins = false;
};

// A process and its descendants: what criu dumps. `bytes`: of GPU memory, where the kernel tells. `options`:
// words of criu's command line that this dump needs.
struct ProcessCheck {
  Findings findings;
  std::optional<std::uint64_t> bytes;
  std::vector<std::string> options;
};
ProcessCheck check_processes(pid_t root, const std::optional<kfd::Topology>& topology,
                             const DumpProgram& criu,
                             const std::string& kfd_proc = "/sys/class/kfd/kfd/proc");

// The directory that images would go to. `need`: bytes, where known.
Findings check_directory(const std::string& path, std::optional<std::uint64_t> need);

}  // namespace sluice::cli
