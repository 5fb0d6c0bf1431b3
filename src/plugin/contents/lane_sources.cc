// SPDX-License-Identifier: MIT
#include "plugin/contents/lane_sources.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/image_file.h"
#include "images/files/files.h"

namespace sluice::plugin {

namespace {

// One chain for all lanes, because all belong to one dump.
Result<const Chain*> chain_of(const RestoreParents& parents, const Sidecar& sidecar) {
  if (parents.chain == nullptr)
    // unreached: a race
    return Error{ESTALE, "partial files appeared after the restore began; restore again [SL-R44]"};
  if (parents.chain->meets(sidecar.needs())) return parents.chain;
  // unreached: a race
  return Error{EBADMSG, "the images name two parents of this checkpoint; use another checkpoint [SL-I28]"};
}

}  // namespace

// Whether a file of the set is unreadable without its sidecar.
bool needs_sidecar(int image_dir, int id, const PagesSet& set, const ImageLayout& layout) {
  for (std::uint32_t file = 0; file < layout.file_count(); ++file) {
    struct stat status {};
    for (const Lacks lacks : {Lacks::Parents, Lacks::Replicas})
      if (::fstatat(image_dir, set.pages_name(id, file, lacks).c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0)
        return true;
  }
  return false;
}

bool has_shared_files(const Sidecar& sidecar, const ReadBySeveral& shared) {
  return !shared.empty() && (!sidecar.replicas.empty() || shared.contains(sidecar.pages_files.front()));
}

Result<std::vector<ExtentMap>> extents_of(int image_dir, const RestoreParents& parents,
                                          const ReadBySeveral& shared, const ImageLayout& layout,
                                          const Sidecar& sidecar) {
  const Chain complete;
  const Chain* chain = &complete;
  if (sidecar.needs().any()) {
    SLUICE_TRY_ASSIGN(chain, chain_of(parents, sidecar));
  }
  return chain->resolve(image_dir, parents.directories, layout, sidecar, shared);
}

bool read_bytes(int image_dir, const std::string& name, std::uint64_t offset, std::span<std::byte> into) {
  const auto file = open_image_file(image_dir, name);
  return file && TEMP_FAILURE_RETRY(::pread(file->fd.get(), into.data(), into.size(),
                                            static_cast<off_t>(offset))) == static_cast<ssize_t>(into.size());
}

}  // namespace sluice::plugin
