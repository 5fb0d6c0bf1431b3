// SPDX-License-Identifier: MIT
// The checkpoint that a dump builds on: its contents are not written again.
//
// For --prev-images-dir, CRIU makes a link `parent` in the image directory before it calls any plugin, and
// does not mention it later. It keeps an existing link (EEXIST in open_image_dir(), criu/image.c of v3.17.1
// to criu-dev). So a link older than this process belongs to an earlier dump into the directory, and this
// dump must not use it. Main thread.
#pragma once

#include <cstdint>
#include <memory>

#include "images/chain/chain.h"
#include "plugin/host/image_store.h"
#include "settings/config.h"

namespace sluice::plugin {

struct DumpParent {
  // Null: there is none.
  std::unique_ptr<const Ancestor> checkpoint;
  // If files of the dump can share extents with all of the parent's: offsets must be multiples of this many
  // bytes. Such a dump is complete by itself. 0: they cannot, and contents that the parent has are left out.
  std::uint64_t clone_block_bytes = 0;
};

// Called in init(), before anything is stopped. Empty without a parent, or, with a warning, if the checkpoint
// cannot be one: then everything is written. REQUIRES: the store has its keys.
DumpParent find_parent(const ImageStore& store, const settings::Config& config);

}  // namespace sluice::plugin
