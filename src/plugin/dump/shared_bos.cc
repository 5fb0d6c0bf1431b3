// SPDX-License-Identifier: MIT
#include "plugin/dump/shared_bos.h"

#include <sys/stat.h>

#include <algorithm>

#include "images/metadata.h"

namespace sluice::plugin {
namespace {

// Who makes the memory: the first of the lowest.
int rank(const SharedBos::Holder& holder) {
  if (!holder.can_create) return 3;
  if (!holder.kfd) return 1;
  return holder.looks_imported ? 2 : 0;
}

}  // namespace

Result<void> SharedBos::add(int dmabuf, Holder holder) {
  struct stat st {};
  if (::fstat(dmabuf, &st) != 0) return make_error(errno, "fstat of a dma-buf");
  ino_t inode = st.st_ino;
  if (holder.place.second != 0) inode = places_.try_emplace(holder.place, inode).first->second;
  Bo& bo = bos_[inode];
  if (bo.settled) {
    return Error{EINVAL, holder.name + " is the same memory as " + bo.holders.front().name +
                             ", shared by dma-buf, and the files of the tree could not be seen in advance"};
  }
  bo.holders.push_back(std::move(holder));
  return {};
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
  if (bo.holders.empty()) return {};  // a descriptor of something else
  bo.settled = true;
  std::vector<Holder>& holders = bo.holders;
  const auto creator = std::min_element(holders.begin(), holders.end(),
                                        [](const Holder& a, const Holder& b) { return rank(a) < rank(b); });
  if (!creator->can_create) {
    return Error{EINVAL,
                 holders.front().name +
                     " is memory of another GPU that no process of the tree has there; it cannot be made "
                     "again"};
  }
  if (holders.size() + bo.descriptors < 2) return {};
  if (last_number_ == kMostSharedBos) {
    return Error{E2BIG, creator->name + " is shared, and so are " + std::to_string(last_number_) +
                            " other BOs; no restore takes more"};
  }
  bo.number.shared = ++last_number_;
  const auto importer =
      std::find_if(holders.begin(), holders.end(), [](const Holder& one) { return !one.kfd; });
  bo.number.handle = creator->kfd && importer != holders.end() ? importer->handle : creator->handle;
  if (creator->kfd && importer == holders.end()) bo.number.handle = bo.number.shared;
  for (Holder& holder : holders) {
    *holder.shared = bo.number.shared;
    if (holder.kfd_handle != nullptr) *holder.kfd_handle = bo.number.handle;
    *holder.imports = &holder != &*creator;
  }
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
                               [&](const auto& each) { return each.second.number.shared == *lost; });
  const auto creator = std::find_if(bo->second.holders.begin(), bo->second.holders.end(),
                                    [](const Holder& holder) { return !*holder.imports; });
  return Error{EINVAL,
               creator->name +
                   " is memory that a dumped process shares, and CRIU does not dump who has allocated "
                   "it: the checkpoint cannot be restored; the two must be dumped together"};
}

SharedBos::Number SharedBos::number_of(ino_t dmabuf) const {
  const auto other = others_.find(dmabuf);
  const auto bo = bos_.find(other != others_.end() ? other->second : dmabuf);
  return bo != bos_.end() ? bo->second.number : Number();
}

}  // namespace sluice::plugin
