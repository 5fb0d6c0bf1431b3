// SPDX-License-Identifier: MIT
#include "plugin/restore/restore_task.h"

#include <utility>
#include <variant>

#include "images/files/files.h"

namespace sluice::plugin {

RestoreTask::RestoreTask(RestorePlan& plan, std::optional<int> server)
    : parts_{.plan = plan, .contents = TaskContents(plan, server)} {
  parts_.gpus.join(plan.tree_match.get());
}

Result<Answer> RestoreTask::restore_file(int id) {
  if (!parts_.plan.needed) return Answer();  // unreached: a guard
  SLUICE_TRY_ASSIGN(UniqueFd file, find_or_make(id));
  if (!file) return Answer();
  parts_.plan.lifeline->note_file();  // no file comes otherwise: there is a KFD
  return Answer(file.release());
}

Result<UniqueFd> RestoreTask::find_or_make(int id) {
  RestorePlan& plan = parts_.plan;
  if (plan.shared) {
    for (const auto* pids : {&plan.survey.kfd_pids(), &plan.survey.render_pids()}) {
      if (const auto pid = pids->find(id); pid != pids->end()) SLUICE_TRY(make_all(pid->second));
    }
    if (const auto made = made_.find(id); made != made_.end() && made->second) return std::move(made->second);
  }
  SLUICE_TRY_ASSIGN(std::optional<DeviceImage> image, plan.load_device_image(id));
  if (!image) return UniqueFd();
  if (const auto* dmabuf = std::get_if<DmaBufImage>(&*image)) {
    if (dmabuf->pid && plan.shared) SLUICE_TRY(make_all(*dmabuf->pid));
    return plan.take_shared(dmabuf->shared);
  }
  SLUICE_TRY_ASSIGN(UniqueFd file, make(std::move(*image), id));
  SLUICE_TRY(import_bos());
  return file;
}

// REQUIRES: not the image of a dma-buf, which is made with a file.
Result<UniqueFd> RestoreTask::make(DeviceImage image, int id) {
  auto* render = std::get_if<RenderImage>(&image);
  SLUICE_TRY_ASSIGN(UniqueFd file, render != nullptr ? render_.restore(std::move(*render), id)
                                                     : kfd_.restore(std::get<kfd::KfdImage>(image), id));
  restored_device_ = true;
  return file;
}

// All files of the process, so that others can import what it makes; then its own imports.
Result<void> RestoreTask::make_all(std::uint32_t pid) {
  if (std::exchange(all_made_, true)) return {};
  RestorePlan& plan = parts_.plan;
  parts_.maps.set_task(pid);
  SLUICE_TRY(parts_.maps.read_runs(parts_.plan.store));
  for (const auto& [id, its_pid] : plan.survey.kfd_pids()) {
    if (its_pid != pid) continue;
    SLUICE_TRY_ASSIGN(kfd::KfdImage image, plan.load_kfd_image(id));
    SLUICE_TRY_ASSIGN(made_[id], make(std::move(image), id));
  }
  for (const auto& [id, its_pid] : plan.survey.render_pids()) {
    if (its_pid != pid) continue;
    SLUICE_TRY_ASSIGN(RenderImage image, plan.load_render_image(id));
    SLUICE_TRY_ASSIGN(UniqueFd file, make(std::move(image), id));
    if (!is_memory_of_dmabuf(id)) made_[id] = std::move(file);
  }
  return import_bos();
}

Result<void> RestoreTask::import_bos() {
  SLUICE_TRY(kfd_.import_bos());
  return render_.import_bos();
}

Result<Answer> RestoreTask::update_map(const char* path, std::uint64_t address, std::uint64_t old_offset,
                                       std::uint64_t& new_offset, int& fd) {
  if (!restored_device_) return Answer();
  return parts_.maps.update(path, address, old_offset, new_offset, fd);
}

}  // namespace sluice::plugin
