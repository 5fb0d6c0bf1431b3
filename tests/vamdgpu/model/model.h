/* SPDX-License-Identifier: MIT */
/*
 * The device model of the virtual amdgpu: tables of open files, KFD processes, BOs, handles, VA mappings,
 * queues, events, contexts, fences and jobs, and the rules and errnos of every ioctl over them.
 *
 * One block of memory given by the caller holds everything; records refer to each other by index (0 = none),
 * so the block may be mapped at different addresses by several processes. The caller serialises: one call at
 * a time. No function blocks, allocates or calls the OS. Functions return 0 (or a count) or a negative VAM_E*
 * number. What a call needs of the caller's process (its memory, descriptors, identity) comes through
 * vam_call.
 */
#ifndef VAM_MODEL_H
#define VAM_MODEL_H

#include "../config.h"
#include "drm_abi.h"
#include "kfd_abi.h"
#include "platform.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- tables ----------------------------------------------------------------------------------------------
 */

enum vam_table_id {
  VAM_T_IDR_NODE,
  VAM_T_RANGE,
  VAM_T_BO,
  VAM_T_HANDLE,
  VAM_T_MEM,
  VAM_T_FILE,
  VAM_T_PROCESS,
  VAM_T_QUEUE,
  VAM_T_EVENT,
  VAM_T_SVM,
  VAM_T_CTX,
  VAM_T_BO_LIST,
  VAM_T_CHUNK,
  VAM_T_FENCE,
  VAM_T_JOB,
  VAM_T_SYNCOBJ,
  VAM_T_EXPORT,
  VAM_T_METADATA,
  VAM_T_IPC,
  VAM_T_COUNT
};

/* First member of every record. */
struct vam_rec {
  uint32_t live;
  uint32_t next_free;
};

/* Records [1, high) have been used at least once; so a fresh sparse block stays untouched. */
struct vam_table {
  uint64_t offset; /* of record 0, from the start of the model */
  uint32_t stride;
  uint32_t capacity;
  uint32_t high;
  uint32_t free_head;
  uint32_t live;
  uint32_t pad;
};

/* Most records of each kind. */
struct vam_limits {
  uint32_t capacity[VAM_T_COUNT];
};

/* Lowest-free-first integer ids -> u32 values (never 0). A radix tree of 64-way nodes. */
struct vam_idr {
  uint32_t root;
  uint32_t height; /* levels; 0 = empty */
};

struct vam_idr_node {
  struct vam_rec rec;
  uint64_t present; /* slots in use */
  uint64_t full;    /* slots below which nothing is free (leaf: == present) */
  uint32_t slot[64];
};

/* A half-open range [start, start + size): a VA mapping, an allocated or a free piece of a pool. Treap by
 * start. */
struct vam_range {
  struct vam_rec rec;
  uint64_t start, size;
  uint64_t biggest; /* largest size in this subtree */
  uint32_t left, right, priority;
  uint32_t bo;               /* what lies there; 0 for free pieces */
  uint64_t bo_offset;        /* VA mappings: first byte of the BO mapped here */
  uint32_t flags;            /* VA mappings: VAM_VM_* */
  uint32_t mem;              /* VA mappings by KFD: the KFD memory object */
  uint32_t file;             /* VA mappings: the DRM file whose VM this is */
  uint32_t bo_next, bo_prev; /* VA mappings: chain of one BO's mappings */
};

enum vam_pool { VAM_POOL_VRAM, VAM_POOL_GTT, VAM_POOL_NONE, VAM_POOLS };

enum vam_bo_kind { VAM_BO_GEM, VAM_BO_USERPTR, VAM_BO_DOORBELL, VAM_BO_MMIO };

#define VAM_SEVERAL 0xffffffffu

struct vam_bo {
  struct vam_rec rec;
  uint64_t size;        /* bytes, whole pages */
  uint64_t pool_offset; /* first byte in the pool file of (gpu, pool); VAM_POOL_NONE: only an address */
  uint64_t alignment;
  uint64_t gem_flags;
  uint64_t user_addr; /* USERPTR: CPU address in process owner_pid */
  uint64_t inode;     /* of the exported dma-buf, 0 = not exported */
  uint32_t gpu, pool, kind, domains;
  uint32_t refs;     /* GEM handles + KFD memory objects + exported dma-buf + jobs + event page */
  uint32_t range;    /* its piece of the pool */
  uint32_t maps;     /* first VA mapping */
  uint32_t handles;  /* first GEM handle (vam_handle) */
  uint32_t mems;     /* first KFD memory object */
  uint32_t jobs;     /* jobs in flight that list it */
  uint32_t job_file; /* while jobs: the one DRM file they came from, VAM_SEVERAL */
  uint32_t exported; /* 1: a dma-buf file exists (and holds a reference) */
  uint32_t metadata;
  uint32_t userptr_flags;
  uint32_t kfd_flags; /* with which the KFD allocated it; 0: a render file did */
  int32_t owner_pid;
  uint64_t tiling, metadata_flags;
  uint64_t serial;
};

/* One GEM handle: a BO held by a DRM file. */
struct vam_handle {
  struct vam_rec rec;
  uint32_t bo, file, id;
  uint32_t next; /* of the same BO */
};

struct vam_metadata {
  struct vam_rec rec;
  uint32_t bytes;
  uint32_t data[64];
};

/* A KFD memory object: one (process, GPU, handle). */
struct vam_mem {
  struct vam_rec rec;
  uint64_t va, size, user_addr;
  uint32_t process, gpu, handle, bo, flags;
  uint32_t imported;
  uint32_t ipc;    /* of AMD's driver: what other processes find its BO by, 0 = nothing */
  uint32_t mapped; /* bit i: mapped in the VM of GPU i */
  uint32_t userptr_invalid;
  uint32_t bo_next; /* of the same BO */
};

/* A BO that has an IPC handle, for as long as one of the memory objects that share it exists. */
struct vam_ipc {
  struct vam_rec rec;
  uint32_t refs; /* memory objects */
  uint32_t bo, flags;
  uint32_t handle[4];
};

enum vam_file_kind { VAM_FILE_KFD = 1, VAM_FILE_RENDER = 2 };

struct vam_file {
  struct vam_rec rec;
  uint64_t inode; /* the OS's identity of the open file */
  uint64_t serial;
  uint64_t client_id;
  uint32_t kind, gpu;
  uint32_t process; /* KFD: the opener's process; RENDER: the process whose compute VM it is, 0 = none */
  uint32_t closed;  /* the OS file is gone, only a KFD process still holds it */
  uint32_t vm;      /* treap root of VA mappings */
  uint32_t jobs;    /* in flight; the file outlives its close until they are through */
  int32_t opener_pid;
  struct vam_idr gem, ctxs, lists, syncobjs;
};

struct vam_pdd {
  uint32_t present, user_gpu_id;
  uint32_t file;    /* acquired DRM file, 0 = no VM */
  uint32_t evicted; /* eviction counter: queues run when 0 */
  uint32_t bo_doorbell;
  uint32_t pad;
  uint64_t tba, tma, scratch_va;
  struct vam_idr mems;
};

struct vam_process {
  struct vam_rec rec;
  int32_t pid;
  uint32_t dead;
  uint64_t start_time; /* with pid: who it is */
  uint32_t files;      /* open KFD files */
  uint32_t queues_paused, restore_blocked, xnack;
  uint32_t process_infos, unpauses; /* how often, for inspection */
  uint32_t event_page_mem;
  uint32_t event_page_bo;
  uint32_t num_queues, num_events, num_svm;
  uint32_t event_clock; /* sets of events so far */
  uint32_t svm_pending; /* restored attributes wait for RESUME */
  uint32_t runtime_enabled, debugged;
  uint32_t mqd_damaged; /* restored queues whose opaque bytes had changed */
  /* vam_run_kernels(): what PROCESS_INFO finds, so many times more; and what the last one has found. */
  uint32_t waves, stops_with_waves, waves_saved;
  uint32_t svm_first, svm_last;
  struct vam_idr queues, signal_events, other_events;
  struct vam_pdd pdd[VAMDGPU_MAX_GPUS];
};

struct vam_queue {
  struct vam_rec rec;
  uint32_t process, gpu, id, type, format, priority, percent, doorbell, sdma_id, active;
  uint32_t ctx_size, ctl_stack_size, eop_size, gws;
  uint64_t ring, ring_size, read_ptr, write_ptr, eop, ctx_area;
  uint64_t seed;          /* its synthetic MQD and control stack are a function of this */
  uint64_t serial;        /* the private data has the newest queue first */
  uint32_t sdma_engine;   /* an SDMA queue's; its sdma_id is unique on the GPU */
  uint32_t holds_buffers; /* 1: what its buffers lie in cannot be unmapped */
  uint32_t stack_bytes;   /* of its control stack, as the MQD says */
  /* queue_run.c: packets since it was made or restored, bytes done of the packet at the read pointer, why it
   * stands (enum vam_queue_fault) and at which address. */
  uint64_t consumed, done, fault_va;
  uint32_t fault;
};

struct vam_event {
  struct vam_rec rec;
  uint32_t process, id, type, auto_reset, signaled;
  uint32_t set_at; /* the process' event_clock at the last set */
  uint64_t age;
  uint8_t data[32];
};

struct vam_svm {
  struct vam_rec rec;
  uint32_t process, next, prev;
  uint32_t preferred, prefetch, flags, granularity;
  uint64_t start_page, pages;
  uint32_t access[VAMDGPU_MAX_GPUS]; /* VAM_SVM_ACCESS.. attribute types, 0 = never set */
};

/* ---- submission ------------------------------------------------------------------------------------------
 */

#define VAM_ENTITY_JOBS 32 /* most outstanding jobs of one entity */

struct vam_entity {
  uint64_t last_seq;
  uint32_t fence[VAM_ENTITY_JOBS]; /* by seq % 32 */
  uint32_t job_head, job_tail;     /* queued and running jobs in order */
  uint32_t outstanding;
};

struct vam_ctx {
  struct vam_rec rec;
  uint32_t file, id, priority;
  uint32_t lost;   /* a job of it failed: refuse with ECANCELED */
  uint32_t closed; /* freed by its owner, jobs still in flight */
  struct vam_entity entity[VAM_DMA_RINGS];
};

/* 60 words of a list that may be long: BOs of a list or job, IBs, dependencies. */
struct vam_chunk {
  struct vam_rec rec;
  uint32_t next, used;
  uint32_t word[60];
};

struct vam_bo_list {
  struct vam_rec rec;
  uint32_t file, id, count, head;
};

enum vam_fence_state { VAM_FENCE_ACTIVE = 0, VAM_FENCE_DONE = 1 };

struct vam_fence {
  struct vam_rec rec;
  uint32_t refs, state;
  int32_t error; /* negative errno when failed */
  uint32_t job;  /* while active */
  uint32_t exports;
  uint32_t gpu;
  uint64_t number; /* k-th fence of its GPU, from 1 */
};

/* A pollable file made for a fence. The shim keeps `id` as its name. */
struct vam_export {
  struct vam_rec rec;
  uint32_t fence, next;
  uint64_t id, inode;
};

struct vam_job {
  struct vam_rec rec;
  uint32_t file, ctx, ring, fence, next; /* next of the entity */
  uint32_t ibs, num_ibs;                 /* chunk chain, 4 words each: va lo, va hi, bytes, 0 */
  uint32_t bos, num_bos;                 /* chunk chain, one word each; every BO referenced */
  uint32_t deps, num_deps;               /* chunk chain, one word each; every fence referenced */
  uint32_t user_fence_bo, user_fence_offset;
  uint32_t running, hung; /* hung: done, but its fence never signals */
  int32_t owner_pid;      /* whose engine runs it */
  uint32_t pad;
  uint64_t owner_start, seq;
};

struct vam_syncobj {
  struct vam_rec rec;
  uint32_t refs;               /* handles + exported files */
  uint32_t has_payload;        /* something was put in: fence 0 without points means signalled */
  uint32_t fence;              /* binary payload */
  uint64_t signaled_point;     /* timeline: everything up to here has signalled */
  uint32_t points, num_points; /* timeline: chunk chain, 4 words each: point lo, hi, fence, 0; ascending */
  uint64_t inode;              /* of the exported opaque file, 0 = not exported */
  uint64_t name;               /* of that file, the shim's */
};

/* ---- the machine -----------------------------------------------------------------------------------------
 */

struct vam_gpu {
  struct vamdgpu_gpu_config config;
  uint32_t free_root[VAM_POOLS], used_root[VAM_POOLS]; /* treaps of vam_range */
  uint64_t used_bytes[VAM_POOLS];
  uint64_t fences;                                             /* made so far */
  uint32_t hidden;                                             /* by the device cgroup: no PDD, nobody's */
  uint32_t vram_losses, vram_loss_is_due, answers_before_loss; /* vam_lose_vram() */
};

struct vam_model {
  uint64_t magic;
  uint64_t total_bytes;
  uint64_t serial; /* last serial number given */
  uint32_t num_gpus;
  uint32_t pad;
  struct vamdgpu_machine_config config;
  struct vam_gpu gpu[VAMDGPU_MAX_GPUS];
  struct vam_table table[VAM_T_COUNT];
};

/* Bytes that a model with these limits needs (sparse: untouched until used). */
uint64_t vam_model_bytes(const struct vam_limits* limits);

/* Builds an empty machine in `memory`, which must be zero-filled, 64-byte aligned and vam_model_bytes() long.
 * -EINVAL: a configuration that makes no machine. */
int vam_model_init(struct vam_model* memory, const struct vam_limits* limits,
                   const struct vamdgpu_machine_config* config);

/* Record `index` of a table (unchecked), and a checked form that gives NULL for dead or impossible indices.
 */
void* vam_rec_at(const struct vam_model* m, enum vam_table_id table, uint32_t index);
void* vam_rec_live(const struct vam_model* m, enum vam_table_id table, uint32_t index);
uint32_t vam_take(struct vam_model* m, enum vam_table_id table); /* zeroed record; 0 = table full */
void vam_put(struct vam_model* m, enum vam_table_id table, uint32_t index);

#define VAM_AT(m, TABLE, type, index) ((struct type*)vam_rec_at((m), (TABLE), (index)))
#define VAM_FILE_AT(m, i) VAM_AT(m, VAM_T_FILE, vam_file, i)
#define VAM_PROCESS_AT(m, i) VAM_AT(m, VAM_T_PROCESS, vam_process, i)
#define VAM_BO_AT(m, i) VAM_AT(m, VAM_T_BO, vam_bo, i)
#define VAM_HANDLE_AT(m, i) VAM_AT(m, VAM_T_HANDLE, vam_handle, i)
#define VAM_MEM_AT(m, i) VAM_AT(m, VAM_T_MEM, vam_mem, i)
#define VAM_RANGE_AT(m, i) VAM_AT(m, VAM_T_RANGE, vam_range, i)
#define VAM_FENCE_AT(m, i) VAM_AT(m, VAM_T_FENCE, vam_fence, i)
#define VAM_JOB_AT(m, i) VAM_AT(m, VAM_T_JOB, vam_job, i)
#define VAM_IPC_AT(m, i) VAM_AT(m, VAM_T_IPC, vam_ipc, i)
#define VAM_CTX_AT(m, i) VAM_AT(m, VAM_T_CTX, vam_ctx, i)
#define VAM_CHUNK_AT(m, i) VAM_AT(m, VAM_T_CHUNK, vam_chunk, i)

/* ---- idr -------------------------------------------------------------------------------------------------
 */

#define VAM_IDR_MAX 0x7fffffffu
/* Gives the lowest free id >= `first` (and <= `last`) to `value`. -ENOSPC none free, -ENOMEM no node left. */
int vam_idr_add(struct vam_model* m, struct vam_idr* idr, uint32_t first, uint32_t last, uint32_t value,
                uint32_t* id);
/* Gives exactly `id`. -ENOSPC taken, -ENOMEM. */
int vam_idr_add_at(struct vam_model* m, struct vam_idr* idr, uint32_t id, uint32_t value);
uint32_t vam_idr_find(const struct vam_model* m, const struct vam_idr* idr, uint32_t id); /* 0 = none */
uint32_t vam_idr_remove(struct vam_model* m, struct vam_idr* idr, uint32_t id);           /* its value, 0 */
/* First entry with id >= *id: its value, *id set; 0 at the end. */
uint32_t vam_idr_next(const struct vam_model* m, const struct vam_idr* idr, uint32_t* id);
void vam_idr_clear(struct vam_model* m, struct vam_idr* idr);

/* ---- ranges ----------------------------------------------------------------------------------------------
 */

/* Treap of non-overlapping ranges under *root. */
void vam_range_insert(struct vam_model* m, uint32_t* root, uint32_t range);
void vam_range_erase(struct vam_model* m, uint32_t* root, uint32_t range); /* does not free the record */
uint32_t vam_range_find(const struct vam_model* m, uint32_t root,
                        uint64_t at); /* containing `at`, 0 = none */
/* Lowest range that ends above `at`, 0 = none. */
uint32_t vam_range_from(const struct vam_model* m, uint32_t root, uint64_t at);
uint32_t vam_range_first_fit(const struct vam_model* m, uint32_t root, uint64_t size);
/* Whether [start, start + size) touches a range; size > 0. */
int vam_range_overlaps(const struct vam_model* m, uint32_t root, uint64_t start, uint64_t size);

/* What the driver keeps of a GPU address (AMDGPU_GMC_HOLE_MASK). */
#define VAM_VA_MASK 0xffffffffffffull

/* ---- BOs -------------------------------------------------------------------------------------------------
 */

/* New BO with one reference, contents whatever the pool held. -ENOMEM pool or table full, -EINVAL size 0. */
int vam_bo_create(struct vam_model* m, uint32_t gpu, enum vam_pool pool, enum vam_bo_kind kind, uint64_t size,
                  uint64_t alignment, uint32_t* bo);
void vam_bo_ref(struct vam_model* m, uint32_t bo);
/* The CPU has touched the BO's memory for the first time: the driver keeps that in its flags. */
void vam_bo_touched(struct vam_model* m, uint32_t bo);
/* Flags that the driver gives every BO of its own accord (VRAM_CLEARED: to those of GEM_CREATE). */
uint64_t vam_bo_own_flags(const struct vam_model* m);
void vam_bo_unref(struct vam_model* m, uint32_t bo);
/* Called when the last reference of a BO has gone, while its record still says what it was. A front whose
 * pools take memory as they are written gives it back there; 0 = nobody wants to know. */
extern void (*vam_bo_released)(struct vam_model* m, uint32_t bo);
/* The offset at which a render node maps this BO: linear in the pool offset. */
uint64_t vam_bo_mmap_offset(const struct vam_model* m, uint32_t bo);
/* The BO whose render-node offset is exactly `offset`, 0 = none. */
uint32_t vam_bo_at_mmap_offset(const struct vam_model* m, uint64_t offset);
/* Render-node offset of a byte of a pool. */
uint64_t vam_pool_mmap_offset(const struct vam_model* m, uint32_t gpu, enum vam_pool pool, uint64_t offset);

/* Gives the file a handle of the BO: the one it has, or a new one (which takes a reference). */
int vam_handle_get(struct vam_model* m, uint32_t file, uint32_t bo, uint32_t* id);
uint32_t vam_handle_bo(const struct vam_model* m, uint32_t file, uint32_t id); /* 0 = no such handle */
void vam_handle_drop(struct vam_model* m, uint32_t file, uint32_t id);
/* Ties a new KFD memory object to its BO, and unties it. */
void vam_mem_attach(struct vam_model* m, uint32_t mem, uint32_t bo);
void vam_mem_detach(struct vam_model* m, uint32_t mem);

/* VA mappings in the VM of a DRM file. Addresses, sizes and offsets are whole pages. -EINVAL overlap,
 * -ENOMEM. */
int vam_vm_map(struct vam_model* m, uint32_t file, uint64_t va, uint64_t size, uint32_t bo,
               uint64_t bo_offset, uint32_t flags, uint32_t mem);
void vam_vm_unmap_range(struct vam_model* m, uint32_t range);
/* Every mapping of `bo` in the VM of `file` goes. */
void vam_vm_unmap_bo(struct vam_model* m, uint32_t file, uint32_t bo);

/* ---- the caller ------------------------------------------------------------------------------------------
 */

struct vam_call;

/* What the OS shim does for the model. All return 0 or a negative VAM_E*. */
struct vam_os {
  int (*copy_in)(const struct vam_call* call, void* to, uint64_t from_user, uint64_t bytes);
  int (*copy_out)(const struct vam_call* call, uint64_t to_user, const void* from, uint64_t bytes);
  /* Device file behind the caller's fd. -EBADF not open; -EINVAL open but none of this machine's. */
  int (*file_of_fd)(const struct vam_call* call, uint32_t fd, uint32_t* file);
  /* BO behind the caller's dma-buf fd. -EBADF not open, -EINVAL no dma-buf of this machine. */
  int (*bo_of_fd)(const struct vam_call* call, uint32_t fd, uint32_t* bo);
  /* New descriptor in the caller for the BO's dma-buf; takes care of vam_bo_set_exported. -EMFILE, ... */
  int (*export_bo)(const struct vam_call* call, uint32_t bo, uint32_t fd_flags, uint32_t* fd);
  void (*close_fd)(const struct vam_call* call, uint32_t fd);
  /* Whether the calling thread ptraces the lead thread of process `pid`; whether it may checkpoint. */
  int (*traces)(const struct vam_call* call, int32_t pid);
  int (*capable)(const struct vam_call* call);
  /* Whether [addr, addr + size) of the caller may become a userptr BO (0), or -EPERM (file-backed), -EFAULT.
   */
  int (*user_range)(const struct vam_call* call, uint64_t addr, uint64_t size, uint32_t flags);
  /* Writes `bytes` bytes of value `byte` into a BO of a pool. */
  void (*fill_bo)(const struct vam_call* call, uint32_t bo, uint64_t offset, uint64_t bytes, uint8_t byte);
  uint64_t (*now_ns)(const struct vam_call* call, int clock); /* 0 monotonic, 1 boottime */
  /* Pollable file for a fence. */
  int (*export_fence)(const struct vam_call* call, uint32_t fence, uint32_t* fd);
  int (*fence_of_fd)(const struct vam_call* call, uint32_t fd, uint32_t* fence, int* error);
  int (*export_syncobj)(const struct vam_call* call, uint32_t syncobj, uint32_t* fd);
  int (*syncobj_of_fd)(const struct vam_call* call, uint32_t fd, uint32_t* syncobj);
  /* Signals an eventfd of the caller when the point signals (or is there, if `available`). */
  int (*watch_eventfd)(const struct vam_call* call, uint32_t syncobj, uint64_t point, int available,
                       uint32_t fd);
  /* A job is ready to be run by the caller's engine. */
  void (*submitted)(const struct vam_call* call, uint32_t job);
  /* A fence changed state (or a syncobj got one): wake who waits, fill its exported files. */
  void (*fence_changed)(const struct vam_call* call, uint32_t fence);
  /* Whether the device cgroup lets the caller's new KFD process have a GPU. 0: every GPU that is not hidden.
   */
  int (*gpu_allowed)(const struct vam_call* call, uint32_t gpu);
};

struct vam_call {
  struct vam_model* model;
  const struct vam_os* os;
  void* shim;
  uint32_t file; /* the device file the ioctl came on */
  int32_t pid, tid;
  uint64_t start_time; /* of the calling process */
};

/* ---- files and processes ----------------------------------------------------------------------------------
 */

/* open("/dev/kfd"), open of a render node by GPU index. -ENOMEM table full; KFD without GPU: -EINVAL. */
int vam_open_kfd(const struct vam_call* call, uint32_t* file);
int vam_open_render(const struct vam_call* call, uint32_t gpu, uint32_t* file);
/* The last descriptor of a file is gone. */
void vam_close_file(struct vam_model* m, uint32_t file);
/* A job of a DRM file is through. */
void vam_file_job_done(struct vam_model* m, uint32_t file);
/* A process has died (or executed another program): its KFD process and everything of it goes. */
void vam_process_died(struct vam_model* m, uint32_t process);
uint32_t vam_find_process(const struct vam_model* m, int32_t pid, uint64_t start_time); /* start 0 = any */
/* Marks a BO's dma-buf as existing (takes a reference) or gone (drops it). */
void vam_bo_set_exported(struct vam_model* m, uint32_t bo, uint64_t inode);

/* ---- ioctls -----------------------------------------------------------------------------------------------
 */

/* Bytes of the 7.2 kernel's argument for an ioctl, -1 unknown number. */
int vam_kfd_arg_bytes(const struct vam_model* m, uint32_t nr);
int vam_drm_arg_bytes(uint32_t nr);
/* What an unknown number gets. */
int vam_kfd_unknown(const struct vam_model* m);

#define VAM_WOULD_BLOCK \
  10000 /* returned negative: wait for a change, then call again with the same argument */
enum vam_again { VAM_FIRST, VAM_AGAIN, VAM_EXPIRED }; /* which call of it this is */

/* Runs one ioctl. `arg` is zero-extended to at least vam_*_arg_bytes(); `bytes` is the size in the command.
 * On -VAM_WOULD_BLOCK `*deadline_ns` is the absolute monotonic time until which to wait (UINT64_MAX = for
 * ever); the deadline of the first call counts. Then call again with VAM_AGAIN, or VAM_EXPIRED once it has
 * passed. */
int vam_kfd_ioctl(const struct vam_call* call, uint32_t nr, void* arg, uint32_t bytes, int again,
                  uint64_t* deadline_ns);
int vam_drm_ioctl(const struct vam_call* call, uint32_t nr, void* arg, uint32_t bytes, int again,
                  uint64_t* deadline_ns);

/* mmap on a device file: what to map. */
enum vam_map_what { VAM_MAP_POOL, VAM_MAP_DOORBELL, VAM_MAP_MMIO, VAM_MAP_EVENTS };
struct vam_map_result {
  enum vam_map_what what;
  uint32_t gpu, bo, pool, process;
  uint64_t pool_offset;
};
int vam_mmap(const struct vam_call* call, uint64_t offset, uint64_t length, struct vam_map_result* result);

/* ---- pieces of the ioctl families, and their inspection
 * ---------------------------------------------------- */

int vam_kfd_criu(const struct vam_call* call, struct vam_criu_args* args);
uint32_t vam_pdd_by_user_id(const struct vam_model* m, uint32_t process,
                            uint32_t gpu_id);                                  /* gpu index + 1, 0 */
uint32_t vam_gpu_by_id(const struct vam_model* m, uint32_t gpu_id);            /* gpu index + 1, 0 */
uint32_t vam_num_pdds(const struct vam_model* m, const struct vam_process* p); /* GPUs that it sees */
uint64_t vam_gpuvm_base(const struct vam_model* m);
int vam_kfd_alloc_at(const struct vam_call* call, uint32_t process, uint32_t gpu, uint64_t va, uint64_t size,
                     uint32_t flags, uint64_t user_addr, uint32_t idr_handle, int fixed_handle,
                     uint32_t* mem);
/* New memory object of the process for an existing BO. -EINVAL: the BO has no memory. -ENOMEM. */
int vam_kfd_import_at(struct vam_model* m, uint32_t process, uint32_t gpu, uint32_t bo, uint64_t va,
                      uint32_t idr_handle, int fixed_handle, uint32_t* mem);
int vam_kfd_map_mem(struct vam_model* m, uint32_t mem, uint32_t gpu);
void vam_mem_free(struct vam_model* m, uint32_t mem);
int vam_acquire_vm(struct vam_model* m, uint32_t process, uint32_t gpu, uint32_t file);
int vam_ipc_export(const struct vam_call* call, uint32_t process, struct vam_ipc_export_args* args);
int vam_ipc_import(const struct vam_call* call, uint32_t process, struct vam_ipc_import_args* args);
/* RESTORE of a BO whose record has a handle: the memory that has it, or new memory, which gets it. */
int vam_ipc_restore(const struct vam_call* call, uint32_t process, uint32_t gpu, const struct vam_criu_bo* b,
                    uint32_t idr_handle, const struct vam_priv_ipc* record, uint32_t* mem);
/* A memory object that has it goes. */
void vam_ipc_unref(struct vam_model* m, uint32_t ipc);
int vam_queue_restore(const struct vam_call* call, uint32_t process, const struct vam_priv_queue* record,
                      uint64_t state_user, uint32_t* consumed);
void vam_queue_free(struct vam_model* m, uint32_t queue);
/* Whether a queue of the process on this GPU holds a buffer in [va, va + size). */
int vam_queue_uses(const struct vam_model* m, uint32_t process, uint32_t gpu, uint64_t va, uint64_t size);
/* Bytes of a queue's MQDs in the private data; `type` as there. */
uint32_t vam_queue_mqd_bytes(const struct vam_model* m, uint32_t gpu, uint32_t type);
#define VAM_SDMA_MQD_BYTES 512
#define VAM_MAX_SDMA_ENGINES 25 /* more would not fit into their part of the doorbells */
int vam_event_ioctl(const struct vam_call* call, uint32_t nr, void* arg, int again, uint64_t* deadline_ns);
int vam_event_restore(const struct vam_call* call, uint32_t process, const struct vam_priv_event* record);
void vam_event_free(struct vam_model* m, uint32_t event);
/* All that wait for it wake. The caller announces the change. */
void vam_event_set(struct vam_model* m, uint32_t event);
int vam_event_set_page(const struct vam_call* call, uint32_t process, uint64_t handle);
int vam_queue_ioctl(const struct vam_call* call, uint32_t nr, void* arg);
/* Synthetic MQD and control stack bytes of a queue: byte `at` of them. In the MQDs of compute queues the
 * dwords of counters and control stack are what v9_structs.h has there. */
uint8_t vam_queue_state_byte(const struct vam_model* m, const struct vam_queue* q, uint64_t at);
/* From now on the compute queues of a process have kernels: that many times PROCESS_INFO finds waves of them
 * to save (VAM_FOR_EVER: always). No packet is held up by that. -EINVAL: no such process. */
#define VAM_FOR_EVER 0xffffffffu
enum vam_waves {
  VAM_WAVES_NONE = 0,
  VAM_WAVES_WORDS = 1,  /* words on the control stack, and no state */
  VAM_WAVES_SAVED = 2,  /* state, too */
  VAM_WAVES_COUNTED = 3 /* none, and a profiler counts the kernels */
};
int vam_run_kernels(struct vam_model* m, int32_t pid, uint32_t waves, uint32_t stops);
int vam_svm_ioctl(const struct vam_call* call, struct vam_svm_args* args, uint32_t bytes);
int vam_svm_restore(const struct vam_call* call, uint32_t process, const struct vam_priv_svm* record,
                    uint64_t attrs_user, uint32_t num_attrs);
uint32_t vam_svm_attrs(const struct vam_model* m, uint32_t svm, struct vam_svm_attr* out);
void vam_svm_free(struct vam_model* m, uint32_t svm);
int vam_svm_overlaps(const struct vam_model* m, uint32_t process, uint64_t start, uint64_t size);
int vam_svm_covers(const struct vam_model* m, uint32_t process, uint64_t start, uint64_t size);

int vam_gem_ioctl(const struct vam_call* call, uint32_t nr, void* arg, int again, uint64_t* deadline_ns);
int vam_info_ioctl(const struct vam_call* call, const struct vam_info_args* args);
/* A reset has cost the GPU what was in its VRAM: it says so when it has been asked `answers` times more.
 * -EINVAL: there is no such GPU. */
int vam_lose_vram(struct vam_model* m, uint32_t gpu, uint32_t answers);
int vam_cs_ioctl(const struct vam_call* call, uint32_t nr, void* arg, int again, uint64_t* deadline_ns);
int vam_syncobj_ioctl(const struct vam_call* call, uint32_t nr, void* arg, uint32_t bytes, int again,
                      uint64_t* deadline_ns);
void vam_ctx_free(struct vam_model* m, uint32_t ctx);
void vam_bo_list_free(struct vam_model* m, uint32_t list);

/* ---- fences, jobs, syncobjs
 * --------------------------------------------------------------------------------- */

void vam_fence_ref(struct vam_model* m, uint32_t fence);
void vam_fence_unref(struct vam_model* m, uint32_t fence);
uint32_t vam_fence_new(struct vam_model* m, uint32_t gpu); /* one reference; 0 = table full */
/* Fence of (context handle, ring, seq) of a file: *fence 0 = signalled long ago. -EINVAL never submitted. */
int vam_fence_lookup(const struct vam_model* m, uint32_t file, const struct vam_fence_id* id,
                     uint32_t* fence);
/* Whether every dependency of a job has signalled. */
int vam_job_ready(const struct vam_model* m, uint32_t job);
/* The engine is through with a job: signals its fence (error 0 or negative), drops what it held. The caller
 * then tells who waits on `*fence`, which stays referenced for it (vam_fence_unref when done). */
void vam_job_finish(struct vam_model* m, uint32_t job, int32_t error, uint32_t* fence);
/* Word `i` of a chunk chain, 0 beyond its end. */
uint32_t vam_chain_word(const struct vam_model* m, uint32_t head, uint32_t i);
int vam_chain_push(struct vam_model* m, uint32_t* head, uint32_t* tail, uint32_t word);
void vam_chain_free(struct vam_model* m, uint32_t head);
void vam_syncobj_ref(struct vam_model* m, uint32_t syncobj);
void vam_syncobj_unref(struct vam_model* m, uint32_t syncobj);
/* Puts a fence (0 = already signalled) into a syncobj at `point` (0 = binary). */
int vam_syncobj_set(struct vam_model* m, uint32_t syncobj, uint64_t point, uint32_t fence);
/* The fence to wait for at `point`: 1 found (*fence 0 = signalled), 0 nothing submitted yet. */
int vam_syncobj_get(struct vam_model* m, uint32_t syncobj, uint64_t point, uint32_t* fence);

#ifdef __cplusplus
}
#endif

#endif
