// SPDX-License-Identifier: MIT
#include "plugin/dump/survey/orphaned_memory.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/format.h"
#include "drm/device.h"
#include "drm/target_file.h"
#include "kfd/device.h"
#include "plugin/dump/survey/render_survey.h"

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

// Memory that only descriptors of the tree hold, as a file that is not finished; nothing if a file holds it.
// `kfd`: our own. Errors: EINVAL for memory that is on no AMD GPU or could not be restored; EBUSY if a
// process outside the dump has it, too; ENODEV; those of taking, opening and importing it.
//
// The import that reveals the place ends with the function. While it exists, Linux 6.1 logs a warning when
// another dma-buf of the same memory is imported, as reading the contents does (drm_gem_prime_fd_to_handle).
Result<std::optional<RenderSurvey>> survey_orphan(const kfd::OpenDmaBuf& dmabuf, const kfd::KfdDevice& kfd,
                                                  const DumpBasis& basis, const StoppedJob& job,
                                                  MemoryTable& memory) {
  SLUICE_TRY_ASSIGN(const UniqueFd own, kfd::take_dmabuf(dmabuf));
  SLUICE_TRY_ASSIGN(const std::uint32_t gpu_id, kfd::gpu_of_dmabuf(kfd, own.get()));
  const kfd::Node* gpu = basis.topology.find_gpu(gpu_id);
  if (gpu == nullptr)
    return Error{ENODEV, formatted("it is memory of GPU {}, which is hidden from criu [SL-D26]", gpu_id)};
  SLUICE_TRY_ASSIGN(const std::uint64_t references, kfd::references_of_dmabuf(own.get()));  // an import adds
  SLUICE_TRY_ASSIGN(const std::uint64_t entries, own_entries(dmabuf));
  SLUICE_TRY_ASSIGN(UniqueFd file, drm::open_render_node(gpu->drm_render_minor));
  SLUICE_TRY_ASSIGN(const std::uint32_t handle, drm::allow_map(file.get(), own.get()));
  SLUICE_TRY_ASSIGN(const std::uint64_t offset, drm::mmap_offset_of(file.get(), handle));
  if (memory.find_at(dmabuf.inode, {gpu->drm_render_minor, offset})) return std::optional<RenderSurvey>();
  if (offset == 0 && kfd.version().minor < kFirstMinorWithOneDmaBuf)  // unreached: another machine
    return Error{
        EINVAL,
        "the CPU cannot map it, and this kernel does not tell whether a /dev/kfd has it, too [SL-D27]"};
  if (references > dmabuf.entries + entries)
    return Error{EBUSY, "a process that is not dumped has it, too [SL-D28]"};
  SLUICE_TRY_ASSIGN(RenderSurvey orphan,
                    RenderSurvey::of_dmabuf(std::move(file), handle, dmabuf.holders, *gpu, basis, job));
  return std::optional(std::move(orphan));
}

}  // namespace

Result<void> find_orphans(const std::vector<kfd::OpenDmaBuf>& dmabufs, const DumpBasis& basis,
                          const StoppedJob& job, Survey& survey) {
  const auto is_known = [&survey](const kfd::OpenDmaBuf& dmabuf) {
    return survey.memory.of(dmabuf.inode) != nullptr;
  };
  if (std::all_of(dmabufs.begin(), dmabufs.end(), is_known)) return {};
  const auto kfd = kfd::KfdDevice::open(basis.kfd_device);
  for (const kfd::OpenDmaBuf& dmabuf : dmabufs) {
    if (is_known(dmabuf)) continue;
    SLUICE_TRY(check_stopped(job.shared));
    auto orphan = kfd ? survey_orphan(dmabuf, *kfd, basis, job, survey.memory)
                      : Result<std::optional<RenderSurvey>>(kfd.error());
    if (!orphan) {
      survey.not_restored.emplace(dmabuf.inode, std::move(orphan).error());
    } else if (*orphan) {
      SLUICE_TRY_ASSIGN(SurveyedFile file, std::move(**orphan).finish());
      survey.orphans.emplace(dmabuf.inode, survey.files.size());
      survey.add(std::move(file));
    }
  }
  return {};
}

}  // namespace sluice::plugin
