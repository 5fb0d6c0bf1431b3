// SPDX-License-Identifier: MIT
// CRIU's pre-dump, from init() to the end of CRIU's process.
//
// CRIU calls HANDLE_DEVICE_VMA with all tasks of the tree traced and stopped, from its main thread. A
// pre-dump begins at the first such call (pre_dump_one_task() in criu/cr-dump.c, v3.17.1 to criu-dev). CRIU
// makes no call for tasks stopped by a signal, nor if no GPU memory is mapped. Then it lets the tasks run,
// writes its own images, and ends. It never calls exit() of plugins: on_exit(3) gives the status. An RPC
// client's pre-dump has its own process, which ends likewise. Main thread only.
#pragma once

#include <sys/stat.h>

#include <memory>
#include <optional>
#include <vector>

#include "base/unique_fd.h"
#include "images/files/directory_lock.h"
#include "plugin/host/criu_host.h"
#include "plugin/host/held_signals.h"
#include "plugin/host/image_store.h"
#include "plugin/predump/predump.h"

namespace sluice::plugin {

class HostPreDump {
 public:
  // Without KFD, no file is its own. What keeps GPU contents out of the pre-dump becomes a warning once it is
  // known that there are some.
  static Result<std::unique_ptr<HostPreDump>> make();

  // PAUSE_DEVICES: `pid` belongs to the tree.
  void note_task(pid_t pid);

  // HANDLE_DEVICE_VMA: 0 for maps of our devices, nothing for others. The first call begins the pre-dump. A
  // pre-dump without GPU contents is a warning. Errors: EINTR after a signal; UNPAUSE's.
  Result<Answer> accept_map(const struct stat& st);

  // The process ends with this status. 0: waits for the lanes and writes the mark that makes the files a
  // parent; errors leave no files. Else, on top of whatever the process does: removes the files and waits a
  // second at most.
  Result<void> finish(int status);

 private:
  HostPreDump() = default;
  Result<void> begin();
  Result<void> lock_directory();
  void say_why_not(const Error& why);
  void say_that_nothing_came() const;

  dev_t kfd_device_ = 0;
  bool wanted_ = false;  // false: maps are accepted, nothing else
  bool asked_ = false;
  std::vector<pid_t> tasks_;
  Result<void> ready_;
  UniqueFd directory_;
  DirectoryLock lock_;  // from begin() to the end of predump_
  std::unique_ptr<ImageStore> store_;
  std::optional<PreDump> predump_;
  std::optional<HeldSignals> signals_;  // destroyed before predump_, whose flag it sets
  bool copies_ = false;
};

}  // namespace sluice::plugin
