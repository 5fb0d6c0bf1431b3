// SPDX-License-Identifier: MIT
// A BO that the subject shares: by dma-buf with its own render files on one or two GPUs, and with other
// processes; or by AMD's IPC ioctls. Its first word is a value that everyone who has the BO must see.
// Functions over the arena, called from the main thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "subject/arena.h"
#include "subject/options.h"

namespace sluice::subject {

// The descriptor number at which a process keeps the dma-buf for others.
inline constexpr int kShareFd = 40;

// As the options say: allocates the BO or takes another process', imports it, keeps a descriptor.
Result<void> add_shared_bo(Arena& arena, const Options& options);
// Everyone who has it sees the same value, which is returned; it is mapped in the GPUs as it was.
Result<std::uint64_t> peek_shared_bo(const Arena& arena);
// For another process: how it finds the BO by AMD's IPC ioctls. The same each time.
Result<std::string> ipc_handle_text(const Arena& arena);
// Writes another value through one of them.
Result<void> poke_shared_bo(const Arena& arena, std::uint64_t value);

}  // namespace sluice::subject
