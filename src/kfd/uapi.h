// SPDX-License-Identifier: MIT
// The part of the KFD's user interface that we use: structs, numbers, flags, mmap offsets. (Debian 12's
// <linux/kfd_ioctl.h> includes <drm/drm.h>, which its package lacks, and spells flags 1 << 31.)
//
// Sources: the kernel's uapi header kfd_ioctl.h (sizes and offsets computed by a compiler, equal in Linux
// 6.1, 6.12 and 7.2); kfd_priv.h for the mmap offset; kfd_chardev.c, which dispatches ioctls by number alone.
// So the sizes below are those that *we* pass. Plain data; nothing here owns anything.
#pragma once

#include <linux/ioctl.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace sluice::kfd {

// The first interface with CRIU ioctls in which SDMA reaches GTT BOs.
inline constexpr std::uint32_t kVersionMajor = 1;
inline constexpr std::uint32_t kVersionMinorMin = 8;

inline constexpr std::uint32_t kInvalidFd = 0xFFFFFFFFU;  // BoBucket::dmabuf_fd of a BO without one
inline constexpr std::uint32_t kGpuIdMax = 0xFFFF;        // gpu_id is a 16-bit hash, never 0

// AMDKFD_IOC_GET_VERSION
struct GetVersionArgs {
  std::uint32_t major_version;
  std::uint32_t minor_version;
};

// AMDKFD_IOC_GET_PROCESS_APERTURES_NEW, as far as it counts: with num_nodes 0 the kernel writes no apertures,
// but how many GPUs the process has (kfd_ioctl_get_process_apertures_new)
struct GetAperturesArgs {
  std::uint64_t apertures;  // user pointer
  std::uint32_t num_nodes;  // in: room, in apertures; out
  std::uint32_t pad;
};

// AMDKFD_IOC_AVAILABLE_MEMORY
struct AvailableMemoryArgs {
  std::uint64_t available;  // out: bytes
  std::uint32_t gpu_id;
  std::uint32_t pad;
};

// AMDKFD_IOC_ACQUIRE_VM
struct AcquireVmArgs {
  std::uint32_t drm_fd;
  std::uint32_t gpu_id;
};

// AMDKFD_IOC_ALLOC_MEMORY_OF_GPU
struct AllocMemoryArgs {
  std::uint64_t va_addr;
  std::uint64_t size;
  std::uint64_t handle;       // out
  std::uint64_t mmap_offset;  // out; in for USERPTR: the CPU address
  std::uint32_t gpu_id;
  std::uint32_t flags;
};

// AMDKFD_IOC_FREE_MEMORY_OF_GPU
struct FreeMemoryArgs {
  std::uint64_t handle;
};

// AMDKFD_IOC_MAP_MEMORY_TO_GPU
struct MapMemoryArgs {
  std::uint64_t handle;
  std::uint64_t device_ids;  // user pointer to uint32_t[num_devices]: user gpu_ids
  std::uint32_t num_devices;
  std::uint32_t num_mapped;  // in: how many of them are already mapped; out: how many are
};

// AMDKFD_IOC_GET_DMABUF_INFO
struct DmabufInfoArgs {
  std::uint64_t size;           // out, bytes
  std::uint64_t metadata;       // user pointer; 0: not wanted, the size is still returned
  std::uint32_t metadata_size;  // of the buffer; out: of the metadata
  std::uint32_t gpu_id;         // out: the actual one
  std::uint32_t flags;          // out: the memory's domain, kAllocVram or kAllocGtt
  std::uint32_t dmabuf_fd;
};

// AMDKFD_IOC_IMPORT_DMABUF
struct ImportDmabufArgs {
  std::uint64_t va_addr;
  std::uint64_t handle;  // out
  std::uint32_t gpu_id;
  std::uint32_t dmabuf_fd;
};

// What other processes find memory by: 128 random bits.
using IpcHandle = std::array<std::uint32_t, 4>;

// AMDKFD_IOC_IPC_IMPORT_HANDLE of AMD's out-of-tree driver (its kfd_ioctl.h in 6.0.5 to KFD 1.18).
struct IpcImportArgs {
  std::uint64_t handle;  // out
  std::uint64_t va_addr;
  std::uint64_t mmap_offset;  // out
  IpcHandle share_handle;
  std::uint32_t gpu_id;
  std::uint32_t flags;  // out: the exporter's
};

// AMDKFD_IOC_CRIU_OP
enum class CriuOp : std::uint32_t { ProcessInfo = 0, Checkpoint = 1, Unpause = 2, Restore = 3, Resume = 4 };

struct CriuArgs {
  std::uint64_t devices;         // user pointer to DeviceBucket[num_devices]
  std::uint64_t bos;             // user pointer to BoBucket[num_bos]
  std::uint64_t priv_data;       // user pointer
  std::uint64_t priv_data_size;  // bytes
  std::uint32_t num_devices;
  std::uint32_t num_bos;
  std::uint32_t num_objects;
  std::uint32_t pid;
  CriuOp op;
};

struct DeviceBucket {
  std::uint32_t user_gpu_id;
  std::uint32_t actual_gpu_id;
  std::uint32_t drm_fd;  // RESTORE only
  std::uint32_t pad;
};

struct BoBucket {
  std::uint64_t addr;
  std::uint64_t size;
  std::uint64_t offset;
  std::uint64_t restored_offset;  // out of RESTORE
  std::uint32_t gpu_id;           // user gpu_id
  std::uint32_t alloc_flags;
  std::uint32_t dmabuf_fd;  // out; kInvalidFd for none
  std::uint32_t pad;
};

// AMDKFD_IOC_DBG_TRAP, as far as KFD_IOC_DBG_TRAP_QUERY_DEBUG_EVENT needs it.
struct DebugTrapArgs {
  std::uint32_t pid;  // of the process in question
  std::uint32_t op;
  std::uint64_t exception_mask;  // in: events to clear; out: what has happened
  std::uint32_t gpu_id;          // out
  std::uint32_t queue_id;        // out
  std::uint64_t pad;             // other operations have more
};
inline constexpr std::uint32_t kDebugTrapQueryEvent = 11;

inline constexpr unsigned long kIocGetVersion = _IOR('K', 0x01, GetVersionArgs);
inline constexpr unsigned long kIocGetApertures = _IOWR('K', 0x14, GetAperturesArgs);
inline constexpr unsigned long kIocAcquireVm = _IOW('K', 0x15, AcquireVmArgs);
inline constexpr unsigned long kIocAllocMemory = _IOWR('K', 0x16, AllocMemoryArgs);
inline constexpr unsigned long kIocFreeMemory = _IOW('K', 0x17, FreeMemoryArgs);
inline constexpr unsigned long kIocMapMemory = _IOWR('K', 0x18, MapMemoryArgs);
inline constexpr unsigned long kIocGetDmabufInfo = _IOWR('K', 0x1C, DmabufInfoArgs);
inline constexpr unsigned long kIocImportDmabuf = _IOWR('K', 0x1D, ImportDmabufArgs);
inline constexpr unsigned long kIocCriuOp = _IOWR('K', 0x22, CriuArgs);
inline constexpr unsigned long kIocAvailableMemory = _IOWR('K', 0x23, AvailableMemoryArgs);
inline constexpr unsigned long kIocDebugTrap = _IOWR('K', 0x26, DebugTrapArgs);
inline constexpr unsigned long kIocIpcImport = _IOWR('K', 0x80, IpcImportArgs);

static_assert(sizeof(GetVersionArgs) == 8 && sizeof(AcquireVmArgs) == 8);
static_assert(sizeof(GetAperturesArgs) == 16);
static_assert(sizeof(AllocMemoryArgs) == 40 && offsetof(AllocMemoryArgs, gpu_id) == 32);
static_assert(sizeof(FreeMemoryArgs) == 8);
static_assert(sizeof(MapMemoryArgs) == 24 && offsetof(MapMemoryArgs, num_mapped) == 20);
static_assert(sizeof(DmabufInfoArgs) == 32 && offsetof(DmabufInfoArgs, dmabuf_fd) == 28);
static_assert(sizeof(ImportDmabufArgs) == 24 && offsetof(ImportDmabufArgs, dmabuf_fd) == 20);
static_assert(sizeof(IpcImportArgs) == 48 && offsetof(IpcImportArgs, gpu_id) == 40);
static_assert(sizeof(CriuArgs) == 56 && offsetof(CriuArgs, op) == 48);
static_assert(offsetof(CriuArgs, priv_data_size) == 24 && offsetof(CriuArgs, pid) == 44);
static_assert(sizeof(DebugTrapArgs) == 32 && offsetof(DebugTrapArgs, exception_mask) == 8);
static_assert(sizeof(DeviceBucket) == 16 && offsetof(DeviceBucket, drm_fd) == 8);
static_assert(sizeof(BoBucket) == 48 && offsetof(BoBucket, restored_offset) == 24);
static_assert(offsetof(BoBucket, dmabuf_fd) == 40);
#if defined(__x86_64__) || defined(__aarch64__)
// (powerpc packs direction and size differently.)
static_assert(kIocCriuOp == 0xC0384B22UL && kIocGetVersion == 0x80084B01UL);
static_assert(kIocGetApertures == 0xC0104B14UL);
static_assert(kIocAcquireVm == 0x40084B15UL && kIocAllocMemory == 0xC0284B16UL);
static_assert(kIocFreeMemory == 0x40084B17UL && kIocMapMemory == 0xC0184B18UL);
static_assert(kIocGetDmabufInfo == 0xC0204B1CUL && kIocImportDmabuf == 0xC0184B1DUL);
static_assert(kIocDebugTrap == 0xC0204B26UL);
#endif

// AllocMemoryArgs::flags and BoBucket::alloc_flags.
inline constexpr std::uint32_t kAllocVram = 1U << 0;
inline constexpr std::uint32_t kAllocGtt = 1U << 1;
inline constexpr std::uint32_t kAllocUserptr = 1U << 2;
inline constexpr std::uint32_t kAllocDoorbell = 1U << 3;
inline constexpr std::uint32_t kAllocMmioRemap = 1U << 4;
inline constexpr std::uint32_t kAllocContiguous = 1U << 23;
inline constexpr std::uint32_t kAllocExtCoherent = 1U << 24;
inline constexpr std::uint32_t kAllocUncached = 1U << 25;
inline constexpr std::uint32_t kAllocCoherent = 1U << 26;
inline constexpr std::uint32_t kAllocAqlQueueMem = 1U << 27;
inline constexpr std::uint32_t kAllocNoSubstitute = 1U << 28;
inline constexpr std::uint32_t kAllocPublic = 1U << 29;
inline constexpr std::uint32_t kAllocExecutable = 1U << 30;
inline constexpr std::uint32_t kAllocWritable = 1U << 31;

// CHECKPOINT reports these for an imported BO, whatever flags its memory was allocated with: one of the first
// two, and both others.
inline constexpr std::uint32_t kAllocFlagsOfImports =
    kAllocVram | kAllocGtt | kAllocExecutable | kAllocWritable;

// The private data of a checkpoint begins with one record of the process and one for each GPU; then come the
// BOs'.
inline constexpr std::uint64_t kProcessRecordBytes = 8;
inline constexpr std::uint64_t kDeviceRecordBytes = 8;

// The kind of an offset of mmap(/dev/kfd).
enum class MmapType : std::uint32_t { Mmio = 0, ReservedMemory = 1, Events = 2, Doorbell = 3 };

inline constexpr unsigned kMmapTypeShift = 62;
inline constexpr unsigned kMmapGpuIdShift = 46;
inline constexpr std::uint64_t kMmapOffsetMask = (std::uint64_t{1} << kMmapGpuIdShift) - 1;

struct MmapOffset {
  MmapType type = MmapType::Mmio;
  std::uint32_t gpu_id = 0;  // the *actual* gpu_id, also after a restore on other GPUs; 0 for Events
  std::uint64_t offset = 0;  // bytes, below 2^46

  bool operator==(const MmapOffset&) const = default;
};

// The offset is a 64-bit number whose bit 63 may be set: negative as an off_t.
constexpr std::uint64_t encode_mmap_offset(const MmapOffset& at) {
  return static_cast<std::uint64_t>(at.type) << kMmapTypeShift |
         static_cast<std::uint64_t>(at.gpu_id & kGpuIdMax) << kMmapGpuIdShift | (at.offset & kMmapOffsetMask);
}
constexpr MmapOffset decode_mmap_offset(std::uint64_t raw) {
  return {static_cast<MmapType>(raw >> kMmapTypeShift),
          static_cast<std::uint32_t>(raw >> kMmapGpuIdShift) & kGpuIdMax, raw & kMmapOffsetMask};
}

static_assert(encode_mmap_offset({MmapType::Doorbell, 0, 0}) == 0xC000000000000000U);
static_assert(encode_mmap_offset({MmapType::Events, 0, 0}) == 0x8000000000000000U);
static_assert(decode_mmap_offset(encode_mmap_offset({MmapType::Doorbell, 0x5759, 0x1000})) ==
              MmapOffset{MmapType::Doorbell, 0x5759, 0x1000});

// Whether the BO has its own contents, which a dump must copy: the kernel makes a dma-buf for exactly these.
constexpr bool has_contents(std::uint32_t alloc_flags) {
  return (alloc_flags & (kAllocVram | kAllocGtt)) != 0;
}

}  // namespace sluice::kfd
