// SPDX-License-Identifier: MIT
// The BOs of a render file, made again in a file that is being restored: under the GEM handles they had,
// mapped in the GPU's address space where they were. By raw ioctl, as everything on a file that becomes the
// application's (see target_file.h).
//
// Handles. A new BO gets the lowest handle that is free, so BOs come in ascending order. Where that is lower
// than wanted, DRM_IOCTL_GEM_CHANGE_HANDLE moves it. Few kernels have that, and 7.2 has it disabled; without
// it the handles between are held by placeholders, BOs of one page in the CPU's domain (no memory is given
// before somebody touches it), until finish().
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
  ~GemRestore();  // closes the placeholders; a file with a part of its BOs is of no use
  GemRestore(const GemRestore&) = delete;
  GemRestore& operator=(const GemRestore&) = delete;

  // Makes the next BO, with its metadata, and maps it. Handles ascend. Errors: EEXIST for a handle that is
  // taken, E2BIG for one that asks for too many placeholders, ENOMEM, EINVAL for what the kernel does not
  // take.
  Result<void> create(const GemBo& bo);

  // In place of create() for a BO that is imported later: keeps its handle.
  Result<void> reserve(const GemBo& bo);
  // Imports it and maps it, where it is not mapped already: in the file that KFD uses, its own BOs are. Gives
  // it its metadata, too: KFD makes memory without, and memory of another GPU has its own here. Whoever else
  // has the memory sets the same.
  // Errors: those of create(); EINVAL for a dma-buf that holds fewer bytes.
  Result<void> import(const GemBo& bo, int dmabuf);

  std::uint32_t placeholders() const { return static_cast<std::uint32_t>(placeholders_.size()); }

 private:
  Result<std::uint32_t> create_anywhere(const GemBo& bo) const;
  std::uint32_t move(std::uint32_t handle, const GemBo& bo);
  Result<void> hold_handles_below(std::uint32_t wanted);
  Result<void> set_metadata(const GemBo& bo) const;
  Result<void> map(const GemBo& bo, const GemMapping& mapping) const;
  void close(std::uint32_t handle) const;

  int fd_;
  bool can_change_ = true;  // until the kernel says otherwise
  std::uint32_t created_ = 0;
  std::vector<std::uint32_t> placeholders_;
};

}  // namespace sluice::drm
