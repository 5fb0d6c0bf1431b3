// SPDX-License-Identifier: MIT
#include "plugin/predump/bo_keeper.h"

#include <algorithm>
#include <utility>

#include "kfd/open_dmabufs.h"

namespace sluice::plugin {
namespace {

// Of a dma-buf that a driver holds, too: the file's own reference is the second.
constexpr std::uint64_t kReferencesOfLive = 2;
// How many are examined to learn whether the kernel shows it.
constexpr std::size_t kMostLookedAt = 256;

}  // namespace

BoKeeper::BoKeeper(std::vector<UniqueFd> dmabufs, std::uint32_t render_minor)
    : render_minor_(render_minor), dmabufs_(std::move(dmabufs)) {
  const Lock lock(mutex_);
  const std::size_t looked_at = std::min(dmabufs_.size(), kMostLookedAt);
  for (std::size_t i = 0; i < looked_at && kernel_tells_; ++i) {
    const auto references = kfd::references_of_dmabuf(dmabufs_[i].get());
    kernel_tells_ = references && *references >= kReferencesOfLive;
  }
}

bool BoKeeper::is_freed(int dmabuf) const {
  if (!kernel_tells_) return false;
  const auto references = kfd::references_of_dmabuf(dmabuf);
  return references && *references < kReferencesOfLive;
}

UniqueFd BoKeeper::take(std::uint32_t bo) {
  const Lock lock(mutex_);
  UniqueFd dmabuf = std::move(dmabufs_[bo]);
  if (dmabuf && is_freed(dmabuf.get())) {
    dmabuf.reset();
    ++counts_.freed;
  }
  return dmabuf;
}

void BoKeeper::note_given_up(std::uint32_t /*bo*/) {
  const Lock lock(mutex_);
  ++counts_.given_up;
}

void BoKeeper::note_lost() {
  const Lock lock(mutex_);
  lost_ = true;
  for (UniqueFd& dmabuf : dmabufs_) dmabuf.reset();
}

bool BoKeeper::is_lost() const {
  const Lock lock(mutex_);
  return lost_;
}

void BoKeeper::drop_freed(std::size_t most) {
  const Lock lock(mutex_);
  for (std::size_t i = 0; i < std::min(most, dmabufs_.size()); ++i) {
    UniqueFd& dmabuf = dmabufs_[next_];
    next_ = (next_ + 1) % dmabufs_.size();
    if (!dmabuf || !is_freed(dmabuf.get())) continue;
    dmabuf.reset();
    ++counts_.freed;
  }
}

void BoKeeper::drop_all() {
  const Lock lock(mutex_);
  for (UniqueFd& dmabuf : dmabufs_) {
    if (!dmabuf) continue;
    dmabuf.reset();
    ++counts_.given_up;
  }
}

BoKeeper::Counts BoKeeper::counts() const {
  const Lock lock(mutex_);
  return lost_ ? Counts() : counts_;
}

}  // namespace sluice::plugin
