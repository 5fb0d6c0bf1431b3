// SPDX-License-Identifier: MIT
// What one restore is made with: made in init() by CRIU's main process before there are tasks, inherited by
// every task forked from it, and constant from then on. What tasks tell each other is in shared memory.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "base/unique_fd.h"
#include "plugin/host/image_store.h"
#include "plugin/host/thread_numbers.h"
#include "plugin/restore/basis/lifeline.h"
#include "plugin/restore/basis/restore_chain.h"
#include "plugin/restore/basis/shared_table.h"
#include "plugin/restore/gpus/tree_match.h"
#include "plugin/restore/plan/restore_plan.h"
#include "settings/config.h"

namespace sluice::plugin {

struct RestoreBasis {
  // Reads the configuration and the images, and plans. `store` is borrowed. A setting that maps unknown GPUs,
  // another driver's private data, memory that another process has under an IPC handle of the images, and
  // GPUs unlike all of this machine fail here, before anything is created. Errors: those of find_images(),
  // plan_restore(), RestoreChain::open() and check_record_bytes(); EEXIST, ENODEV, ENOMEM.
  static Result<std::unique_ptr<const RestoreBasis>> make(ImageStore& store, dev_t kfd_device);

  // Memory that several files share, by its number: published by the task that makes it (0: not shared),
  // awaited by one that imports it. EBADMSG: no image makes it; else as SharedTable's.
  Result<void> publish(std::uint32_t number, int dmabuf) const;
  Result<UniqueFd> take_shared(std::uint32_t number) const;

  ImageStore& store;
  dev_t kfd_device;
  settings::Config config;
  RestorePlan plan;
  std::unique_ptr<const RestoreChain> chain;  // if the checkpoint has a parent
  std::uint32_t record_bytes = 0;             // of a BO in the driver's private data; 0: unknown
  ino_t main_pid_namespace = 0;               // 0: unknown

  // In shared memory: these change while tasks run. Main and all tasks write.
  std::unique_ptr<Lifeline> lifeline;
  std::unique_ptr<ThreadNumbers> thread_numbers;
  std::unique_ptr<SharedTable> shared;  // if files share memory
  std::unique_ptr<TreeMatch> tree_match;

 private:
  RestoreBasis(ImageStore& where, dev_t kfd) : store(where), kfd_device(kfd) {}
  Result<void> make_plan();
  Result<void> make_shared();
  Result<void> make_match();
  Result<void> check_records();
  Result<void> check_ipc_memory() const;
  Result<void> check_gpus() const;
  Error nobody_has_shared() const;
};

// Identifies a pid namespace by its file (/proc/PID/ns/pid) below `directory`; 0 if there is none.
ino_t pid_namespace(int directory, const char* file);

}  // namespace sluice::plugin
