// SPDX-License-Identifier: MIT
#include "plugin/restore/basis/restore_chain.h"

#include <cerrno>
#include <optional>
#include <string>
#include <utility>

#include "plugin/host/criu_host.h"

namespace sluice::plugin {

Result<std::unique_ptr<RestoreChain>> RestoreChain::open(ImageStore& store, const Needs& needs) {
  const std::optional<int> directory = store.directory();
  // unreached: a guard
  if (!directory) return make_error(ENOSYS, "a checkpoint with partial files that is no directory");
  const bool has_fdstore = host_has_post_forking();
  auto chain = Chain::open(*directory, needs, store.keys(), has_fdstore ? LinkKind::Any : LinkKind::Relative);
  if (!chain) return explain("this checkpoint is not complete by itself", chain.error());
  std::unique_ptr<RestoreChain> made(new RestoreChain(store, std::move(*chain)));
  if (!has_fdstore) return made;
  for (const int its : made->chain_->directories()) {
    const int id = fdstore_add(its);
    // unreached: a guard
    if (id < 0) return make_error(EIO, "CRIU's fdstore did not take a directory of the chain of parents");
    made->fdstore_ids_.push_back(id);
  }
  return made;
}

Result<std::vector<UniqueFd>> RestoreChain::directories_in_task() const {
  if (fdstore_ids_.empty()) {
    auto directories = chain_->reopen(store_.directory().value_or(-1));
    if (directories) return directories;
    return Error{directories.error().err,
                 directories.error().what +
                     "; with this CRIU a restored process follows the links itself: mount the directories of "
                     "the chain beside each other [SL-R45]"};
  }
  std::vector<UniqueFd> directories;
  for (const int id : fdstore_ids_) {
    directories.emplace_back(fdstore_get(id));
    // unreached: a guard
    if (!directories.back()) return make_error(EBADF, "get a directory of the chain from CRIU's fdstore");
  }
  return directories;
}

}  // namespace sluice::plugin
