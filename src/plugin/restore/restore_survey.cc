// SPDX-License-Identifier: MIT
#include "plugin/restore/restore_survey.h"

#include <algorithm>
#include <cerrno>

#include "images/files.h"
#include "images/key.h"
#include "kfd/uapi.h"
#include "plugin/host/criu_host.h"
#include "plugin/host/image_store.h"

namespace sluice::plugin {

namespace {

bool gpu_has_contents(const kfd::KfdImage& image, std::uint32_t gpu_id) {
  return std::any_of(image.bos.begin(), image.bos.end(), [gpu_id](const kfd::BoEntry& bo) {
    return bo.gpu_id == gpu_id && kfd::has_contents(bo.alloc_flags) && !bo.imports;
  });
}

}  // namespace

template <class Image>
Result<void> RestoreSurvey::read_images(const Result<std::vector<std::string>>& names,
                                        Result<Image> (*unpack)(std::span<const std::uint8_t>,
                                                                const std::string&)) {
  if (!names) {  // of a directory; that of a stream was read
    note_unread(names.error());
    return {};
  }
  for (const std::string& name : *names) {
    const auto payload = load_image(name);
    if (!payload) {
      note_unread(payload.error());
      continue;
    }
    const Result<Image> image = unpack(*payload, name);
    if (!image) continue;
    SLUICE_TRY(same_dump_.add(name, image->dump_id, image->id));
    SLUICE_TRY(unsaid_sharing_.add(name, *image));
    seen_.insert(name);
    note(*image, id_of_image(name));
  }
  return {};
}

Result<RestoreSurvey> RestoreSurvey::read() {
  RestoreSurvey survey;
  if (const auto stream = dump_of_stream()) {
    if (*stream) SLUICE_TRY(survey.same_dump_.add(kIndexImage, *stream, std::nullopt));
  } else if (stream.error().err == EBADMSG || has_image_key()) {
    return stream.error();
  }
  SLUICE_TRY(survey.read_images(kfd_images(), unpack_kfd_image));
  SLUICE_TRY(survey.read_images(render_images(), unpack_render_image));
  SLUICE_TRY(survey.read_images(dmabuf_images(), unpack_dmabuf_image));
  return survey;
}

// CRIU may not ask for it, so it fails nothing by itself. What is damaged, or no file, is nothing that could
// have been read.
void RestoreSurvey::note_unread(const Error& error) {
  const bool is_there = error.err != ENOENT && error.err != EBADMSG && error.err != EINVAL;
  if (is_there && !unread_) unread_ = error;
}

Result<void> RestoreSurvey::check_that_it_was_seen(const std::string& name) const {
  if (!has_image_key() || (streaming() ? !same_dump_.empty() : seen_.contains(name))) return {};
  if (unread_) return *unread_;
  return Error{EKEYREJECTED,
               name +
                   " was not to be seen when the restore began: with a key, an image stream has to have its "
                   "index, and a directory its images from the start"};
}

void RestoreSurvey::note(const kfd::KfdImage& image, std::optional<int> id) {
  has_record_bytes_ = has_record_bytes_ || record_bytes_of(image) != 0;
  if (id && !image.alias_of) kfd_pids_.emplace(*id, image.pid);
  add_vram(vram_, vram_of(image));
  if (!image.alias_of) note(image.topology);
  for (const kfd::BoEntry& bo : image.bos) {
    if (bo.shared != 0 && !bo.imports) shared_numbers_.insert(bo.shared);
  }
  for (const kfd::Node& gpu : image.topology.nodes) {
    if (!gpu.is_gpu() || !gpu_has_contents(image, gpu.gpu_id)) continue;
    ++lanes_by_minor_[gpu.drm_render_minor];
    mapped_files_[{image.pid, gpu.drm_render_minor}].acquired = true;
  }
}

void RestoreSurvey::note(const kfd::Topology& topology) {
  const auto same = [&](const kfd::Topology& known) { return known.nodes == topology.nodes; };
  if (std::any_of(topologies_.begin(), topologies_.end(), same)) return;
  const bool widest = topologies_.empty() || topology.gpu_count() > topologies_.front().gpu_count();
  topologies_.insert(widest ? topologies_.begin() : topologies_.end(), topology);
}

void RestoreSurvey::note(const RenderImage& image, std::optional<int> id) {
  add_vram(vram_, vram_of(image));
  if (id && image.pid) render_pids_.emplace(*id, *image.pid);
  if (image.minor == RenderImage::kUnknownMinor) {
    render_gpu_ids_.insert(image.gpu_id);
  } else if (!id || !is_memory_of_dmabuf(*id)) {
    render_files_.emplace(image.pid, image.minor);
  }
  for (const RenderBo& bo : image.bos) {
    if (bo.shared != 0 && !bo.imports) shared_numbers_.insert(bo.shared);
  }
  if (image.has_contents()) ++lanes_by_minor_[image.minor];
  if (!image.pid || !image.has_mappable_bos()) return;
  MappedFiles& files = mapped_files_[{*image.pid, image.minor}];
  if (image.kfd_acquired.value_or(false)) {
    files.acquired = true;
  } else {
    ++files.others;
  }
}

bool RestoreSurvey::may_restore_render_file(std::uint32_t pid, const kfd::Node& source) const {
  const std::uint32_t minor = source.drm_render_minor;
  return render_files_.contains({pid, minor}) || render_files_.contains({std::nullopt, minor}) ||
         render_gpu_ids_.contains(source.gpu_id);
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
