// SPDX-License-Identifier: MIT
// See control_front.h.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "control_front.h"
#include "front/raw.h"
#include "front/shared.h"

namespace vamdgpu {
namespace {

constexpr std::uint64_t kDoorbellStride = 65536;
constexpr std::uint64_t kMmioAt = 32768;

void check(int result) {
  if (result != 0) throw std::system_error(-result, std::generic_category(), "virtual machine");
}

}  // namespace

std::unique_ptr<ControlFront> ControlFront::open(const std::string& directory) {
  std::uint64_t device = 0;
  Shared* shared = map_shared(directory.c_str(), &device);
  if (shared == nullptr) return nullptr;
  return std::unique_ptr<ControlFront>(new ControlFront(directory, shared, device));
}

ControlFront::~ControlFront() {
  raw::munmap(shared_, shared_->bytes);
}

const vamdgpu_machine_config& ControlFront::config() const {
  return shared_->model()->config;
}

void ControlFront::model(bool buffers, const std::function<void(const vam_model&)>& look) const {
  Locked locked(shared_->lock);
  reap(shared_, directory_.c_str(), buffers);
  look(*shared_->model());
}

void ControlFront::debug(const std::function<void(const vam_debug&)>& look) const {
  Locked locked(shared_->lock);
  look(shared_->debug);
}

void ControlFront::add_fault(const vam_fault_rule& rule) {
  Locked locked(shared_->lock);
  check(vam_debug_add_fault(&shared_->debug, &rule));
}

void ControlFront::add_fence_fault(const vam_fence_fault& fault) {
  Locked locked(shared_->lock);
  check(vam_debug_add_fence_fault(&shared_->debug, &fault));
}

void ControlFront::set_engine_rate(std::uint32_t gpu, std::uint64_t bytes_per_s) {
  Locked locked(shared_->lock);
  shared_->debug.bytes_per_s[gpu] = bytes_per_s;
}

void ControlFront::lose_vram(std::uint32_t gpu, std::uint32_t answers) {
  Locked locked(shared_->lock);
  check(vam_lose_vram(shared_->model(), gpu, answers));
}

void ControlFront::run_kernels(pid_t pid, vam_waves waves, std::uint32_t stops) {
  Locked locked(shared_->lock);
  check(vam_run_kernels(shared_->model(), pid, waves, stops));
}

void ControlFront::clear_faults() {
  Locked locked(shared_->lock);
  vam_debug_clear_faults(&shared_->debug);
}

void ControlFront::clear_trace() {
  Locked locked(shared_->lock);
  vam_debug_clear_trace(&shared_->debug);
}

void ControlFront::release_hung_fences() {
  Locked locked(shared_->lock);
  vam_model* model = shared_->model();
  for (std::uint32_t i = 1; i < model->table[VAM_T_JOB].high; ++i) {
    const vam_job* job = VAM_JOB_AT(model, i);
    if (!job->rec.live || !job->hung) continue;
    std::uint32_t fence = 0;
    vam_job_finish(model, i, -ECANCELED, &fence);
    signal_exports(shared_, directory_.c_str(), fence);
    vam_fence_unref(model, fence);
  }
  announce_change(shared_);
}

bool ControlFront::transfer(pid_t pid, std::uint32_t gpu_id, std::uint64_t va, void* bytes, std::size_t size,
                            bool write) {
  Locked locked(shared_->lock);
  const vam_model* model = shared_->model();
  for (std::size_t at = 0; at < size;) {
    std::uint32_t bo_index = 0;
    std::uint64_t offset = 0, there = 0;
    if (vam_debug_locate(model, pid, gpu_id, va + at, &bo_index, &offset, &there) != 0) return false;
    const vam_bo* bo = VAM_BO_AT(model, bo_index);
    const StatePath path = pool_path(directory_.c_str(), static_cast<vam_pool>(bo->pool), bo->gpu);
    const int fd = raw::openat(AT_FDCWD, path.c_str(), O_RDWR | O_CLOEXEC, 0);
    const long moved = ::syscall(write ? SYS_pwrite64 : SYS_pread64, fd, static_cast<char*>(bytes) + at,
                                 std::min<std::uint64_t>(size - at, there), bo->pool_offset + offset);
    raw::close(fd);
    if (moved <= 0) return false;
    at += static_cast<std::size_t>(moved);
  }
  return true;
}

std::optional<DeviceMapping> ControlFront::device_of_mapping(dev_t device, ino_t inode,
                                                             std::uint64_t offset) const {
  if (device != device_) return std::nullopt;
  const vam_model* model = shared_->model();
  struct stat status;
  for (std::uint32_t gpu = 0; gpu < model->num_gpus; ++gpu) {
    for (const vam_pool pool : {VAM_POOL_VRAM, VAM_POOL_GTT}) {
      const StatePath path = pool_path(directory_.c_str(), pool, gpu);
      if (raw::fstatat(AT_FDCWD, path.c_str(), &status, 0) != 0 || status.st_ino != inode) continue;
      return DeviceMapping{On::Render, model->gpu[gpu].config.render_minor,
                           vam_pool_mmap_offset(model, gpu, pool, offset)};
    }
  }
  const StatePath path(directory_.c_str(), "doorbells", UINT64_MAX);
  if (raw::fstatat(AT_FDCWD, path.c_str(), &status, 0) != 0 || status.st_ino != inode) return std::nullopt;
  const std::uint64_t gpu = offset / kDoorbellStride % VAMDGPU_MAX_GPUS;
  if (gpu >= model->num_gpus) return std::nullopt;
  const bool mmio = offset % kDoorbellStride >= kMmioAt;
  const std::uint64_t id = std::uint64_t{model->gpu[gpu].config.gpu_id} << VAM_MMAP_GPU_SHIFT;
  return DeviceMapping{On::Kfd, 0, (mmio ? VAM_MMAP_MMIO : VAM_MMAP_DOORBELL) | id};
}

}  // namespace vamdgpu
