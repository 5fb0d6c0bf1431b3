/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The files of /sys/kernel/debug/vamdgpu, by which user space looks into the machine and meddles (control.h):
 *
 *   control  write: one command, a line of text (below)
 *   debug    read: struct vam_debug of model/debug.h; one read(2) is one moment
 *   model    read: the model as it was at open(2): struct vam_model and its tables, only the used part of
 * each, so that the model's own functions work on the bytes. 64-byte alignment is as in the kernel's. memory
 * ioctl: contents of BOs
 *   changes  poll: readable when something changed in the machine since the last read(2) of this open file,
 * or ever; read: a u64 that counts changes. So whoever waits reads it, looks at the machine, and polls.
 *
 * Commands: numbers in decimal or, with 0x, in hexadecimal; DEVICE is "kfd" or "render"; OP -1 is any.
 *
 *   fault DEVICE NR OP ERRNO SKIP TIMES AFTER    an ioctl fails (struct vam_fault_rule)
 *   fence GPU NUMBER ERRNO                       a fence fails with ERRNO, or, 0, never signals
 *   userptr TIMES                                registrations that fail with EBUSY
 *   rate GPU BYTES                               bytes a second of all its engines, 0 none
 *   lose GPU ANSWERS                             its VRAM, when it has been asked so often (vam_lose_vram())
 *   waves PID WAVES STOPS                        what so many PROCESS_INFOs find (vam_run_kernels())
 *   release                                      fences that hang signal with -ECANCELED
 *   clear                                        no faults any more
 *   forget                                       trace and counts of calls start anew
 *
 * A write gives -EINVAL for what is no command and -ENOSPC when VAM_FAULT_RULES rules are active.
 */
#ifndef VAMDGPU_KERNEL_DEBUG_ABI_H
#define VAMDGPU_KERNEL_DEBUG_ABI_H

#ifdef __KERNEL__
#include <linux/ioctl.h>
#include <linux/types.h>
#else
#include <stdint.h>
#include <sys/ioctl.h>
#endif

#define VAMDGPU_DEBUG_DIRECTORY "vamdgpu"
#define VAMDGPU_MAX_COMMAND 256

/* Moves `bytes` bytes between `buffer` and the BOs at a GPU virtual address of a process; the range may span
 * BOs. gpu_id: the actual one or the user's. -ENOENT: not wholly mapped, or not device memory (userptr); what
 * was moved before the gap stays moved. */
struct vamdgpu_memory {
  int32_t pid;
  uint32_t gpu_id;
  uint64_t va;
  uint64_t buffer;
  uint64_t bytes;
  uint32_t write; /* 1: into the BOs */
  uint32_t pad;
};

#define VAMDGPU_IOC_MEMORY _IOW('V', 1, struct vamdgpu_memory)

#endif
