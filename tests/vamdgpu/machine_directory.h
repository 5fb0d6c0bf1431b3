// SPDX-License-Identifier: MIT
// A virtual machine with AMD GPUs as a directory: the device model's state and memory pools (control.h) and
// the sysfs tree (sysfs_tree.h). A program is "on" the machine when it runs with environment(): the front
// library is preloaded and finds the directory in VAMDGPU_DIR. Processes that share the directory share the
// GPUs.
//
//   vamdgpu::MachineOptions options;
//   options.gpus = 4;
//   vamdgpu::Machine machine = vamdgpu::Machine::create(options);
//   int status = machine.run({"./my_program", "--flag"});
//
// Not thread-safe. Errors throw std::system_error (or std::invalid_argument for options that cannot be).
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "presets.h"

namespace vamdgpu {

class Machine {
 public:
  // Makes the machine in `directory` (made if missing, must be empty), or, when that is empty, in a new
  // directory below /dev/shm or else $TMPDIR or /tmp. The destructor removes the directory.
  static Machine create(const MachineOptions& options, const std::filesystem::path& directory = {});

  // A machine that exists already; the destructor leaves it.
  static Machine attach(const std::filesystem::path& directory);

  // Whether `directory` holds a machine.
  static bool exists(const std::filesystem::path& directory);

  Machine(Machine&& other) noexcept;
  Machine& operator=(Machine&& other) noexcept;
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  ~Machine();

  // Leaves the directory behind when this object goes.
  void keep() { owned_ = false; }

  const std::filesystem::path& directory() const { return directory_; }

  // What create() made; of an attached machine only the directory is known, and this is empty.
  const MachineDescription& description() const { return description_; }

  // The topology as real files, for a reader that is not on the machine.
  std::filesystem::path topology() const;

  // The variables a program needs, "NAME=value": VAMDGPU_DIR, and LD_PRELOAD with the front library first of
  // what it holds already. When this program is built with a sanitizer its runtime comes before the front
  // library, as it demands, and the programs that are started are taken to be of the same build.
  std::vector<std::string> environment() const;

  // This process's environment with environment() put in: what execve takes.
  std::vector<std::string> process_environment() const;

  // Starts a program (looked up in PATH) on the machine. Returns its pid; the caller waits for it.
  // A program that cannot be started exits with 127 (not found) or 126.
  pid_t start(const std::vector<std::string>& arguments) const;

  // start() and wait. Returns the exit status, 128 + N for a program ended by signal N.
  int run(const std::vector<std::string>& arguments) const;

 private:
  Machine(std::filesystem::path directory, bool owned) : directory_(std::move(directory)), owned_(owned) {}
  void remove() noexcept;

  std::filesystem::path directory_;
  bool owned_ = false;
  MachineDescription description_;
};

// The front library: $VAMDGPU_LIBRARY, or libvamdgpu.so beside this program or in tests/vamdgpu of a build
// directory above it. Throws std::system_error(ENOENT).
std::filesystem::path find_preload_library();

// Exit status of a waitpid status, in the way of a shell: 128 + N after signal N.
int shell_status(int wait_status);

}  // namespace vamdgpu
