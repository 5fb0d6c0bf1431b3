// SPDX-License-Identifier: MIT
#include "plugin/restore/task/kfd_restore.h"

#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/format.h"
#include "images/files/files.h"
#include "images/metadata.h"
#include "images/pages.h"
#include "images/vram_need.h"
#include "kfd/records/private_data.h"
#include "kfd/uapi.h"
#include "plugin/restore/gpus/unnamed_gpus.h"

namespace sluice::plugin {

namespace {

// For RESTORE the KFD requires its capability in the initial user namespace, so no task in a user namespace
// made by CRIU has it. The initial one has a fixed inode (PROC_USER_INIT_INO, include/linux/proc_ns.h).
Result<void> check_user_namespace() {
  constexpr ino_t kInitialUserNamespace = 0xEFFFFFFD;
  struct stat st {};
  if (stat("/proc/self/ns/user", &st) != 0 || st.st_ino == kInitialUserNamespace) return {};
  return Error{EPERM,
               "this task is restored into a user namespace, but the kernel creates KFD state only in the "
               "initial one; "
               "restore without --userns [SL-R23]"};
}

// The id by which a task that never saw the GPU will know it: the GPU's own, unless another GPU has that for
// the task.
std::uint32_t free_gpu_id(std::span<const kfd::RestoreDevice> devices, std::uint32_t gpu_id) {
  const auto taken = [&](std::uint32_t id) {
    return std::any_of(devices.begin(), devices.end(),
                       [id](const kfd::RestoreDevice& device) { return device.user_gpu_id == id; });
  };
  while (taken(gpu_id)) gpu_id = gpu_id % kfd::kGpuIdMax + 1;
  return gpu_id;
}

// RESTORE, without imported BOs and with the GPUs that the image does not name. Returns one entry per BO of
// the image, empty for those imported later.
Result<std::vector<kfd::RestoredBo>> restore_process(const kfd::KfdDevice& own, const KfdImage& image,
                                                     std::span<const kfd::RestoreDevice> devices) {
  std::vector<kfd::KfdBo> made;
  std::vector<std::size_t> imported;
  for (std::size_t i = 0; i < image.bos.size(); ++i) {
    const BoEntry& bo = image.bos[i];
    if (bo.imports) {
      imported.push_back(i);
    } else {
      made.push_back(bo);
    }
  }
  std::vector<std::uint32_t> more_gpu_ids;
  for (const kfd::RestoreDevice& device : devices) {
    if (image.topology.find_gpu(device.user_gpu_id) == nullptr) more_gpu_ids.push_back(device.user_gpu_id);
  }
  if (imported.empty() && more_gpu_ids.empty())
    return kfd::restore(own, devices, made, image.num_objects, image.priv_data);
  SLUICE_TRY_ASSIGN(const kfd::PrivateData records, private_records(image));
  SLUICE_TRY_ASSIGN(
      std::vector<kfd::RestoredBo> restored,
      kfd::restore(own, devices, made, image.num_objects, records.edit(imported, more_gpu_ids)));
  std::vector<kfd::RestoredBo> all(image.bos.size());
  for (std::size_t i = 0, next = 0; i < all.size(); ++i) {
    if (!image.bos[i].imports) all[i] = std::move(restored[next++]);
  }
  return all;
}

}  // namespace

// The steps of a restore.
Result<UniqueFd> KfdRestore::restore(const KfdImage& image, int id) {
  SLUICE_TRY_ASSIGN(kfd::KfdDevice own, kfd::KfdDevice::open(task_.basis.kfd_device));
  if (image.alias_of) return another_file_of(image, id, std::move(own));
  task_.maps.set_task(image.pid);
  SLUICE_TRY(task_.maps.read_runs(task_.basis.store));
  SLUICE_TRY(check_user_namespace());
  SLUICE_TRY(task_.gpus.match(image, task_.basis.config.match_rules));
  SLUICE_TRY(check_private_data(image, task_.gpus.local().gpu_count(), task_.basis.record_bytes));
  SLUICE_TRY_ASSIGN(const std::vector<kfd::RestoreDevice> devices, devices_of(image));
  SLUICE_TRY_ASSIGN(std::vector<kfd::RestoredBo> restored, make_bos(own, image, devices));
  SLUICE_TRY_ASSIGN(ContentRequest request, request_of(image, id, std::move(restored)));
  SLUICE_TRY(task_.contents.fill(std::move(request)));
  if (image.shm.bytes != 0) SLUICE_TRY(kfd::restore_hsakmt_shm(image.shm));
  SLUICE_TRY_ASSIGN(UniqueFd file, task_.maps.make_high(std::move(own).take_fd()));
  SLUICE_TRY_ASSIGN(std::vector<Import> imports, imports_of(image));
  if (!imports.empty()) importing_.push_back({id, file.get(), image, std::move(imports)});
  restored_ids_.push_back(id);
  task_.maps.kfd_has_files(minors_of_files_to_come(image));
  return file;
}

// Another file of an existing KFD process: files come in order of their numbers.
Result<UniqueFd> KfdRestore::another_file_of(const KfdImage& image, int id, kfd::KfdDevice own) const {
  const int first = static_cast<int>(*image.alias_of);
  // unreached: no test
  if (std::find(restored_ids_.begin(), restored_ids_.end(), first) == restored_ids_.end()) {
    return Error{
        EINVAL,
        formatted("{} belongs to file {}, which this task has not restored; use another checkpoint [SL-R24]",
                  kfd_image_name(id), first)};
  }
  return std::move(own).take_fd();
}

Result<std::vector<kfd::RestoreDevice>> KfdRestore::devices_of(const KfdImage& image) {
  std::vector<kfd::RestoreDevice> devices;
  for (const kfd::Node& source : image.topology.nodes) {
    if (!source.is_gpu()) continue;
    SLUICE_TRY_ASSIGN(const kfd::Node* gpu, task_.gpus.local_gpu(source.gpu_id));
    SLUICE_TRY_ASSIGN(const int acquired, task_.maps.acquire(gpu->drm_render_minor));
    devices.push_back({source.gpu_id, gpu->gpu_id, acquired});
  }
  // The kernel requires every GPU that the task sees.
  const std::size_t had = image.topology.gpu_count(), sees = task_.gpus.local().gpu_count();
  for (const kfd::Node& node : task_.gpus.local().nodes) {
    const bool is_named = std::any_of(devices.begin(), devices.end(), [&](const kfd::RestoreDevice& device) {
      return device.actual_gpu_id == node.gpu_id;
    });
    if (!node.is_gpu() || is_named) continue;
    SLUICE_TRY_ASSIGN(const int acquired,
                      task_.maps.acquire_unnamed(node.drm_render_minor, sees_more_gpus(had, sees)));
    devices.push_back({free_gpu_id(devices, node.gpu_id), node.gpu_id, acquired});
  }
  warn_of_more_gpus(image.pid, had, sees, task_.maps.acquired_outside());
  return devices;
}

// Creates the BOs and publishes shared ones.
Result<std::vector<kfd::RestoredBo>> KfdRestore::make_bos(const kfd::KfdDevice& own, const KfdImage& image,
                                                          std::span<const kfd::RestoreDevice> devices) {
  const GpuMatch::Rooms rooms = task_.gpus.rooms();
  auto restored = restore_process(own, image, devices);
  if (!restored) return task_.gpus.explain(restored.error(), vram_of(image), rooms);
  task_.gpus.allocated(vram_of(image));
  for (std::size_t i = 0; i < restored->size(); ++i) {
    const BoEntry& bo = image.bos[i];
    const kfd::RestoredBo& made = (*restored)[i];
    if (bo.imports) continue;
    SLUICE_TRY(note_mapped(image, bo, made.offset, made.dmabuf.get()));
    SLUICE_TRY(task_.basis.publish(bo.shared, made.dmabuf.get()));
  }
  return restored;
}

// Notes where a BO is mapped now, for UPDATE_VMA_MAP.
Result<void> KfdRestore::note_mapped(const KfdImage& image, const BoEntry& bo, std::uint64_t new_offset,
                                     int dmabuf) {
  const std::uint32_t source_minor = image.topology.find_gpu(bo.gpu_id)->drm_render_minor;
  SLUICE_TRY_ASSIGN(const kfd::Node* gpu, task_.gpus.local_gpu(bo.gpu_id));
  const bool in_kfd = (bo.alloc_flags & (kfd::kAllocDoorbell | kfd::kAllocMmioRemap)) != 0;
  if (!in_kfd && !kfd::has_contents(bo.alloc_flags)) return {};  // userptr: to the CPU it is ordinary memory
  DeviceMaps& maps = task_.maps;
  maps.add({in_kfd, source_minor, gpu->drm_render_minor, bo.offset, bo.bytes, new_offset, std::nullopt});
  if (in_kfd || !task_.basis.plan.maps_several_files(image.pid, source_minor) ||
      !maps.maps(bo.offset, bo.bytes))
    return {};
  return maps.allow_in_common_file(gpu->drm_render_minor, dmabuf);
}

Result<ContentRequest> KfdRestore::request_of(const KfdImage& image, int id,
                                              std::vector<kfd::RestoredBo> restored) const {
  ContentRequest request{id, image.dump_id.value_or(DumpId{}), {}};
  std::vector<UniqueFd> dmabufs;
  for (kfd::RestoredBo& bo : restored) dmabufs.push_back(std::move(bo.dmabuf));
  for (PagesSet& pages : pages_of(image)) {
    SLUICE_TRY_ASSIGN(const kfd::Node* gpu, task_.gpus.local_gpu(pages.gpu_id));
    const std::uint32_t source_minor = image.topology.find_gpu(pages.gpu_id)->drm_render_minor;
    request.lanes.push_back(task_.contents.lane(std::move(pages), dmabufs, *gpu, source_minor));
  }
  return request;
}

// Local GPUs of which the task gets a render file, sooner or later.
std::set<std::uint32_t> KfdRestore::minors_of_files_to_come(const KfdImage& image) const {
  std::set<std::uint32_t> minors;
  for (const kfd::Node& source : image.topology.nodes) {
    if (!source.is_gpu() || !task_.basis.plan.may_restore_render_file(image.pid, source)) continue;
    if (const auto gpu = task_.gpus.local_gpu(source.gpu_id)) minors.insert((*gpu)->drm_render_minor);
  }
  return minors;
}

// In ascending order of their handles on each GPU.
Result<std::vector<KfdRestore::Import>> KfdRestore::imports_of(const KfdImage& image) {
  std::vector<Import> imports;
  for (std::size_t i = 0; i < image.bos.size(); ++i) {
    const BoEntry& bo = image.bos[i];
    if (bo.imports) imports.push_back({i, {bo.addr, bo.bytes, bo.gpu_id, 0, {}}});
  }
  if (imports.empty()) return imports;
  SLUICE_TRY_ASSIGN(const kfd::PrivateData records, private_records(image));
  for (Import& import : imports) {
    kfd::PrivateData::BoRecord record = records.bo(import.index);
    import.bo.handle = record.handle;
    import.bo.mapped_gpu_ids = std::move(record.mapped_gpu_ids);
  }
  std::sort(imports.begin(), imports.end(), [](const Import& a, const Import& b) {
    return std::pair(a.bo.gpu_id, a.bo.handle) < std::pair(b.bo.gpu_id, b.bo.handle);  // unreached: too large
  });
  return imports;
}

bool KfdRestore::will_map(std::uint32_t shared, std::uint32_t user_gpu_id, std::uint64_t address) const {
  for (const Importing& process : importing_) {
    for (const Import& import : process.imports) {
      const std::vector<std::uint32_t>& mapped = import.bo.mapped_gpu_ids;
      if (process.image.bos[import.index].shared == shared && import.bo.addr == address &&
          std::find(mapped.begin(), mapped.end(), user_gpu_id) != mapped.end())
        return true;
    }
  }
  return false;
}

Result<void> KfdRestore::import_bos() {
  for (const Importing& process : importing_) {
    kfd::BoImport kfd(process.file);
    for (const Import& next : process.imports) {
      if (const auto imported = import_bo(process, kfd, next); !imported)
        return explain(kfd_image_name(process.id), imported.error());
    }
  }
  importing_.clear();
  return {};
}

Result<void> KfdRestore::import_bo(const Importing& process, kfd::BoImport& kfd, const Import& next) {
  const BoEntry& bo = process.image.bos[next.index];
  SLUICE_TRY_ASSIGN(const UniqueFd dmabuf, task_.basis.take_shared(bo.shared));
  SLUICE_TRY(kfd.import(next.bo, dmabuf.get()));
  SLUICE_TRY_ASSIGN(const kfd::Node* gpu, task_.gpus.local_gpu(bo.gpu_id));
  SLUICE_TRY_ASSIGN(const std::uint64_t offset,
                    task_.maps.mmap_offset_of(gpu->drm_render_minor, dmabuf.get()));
  return note_mapped(process.image, bo, offset, dmabuf.get());
}

}  // namespace sluice::plugin
