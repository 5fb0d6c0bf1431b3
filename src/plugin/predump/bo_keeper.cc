// SPDX-License-Identifier: MIT
#include "plugin/predump/bo_keeper.h"

#include <fcntl.h>

#include <algorithm>
#include <map>
#include <utility>

#include "kfd/memory/open_dmabufs.h"

namespace sluice::plugin {
namespace {

// Of a dma-buf that a driver holds, too: the file's own reference is the second.
constexpr std::uint64_t kReferencesOfLive = 2;
// How many are examined to learn whether the kernel shows it.
constexpr std::size_t kMostLookedAt = 256;
// Of drop_freed(). To look at one takes some microseconds.
constexpr std::size_t kCallsForAll = 4;

}  // namespace

MemoryUse& MemoryUse::operator+=(const MemoryUse& more) {
  vram += more.vram;
  system += more.system;
  return *this;
}

MemoryUse& MemoryUse::operator-=(const MemoryUse& less) {
  vram -= std::min(vram, less.vram);
  system -= std::min(system, less.system);
  return *this;
}

bool MemoryUse::meets(const MemoryUse& other) const {
  return (vram > 0 && other.vram > 0) || (system > 0 && other.system > 0);
}

BoKeeper::BoKeeper(PagesSet pages, std::vector<UniqueFd> dmabufs, std::uint32_t render_minor,
                   bool is_system_memory, bool more_shares)
    : pages_(std::move(pages)),
      render_minor_(render_minor),
      is_system_memory_(is_system_memory),
      more_shares_(more_shares),
      bos_(dmabufs.size()) {
  const Lock lock(mutex_);
  for (std::size_t i = 0; i < bos_.size(); ++i) {
    bos_[i].dmabuf = std::make_shared<const UniqueFd>(std::move(dmabufs[i]));
    if (!kernel_tells_ || i >= kMostLookedAt) continue;
    const auto references = kfd::references_of_dmabuf(bos_[i].dmabuf->get());
    kernel_tells_ = references && *references >= kReferencesOfLive;
  }
}

MemoryUse BoKeeper::use_of(std::uint32_t bo) const {
  const PagesBo& page = pages_.bos[bo];
  const bool in_system = page.in_gtt || (page.in_vram && is_system_memory_);
  return {page.in_vram ? page.bytes : 0, in_system ? page.bytes : 0};
}

bool BoKeeper::is_freed(const Bo& bo) const {
  if (!kernel_tells_ || !bo.dmabuf || bo.references == 0) return false;
  const auto references = kfd::references_of_dmabuf(bo.dmabuf->get());
  return references && *references < bo.references;
}

BoKeeper::Turn BoKeeper::take(std::uint32_t bo, UniqueFd& dmabuf) {
  const Lock lock(mutex_);
  Bo& asked = bos_[bo];
  if (asked.state == State::Held && is_freed(asked)) note_freed(bo);
  if (asked.state == State::Held) dmabuf.reset(::fcntl(asked.dmabuf->get(), F_DUPFD_CLOEXEC, 0));
  if (dmabuf) {
    asked.state = State::Given;
    asked.references = 0;
    return Turn::Given;
  }
  if (asked.state == State::Done) return Turn::GivenUp;
  if (more_shares_ && asked.state != State::Held) {
    asked.state = State::Wanted;
    return Turn::Later;
  }
  skip(bo);
  return Turn::GivenUp;
}

void BoKeeper::note_imported(std::uint32_t bo) {
  const Lock lock(mutex_);
  Bo& imported = bos_[bo];
  if (!kernel_tells_ || !imported.dmabuf) return;
  const auto references = kfd::references_of_dmabuf(imported.dmabuf->get());
  imported.references = references ? *references : 0;
}

void BoKeeper::note_given_up(std::uint32_t bo) {
  const Lock lock(mutex_);
  if (bos_[bo].state != State::Done) skip(bo);
}

void BoKeeper::note_done(std::uint32_t bo) {
  const Lock lock(mutex_);
  bos_[bo].dmabuf.reset();
  bos_[bo].state = State::Done;
}

void BoKeeper::set_imported(drm::ImportedBos* bos) {
  const Lock lock(mutex_);
  imported_ = bos;
}

void BoKeeper::note_lost() {
  const Lock lock(mutex_);
  lost_ = true;
  for (Bo& bo : bos_) bo = {nullptr, State::Done, 0};
}

bool BoKeeper::is_lost() const {
  const Lock lock(mutex_);
  return lost_;
}

std::uint64_t BoKeeper::skipped_bytes() const {
  const Lock lock(mutex_);
  if (!lost_) return counts_.skipped_bytes;
  std::uint64_t bytes = 0;
  for (const PagesBo& bo : pages_.bos) bytes += bo.bytes;
  return bytes;
}

// The BO will not be copied, or no further.
void BoKeeper::let_go(std::uint32_t bo) {
  if (bos_[bo].state == State::Given && imported_ != nullptr) imported_->let_go(bo);
  bos_[bo].dmabuf.reset();
  bos_[bo].state = State::Done;
}

void BoKeeper::skip(std::uint32_t bo) {
  let_go(bo);
  ++counts_.skipped;
  counts_.skipped_bytes += pages_.bos[bo].bytes;
}

void BoKeeper::note_freed(std::uint32_t bo) {
  let_go(bo);
  ++counts_.freed;
}

void BoKeeper::offer(const PagesSet& pages, std::vector<UniqueFd> dmabufs) {
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::size_t> offered;  // by key and size
  for (std::size_t i = 0; i < pages.bos.size(); ++i) offered[{pages.bos[i].key, pages.bos[i].bytes}] = i;
  const Lock lock(mutex_);
  for (std::uint32_t bo = 0; bo < bos_.size(); ++bo) {
    if (bos_[bo].state == State::Given || bos_[bo].state == State::Done) continue;
    const auto at = offered.find({pages_.bos[bo].key, pages_.bos[bo].bytes});
    if (at == offered.end()) {
      note_freed(bo);
    } else {
      bos_[bo].dmabuf = std::make_shared<const UniqueFd>(std::move(dmabufs[at->second]));
    }
  }
}

void BoKeeper::choose(MemoryUse& room) {
  const Lock lock(mutex_);
  for (std::uint32_t i = 0; i < bos_.size(); ++i) {
    Bo& bo = bos_[i];
    if (!bo.dmabuf || bo.state == State::Given) continue;
    if (room.has_room_for(use_of(i))) {
      room -= use_of(i);
      bo.state = State::Held;
      bo.references = kReferencesOfLive;
    } else {
      bo.dmabuf.reset();
      if (bo.state == State::Held) bo.state = State::NotHeld;
    }
  }
}

void BoKeeper::end_shares() {
  const Lock lock(mutex_);
  more_shares_ = false;
}

std::optional<MemoryUse> BoKeeper::wanted() const {
  const Lock lock(mutex_);
  for (std::uint32_t i = 0; i < bos_.size(); ++i) {
    if (bos_[i].state == State::Wanted) return use_of(i);
  }
  return std::nullopt;
}

void BoKeeper::give_up_larger(const MemoryUse& room) {
  const Lock lock(mutex_);
  for (std::uint32_t i = 0; i < bos_.size(); ++i) {
    const bool is_held = bos_[i].state != State::Wanted && bos_[i].state != State::NotHeld;
    if (!is_held && !room.has_room_for(use_of(i))) skip(i);
  }
}

MemoryUse BoKeeper::sum_of(State a, State b) const {
  MemoryUse sum;
  for (std::uint32_t i = 0; i < bos_.size(); ++i) {
    if (bos_[i].state == a || bos_[i].state == b) sum += use_of(i);
  }
  return sum;
}

MemoryUse BoKeeper::held() const {
  const Lock lock(mutex_);
  return sum_of(State::Held, State::Given);
}

MemoryUse BoKeeper::being_copied() const {
  const Lock lock(mutex_);
  return sum_of(State::Given, State::Given);
}

void BoKeeper::list_held(std::vector<HeldBo>& list) {
  const Lock lock(mutex_);
  for (std::uint32_t i = 0; i < bos_.size(); ++i) {
    if (bos_[i].state == State::Held || bos_[i].state == State::Given) list.push_back({this, i, use_of(i)});
  }
}

// What has not begun may come with the next share.
void BoKeeper::give_back(std::uint32_t bo) {
  const Lock lock(mutex_);
  if (bos_[bo].state == State::Given) return skip(bo);
  if (bos_[bo].state != State::Held) return;  // unreached: a race
  bos_[bo].dmabuf.reset();
  bos_[bo].state = State::NotHeld;
}

// The lane does not wait while the kernel is asked.
void BoKeeper::drop_freed() {
  const std::size_t all = pages_.bos.size();
  for (std::size_t i = 0; i <= all / kCallsForAll && kernel_tells_; ++i) {
    const auto at = static_cast<std::uint32_t>(next_);
    next_ = (next_ + 1) % all;
    Bo bo;
    {
      const Lock lock(mutex_);
      bo = bos_[at];
    }
    if (!is_freed(bo)) continue;
    const Lock lock(mutex_);
    if (bos_[at].dmabuf == bo.dmabuf && bos_[at].references == bo.references) note_freed(at);
  }
}

BoKeeper::Counts BoKeeper::counts() const {
  const Lock lock(mutex_);
  return lost_ ? Counts() : counts_;
}

}  // namespace sluice::plugin
