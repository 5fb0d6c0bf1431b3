// SPDX-License-Identifier: MIT
#include "plugin/dump/process_dump.h"

#include <sys/utsname.h>

#include <algorithm>

#include "images/files.h"
#include "images/metadata.h"
#include "kfd/hsakmt_shm.h"
#include "kfd/private_data.h"
#include "kfd/uapi.h"
#include "plugin/contents/machine.h"
#include "plugin/dump/render_maps.h"
#include "plugin/host/image_store.h"
#include "proc/processes.h"

namespace sluice::plugin {

namespace {

std::string kernel_release() {
  utsname names{};
  return uname(&names) == 0 ? names.release : "";
}

std::vector<kfd::BoEntry> bo_entries(const kfd::Checkpoint& checkpoint) {
  std::vector<kfd::BoEntry> bos;
  bos.reserve(checkpoint.bos.size());
  for (const kfd::CheckpointBo& bo : checkpoint.bos) {
    bos.push_back({bo.addr, bo.bytes, bo.offset, bo.alloc_flags, bo.gpu_id});
  }
  return bos;
}

// CRIU restores a file in the process of the lowest pid that holds it, and the KFD process becomes that
// one's. `owner`: the process that opened it, as PROCESS_INFO says, in its own pid namespace.
Result<void> check_owner(pid_t owner, const std::vector<pid_t>& holders) {
  const std::optional<std::uint32_t> lowest = kfd::restoring_process(holders).innermost;
  if (!lowest || *lowest == static_cast<std::uint32_t>(owner)) return {};
  return Error{EINVAL, "a file of /dev/kfd was opened by process " + std::to_string(owner) +
                           " and would be restored in process " + std::to_string(*lowest) +
                           ", which has inherited it; that is not supported: the process that opened it must "
                           "keep it, and have the lowest pid of all that hold it"};
}

}  // namespace

// As a table of contents.
Result<std::unique_ptr<ProcessDump>> ProcessDump::begin(kfd::CriuSession& session,
                                                        const std::vector<pid_t>& holders, DumpRun& run) {
  std::unique_ptr<ProcessDump> process(new ProcessDump(session, run));
  const auto answer = session.process_info();
  if (!answer && answer.error().err == EBADF) {
    return Error{EBADF,
                 "a file of /dev/kfd was opened by a process that is gone or not part of this dump, and "
                 "inherited: " +
                     session.name() + " must close it (" + answer.error().what + ")"};
  }
  if (!answer) return answer.error();
  if (session.found_paused()) {
    log_line(Level::Warning, session.name() + ": an older dump was killed and had left its queues paused");
  }
  const kfd::ProcessInfo info = *answer;
  SLUICE_TRY(check_owner(static_cast<pid_t>(info.pid), holders));
  SLUICE_TRY_ASSIGN(kfd::Checkpoint checkpoint, session.checkpoint());
  process->note_maps(checkpoint, kfd::restoring_process(holders).pid);
  log_line(Level::Info, session.name() + ": " + std::to_string(info.num_devices) + " GPUs, " +
                            std::to_string(info.num_bos) + " BOs, " + std::to_string(info.num_objects) +
                            " queues, events and SVM ranges");
  kfd::KfdImage& image = process->image_;
  image.pid = info.pid;
  SLUICE_TRY_ASSIGN(image.topology, kfd::topology_of_process(run.topology, checkpoint.devices));
  image.bos = bo_entries(checkpoint);
  image.num_objects = info.num_objects;
  SLUICE_TRY_ASSIGN(const std::optional<kfd::HsakmtShm> shm, kfd::read_hsakmt_shm());
  image.shm = shm.value_or(kfd::HsakmtShm{});
  image.bo_record_bytes =
      kfd::derive_bo_record_bytes({info.num_devices, info.num_bos, info.num_objects}, checkpoint.priv_data);
  image.priv_data = std::move(checkpoint.priv_data);
  image.sluice_version = SLUICE_VERSION;
  image.kernel_release = kernel_release();
  image.kfd_minor_version = run.kfd_minor_version;
  image.dump_id = run.dump_id;
  image.has_sums = run.config.checksum;
  SLUICE_TRY(process->sort_contents(checkpoint));
  return process;
}

// What the process may map of render nodes.
void ProcessDump::note_maps(const kfd::Checkpoint& checkpoint, pid_t pid) {
  std::map<std::uint32_t, std::uint32_t> minors;  // by user gpu_id
  for (const kfd::DeviceIds& ids : checkpoint.devices) {
    if (const kfd::Node* node = run_.topology.find_gpu(ids.actual_gpu_id))
      minors.emplace(ids.user_gpu_id, node->drm_render_minor);
  }
  BoRanges& ranges = run_.maps[pid];
  for (const kfd::CheckpointBo& bo : checkpoint.bos) {
    if (kfd::has_contents(bo.alloc_flags))
      ranges.emplace(std::pair(minors[bo.gpu_id], bo.offset), bo.offset + bo.bytes);
  }
}

// Sorts the BOs that have contents by GPU, in bucket order, and takes their dma-bufs.
Result<void> ProcessDump::sort_contents(kfd::Checkpoint& checkpoint) {
  for (const kfd::DeviceIds& ids : checkpoint.devices) {
    const kfd::Node* node = run_.topology.find_gpu(ids.actual_gpu_id);
    if (node == nullptr) {
      return Error{ENODEV, "the process has GPU " + std::to_string(ids.actual_gpu_id) +
                               ", which the topology in sysfs lacks"};
    }
    gpus_.push_back({node->drm_render_minor, ids.user_gpu_id, std::nullopt});
    GpuContents gpu;
    gpu.gpu_id = ids.user_gpu_id;
    gpu.render_minor = node->drm_render_minor;
    gpu.numa_node = numa_node_of_render_minor(node->drm_render_minor);
    gpu.bo_table_digest = bo_table_digest(image_.bos, ids.user_gpu_id);
    for (std::size_t i = 0; i < checkpoint.bos.size(); ++i) {
      kfd::CheckpointBo& bo = checkpoint.bos[i];
      if (bo.gpu_id != ids.user_gpu_id || !kfd::has_contents(bo.alloc_flags)) continue;
      SharedBos::Holder holder{.name = session_.name() + "'s BO at " + hex(bo.addr), .kfd = true};
      holder.looks_imported = (bo.alloc_flags & ~kfd::kAllocFlagsOfImports) == 0;
      holder.shared = &image_.bos[i].shared;
      holder.kfd_handle = &image_.bos[i].handle;
      holder.imports = &image_.bos[i].imports;
      holder.place = {node->drm_render_minor, bo.offset};
      SLUICE_TRY(run_.shared_bos.add(bo.dmabuf.get(), std::move(holder)));
      gpu.bos.push_back({bo.bytes, bo.addr, std::move(bo.dmabuf), static_cast<std::uint32_t>(i)});
    }
    contents_of_gpus_.push_back(std::move(gpu));
  }
  return {};
}

Result<void> ProcessDump::take_contents() {
  SLUICE_TRY(check_imports());
  for (GpuContents& gpu : std::exchange(contents_of_gpus_, {})) {
    std::erase_if(gpu.bos, [this](const ContentBo& bo) { return image_.bos[bo.number].imports; });
    if (gpu.bos.empty()) {
      empty_gpus_.push_back(gpu.gpu_id);
    } else {
      contents_.waiting().push_back(std::move(gpu));
    }
  }
  return {};
}

// A restore has to know which of the private data's records is whose.
Result<void> ProcessDump::check_imports() const {
  const auto import =
      std::find_if(image_.bos.begin(), image_.bos.end(), [](const kfd::BoEntry& bo) { return bo.imports; });
  if (import == image_.bos.end()) return {};
  const auto records = private_records(image_);
  if (records) return {};
  return explain(
      session_.name() + "'s BO at " + hex(import->addr) + " is shared by dma-buf and cannot be restored so",
      records.error());
}

std::vector<ProcessGpu> ProcessDump::gpus() const {
  std::vector<ProcessGpu> gpus = gpus_;
  for (ProcessGpu& gpu : gpus) {
    const auto own = std::find_if(image_.bos.begin(), image_.bos.end(), [&](const kfd::BoEntry& bo) {
      return bo.gpu_id == gpu.user_gpu_id && bo.shared == 0 && kfd::has_contents(bo.alloc_flags);
    });
    if (own != image_.bos.end()) gpu.bo_offset = own->offset;
  }
  return gpus;
}

Result<void> ProcessDump::finish(int id) {
  image_.id = static_cast<std::uint32_t>(id);
  run_.images.add_metadata(kfd_image_name(id));
  SLUICE_TRY(finish_contents(id));
  for (const kfd::BoEntry& bo : image_.bos) run_.shared_bos.note_saved(bo.shared, bo.imports);
  return {};
}

Result<void> ProcessDump::write(int id) {
  SLUICE_TRY(run_.save(kfd_image_name(id), pack_kfd_image(image_)));
  contents_.write_stats(id);
  return {};
}

// A GPU without contents has a file of the bare header, as upstream's.
Result<void> ProcessDump::finish_contents(int id) {
  SLUICE_TRY(contents_.join(id));
  for (const std::uint32_t gpu_id : empty_gpus_) {
    run_.images.add(pages_image_name(id, gpu_id));
    SLUICE_TRY(save_image(pages_image_name(id, gpu_id), {}, run_.config.sync));
  }
  if (run_.config.sync) SLUICE_TRY(sync_images());
  return {};
}

}  // namespace sluice::plugin
