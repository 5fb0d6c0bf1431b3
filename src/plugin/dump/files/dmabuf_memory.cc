// SPDX-License-Identifier: MIT
#include "plugin/dump/files/dmabuf_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "drm/device.h"
#include "drm/target_file.h"
#include "plugin/host/criu_host.h"
#include "proc/processes.h"

namespace sluice::plugin {
namespace {

// Since this version (GET_VERSION; Linux 6.3) CHECKPOINT and EXPORT_DMABUF give the same dma-buf for the same
// memory.
constexpr std::uint32_t kFirstMinorWithOneDmaBuf = 12;

// This process' descriptors of it: ours and, in older hosts, those that CRIU has taken from the tasks.
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
  const SharedBos::Share share = run_.shared_bos.share_of_dmabuf(inode);
  if (share.number == 0) {
    const auto reason = not_restored_.find(inode);
    log_line(  // unreached: no test
        Level::Warning,
        formatted(
            "file {} is a dma-buf of memory that no /dev/kfd or render node of the tree has: {} [SL-D24]", id,
            reason != not_restored_.end() ? reason->second.what : "it was not among the tree's files"));
    return std::optional<DmaBufImage>();
  }
  if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR) {
    return Error{
        EINVAL,
        formatted("file {} is a read-only dma-buf and would be restored as a writable one; the process must "
                  "close it [SL-D25]",
                  id)};
  }
  SLUICE_TRY_ASSIGN(const std::vector<pid_t> holders, tree.holders_of_dmabuf(fd, inode));
  run_.shared_bos.note_saved(share.number, true);
  return std::optional(DmaBufImage{share.handle, share.number, proc::restoring_process(holders).innermost,
                                   run_.dump_id, static_cast<std::uint32_t>(id)});
}

DumpedFile* DmaBufs::memory_of(ino_t inode) const {
  const auto memory = memory_.find(inode);
  return memory != memory_.end() ? memory->second : nullptr;
}

// Memory that only descriptors of the tree hold, as a file that is not begun; null if a file holds it. `kfd`:
// our own. Errors: EINVAL for memory that is on no AMD GPU or could not be restored; EBUSY if a process
// outside the dump has it, too; ENODEV; those of taking, opening and importing it.
//
// The import that reveals the place ends with the function. While it exists, Linux 6.1 logs a warning when
// another dma-buf of the same memory is imported, as reading the contents does (drm_gem_prime_fd_to_handle).
Result<std::unique_ptr<RenderDump>> DmaBufs::memory_of_none(const kfd::OpenDmaBuf& dmabuf,
                                                            const kfd::KfdDevice& kfd) const {
  SLUICE_TRY_ASSIGN(const UniqueFd own, kfd::take_dmabuf(dmabuf));
  SLUICE_TRY_ASSIGN(const std::uint32_t gpu_id, kfd::gpu_of_dmabuf(kfd, own.get()));
  const kfd::Node* gpu = run_.topology.find_gpu(gpu_id);
  if (gpu == nullptr)
    return Error{ENODEV, formatted("it is memory of GPU {}, which is hidden from criu [SL-D26]", gpu_id)};
  SLUICE_TRY_ASSIGN(const std::uint64_t references, kfd::references_of_dmabuf(own.get()));  // an import adds
  SLUICE_TRY_ASSIGN(const std::uint64_t entries, own_entries(dmabuf));
  SLUICE_TRY_ASSIGN(UniqueFd file, drm::open_render_node(gpu->drm_render_minor));
  SLUICE_TRY_ASSIGN(const std::uint32_t handle, drm::allow_map(file.get(), own.get()));
  SLUICE_TRY_ASSIGN(const std::uint64_t offset, drm::mmap_offset_of(file.get(), handle));
  if (run_.shared_bos.find_at(dmabuf.inode, {gpu->drm_render_minor, offset}))
    return std::unique_ptr<RenderDump>();
  if (offset == 0 && kfd.version().minor < kFirstMinorWithOneDmaBuf)  // unreached: another machine
    return Error{
        EINVAL,
        "the CPU cannot map it, and this kernel does not tell whether a /dev/kfd has it, too [SL-D27]"};
  if (references > dmabuf.entries + entries)
    return Error{EBUSY, "a process that is not dumped has it, too [SL-D28]"};
  SLUICE_TRY_ASSIGN(std::unique_ptr<RenderDump> alone,
                    RenderDump::of_dmabuf(std::move(file), handle, dmabuf.holders, *gpu, run_));
  SLUICE_TRY(alone->look_at_vram());
  return alone;
}

}  // namespace sluice::plugin
