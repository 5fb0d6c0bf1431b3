// SPDX-License-Identifier: MIT
// The permitted operations on a DRM file that belongs to a dumped process, or is being made for a restored
// one. These are listing, mapping query, metadata, lost VRAM, PRIME export, and whether it may map an offset.
// By raw ioctl and never through libdrm. Importing a BO that the file already has returns the application's
// own handle without a reference, which libdrm would close. Nor does libdrm's VA manager know the
// application's mappings.
//
// Every fd is borrowed. Nothing here changes the file, except allow_map(), which is for files of our own. May
// be called from any thread. ABI: drm.h, amdgpu_drm.h. GEM_LIST_HANDLES and GET_MAPPING_INFO are newer than
// Debian 12's headers (first in Linux 6.18 as far as known); their layout is written out here.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "drm/gem.h"

namespace sluice::drm {

// The driver behind a DRM file ("amdgpu", 3.61). Errors: ENOTTY, EINVAL or EBADF if `fd` is no DRM file.
struct Driver {
  std::string name;
  int major = 0;
  int minor = 0;
};
Result<Driver> driver_of(int fd);
Result<std::string> driver_name(int fd);

// Shorthand without errors: false for every file that is not an open amdgpu DRM file.
bool is_amdgpu(int fd);

// One GEM handle of a file.
struct GemHandle {
  std::uint32_t handle = 0;
  bool imported = false;  // attached from another device
  std::uint64_t bytes = 0;
  std::uint64_t preferred_domains = 0;  // AMDGPU_GEM_DOMAIN_*
  std::uint64_t alloc_flags = 0;        // AMDGPU_GEM_CREATE_*
};

// The engines ("compute", "dma") that have worked for the file's contexts, KFD's queues not included. They
// are the only trace of contexts, syncobjs and fences, which nothing lists. From its fdinfo; empty if that
// does not tell, as before Linux 5.14 and for a file that has submitted nothing.
std::vector<std::string> engines_used(int fd, const char* fdinfo = "/proc/self/fdinfo");

// Every GEM handle of the file; KFD's BOs have none. nullopt: the kernel is too old to say. Errors: ENOMEM,
// EBADF, ENODEV.
Result<std::optional<std::vector<GemHandle>>> list_handles(int fd);

// One handle of the file, as in list_handles(). If the kernel does not list handles: without `imported`, and
// only with flags that every kernel accepts. Errors: ENOENT unknown handle, else those of list_handles().
Result<GemHandle> describe_handle(int fd, std::uint32_t handle);

// The address that GEM_VA accepts for one that the kernel reports. For addresses in the upper half of the
// GPU's address space it reports, and keeps, only the lower 48 bits (AMDGPU_GMC_HOLE_MASK), which it does not
// accept.
std::uint64_t canonical_address(std::uint64_t told);

// Mappings of `handle`, at canonical addresses; empty if it has none in this file's address space, or is
// unknown (the kernel answers ENOENT to both). Returns nullopt if the kernel is too old to tell. Errors:
// ENOMEM, EBADF.
Result<std::optional<std::vector<GemMapping>>> mappings_of(int fd, std::uint32_t handle);

// Alignment in bytes that `handle` was created with (from GEM_OP's creation info; the listing gives pages).
// Errors: ENOENT unknown handle, EBADF.
Result<std::uint64_t> alignment_of(int fd, std::uint32_t handle);

// Metadata of `handle`; all zero and empty for a BO without any. Errors: ENOENT, EBADF.
Result<GemMetadata> metadata_of(int fd, std::uint32_t handle);

// The offset at which the device maps the BO; 0 if no CPU may map it. Errors: ENOENT, EBADF.
Result<std::uint64_t> mmap_offset_of(int fd, std::uint32_t handle);

// Waits until no submitted work uses the BO; false if some still does at `deadline`. Errors: ENOENT, EBADF.
Result<bool> wait_until_idle(int fd, std::uint32_t handle, std::uint64_t deadline_ns);

// How often resets have lost the VRAM of the file's GPU since its driver was loaded
// (AMDGPU_INFO_VRAM_LOST_COUNTER). Errors: EBADF, EINVAL.
Result<std::uint32_t> vram_losses(int fd);

// A dma-buf of the file's BO `handle`, readable and writable, close-on-exec. Errors: ENOENT unknown handle,
// EPERM for memory that cannot be shared (userptr, VM_ALWAYS_VALID), EMFILE.
Result<UniqueFd> export_dmabuf(int fd, std::uint32_t handle);

// Lets `fd`, a render file of our own that the application will never hold, map the BO behind a dma-buf of
// the same device. Returns the file's handle of it, which stays until the file is closed. Errors: EINVAL,
// ENOMEM, EBADF.
Result<std::uint32_t> allow_map(int fd, int dmabuf);

// The kernel's answer when `fd` asks to map `offset`.
enum class MapAccess : std::uint8_t {
  Allowed,        // has a handle of the BO, or is the file KFD acquired for it
  Denied,         // another file's BO
  UnknownOffset,  // no BO of this device is at the offset
};

// Maps one page of `offset` (a multiple of the page size) without access rights and unmaps it. No page is
// faulted in, and the file does not change. A BO that no CPU may map counts as Allowed, because access is
// checked first. Errors: ENOMEM, EBADF, ENODEV.
Result<MapAccess> may_map(int fd, std::uint64_t offset);

}  // namespace sluice::drm
