// SPDX-License-Identifier: MIT
#include <array>

#include "scenario/scenario.h"

namespace sluice::bench {

std::span<const Scenario> scenarios() {
  static constexpr auto kAll = std::to_array<Scenario>({
      {"limits", "the raw ceilings of this machine: disk, memory, checksum", run_limits, 6, 24},
      {"dump", "copy, checksum and durable write beside the raw disk", run_dump, 3, 10},
      {"restore", "read, verification and copy beside the raw disk", run_restore, 2, 6},
      {"serial", "beside whole BOs, copied and then written through the page cache", run_serial, 3, 9},
      {"zero", "contents that are zero in part, in runs of some lengths", run_zero, 3, 5},
      {"cached", "restore from a page cache that is warm, half warm, cold", run_cached, 2, 3},
      {"cuda", "real DMA: GPU memory to and from memory, on a machine with CUDA GPUs", run_cuda},
      {"cuda-disk", "the same to and from the disk", run_cuda_disk, 34, 34},
      {"bubble", "stages of 27 combinations of rates, beside the slowest alone", run_bubble},
      {"engine", "the engine's own time per chunk, and the checksum beside bare sums", run_engine},
      {"memory", "a BO of 1 TiB under a limit of 128 MiB; rates by size of pool and chunk", run_memory, 2, 5},
      {"small", "many small BOs beside one large", run_small, 2, 4},
      {"stream", "through a pipe, beside a loop of write or splice", run_stream, 2, 5},
      {"scale", "64 lanes on one disk and 8 on sinks of their own, beside one lane", run_scale, 9, 33},
      {"frozen", "dumps that write only what has changed, beside full ones; restores of chains", run_frozen,
       4, 14},
      {"frozen-cuda", "frozen, with real DMA", run_frozen_cuda, 50, 50},
      {"replicas", "GPUs with equal contents, compared with one; with different ones, sharing on and off",
       run_replicas, 9, 33},
      {"replicas-cuda", "replicas, with real DMA", run_replicas_cuda, 20, 65},
      {"plan", "the time that sluice plan foretells, beside the time that it takes", run_plan},
  });
  return kAll;
}

}  // namespace sluice::bench
