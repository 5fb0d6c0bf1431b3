// SPDX-License-Identifier: MIT
// A copy engine: one GPU as a benchmark sees it, its BOs and the copy stage that moves them between GPU and
// staging buffers. Behind the engine's own Stage, so that everything else of a lane is what ships.
//
//   vamdgpu  BOs of a virtual amdgpu, through libdrm_amdgpu and drm::SdmaCopy: the full driver boundary
//   memcpy   BOs in memory, copied by a thread that stands for the DMA engine
//   cuda     BOs in the memory of a real GPU, copied by its DMA engines
//   ghost    no BOs and no bytes: only the time that a DMA engine of a given rate takes
//
// One lane uses an engine at a time; which thread does may change between runs.
#pragma once

#include <memory>
#include <span>

#include "engine/contents.h"
#include "pipeline/arena.h"
#include "pipeline/layout.h"
#include "pipeline/reactor.h"
#include "pipeline/stage.h"

namespace sluice::bench {

class CopyEngine {
 public:
  virtual ~CopyEngine() = default;

  virtual const char* name() const = 0;
  const Contents& contents() const { return contents_; }
  int numa_node() const { return numa_node_; }  // of the GPU, -1 when unknown

  // The copy stage of one lane. Everything is borrowed and outlives the stage.
  virtual Result<std::unique_ptr<Stage>> make_stage(Direction direction, const ImageLayout& layout,
                                                    StagingArena& arena, std::span<Slot> slots,
                                                    Reactor& reactor) = 0;

  // Overwrites all BOs, so that a restore has something to do.
  virtual Result<void> scribble() = 0;
  // Whether the BOs hold the contents they were made with.
  virtual Result<bool> intact() = 0;

  // All BOs back to back, for an engine whose BOs are ordinary memory; else empty.
  virtual std::span<std::byte> memory() { return {}; }

  // CPU time so far of threads that do what hardware does elsewhere.
  virtual double dma_cpu_seconds() const { return 0; }

 protected:
  explicit CopyEngine(Contents contents) : contents_(std::move(contents)) {}
  int numa_node_ = -1;

 private:
  Contents contents_;
};

// BOs in anonymous memory, touched and filled. Errors: ENOMEM, EAGAIN (thread).
Result<std::unique_ptr<CopyEngine>> make_memcpy_engine(Contents contents);

// BOs in the VRAM of the first GPU of the virtual machine that this process runs on. Errors: ENODEV (it runs
// on none), ENOMEM, EINVAL for BOs that are not whole pages.
Result<std::unique_ptr<CopyEngine>> make_vamdgpu_engine(Contents contents);
bool on_virtual_machine();

// BOs in the memory of CUDA's GPU number `device`. Their bytes repeat themselves, but for a word in every
// page, every 32 MiB: host memory stays small. Errors: ENODEV (no driver, no GPU; the text says which),
// ENOMEM.
Result<std::unique_ptr<CopyEngine>> make_cuda_engine(Contents contents, int device);

// Takes `bytes_per_second` as its rate, 0 for no time at all. Knows no contents: intact() is always true.
Result<std::unique_ptr<CopyEngine>> make_ghost_engine(Contents contents, double bytes_per_second);

}  // namespace sluice::bench
