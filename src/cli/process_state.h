// SPDX-License-Identifier: MIT
// What else keeps a process from running after its dump was killed: stopped threads, a frozen cgroup, criu's
// code in its memory. Changes nothing; reads /proc and the cgroup file systems at their usual places.
// Functions without state.
//
// Sources: criu's compel (the parasite is in a memfd named CRIUMFD, and returns to the process' own code when
// criu's end of their socket closes), the kernel's cgroup-v2 and freezer-subsystem documents.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>

namespace sluice::cli {

// criu's parasite: the code that it injects into a process to dump it from within.
enum class Parasite {
  None,
  Mapped,   // its memory is still there; no thread runs it
  Running,  // the lead thread is in it
};

// Writing `thaw` to `file` undoes the freeze.
struct FrozenCgroup {
  std::string file;
  std::string thaw;
};

struct ProcessState {
  std::size_t threads = 0;
  std::size_t stopped = 0;  // by a signal (SIGSTOP)
  std::optional<FrozenCgroup> frozen;
  Parasite parasite = Parasite::None;
};

// What cannot be read counts as absent.
ProcessState read_process_state(pid_t pid, const std::string& proc = "/proc",
                                const std::string& cgroups = "/sys/fs/cgroup");

}  // namespace sluice::cli
