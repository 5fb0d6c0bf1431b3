// SPDX-License-Identifier: MIT
#include "images/undeclared_sharing.h"

#include <cerrno>

#include "base/format.h"
#include "kfd/uapi.h"

namespace sluice {

Result<void> UndeclaredSharing::add(const std::string& name, const KfdImage& image) {
  if (image.dump_id || !added_.insert(name).second) return {};
  for (std::size_t i = 0; i < image.bos.size(); ++i) {
    const BoEntry& bo = image.bos[i];
    // Doorbells and MMIO pages have an offset that names their kind, the same for all.
    if (!kfd::has_contents(bo.alloc_flags)) continue;
    SLUICE_TRY(note(image.topology.find_gpu(bo.gpu_id)->drm_render_minor, bo.offset,
                    formatted("{}, BO {}", name, i)));
  }
  return {};
}

Result<void> UndeclaredSharing::add(const std::string& name, const RenderImage& image) {
  if (image.dump_id || !added_.insert(name).second) return {};
  for (const RenderBo& bo : image.bos) {
    SLUICE_TRY(note(image.minor, bo.mmap_offset, formatted("{}, GEM handle {}", name, bo.gem.handle)));
  }
  return {};
}

Result<void> UndeclaredSharing::note(std::uint32_t render_minor, std::uint64_t mmap_offset,
                                     const std::string& holder) {
  if (mmap_offset == 0) return {};  // not mappable by a CPU
  const auto [known, is_new] = holders_.try_emplace({render_minor, mmap_offset}, holder);
  if (is_new) return {};
  return Error{
      ENOSYS,
      formatted("{} and {} are the same memory, and images of upstream's plugin do not say which of the two "
                "makes it; dump the processes again with this plugin [SL-I22]",
                known->second, holder)};
}

}  // namespace sluice
