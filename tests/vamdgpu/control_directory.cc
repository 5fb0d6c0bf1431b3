// SPDX-License-Identifier: MIT
// A machine in a directory, looked into through the shared segment like any process on the machine does, by
// system calls that no wrapper sees. See control_front.h.
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

class DirectoryFront : public ControlFront {
 public:
  DirectoryFront(std::string directory, Shared* shared, std::uint64_t device)
      : directory_(std::move(directory)), shared_(shared), device_(device) {}
  ~DirectoryFront() override { raw::munmap(shared_, shared_->bytes); }
  DirectoryFront(const DirectoryFront&) = delete;
  DirectoryFront& operator=(const DirectoryFront&) = delete;

  const vamdgpu_machine_config& config() const override { return shared_->model()->config; }

  void model(bool buffers, const std::function<void(const vam_model&)>& look) const override {
    Locked locked(shared_->lock);
    reap(shared_, directory_.c_str(), buffers);
    look(*shared_->model());
  }
  void debug(const std::function<void(const vam_debug&)>& look) const override {
    Locked locked(shared_->lock);
    look(shared_->debug);
  }

  void add_fault(const vam_fault_rule& rule) override {
    Locked locked(shared_->lock);
    check(vam_debug_add_fault(&shared_->debug, &rule));
  }
  void add_fence_fault(const vam_fence_fault& fault) override {
    Locked locked(shared_->lock);
    check(vam_debug_add_fence_fault(&shared_->debug, &fault));
  }
  void release_hung_fences() override;
  void set_engine_rate(std::uint32_t gpu, std::uint64_t bytes_per_s) override {
    Locked locked(shared_->lock);
    shared_->debug.bytes_per_s[gpu] = bytes_per_s;
  }
  void set_userptr_busy(std::uint32_t times) override {
    Locked locked(shared_->lock);
    shared_->debug.userptr_busy = times;
  }
  void lose_vram(std::uint32_t gpu, std::uint32_t answers) override {
    Locked locked(shared_->lock);
    check(vam_lose_vram(shared_->model(), gpu, answers));
  }
  void run_kernels(pid_t pid, vam_waves waves, std::uint32_t stops) override {
    Locked locked(shared_->lock);
    check(vam_run_kernels(shared_->model(), pid, waves, stops));
  }
  void clear_faults() override {
    Locked locked(shared_->lock);
    vam_debug_clear_faults(&shared_->debug);
  }
  void clear_trace() override {
    Locked locked(shared_->lock);
    vam_debug_clear_trace(&shared_->debug);
  }

  bool transfer(pid_t pid, std::uint32_t gpu_id, std::uint64_t va, void* bytes, std::size_t size,
                bool write) override;
  std::optional<DeviceMapping> device_of_mapping(dev_t device, ino_t inode,
                                                 std::uint64_t offset) const override;

 private:
  std::string directory_;
  Shared* shared_;
  std::uint64_t device_;
};

void DirectoryFront::release_hung_fences() {
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

bool DirectoryFront::transfer(pid_t pid, std::uint32_t gpu_id, std::uint64_t va, void* bytes,
                              std::size_t size, bool write) {
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

std::optional<DeviceMapping> DirectoryFront::device_of_mapping(dev_t device, ino_t inode,
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

}  // namespace

std::unique_ptr<ControlFront> open_directory_front(const std::string& directory) {
  std::uint64_t device = 0;
  Shared* shared = map_shared(directory.c_str(), &device);
  if (shared == nullptr) return nullptr;
  return std::make_unique<DirectoryFront>(directory, shared, device);
}

}  // namespace vamdgpu
