// SPDX-License-Identifier: MIT
#include "plugin/restore/restore_survey.h"

#include <algorithm>
#include <cerrno>

#include "base/format.h"
#include "images/checkpoint.h"
#include "images/files/files.h"
#include "images/files/key.h"
#include "images/metadata.h"
#include "images/pages.h"
#include "images/sums.h"
#include "kfd/records/queue_records.h"
#include "kfd/uapi.h"
#include "plugin/host/criu_host.h"

namespace sluice::plugin {

namespace {

bool has_delta_files(const ImageStore& store) {
  const std::optional<int> directory = store.directory();
  if (!directory) return false;
  const auto names = list_names(*directory);
  return names && std::any_of(names->begin(), names->end(),
                              [](const std::string& name) { return name.starts_with(kDeltaPrefix); });
}

// The dump that has contents missing in the set's own files; all zero: none.
Result<DumpId> parent_of(ImageStore& store, int id, const PagesSet& set,
                         const std::optional<DumpId>& dump_id) {
  SLUICE_TRY_ASSIGN(const ImageLayout layout, set.layout(kSumBlockBytes));
  SLUICE_TRY_ASSIGN(const std::optional<Sidecar> sidecar,
                    take_sidecar(store.load_once(set.sums_name(id)), id, set, layout,
                                 dump_id.value_or(DumpId{}), store.keys()));
  return sidecar ? sidecar->parent_dump_id : DumpId{};
}

// Dumps of sluice 0.2 and of upstream's plugin did not look for waves.
void warn_of_lost_waves(const kfd::KfdImage& image) {
  const auto records = private_records(image);
  const auto losses = records ? kfd::losses_of_queues(*records, image.topology) : kfd::QueueLosses();
  if (losses.no_stack != 0) {
    log_line(Level::Warning,
             formatted("process {} gets {} queues in which this kernel cannot stop running kernels: those "
                       "never end if it does; restore under Linux 6.12, or let nothing else use the GPU "
                       "[SL-R86]",
                       image.pid, losses.no_stack));
  }
  const std::size_t queues = losses.waves;
  if (queues == 0) return;
  log_line(
      Level::Warning,
      formatted("process {} was dumped while {} of its queues had running kernels whose waves the kernel "
                "did not save: they never end; use another checkpoint [SL-R85]",
                image.pid, queues));
}

}  // namespace

template <class Image>
Result<void> RestoreSurvey::note_all(ImageStore& store, const Checkpoint& checkpoint,
                                     const std::vector<NumberedImage<Image>>& images,
                                     std::string (*name_of)(int id)) {
  for (const auto& [id, image] : images) {
    const std::string name = checkpoint.name_of(name_of(id));
    SLUICE_TRY(same_dump_.add(name, image.dump_id, image.id));
    SLUICE_TRY(undeclared_sharing_.add(name, image));
    seen_.insert(name);
    note(image, id);
    if (has_deltas_ && parent_dump_id_ == DumpId{}) SLUICE_TRY(note_parent(store, image, id));
  }
  return {};
}

Result<RestoreSurvey> RestoreSurvey::read(ImageStore& store) {
  RestoreSurvey survey;
  survey.store_ = &store;
  if (const auto dump = store.dump_of_index()) {
    if (*dump) SLUICE_TRY(survey.same_dump_.add(kIndexImage, *dump, std::nullopt));
  } else if (dump.error().err == EBADMSG || store.keys().any()) {
    return dump.error();
  }
  const auto checkpoint = read_checkpoint(store);
  if (!checkpoint) {  // CRIU may not ask for any image, so it is no error yet
    survey.unread_ = checkpoint.error();
    return survey;
  }
  if (checkpoint->contradiction) return *checkpoint->contradiction;
  survey.unread_ = checkpoint->unread;
  survey.has_deltas_ = has_delta_files(store);
  SLUICE_TRY(survey.note_all(store, *checkpoint, checkpoint->kfd, kfd_image_name));
  SLUICE_TRY(survey.note_all(store, *checkpoint, checkpoint->render, render_image_name));
  SLUICE_TRY(survey.note_all(store, *checkpoint, checkpoint->dmabufs, dmabuf_image_name));
  return survey;
}

Result<void> RestoreSurvey::check_that_it_was_seen(const std::string& name) const {
  if (!store_->keys().any() || (store_->one_way() ? !same_dump_.empty() : seen_.contains(name))) return {};
  if (unread_) return *unread_;
  return Error{
      EKEYREJECTED,
      name +
          " was not there when the restore began; with a key, restore from a whole directory, or from a "
          "stream with its index [SL-R35]"};
}

Result<void> RestoreSurvey::note_parent(ImageStore& store, const kfd::KfdImage& image, int id) {
  for (const PagesSet& set : pages_of(image)) {
    if (parent_dump_id_ != DumpId{}) break;
    SLUICE_TRY_ASSIGN(parent_dump_id_, parent_of(store, id, set, image.dump_id));
  }
  return {};
}

Result<void> RestoreSurvey::note_parent(ImageStore& store, const RenderImage& image, int id) {
  if (!image.has_contents()) return {};
  SLUICE_TRY_ASSIGN(parent_dump_id_, parent_of(store, id, pages_of(image), image.dump_id));
  return {};
}

void RestoreSurvey::note(const kfd::KfdImage& image, int id) {
  if (records_.bo_bytes == 0) records_ = driver_records_of(image);
  if (!image.alias_of) kfd_pids_.emplace(id, image.pid);
  add_vram(vram_, vram_of(image));
  if (!image.alias_of) {
    kfd::add_topology(topologies_, image.topology);
    warn_of_lost_waves(image);
  }
  for (const kfd::BoEntry& bo : image.bos) {
    if (bo.shared != 0 && !bo.imports) shared_numbers_.insert(bo.shared);
  }
  for (const kfd::Node& gpu : image.topology.nodes) {
    if (!gpu.is_gpu() || !has_contents(image, gpu.gpu_id)) continue;
    ++lanes_by_minor_[gpu.drm_render_minor];
    mapped_files_[{image.pid, gpu.drm_render_minor}].acquired = true;
  }
}

void RestoreSurvey::note(const RenderImage& image, int id) {
  add_vram(vram_, vram_of(image));
  if (image.pid) render_pids_.emplace(id, *image.pid);
  if (image.minor == RenderImage::kUnknownMinor) {
    render_gpu_ids_.insert(image.gpu_id);
  } else if (!is_memory_of_dmabuf(id)) {
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
