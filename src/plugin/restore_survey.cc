// SPDX-License-Identifier: MIT
#include "plugin/restore_survey.h"

#include <algorithm>
#include <vector>

#include "images/files.h"
#include "kfd/uapi.h"
#include "plugin/image_store.h"

namespace sluice::plugin {

bool gpu_has_contents(const kfd::KfdImage& image, std::uint32_t gpu_id) {
  return std::any_of(image.bos.begin(), image.bos.end(), [gpu_id](const kfd::BoEntry& bo) {
    return bo.gpu_id == gpu_id && kfd::has_contents(bo.alloc_flags) && !bo.imports;
  });
}

Result<RestoreSurvey> RestoreSurvey::read() {
  RestoreSurvey survey;
  SLUICE_TRY(survey.read_kfd_images());
  SLUICE_TRY(survey.read_render_images());
  SLUICE_TRY(survey.read_dmabuf_images());
  return survey;
}

Result<void> RestoreSurvey::read_kfd_images() {
  const auto names = kfd_images();
  if (!names) return {};
  for (const std::string& name : *names) {
    const auto payload = load_image(name);
    const auto image = payload ? unpack_kfd_image(*payload, name) : Result<kfd::KfdImage>(payload.error());
    if (!image) continue;
    SLUICE_TRY(same_dump_.add(name, image->dump_id));
    has_record_bytes_ = has_record_bytes_ || record_bytes_of(*image) != 0;
    if (const auto id = id_of_image(name); id && !image->alias_of) kfd_pids_.emplace(*id, image->pid);
    for (const kfd::BoEntry& bo : image->bos) {
      if (bo.shared != 0 && !bo.imports) shared_numbers_.insert(bo.shared);
    }
    for (const kfd::Node& gpu : image->topology.nodes) {
      if (!gpu.is_gpu() || !gpu_has_contents(*image, gpu.gpu_id)) continue;
      ++lanes_by_minor_[gpu.drm_render_minor];
      mapped_files_[{image->pid, gpu.drm_render_minor}].acquired = true;
    }
  }
  return {};
}

Result<void> RestoreSurvey::read_render_images() {
  const auto names = render_images();
  if (!names) return {};
  for (const std::string& name : *names) {
    const auto payload = load_image(name);
    const auto image = payload ? unpack_render_image(*payload, name) : Result<RenderImage>(payload.error());
    if (!image) continue;
    SLUICE_TRY(same_dump_.add(name, image->dump_id));
    if (const auto id = id_of_image(name); id && image->pid) render_pids_.emplace(*id, *image->pid);
    for (const RenderBo& bo : image->bos) {
      if (bo.shared != 0 && !bo.imports) shared_numbers_.insert(bo.shared);
    }
    if (image->has_contents()) ++lanes_by_minor_[image->minor];
    if (!image->pid || !image->has_mappable_bos()) continue;
    MappedFiles& files = mapped_files_[{*image->pid, image->minor}];
    if (image->kfd_acquired.value_or(false)) {
      files.acquired = true;
    } else {
      ++files.others;
    }
  }
  return {};
}

Result<void> RestoreSurvey::read_dmabuf_images() {
  const auto names = dmabuf_images();
  if (!names) return {};
  for (const std::string& name : *names) {
    const auto payload = load_image(name);
    const auto image = payload ? unpack_dmabuf_image(*payload, name) : Result<DmaBufImage>(payload.error());
    if (image) SLUICE_TRY(same_dump_.add(name, image->dump_id));
  }
  return {};
}

unsigned RestoreSurvey::lanes_on(std::uint32_t source_minor) const {
  const auto lanes = lanes_by_minor_.find(source_minor);
  return lanes != lanes_by_minor_.end() ? lanes->second : 1;
}

std::size_t RestoreSurvey::all_lanes() const {
  std::size_t lanes = 0;
  for (const auto& [minor, of_gpu] : lanes_by_minor_) lanes += of_gpu;
  return std::max<std::size_t>(lanes, 1);
}

bool RestoreSurvey::maps_several_files(std::uint32_t pid, std::uint32_t source_minor) const {
  const auto files = mapped_files_.find({pid, source_minor});
  return files != mapped_files_.end() && files->second.others + (files->second.acquired ? 1 : 0) > 1;
}

}  // namespace sluice::plugin
