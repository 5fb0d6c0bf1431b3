// SPDX-License-Identifier: MIT
// Memory of the subject that it can do without, as an inference engine's KV cache is: one BO in VRAM of each
// GPU, mapped and filled, the last of all BOs and maps. On SIGUSR1 it gives them back, and tells a FIFO that
// it has: who is about to dump it waits for that.
#pragma once

#include "base/result.h"
#include "subject/arena.h"
#include "subject/options.h"

namespace sluice::subject {

// Blocks SIGUSR1, in threads that are made later, too.
Result<void> make_cache(Arena& arena, const Options& options);

// Where there is a cache: waits until something can be read from `fd`, and gives the cache back when SIGUSR1
// comes meanwhile.
Result<void> await_input(Arena& arena, int fd);

}  // namespace sluice::subject
