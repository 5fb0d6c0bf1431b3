// SPDX-License-Identifier: MIT
// A device model in plain memory, without an OS underneath, and processes on it: for tests of the model by
// itself. User memory is the test's own memory, descriptors are numbers. One thread.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <set>
#include <vector>

#include "model/model.h"

namespace vamdgpu::tests {

inline vam_limits small_limits() {
  vam_limits limits{};
  for (std::uint32_t& capacity : limits.capacity) capacity = 4096;
  return limits;
}

inline vamdgpu_machine_config two_gpus() {
  vamdgpu_machine_config config{};
  config.num_gpus = 2;
  config.kfd_major = 235;
  config.kfd_minor_version = 23;
  config.bo_record_bytes = 272;
  config.list_handles = 1;
  for (std::uint32_t i = 0; i < 2; ++i) {
    vamdgpu_gpu_config& gpu = config.gpus[i];
    gpu.gpu_id = 1000 + i;
    gpu.render_minor = 128 + i;
    gpu.card_minor = i;
    gpu.family = 141;
    gpu.sdma_instances = 5;
    gpu.sdma_xgmi = 3;
    gpu.sdma_max_bytes = 4 << 20;
    gpu.doorbell_bytes = 8192;
    gpu.mqd_bytes = 512;
    gpu.ctl_stack_bytes = 4096;
    gpu.cwsr_bytes = 8192;
    gpu.debug_bytes = 4096;
    gpu.xccs = 1;
    gpu.vram_public = 1;
    gpu.vram_bytes = 64 << 20;
    gpu.gtt_bytes = 64 << 20;
  }
  return config;
}

// A machine in memory, and a process on it whose memory is this process's and whose descriptors are numbers.
class Machine {
 public:
  explicit Machine(const vamdgpu_machine_config& config = two_gpus()) {
    const vam_limits limits = small_limits();
    memory_.resize(vam_model_bytes(&limits) / 8 + 1);
    EXPECT_EQ(vam_model_init(model(), &limits, &config), 0);
    be(100);
  }

  vam_model* model() { return reinterpret_cast<vam_model*>(memory_.data()); }

  // Who calls from now on.
  void be(int pid, int tid = 0) {
    call_.model = model();
    call_.os = &kOs;
    call_.shim = this;
    call_.pid = pid;
    call_.tid = tid == 0 ? pid : tid;
    call_.start_time = 1;
  }
  std::uint32_t open_kfd() {
    std::uint32_t file = 0;
    EXPECT_EQ(vam_open_kfd(&call_, &file), 0);
    return file;
  }
  std::uint32_t open_render(std::uint32_t gpu) {
    std::uint32_t file = 0;
    EXPECT_EQ(vam_open_render(&call_, gpu, &file), 0);
    return file;
  }
  // 0 or a positive errno.
  int kfd(std::uint32_t file, std::uint32_t nr, void* arg, std::uint32_t bytes = 0) {
    call_.file = file;
    std::uint64_t deadline = 0;
    return -vam_kfd_ioctl(&call_, nr, arg, bytes, VAM_FIRST, &deadline);
  }
  // A step of a call that waits: `again` as the model has it. VAM_WOULD_BLOCK: it goes on waiting.
  int kfd_step(std::uint32_t file, std::uint32_t nr, void* arg, int again) {
    call_.file = file;
    std::uint64_t deadline = 0;
    return -vam_kfd_ioctl(&call_, nr, arg, 0, again, &deadline);
  }
  int drm(std::uint32_t file, std::uint32_t nr, void* arg) {
    call_.file = file;
    std::uint64_t deadline = 0;
    return -vam_drm_ioctl(&call_, nr, arg, 0, VAM_FIRST, &deadline);
  }
  int acquire(std::uint32_t kfd_file, std::uint32_t render, std::uint32_t gpu_id) {
    vam_acquire_vm_args args = {render, gpu_id};  // the fd is the file's index here
    return kfd(kfd_file, VAM_KFD_ACQUIRE_VM, &args);
  }

  bool traced = false, privileged = true;
  int fds_left = 1 << 20;
  std::set<std::uint32_t> fds;                                       // of BOs: handed out and not closed
  std::function<void(void* copied, std::uint64_t bytes)> copied_in;  // may change what the model reads
  std::function<void(std::uint32_t bo, std::uint64_t offset, std::uint64_t bytes, std::uint8_t byte)> fill;

 private:
  static Machine& self(const vam_call* call) { return *static_cast<Machine*>(call->shim); }
  static int copy_in(const vam_call* call, void* to, std::uint64_t from, std::uint64_t bytes) {
    if (from < 4096) return -VAM_EFAULT;
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
    if (self(call).copied_in) self(call).copied_in(to, bytes);
    return 0;
  }
  static int copy_out(const vam_call*, std::uint64_t to, const void* from, std::uint64_t bytes) {
    if (to < 4096) return -VAM_EFAULT;
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    return 0;
  }
  static int file_of_fd(const vam_call* call, std::uint32_t fd, std::uint32_t* file) {
    *file = fd;
    return vam_rec_live(call->model, VAM_T_FILE, fd) != nullptr ? 0 : -VAM_EBADF;
  }
  static int bo_of_fd(const vam_call* call, std::uint32_t fd, std::uint32_t* bo) {
    *bo = fd - 5000;
    return vam_rec_live(call->model, VAM_T_BO, fd - 5000) != nullptr ? 0 : -VAM_EINVAL;
  }
  static int export_bo(const vam_call* call, std::uint32_t bo, std::uint32_t, std::uint32_t* fd) {
    if (self(call).fds_left == 0) return -24;
    --self(call).fds_left;
    *fd = bo + 5000;
    self(call).fds.insert(*fd);
    vam_bo_set_exported(call->model, bo, 1);
    return 0;
  }
  static void close_fd(const vam_call* call, std::uint32_t fd) {
    ++self(call).fds_left;
    self(call).fds.erase(fd);
    vam_bo_set_exported(call->model, fd - 5000, 0);
  }
  static int traces(const vam_call* call, std::int32_t) { return self(call).traced; }
  static int capable(const vam_call* call) { return self(call).privileged; }
  static int user_range(const vam_call*, std::uint64_t, std::uint64_t, std::uint32_t) { return 0; }
  static void fill_bo(const vam_call* call, std::uint32_t bo, std::uint64_t offset, std::uint64_t bytes,
                      std::uint8_t byte) {
    if (self(call).fill) self(call).fill(bo, offset, bytes, byte);
  }
  static std::uint64_t now_ns(const vam_call*, int) { return 1000; }
  static int no_fd(const vam_call*, std::uint32_t, std::uint32_t*) { return -VAM_EINVAL; }
  static int no_fence(const vam_call*, std::uint32_t, std::uint32_t*, int*) { return -VAM_EINVAL; }
  static int no_watch(const vam_call*, std::uint32_t, std::uint64_t, int, std::uint32_t) {
    return -VAM_EBADF;
  }
  static void nothing(const vam_call*, std::uint32_t) {}

  static constexpr vam_os kOs = {copy_in,  copy_out, file_of_fd, bo_of_fd, export_bo, close_fd,
                                 traces,   capable,  user_range, fill_bo,  now_ns,    no_fd,
                                 no_fence, no_fd,    no_fd,      no_watch, nothing,   nothing};

  std::vector<std::uint64_t> memory_;
  vam_call call_{};
};

}  // namespace vamdgpu::tests
