/* SPDX-License-Identifier: MIT */
/*
 * /dev/kfd as programs see it: ioctl numbers, argument layouts, constants (Linux 7.2; the sizes of older
 * kernels are accepted because commands are looked up by number only). Facts of the kernel's uapi, in our own
 * words.
 */
#ifndef VAM_KFD_ABI_H
#define VAM_KFD_ABI_H

#include "platform.h"

enum vam_kfd_nr {
  VAM_KFD_GET_VERSION = 0x01,
  VAM_KFD_CREATE_QUEUE = 0x02,
  VAM_KFD_DESTROY_QUEUE = 0x03,
  VAM_KFD_SET_MEMORY_POLICY = 0x04,
  VAM_KFD_GET_CLOCK_COUNTERS = 0x05,
  VAM_KFD_GET_PROCESS_APERTURES = 0x06,
  VAM_KFD_UPDATE_QUEUE = 0x07,
  VAM_KFD_CREATE_EVENT = 0x08,
  VAM_KFD_DESTROY_EVENT = 0x09,
  VAM_KFD_SET_EVENT = 0x0a,
  VAM_KFD_RESET_EVENT = 0x0b,
  VAM_KFD_WAIT_EVENTS = 0x0c,
  VAM_KFD_DBG_REGISTER = 0x0d,
  VAM_KFD_DBG_UNREGISTER = 0x0e,
  VAM_KFD_DBG_ADDRESS_WATCH = 0x0f,
  VAM_KFD_DBG_WAVE_CONTROL = 0x10,
  VAM_KFD_SET_SCRATCH_BACKING_VA = 0x11,
  VAM_KFD_GET_TILE_CONFIG = 0x12,
  VAM_KFD_SET_TRAP_HANDLER = 0x13,
  VAM_KFD_GET_PROCESS_APERTURES_NEW = 0x14,
  VAM_KFD_ACQUIRE_VM = 0x15,
  VAM_KFD_ALLOC_MEMORY = 0x16,
  VAM_KFD_FREE_MEMORY = 0x17,
  VAM_KFD_MAP_MEMORY = 0x18,
  VAM_KFD_UNMAP_MEMORY = 0x19,
  VAM_KFD_SET_CU_MASK = 0x1a,
  VAM_KFD_GET_QUEUE_WAVE_STATE = 0x1b,
  VAM_KFD_GET_DMABUF_INFO = 0x1c,
  VAM_KFD_IMPORT_DMABUF = 0x1d,
  VAM_KFD_ALLOC_QUEUE_GWS = 0x1e,
  VAM_KFD_SMI_EVENTS = 0x1f,
  VAM_KFD_SVM = 0x20,
  VAM_KFD_SET_XNACK_MODE = 0x21,
  VAM_KFD_CRIU_OP = 0x22,
  VAM_KFD_AVAILABLE_MEMORY = 0x23,
  VAM_KFD_EXPORT_DMABUF = 0x24,
  VAM_KFD_RUNTIME_ENABLE = 0x25,
  VAM_KFD_DBG_TRAP = 0x26,
  VAM_KFD_CREATE_PROCESS = 0x27,
  VAM_KFD_PROFILER = 0x28,
  VAM_KFD_IPC_IMPORT_HANDLE = 0x80, /* these two: AMD's out-of-tree driver */
  VAM_KFD_IPC_EXPORT_HANDLE = 0x81
};

#define VAM_KFD_INVALID_FD 0xffffffffu

enum vam_criu_op {
  VAM_CRIU_PROCESS_INFO,
  VAM_CRIU_CHECKPOINT,
  VAM_CRIU_UNPAUSE,
  VAM_CRIU_RESTORE,
  VAM_CRIU_RESUME
};

#define VAM_ALLOC_VRAM (1u << 0)
#define VAM_ALLOC_GTT (1u << 1)
#define VAM_ALLOC_USERPTR (1u << 2)
#define VAM_ALLOC_DOORBELL (1u << 3)
#define VAM_ALLOC_MMIO (1u << 4)
#define VAM_ALLOC_CONTIGUOUS (1u << 23)
#define VAM_ALLOC_EXT_COHERENT (1u << 24)
#define VAM_ALLOC_UNCACHED (1u << 25)
#define VAM_ALLOC_COHERENT (1u << 26)
#define VAM_ALLOC_AQL_QUEUE_MEM (1u << 27)
#define VAM_ALLOC_PUBLIC (1u << 29)
#define VAM_ALLOC_EXECUTABLE (1u << 30)
#define VAM_ALLOC_WRITABLE (1u << 31)

#define VAM_MMAP_TYPE_SHIFT 62
#define VAM_MMAP_DOORBELL (3ull << 62)
#define VAM_MMAP_EVENTS (2ull << 62)
#define VAM_MMAP_RESERVED (1ull << 62)
#define VAM_MMAP_MMIO (0ull << 62)
#define VAM_MMAP_GPU_SHIFT 46
#define VAM_MMAP_GPU_MASK (0xffffull << VAM_MMAP_GPU_SHIFT)

#define VAM_SIGNAL_EVENTS 4096u
#define VAM_SIGNAL_PAGE_BYTES 32768u
#define VAM_NONSIGNAL_EVENT_FIRST 0x40000000u
#define VAM_EVENT_TIMEOUT_INFINITE 0xffffffffu

enum vam_event_type {
  VAM_EVENT_SIGNAL = 0,
  VAM_EVENT_HW_EXCEPTION = 3,
  VAM_EVENT_DEBUG = 5,
  VAM_EVENT_MEMORY = 8
};

enum vam_wait_result { VAM_WAIT_COMPLETE = 0, VAM_WAIT_TIMEOUT = 1, VAM_WAIT_FAIL = 2 };

enum vam_queue_type {
  VAM_QUEUE_COMPUTE = 0,
  VAM_QUEUE_SDMA = 1,
  VAM_QUEUE_COMPUTE_AQL = 2,
  VAM_QUEUE_SDMA_XGMI = 3,
  VAM_QUEUE_SDMA_BY_ENG_ID = 4
};

struct vam_get_version_args {
  uint32_t major, minor;
};
#define VAM_RUNTIME_ENABLE 1u
struct vam_create_queue_args {
  uint64_t ring_base, write_pointer, read_pointer, doorbell_offset;
  uint32_t ring_size, gpu_id, type, percentage, priority, queue_id;
  uint64_t eop_address, eop_size, ctx_address;
  uint32_t ctx_size, ctl_stack_size, sdma_engine_id, metadata_ring_size;
};
struct vam_update_queue_args {
  uint64_t ring_base;
  uint32_t queue_id, ring_size, percentage, priority;
};
struct vam_memory_policy_args {
  uint64_t alternate_base, alternate_size;
  uint32_t gpu_id, default_policy, alternate_policy, misc;
};
struct vam_clock_counters_args {
  uint64_t gpu, cpu, system, frequency;
  uint32_t gpu_id, pad;
};
struct vam_apertures {
  uint64_t lds_base, lds_limit, scratch_base, scratch_limit, gpuvm_base, gpuvm_limit;
  uint32_t gpu_id, pad;
};
struct vam_get_apertures_args {
  struct vam_apertures apertures[7];
  uint32_t num_nodes, pad;
};
struct vam_get_apertures_new_args {
  uint64_t apertures;
  uint32_t num_nodes, pad;
};
struct vam_create_event_args {
  uint64_t page_offset;
  uint32_t trigger_data, type, auto_reset, node_id, event_id, slot_index;
};
struct vam_event_id_args {
  uint32_t event_id, pad;
};
struct vam_event_data {
  uint8_t data[32];
  uint64_t extension;
  uint32_t event_id, pad;
};
struct vam_wait_events_args {
  uint64_t events;
  uint32_t num_events, wait_all, timeout_ms, result;
};
struct vam_scratch_args {
  uint64_t va;
  uint32_t gpu_id, pad;
};
struct vam_tile_config_args {
  uint64_t tile, macro_tile;
  uint32_t num_tile, num_macro_tile, gpu_id, gb_addr_config, num_banks, num_ranks;
};
struct vam_trap_handler_args {
  uint64_t tba, tma;
  uint32_t gpu_id, pad;
};
struct vam_acquire_vm_args {
  uint32_t drm_fd, gpu_id;
};
struct vam_alloc_memory_args {
  uint64_t va, size, handle, mmap_offset;
  uint32_t gpu_id, flags;
};
struct vam_free_memory_args {
  uint64_t handle;
};
struct vam_map_memory_args {
  uint64_t handle, device_ids;
  uint32_t n_devices, n_success;
};
struct vam_cu_mask_args {
  uint32_t queue_id, num_cu_mask;
  uint64_t cu_mask;
};
struct vam_wave_state_args {
  uint64_t ctl_stack;
  uint32_t ctl_used, save_used, queue_id, pad;
};
struct vam_dmabuf_info_args {
  uint64_t size, metadata;
  uint32_t metadata_size, gpu_id, flags, dmabuf_fd;
};
struct vam_import_dmabuf_args {
  uint64_t va, handle;
  uint32_t gpu_id, dmabuf_fd;
};
struct vam_queue_gws_args {
  uint32_t queue_id, num_gws, first_gws, pad;
};
struct vam_smi_args {
  uint32_t gpu_id, anon_fd;
};
struct vam_svm_attr {
  uint32_t type, value;
};
struct vam_svm_args {
  uint64_t start, size;
  uint32_t op, nattr; /* then nattr of vam_svm_attr */
};
struct vam_xnack_args {
  int32_t enabled;
};
struct vam_available_memory_args {
  uint64_t available;
  uint32_t gpu_id, pad;
};
struct vam_export_dmabuf_args {
  uint64_t handle;
  uint32_t flags, dmabuf_fd;
};
struct vam_ipc_import_args {
  uint64_t handle, va, mmap_offset;
  uint32_t share_handle[4], gpu_id, flags;
};
struct vam_ipc_export_args {
  uint64_t handle;
  uint32_t share_handle[4], gpu_id, flags;
};
struct vam_runtime_enable_args {
  uint64_t r_debug;
  uint32_t mode_mask, capabilities;
};
enum vam_debug_trap_op {
  VAM_DEBUG_TRAP_ENABLE = 0,
  VAM_DEBUG_TRAP_DISABLE = 1,
  VAM_DEBUG_TRAP_QUERY_DEBUG_EVENT = 11
};
struct vam_debug_trap_args {
  int32_t pid;
  uint32_t op;
  uint64_t more[3]; /* by operation */
};
struct vam_criu_args {
  uint64_t devices, bos, priv_data, priv_data_size;
  uint32_t num_devices, num_bos, num_objects, pid, op, pad;
};
struct vam_criu_device {
  uint32_t user_gpu_id, actual_gpu_id, drm_fd, pad;
};
struct vam_criu_bo {
  uint64_t addr, size, offset, restored_offset;
  uint32_t gpu_id, alloc_flags, dmabuf_fd, pad;
};

/* Private data records (opaque to user space). The BO record's array has 16 or 64 entries. */
enum vam_priv_type { VAM_PRIV_QUEUE = 0, VAM_PRIV_EVENT = 1, VAM_PRIV_SVM = 2 };
struct vam_priv_process {
  uint32_t version, xnack_mode;
};
struct vam_priv_device {
  uint64_t reserved;
};
#define VAM_PRIV_BO_MAX_IDS 64
struct vam_priv_bo {
  uint64_t user_addr;
  uint32_t idr_handle;
  uint32_t mapped_gpu_ids[VAM_PRIV_BO_MAX_IDS];
  uint32_t rest[7]; /* a driver keeps less of this, or as much */
};
struct vam_priv_ipc { /* of AMD's driver, after the GPUs; all 0 without a handle */
  uint32_t is_imported, flags, share_handle[4];
};
struct vam_priv_queue {
  uint32_t object_type, pad;
  uint64_t q_address, q_size, read_ptr, write_ptr, doorbell_off, eop_address, ctx_address;
  uint32_t gpu_id, type, format, q_id, priority, percent, doorbell_id, gws, sdma_id, eop_size, ctx_size,
      ctl_stack_size, mqd_size, pad2;
};
struct vam_priv_event {
  uint32_t object_type, pad;
  uint64_t user_handle;
  uint32_t event_id, auto_reset, type, signaled;
  uint8_t data[32];
};
struct vam_priv_svm {
  uint32_t object_type, pad;
  uint64_t start_page, pages;
};

VAM_STATIC_ASSERT(sizeof(struct vam_create_queue_args) == 96, "create_queue");
VAM_STATIC_ASSERT(sizeof(struct vam_alloc_memory_args) == 40, "alloc_memory");
VAM_STATIC_ASSERT(sizeof(struct vam_event_data) == 48, "event_data");
VAM_STATIC_ASSERT(sizeof(struct vam_get_apertures_args) == 400, "apertures");
VAM_STATIC_ASSERT(sizeof(struct vam_ipc_import_args) == 48, "ipc_import");
VAM_STATIC_ASSERT(sizeof(struct vam_ipc_export_args) == 32, "ipc_export");
VAM_STATIC_ASSERT(sizeof(struct vam_criu_args) == 56, "criu_args");
VAM_STATIC_ASSERT(sizeof(struct vam_criu_device) == 16, "criu_device");
VAM_STATIC_ASSERT(sizeof(struct vam_criu_bo) == 48, "criu_bo");
VAM_STATIC_ASSERT(sizeof(struct vam_priv_bo) == 296, "priv_bo");
VAM_STATIC_ASSERT(sizeof(struct vam_priv_queue) == 120, "priv_queue");
VAM_STATIC_ASSERT(sizeof(struct vam_priv_event) == 64, "priv_event");
VAM_STATIC_ASSERT(sizeof(struct vam_priv_svm) == 24, "priv_svm");

#endif
