// SPDX-License-Identifier: MIT
#include "plugin/restore/survey/found_images.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "images/files/files.h"
#include "images/pages.h"

namespace sluice::plugin {

namespace {

bool has_partial_files(const ImageStore& store) {
  const std::optional<int> directory = store.directory();
  if (!directory) return false;
  const auto names = list_names(*directory);
  return names && lacks_among(*names) != Lacks::Nothing;
}

// Where contents are that the files of `pages` lack.
Result<Needs> needs_of(ImageStore& store, const NumberedPages& pages) {
  const auto& [id, dump_id, set] = pages;
  SLUICE_TRY_ASSIGN(const ImageLayout layout, set.layout(kSumBlockBytes));
  SLUICE_TRY_ASSIGN(const std::optional<Sidecar> sidecar,
                    take_sidecar(store.load_once(set.sums_name(id)), id, set, layout, dump_id, store.keys()));
  return sidecar ? sidecar->needs() : Needs{};
}

}  // namespace

Result<FoundImages> find_images(ImageStore& store) {
  FoundImages found;
  auto dump = store.dump_of_index();
  if (!dump && (dump.error().err == EBADMSG || store.keys().any())) return dump.error();
  if (dump) found.index_dump = *dump;
  auto checkpoint = read_checkpoint(store);
  if (!checkpoint) {  // CRIU may not ask for any image, so it is no error yet
    found.checkpoint.unread = checkpoint.error();
    return found;
  }
  found.checkpoint = std::move(*checkpoint);
  if (found.checkpoint.contradiction) return *found.checkpoint.contradiction;
  if (!has_partial_files(store)) return found;
  for (const NumberedPages& pages : pages_of(found.checkpoint)) {
    SLUICE_TRY_ASSIGN(const Needs its, needs_of(store, pages));
    if (found.needs.parent == DumpId{}) found.needs.parent = its.parent;
    found.needs.replicas = found.needs.replicas || its.replicas;
  }
  return found;
}

}  // namespace sluice::plugin
