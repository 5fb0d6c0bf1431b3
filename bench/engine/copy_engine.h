// SPDX-License-Identifier: MIT
// A copy engine: one GPU as a benchmark sees it, with its BOs and the copy stage that moves them between GPU
// and staging buffers. Only that Stage differs; the rest of a lane is the shipped code.
//
//   vamdgpu  BOs of a virtual amdgpu, through libdrm_amdgpu and drm::SdmaCopy: the full driver boundary
//   memcpy   BOs in memory, copied by a thread instead of the DMA engine
//   cuda     BOs in the memory of a real GPU, copied by its DMA engines
//   ghost    no BOs and no bytes: only the time that a DMA engine of a given rate needs
//
// Each stage belongs to one lane; which thread uses it may change between runs.
#pragma once

#include <memory>
#include <span>

#include "engine/contents.h"
#include "pipeline/arena.h"
#include "pipeline/layout.h"
#include "pipeline/reactor/reactor.h"
#include "pipeline/stage.h"

namespace sluice::bench {

class CopyEngine {
 public:
  virtual ~CopyEngine() = default;

  virtual const char* name() const = 0;
  const Contents& contents() const { return contents_; }
  int numa_node() const { return numa_node_; }  // of the GPU, -1 if unknown

  // The copy stage of one lane. All arguments are borrowed and outlive the stage.
  virtual Result<std::unique_ptr<Stage>> make_stage(Direction direction, const ImageLayout& layout,
                                                    StagingArena& arena, std::span<Slot> slots,
                                                    Reactor& reactor) = 0;

  // Overwrites all BOs, so that a restore has something to do.
  virtual Result<void> scribble() = 0;
  // Changes the contents of ranges of the BOs. The same seed twice may undo it. Does nothing without BOs.
  // REQUIRES: ranges are whole kChangeBytes, except at the end; no lane runs.
  virtual Result<void> change(std::span<const ContentRange> /*ranges*/, std::uint64_t /*seed*/) { return {}; }
  // Whether the BOs have their original contents with all changes.
  virtual Result<bool> intact() = 0;

  // All BOs back to back, for an engine whose BOs are ordinary memory; else empty.
  virtual std::span<std::byte> memory() { return {}; }

  // CPU time so far of threads that do the work of hardware.
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

// BOs in the memory of CUDA's GPU number `device`. Their bytes repeat every 32 MiB, except for a word in
// every page, so that host memory stays small. Errors: ENODEV (no driver, no GPU; the text says which),
// ENOMEM.
Result<std::unique_ptr<CopyEngine>> make_cuda_engine(Contents contents, int device);

// Works at `bytes_per_second`; 0: takes no time. Knows no contents: intact() is always true.
Result<std::unique_ptr<CopyEngine>> make_ghost_engine(Contents contents, double bytes_per_second);

}  // namespace sluice::bench
