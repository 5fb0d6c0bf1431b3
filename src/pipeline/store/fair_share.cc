// SPDX-License-Identifier: MIT
#include "pipeline/store/fair_share.h"

#include <algorithm>
#include <optional>

namespace sluice {
namespace {

// How far a lane may lead before it is throttled, not counting its chunks on the disk.
constexpr std::uint64_t kLeadChunks = 2;

}  // namespace

FairShare::Member::Member(FairShare* share, unsigned turn, std::uint32_t most)
    : share_(share), turn_(turn), most_(most) {
  if (share_ == nullptr) return;
  const Lock lock(share_->mutex_);
  share_->members_.push_back(this);
}

FairShare::Member::~Member() {
  if (share_ == nullptr) return;
  const Lock lock(share_->mutex_);
  std::erase(share_->members_, this);
}

bool FairShare::Member::begin() {
  if (on_disk_ >= most_) return false;
  if (share_ == nullptr) {
    ++on_disk_;
    return true;
  }
  const Lock lock(share_->mutex_);
  const std::uint64_t last = share_->last_position(turn_, position_);
  if (on_disk_ == 0) {
    position_ = std::max(position_, last);
  } else if (position_ >= last + kLeadChunks || share_->earlier_on_disk(turn_)) {
    return false;
  }
  ++on_disk_;
  return true;
}

void FairShare::Member::end() {
  if (share_ == nullptr) {
    --on_disk_;
    return;
  }
  const Lock lock(share_->mutex_);
  --on_disk_;
  ++position_;
}

std::uint64_t FairShare::last_position(unsigned turn, std::uint64_t otherwise) const {
  std::optional<std::uint64_t> last;
  for (const Member* member : members_) {
    if (member->turn_ == turn && member->on_disk_ > 0)
      last = std::min(last.value_or(member->position_), member->position_);
  }
  return last.value_or(otherwise);
}

bool FairShare::earlier_on_disk(unsigned turn) const {
  return std::any_of(members_.begin(), members_.end(),
                     [turn](const Member* member) { return member->turn_ < turn && member->on_disk_ > 0; });
}

}  // namespace sluice
