// SPDX-License-Identifier: MIT
// The checkpoint that a dump builds on: its contents are not written again.
//
// For --prev-images-dir, CRIU makes a link `parent` in the image directory before it calls any plugin, and
// does not mention it later. It keeps an existing link (EEXIST in open_image_dir(), criu/image.c of v3.17.1
// to criu-dev). So a link that was not made during this process' life belongs to an earlier dump into the
// directory, and this dump must not use it. Its age is taken by the clock that stamps files there: setting a
// clock back or forth makes no old link a new one. Main thread.
#pragma once

#include <cstdint>
#include <memory>

#include "images/chain/parent_chain.h"
#include "plugin/host/image_store.h"
#include "settings/config.h"

namespace sluice::plugin {

struct DumpParent {
  // Null: there is none.
  std::unique_ptr<const ParentChain> chain;
  // If files of the dump can share extents with all of the parent's: offsets must be multiples of this many
  // bytes. Such a dump is complete by itself. 0: they cannot, and contents that the parent has are left out.
  std::uint64_t clone_block_bytes = 0;

  // When everything else of the dump into that store is ready. Errors: ParentChain::check_unchanged()'s.
  Result<void> check_unchanged(const ImageStore& store) const;
};

// Called in init(), before anything is stopped. Empty without a parent, or, with a warning, if the checkpoint
// cannot be one: then everything is written. Errors: EEXIST if the parent needs what the run would remove.
// REQUIRES: the store has its keys.
Result<DumpParent> find_parent(const ImageStore& store, const settings::Config& config);

}  // namespace sluice::plugin
