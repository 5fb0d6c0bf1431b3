// SPDX-License-Identifier: MIT
// How the subject comes to be: the arena, and everything a GPU process has, in the order in which ROCm's
// thunk makes it.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "pipeline/units.h"
#include "subject.h"
#include "subject_bos.h"
#include "subject_device.h"

namespace sluice::subject {
namespace {

constexpr std::uint32_t kVram = KFD_IOC_ALLOC_MEM_FLAGS_VRAM;
constexpr std::uint32_t kGtt = KFD_IOC_ALLOC_MEM_FLAGS_GTT;
constexpr std::uint32_t kPublic = KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC;
constexpr std::uint32_t kCoherent = KFD_IOC_ALLOC_MEM_FLAGS_COHERENT;
constexpr auto kWritable = static_cast<std::uint32_t>(KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE);
constexpr std::uint32_t kExecutable = KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE;

constexpr std::uint64_t kEventPageBytes = 32768;
constexpr std::uint32_t kRingBytes = 4096;
constexpr std::uint64_t kEopBytes = 4096;

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

Result<void> add_data(Arena& arena, std::uint32_t gpu, const Options& options) {
  const auto add_all = [&](std::uint64_t total, std::uint32_t place) -> Result<void> {
    std::uint32_t number = 0;
    for (const std::uint64_t bytes : bo_sizes(options.sizes, total)) {
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
      if (number < 3) SLUICE_TRY(add_map(arena, map, path.c_str()));
      if (number == 7 && bytes >= 2 * kMiB) {
        map.address = bo.va + kGpuVaStride / 2;
        map.bytes = kMiB;
        SLUICE_TRY(add_map(arena, map, path.c_str()));
      }
      if (number == 4) {
        map.prot = PROT_READ;
        SLUICE_TRY(add_map(arena, map, path.c_str()));
      }
      ++number;
    }
    return {};
  };
  SLUICE_TRY(add_all(options.vram_bytes, kVram));
  return add_all(options.gtt_bytes, kGtt);
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
  SLUICE_TRY_ASSIGN(record.doorbell_bo, add_bo(arena, doorbell, &offset));
  map.bo = record.doorbell_bo;
  map.address = arena.bos[record.doorbell_bo].va;
  map.bytes = kDoorbellBytes;
  map.offset = kMmapTypeDoorbell | std::uint64_t{record.gpu_id} << kMmapGpuShift;
  return add_map(arena, map, "/dev/kfd");
}

Result<void> add_queue(Arena& arena, std::uint32_t gpu, const TopologyGpu& topology, std::uint32_t type) {
  const GpuRecord& record = arena.gpus[gpu];
  std::uint64_t offset = 0;
  const auto add = [&](std::uint64_t bytes, std::uint32_t flags, BoRole role) -> Result<std::uint64_t> {
    NewBo wanted{.gpu = gpu, .bytes = bytes, .flags = flags | kWritable | kExecutable, .role = role};
    if (role == BoRole::Pointer) wanted.zero_percent = 100;
    SLUICE_TRY_ASSIGN(const std::uint32_t index, add_bo(arena, wanted, &offset));
    return arena.bos[index].va;
  };
  kfd_ioctl_create_queue_args args{};
  args.gpu_id = record.gpu_id;
  args.queue_type = type;
  args.queue_percentage = KFD_MAX_QUEUE_PERCENTAGE;
  args.queue_priority = 7;
  args.ring_size = kRingBytes;
  SLUICE_TRY_ASSIGN(args.ring_base_address, add(kRingBytes, kGtt, BoRole::Data));
  SLUICE_TRY_ASSIGN(args.read_pointer_address, add(kGpuPageBytes, kGtt, BoRole::Pointer));
  SLUICE_TRY_ASSIGN(args.write_pointer_address, add(kGpuPageBytes, kGtt, BoRole::Pointer));
  if (type == KFD_IOC_QUEUE_TYPE_COMPUTE_AQL) {
    SLUICE_TRY_ASSIGN(args.eop_buffer_address, add(kEopBytes, kVram, BoRole::Data));
    args.eop_buffer_size = kEopBytes;
    args.ctx_save_restore_size = topology.cwsr_bytes;
    args.ctl_stack_size = topology.ctl_stack_bytes;
    const std::uint64_t area = align_up(std::uint64_t{topology.cwsr_bytes} * topology.num_xcc, kGpuPageBytes);
    SLUICE_TRY_ASSIGN(args.ctx_save_restore_address, add(area, kGtt, BoRole::Data));
  }
  SLUICE_TRY(device_ioctl(arena.kfd_fd, AMDKFD_IOC_CREATE_QUEUE, &args, "CREATE_QUEUE"));
  arena.queues[arena.num_queues++] =
      QueueRecord{args.queue_id, gpu, type, kRingBytes, args.ring_base_address, args.doorbell_offset};
  return {};
}

Result<void> add_events(Arena& arena) {
  std::uint64_t offset = 0;
  const NewBo page{
      .gpu = 0, .bytes = kEventPageBytes, .flags = kGtt | kWritable | kCoherent, .role = BoRole::EventPage};
  SLUICE_TRY_ASSIGN(const std::uint32_t index, add_bo(arena, page, &offset));
  const std::string path = "/dev/dri/renderD" + std::to_string(arena.gpus[0].render_minor);
  NewMap map{.bo = index, .address = arena.bos[index].va, .bytes = kEventPageBytes, .offset = offset};
  map.fd = arena.gpus[0].render_fd;
  map.prot = PROT_READ | PROT_WRITE;
  SLUICE_TRY(add_map(arena, map, path.c_str()));

  struct Kind {
    std::uint32_t type, auto_reset, signaled;
  };
  const std::array<Kind, 7> kinds = {{{KFD_IOC_EVENT_SIGNAL, 0, 0},
                                      {KFD_IOC_EVENT_SIGNAL, 0, 1},
                                      {KFD_IOC_EVENT_SIGNAL, 1, 0},
                                      {KFD_IOC_EVENT_SIGNAL, 1, 1},
                                      {KFD_IOC_EVENT_HW_EXCEPTION, 0, 0},
                                      {KFD_IOC_EVENT_MEMORY, 0, 0},
                                      {KFD_IOC_EVENT_SIGNAL, 0, 0}}};
  for (const Kind& kind : kinds) {
    kfd_ioctl_create_event_args args{};
    args.event_type = kind.type;
    args.auto_reset = kind.auto_reset;
    if (arena.num_events == 0) args.event_page_offset = arena.bos[index].handle;
    SLUICE_TRY(device_ioctl(arena.kfd_fd, AMDKFD_IOC_CREATE_EVENT, &args, "CREATE_EVENT"));
    if (kind.signaled != 0) {
      kfd_ioctl_set_event_args set{};
      set.event_id = args.event_id;
      SLUICE_TRY(device_ioctl(arena.kfd_fd, AMDKFD_IOC_SET_EVENT, &set, "SET_EVENT"));
    }
    arena.events[arena.num_events++] = EventRecord{args.event_id, kind.type, kind.auto_reset, kind.signaled};
  }
  // A gap in the ids: the last but one signal event goes.
  kfd_ioctl_destroy_event_args destroy{};
  destroy.event_id = arena.events[2].id;
  SLUICE_TRY(device_ioctl(arena.kfd_fd, AMDKFD_IOC_DESTROY_EVENT, &destroy, "DESTROY_EVENT"));
  std::copy(arena.events.begin() + 3, arena.events.begin() + arena.num_events, arena.events.begin() + 2);
  --arena.num_events;
  return {};
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
  arena->kfd_fd = arena->second_kfd_fd = arena->kfd_dup_fd = -1;
  return arena;
}

Result<void> subject_start(Arena& arena, const Options& options) {
  SLUICE_TRY_ASSIGN(const std::vector<TopologyGpu> topology, read_topology());
  arena.num_gpus = options.gpus == 0 ? static_cast<std::uint32_t>(topology.size()) : options.gpus;
  if (arena.num_gpus > topology.size() || arena.num_gpus > kMaxGpus)
    return Error{ENODEV, "fewer GPUs than asked for"};
  arena.seed = options.seed;
  arena.zero_percent = options.zero_percent;
  SLUICE_TRY_ASSIGN(UniqueFd kfd, open_device("/dev/kfd"));
  arena.kfd_fd = kfd.release();
  if (options.second_kfd) {
    SLUICE_TRY_ASSIGN(UniqueFd second, open_device("/dev/kfd"));
    arena.second_kfd_fd = second.release();
  }
  if (options.dup_kfd) arena.kfd_dup_fd = ::fcntl(arena.kfd_fd, F_DUPFD_CLOEXEC, 20);

  kfd_ioctl_get_version_args version{};
  SLUICE_TRY(device_ioctl(arena.kfd_fd, AMDKFD_IOC_GET_VERSION, &version, "GET_VERSION"));
  if (version.major_version != 1) return Error{EPROTO, "unknown KFD version"};
  for (std::uint32_t i = 0; i < arena.num_gpus; ++i) {
    GpuRecord& gpu = arena.gpus[i];
    gpu.gpu_id = topology[i].gpu_id;
    gpu.render_minor = topology[i].render_minor;
    gpu.next_va = kGpuVaBase + i * kGpuVaStride;
    SLUICE_TRY_ASSIGN(UniqueFd render, open_device("/dev/dri/renderD" + std::to_string(gpu.render_minor)));
    gpu.render_fd = render.release();
    SLUICE_TRY(acquire_vm(arena.kfd_fd, gpu.render_fd, gpu.gpu_id));
  }
  for (std::uint32_t i = 0; i < arena.num_gpus; ++i) SLUICE_TRY(add_device_pages(arena, i));
  if (options.events) SLUICE_TRY(add_events(arena));
  for (std::uint32_t i = 0; i < arena.num_gpus; ++i) {
    SLUICE_TRY(add_data(arena, i, options));
    SLUICE_TRY(add_userptrs(arena, i, options));
    if (options.queues) {
      SLUICE_TRY(add_queue(arena, i, topology[i], KFD_IOC_QUEUE_TYPE_SDMA));
      if (topology[i].cwsr_bytes != 0) {
        SLUICE_TRY(add_queue(arena, i, topology[i], KFD_IOC_QUEUE_TYPE_COMPUTE_AQL));
      }
    }
  }
  for (std::uint32_t i = 0; i < arena.num_gpus; ++i) {
    SLUICE_TRY_ASSIGN(const UniqueFd window, open_window_file(arena, i));
    for (std::uint32_t b = 0; b < arena.num_bos; ++b) {
      const BoRecord& bo = arena.bos[b];
      if (bo.gpu != i || !has_contents(bo) || bo.role == BoRole::EventPage) continue;
      SLUICE_TRY(fill_bo(arena, window.get(), bo));
    }
  }
  return {};
}

}  // namespace sluice::subject
