// SPDX-License-Identifier: MIT
#include "plugin/restore/plan/restore_plan.h"

#include <algorithm>

#include "base/format.h"
#include "images/files/files.h"
#include "images/vram_need.h"
#include "kfd/records/queue_records.h"
#include "plugin/host/image_store.h"

namespace sluice::plugin {

namespace {

// Dumps of sluice 0.2 and of upstream's plugin did not look for waves.
void warn_of_lost_waves(RestorePlan& plan, const KfdImage& image, const kfd::PrivateData& records) {
  const kfd::QueueLosses losses = kfd::losses_of_queues(records, image.topology);
  if (losses.no_stack != 0) {
    plan.warnings.push_back(
        formatted("process {} gets {} queues in which this kernel cannot stop running kernels: those "
                  "never end if it does; restore under Linux 6.12, or let nothing else use the GPU "
                  "[SL-R86]",
                  image.pid, losses.no_stack));
  }
  if (losses.waves == 0) return;
  plan.warnings.push_back(
      formatted("process {} was dumped while {} of its queues had running kernels whose waves the kernel "
                "did not save: they never end; use another checkpoint [SL-R85]",
                image.pid, losses.waves));
}

void note_ipc_memory(RestorePlan& plan, const KfdImage& image, const kfd::PrivateData& records) {
  for (std::size_t i = 0; i < image.bos.size(); ++i) {
    const auto ipc = image.bos[i].imports ? std::nullopt : records.bo(i).ipc;
    if (ipc) plan.ipc_memory.push_back({image.pid, ipc->handle});
  }
}

template <class Bos>
void note_shared(RestorePlan& plan, const Bos& bos) {
  for (const auto& bo : bos) {
    if (bo.shared != 0 && !bo.imports) plan.shared_numbers.insert(bo.shared);
  }
}

void note(RestorePlan& plan, const KfdImage& image, int id) {
  if (plan.records.bo_bytes == 0) plan.records = driver_records_of(image);
  add_vram(plan.gpus.need, vram_of(image));
  if (!image.alias_of) {
    plan.kfd_pids.emplace(id, image.pid);
    kfd::add_topology(plan.topologies, image.topology);
    if (const auto records = private_records(image)) {
      warn_of_lost_waves(plan, image, *records);
      note_ipc_memory(plan, image, *records);
    }
  }
  note_shared(plan, image.bos);
  for (const kfd::Node& gpu : image.topology.nodes) {
    if (!gpu.is_gpu() || !has_contents(image, gpu.gpu_id)) continue;
    ++plan.lanes_by_minor[gpu.drm_render_minor];
    plan.mapped_files[{image.pid, gpu.drm_render_minor}].acquired = true;
  }
}

void note(RestorePlan& plan, const RenderImage& image, int id) {
  add_vram(plan.gpus.need, vram_of(image));
  if (image.pid) plan.render_pids.emplace(id, *image.pid);
  if (image.minor == RenderImage::kUnknownMinor) {
    plan.render_gpu_ids.insert(image.gpu_id);
  } else if (!is_memory_of_dmabuf(id)) {
    plan.render_files.emplace(image.pid, image.minor);
  }
  note_shared(plan, image.bos);
  if (image.has_contents()) ++plan.lanes_by_minor[image.minor];
  if (!image.pid || !image.has_mappable_bos()) return;
  RestorePlan::MappedFiles& files = plan.mapped_files[{*image.pid, image.minor}];
  if (image.kfd_acquired.value_or(false)) {
    files.acquired = true;
  } else {
    ++files.others;
  }
}

// Irrelevant until a task asks for it.
void note(RestorePlan&, const DmaBufImage&, int) {}

template <class Image>
Result<void> note_all(RestorePlan& plan, const std::vector<NumberedImage<Image>>& images,
                      std::string (*name_of)(int id)) {
  for (const auto& [id, image] : images) {
    const std::string name = plan.found.checkpoint.name_of(name_of(id));
    SLUICE_TRY(plan.same_dump.add(name, image.dump_id, image.id));
    SLUICE_TRY(plan.undeclared_sharing.add(name, image));
    note(plan, image, id);
  }
  return {};
}

}  // namespace

Result<RestorePlan> plan_restore(FoundImages found) {
  RestorePlan plan;
  plan.found = std::move(found);
  const Checkpoint& checkpoint = plan.found.checkpoint;
  if (plan.found.index_dump) SLUICE_TRY(plan.same_dump.add(kIndexImage, plan.found.index_dump, std::nullopt));
  SLUICE_TRY(note_all(plan, checkpoint.kfd, kfd_image_name));
  SLUICE_TRY(note_all(plan, checkpoint.render, render_image_name));
  SLUICE_TRY(note_all(plan, checkpoint.dmabufs, dmabuf_image_name));
  for (const auto& [id, image] : checkpoint.kfd)
    plan.read_by_several.insert(image.replica_files.begin(), image.replica_files.end());
  if (!plan.topologies.empty()) plan.gpus.widest = plan.topologies.front();
  return plan;
}

bool RestorePlan::may_restore_render_file(std::uint32_t pid, const kfd::Node& source) const {
  const std::uint32_t minor = source.drm_render_minor;
  return render_files.contains({pid, minor}) || render_files.contains({std::nullopt, minor}) ||
         render_gpu_ids.contains(source.gpu_id);
}

unsigned RestorePlan::lanes_on(std::uint32_t source_minor) const {
  const auto lanes = lanes_by_minor.find(source_minor);
  return lanes != lanes_by_minor.end() ? lanes->second : 1;
}

std::size_t RestorePlan::all_lanes() const {
  std::size_t lanes = 0;
  for (const auto& [minor, of_gpu] : lanes_by_minor) lanes += of_gpu;
  return std::max<std::size_t>(lanes, 1);
}

bool RestorePlan::maps_several_files(std::uint32_t pid, std::uint32_t source_minor) const {
  const auto files = mapped_files.find({pid, source_minor});
  return files != mapped_files.end() && files->second.others + (files->second.acquired ? 1 : 0) > 1;
}

}  // namespace sluice::plugin
