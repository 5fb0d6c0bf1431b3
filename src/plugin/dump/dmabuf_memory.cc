// SPDX-License-Identifier: MIT
#include "plugin/dump/dmabuf_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "drm/device.h"
#include "drm/target_file.h"
#include "plugin/host/criu_host.h"
#include "proc/processes.h"

namespace sluice::plugin {
namespace {

// From here on (GET_VERSION; Linux 6.3) CHECKPOINT and EXPORT_DMABUF give one dma-buf for one memory.
constexpr std::uint32_t kFirstMinorWithOneDmaBuf = 12;

// Descriptors that this process has of it: ours, and in older hosts those that CRIU has taken from the tasks.
Result<std::uint64_t> own_entries(const kfd::OpenDmaBuf& dmabuf) {
  SLUICE_TRY_ASSIGN(const std::vector<kfd::OpenDmaBuf> ours, kfd::open_dmabufs({getpid()}));
  const auto its = std::find_if(ours.begin(), ours.end(),
                                [&](const kfd::OpenDmaBuf& one) { return one.inode == dmabuf.inode; });
  return its != ours.end() ? its->entries : 0;
}

}  // namespace

Result<void> DmaBufs::list(const TargetTree& tree) {
  SLUICE_TRY_ASSIGN(const std::vector<pid_t> pids, tree.processes());
  SLUICE_TRY_ASSIGN(open_, kfd::open_dmabufs(pids));
  for (const kfd::OpenDmaBuf& dmabuf : open_) run_.shared_bos.add_descriptor(dmabuf.inode);
  return {};
}

Result<void> DmaBufs::find_memory(DumpedFiles& files) {
  const bool all = std::all_of(open_.begin(), open_.end(), [this](const kfd::OpenDmaBuf& dmabuf) {
    return run_.shared_bos.has_holder(dmabuf.inode);
  });
  if (all || !run_.ready) return {};
  const auto kfd = kfd::KfdDevice::open(run_.kfd_device);
  for (const kfd::OpenDmaBuf& dmabuf : open_) {
    if (run_.shared_bos.has_holder(dmabuf.inode)) continue;
    SLUICE_TRY(check_stopped(run_.shared));
    auto alone = kfd ? memory_of_none(dmabuf, *kfd) : Result<std::unique_ptr<RenderDump>>(kfd.error());
    if (!alone) {
      not_restored_.emplace(dmabuf.inode, std::move(alone).error());
    } else if (*alone) {
      SLUICE_TRY_ASSIGN(memory_[dmabuf.inode], files.add_memory(std::move(*alone)));
    }
  }
  return {};
}

Result<std::optional<DmaBufImage>> DmaBufs::describe(int fd, ino_t inode, int id,
                                                     const TargetTree& tree) const {
  const SharedBos::Number number = run_.shared_bos.number_of(inode);
  if (number.shared == 0) {
    const auto reason = not_restored_.find(inode);
    log_line(Level::Warning,
             "file " + std::to_string(id) +
                 " is a dma-buf of memory that no /dev/kfd or render node of the tree has: " +
                 (reason != not_restored_.end() ? reason->second.what
                                                : "it was not seen among the files of the tree"));
    return std::optional<DmaBufImage>();
  }
  if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR) {
    return Error{EINVAL, "file " + std::to_string(id) +
                             " is a dma-buf that may only be read, and would come back as one that may be "
                             "written; the process must close it"};
  }
  SLUICE_TRY_ASSIGN(const std::vector<pid_t> holders, tree.holders_of_dmabuf(fd, inode));
  run_.shared_bos.note_saved(number.shared, true);
  return std::optional(DmaBufImage{number.handle, number.shared, kfd::restoring_process(holders).innermost,
                                   run_.dump_id, static_cast<std::uint32_t>(id)});
}

DumpedFile* DmaBufs::memory_of(ino_t inode) const {
  const auto memory = memory_.find(inode);
  return memory != memory_.end() ? memory->second : nullptr;
}

// The memory that descriptors of the tree alone have, as a file that is not begun; null where a holder was
// found. `kfd`: our own. Errors: EINVAL for memory of no AMD GPU, or that could not be restored; EBUSY where
// a process that is not dumped has it, too; ENODEV; those of taking, opening and importing it.
//
// The import that tells the place ends with the function: while it stands, Linux 6.1 warns in its log of
// importing another dma-buf of the same memory, as the contents are read through
// (drm_gem_prime_fd_to_handle).
Result<std::unique_ptr<RenderDump>> DmaBufs::memory_of_none(const kfd::OpenDmaBuf& dmabuf,
                                                            const kfd::KfdDevice& kfd) const {
  SLUICE_TRY_ASSIGN(const UniqueFd own, kfd::take_dmabuf(dmabuf));
  SLUICE_TRY_ASSIGN(const std::uint32_t gpu_id, kfd::gpu_of_dmabuf(kfd, own.get()));
  const kfd::Node* gpu = run_.topology.find_gpu(gpu_id);
  if (gpu == nullptr)
    return Error{ENODEV, "it is memory of GPU " + std::to_string(gpu_id) + ", which the topology lacks"};
  SLUICE_TRY_ASSIGN(const std::uint64_t references, kfd::references_of_dmabuf(own.get()));  // an import adds
  SLUICE_TRY_ASSIGN(const std::uint64_t entries, own_entries(dmabuf));
  SLUICE_TRY_ASSIGN(UniqueFd file, drm::open_render_node(gpu->drm_render_minor));
  SLUICE_TRY_ASSIGN(const std::uint32_t handle, drm::allow_map(file.get(), own.get()));
  SLUICE_TRY_ASSIGN(const std::uint64_t offset, drm::mmap_offset_of(file.get(), handle));
  if (run_.shared_bos.find_at(dmabuf.inode, {gpu->drm_render_minor, offset}))
    return std::unique_ptr<RenderDump>();
  if (offset == 0 && kfd.version().minor < kFirstMinorWithOneDmaBuf)
    return Error{EINVAL, "no CPU may map it, and this kernel does not tell whether a /dev/kfd has it, too"};
  if (references > dmabuf.entries + entries) return Error{EBUSY, "a process that is not dumped has it, too"};
  SLUICE_TRY_ASSIGN(std::unique_ptr<RenderDump> alone,
                    RenderDump::of_dmabuf(std::move(file), handle, dmabuf.holders, *gpu, run_));
  SLUICE_TRY(alone->look_at_vram());
  return alone;
}

}  // namespace sluice::plugin
