// SPDX-License-Identifier: MIT
#include "plugin/dump/dmabuf_memory.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "drm/device.h"
#include "drm/target_file.h"

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

// The import that tells the place ends with the function: while it stands, Linux 6.1 warns in its log of
// importing another dma-buf of the same memory, as the contents are read through
// (drm_gem_prime_fd_to_handle).
Result<std::unique_ptr<RenderDump>> memory_of_dmabuf(const kfd::OpenDmaBuf& dmabuf, const kfd::KfdDevice& kfd,
                                                     DumpRun& run) {
  SLUICE_TRY_ASSIGN(const UniqueFd own, kfd::take_dmabuf(dmabuf));
  SLUICE_TRY_ASSIGN(const std::uint32_t gpu_id, kfd::gpu_of_dmabuf(kfd, own.get()));
  const kfd::Node* gpu = run.topology.find_gpu(gpu_id);
  if (gpu == nullptr)
    return Error{ENODEV, "it is memory of GPU " + std::to_string(gpu_id) + ", which the topology lacks"};
  SLUICE_TRY_ASSIGN(const std::uint64_t references, kfd::references_of_dmabuf(own.get()));  // an import adds
  SLUICE_TRY_ASSIGN(const std::uint64_t entries, own_entries(dmabuf));
  SLUICE_TRY_ASSIGN(UniqueFd file, drm::open_render_node(gpu->drm_render_minor));
  SLUICE_TRY_ASSIGN(const std::uint32_t handle, drm::allow_map(file.get(), own.get()));
  SLUICE_TRY_ASSIGN(const std::uint64_t offset, drm::mmap_offset_of(file.get(), handle));
  if (run.shared_bos.find_at(dmabuf.inode, {gpu->drm_render_minor, offset}))
    return std::unique_ptr<RenderDump>();
  if (offset == 0 && kfd.version().minor < kFirstMinorWithOneDmaBuf)
    return Error{EINVAL, "no CPU may map it, and this kernel does not tell whether a /dev/kfd has it, too"};
  if (references > dmabuf.entries + entries) return Error{EBUSY, "a process that is not dumped has it, too"};
  SLUICE_TRY_ASSIGN(std::unique_ptr<RenderDump> alone,
                    RenderDump::of_dmabuf(std::move(file), handle, dmabuf.holders, *gpu, run));
  SLUICE_TRY(alone->look_at_vram());
  return alone;
}

}  // namespace sluice::plugin
