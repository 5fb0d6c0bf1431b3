// SPDX-License-Identifier: MIT
// Recreates the BOs of a render file in a restored file: under their old GEM handles, at their old places in
// the GPU's address space. By raw ioctl, as everything on a file that becomes the application's (see
// target_file.h).
//
// Handles: a new BO gets the lowest free handle, so BOs come in ascending order. If that is lower than
// wanted, DRM_IOCTL_GEM_CHANGE_HANDLE changes it. Few kernels have that ioctl, and 7.2 has it disabled.
// Without it, placeholders hold the handles between until finish(): BOs of one page in the CPU's domain,
// which get no memory before they are touched.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "drm/gem.h"

namespace sluice::drm {

// More are refused: each costs the kernel an object and the restore an ioctl or two.
inline constexpr std::uint32_t kMostPlaceholders = 65'536;

class GemRestore {
 public:
  // `fd`: borrowed, and stays open until the destructor. It has no handles yet.
  explicit GemRestore(int fd) : fd_(fd) {}
  ~GemRestore();  // closes the placeholders; a file with only some of its BOs is useless
  GemRestore(const GemRestore&) = delete;
  GemRestore& operator=(const GemRestore&) = delete;

  // Makes the next BO, with its metadata, and maps it. Handles ascend. Errors: EEXIST for a handle in use,
  // E2BIG if it needs too many placeholders, ENOMEM, EINVAL if the kernel refuses it.
  Result<void> create(const GemBo& bo);

  // Instead of create() for a BO that is imported later: keeps its handle free.
  Result<void> reserve(const GemBo& bo);
  // Imports and maps it, unless it is mapped already: in the file that KFD uses, KFD's own BOs are. Sets its
  // metadata, too: KFD makes memory without, and memory of another GPU has its own here. Others that have the
  // memory set the same. Errors: those of create(); EINVAL for a dma-buf with fewer bytes.
  Result<void> import(const GemBo& bo, int dmabuf);

  std::uint32_t placeholders() const { return static_cast<std::uint32_t>(placeholders_.size()); }

 private:
  Result<std::uint32_t> create_anywhere(const GemBo& bo) const;
  std::uint32_t move(std::uint32_t handle, const GemBo& bo);
  Result<void> hold_handles_below(std::uint32_t wanted);
  Result<void> set_metadata(const GemBo& bo) const;
  Result<void> map(const GemBo& bo, const GemMapping& mapping) const;
  Result<void> close(std::uint32_t handle) const;

  int fd_;
  bool can_change_ = true;  // until the kernel shows otherwise
  std::uint32_t created_ = 0;
  std::vector<std::uint32_t> placeholders_;
};

}  // namespace sluice::drm
