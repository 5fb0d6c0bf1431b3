// SPDX-License-Identifier: MIT
// The dumped or restored process's side of a GPU, for tests: a render file of its own with BOs made by raw
// ioctl, filled and read through CPU maps, and handed out as dma-bufs. Thread-bound.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace sluice::drm {

inline constexpr std::uint32_t kFirstMinor = 128, kSecondMinor = 129;
inline const std::string kFirstNode = "/dev/dri/renderD128";
inline const std::string kSecondNode = "/dev/dri/renderD129";

enum class Domain { Gtt, Vram };

// One BO with its CPU map. Move-only; the destructor unmaps, the handle goes with the file.
class TargetBo {
 public:
  TargetBo(std::uint32_t handle, std::span<std::byte> cpu, std::uint64_t map_offset)
      : handle_(handle), cpu_(cpu), map_offset_(map_offset) {}
  TargetBo(TargetBo&& other) noexcept;
  TargetBo& operator=(TargetBo&&) = delete;
  ~TargetBo();

  std::uint32_t handle() const { return handle_; }
  std::span<std::byte> cpu() const { return cpu_; }
  std::uint64_t map_offset() const { return map_offset_; }

 private:
  std::uint32_t handle_;
  std::span<std::byte> cpu_;
  std::uint64_t map_offset_;
};

// Failures throw std::system_error: the test ends with its text.
class TargetFile {
 public:
  explicit TargetFile(const std::string& path = kFirstNode);

  int fd() const { return fd_.get(); }
  TargetBo create(std::uint64_t bytes, Domain domain = Domain::Vram) const;
  UniqueFd dmabuf(const TargetBo& bo) const;

 private:
  UniqueFd fd_;
};

// GEM handles of every render file that this process has open at `path`, `target` excluded: what libdrm's
// files hold.
std::size_t handles_of_others(const std::string& path, const TargetFile& target);

// Whether the program runs on a virtual machine (vamdgpu-run); tests that need one skip without.
bool on_virtual_machine();

}  // namespace sluice::drm
