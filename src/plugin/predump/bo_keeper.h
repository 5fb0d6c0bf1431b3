// SPDX-License-Identifier: MIT
// The dma-bufs of one lane's BOs, while the job that owns the BOs runs and may free them.
//
// A freed BO keeps its VRAM for as long as its dma-buf is open. Held too long, it makes the job run out of
// memory. So a dma-buf that only we hold is closed. In Linux 6.1 the KFD has no dma-buf of its own, so the
// kernel does not show this. Then, if VRAM is nearly full, all whose copy has not begun are closed.
//
// Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "drm/sdma_copy.h"

namespace sluice::plugin {

class BoKeeper final : public drm::BoGiver {
 public:
  // By BO of the lane. REQUIRES: the job is stopped; these show whether the kernel tells freed BOs.
  // `render_minor`: of the GPU that has them.
  BoKeeper(std::vector<UniqueFd> dmabufs, std::uint32_t render_minor);

  std::uint32_t render_minor() const { return render_minor_; }

  UniqueFd take(std::uint32_t bo) override;
  void note_given_up(std::uint32_t bo) override;
  // Closes all dma-bufs. The lane's counts are 0 from then on, because its files have no BO.
  void note_lost() override;
  bool is_lost() const override;

  // Closes those that the job has freed, among the next `most`, in turn.
  void drop_freed(std::size_t most);
  // Closes all whose copy has not begun.
  void drop_all();

  struct Counts {
    std::uint64_t freed = 0;     // by the job, before they were copied
    std::uint64_t given_up = 0;  // because VRAM was nearly full, or the copy failed
  };
  Counts counts() const;

 private:
  bool is_freed(int dmabuf) const;

  const std::uint32_t render_minor_;
  bool kernel_tells_ = true;
  mutable Mutex mutex_;
  std::vector<UniqueFd> dmabufs_ SLUICE_GUARDED_BY(mutex_);
  std::size_t next_ SLUICE_GUARDED_BY(mutex_) = 0;  // of drop_freed()
  Counts counts_ SLUICE_GUARDED_BY(mutex_);
  bool lost_ SLUICE_GUARDED_BY(mutex_) = false;
};

}  // namespace sluice::plugin
