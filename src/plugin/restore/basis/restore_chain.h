// SPDX-License-Identifier: MIT
// The chain of a checkpoint whose files are partial, for all processes of a restore.
//
// Opened once, in init(), by CRIU's main process. There links lead where their maker meant, and faults of
// members are reported before anything is created. Tasks inherit what was read, but no descriptors: CRIU
// closes those it does not know. They get the directories from the host's fdstore. Without one, before CRIU
// 4.2, they follow the links again from the image directory. They are in the container's mounts, so the links
// must be relative and lead to the same directories.
#pragma once

#include <memory>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "images/chain/chain.h"
#include "plugin/host/image_store.h"

namespace sluice::plugin {

class RestoreChain {
 public:
  // In init(). `needs`: what the images' files lack. `store` has their directory; borrowed. Errors:
  // those of Chain::open(), with a remedy.
  static Result<std::unique_ptr<RestoreChain>> open(ImageStore& store, const Needs& needs);

  const Chain& chain() const { return *chain_; }

  // In a task: the ancestors' directories, in the chain's order. Errors, with a remedy: those of
  // Chain::reopen(); EBADF if the fdstore no longer has them.
  Result<std::vector<UniqueFd>> directories_in_task() const;

 private:
  RestoreChain(ImageStore& store, std::shared_ptr<const Chain> chain)
      : store_(store), chain_(std::move(chain)) {}

  ImageStore& store_;
  std::shared_ptr<const Chain> chain_;
  std::vector<int> fdstore_ids_;  // of all members' directories, or empty
};

}  // namespace sluice::plugin
