// SPDX-License-Identifier: MIT
// What Control needs of the two places a machine can live in: a directory that programs share (user-space
// front) or the kernel. Internal to control*.cc. Any thread; errors that are not the caller's throw
// std::system_error.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "control.h"
#include "model/debug.h"

namespace vamdgpu {

class ControlFront {
 public:
  virtual ~ControlFront() = default;

  virtual const vamdgpu_machine_config& config() const = 0;

  // Shows the model, or what was asked and counted, as it is at one moment; it stays so until `look` returns.
  // `buffers`: dma-bufs that nobody holds any more are gone from it too (slower in a directory).
  virtual void model(bool buffers, const std::function<void(const vam_model&)>& look) const = 0;
  virtual void debug(const std::function<void(const vam_debug&)>& look) const = 0;

  virtual void add_fault(const vam_fault_rule& rule) = 0;
  virtual void add_fence_fault(const vam_fence_fault& fault) = 0;
  virtual void release_hung_fences() = 0;
  virtual void set_engine_rate(std::uint32_t gpu, std::uint64_t bytes_per_s) = 0;
  virtual void set_userptr_busy(std::uint32_t times) = 0;
  virtual void lose_vram(std::uint32_t gpu, std::uint32_t answers) = 0;
  virtual void run_kernels(pid_t pid, vam_waves waves, std::uint32_t stops) = 0;
  virtual void clear_faults() = 0;
  virtual void clear_trace() = 0;

  // Control::read and write; `bytes` is only read for a write.
  virtual bool transfer(pid_t pid, std::uint32_t gpu_id, std::uint64_t va, void* bytes, std::size_t size,
                        bool write) = 0;
  virtual std::optional<DeviceMapping> device_of_mapping(dev_t device, ino_t inode,
                                                         std::uint64_t offset) const = 0;
};

// nullptr with errno.
std::unique_ptr<ControlFront> open_directory_front(const std::string& directory);
std::unique_ptr<ControlFront> open_kernel_front(const std::string& directory);

}  // namespace vamdgpu
