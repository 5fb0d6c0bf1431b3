/* SPDX-License-Identifier: MIT */
/*
 * What tests do to a machine and see of it, beside the model proper: rules by which ioctls and fences fail,
 * the trace of ioctls, counters. The front keeps it beside the model and touches it under the model's lock
 * only. Nothing here blocks, allocates or calls the OS.
 */
#ifndef VAM_DEBUG_H
#define VAM_DEBUG_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

#define VAM_TRACE_RECORDS 16384u
#define VAM_FAULT_RULES 64u

/* One ioctl, in the order in which they took effect. `device` is an enum vam_file_kind. */
struct vam_trace_record {
  uint64_t sequence; /* from 1; 0 = never written */
  int32_t pid, tid;
  uint8_t device;
  uint8_t injected; /* 1: the result is an injected fault */
  uint16_t nr;
  uint32_t op;    /* operation of CRIU_OP, GEM_VA, CTX, BO_LIST, GEM_OP ...; else 0 */
  int32_t result; /* 0 or -errno */
  uint32_t gpu;
};

/* "The calls `skip`, `skip` + 1 ... of this ioctl fail." */
struct vam_fault_rule {
  uint32_t active;
  uint16_t device; /* enum vam_file_kind */
  uint16_t nr;
  int32_t op;     /* -1: any */
  int32_t error;  /* positive errno */
  uint32_t skip;  /* so many matching calls pass first */
  uint32_t times; /* then so many fail; 0 = all */
  uint32_t after; /* 1: the ioctl is run first, then reported as failed */
  uint32_t pad;
  uint64_t seen, hit;
};

enum vam_fence_fate { VAM_FENCE_RUNS = 0, VAM_FENCE_FAILS = 1, VAM_FENCE_HANGS = 2 };

struct vam_fence_fault {
  uint32_t active;
  uint32_t gpu;
  uint32_t fate;   /* enum vam_fence_fate */
  int32_t error;   /* positive errno, for VAM_FENCE_FAILS */
  uint64_t number; /* which fence of that GPU, counted from 1; 0 = every one */
  uint64_t hit;
};

struct vam_debug {
  uint64_t layout; /* VAM_DEBUG_LAYOUT of who made it: two builds with different layouts do not meet */
  uint64_t trace_count;
  uint64_t calls[3][256]; /* by device and number */
  uint64_t criu_calls[8]; /* by CRIU operation */
  uint64_t old_hits;      /* of rules whose place was given to another */
  uint64_t engine_cpu_ns; /* processor time of all engines so far, and what they did */
  uint64_t engine_bytes;
  uint64_t engine_jobs;
  uint64_t bytes_per_s[VAMDGPU_MAX_GPUS]; /* rate limit of the engines of a GPU together, 0 = none */
  struct vam_fault_rule faults[VAM_FAULT_RULES];
  struct vam_fence_fault fence_faults[VAM_FAULT_RULES];
  char last_fault[160]; /* why the last job failed */
  struct vam_trace_record trace[VAM_TRACE_RECORDS];
};

#define VAM_DEBUG_LAYOUT                                                                 \
  ((uint64_t)sizeof(struct vam_debug) << 40 ^ (uint64_t)sizeof(struct vam_model) << 20 ^ \
   (uint64_t)sizeof(struct vam_bo) << 10 ^ (uint64_t)sizeof(struct vam_job) << 5 ^       \
   sizeof(struct vam_process))

/* `debug` is zero-filled memory. */
void vam_debug_init(struct vam_debug* debug, const struct vamdgpu_machine_config* config);

/* The operation within an ioctl, where it has several: `bytes` bytes of its argument are there. */
uint32_t vam_debug_op(uint32_t device, uint32_t nr, const void* argument, uint32_t bytes);

/* The fate of a call that begins: 0, or the -errno it shall report; *after: once it has taken effect. Counts
 * the call, so ask once a call. */
int vam_debug_fault(struct vam_debug* debug, uint32_t device, uint32_t nr, uint32_t op, int* after);

/* The fate of a fence whose job is through; *error is the negative errno of one that fails. */
enum vam_fence_fate vam_debug_fence(struct vam_debug* debug, uint32_t gpu, uint64_t number, int32_t* error);

/* The piece of a pool that begins at GPU virtual address `va` of process `pid` on the GPU whose id, actual or
 * the user's, is `gpu_id`: which BO, from which byte of it, for how many bytes. -ENOENT: nothing mapped
 * there, or no device memory (userptr). */
int vam_debug_locate(const struct vam_model* m, int32_t pid, uint32_t gpu_id, uint64_t va, uint32_t* bo,
                     uint64_t* offset, uint64_t* bytes);

/* Records what happened; the sequence number is given here. */
void vam_debug_trace(struct vam_debug* debug, const struct vam_trace_record* call);

/* Add a rule; its counters start at 0. -ENOSPC: VAM_FAULT_RULES are active; -EINVAL: no such thing. */
int vam_debug_add_fault(struct vam_debug* debug, const struct vam_fault_rule* rule);
int vam_debug_add_fence_fault(struct vam_debug* debug, const struct vam_fence_fault* fault);
void vam_debug_clear_faults(struct vam_debug* debug); /* hits stay counted */
void vam_debug_clear_trace(struct vam_debug* debug);
uint64_t vam_debug_hits(const struct vam_debug* debug);

#ifdef __cplusplus
}
#endif

#endif
