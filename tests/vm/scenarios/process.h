// SPDX-License-Identifier: MIT
// Programs that scenarios run: started, waited for within a bound, killed and reaped.
//
// The test program is a child subreaper: what criu restores becomes its child when criu ends. Thread-bound;
// system errors throw std::system_error.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace sluice::vm_test {

using Strings = std::vector<std::string>;
using Seconds = std::chrono::seconds;

// A program that has not ended by then hangs: the guest's processor is emulated, so the bound is generous.
inline constexpr Seconds kPatience{180};

struct Launch {
  Strings arguments;                               // [0] is looked up in PATH
  std::map<std::string, std::string> environment;  // in addition to this program's own
  std::filesystem::path output;                    // standard output and error; empty: /dev/null
  bool own_session = false;
  unsigned namespaces =
      0;  // CLONE_NEW* flags of clone3(2); in a new user namespace ids are what they are here
  // Runs in the child before the program, after `namespaces` were made. A throw ends the child.
  std::function<void()> prepare;
};

// Starts it. Exit status 127: it could not be run.
pid_t start(const Launch& launch);

// Waits for a child's end: its status as a shell's (128 + N for signal N), nothing when it still runs at the
// end of `patience`.
std::optional<int> wait_for(pid_t pid, Seconds patience = kPatience);

// start() and wait_for(); a program that hangs is killed, and gives nothing.
std::optional<int> run(const Launch& launch, Seconds patience = kPatience);

// SIGKILL and reap. Nothing happens when the child is gone.
void kill_and_reap(pid_t pid);

// Calls `done` at once, whenever a child of this process has ended, and again and again, until it says true.
// False when it has not for as long as `patience`.
bool eventually(const std::function<bool()>& done, Seconds patience = kPatience);

// Where every thread of a process stands: its name, the system call it is in, its stack in the kernel.
std::string stacks_of(pid_t pid);

// Children of this process, adopted ones included; what has ended is reaped first.
std::vector<pid_t> living_children();

bool is_alive(pid_t pid);  // exists and is no zombie

std::string read_file(const std::filesystem::path& path);
void write_file(const std::filesystem::path& path, const std::string& text);

// Makes orphans of what this process starts its own children.
void become_subreaper();

// What a process has that a restore must neither lose nor add to: "fd 7 of /dev/kfd", "threads 1",
// "/dev/dri/renderD at 2100..., rw-s", inodes and minors left out. Sorted.
Strings possessions_of(pid_t pid);

}  // namespace sluice::vm_test
