// SPDX-License-Identifier: MIT
// Checkpoints made without a GPU: a process with BOs on two GPUs and none on a third, a second process
// without BOs, a render file and a dma-buf, written by the engine's own stages over memory.
#pragma once

#include <cstdint>

#include "corruption/trial_restore.h"
#include "images/chain/chain.h"
#include "images/metadata.h"
#include "support/rng.h"

namespace sluice::corruption_test {

struct MadeCheckpoint {
  KfdImage kfd;
  KfdImage idle;  // of the second process
  RenderImage render;
  DmaBufImage dmabuf;
  KnownCheckpoint known;  // all of it, as a restore should find it
};

MadeCheckpoint make_checkpoint(test::Rng& rng);
// Another dump of the same processes after some work: the same BOs, of which a part of the pages differs: so
// many of a hundred.
MadeCheckpoint make_later(const MadeCheckpoint& earlier, test::Rng& rng, unsigned worked_on_percent);

// A pages file that holds no BO. No restore opens it.
std::string pages_without_contents();

struct WriteSizes {
  std::uint64_t chunk_bytes = 0;
  std::uint64_t block_bytes = 0;
};

// Writes it, in the order in which the plugin does. `reactor`: that of `kit`, or one around it. `parent`:
// what it has is not written again. Errors: of the stages.
Result<void> write_checkpoint(int dir_fd, const MadeCheckpoint& made, const WriteSizes& sizes,
                              const LaneKit& kit, Reactor& reactor, const Ancestor* parent = nullptr);

}  // namespace sluice::corruption_test
