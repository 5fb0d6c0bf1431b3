// SPDX-License-Identifier: MIT
// What the tasks of a restored tree share about its GPUs: the first match decides for all. So two processes
// that used one GPU get the same GPU again, whatever each calls it. A GPU of the dump is identified by its
// render minor there. In memory that main makes and all tasks inherit.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "kfd/matching/tree_choice.h"
#include "plugin/restore/gpus/futex_lock.h"
#include "plugin/restore/gpus/vram_ledger.h"

namespace sluice::plugin {

class TreeMatch {
 public:
  static constexpr std::size_t kMost = 256;  // GPUs of one dump; more are matched process by process

  // In the main process, before any task is forked. Errors: ENOMEM.
  static Result<std::unique_ptr<TreeMatch>> make();
  ~TreeMatch();
  TreeMatch(const TreeMatch&) = delete;
  TreeMatch& operator=(const TreeMatch&) = delete;

  // During its life no other task of the tree chooses.
  void lock_into(std::optional<FutexLocked>& locked);
  std::vector<kfd::MappedGpu> agreed() const;
  // REQUIRES: the caller holds the lock.
  void agree(const kfd::MappedGpu& pair);

  // The same for all tasks; made by main.
  kfd::TreeGpus gpus;
  std::unique_ptr<VramLedger> ledger;  // if there is one

 private:
  struct Shared {
    FutexLock lock;
    std::atomic<std::uint32_t> count;
    std::array<kfd::MappedGpu, kMost> pairs;
  };
  explicit TreeMatch(Shared* shared) : shared_(shared) {}

  Shared* shared_;
};

}  // namespace sluice::plugin
