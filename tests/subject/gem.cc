// SPDX-License-Identifier: MIT
#include "subject/gem.h"

#include <fcntl.h>
#include <libdrm/amdgpu_drm.h>
#include <sys/mman.h>
#include <xf86drm.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "base/units.h"
#include "subject/bos.h"
#include "subject/device.h"

namespace sluice::subject {
namespace {

constexpr std::uint32_t kMappedForCpu = 8;  // of a file's BOs, the first ones

// DRM_IOCTL_AMDGPU_GEM_OP, op 2 (Linux 6.18), younger than the headers of Debian 12.
struct MappingInfo {
  std::uint64_t address, bytes, bo_offset, flags;
};
struct MappingInfoArgs {
  std::uint32_t handle, op;
  std::uint64_t value;
  std::uint32_t entries, padding;
};
constexpr std::uint32_t kGetMappingInfo = 2;
constexpr unsigned long kGemMappingInfo = DRM_IOWR(DRM_COMMAND_BASE + DRM_AMDGPU_GEM_OP, MappingInfoArgs);

// Of the GPU's address space. The kernel tells 48 bits of an address.
constexpr std::uint64_t kUpperHalf = 0xffff'8000'0000'0000, kToldBits = 0xffff'ffff'ffff;

std::string describe(const GemRecord& bo) {
  return "GEM handle " + std::to_string(bo.handle) + " of GPU " + std::to_string(bo.gpu);
}

Pattern pattern_of(const Arena& arena, const GemRecord& bo) {
  return Pattern{bo.seed, bo.bytes, arena.zero_percent};
}

int file_of(const Arena& arena, const GemRecord& bo) {
  const GpuRecord& gpu = arena.gpus[bo.gpu];
  return bo.in_other_file != 0 ? gpu.other_render_fd : gpu.render_fd;
}

Result<std::uint32_t> create(int fd, const GemRecord& bo) {
  drm_amdgpu_gem_create args{};
  args.in.bo_size = bo.bytes;
  args.in.alignment = bo.alignment;
  args.in.domains = bo.domains;
  args.in.domain_flags = bo.flags;
  SLUICE_TRY(device_ioctl(fd, DRM_IOCTL_AMDGPU_GEM_CREATE, &args, "GEM_CREATE"));
  return std::uint32_t{args.out.handle};
}

Result<std::span<std::uint8_t>> map_for_cpu(int fd, std::uint32_t handle, std::uint64_t bytes) {
  SLUICE_TRY_ASSIGN(const std::uint64_t offset, mmap_offset(fd, handle));
  void* map = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (map == MAP_FAILED) return make_error(errno, "mmap of a GEM BO");
  return std::span(static_cast<std::uint8_t*>(map), bytes);
}

// Numbers that every GPU takes.
MetadataRecord metadata_of(std::uint32_t number, std::uint64_t seed) {
  constexpr std::array<std::uint32_t, 4> kDataBytes = {37, 0, sizeof(drm_amdgpu_gem_metadata::data.data), 0};
  if (number % kDataBytes.size() == 1) return {};
  return {AMDGPU_TILING_SET(SWIZZLE_MODE, 1 + number % 8), seed, kDataBytes[number % kDataBytes.size()], 0};
}

drm_amdgpu_gem_metadata call_of(std::uint32_t handle, const MetadataRecord& metadata) {
  drm_amdgpu_gem_metadata call{};
  call.handle = handle;
  call.op = AMDGPU_GEM_METADATA_OP_SET_METADATA;
  call.data.tiling_info = metadata.tiling;
  call.data.flags = metadata.bytes != 0 ? metadata.seed : 0;  // the kernel keeps none without data
  call.data.data_size_bytes = metadata.bytes;
  auto* const data = reinterpret_cast<std::uint8_t*>(call.data.data);
  for (std::uint32_t i = 0; i < metadata.bytes; ++i)
    data[i] = static_cast<std::uint8_t>(mix(metadata.seed + i));
  return call;
}

// What the BO with number `number` of its file is like: sizes, domains, flags, metadata and GPU maps by
// turns.
GemRecord plan(Arena& arena, const Options& options, std::uint32_t gpu, bool in_other_file,
               std::uint32_t handle, std::uint32_t number) {
  constexpr std::array<std::uint64_t, 5> kSizes = {kMiB, 4 * kKiB, 12 * kKiB, 64 * kKiB, 300 * kKiB};
  GemRecord bo{};
  bo.gpu = gpu;
  bo.in_other_file = in_other_file ? 1 : 0;
  bo.handle = handle;
  bo.bytes = options.gem_bytes != 0 ? options.gem_bytes : kSizes[number % kSizes.size()];
  bo.alignment = number % 4 == 3 ? 64 * kKiB : kGpuPageBytes;
  bo.domains = number % 2 == 0 ? AMDGPU_GEM_DOMAIN_VRAM : AMDGPU_GEM_DOMAIN_GTT;
  bo.flags = number % 2 == 0 ? AMDGPU_GEM_CREATE_CPU_ACCESS_REQUIRED : AMDGPU_GEM_CREATE_CPU_GTT_USWC;
  bo.seed = mix(arena.seed + 0x4745'4d00 + arena.num_gems);
  bo.metadata = metadata_of(number, bo.seed);
  std::uint64_t& next_va = arena.gpus[gpu].next_va;
  const std::uint64_t half = options.gem_high ? kUpperHalf : 0;
  const auto place = [&](std::uint64_t bytes, std::uint64_t bo_offset, std::uint64_t flags) {
    bo.maps[bo.num_maps++] = {half + next_va, bytes, bo_offset, flags};
    next_va += align_up(bytes, 64 * kKiB) + 64 * kKiB;
  };
  if (number % 5 != 4) place(bo.bytes, 0, AMDGPU_VM_PAGE_READABLE | AMDGPU_VM_PAGE_WRITEABLE);
  if (number % 5 == 2 && bo.bytes > kGpuPageBytes)
    place(bo.bytes - kGpuPageBytes, kGpuPageBytes, AMDGPU_VM_PAGE_READABLE);
  return bo;
}

// Creates BOs until one has the handle; `unwanted` are those before it.
Result<void> create_at(int fd, const GemRecord& bo, std::vector<std::uint32_t>& unwanted) {
  GemRecord small = bo;
  small.bytes = small.alignment = kGpuPageBytes;
  for (;;) {
    SLUICE_TRY_ASSIGN(const std::uint32_t handle, create(fd, small));
    if (handle < bo.handle) {
      unwanted.push_back(handle);
      continue;
    }
    if (drmCloseBufferHandle(fd, handle) != 0) return make_error(errno, "GEM_CLOSE");
    SLUICE_TRY_ASSIGN(const std::uint32_t given, create(fd, bo));
    return given == bo.handle ? Result<void>() : Error{EEXIST, describe(bo) + " cannot be had"};
  }
}

Result<void> visit(const Arena& arena, const GemRecord& bo, int window_fd, const VisitWindow& visitor) {
  int fd = -1;
  if (drmPrimeHandleToFD(file_of(arena, bo), bo.handle, DRM_CLOEXEC | DRM_RDWR, &fd) != 0)
    return make_error(errno, "PRIME_HANDLE_TO_FD");
  return visit_bo(window_fd, UniqueFd(fd), bo.bytes, visitor);
}

Result<void> add_to_file(Arena& arena, const Options& options, std::uint32_t gpu, bool in_other_file) {
  SLUICE_TRY_ASSIGN(const std::string path, render_path_of(arena, gpu));
  SLUICE_TRY_ASSIGN(const UniqueFd window, open_window_file(arena, gpu));
  std::vector<std::uint32_t> unwanted;
  std::uint32_t number = 0;
  for (const std::uint32_t handle : options.gem_handles) {
    if (arena.num_gems == kMaxGems) return Error{ENOSPC, "the subject's table of GEM BOs is full"};
    const GemRecord bo = plan(arena, options, gpu, in_other_file, handle, number);
    const int fd = file_of(arena, bo);
    SLUICE_TRY(create_at(fd, bo, unwanted));
    SLUICE_TRY(set_metadata(fd, handle, bo.metadata));
    for (std::uint32_t i = 0; i < bo.num_maps; ++i) SLUICE_TRY(map_for_gpu(fd, handle, bo.maps[i]));
    SLUICE_TRY(visit(arena, bo, window.get(),
                     [&](std::span<std::uint8_t> bytes, std::uint64_t offset) -> Result<void> {
                       pattern_of(arena, bo).fill(bytes, offset);
                       return {};
                     }));
    arena.gems[arena.num_gems] = bo;
    if (number++ < kMappedForCpu) {
      NewMap map{.address = arena.gpus[gpu].next_va, .bytes = bo.bytes, .fd = fd};
      arena.gpus[gpu].next_va += align_up(bo.bytes, 64 * kKiB) + 64 * kKiB;
      SLUICE_TRY_ASSIGN(map.offset, mmap_offset(fd, handle));
      map.prot = PROT_READ | PROT_WRITE;
      SLUICE_TRY(add_map(arena, map, path.c_str()));
      arena.maps[arena.num_maps - 1].bo = kGemBoBase + arena.num_gems;
    }
    ++arena.num_gems;
  }
  const int fd = in_other_file ? arena.gpus[gpu].other_render_fd : arena.gpus[gpu].render_fd;
  for (const std::uint32_t handle : unwanted) {
    if (drmCloseBufferHandle(fd, handle) != 0) return make_error(errno, "GEM_CLOSE");
  }
  return {};
}

// Flags that say how a BO is used, and not what it is: the driver drops this one when user space creates a
// BO, and sets it when a CPU first touches it (amdgpu_object.c). It adds others of its own (VRAM_CLEARED,
// VRAM_WIPE_ON_RELEASE); those that a BO was made with must be there.
constexpr std::uint64_t kHints = AMDGPU_GEM_CREATE_CPU_ACCESS_REQUIRED;

// Sizes, domains and flags: what the driver has under the handle.
Result<void> check_creation(int fd, const GemRecord& bo) {
  drm_amdgpu_gem_create_in info{};
  drm_amdgpu_gem_op args{};
  args.handle = bo.handle;
  args.op = AMDGPU_GEM_OP_GET_GEM_CREATE_INFO;
  args.value = reinterpret_cast<std::uintptr_t>(&info);
  if (Result<void> asked = device_ioctl(fd, DRM_IOCTL_AMDGPU_GEM_OP, &args, "GEM_OP"); !asked)
    return Error{asked.error().err, describe(bo) + ": " + asked.error().what};
  const std::uint64_t kind = bo.flags & ~kHints;
  if (info.bo_size == bo.bytes && info.domains == bo.domains && info.alignment == bo.alignment &&
      (info.domain_flags & kind) == kind)
    return {};
  return Error{EINVAL, describe(bo) + " is another kind of BO than it was"};
}

// `only`: nowhere else.
Result<void> check_gpu_maps(int fd, std::uint32_t handle, std::span<const GpuMap> maps, bool only) {
  std::array<MappingInfo, 8> found{};
  MappingInfoArgs args{handle, kGetMappingInfo, reinterpret_cast<std::uintptr_t>(found.data()),
                       static_cast<std::uint32_t>(found.size()), 0};
  if (Result<void> asked = device_ioctl(fd, kGemMappingInfo, &args, "GEM_OP"); !asked)
    return asked.error().err == EINVAL ? Result<void>() : asked;  // an old kernel does not tell
  bool same = !only || args.entries == maps.size();
  for (std::size_t i = 0; same && i < maps.size(); ++i) {
    const GpuMap& map = maps[i];
    same = std::any_of(found.begin(), found.begin() + args.entries, [&](const MappingInfo& info) {
      return info.address == (map.address & kToldBits) && info.bytes == map.bytes &&
             info.bo_offset == map.bo_offset && info.flags == map.flags;
    });
  }
  if (same) return {};
  return Error{EINVAL,
               "GEM handle " + std::to_string(handle) + " is mapped elsewhere than it was, in the GPU"};
}

}  // namespace

Result<std::uint64_t> mmap_offset(int fd, std::uint32_t handle) {
  drm_amdgpu_gem_mmap where{};
  where.in.handle = handle;
  SLUICE_TRY(device_ioctl(fd, DRM_IOCTL_AMDGPU_GEM_MMAP, &where, "GEM_MMAP"));
  return std::uint64_t{where.out.addr_ptr};
}

Result<void> map_for_gpu(int fd, std::uint32_t handle, const GpuMap& map) {
  drm_amdgpu_gem_va args{};
  args.handle = handle;
  args.operation = AMDGPU_VA_OP_MAP;
  args.flags = static_cast<std::uint32_t>(map.flags);
  args.va_address = map.address;
  args.offset_in_bo = map.bo_offset;
  args.map_size = map.bytes;
  return device_ioctl(fd, DRM_IOCTL_AMDGPU_GEM_VA, &args, "GEM_VA");
}

Result<void> check_gpu_map(int fd, std::uint32_t handle, const GpuMap& map) {
  return check_gpu_maps(fd, handle, {&map, 1}, false);
}

Result<void> set_metadata(int fd, std::uint32_t handle, const MetadataRecord& metadata) {
  if (metadata.tiling == 0 && metadata.bytes == 0) return {};
  drm_amdgpu_gem_metadata call = call_of(handle, metadata);
  return device_ioctl(fd, DRM_IOCTL_AMDGPU_GEM_METADATA, &call, "GEM_METADATA");
}

Result<void> check_metadata(int fd, std::uint32_t handle, const MetadataRecord& metadata) {
  const auto wanted = call_of(handle, metadata).data;
  drm_amdgpu_gem_metadata asked{};
  asked.handle = handle;
  asked.op = AMDGPU_GEM_METADATA_OP_GET_METADATA;
  SLUICE_TRY(device_ioctl(fd, DRM_IOCTL_AMDGPU_GEM_METADATA, &asked, "GEM_METADATA"));
  const auto& found = asked.data;
  if (found.tiling_info == wanted.tiling_info && found.flags == wanted.flags &&
      found.data_size_bytes == wanted.data_size_bytes &&
      std::memcmp(found.data, wanted.data, wanted.data_size_bytes) == 0)
    return {};
  return Error{EINVAL, "GEM handle " + std::to_string(handle) + " has other metadata than it had"};
}

Result<std::uint32_t> create_plain_gem(int render_fd) {
  GemRecord bo{};
  bo.bytes = kPlainGemBytes;
  bo.alignment = kGpuPageBytes;
  bo.domains = AMDGPU_GEM_DOMAIN_VRAM;
  bo.flags = AMDGPU_GEM_CREATE_CPU_ACCESS_REQUIRED;
  return create(render_fd, bo);
}

Result<std::span<std::uint8_t>> map_plain_gem(int render_fd, std::uint32_t handle) {
  return map_for_cpu(render_fd, handle, kPlainGemBytes);
}

static Result<void> add_odd_gem(const Arena& arena, OddGem kind) {
  const int fd = arena.gpus[0].render_fd;
  if (kind == OddGem::Userptr) {
    void* const memory =
        ::mmap(nullptr, kPlainGemBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return make_error(errno, "mmap of a userptr's memory");
    drm_amdgpu_gem_userptr args{};
    args.addr = reinterpret_cast<std::uintptr_t>(memory);
    args.size = kPlainGemBytes;
    args.flags = AMDGPU_GEM_USERPTR_ANONONLY | AMDGPU_GEM_USERPTR_REGISTER;
    return device_ioctl(fd, DRM_IOCTL_AMDGPU_GEM_USERPTR, &args, "GEM_USERPTR");
  }
  GemRecord bo{};
  bo.bytes = kPlainGemBytes;
  bo.alignment = kGpuPageBytes;
  bo.domains = AMDGPU_GEM_DOMAIN_VRAM;
  bo.flags = kind == OddGem::AlwaysValid ? AMDGPU_GEM_CREATE_VM_ALWAYS_VALID : AMDGPU_GEM_CREATE_ENCRYPTED;
  SLUICE_TRY(create(fd, bo));
  return {};
}

Result<void> add_gem_bos(Arena& arena, const Options& options) {
  for (std::uint32_t i = 0; i < arena.num_gpus; ++i) {
    if (arena.gpus[i].other_render_fd >= 0) SLUICE_TRY(add_to_file(arena, options, i, true));
    SLUICE_TRY(add_to_file(arena, options, i, false));
  }
  if (options.odd_gem != OddGem::None) SLUICE_TRY(add_odd_gem(arena, options.odd_gem));
  return {};
}

Result<void> check_gem_bos(const Arena& arena) {
  for (std::uint32_t i = 0; i < arena.num_gpus && arena.num_gems > 0; ++i) {
    SLUICE_TRY_ASSIGN(const UniqueFd window, open_window_file(arena, i));
    for (std::uint32_t g = 0; g < arena.num_gems; ++g) {
      const GemRecord& bo = arena.gems[g];
      if (bo.gpu != i || file_of(arena, bo) < 0) continue;
      SLUICE_TRY(check_creation(file_of(arena, bo), bo));
      SLUICE_TRY(check_metadata(file_of(arena, bo), bo.handle, bo.metadata));
      SLUICE_TRY(check_gpu_maps(file_of(arena, bo), bo.handle, std::span(bo.maps).first(bo.num_maps), true));
      SLUICE_TRY(visit(arena, bo, window.get(),
                       [&](std::span<std::uint8_t> bytes, std::uint64_t offset) -> Result<void> {
                         const auto difference = pattern_of(arena, bo).first_difference(bytes, offset);
                         if (!difference) return {};
                         return Error{EIO, describe(bo) + " differs at byte " + std::to_string(*difference)};
                       }));
    }
  }
  for (std::uint32_t m = 0; m < arena.num_maps; ++m) {
    const MapRecord& map = arena.maps[m];
    if (map.bo < kGemBoBase) continue;
    const GemRecord& bo = arena.gems[map.bo - kGemBoBase];
    const std::span bytes(reinterpret_cast<const std::uint8_t*>(map.address), map.bytes);
    if (const auto difference = pattern_of(arena, bo).first_difference(bytes, 0))
      return Error{EIO, "the map of " + describe(bo) + " differs at byte " + std::to_string(*difference)};
  }
  return {};
}

Result<void> work_gem_bos(const Arena& arena) {
  for (std::uint32_t g = 0; g < arena.num_gems; ++g) {
    const GemRecord& first = arena.gems[g];
    const bool another_file = g == 0 || first.gpu != arena.gems[g - 1].gpu ||
                              first.in_other_file != arena.gems[g - 1].in_other_file;
    const int fd = file_of(arena, first);
    if (!another_file || fd < 0) continue;
    SLUICE_TRY_ASSIGN(const std::uint32_t handle, create_plain_gem(fd));
    for (std::uint32_t other = g; other < arena.num_gems && file_of(arena, arena.gems[other]) == fd;
         ++other) {
      if (handle == arena.gems[other].handle) return Error{EEXIST, "a handle was given out twice"};
      if (arena.num_shares == 0 && handle > arena.gems[other].handle &&
          other - g + 1 < arena.gems[other].handle)
        return Error{EINVAL, "a new BO did not get the lowest free handle"};
    }
    SLUICE_TRY_ASSIGN(const std::span<std::uint8_t> bytes, map_plain_gem(fd, handle));
    const Pattern pattern{arena.seed + arena.checks, kPlainGemBytes, 0};
    pattern.fill(bytes, 0);
    const auto difference = pattern.first_difference(bytes, 0);
    (void)::munmap(bytes.data(), bytes.size());
    if (drmCloseBufferHandle(fd, handle) != 0) return make_error(errno, "GEM_CLOSE");
    if (difference) return Error{EIO, "a new GEM BO differs at byte " + std::to_string(*difference)};
  }
  return {};
}

Result<void> submit_gem_job(Arena& arena) {
  if (arena.num_gems == 0) return Error{EINVAL, "no GEM BO that a job could use"};
  const GemRecord& used = arena.gems[0];
  const int fd = file_of(arena, used);
  SLUICE_TRY_ASSIGN(const std::uint32_t packets, create_plain_gem(fd));
  SLUICE_TRY_ASSIGN(const std::span<std::uint8_t> bytes, map_plain_gem(fd, packets));
  std::fill(bytes.begin(), bytes.end(), std::uint8_t{0});  // SDMA's NOP
  (void)::munmap(bytes.data(), bytes.size());
  const GpuMap map{arena.gpus[used.gpu].next_va, kPlainGemBytes, 0,
                   AMDGPU_VM_PAGE_READABLE | AMDGPU_VM_PAGE_EXECUTABLE};
  arena.gpus[used.gpu].next_va += kPlainGemBytes;
  SLUICE_TRY(map_for_gpu(fd, packets, map));

  drm_amdgpu_ctx context{};
  context.in.op = AMDGPU_CTX_OP_ALLOC_CTX;
  SLUICE_TRY(device_ioctl(fd, DRM_IOCTL_AMDGPU_CTX, &context, "CTX"));
  drm_amdgpu_cs_chunk_ib ib{};
  ib.va_start = map.address;
  ib.ib_bytes = 32;  // as many as SDMA reads at once
  ib.ip_type = AMDGPU_HW_IP_DMA;
  std::array<drm_amdgpu_bo_list_entry, 2> bos{{{used.handle, 0}, {packets, 0}}};
  drm_amdgpu_bo_list_in list{};
  list.operation = ~0U;  // none: it is for this job
  list.list_handle = ~0U;
  list.bo_number = bos.size();
  list.bo_info_size = sizeof bos[0];
  list.bo_info_ptr = reinterpret_cast<std::uintptr_t>(bos.data());
  const std::array<drm_amdgpu_cs_chunk, 2> chunks{
      {{AMDGPU_CHUNK_ID_IB, sizeof ib / 4, reinterpret_cast<std::uintptr_t>(&ib)},
       {AMDGPU_CHUNK_ID_BO_HANDLES, sizeof list / 4, reinterpret_cast<std::uintptr_t>(&list)}}};
  const std::array<std::uint64_t, 2> places{reinterpret_cast<std::uintptr_t>(&chunks[0]),
                                            reinterpret_cast<std::uintptr_t>(&chunks[1])};
  drm_amdgpu_cs job{};
  job.in.ctx_id = context.out.alloc.ctx_id;
  job.in.num_chunks = places.size();
  job.in.chunks = reinterpret_cast<std::uintptr_t>(places.data());
  return device_ioctl(fd, DRM_IOCTL_AMDGPU_CS, &job, "CS");
}

}  // namespace sluice::subject
