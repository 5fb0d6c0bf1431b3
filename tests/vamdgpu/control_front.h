// SPDX-License-Identifier: MIT
// How Control reaches a machine in a directory that programs share: through the shared segment, like any
// process on the machine, by system calls that no wrapper sees. Internal to control*.cc. Any thread; errors
// that are not the caller's throw std::system_error.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "control.h"
#include "model/debug.h"

namespace vamdgpu {

struct Shared;

class ControlFront {
 public:
  // nullptr with errno.
  static std::unique_ptr<ControlFront> open(const std::string& directory);
  ~ControlFront();
  ControlFront(const ControlFront&) = delete;
  ControlFront& operator=(const ControlFront&) = delete;

  const vamdgpu_machine_config& config() const;

  // Shows the model, or what was asked and counted, as it is at one moment; it stays so until `look` returns.
  // `buffers`: dma-bufs that nobody holds any more are gone from it too, which is slower.
  void model(bool buffers, const std::function<void(const vam_model&)>& look) const;
  void debug(const std::function<void(const vam_debug&)>& look) const;

  void add_fault(const vam_fault_rule& rule);
  void add_fence_fault(const vam_fence_fault& fault);
  void release_hung_fences();
  void set_engine_rate(std::uint32_t gpu, std::uint64_t bytes_per_s);
  void lose_vram(std::uint32_t gpu, std::uint32_t answers);
  void run_kernels(pid_t pid, vam_waves waves, std::uint32_t stops);
  void clear_faults();
  void clear_trace();

  // Control::read and write; `bytes` is only read for a write.
  bool transfer(pid_t pid, std::uint32_t gpu_id, std::uint64_t va, void* bytes, std::size_t size, bool write);
  std::optional<DeviceMapping> device_of_mapping(dev_t device, ino_t inode, std::uint64_t offset) const;

 private:
  ControlFront(std::string directory, Shared* shared, std::uint64_t device)
      : directory_(std::move(directory)), shared_(shared), device_(device) {}

  std::string directory_;
  Shared* shared_;
  std::uint64_t device_;
};

}  // namespace vamdgpu
