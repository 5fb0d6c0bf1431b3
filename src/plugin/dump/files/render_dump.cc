// SPDX-License-Identifier: MIT
#include "plugin/dump/files/render_dump.h"

#include <libdrm/amdgpu_drm.h>

#include <algorithm>
#include <chrono>

#include "base/format.h"
#include "images/files/files.h"
#include "images/files/key.h"
#include "images/pages.h"
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

}  // namespace

std::unique_ptr<RenderDump> RenderDump::make(UniqueFd file, std::vector<pid_t> holders, const kfd::Node& gpu,
                                             DumpRun& run) {
  std::unique_ptr<RenderDump> dump(new RenderDump(std::move(file), std::move(holders), run));
  dump->image_.minor = gpu.drm_render_minor;
  dump->image_.gpu_id = gpu.gpu_id;
  dump->image_.dump_id = run.dump_id;
  dump->image_.has_sums = run.config.checksum;
  dump->name_ = "renderD" + std::to_string(gpu.drm_render_minor);
  if (!dump->holders_.empty()) dump->name_ += " of process " + std::to_string(dump->holders_.front());
  return dump;
}

Result<std::unique_ptr<RenderDump>> RenderDump::list(UniqueFd file, std::vector<pid_t> holders,
                                                     const kfd::Node& gpu, DumpRun& run) {
  std::unique_ptr<RenderDump> dump = make(std::move(file), std::move(holders), gpu, run);
  const proc::RestoringProcess process = proc::restoring_process(dump->holders_);
  dump->image_.pid = process.innermost;
  SLUICE_TRY(dump->list_bos(process.pid));
  return dump;
}

Result<std::unique_ptr<RenderDump>> RenderDump::of_dmabuf(UniqueFd file, std::uint32_t handle,
                                                          std::vector<pid_t> holders, const kfd::Node& gpu,
                                                          DumpRun& run) {
  std::unique_ptr<RenderDump> dump = make(std::move(file), std::move(holders), gpu, run);
  dump->name_ = "a dma-buf of " + dump->name_;
  dump->image_.pid = proc::restoring_process(dump->holders_).innermost;
  if (!dump->image_.pid)
    return Error{EINVAL, dump->name_ +  // unreached: another machine
                             " cannot be assigned to a process without NSpid in /proc; use a kernel with pid "
                             "namespaces [SL-D42]"};
  dump->image_.kfd_acquired = false;
  dump->of_dmabuf_ = true;
  SLUICE_TRY_ASSIGN(const drm::GemHandle gem, drm::describe_handle(dump->fd(), handle));
  SLUICE_TRY_ASSIGN(RenderBo bo, dump->bo_of(gem));
  bo.mmap_offset = 0;  // the process that maps it uses another file
  dump->image_.bos.push_back(std::move(bo));
  return dump;
}

Result<void> RenderDump::list_bos(pid_t pid) {
  SLUICE_TRY_ASSIGN(auto handles, drm::list_handles(file_.get()));
  lists_bos_ = handles.has_value();
  if (!handles) return {};
  std::sort(handles->begin(), handles->end(),
            [](const drm::GemHandle& a, const drm::GemHandle& b) { return a.handle < b.handle; });
  for (const drm::GemHandle& handle : *handles) {
    SLUICE_TRY_ASSIGN(RenderBo bo, bo_of(handle));
    SLUICE_TRY(add_mappings(bo));
    if (bo.mmap_offset != 0)
      run_.maps[pid].emplace(std::pair(image_.minor, bo.mmap_offset), bo.mmap_offset + bo.gem.bytes);
    image_.bos.push_back(std::move(bo));
  }
  return {};
}

Error RenderDump::refusal(std::uint32_t handle, const char* why) const {
  return Error{EINVAL, words_of(handle) + why};
}

Error RenderDump::stopped_at(std::uint32_t handle) const {
  return Error{ECANCELED,
               words_of(handle) + ": the dump was stopped; the line before this one says why [SL-D53]"};
}

Result<RenderBo> RenderDump::bo_of(const drm::GemHandle& handle) const {
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
  SLUICE_TRY_ASSIGN(bo.gem.alignment_bytes, drm::alignment_of(file_.get(), handle.handle));
  SLUICE_TRY_ASSIGN(bo.gem.metadata, drm::metadata_of(file_.get(), handle.handle));
  SLUICE_TRY_ASSIGN(bo.mmap_offset, drm::mmap_offset_of(file_.get(), handle.handle));
  return bo;
}

Result<void> RenderDump::add_mappings(RenderBo& bo) const {
  SLUICE_TRY_ASSIGN(auto mappings, drm::mappings_of(file_.get(), bo.gem.handle));
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

Result<void> RenderDump::look_at_vram() const {
  SLUICE_TRY_ASSIGN(const std::uint32_t losses, drm::vram_losses(file_.get()));
  return run_.shared.vram.look(image_.minor, losses);
}

// Waits in steps and checks between them whether the dump still goes on.
Result<void> RenderDump::wait_until_idle(std::uint32_t handle,
                                         std::chrono::steady_clock::time_point deadline) const {
  for (;;) {
    const auto step_end = std::min(deadline, std::chrono::steady_clock::now() + kListenPeriod);
    SLUICE_TRY_ASSIGN(const bool idle, drm::wait_until_idle(file_.get(), handle, step_end));
    if (idle) return {};
    if (run_.shared.stopped) return stopped_at(handle);
    if (step_end == deadline)
      return Error{ETIMEDOUT,
                   words_of(handle) +
                       " is still used by work submitted before the dump; check for a job that hangs, or "
                       "a reset of the GPU, in the kernel's log [SL-D48]"};
  }
}

Result<void> RenderDump::ask_for_kfd() {
  for (const pid_t pid : holders_) {
    SLUICE_TRY_ASSIGN(const std::vector<int> descriptors, proc::device_descriptors(pid, run_.kfd_device));
    any_kfd_ = !descriptors.empty();
    if (any_kfd_) return {};
  }
  image_.kfd_acquired = false;
  return {};
}

Result<void> RenderDump::begin() {
  SLUICE_TRY(run_.ready);
  SLUICE_TRY(ask_for_kfd());
  contents_ = std::make_unique<DumpContents>(run_);
  const auto deadline = std::chrono::steady_clock::now() + run_.config.fence_timeout + kResetPatience;
  for (RenderBo& bo : image_.bos) {
    const std::uint32_t handle = bo.gem.handle;
    if (run_.shared.stopped) return stopped_at(handle);
    // Before a pre-dump all tasks are stopped, so nothing is waited for; what is written meanwhile is dumped
    // again later.
    if (!run_.is_predump) SLUICE_TRY(wait_until_idle(handle, deadline));
    auto dmabuf = drm::export_dmabuf(file_.get(), handle);
    if (!dmabuf && dmabuf.error().err == EPERM) {
      return Error{EINVAL,
                   words_of(handle) +
                       " is the process's own memory (userptr), which cannot be registered again; free it "
                       "before the dump [SL-D49]"};
    }
    if (!dmabuf) return explain(name_, dmabuf.error());
    SharedBos::Holder holder{.name = words_of(handle), .can_create = !bo.imports};
    holder.handle = of_dmabuf_ ? kNobodysHandle : handle;
    SLUICE_TRY_ASSIGN(const std::size_t number, run_.shared_bos.add(dmabuf->get(), std::move(holder)));
    shared_.push_back(number);
    dmabufs_.push_back(std::move(*dmabuf));
  }
  return {};
}

void RenderDump::take_shares() {
  for (std::size_t i = 0; i < shared_.size(); ++i) {
    const SharedBos::Share share = run_.shared_bos.share_of(shared_[i]);
    image_.bos[i].shared = share.number;
    image_.bos[i].imports = share.imports;
  }
}

Result<void> RenderDump::take_contents() {
  if (dmabufs_.empty()) return {};
  if (PagesSet pages = pages_of(image_); !pages.bos.empty())
    contents_->waiting().push_back({std::move(pages), dmabufs_, image_.minor});
  dmabufs_.clear();
  return {};
}

std::string RenderDump::image_name() const {
  return run_.name_of(render_image_name(*id()));
}

Result<void> RenderDump::finish_contents() {
  image_.id = static_cast<std::uint32_t>(*id());
  run_.images.add_metadata(image_name());
  SLUICE_TRY(contents_->join(*id()));
  for (const RenderBo& bo : image_.bos) run_.shared_bos.note_saved(bo.shared, bo.imports);
  if (run_.config.sync) SLUICE_TRY(run_.store.sync());
  if (image_.has_contents()) contents_->note_stats(*id());
  return {};
}

Result<void> RenderDump::settle(const ProcessGpu& gpu, const std::vector<pid_t>& kfd_holders) {
  if (gpu.minor != image_.minor || !share_any(holders_, kfd_holders)) return {};
  image_.gpu_id = gpu.user_gpu_id;
  if (gpu.bo_offset && !image_.kfd_acquired.value_or(false)) {
    SLUICE_TRY_ASSIGN(const drm::MapAccess access, drm::may_map(file_.get(), *gpu.bo_offset));
    image_.kfd_acquired = access == drm::MapAccess::Allowed;
    if (*image_.kfd_acquired) SLUICE_TRY(check_restoring_process(kfd_holders));
  }
  return {};
}

// CRIU restores a file in the process of the lowest pid that holds it; KFD needs it in its own process.
Result<void> RenderDump::check_restoring_process(const std::vector<pid_t>& kfd_holders) const {
  const auto own = proc::restoring_process(holders_).innermost;
  const auto kfds = proc::restoring_process(kfd_holders).innermost;
  if (!own || !kfds || *own == *kfds) return {};
  return Error{
      EINVAL,
      formatted(
          "{}, the file that the KFD uses for process {}, would be restored in process {}, which holds it, "
          "too; let process {} close it [SL-D50]",
          name_, *kfds, *own, *own)};
}

Result<void> RenderDump::write() {
  const std::string image = image_name();
  std::vector<std::uint8_t> payload = pack_render_image(image_, run_.store.keys());
  if (payload == written_ || (run_.store.one_way() && !written_.empty())) return {};
  if (!written_.empty() && run_.store.keys().any()) {
    return Error{
        EINVAL,
        image +
            " was written before the /dev/kfd of its process and cannot be completed with a key; allow criu "
            "pidfd_getfd, or dump without a key [SL-D51]"};
  }
  SLUICE_TRY(run_.save(image, payload));
  written_ = std::move(payload);
  return {};
}

void RenderDump::warn_of_loss() const {
  log_line(
      Level::Warning,
      name_ +
          ": CRIU did not ask for it, so its BOs are in no image; do not rely on this checkpoint [SL-D52]");
}

std::string RenderDump::words_of(std::uint32_t handle) const {
  return name_ + ", GEM handle " + std::to_string(handle);
}

}  // namespace sluice::plugin
