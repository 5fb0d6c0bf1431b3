// SPDX-License-Identifier: MIT
#include "plugin/restore/task/render_restore.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/format.h"
#include "drm/target_file.h"
#include "images/files/files.h"
#include "images/pages.h"
#include "images/vram_need.h"
#include "plugin/host/criu_host.h"

namespace sluice::plugin {

namespace {

// VRAM needed by the BOs from number `first` on.
VramBytes rest_of(const RenderImage& image, std::size_t first) {
  VramBytes rest;
  for (std::size_t i = first; i < image.bos.size(); ++i)
    add_vram(rest, {{image.minor, vram_of(image.bos[i])}});
  return rest;
}

}  // namespace

Result<UniqueFd> RenderRestore::restore(RenderImage image, int id) {
  GpuMatch& gpus = task_.gpus;
  DeviceMaps& maps = task_.maps;
  if (image.pid) maps.set_task(*image.pid);
  SLUICE_TRY(match_gpus_of(image));
  if (gpus.matched() && !maps.met()) maps.set_task(static_cast<std::uint32_t>(getpid()));
  SLUICE_TRY(maps.read_runs(task_.basis.store));
  SLUICE_TRY_ASSIGN(const kfd::Node* gpu, gpus.gpu_of(image));
  const std::uint32_t minor = gpu->drm_render_minor;
  // `kfd_acquired` is unset if KFD had no memory, or only memory that a file may have imported. Then the
  // GPU's first file is KFD's.
  const bool may_be = gpus.matched() && image.kfd_acquired.value_or(true);
  const bool acquired = may_be && !maps.has_handed_out(minor);
  if (may_be && !acquired) {
    log_line(
        Level::Warning,
        formatted("{} does not say whether the KFD uses this file of {}; another file is used, and new KFD "
                  "memory cannot be mapped through this one [SL-R26]",
                  render_image_name(id), image.node_words()));
  }
  SLUICE_TRY_ASSIGN(UniqueFd fd, acquired ? maps.hand_out(minor) : maps.open_high(minor));
  File file{id, fd.get(), std::move(image), gpu, acquired, std::make_unique<drm::GemRestore>(fd.get())};
  SLUICE_TRY(make_bos(file));
  return fd;
}

// A render file may come before its KFD file. The image of the task's KFD process tells the GPUs or, without
// one, any KFD image does. All agree about the machine, but not always about the ids by which a process knows
// its GPUs. Without any, the tree has only render files.
Result<void> RenderRestore::match_gpus_of(const RenderImage& render) {
  const auto& pids = task_.basis.plan.kfd_pids;
  if (task_.gpus.matched() || pids.empty()) return {};
  const std::uint32_t task = render.pid.value_or(static_cast<std::uint32_t>(getpid()));
  auto which = std::find_if(pids.begin(), pids.end(), [&](const auto& each) { return task == each.second; });
  if (which == pids.end()) which = pids.begin();
  return task_.gpus.match(task_.basis.plan.kfd_image(which->first), task_.basis.config.match_rules);
}

bool RenderRestore::maps_through_several_files(const RenderImage& image) const {
  return image.pid && task_.basis.plan.maps_several_files(*image.pid, image.minor);
}

// In ascending order of their handles.
Result<void> RenderRestore::make_bos(File& file) {
  const RenderImage& image = file.image;
  if (image.bos.empty()) return {};
  const bool mapped = std::any_of(image.bos.begin(), image.bos.end(), [&](const RenderBo& bo) {
    return task_.maps.maps(bo.mmap_offset, bo.gem.bytes);
  });
  if (mapped && maps_through_several_files(image) && !host_takes_vma_fd()) {
    return Error{
        EINVAL,
        formatted(
            "a process maps renderD{} through several files, which this version of CRIU cannot restore; use "
            "CRIU 3.19 or newer [SL-R27]",
            image.minor)};
  }
  std::vector<UniqueFd> dmabufs;
  for (std::size_t i = 0; i < image.bos.size(); ++i) {
    auto dmabuf = make_bo(file, i);
    if (!dmabuf) return explain(render_image_name(file.id), dmabuf.error());
    dmabufs.push_back(std::move(*dmabuf));
  }
  if (image.has_contents()) {
    ContentRequest request{file.id, image.dump_id.value_or(DumpId{}), {}};
    request.lanes.push_back(task_.contents.lane(pages_of(image), dmabufs, *file.gpu, image.minor));
    SLUICE_TRY(task_.contents.fill(std::move(request)));
  }
  if (std::any_of(image.bos.begin(), image.bos.end(), [](const RenderBo& bo) { return bo.imports; }))
    importing_.push_back(std::move(file));
  return {};
}

// Returns its dma-buf; nothing for a BO imported later, whose handle is kept free.
Result<UniqueFd> RenderRestore::make_bo(File& file, std::size_t index) {
  const RenderBo& bo = file.image.bos[index];
  if (bo.imports) {
    SLUICE_TRY(file.gem->reserve(bo.gem));
    return UniqueFd();
  }
  if (const auto created = file.gem->create(without_maps_of_kfd(file, bo)); !created)
    return task_.gpus.explain(created.error(), rest_of(file.image, index), task_.gpus.rooms());
  task_.gpus.allocated(*file.gpu, vram_of(bo));
  SLUICE_TRY_ASSIGN(UniqueFd dmabuf, drm::export_dmabuf(file.fd, bo.gem.handle));
  SLUICE_TRY(note_mapped(file, bo, dmabuf.get()));
  SLUICE_TRY(task_.basis.publish(bo.shared, dmabuf.get()));
  return dmabuf;
}

// The file that KFD uses shows KFD's maps, too. For a BO that the file makes and KFD imports, they come with
// the import, if KFD has mapped it on the file's GPU.
drm::GemBo RenderRestore::without_maps_of_kfd(const File& file, const RenderBo& bo) const {
  drm::GemBo gem = bo.gem;
  if (!file.acquired) return gem;
  std::erase_if(gem.mappings, [&](const drm::GemMapping& mapping) {
    return kfd_.will_map(bo.shared, file.image.gpu_id, mapping.address);
  });
  return gem;
}

// Notes where the BO is mapped now, for UPDATE_VMA_MAP.
Result<void> RenderRestore::note_mapped(const File& file, const RenderBo& bo, int dmabuf) {
  if (bo.mmap_offset == 0) return {};
  const RenderImage& image = file.image;
  const std::uint32_t minor = file.gpu->drm_render_minor;
  SLUICE_TRY_ASSIGN(const std::uint64_t offset, drm::mmap_offset_of(file.fd, bo.gem.handle));
  if (maps_through_several_files(image) && task_.maps.maps(bo.mmap_offset, bo.gem.bytes))
    SLUICE_TRY(task_.maps.allow_in_common_file(minor, dmabuf));
  task_.maps.add({false, image.minor, minor, bo.mmap_offset, bo.gem.bytes, offset, file.id});
  return {};
}

Result<void> RenderRestore::import_bos() {
  for (File& file : importing_) {
    for (const RenderBo& bo : file.image.bos) {
      if (!bo.imports) continue;
      if (const auto imported = import_bo(file, bo); !imported) {
        return explain(formatted("{}, GEM handle {}", render_image_name(file.id), bo.gem.handle),
                       imported.error());
      }
    }
  }
  importing_.clear();
  return {};
}

Result<void> RenderRestore::import_bo(File& file, const RenderBo& bo) {
  SLUICE_TRY_ASSIGN(const UniqueFd dmabuf, task_.basis.take_shared(bo.shared));
  SLUICE_TRY(file.gem->import(bo.gem, dmabuf.get()));
  return note_mapped(file, bo, dmabuf.get());
}

}  // namespace sluice::plugin
