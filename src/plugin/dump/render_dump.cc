// SPDX-License-Identifier: MIT
#include "plugin/dump/render_dump.h"

#include <libdrm/amdgpu_drm.h>

#include <algorithm>
#include <chrono>

#include "images/files.h"
#include "images/key.h"
#include "plugin/contents/machine.h"
#include "plugin/host/image_store.h"
#include "proc/processes.h"

namespace sluice::plugin {

namespace {

// The kernel gives a job of a compute or DMA ring 10 seconds or 60, by its version, and then resets the ring:
// that takes a while, too.
constexpr auto kResetPatience = std::chrono::seconds(10);

// How often a wait looks whether the dump goes on at all.
constexpr auto kListenPeriod = std::chrono::milliseconds(100);

// Flags of memory whose contents nobody but its own file, or nobody at all, can read.
constexpr std::uint64_t kUnreadable = AMDGPU_GEM_CREATE_VM_ALWAYS_VALID | AMDGPU_GEM_CREATE_ENCRYPTED;

// What the image of a descriptor calls memory that no task has a handle of: no BO of any file has that, so
// that a reader that goes by handles finds none, and not another's.
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
  const kfd::RestoringProcess process = kfd::restoring_process(dump->holders_);
  dump->image_.pid = process.innermost;
  SLUICE_TRY(dump->list_bos(process.pid));
  return dump;
}

Result<std::unique_ptr<RenderDump>> RenderDump::of_dmabuf(UniqueFd file, std::uint32_t handle,
                                                          std::vector<pid_t> holders, const kfd::Node& gpu,
                                                          DumpRun& run) {
  std::unique_ptr<RenderDump> dump = make(std::move(file), std::move(holders), gpu, run);
  dump->name_ = "a dma-buf of " + dump->name_;
  dump->image_.pid = kfd::restoring_process(dump->holders_).innermost;
  if (!dump->image_.pid)
    return Error{EINVAL, dump->name_ + ": the kernel does not tell in which process it would be restored"};
  dump->image_.kfd_acquired = false;
  dump->of_dmabuf_ = true;
  SLUICE_TRY_ASSIGN(const drm::GemHandle gem, drm::describe_handle(dump->fd(), handle));
  SLUICE_TRY_ASSIGN(RenderBo bo, dump->bo_of(gem));
  bo.mmap_offset = 0;  // a process that maps it uses another file
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

Result<RenderBo> RenderDump::bo_of(const drm::GemHandle& handle) const {
  if ((handle.alloc_flags & AMDGPU_GEM_CREATE_VM_ALWAYS_VALID) != 0)
    return refusal(handle.handle, " was created as always valid: the kernel lets nobody else read it");
  if ((handle.alloc_flags & kUnreadable) != 0)
    return refusal(handle.handle, " is encrypted: its contents cannot be read");
  if ((handle.preferred_domains & ~kMemory) != 0)
    return refusal(handle.handle, " is no memory, but a part of the GPU");
  RenderBo bo;
  bo.imports = handle.imported;  // of another device: somebody else must make it
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
  if (!mappings) return refusal(bo.gem.handle, ": this kernel lists BOs but not where the GPU maps them");
  bo.gem.mappings = std::move(*mappings);
  for (const drm::GemMapping& mapping : bo.gem.mappings) {
    if (mapping.flags > UINT32_MAX)
      return refusal(bo.gem.handle,
                     " is mapped in the GPU with flags that it could not be mapped with again");
  }
  std::sort(bo.gem.mappings.begin(), bo.gem.mappings.end(),
            [](const drm::GemMapping& a, const drm::GemMapping& b) { return a.address < b.address; });
  return {};
}

Result<void> RenderDump::look_at_vram() const {
  SLUICE_TRY_ASSIGN(const std::uint32_t losses, drm::vram_losses(file_.get()));
  return run_.shared.vram.look(image_.minor, losses);
}

// In steps, between which it is seen whether the dump goes on at all.
Result<void> RenderDump::wait_until_idle(std::uint32_t handle,
                                         std::chrono::steady_clock::time_point deadline) const {
  for (;;) {
    const auto step_end = std::min(deadline, std::chrono::steady_clock::now() + kListenPeriod);
    SLUICE_TRY_ASSIGN(const bool idle, drm::wait_until_idle(file_.get(), handle, step_end));
    if (idle) return {};
    if (run_.shared.stopped) return Error{ECANCELED, words_of(handle) + ": the dump was stopped"};
    if (step_end == deadline)
      return make_error(ETIMEDOUT, words_of(handle) + " is still used by work that was submitted before");
  }
}

Result<void> RenderDump::ask_for_kfd() {
  for (const pid_t pid : holders_) {
    SLUICE_TRY_ASSIGN(const std::vector<int> descriptors, kfd::device_descriptors(pid, run_.kfd_device));
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
    if (run_.shared.stopped) return Error{ECANCELED, words_of(handle) + ": the dump was stopped"};
    SLUICE_TRY(wait_until_idle(handle, deadline));
    auto dmabuf = drm::export_dmabuf(file_.get(), handle);
    if (!dmabuf && dmabuf.error().err == EPERM) {
      return Error{EINVAL, words_of(handle) +
                               " is memory of the process itself (userptr), which the kernel does not tell "
                               "enough of to register it again"};
    }
    if (!dmabuf) return explain(name_, dmabuf.error());
    SharedBos::Holder holder{.name = words_of(handle), .can_create = !bo.imports};
    holder.handle = of_dmabuf_ ? kNobodysHandle : handle;
    holder.shared = &bo.shared;
    holder.imports = &bo.imports;
    SLUICE_TRY(run_.shared_bos.add(dmabuf->get(), std::move(holder)));
    dmabufs_.push_back(std::move(*dmabuf));
  }
  return {};
}

Result<void> RenderDump::take_contents() {
  if (dmabufs_.empty()) return {};
  GpuContents contents;
  contents.gpu_id = image_.gpu_id;
  contents.render_minor = image_.minor;
  contents.numa_node = numa_node_of_render_minor(image_.minor);
  contents.bo_table_digest = bo_table_digest(image_.bos);
  contents.drm_minor = image_.minor;
  for (std::uint32_t i = 0; i < image_.bos.size(); ++i) {
    const drm::GemBo& gem = image_.bos[i].gem;
    if (image_.bos[i].imports) continue;
    const std::uint64_t va = gem.mappings.empty() ? 0 : gem.mappings.front().address;
    contents.bos.push_back({gem.bytes, va, std::move(dmabufs_[i]), i});
  }
  dmabufs_.clear();
  if (!contents.bos.empty()) contents_->waiting().push_back(std::move(contents));
  return {};
}

std::string RenderDump::image_name() const {
  return render_image_name(*id());
}

Result<void> RenderDump::finish_contents() {
  image_.id = static_cast<std::uint32_t>(*id());
  run_.images.add_metadata(image_name());
  SLUICE_TRY(contents_->join(*id()));
  for (const RenderBo& bo : image_.bos) run_.shared_bos.note_saved(bo.shared, bo.imports);
  if (run_.config.sync) SLUICE_TRY(sync_images());
  if (image_.has_contents()) contents_->write_stats(*id());
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

// CRIU restores a file in the process of the lowest pid that holds it; KFD must get it in its own.
Result<void> RenderDump::check_restoring_process(const std::vector<pid_t>& kfd_holders) const {
  const auto own = kfd::restoring_process(holders_).innermost;
  const auto kfds = kfd::restoring_process(kfd_holders).innermost;
  if (!own || !kfds || *own == *kfds) return {};
  return Error{EINVAL,
               name_ + ", the file that the KFD uses for process " + std::to_string(*kfds) +
                   ", would be restored in process " + std::to_string(*own) +
                   ", which holds it, too; that is not supported: the process whose /dev/kfd it is for "
                   "must have the lowest pid of all that hold it"};
}

Result<void> RenderDump::write() {
  const std::string image = image_name();
  std::vector<std::uint8_t> payload = pack_render_image(image_);
  if (payload == written_ || (streaming() && !written_.empty())) return {};  // a stream takes it once
  if (!written_.empty() && has_image_key()) {
    return Error{EINVAL,
                 image +
                     " was made before the /dev/kfd of its process, which tells more of it; with a key "
                     "it is made once, for which all files of the tree have to be seen in advance "
                     "(pidfd_getfd)"};
  }
  SLUICE_TRY(run_.save(image, payload));
  written_ = std::move(payload);
  return {};
}

void RenderDump::warn_of_loss() const {
  log_line(Level::Warning, name_ + ": CRIU did not ask for it; its BOs are in no image");
}

std::string RenderDump::words_of(std::uint32_t handle) const {
  return name_ + ", GEM handle " + std::to_string(handle);
}

}  // namespace sluice::plugin
