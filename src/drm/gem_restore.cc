// SPDX-License-Identifier: MIT
#include "drm/gem_restore.h"

#include <libdrm/amdgpu_drm.h>
#include <libdrm/drm.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "base/format.h"
#include "drm/drm_call.h"
#include "drm/target_file.h"

namespace sluice::drm {
namespace {

// DRM_IOCTL_GEM_CHANGE_HANDLE, newer than Debian 12's headers.
struct ChangeHandleArgs {
  std::uint32_t handle;
  std::uint32_t new_handle;
};
constexpr unsigned long kIoctlChangeHandle = DRM_IOWR(0xD2, ChangeHandleArgs);
static_assert(kIoctlChangeHandle == 0xC00864D2);

std::string describe(const GemBo& bo) {
  return formatted("GEM handle {} ({} bytes)", bo.handle, bo.bytes);
}

GemBo placeholder_of_one_page() {
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return {0, page, page, AMDGPU_GEM_DOMAIN_CPU, 0, {}, {}};
}

Error taken(const GemBo& bo, std::uint32_t given) {
  return Error{EEXIST, formatted("{} is taken: the kernel assigned {}; restore under the dump's kernel, or "
                                 "report this [SL-G51]",
                                 describe(bo), given)};
}

}  // namespace

GemRestore::~GemRestore() {
  for (const std::uint32_t handle : placeholders_) (void)close(handle);
}

Result<void> GemRestore::create(const GemBo& bo) {
  if (!can_change_ && created_ + placeholders() + 1 < bo.handle) SLUICE_TRY(hold_handles_below(bo.handle));
  SLUICE_TRY_ASSIGN(std::uint32_t handle, create_anywhere(bo));
  handle = move(handle, bo);
  if (handle < bo.handle) {  // only once: the kernel has shown that it cannot change handles
    SLUICE_TRY(close(handle));
    SLUICE_TRY(hold_handles_below(bo.handle));
    SLUICE_TRY_ASSIGN(handle, create_anywhere(bo));
  }
  if (handle != bo.handle) return taken(bo, handle);  // unreached: a race
  ++created_;
  SLUICE_TRY(set_metadata(bo));
  for (const GemMapping& mapping : bo.mappings) SLUICE_TRY(map(bo, mapping));
  return {};
}

Result<void> GemRestore::reserve(const GemBo& bo) {
  GemBo placeholder = placeholder_of_one_page();
  placeholder.handle = bo.handle;
  return create(placeholder);
}

Result<void> GemRestore::import(const GemBo& bo, int dmabuf) {
  const off_t bytes = ::lseek(dmabuf, 0, SEEK_END);
  if (bytes < 0) return make_error(errno, "size of the shared memory for " + describe(bo));
  if (static_cast<std::uint64_t>(bytes) < bo.bytes)
    return Error{EINVAL,
                 formatted("the shared memory for {} has only {} bytes; use another checkpoint [SL-G52]",
                           describe(bo), bytes)};
  SLUICE_TRY(close(bo.handle));  // now the lowest free handle, unless handles can be changed
  drm_prime_handle args{};
  args.fd = dmabuf;
  if (const int err = drm_call(fd_, DRM_IOCTL_PRIME_FD_TO_HANDLE, &args); err != 0)
    return make_error(err, "import the memory for " + describe(bo));
  const std::uint32_t handle = move(args.handle, bo);
  if (handle != bo.handle) return taken(bo, handle);  // unreached: a race
  SLUICE_TRY(set_metadata(bo));
  SLUICE_TRY_ASSIGN(const auto known, mappings_of(fd_, handle));
  const std::vector<GemMapping> mapped = known.value_or(std::vector<GemMapping>());
  for (const GemMapping& mapping : bo.mappings) {
    const bool is_mapped = std::any_of(mapped.begin(), mapped.end(), [&](const GemMapping& one) {
      return one.address == canonical_address(mapping.address) && one.bytes == mapping.bytes;
    });
    if (!is_mapped) SLUICE_TRY(map(bo, mapping));
  }
  return {};
}

// If the kernel can change handles, changes it to the wanted one. Returns the handle it has then.
std::uint32_t GemRestore::move(std::uint32_t handle, const GemBo& bo) {
  if (handle >= bo.handle || !can_change_) return handle;
  ChangeHandleArgs args{handle, bo.handle};
  can_change_ = drm_call(fd_, kIoctlChangeHandle, &args) == 0;
  return can_change_ ? bo.handle : handle;
}

Result<std::uint32_t> GemRestore::create_anywhere(const GemBo& bo) const {
  drm_amdgpu_gem_create args{};
  args.in.bo_size = bo.bytes;
  args.in.alignment = bo.alignment_bytes;
  args.in.domains = bo.domains;
  args.in.domain_flags = bo.alloc_flags;
  if (const int err = drm_call(fd_, DRM_IOCTL_AMDGPU_GEM_CREATE, &args); err != 0)
    return make_error(err, "create the BO of " + describe(bo));
  return std::uint32_t{args.out.handle};
}

// Afterwards `wanted` is the lowest free handle.
Result<void> GemRestore::hold_handles_below(std::uint32_t wanted) {
  if (wanted - 1 - created_ > kMostPlaceholders) {
    return Error{
        E2BIG,
        formatted("GEM handle {} needs more than {} placeholders below it; restore under a newer kernel, "
                  "which can change handles [SL-G53]",
                  wanted, kMostPlaceholders)};
  }
  const GemBo placeholder = placeholder_of_one_page();
  for (;;) {
    auto handle = create_anywhere(placeholder);
    if (!handle) return explain("hold the handles below " + std::to_string(wanted), handle.error());
    if (*handle >= wanted) return close(*handle);
    placeholders_.push_back(*handle);
  }
}

// Flags that the kernel accepts only together with data, and keeps when the data go.
Result<void> GemRestore::set_metadata(const GemBo& bo) const {
  const GemMetadata& metadata = bo.metadata;
  if (metadata == GemMetadata{}) return {};
  drm_amdgpu_gem_metadata args{};
  args.handle = bo.handle;
  args.op = AMDGPU_GEM_METADATA_OP_SET_METADATA;
  args.data.tiling_info = metadata.tiling_info;
  args.data.flags = metadata.flags;
  std::copy(metadata.data.begin(), metadata.data.end(), reinterpret_cast<std::uint8_t*>(args.data.data));
  const auto set = [&](std::size_t bytes) -> Result<void> {
    args.data.data_size_bytes = static_cast<std::uint32_t>(bytes);
    const int err = drm_call(fd_, DRM_IOCTL_AMDGPU_GEM_METADATA, &args);
    return err == 0 ? Result<void>() : make_error(err, "set the metadata of " + describe(bo));
  };
  if (metadata.flags != 0 && metadata.data.empty()) SLUICE_TRY(set(1));
  return set(metadata.data.size());
}

Result<void> GemRestore::map(const GemBo& bo, const GemMapping& mapping) const {
  drm_amdgpu_gem_va args{};
  args.handle = bo.handle;
  args.operation = AMDGPU_VA_OP_MAP;
  args.flags = static_cast<std::uint32_t>(mapping.flags);
  args.va_address = canonical_address(mapping.address);  // for images made by others
  args.offset_in_bo = mapping.bo_offset;
  args.map_size = mapping.bytes;
  if (const int err = drm_call(fd_, DRM_IOCTL_AMDGPU_GEM_VA, &args); err != 0) {
    return make_error(err, formatted("map {} at GPU address {:#x}", describe(bo), mapping.address));
  }
  return {};
}

Result<void> GemRestore::close(std::uint32_t handle) const {
  drm_gem_close args{};
  args.handle = handle;
  const int err = drm_call(fd_, DRM_IOCTL_GEM_CLOSE, &args);
  return err == 0 ? Result<void>() : make_error(err, "close GEM handle " + std::to_string(handle));
}

}  // namespace sluice::drm
