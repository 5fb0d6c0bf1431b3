// SPDX-License-Identifier: MIT
// The limits of CUDA GPUs' DMA engines: bare asynchronous copies between GPU memory and a registered ring of
// blocks, without the engine. Every GPU has its own thread, ring and streams, all at once.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "measure/sample.h"
#include "pipeline/stage.h"

namespace sluice::bench {

struct RawDmaPlan {
  int gpus = 1;                   // the first ones
  std::uint64_t bytes = 0;        // per GPU, rounded down to whole blocks
  std::uint64_t block_bytes = 0;  // one copy
  std::uint32_t depth = 0;        // blocks of the ring, all in flight
  std::uint64_t skew = 0;         // offset in bytes of GPU memory from the ring's alignment
};

// Every run has new rings, made and touched by the thread that copies, before the clock starts. The place of
// a ring's memory differs each time, as it does for our lanes. One thread calls.
class RawDma {
 public:
  // Errors: those of cuda::load(); ENOMEM.
  static Result<std::unique_ptr<RawDma>> make(RawDmaPlan plan);
  ~RawDma();

  // Dump: from the GPUs into their rings.
  Result<Sample> run(Direction direction);
  // How fast one core makes the checksums of a ring that a GPU has just written, 10^9 bytes/s.
  Result<double> sum_rate();

 private:
  class Lane;
  explicit RawDma(RawDmaPlan plan);

  RawDmaPlan plan_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace sluice::bench
