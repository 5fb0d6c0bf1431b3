// SPDX-License-Identifier: MIT
// A directory that is the root of a container: the subject with its libraries, device nodes, and mounts of
// its own for /proc and /sys, in a mount namespace that holds nothing else. What a container engine makes, as
// far as criu and the GPUs see it.
//
// Thread-bound; system errors throw std::system_error.
#pragma once

#include "process.h"

namespace sluice::vm_test {

class Container {
 public:
  // Fills `root`, which must be on a disk: programs, and the nodes of /dev/kfd and of these render minors.
  Container(std::filesystem::path root, const std::vector<unsigned>& render_minors);
  ~Container();  // undoes what before_restore() did
  Container(const Container&) = delete;
  Container& operator=(const Container&) = delete;

  // Starts a program inside: in a mount namespace and, of `more`, other CLONE_NEW* ones. `prepare` runs in it
  // before its root changes.
  Launch launch(unsigned more, std::function<void()> prepare = {}) const;

  // criu wants a mount point as root of what it restores. Options for `criu restore`.
  Strings before_restore();

  const std::filesystem::path& root() const { return root_; }

 private:
  std::filesystem::path root_;
  bool mounted_ = false;
};

// A device cgroup that refuses some more devices to those in it.
class DeviceCgroup {
 public:
  // Mounts the devices controller at `directory`. `denied`: lines of devices.deny.
  DeviceCgroup(std::filesystem::path directory, const Strings& denied);
  ~DeviceCgroup();  // REQUIRES: nobody is in it
  DeviceCgroup(const DeviceCgroup&) = delete;
  DeviceCgroup& operator=(const DeviceCgroup&) = delete;

  // Lifts what was denied. `lines`: of devices.allow.
  void allow(const Strings& lines) const;
  // Puts the calling process into it.
  void enter() const;

 private:
  std::filesystem::path directory_, box_;
};

// What a program loads when it starts, the loader included, and the program.
std::vector<std::filesystem::path> files_of_program(const std::filesystem::path& program);

// Copies files below `root`, each to where it is now.
void copy_below(const std::filesystem::path& root, const std::vector<std::filesystem::path>& files);

}  // namespace sluice::vm_test
