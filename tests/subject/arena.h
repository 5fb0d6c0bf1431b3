// SPDX-License-Identifier: MIT
// The whole state of the subject (the GPU process that is dumped and restored) in one anonymous region at a
// fixed address, the arena.
//
// Why: the host look-alike has no parasite and rebuilds no address space. It copies this one region with
// process_vm_readv, and takes the list of device maps from the table in it, because the virtual amdgpu's maps
// appear in /proc/PID/maps as maps of its pool files. Whatever the subject must remember across a restore is
// in here; nothing points out of here but the addresses of device maps, which are fixed too.
//
// Plain data without constructors. Written by the subject's main thread (and the waiter, its own two fields);
// read by the host while that thread is stopped. What only a real CRIU restores (a second thread, FIFOs, a
// child, maps that are not in the table) is remembered in here too, but lies elsewhere.
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
inline constexpr std::uint32_t kMaxMaps = kMaxBos + 256;
inline constexpr std::uint32_t kMaxEvents = 16;
inline constexpr std::uint32_t kMaxQueues = 3 * kMaxGpus;
inline constexpr std::uint64_t kUserptrBytes =
    1024 * 1024;                                       // anonymous memory per GPU that the GPU may access
inline constexpr std::uint64_t kSvmBytes = 64 * 1024;  // and that has SVM ranges
inline constexpr std::uint32_t kSvmRanges = 2;         // per GPU
inline constexpr std::uint32_t kMaxGems = 4096;
inline constexpr std::uint64_t kGemBoBase = 1ULL << 32;  // MapRecord::bo of the first GEM BO

// What kind of process this is.
enum class Shape : std::uint32_t {
  Gpu,         // a ROCm-like process
  RenderOnly,  // render nodes are open, /dev/kfd is not
  Plain,       // no device at all
};

enum class BoRole : std::uint32_t {
  Data,       // filled with seeded data, checked
  EventPage,  // written by the driver: existing slots are checked
  Pointer,    // read and write pointers of a queue that gets no packets: all zero
  Running,    // ring, pointers or scratch memory of a queue that gets packets: subject_queues.cc knows
  Doorbell,
  Mmio,
  Userptr,   // memory of the arena
  Shared,    // subject_share.cc knows
  SaveArea,  // context save area that nothing here has written: the GPU's own
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
  std::uint32_t mapped;  // bit i: for GPU i. The kernel unmaps it from no other (EINVAL)
  std::uint32_t pad;
};

// One CPU map of a device file, as /proc/PID/maps would show it on real hardware.
struct MapRecord {
  std::uint64_t address;
  std::uint64_t bytes;
  std::uint64_t offset;  // bytes, the whole 64-bit mmap offset
  std::uint64_t bo;      // index of the BO behind it; from kGemBoBase on: of the GEM BO
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
  std::uint32_t priority;
  std::uint32_t share;  // percent; 0: it is switched off
  std::uint64_t ring_va;
  std::uint64_t doorbell_offset;
  std::uint64_t read_va, write_va;  // of its pointers
  // Of a queue that gets packets:
  std::uint64_t scratch_va;  // signals and data (subject_queues.cc)
  std::uint64_t position;  // where the next packet goes since the start: packets (AQL), dwords (PM4) or bytes
  std::uint64_t gate;      // position of the packet that waits for the gate
  std::uint64_t batches;   // put into the ring
  std::uint64_t consumed;  // packets known to be through
  std::uint32_t event_id;  // raised by the last packet before the gate, and by the last of all
  std::uint32_t open;      // 1: the gate is open, its packets may still be waiting
};

// Attributes of one SVM range as GET_ATTR gave them: type and value by turns.
struct SvmRecord {
  std::uint64_t address, bytes;
  std::uint32_t gpu;
  std::array<std::uint32_t, 10> attributes;
};

struct GpuRecord {
  std::uint32_t gpu_id;          // as the process has known it from the start
  std::uint32_t render_minor;    // at the start; another GPU's after a restore on another machine
  std::int32_t render_fd;        // the file whose VM KFD acquired; -1: closed after mapping
  std::int32_t other_render_fd;  // -1, or another file of the same GPU, opened before that one
  std::uint32_t doorbell_bo;
  std::uint32_t pad;
  std::uint64_t next_va;
};

// Where a GPU maps a part of a GEM BO.
struct GpuMap {
  std::uint64_t address, bytes, bo_offset;
  std::uint64_t flags;  // AMDGPU_VM_PAGE_*
};

// What the kernel keeps with a BO (GEM_METADATA).
struct MetadataRecord {
  std::uint64_t tiling;
  std::uint64_t seed;   // of the data
  std::uint32_t bytes;  // of data; without, and without tiling: none was ever set
  std::uint32_t pad;
};

// A BO that was allocated through a render file.
struct GemRecord {
  std::uint32_t gpu;            // index into Arena::gpus
  std::uint32_t in_other_file;  // 1: in other_render_fd, 0: in render_fd
  std::uint32_t handle;
  std::uint32_t num_maps;
  std::uint64_t bytes, alignment;
  std::uint64_t domains, flags;  // AMDGPU_GEM_DOMAIN_*, AMDGPU_GEM_CREATE_*
  std::uint64_t seed;            // of its data
  std::array<GpuMap, 2> maps;
  MetadataRecord metadata;
};

// A render file's handle of the BO that is shared.
struct ShareRecord {
  std::uint32_t gpu;
  std::uint32_t in_other_file;  // as in GemRecord
  std::uint32_t handle;
  std::uint32_t pad;
  GpuMap map;
};

// A second thread that waits for an event without end.
struct WaiterRecord {
  std::uint32_t event_id;
  std::int32_t tid;     // 0: there is none
  std::uint32_t wakes;  // futex: how often the event came
  std::uint32_t stop;
};

struct Arena {
  std::uint64_t magic;
  std::uint64_t bytes;  // of the region
  std::uint64_t seed;
  std::uint32_t zero_percent;
  std::uint32_t replicas;  // 1: the nth BO of a kind and size has the same data on each GPU
  std::uint32_t num_gpus;
  std::uint32_t num_bos;
  std::uint32_t num_maps;
  std::uint32_t num_events;
  std::uint32_t num_queues;
  std::uint32_t num_svm;
  std::uint32_t num_gems;
  Shape shape;
  std::int32_t in_fd, out_fd;     // commands and answers
  std::int32_t kfd_fd;            // -1: no KFD process, or closed after mapping
  std::int32_t second_kfd_fd;     // -1, or another open file of /dev/kfd
  std::int32_t kfd_dup_fd;        // -1, or a dup of kfd_fd
  std::int32_t inherited_kfd_fd;  // -1, or a file of /dev/kfd that another process has opened
  std::int32_t dmabuf_fd;         // -1, or a dma-buf
  std::int32_t share_fd;          // 0, or a dma-buf of the shared BO
  std::uint32_t has_share;        // 1: there is a shared BO
  std::uint32_t share_bo;         // 0, or one more than the index of its KFD BO
  std::uint32_t import_bo;        // 0, or one more than the index of the BO that its KFD has imported
  std::uint32_t ipc_bo;           // 0, or one more than the index of the BO that it shares by IPC ioctls
  std::uint32_t num_shares;
  std::int32_t child;           // 0, or the pid of a child that holds all descriptors
  std::int32_t threaded_child;  // 0, or the pid of a child with threads and no device
  std::uint32_t child_threads;  // how many it has besides its first
  std::uint32_t run_queues;     // 1: queues get packets
  std::uint32_t xnack;          // 1: retry faults are on
  std::uint32_t can_export;     // 0: KFD exports no dma-bufs (before 1.12), so every BO is CPU-mapped
  std::uint32_t dmabuf_zero;    // percent, with the next two: its data
  std::uint64_t dmabuf_bytes, dmabuf_seed;
  std::uint64_t dmabuf_map;      // 0, or where a BO is mapped through its dma-buf
  std::uint64_t shm, semaphore;  // 0, or where libhsakmt's shared memory and semaphore are mapped
  WaiterRecord waiter;
  std::uint32_t cache_bos;  // the last of the BOs, each with one of the last maps (cache.h)
  std::array<char, 256> cache_told;
  std::uint32_t checks;  // rounds of checking done: survives the restore
  std::array<GpuRecord, kMaxGpus> gpus;
  std::array<MapRecord, kMaxMaps> maps;
  std::array<EventRecord, kMaxEvents> events;
  std::array<QueueRecord, kMaxQueues> queues;
  std::array<SvmRecord, kMaxGpus * kSvmRanges> svm;
  std::array<BoRecord, kMaxBos> bos;
  std::array<GemRecord, kMaxGems> gems;
  std::array<ShareRecord, 8> shares;
  alignas(4096) std::array<std::array<std::uint8_t, kUserptrBytes>, kMaxGpus> userptr;
  alignas(4096) std::array<std::array<std::uint8_t, kSvmBytes>, kMaxGpus> svm_memory;
};

inline Arena* arena_at_its_place() {
  return reinterpret_cast<Arena*>(kArenaAddress);
}

}  // namespace sluice::subject
