// SPDX-License-Identifier: MIT
// The whole state of the subject (the GPU process that is dumped and restored) in one anonymous region at a
// fixed address, the arena.
//
// Why: the host look-alike has no parasite and rebuilds no address space. It copies this one region with
// process_vm_readv, and takes the list of device maps from the table in it, because the virtual amdgpu's maps
// appear in /proc/PID/maps as maps of its pool files. Whatever the subject must remember across a restore is
// in here; nothing points out of here but the addresses of device maps, which are fixed too.
//
// Plain data without constructors. Written by the subject's only thread; read by the host while that thread
// is stopped.
#pragma once

#include <array>
#include <cstdint>

namespace sluice::subject {

// Places that nothing else uses: below the mmap area and, under sanitizers, outside their shadows.
#if defined(__SANITIZE_THREAD__)
inline constexpr std::uint64_t kArenaAddress = 0x20'0000'0000;
inline constexpr std::uint64_t kGpuVaBase = 0x21'0000'0000;
inline constexpr std::uint64_t kGpuVaStride = 0x4'0000'0000;  // 16 GiB of addresses per GPU
#else
inline constexpr std::uint64_t kArenaAddress = 0x2000'0000'0000;
inline constexpr std::uint64_t kGpuVaBase = 0x2100'0000'0000;
inline constexpr std::uint64_t kGpuVaStride = 0x100'0000'0000;  // 1 TiB of addresses per GPU
#endif

inline constexpr std::uint64_t kArenaMagic = 0x736c75'6963'6531;
inline constexpr std::uint32_t kMaxGpus = 16;
inline constexpr std::uint32_t kMaxBos = 16384;
inline constexpr std::uint32_t kMaxMaps = 512;
inline constexpr std::uint32_t kMaxEvents = 16;
inline constexpr std::uint32_t kMaxQueues = 2 * kMaxGpus;
inline constexpr std::uint64_t kUserptrBytes =
    1024 * 1024;  // anonymous memory per GPU that the GPU may access

enum class BoRole : std::uint32_t {
  Data,       // filled with seeded data, checked
  EventPage,  // written by the driver: existing slots are checked
  Pointer,    // read and write pointers of a queue: all zero
  Doorbell,
  Mmio,
  Userptr,  // memory of the arena
};

struct BoRecord {
  std::uint64_t handle;  // KFD handle: gpu_id << 32 | number
  std::uint64_t va;      // GPU virtual address
  std::uint64_t bytes;
  std::uint64_t seed;   // of its data
  std::uint32_t gpu;    // index into Arena::gpus
  std::uint32_t flags;  // KFD_IOC_ALLOC_MEM_FLAGS_*
  std::uint32_t zero_percent;
  BoRole role;
};

// One CPU map of a device file, as /proc/PID/maps would show it on real hardware.
struct MapRecord {
  std::uint64_t address;
  std::uint64_t bytes;
  std::uint64_t offset;  // bytes, the whole 64-bit mmap offset
  std::uint64_t bo;      // index of the BO behind it
  std::uint64_t bo_offset;
  std::int32_t fd;  // the subject's descriptor it was mapped through
  std::int32_t prot;
  std::array<char, 64> path;
};

struct EventRecord {
  std::uint32_t id;
  std::uint32_t type;
  std::uint32_t auto_reset;
  std::uint32_t signaled;
};

struct QueueRecord {
  std::uint32_t id;
  std::uint32_t gpu;
  std::uint32_t type;
  std::uint32_t ring_bytes;
  std::uint64_t ring_va;
  std::uint64_t doorbell_offset;
};

struct GpuRecord {
  std::uint32_t gpu_id;        // as the process has known it from the start
  std::uint32_t render_minor;  // at the start; another GPU's after a restore on another machine
  std::int32_t render_fd;      // the file whose VM KFD acquired
  std::uint32_t doorbell_bo;
  std::uint64_t next_va;
};

struct Arena {
  std::uint64_t magic;
  std::uint64_t bytes;  // of the region
  std::uint64_t seed;
  std::uint32_t zero_percent;
  std::uint32_t num_gpus;
  std::uint32_t num_bos;
  std::uint32_t num_maps;
  std::uint32_t num_events;
  std::uint32_t num_queues;
  std::int32_t kfd_fd;
  std::int32_t second_kfd_fd;  // -1, or another open file of /dev/kfd
  std::int32_t kfd_dup_fd;     // -1, or a dup of kfd_fd
  std::uint32_t checks;        // rounds of checking done: survives the restore
  std::array<GpuRecord, kMaxGpus> gpus;
  std::array<MapRecord, kMaxMaps> maps;
  std::array<EventRecord, kMaxEvents> events;
  std::array<QueueRecord, kMaxQueues> queues;
  std::array<BoRecord, kMaxBos> bos;
  alignas(4096) std::array<std::array<std::uint8_t, kUserptrBytes>, kMaxGpus> userptr;
};

inline Arena* arena_at_its_place() {
  return reinterpret_cast<Arena*>(kArenaAddress);
}

}  // namespace sluice::subject
