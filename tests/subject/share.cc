// SPDX-License-Identifier: MIT
#include "subject/share.h"

#include <fcntl.h>
#include <libdrm/amdgpu_drm.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xf86drm.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>

#include "base/units.h"
#include "subject/bos.h"
#include "subject/device.h"
#include "subject/files.h"
#include "subject/gem.h"

namespace sluice::subject {
namespace {

constexpr std::uint64_t kShareBytes = kPlainGemBytes;
constexpr MetadataRecord kShareMetadata = {AMDGPU_TILING_SET(SWIZZLE_MODE, 9), 9, 100, 0};

int file_of(const Arena& arena, const ShareRecord& share) {
  const GpuRecord& gpu = arena.gpus[share.gpu];
  return share.in_other_file != 0 ? gpu.other_render_fd : gpu.render_fd;
}

Result<UniqueFd> export_handle(int fd, std::uint32_t handle, std::uint32_t flags = DRM_CLOEXEC | DRM_RDWR) {
  int dmabuf = -1;
  if (drmPrimeHandleToFD(fd, handle, flags, &dmabuf) != 0) return make_error(errno, "PRIME_HANDLE_TO_FD");
  return UniqueFd(dmabuf);
}

// The GPU maps it where nothing else is. All that have it agree on what it is.
Result<void> note(Arena& arena, ShareRecord share) {
  std::uint64_t& next_va = arena.gpus[share.gpu].next_va;
  share.map = {next_va, kShareBytes, 0, AMDGPU_VM_PAGE_READABLE | AMDGPU_VM_PAGE_WRITEABLE};
  next_va += 2 * kShareBytes;
  SLUICE_TRY(map_for_gpu(file_of(arena, share), share.handle, share.map));
  SLUICE_TRY(set_metadata(file_of(arena, share), share.handle, kShareMetadata));
  if (arena.num_shares == arena.shares.size()) return Error{ENOSPC, "the table of shares is full"};
  arena.shares[arena.num_shares++] = share;
  return {};
}

Result<void> import_into(Arena& arena, int dmabuf, std::uint32_t gpu, bool other_file) {
  ShareRecord share{gpu, other_file ? 1U : 0U, 0, 0, {}};
  const int fd = file_of(arena, share);
  if (fd < 0) return {};
  if (drmPrimeFDToHandle(fd, dmabuf, &share.handle) != 0) return make_error(errno, "PRIME_FD_TO_HANDLE");
  return note(arena, share);
}

Result<void> import_into_all(Arena& arena, int dmabuf) {
  SLUICE_TRY(import_into(arena, dmabuf, 0, true));
  if (arena.num_shares == 0 || arena.shares[0].in_other_file != 0)
    SLUICE_TRY(import_into(arena, dmabuf, 0, false));
  return arena.num_gpus > 1 ? import_into(arena, dmabuf, 1, false) : Result<void>();
}

// Into the KFD, mapped by the CPU at the same address.
Result<void> import_into_kfd(Arena& arena, int dmabuf) {
  SLUICE_TRY_ASSIGN(const std::uint32_t index, import_bo(arena, 0, dmabuf, kShareBytes));
  SLUICE_TRY_ASSIGN(const UniqueFd window, open_window_file(arena, 0));
  std::uint32_t handle = 0;
  if (drmPrimeFDToHandle(window.get(), dmabuf, &handle) != 0) return make_error(errno, "PRIME_FD_TO_HANDLE");
  SLUICE_TRY_ASSIGN(const std::uint64_t offset, mmap_offset(window.get(), handle));
  SLUICE_TRY(map_bo(arena, index, offset));
  arena.import_bo = index + 1;
  return {};
}

// Shows the first word of what is behind a dma-buf, for reading or writing: through the GPU whose memory it
// is, the first one, for an import into another cannot be touched by the CPU (ttm_bo_vm_reserve: SIGBUS).
template <class Visit>
Result<void> visit_word(const Arena& arena, UniqueFd dmabuf, Visit visitor) {
  SLUICE_TRY_ASSIGN(const UniqueFd window, open_window_file(arena, 0));
  return visit_bo(window.get(), std::move(dmabuf), kShareBytes,
                  [&](std::span<std::uint8_t> bytes, std::uint64_t offset) -> Result<void> {
                    if (offset == 0) visitor(bytes);
                    return {};
                  });
}

Result<UniqueFd> copy_of_share_fd(const Arena& arena) {
  UniqueFd copy(::fcntl(arena.share_fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) return make_error(errno, "the descriptor of the dma-buf");
  return copy;
}

// Of a BO that its render file has no longer.
Result<UniqueFd> export_alone(const Arena& arena) {
  SLUICE_TRY_ASSIGN(const UniqueFd window, open_window_file(arena, 0));
  SLUICE_TRY_ASSIGN(const std::uint32_t handle, create_plain_gem(window.get()));
  return export_handle(window.get(), handle);
}

std::string text_of(const IpcHandle& handle) {
  std::array<char, 33> text{};
  std::snprintf(text.data(), text.size(), "%08" PRIx32 "%08" PRIx32 "%08" PRIx32 "%08" PRIx32, handle[0],
                handle[1], handle[2], handle[3]);
  return text.data();
}

Result<IpcHandle> handle_in(const std::string& text) {
  IpcHandle handle{};
  for (std::size_t i = 0; i < handle.size(); ++i) {
    const char* const begin = text.data() + 8 * i;
    if (text.size() != 8 * handle.size() || std::from_chars(begin, begin + 8, handle[i], 16).ptr != begin + 8)
      return Error{EINVAL, "not a handle: " + text};
  }
  return handle;
}

// Mapped by the CPU at the GPU's address: that is how it is looked at.
Result<void> add_ipc_bo(Arena& arena, const Options& options) {
  std::uint64_t offset = 0;
  std::uint32_t index = 0;
  if (options.share == Share::Ipc) {
    NewBo wanted{.gpu = 0, .bytes = kShareBytes, .role = BoRole::Shared};
    wanted.flags = KFD_IOC_ALLOC_MEM_FLAGS_VRAM | KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC | kWritable;
    SLUICE_TRY_ASSIGN(index, add_bo(arena, wanted, &offset));
    SLUICE_TRY(ipc_handle_of(arena, arena.bos[index]));
  } else {
    SLUICE_TRY_ASSIGN(const IpcHandle handle, handle_in(options.import_ipc));
    SLUICE_TRY_ASSIGN(index, import_ipc_bo(arena, 0, handle, kShareBytes, &offset));
  }
  SLUICE_TRY(map_bo(arena, index, offset));
  arena.ipc_bo = index + 1;
  arena.has_share = 1;
  return options.import_ipc.empty() ? poke_shared_bo(arena, arena.seed) : Result<void>();
}

std::uint64_t* ipc_word(const Arena& arena) {
  return reinterpret_cast<std::uint64_t*>(arena.bos[arena.ipc_bo - 1].va);
}

Result<std::uint64_t> value_of(const Arena& arena, UniqueFd dmabuf) {
  std::uint64_t value = 0;
  SLUICE_TRY(visit_word(arena, std::move(dmabuf), [&](std::span<std::uint8_t> bytes) {
    std::memcpy(&value, bytes.data(), sizeof value);
  }));
  return value;
}

}  // namespace

Result<void> add_shared_bo(Arena& arena, const Options& options) {
  if (options.share == Share::Ipc || !options.import_ipc.empty()) return add_ipc_bo(arena, options);
  UniqueFd dmabuf;
  if (options.import_from != 0) {
    SLUICE_TRY_ASSIGN(dmabuf, take_descriptor(static_cast<pid_t>(options.import_from), kShareFd));
  } else if (options.share == Share::Kfd) {
    NewBo wanted{.gpu = 0, .bytes = kShareBytes, .role = BoRole::Shared};
    wanted.flags = KFD_IOC_ALLOC_MEM_FLAGS_VRAM | KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC | kWritable;
    std::uint64_t offset = 0;
    SLUICE_TRY_ASSIGN(const std::uint32_t index, add_bo(arena, wanted, &offset));
    arena.share_bo = index + 1;
    SLUICE_TRY_ASSIGN(dmabuf, export_bo(arena, arena.bos[index]));
  } else if (options.share == Share::Gem && options.share_alone) {
    SLUICE_TRY_ASSIGN(dmabuf, export_alone(arena));
  } else if (options.share == Share::Gem) {
    ShareRecord share{};
    SLUICE_TRY_ASSIGN(share.handle, create_plain_gem(arena.gpus[0].render_fd));
    SLUICE_TRY(note(arena, share));
    SLUICE_TRY_ASSIGN(dmabuf, export_handle(arena.gpus[0].render_fd, share.handle));
  } else {
    return {};
  }
  if (!options.share_alone) SLUICE_TRY(import_into_all(arena, dmabuf.get()));
  if (options.kfd_import) SLUICE_TRY(import_into_kfd(arena, dmabuf.get()));
  if (options.kfd_import_unmapped) SLUICE_TRY(import_at(arena, 0, dmabuf.get(), arena.shares[0].map.address));
  if (options.share_fd_read_only) {
    SLUICE_TRY_ASSIGN(dmabuf, export_handle(arena.gpus[0].render_fd, arena.shares[0].handle, DRM_CLOEXEC));
  }
  if (options.share_fd || options.share_fd_read_only) {
    if (::fcntl(dmabuf.get(), F_DUPFD_CLOEXEC, kShareFd) != kShareFd)
      return Error{EEXIST, "the number of the dma-buf is taken"};
    arena.share_fd = kShareFd;
  }
  arena.has_share = 1;
  return options.import_from != 0 ? Result<void>() : poke_shared_bo(arena, arena.seed);
}

Result<std::uint64_t> peek_shared_bo(const Arena& arena) {
  std::optional<std::uint64_t> seen;
  const auto compare = [&](Result<std::uint64_t> value, const std::string& who) -> Result<void> {
    if (!value) return std::move(value).error();
    if (seen && *seen != *value) return Error{EIO, who + " sees other memory than the rest"};
    seen = *value;
    return {};
  };
  for (std::uint32_t i = 0; i < arena.num_shares; ++i) {
    const ShareRecord& share = arena.shares[i];
    SLUICE_TRY(check_gpu_map(file_of(arena, share), share.handle, share.map));
    SLUICE_TRY(check_metadata(file_of(arena, share), share.handle, kShareMetadata));
    SLUICE_TRY_ASSIGN(UniqueFd dmabuf, export_handle(file_of(arena, share), share.handle));
    SLUICE_TRY(compare(value_of(arena, std::move(dmabuf)), "share " + std::to_string(i)));
  }
  if (arena.share_bo != 0) {
    SLUICE_TRY_ASSIGN(UniqueFd dmabuf, export_bo(arena, arena.bos[arena.share_bo - 1]));
    SLUICE_TRY(compare(value_of(arena, std::move(dmabuf)), "the KFD"));
  }
  if (arena.import_bo != 0) {
    const BoRecord& bo = arena.bos[arena.import_bo - 1];
    if (arena.can_export != 0) {
      SLUICE_TRY_ASSIGN(UniqueFd dmabuf, export_bo(arena, bo));
      SLUICE_TRY(compare(value_of(arena, std::move(dmabuf)), "the KFD's import"));
    }
    std::uint64_t value = 0;
    std::memcpy(&value, reinterpret_cast<const void*>(bo.va), sizeof value);
    SLUICE_TRY(compare(value, "the map of the KFD's import"));
  }
  if (arena.share_fd > 0) {
    SLUICE_TRY_ASSIGN(UniqueFd copy, copy_of_share_fd(arena));
    SLUICE_TRY(compare(value_of(arena, std::move(copy)), "the descriptor"));
  }
  if (arena.ipc_bo != 0) SLUICE_TRY(compare(*ipc_word(arena), "the map of what has an IPC handle"));
  if (!seen) return Error{ENOENT, "nothing is shared"};
  return *seen;
}

Result<std::string> ipc_handle_text(const Arena& arena) {
  if (arena.ipc_bo == 0) return Error{ENOENT, "nothing is shared by IPC"};
  SLUICE_TRY_ASSIGN(const IpcHandle handle, ipc_handle_of(arena, arena.bos[arena.ipc_bo - 1]));
  return text_of(handle);
}

Result<void> poke_shared_bo(const Arena& arena, std::uint64_t value) {
  if (arena.ipc_bo != 0) {
    *ipc_word(arena) = value;
    return {};
  }
  const auto write = [&](std::span<std::uint8_t> bytes) { std::memcpy(bytes.data(), &value, sizeof value); };
  if (arena.num_shares == 0 && arena.share_fd > 0) {
    SLUICE_TRY_ASSIGN(UniqueFd copy, copy_of_share_fd(arena));
    return visit_word(arena, std::move(copy), write);
  }
  if (arena.num_shares == 0) return Error{ENOENT, "nothing is shared"};
  const ShareRecord& last = arena.shares[arena.num_shares - 1];
  SLUICE_TRY_ASSIGN(UniqueFd dmabuf, export_handle(file_of(arena, last), last.handle));
  return visit_word(arena, std::move(dmabuf), write);
}

}  // namespace sluice::subject
