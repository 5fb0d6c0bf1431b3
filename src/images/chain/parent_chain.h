// SPDX-License-Identifier: MIT
// What a new dump builds on: the checkpoint that is its parent, and all that this one needs itself.
//
// A dump that needs a file which is not there has lost its job. So every file of every member is checked
// first. They are looked at again when the dump has nothing left to do, because a parent may go, or be
// exchanged, meanwhile.
//
// Immutable after open(). Any thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "images/chain/chain.h"

namespace sluice {

class ParentChain {
 public:
  // Images of a chain that are kept open. The chain of a render node has a file for each BO.
  static constexpr std::size_t kMostHeld = 128;

  // The parent of the dump into `dir_fd`, by its link. Errors: those of Ancestor::open(), and of of().
  static Result<std::unique_ptr<const ParentChain>> open(int dir_fd, const ImageKeys& keys);
  // Errors: those of Chain::open(); of Ancestor::check_files() and hold(), for any member; ELOOP if the chain
  // has no room for one more; ENODATA for sums without a secret or key, as version 0.2 made them, which do
  // not decide what is the same.
  static Result<std::unique_ptr<const ParentChain>> of(std::unique_ptr<const Ancestor> parent,
                                                       const ImageKeys& keys);

  const Ancestor& parent() const { return *parent_; }
  // Whether it needs that directory, the parent itself aside. CRIU's own images need what the links lead to.
  bool needs(std::pair<dev_t, ino_t> directory) const;
  // Makes every member durable: one may have been dumped without syncs.
  Result<void> sync() const;
  // Follows the links again, from the dump's directory. Errors: ESTALE, named, unless each leads to the same
  // directory, and this to the same images. A new ctime, as a hard link makes, is no change.
  Result<void> check_unchanged(int dir_fd) const;

 private:
  ParentChain() = default;
  std::vector<const Ancestor*> members() const;

  std::unique_ptr<const Ancestor> parent_;
  std::shared_ptr<const Chain> rest_;
  std::vector<UniqueFd> held_;
};

}  // namespace sluice
