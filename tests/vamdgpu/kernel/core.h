/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * What the core's files know of each other.
 */
#ifndef VAM_CORE_H
#define VAM_CORE_H

#include <linux/fs.h>
#include <linux/mm_types.h>
#include <linux/module.h>

#include "vam_machine.h"

#define VAM_FRESH_BYTE 0xa5 /* so that nobody takes new memory for zeroes */
#define VAM_DRM_MAJOR 226

/* An open device file: of /dev/kfd the file's private data, of a render node the drm_file's. */
struct vam_open {
  struct vam_machine* machine;
  enum vam_device device;
  u32 file; /* in the model */
  u32 gpu;  /* render nodes */
};

/* One call of the model. */
struct vam_frame {
  struct vam_call call;
  struct vam_machine* machine;
};

/* ---- os.c: the model's view of the calling thread ---- */
extern const struct vam_os vam_kernel_os;
/* The calling thread's identity. */
void vam_frame_init(struct vam_frame* frame, struct vam_machine* machine, u32 file);
/* How the lead thread of a process calls itself in its own pid namespace; 0 when it is gone. */
s32 vam_pid_of_itself(s32 pid);
/* What the calling process calls `pid`, in the initial namespace; 0 when there is none. */
s32 vam_pid_from_caller(s32 pid);
/* The open render node or KFD file behind a descriptor. */
struct vam_open* vam_open_of(struct file* file);

/* Between the kernel's memory and current->mm's, whose mmap_lock is held. -EFAULT. */
int vam_user_copy(void* kernel, u64 user, u64 bytes, bool out);

/* ---- ioctl.c ---- */
long vam_ioctl(struct vam_open* open, unsigned int command, unsigned long argument);
/* Whether the model answers a DRM ioctl itself. */
bool vam_drm_knows(unsigned int command);

/* ---- kfd.c ---- */
int vam_kfd_create(struct vam_machine* machine);
void vam_kfd_destroy(struct vam_machine* machine);
bool vam_is_kfd_file(const struct file* file);
/* The mm of a KFD process, for mmput(); NULL when it is on its way out. Lock held. */
struct mm_struct* vam_process_mm(struct vam_machine* machine, u32 process);

/* ---- drm.c ---- */
int vam_drm_create(struct vam_machine* machine);
void vam_drm_destroy(struct vam_machine* machine);
/* The render file's vam_open, NULL for any other file. */
struct vam_open* vam_render_open_of(struct file* file);

/* ---- pool.c ---- */
void vam_pools_init(struct vam_machine* machine);
void vam_pools_destroy(struct vam_machine* machine);
/* The page of a BO that holds byte `offset`, made if need be, with a reference. ERR_PTR(-ENOMEM). */
struct page* vam_bo_page(struct vam_machine* machine, u32 bo, u64 offset);
int vam_bo_copy(struct vam_machine* machine, u32 to, u64 to_offset, u32 from, u64 from_offset, u64 bytes);
/* Repeats the four bytes of `value`. */
int vam_bo_fill(struct vam_machine* machine, u32 bo, u64 offset, u32 value, u64 bytes);
/* Between a BO and memory of current->mm. -EFAULT. */
int vam_bo_to_user(struct vam_machine* machine, u64 to, u32 bo, u64 offset, u64 bytes);
int vam_bo_from_user(struct vam_machine* machine, u32 bo, u64 offset, u64 from, u64 bytes);

/* ---- map.c ---- */
int vam_map_file(struct vam_open* open, struct vm_area_struct* vma);
/* Maps [offset, ...) of a BO that the caller keeps alive until this returns. */
int vam_map_bo(struct vam_machine* machine, u32 bo, u64 offset, struct vm_area_struct* vma);
/* The doorbell pages of a process on a GPU, made if need be; NULL without memory. Lock held. */
struct vam_doorbells* vam_doorbells_of(struct vam_machine* machine, u32 process, u32 gpu);
void* vam_doorbells_memory(struct vam_doorbells* doorbells);
void vam_doorbells_drop(struct vam_machine* machine, u32 process); /* of every GPU; lock held */

/* ---- buffer.c ---- */
int vam_buffer_export(const struct vam_call* call, u32 bo, u32 fd_flags, u32* fd);
int vam_buffer_of_fd(const struct vam_call* call, u32 fd, u32* bo);

/* ---- fence.c ---- */
int vam_fence_export(const struct vam_call* call, u32 fence, u32* fd);
int vam_fence_of_fd(const struct vam_call* call, u32 fd, u32* fence, int* error);
int vam_syncobj_export(const struct vam_call* call, u32 syncobj, u32* fd);
int vam_syncobj_of_fd(const struct vam_call* call, u32 fd, u32* syncobj);
int vam_watch_eventfd(const struct vam_call* call, u32 syncobj, u64 point, int available, u32 fd);
/* Tells exported files, watches and waiters that fence `fence` (0: some syncobj) changed. Lock held. */
void vam_changed(struct vam_machine* machine, u32 fence);
void vam_watches_destroy(struct vam_machine* machine);

/* ---- engine.c ---- */
int vam_engines_create(struct vam_machine* machine);
void vam_engines_destroy(struct vam_machine* machine);

/* ---- queues.c ---- */
int vam_queues_create(struct vam_machine* machine);
void vam_queues_destroy(struct vam_machine* machine);

static inline struct vam_machine* vam_machine_of(const struct vam_call* call) {
  return ((const struct vam_frame*)call->shim)->machine;
}

#endif
