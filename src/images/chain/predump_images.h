// SPDX-License-Identifier: MIT
// A directory's images: those of its dump or, if it has none, of its pre-dump.
#pragma once

#include "base/result.h"
#include "images/checkpoint.h"
#include "images/files/image_source.h"

namespace sluice {

// Of an unfinished pre-dump: without images. Errors: those of listing the names.
Result<Checkpoint> read_checkpoint_or_predump(const ImageSource& source);

}  // namespace sluice
