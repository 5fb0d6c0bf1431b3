// SPDX-License-Identifier: MIT
// What a restore reads before there are tasks: all images of the checkpoint that can be read.
#pragma once

#include <optional>

#include "base/result.h"
#include "images/checkpoint.h"
#include "images/sums.h"
#include "plugin/host/image_store.h"

namespace sluice::plugin {

struct FoundImages {
  // Faults of one image are reported by the task that needs it. If even the names could not be listed,
  // `unread` tells why.
  Checkpoint checkpoint;
  std::optional<DumpId> index_dump;  // of a stream's index
  Needs needs;                       // where contents are that the images' files lack
};

// Errors: EBADMSG, and any error with a key, for a stream's index; images of two dumps, or one under two
// names. If files are partial, faults of sums, because only sums tell where the rest is.
Result<FoundImages> find_images(ImageStore& store);

}  // namespace sluice::plugin
