// SPDX-License-Identifier: MIT
#include "images/chain/parent_chain.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/format.h"

namespace sluice {
namespace {

constexpr const char* kCriuInventory = "inventory.img";

UniqueFd follow_link(int dir_fd) {
  return UniqueFd(::openat(dir_fd, kParentLink, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

}  // namespace

Result<std::unique_ptr<const ParentChain>> ParentChain::open(int dir_fd, const ImageKeys& keys) {
  SLUICE_TRY_ASSIGN(std::unique_ptr<const Ancestor> parent, Ancestor::open(dir_fd, kParentLink, keys));
  return of(std::move(parent), keys);
}

Result<std::unique_ptr<const ParentChain>> ParentChain::of(std::unique_ptr<const Ancestor> parent,
                                                           const ImageKeys& keys) {
  if (!parent->sum_method().decides())
    return Error{
        ENODATA,
        "its checksums are of sluice 0.2, and data can be made that has the sum of other data; the next "
        "dump can build on this one [SL-D95]"};
  std::unique_ptr<ParentChain> chain(new ParentChain);
  chain->parent_ = std::move(parent);
  SLUICE_TRY_ASSIGN(chain->rest_,
                    Chain::open(chain->parent_->dir_fd(), {.parent = chain->parent_->parent_dump_id()}, keys,
                                LinkKind::Any, chain->parent_->describe() + "/" + kParentLink));
  if (chain->rest_->ancestors().size() >= kMostAncestors)
    return Error{ELOOP, formatted("it has {} ancestors already, the limit [SL-D10]", kMostAncestors)};
  for (const Ancestor* member : chain->members()) {
    SLUICE_TRY(member->check_files());
    SLUICE_TRY(member->hold(chain->held_, kMostHeld));
  }
  return std::unique_ptr<const ParentChain>(std::move(chain));
}

std::vector<const Ancestor*> ParentChain::members() const {
  std::vector<const Ancestor*> members{parent_.get()};
  for (const auto& ancestor : rest_->ancestors()) members.push_back(ancestor.get());
  return members;
}

bool ParentChain::needs(std::pair<dev_t, ino_t> directory) const {
  const auto rest = rest_->ancestors();
  if (std::any_of(rest.begin(), rest.end(),
                  [&](const auto& ancestor) { return ancestor->identity() == directory; }))
    return true;
  UniqueFd at;
  for (std::size_t links = 0; links < kMostAncestors; ++links) {
    const int from = at ? at.get() : parent_->dir_fd();
    UniqueFd next = follow_link(from);
    struct stat status {};
    if (!next || ::fstatat(from, kCriuInventory, &status, 0) != 0 || ::fstat(next.get(), &status) != 0)
      return false;
    if (std::pair(status.st_dev, status.st_ino) == directory) return true;
    at = std::move(next);
  }
  return false;
}

Result<void> ParentChain::sync() const {
  for (const Ancestor* member : members()) SLUICE_TRY(member->sync());
  return {};
}

Result<void> ParentChain::check_unchanged(int dir_fd) const {
  UniqueFd directory;
  for (const Ancestor* member : members()) {
    directory = follow_link(directory ? directory.get() : dir_fd);
    SLUICE_TRY(member->check_unchanged(directory.get()));
  }
  return {};
}

}  // namespace sluice
