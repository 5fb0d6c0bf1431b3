// SPDX-License-Identifier: MIT
// How the subject comes to be: the arena, and everything a GPU process has, in the order in which ROCm's
// thunk makes it.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <vector>

#include "base/units.h"
#include "subject/bos.h"
#include "subject/cache.h"
#include "subject/device.h"
#include "subject/events.h"
#include "subject/files.h"
#include "subject/gem.h"
#include "subject/queues.h"
#include "subject/share.h"
#include "subject/subject.h"
#include "subject/svm.h"

namespace sluice::subject {
namespace {

constexpr std::uint32_t kVram = KFD_IOC_ALLOC_MEM_FLAGS_VRAM;
constexpr std::uint32_t kGtt = KFD_IOC_ALLOC_MEM_FLAGS_GTT;
constexpr std::uint32_t kPublic = KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC;
constexpr std::uint32_t kCoherent = KFD_IOC_ALLOC_MEM_FLAGS_COHERENT;
constexpr std::uint32_t kExecutable = KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE;

// BOs of a GPU that have `total` bytes together.
std::vector<std::uint64_t> bo_sizes(BoSizes pattern, std::uint64_t total) {
  std::vector<std::uint64_t> sizes;
  std::uint64_t left = align_down(total, kGpuPageBytes);
  const auto take = [&](std::uint64_t bytes) {
    if (bytes == 0 || bytes > left) return false;
    sizes.push_back(bytes);
    left -= bytes;
    return true;
  };
  const std::array<std::uint64_t, 9> odd = {4 * kKiB,  8 * kKiB, 12 * kKiB,           20 * kKiB, 64 * kKiB,
                                            68 * kKiB, kMiB,     3 * kMiB + 4 * kKiB, 300 * kKiB};
  switch (pattern) {
    case BoSizes::Huge:
    case BoSizes::One:
      break;
    case BoSizes::Count:
      while (take(kGpuPageBytes)) {
      }
      break;
    case BoSizes::Many:
      for (std::uint32_t i = 0; i < 2000 && left > 0; ++i) take(std::min(left, (1 + i % 2) * 4 * kKiB));
      break;
    case BoSizes::Small:
      for (std::uint32_t i = 0; left > 0 && sizes.size() < 800; ++i)
        take(std::min(left, (1 + i % 64) * 4 * kKiB));
      break;
    case BoSizes::Mixed:
      for (const std::uint64_t bytes : odd) take(bytes);
      while (left > 32 * kMiB) take(align_up(left / 3, kGpuPageBytes));
      break;
  }
  take(left);
  return sizes;
}

// Bytes of VRAM data on a GPU.
std::uint64_t vram_bytes_of(const Arena& arena, std::uint32_t gpu, const Options& options) {
  switch (options.sizes) {
    case BoSizes::One:
      return gpu == 0 ? options.one_bo_bytes : 0;
    case BoSizes::Count:
      return (options.bo_count / arena.num_gpus + (gpu < options.bo_count % arena.num_gpus ? 1 : 0)) *
             kGpuPageBytes;
    default:
      return options.vram_bytes;
  }
}

Result<void> add_data(Arena& arena, std::uint32_t gpu, const Options& options) {
  const auto add_all = [&](std::uint64_t total, std::uint32_t place, BoSizes sizes) -> Result<void> {
    std::uint32_t number = 0;
    for (const std::uint64_t bytes : bo_sizes(sizes, total)) {
      NewBo wanted{
          .gpu = gpu, .bytes = bytes, .flags = place | kWritable, .zero_percent = options.zero_percent};
      if (place == kVram) wanted.flags |= kPublic;
      if (number % 3 == 1) wanted.flags |= kExecutable;
      if (number % 4 == 3) wanted.zero_percent = 0;    // dense
      if (number % 8 == 6) wanted.zero_percent = 100;  // never written
      std::uint64_t mmap_offset = 0;
      SLUICE_TRY_ASSIGN(const std::uint32_t index, add_bo(arena, wanted, &mmap_offset));
      const BoRecord& bo = arena.bos[index];
      const std::string path = "/dev/dri/renderD" + std::to_string(arena.gpus[gpu].render_minor);
      // The thunk's way is a map at the GPU's address. Others: elsewhere, shorter than the BO, read-only.
      NewMap map{.bo = index, .address = bo.va, .bytes = bytes, .offset = mmap_offset};
      map.fd = arena.gpus[gpu].render_fd;
      map.prot = PROT_READ | PROT_WRITE;
      if (number < 3 || arena.can_export == 0) SLUICE_TRY(add_map(arena, map, path.c_str()));
      if (number == 7 && bytes >= 2 * kMiB) {
        map.address = bo.va + kGpuVaStride / 2;
        map.bytes = kMiB;
        SLUICE_TRY(add_map(arena, map, path.c_str()));
      }
      if (number == 4 && arena.can_export != 0) {
        map.prot = PROT_READ;
        SLUICE_TRY(add_map(arena, map, path.c_str()));
      }
      ++number;
    }
    return {};
  };
  SLUICE_TRY(add_all(vram_bytes_of(arena, gpu, options), kVram, options.sizes));
  if (options.sizes == BoSizes::One) return {};
  return add_all(options.gtt_bytes, kGtt, options.sizes == BoSizes::Count ? BoSizes::Mixed : options.sizes);
}

Result<void> add_userptrs(Arena& arena, std::uint32_t gpu, const Options& options) {
  auto* memory = arena.userptr[gpu].data();
  const std::array<std::uint64_t, 2> sizes = {256 * kKiB, 4 * kKiB};
  for (const std::uint64_t bytes : sizes) {
    NewBo wanted{
        .gpu = gpu, .bytes = bytes, .flags = KFD_IOC_ALLOC_MEM_FLAGS_USERPTR | kWritable | kCoherent};
    wanted.role = BoRole::Userptr;
    wanted.zero_percent = options.zero_percent;
    wanted.user_address = reinterpret_cast<std::uintptr_t>(memory);
    std::uint64_t offset = 0;
    SLUICE_TRY_ASSIGN(const std::uint32_t index, add_bo(arena, wanted, &offset));
    pattern_of(arena.bos[index]).fill(std::span(memory, bytes), 0);
    memory += kUserptrBytes / sizes.size();
  }
  return {};
}

Result<void> add_device_pages(Arena& arena, std::uint32_t gpu) {
  GpuRecord& record = arena.gpus[gpu];
  std::uint64_t offset = 0;
  NewBo mmio{.gpu = gpu, .bytes = 4096, .flags = KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP | kWritable | kCoherent};
  mmio.role = BoRole::Mmio;
  SLUICE_TRY_ASSIGN(const std::uint32_t mmio_bo, add_bo(arena, mmio, &offset));
  NewMap map{
      .bo = mmio_bo, .address = arena.bos[mmio_bo].va, .bytes = 4096, .offset = offset, .fd = arena.kfd_fd};
  map.prot = PROT_READ | PROT_WRITE;
  SLUICE_TRY(add_map(arena, map, "/dev/kfd"));

  NewBo doorbell{.gpu = gpu, .bytes = kDoorbellBytes};
  doorbell.flags = KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL | kWritable | kCoherent;
  doorbell.role = BoRole::Doorbell;
  // AMD's out-of-tree driver 6.0.5 takes the number of a process's first doorbell page for an error
  // (kfd_get_process_doorbells in kfd_doorbell.c), and has the page the next time. ROCm's thunk never sees
  // that: it makes a queue first.
  Result<std::uint32_t> doorbell_bo = add_bo(arena, doorbell, &offset);
  if (!doorbell_bo && doorbell_bo.error().err == ENOMEM) doorbell_bo = add_bo(arena, doorbell, &offset);
  SLUICE_TRY_ASSIGN(record.doorbell_bo, doorbell_bo);
  map.bo = record.doorbell_bo;
  map.address = arena.bos[record.doorbell_bo].va;
  map.bytes = kDoorbellBytes;
  map.offset = kMmapTypeDoorbell | std::uint64_t{record.gpu_id} << kMmapGpuShift;
  return add_map(arena, map, "/dev/kfd");
}

// A process without a KFD: render nodes, or nothing but memory.
Result<void> start_without_kfd(Arena& arena, const Options& options,
                               const std::vector<TopologyGpu>& topology) {
  if (options.plain || options.kfd_only) {
    arena.shape = Shape::Plain;
    arena.num_gpus = 0;
    if (options.kfd_only) {
      SLUICE_TRY_ASSIGN(UniqueFd kfd, open_device("/dev/kfd"));
      arena.kfd_fd = kfd.release();
    }
    plain_data(arena).fill(arena.userptr[0], 0);
    return {};
  }
  arena.shape = Shape::RenderOnly;
  SLUICE_TRY(open_render_nodes(arena, options, topology));
  SLUICE_TRY(add_gem_bos(arena, options));
  SLUICE_TRY(add_shared_bo(arena, options));
  return finish_files(arena, options);
}

Result<void> start_with_kfd(Arena& arena, const Options& options, const std::vector<TopologyGpu>& topology) {
  SLUICE_TRY(open_files(arena, options, topology));
  if (options.xnack) {
    arena.xnack = 1;
    SLUICE_TRY(switch_xnack_on(arena.kfd_fd));
  }
  for (std::uint32_t i = 0; i < arena.num_gpus; ++i) SLUICE_TRY(add_device_pages(arena, i));
  if (options.events) SLUICE_TRY(add_events(arena));
  for (std::uint32_t i = 0; i < arena.num_gpus; ++i) {
    SLUICE_TRY(add_data(arena, i, options));
    if (options.userptrs) SLUICE_TRY(add_userptrs(arena, i, options));
  }
  for (std::uint32_t i = 0; i < arena.num_gpus; ++i) {
    SLUICE_TRY_ASSIGN(const UniqueFd window, open_window_file(arena, i));
    for (std::uint32_t b = 0; b < arena.num_bos; ++b) {
      const BoRecord& bo = arena.bos[b];
      if (bo.gpu == i && has_pattern(bo)) SLUICE_TRY(fill_bo(arena, window.get(), bo));
    }
  }
  if (options.svm) SLUICE_TRY(add_svm_ranges(arena));
  for (std::uint32_t i = 0; i < arena.num_gpus && options.queues; ++i)
    SLUICE_TRY(add_queues(arena, i, topology[i], options));
  SLUICE_TRY(add_gem_bos(arena, options));
  SLUICE_TRY(add_shared_bo(arena, options));
  if (options.run_queues) SLUICE_TRY(start_queues(arena));
  SLUICE_TRY(make_cache(arena, options));
  if (options.waiter) SLUICE_TRY(start_waiter(arena));
  return finish_files(arena, options);
}

}  // namespace

Result<Arena*> create_arena() {
  constexpr std::size_t kBytes = sizeof(Arena);
  void* at = ::mmap(reinterpret_cast<void*>(kArenaAddress), kBytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (at == MAP_FAILED) return make_error(errno, "mmap of the arena at its fixed address");
  if (at != reinterpret_cast<void*>(kArenaAddress)) return Error{EEXIST, "the arena's address is taken"};
  Arena* arena = arena_at_its_place();  // zero-filled, which is a valid empty arena
  arena->magic = kArenaMagic;
  arena->bytes = kBytes;
  arena->out_fd = 1;
  arena->kfd_fd = arena->second_kfd_fd = arena->kfd_dup_fd = arena->inherited_kfd_fd = arena->dmabuf_fd = -1;
  return arena;
}

Result<void> subject_start(Arena& arena, const Options& options) {
  arena.seed = options.seed;
  arena.replicas = options.replicas;
  arena.zero_percent = options.zero_percent;
  if (options.threaded_child != 0) SLUICE_TRY(add_threaded_child(arena, options.threaded_child));
  std::vector<TopologyGpu> topology;
  if (!options.plain) {
    SLUICE_TRY_ASSIGN(topology, read_topology());
  }
  arena.num_gpus = options.gpus == 0 ? static_cast<std::uint32_t>(topology.size()) : options.gpus;
  if (!options.plain && (arena.num_gpus > topology.size() || arena.num_gpus > kMaxGpus))
    return Error{ENODEV, "fewer GPUs than asked for"};
  if (options.plain || options.kfd_only || options.render_only)
    return start_without_kfd(arena, options, topology);
  return start_with_kfd(arena, options, topology);
}

}  // namespace sluice::subject
