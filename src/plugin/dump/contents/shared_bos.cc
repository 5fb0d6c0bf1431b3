// SPDX-License-Identifier: MIT
#include "plugin/dump/contents/shared_bos.h"

#include <sys/stat.h>

#include <algorithm>

#include "base/format.h"
#include "images/metadata.h"

namespace sluice::plugin {
namespace {

// The first holder of the lowest rank creates the memory.
int rank(const SharedBos::Holder& holder) {
  if (!holder.can_create) return 3;
  if (!holder.kfd) return 1;
  return holder.looks_imported ? 2 : 0;
}

}  // namespace

Result<std::size_t> SharedBos::add(int dmabuf, Holder holder) {
  struct stat st {};
  if (::fstat(dmabuf, &st) != 0) return make_error(errno, "fstat of a dma-buf");
  ino_t inode = st.st_ino;
  if (holder.place.second != 0) inode = places_.try_emplace(holder.place, inode).first->second;
  Bo& bo = bos_[inode];
  if (bo.settled) {
    return Error{
        EINVAL,
        formatted("{} is the same memory as {}, shared by dma-buf, and the tree's files were not known in "
                  "advance; allow criu pidfd_getfd [SL-D14]",
                  holder.name, holders_[bo.holders.front()].holder.name)};
  }
  bo.holders.push_back(holders_.size());
  holders_.push_back({std::move(holder), {}});
  return bo.holders.back();
}

bool SharedBos::has_holder(ino_t dmabuf) const {
  const auto bo = bos_.find(dmabuf);
  return bo != bos_.end() && !bo->second.holders.empty();
}

bool SharedBos::find_at(ino_t dmabuf, const std::pair<std::uint32_t, std::uint64_t>& place) {
  const auto at = places_.find(place);
  if (place.second == 0 || at == places_.end()) return false;
  others_.emplace(dmabuf, at->second);
  if (const auto alone = bos_.extract(dmabuf); alone)
    bos_[at->second].descriptors += alone.mapped().descriptors;
  return true;
}

Result<void> SharedBos::settle() {
  for (auto& [inode, bo] : bos_) {
    if (!bo.settled) SLUICE_TRY(settle(bo));
  }
  return {};
}

Result<void> SharedBos::settle(Bo& bo) {
  if (bo.holders.empty()) return {};  // a descriptor of other memory
  bo.settled = true;
  const std::size_t creator = *std::min_element(
      bo.holders.begin(), bo.holders.end(),
      [this](std::size_t a, std::size_t b) { return rank(holders_[a].holder) < rank(holders_[b].holder); });
  const Holder& its = holders_[creator].holder;
  if (!its.can_create) {
    return Error{EINVAL, holders_[bo.holders.front()].holder.name +
                             " is memory of another GPU where no process of the tree allocated it; dump the "
                             "process that did in the same tree [SL-D15]"};
  }
  if (bo.holders.size() + bo.descriptors < 2) return {};
  if (last_number_ == kMostSharedBos) {
    return Error{E2BIG,
                 formatted("{} is shared, and so are {} other BOs, the limit; share fewer BOs [SL-D16]",
                           its.name, last_number_)};
  }
  bo.share = {++last_number_, its.handle, false};
  if (its.kfd) {
    const auto importer = std::find_if(bo.holders.begin(), bo.holders.end(),
                                       [this](std::size_t one) { return !holders_[one].holder.kfd; });
    bo.share.handle = importer != bo.holders.end() ? holders_[*importer].holder.handle : bo.share.number;
  }
  for (const std::size_t one : bo.holders)
    holders_[one].share = {bo.share.number, bo.share.handle, one != creator};
  return {};
}

void SharedBos::note_saved(std::uint32_t shared, bool imports) {
  if (shared != 0) (imports ? imported_ : made_).insert(shared);
}

Result<void> SharedBos::check_saved() const {
  const auto lost = std::find_if(imported_.begin(), imported_.end(),
                                 [this](std::uint32_t number) { return !made_.contains(number); });
  if (lost == imported_.end()) return {};
  const auto bo = std::find_if(bos_.begin(), bos_.end(),
                               [&](const auto& each) { return each.second.share.number == *lost; });
  const auto creator = std::find_if(bo->second.holders.begin(), bo->second.holders.end(),
                                    [this](std::size_t one) { return !holders_[one].share.imports; });
  return Error{EINVAL, holders_[*creator].holder.name +
                           " is memory that a dumped process shares, but CRIU does not dump the process that "
                           "allocated it; dump both together [SL-D17]"};
}

SharedBos::Share SharedBos::share_of_dmabuf(ino_t dmabuf) const {
  const auto other = others_.find(dmabuf);
  const auto bo = bos_.find(other != others_.end() ? other->second : dmabuf);
  return bo != bos_.end() ? bo->second.share : Share();
}

}  // namespace sluice::plugin
