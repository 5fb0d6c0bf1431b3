// SPDX-License-Identifier: MIT
#include "plugin/dump/survey/render_survey.h"

#include <libdrm/amdgpu_drm.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/format.h"
#include "plugin/host/criu_host.h"
#include "proc/processes.h"

namespace sluice::plugin {

namespace {

// After 10 or 60 seconds, by version, the kernel resets the ring of a compute or DMA job. The reset takes
// time, too.
constexpr auto kResetPatience = std::chrono::seconds(10);

// How often a wait checks whether the dump still goes on.
constexpr auto kListenPeriod = std::chrono::milliseconds(100);

// Flags of memory whose contents only its own file can read, or nobody.
constexpr std::uint64_t kUnreadable = AMDGPU_GEM_CREATE_VM_ALWAYS_VALID | AMDGPU_GEM_CREATE_ENCRYPTED;

// The handle in a descriptor's image for memory without one. No BO of any file has it, so a reader that goes
// by handles finds nothing rather than another BO.
constexpr std::uint32_t kNobodysHandle = INT32_MAX;

constexpr std::uint64_t kMemory = AMDGPU_GEM_DOMAIN_CPU | AMDGPU_GEM_DOMAIN_GTT | AMDGPU_GEM_DOMAIN_VRAM;

// "renderD128 of process 4711, GEM handle 3".
std::string describe(const std::string& file, std::uint32_t handle) {
  return file + ", GEM handle " + std::to_string(handle);
}

}  // namespace

RenderSurvey::RenderSurvey(UniqueFd file, std::vector<pid_t> holders, const kfd::Node& gpu,
                           const DumpBasis& basis, const StoppedJob& job)
    : basis_(&basis), job_(job) {
  RenderImage image;
  image.minor = gpu.drm_render_minor;
  image.gpu_id = gpu.gpu_id;
  image.dump_id = basis.dump_id;
  image.has_sums = basis.config.checksum;
  file_.restorer = proc::restoring_process(holders);
  image.pid = file_.restorer.innermost;
  file_.image = std::move(image);
  file_.name = "renderD" + std::to_string(gpu.drm_render_minor);
  if (!holders.empty()) file_.name += " of process " + std::to_string(holders.front());
  file_.holders = std::move(holders);
  file_.fd = file.get();
  file_.own = std::move(file);
}

Result<RenderSurvey> RenderSurvey::list(TakenFile taken, const kfd::Node& gpu, const DumpBasis& basis,
                                        const StoppedJob& job) {
  RenderSurvey file(std::move(taken.own), std::move(taken.holders), gpu, basis, job);
  SLUICE_TRY(file.list_bos());
  SLUICE_TRY(file.look_at_vram());
  return file;
}

Result<RenderSurvey> RenderSurvey::of_dmabuf(UniqueFd own, std::uint32_t handle, std::vector<pid_t> holders,
                                             const kfd::Node& gpu, const DumpBasis& basis,
                                             const StoppedJob& job) {
  RenderSurvey file(std::move(own), std::move(holders), gpu, basis, job);
  file.file_.name = "a dma-buf of " + file.name();
  if (!file.image().pid)
    return Error{EINVAL, file.name() +  // unreached: another machine
                             " cannot be assigned to a process without NSpid in /proc; use a kernel with pid "
                             "namespaces [SL-D42]"};
  file.image().kfd_acquired = false;
  file.of_dmabuf_ = true;
  SLUICE_TRY_ASSIGN(const drm::GemHandle gem, drm::describe_handle(file.file_.fd, handle));
  SLUICE_TRY_ASSIGN(RenderBo bo, file.bo_of(gem));
  bo.mmap_offset = 0;  // the process that maps it uses another file
  file.image().bos.push_back(std::move(bo));
  SLUICE_TRY(file.look_at_vram());
  return file;
}

Result<void> RenderSurvey::list_bos() {
  SLUICE_TRY_ASSIGN(auto handles, drm::list_handles(file_.fd));
  lists_bos_ = handles.has_value();
  if (!handles) return {};
  std::sort(handles->begin(), handles->end(),
            [](const drm::GemHandle& a, const drm::GemHandle& b) { return a.handle < b.handle; });
  for (const drm::GemHandle& handle : *handles) {
    SLUICE_TRY_ASSIGN(RenderBo bo, bo_of(handle));
    SLUICE_TRY(add_mappings(bo));
    image().bos.push_back(std::move(bo));
  }
  return {};
}

Error RenderSurvey::refusal(std::uint32_t handle, const char* why) const {
  return Error{EINVAL, describe(name(), handle) + why};
}

Error RenderSurvey::stopped_at(std::uint32_t handle) const {
  return Error{ECANCELED, describe(name(), handle) +
                              ": the dump was stopped; the line before this one says why [SL-D53]"};
}

Result<RenderBo> RenderSurvey::bo_of(const drm::GemHandle& handle) const {
  if ((handle.alloc_flags & AMDGPU_GEM_CREATE_VM_ALWAYS_VALID) != 0)
    return refusal(handle.handle,
                   " was created as always valid (VM_ALWAYS_VALID), so no other process can read it; free it "
                   "before the dump [SL-D43]");
  if ((handle.alloc_flags & kUnreadable) != 0)
    return refusal(handle.handle,
                   " is encrypted, so its contents cannot be read; free it before the dump [SL-D44]");
  if ((handle.preferred_domains & ~kMemory) != 0)
    return refusal(handle.handle,  // unreached: no test
                   " is a part of the GPU (GDS, GWS or OA) and no memory; free it before the dump [SL-D45]");
  RenderBo bo;
  bo.imports = handle.imported;  // of another device, which must create it
  bo.gem.handle = handle.handle;
  bo.gem.bytes = handle.bytes;
  bo.gem.domains = handle.preferred_domains;
  bo.gem.alloc_flags = handle.alloc_flags;
  SLUICE_TRY_ASSIGN(bo.gem.alignment_bytes, drm::alignment_of(file_.fd, handle.handle));
  SLUICE_TRY_ASSIGN(bo.gem.metadata, drm::metadata_of(file_.fd, handle.handle));
  SLUICE_TRY_ASSIGN(bo.mmap_offset, drm::mmap_offset_of(file_.fd, handle.handle));
  return bo;
}

Result<void> RenderSurvey::add_mappings(RenderBo& bo) const {
  SLUICE_TRY_ASSIGN(auto mappings, drm::mappings_of(file_.fd, bo.gem.handle));
  if (!mappings)  // unreached: no test
    return refusal(
        bo.gem.handle,
        " is listed by a kernel that does not say where the GPU maps it; use another kernel [SL-D46]");
  bo.gem.mappings = std::move(*mappings);
  for (const drm::GemMapping& mapping : bo.gem.mappings) {
    if (mapping.flags > UINT32_MAX)  // unreached: no test
      return refusal(bo.gem.handle,
                     " is mapped in the GPU with flags that the kernel refuses in a restore; unmap it before "
                     "the dump [SL-D47]");
  }
  std::sort(bo.gem.mappings.begin(), bo.gem.mappings.end(),
            [](const drm::GemMapping& a, const drm::GemMapping& b) { return a.address < b.address; });
  return {};
}

Result<void> RenderSurvey::look_at_vram() const {
  SLUICE_TRY_ASSIGN(const std::uint32_t losses, drm::vram_losses(file_.fd));
  return job_.shared.vram.look(std::get<RenderImage>(file_.image).minor, losses);
}

std::uint64_t RenderSurvey::ns_from_now(std::chrono::nanoseconds time) const {
  return job_.shared.world.now_ns() + static_cast<std::uint64_t>(time.count());
}

// Waits in steps and checks between them whether the dump still goes on.
Result<void> RenderSurvey::wait_until_idle(std::uint32_t handle, std::uint64_t deadline_ns) const {
  for (;;) {
    const std::uint64_t step_end_ns = std::min(deadline_ns, ns_from_now(kListenPeriod));
    SLUICE_TRY_ASSIGN(const bool idle, drm::wait_until_idle(file_.fd, handle, step_end_ns));
    if (idle) return {};
    if (job_.shared.stopped) return stopped_at(handle);
    if (step_end_ns == deadline_ns)
      return Error{ETIMEDOUT,
                   describe(name(), handle) +
                       " is still used by work submitted before the dump; check for a job that hangs, or "
                       "a reset of the GPU, in the kernel's log [SL-D48]"};
  }
}

// Whether a process that holds the file has a /dev/kfd, too.
Result<void> RenderSurvey::ask_for_kfd() {
  for (const pid_t pid : file_.holders) {
    SLUICE_TRY_ASSIGN(const std::vector<int> descriptors, proc::device_descriptors(pid, basis_->kfd_device));
    if (!descriptors.empty()) return {};
  }
  image().kfd_acquired = false;
  return {};
}

Result<SurveyedFile> RenderSurvey::finish() && {
  file_.began_ns = job_.shared.world.now_ns();
  SLUICE_TRY(ask_for_kfd());
  const std::uint64_t deadline_ns = ns_from_now(basis_->config.fence_timeout + kResetPatience);
  for (std::uint32_t i = 0; i < image().bos.size(); ++i) {
    const RenderBo& bo = image().bos[i];
    if (job_.shared.stopped) return stopped_at(bo.gem.handle);
    // Before a pre-dump all tasks are stopped, so nothing is waited for; what is written meanwhile is dumped
    // again later.
    if (!basis_->policy.job_runs) SLUICE_TRY(wait_until_idle(bo.gem.handle, deadline_ns));
    SLUICE_TRY_ASSIGN(SurveyedBo exported, export_bo(i, bo));
    file_.bos.push_back(std::move(exported));
  }
  return std::move(file_);
}

Result<SurveyedBo> RenderSurvey::export_bo(std::uint32_t number, const RenderBo& bo) const {
  const std::uint32_t handle = bo.gem.handle;
  auto dmabuf = drm::export_dmabuf(file_.fd, handle);
  if (!dmabuf && dmabuf.error().err == EPERM) {
    return Error{EINVAL, describe(name(), handle) +
                             " is the process's own memory (userptr), which cannot be registered again; free "
                             "it before the dump [SL-D49]"};
  }
  if (!dmabuf) return explain(name(), dmabuf.error());
  SurveyedBo exported{.number = number, .dmabuf = std::move(*dmabuf)};
  SLUICE_TRY_ASSIGN(exported.inode, kfd::inode_of_dmabuf(exported.dmabuf.get()));
  exported.can_create = !bo.imports;
  exported.handle = of_dmabuf_ ? kNobodysHandle : handle;
  return exported;
}

}  // namespace sluice::plugin
