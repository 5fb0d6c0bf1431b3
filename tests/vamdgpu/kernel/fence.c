/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Fences as sync_files, syncobjs as descriptors, and eventfds that wait for syncobjs. An active fence has at
 * most one dma_fence, which its end signals; a fence that has ended gets a new, signalled one when asked for.
 */
#include <linux/anon_inodes.h>
#include <linux/dma-fence.h>
#include <linux/fcntl.h>
#include <linux/slab.h>
#include <linux/sync_file.h>

#include "compat.h"
#include "core.h"

/* ---- fences -----------------------------------------------------------------------------------------------
 */

/* Holds the module: a sync_file may outlive every file of ours. */
struct exported_fence {
  struct dma_fence base;
  spinlock_t lock;
  u32 fence; /* in the model, while active */
};

static const char* driver_name(struct dma_fence* fence) {
  return "amdgpu";
}

static const char* timeline_name(struct dma_fence* fence) {
  return "sdma";
}

static void fence_release(struct dma_fence* fence) {
  dma_fence_free(fence);
  module_put(THIS_MODULE);
}

static const struct dma_fence_ops fence_ops = {
    .get_driver_name = driver_name,
    .get_timeline_name = timeline_name,
    .release = fence_release,
};

static struct dma_fence* new_fence(u32 index) {
  struct exported_fence* fence = kzalloc(sizeof(*fence), GFP_KERNEL);
  if (!fence) return NULL;
  __module_get(THIS_MODULE);
  spin_lock_init(&fence->lock);
  fence->fence = index;
  dma_fence_init(&fence->base, &fence_ops, &fence->lock, dma_fence_context_alloc(1), 1);
  return &fence->base;
}

static void signal_with(struct dma_fence* fence, int error) {
  if (error) dma_fence_set_error(fence, error);
  dma_fence_signal(fence);
}

int vam_fence_export(const struct vam_call* call, u32 index, u32* out) {
  struct vam_machine* machine = vam_machine_of(call);
  struct dma_fence* fence;
  struct sync_file* sync;
  int fd;
  if (!index) {
    fence = dma_fence_get_stub();
  } else if (VAM_FENCE_AT(call->model, index)->state == VAM_FENCE_DONE) {
    fence = new_fence(index);
    if (fence) signal_with(fence, VAM_FENCE_AT(call->model, index)->error);
  } else {
    if (!machine->fence[index]) machine->fence[index] = new_fence(index);
    fence = machine->fence[index] ? dma_fence_get(machine->fence[index]) : NULL;
  }
  if (!fence) return -ENOMEM;
  sync = sync_file_create(fence);
  dma_fence_put(fence);
  if (!sync) return -ENOMEM;
  fd = get_unused_fd_flags(O_CLOEXEC);
  if (fd < 0) {
    fput(sync->file);
    return fd;
  }
  fd_install(fd, sync->file);
  *out = (u32)fd;
  return 0;
}

int vam_fence_of_fd(const struct vam_call* call, u32 fd, u32* index, int* error) {
  struct dma_fence* fence = sync_file_get_fence((int)fd);
  int status, err = 0;
  if (!fence) return -EINVAL;
  status = dma_fence_get_status(fence);
  *index = 0;
  *error = status < 0 ? status : 0;
  if (status == 0) {
    if (fence->ops == &fence_ops)
      *index = container_of(fence, struct exported_fence, base)->fence;
    else
      err = -EINVAL;
  }
  dma_fence_put(fence);
  return err;
}

/* ---- syncobjs ---------------------------------------------------------------------------------------------
 */

struct syncobj_file {
  struct vam_machine* machine;
  u32 syncobj;
};

static int syncobj_release(struct inode* inode, struct file* file) {
  struct syncobj_file* syncobj = file->private_data;
  mutex_lock(&syncobj->machine->lock);
  vam_syncobj_unref(syncobj->machine->model, syncobj->syncobj);
  mutex_unlock(&syncobj->machine->lock);
  kfree(syncobj);
  return 0;
}

static const struct file_operations syncobj_fops = {
    .owner = THIS_MODULE,
    .release = syncobj_release,
};

int vam_syncobj_export(const struct vam_call* call, u32 syncobj, u32* out) {
  struct syncobj_file* exported = kzalloc(sizeof(*exported), GFP_KERNEL);
  int fd;
  if (!exported) return -ENOMEM;
  exported->machine = vam_machine_of(call);
  exported->syncobj = syncobj;
  fd = anon_inode_getfd("syncobj_file", &syncobj_fops, exported, O_CLOEXEC);
  if (fd < 0) {
    kfree(exported);
    return fd;
  }
  vam_syncobj_ref(call->model, syncobj);
  *out = (u32)fd;
  return 0;
}

int vam_syncobj_of_fd(const struct vam_call* call, u32 fd, u32* syncobj) {
  struct file* file = fget(fd);
  int err = -EINVAL;
  if (!file) return -EBADF;
  if (file->f_op == &syncobj_fops) {
    *syncobj = ((const struct syncobj_file*)file->private_data)->syncobj;
    err = 0;
  }
  fput(file);
  return err;
}

/* ---- eventfds ---------------------------------------------------------------------------------------------
 */

struct watch {
  struct list_head link;
  struct eventfd_ctx* eventfd;
  u32 syncobj;
  u64 point;
  bool available; /* enough that there is a fence */
};

static bool is_met(struct vam_model* model, const struct watch* watch) {
  u32 fence = 0;
  if (!vam_syncobj_get(model, watch->syncobj, watch->point, &fence)) return false;
  return watch->available || !fence || VAM_FENCE_AT(model, fence)->state == VAM_FENCE_DONE;
}

static void end_watch(struct vam_machine* machine, struct watch* watch) {
  list_del(&watch->link);
  eventfd_ctx_put(watch->eventfd);
  vam_syncobj_unref(machine->model, watch->syncobj);
  kfree(watch);
}

static void look_at_watches(struct vam_machine* machine) {
  struct watch *watch, *next;
  list_for_each_entry_safe(watch, next, &machine->watches, link) {
    if (!is_met(machine->model, watch)) continue;
    vam_eventfd_signal(watch->eventfd);
    end_watch(machine, watch);
  }
}

int vam_watch_eventfd(const struct vam_call* call, u32 syncobj, u64 point, int available, u32 fd) {
  struct vam_machine* machine = vam_machine_of(call);
  struct watch* watch = kzalloc(sizeof(*watch), GFP_KERNEL);
  if (!watch) return -ENOMEM;
  watch->eventfd = eventfd_ctx_fdget((int)fd);
  if (IS_ERR(watch->eventfd)) {
    int err = PTR_ERR(watch->eventfd);
    kfree(watch);
    return err;
  }
  watch->syncobj = syncobj;
  watch->point = point;
  watch->available = available != 0;
  vam_syncobj_ref(machine->model, syncobj);
  list_add_tail(&watch->link, &machine->watches);
  look_at_watches(machine);
  return 0;
}

void vam_watches_destroy(struct vam_machine* machine) {
  struct watch *watch, *next;
  list_for_each_entry_safe(watch, next, &machine->watches, link) end_watch(machine, watch);
}

/* ---- changes ----------------------------------------------------------------------------------------------
 */

void vam_announce(struct vam_machine* machine) {
  atomic_inc(&machine->change);
  wake_up_all(&machine->wait);
}

void vam_changed(struct vam_machine* machine, u32 index) {
  struct dma_fence* fence = index ? machine->fence[index] : NULL;
  if (fence && VAM_FENCE_AT(machine->model, index)->state == VAM_FENCE_DONE) {
    signal_with(fence, VAM_FENCE_AT(machine->model, index)->error);
    machine->fence[index] = NULL;
    dma_fence_put(fence);
  }
  look_at_watches(machine);
  vam_announce(machine);
}

void vam_job_end(struct vam_machine* machine, u32 job, int error) {
  u32 fence = 0;
  vam_job_finish(machine->model, job, error, &fence);
  vam_changed(machine, fence);
  vam_fence_unref(machine->model, fence);
}

void vam_release_hung(struct vam_machine* machine, u32 file) {
  for (u32 i = 1; i < machine->model->table[VAM_T_JOB].high; ++i) {
    const struct vam_job* job = VAM_JOB_AT(machine->model, i);
    if (job->rec.live && job->hung && (file == 0 || job->file == file)) vam_job_end(machine, i, -ECANCELED);
  }
}
