/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * A virtual machine in the kernel: the device model, its one lock, and what Linux sees of it. One module has
 * one machine, from the description it was loaded with until it is unloaded.
 *
 * Locks, outermost first: an mm's mmap_lock (VMAs are opened and closed below it), vam_machine.lock (the
 * model and everything here without a lock of its own), then a pool's xarray. Who needs the caller's memory
 * under the machine's lock takes mmap_lock first (see ioctl.c). mmput(), fput() of others' files and anything
 * that waits for a program happen outside the lock.
 *
 * Who implements what: description.c, pci.c, topology.c, debugfs.c as named below; everything else is the
 * core (module.c, kfd.c, drm.c, ioctl.c, os.c, pool.c, map.c, buffer.c, fence.c, engine.c).
 */
#ifndef VAM_MACHINE_H
#define VAM_MACHINE_H

#include <linux/atomic.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/rwsem.h>
#include <linux/types.h>
#include <linux/wait.h>
#include <linux/xarray.h>

#include "../model/model.h"

struct class;
struct dentry;
struct device;
struct dma_buf;
struct dma_fence;
struct drm_device;
struct eventfd_ctx;
struct task_struct;
struct vam_description; /* description.c's own */
struct vam_pci;         /* pci.c's own */
struct vam_topology;    /* topology.c's own */
struct vam_control;     /* debugfs.c's own */
struct vam_engine;
struct vam_owner;
struct vam_doorbells;
struct vam_queues;

/* Memory of a GPU: pages by index, allocated when first written. */
struct vam_pool_pages {
  struct xarray pages; /* struct page *, or a value entry: a page whose every byte is that value */
};

/* One GPU as Linux sees it. */
struct vam_gpu_device {
  struct vam_machine* machine;
  u32 index;              /* in the model */
  struct device* parent;  /* the (virtual PCI) device; pci.c's */
  struct drm_device* drm; /* its DRM device: card and render node */
  struct vam_pool_pages pool[VAM_POOL_NONE];
  struct vam_engine* engine;
};

/* What the shim knows of a BO besides the model's record. */
struct vam_bo_state {
  struct dma_buf* buf; /* not referenced: its release clears it */
  u8 fresh;            /* every byte of a page that nobody has written yet */
  u8 touched;          /* some page or value entry exists */
};

struct vam_machine {
  struct vam_model* model;
  struct mutex lock;

  /* Bumped with every change that somebody may wait for; waiters sleep on `wait`. */
  atomic_t change;
  wait_queue_head_t wait;

  /* Held for reading, outside all other locks, while a thread of ours has a program's mm: that program cannot
   * end meanwhile. */
  struct rw_semaphore borrowing;

  u32 num_gpus;
  struct vam_gpu_device gpu[VAMDGPU_MAX_GPUS];

  int kfd_major;
  struct class* kfd_class;
  struct device* kfd; /* "/dev/kfd"; topology.c hangs its kobjects below it */

  struct vam_bo_state* bo;          /* by BO index */
  struct dma_fence** fence;         /* by fence index: the exported dma_fence of an active fence */
  struct vam_owner** owner;         /* by process index */
  struct vam_doorbells** doorbells; /* by process index * VAMDGPU_MAX_GPUS + GPU */
  struct list_head watches;         /* eventfds that wait for syncobjs */
  struct vam_queues* queues;        /* who consumes user queues' packets */

  u64 engine_bytes, engine_jobs; /* done so far */
  u64 engine_busy_ns;            /* time spent doing them, pacing left out */
  char last_fault[160];          /* why the last job failed */

  const struct vam_description* description;
  struct vam_pci* pci;
  struct vam_topology* topology;
  struct vam_control* control;
};

/* ---- the core, for everybody ------------------------------------------------------------------------------
 */

/* Wakes whoever waits for something of the machine. With or without the lock. */
void vam_announce(struct vam_machine* machine);

/* Returns when what programs left behind that had ended before the call is gone: whoever counts wants that
 * first. No lock held. */
void vam_settle(struct vam_machine* machine);

/* Reads or writes `bytes` bytes at `offset` of a BO of a pool (not userptr, doorbell, MMIO). Lock held, or
 * the BO referenced. 0, -ENOMEM (a page that is written for the first time), -EINVAL outside the BO. */
int vam_bo_read(struct vam_machine* machine, u32 bo, u64 offset, void* to, size_t bytes);
int vam_bo_write(struct vam_machine* machine, u32 bo, u64 offset, const void* from, size_t bytes);

/* Ends a job: fence, exported files, whoever waits. Lock held. */
void vam_job_end(struct vam_machine* machine, u32 job, int error);
/* Ends every job that hangs on purpose with -ECANCELED (file 0: of all files). Lock held. */
void vam_release_hung(struct vam_machine* machine, u32 file);

/* Whether the device cgroup of the calling process lets it have the GPU (0), as KFD asks; else -EPERM. */
int vam_gpu_allowed(const struct vam_machine* machine, u32 gpu);

/* ---- description.c ----------------------------------------------------------------------------------------
 */

/* Reads the description file. -ENOENT, -EINVAL ... with a line in the kernel log that says what is wrong. */
int vam_description_read(const char* path, struct vam_description** out);
void vam_description_free(struct vam_description* description);
/* The machine's numbers. kfd_major and the card minors in it are wishes; the core puts what Linux gave into
 * model->config and model->gpu[].config. */
const struct vamdgpu_machine_config* vam_description_config(const struct vam_description* description);

/* ---- pci.c ------------------------------------------------------------------------------------------------
 */

/* Makes the GPUs' devices and sets machine->gpu[].parent, before DRM devices exist; destroy comes after they
 * are gone. */
int vam_pci_create(struct vam_machine* machine, const struct vam_description* description);
void vam_pci_destroy(struct vam_machine* machine);

/* ---- topology.c -------------------------------------------------------------------------------------------
 */

/* Makes "topology" below machine->kfd. Model, DRM devices and kfd device exist. */
int vam_topology_create(struct vam_machine* machine, const struct vam_description* description);
void vam_topology_destroy(struct vam_machine* machine);

/* ---- debugfs.c --------------------------------------------------------------------------------------------
 */

int vam_debugfs_create(struct vam_machine* machine);
void vam_debugfs_destroy(struct vam_machine* machine);

enum vam_device { VAM_DEVICE_KFD = 1, VAM_DEVICE_RENDER = 2 }; /* as in the user-space front's trace */

/* One ioctl on its way. */
struct vam_request {
  enum vam_device device;
  u32 nr, op; /* op: CRIU_OP, GEM_VA, CTX, BO_LIST, GEM_OP, INFO ...: which operation; else 0 */
  u32 gpu;
  s32 pid, tid; /* in the initial namespace */
};

/* All of these with the lock held; none sleeps for long. They work before vam_debugfs_create() and after
 * vam_debugfs_destroy(): no fault, nothing recorded.
 *
 * The fault that an ioctl falls under: 0 none, else the negative errno to report; *after: run it first.
 * Called once per ioctl. */
int vam_fault_for(struct vam_machine* machine, const struct vam_request* request, bool* after);
/* An ioctl took effect (or was refused). */
void vam_trace_add(struct vam_machine* machine, const struct vam_request* request, int result, bool injected);
/* The fate of a GPU's fence: 0 none, 1 it never signals, negative errno: it signals with that. */
int vam_fence_fate(struct vam_machine* machine, u32 gpu, u64 number);
/* Whether this userptr registration fails with -EBUSY. */
bool vam_userptr_busy(struct vam_machine* machine);
/* Rate limit of all engines of a GPU together, bytes a second, 0 = none. Without the lock. */
u64 vam_engine_rate(struct vam_machine* machine, u32 gpu);

#endif
