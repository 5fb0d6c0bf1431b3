/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * BOs as dma-bufs. A BO has at most one at a time, which holds the BO; its last descriptor ends it.
 */
#include <linux/dma-buf.h>
#include <linux/fcntl.h>
#include <linux/slab.h>

#include "compat.h"
#include "core.h"

struct buffer {
  struct vam_machine* machine;
  u32 bo;
};

static void buffer_release(struct dma_buf* buf) {
  struct buffer* buffer = buf->priv;
  struct vam_machine* machine = buffer->machine;
  struct vam_bo_state* state = &machine->bo[buffer->bo];
  mutex_lock(&machine->lock);
  if (state->buf == buf) {
    state->buf = NULL;
    vam_bo_set_exported(machine->model, buffer->bo, 0);
  } else { /* another one was made while this one was on its way out */
    vam_bo_unref(machine->model, buffer->bo);
  }
  vam_changed(machine, 0);
  mutex_unlock(&machine->lock);
  kfree(buffer);
}

static int buffer_mmap(struct dma_buf* buf, struct vm_area_struct* vma) {
  struct buffer* buffer = buf->priv;
  return vam_map_bo(buffer->machine, buffer->bo, (u64)vma->vm_pgoff << PAGE_SHIFT, vma);
}

/* Other devices have nothing to do with a GPU that does not exist. */
static struct sg_table* buffer_map(struct dma_buf_attachment* attachment, enum dma_data_direction direction) {
  return ERR_PTR(-EOPNOTSUPP);
}

static void buffer_unmap(struct dma_buf_attachment* attachment, struct sg_table* table,
                         enum dma_data_direction direction) {}

static const struct dma_buf_ops buffer_ops = {
    .map_dma_buf = buffer_map,
    .unmap_dma_buf = buffer_unmap,
    .release = buffer_release,
    .mmap = buffer_mmap,
};

/* Its access is that of who exports it first. */
static struct dma_buf* export(struct vam_machine* machine, u32 bo, u32 access) {
  DEFINE_DMA_BUF_EXPORT_INFO(info);
  struct vam_bo_state* state = &machine->bo[bo];
  struct buffer* buffer = kzalloc(sizeof(*buffer), GFP_KERNEL);
  struct dma_buf* buf;
  if (!buffer) return ERR_PTR(-ENOMEM);
  buffer->machine = machine;
  buffer->bo = bo;
  info.exp_name = "amdgpu";
  info.ops = &buffer_ops;
  info.size = VAM_BO_AT(machine->model, bo)->size;
  info.flags = access;
  info.priv = buffer;
  buf = dma_buf_export(&info);
  if (IS_ERR(buf)) {
    kfree(buffer);
    return buf;
  }
  if (state->buf)
    vam_bo_ref(machine->model, bo);
  else
    vam_bo_set_exported(machine->model, bo, file_inode(buf->file)->i_ino);
  state->buf = buf;
  return buf;
}

int vam_buffer_export(const struct vam_call* call, u32 bo, u32 fd_flags, u32* out) {
  struct vam_machine* machine = vam_machine_of(call);
  struct dma_buf* buf = machine->bo[bo].buf;
  int fd;
  if (!buf || !vam_dma_buf_revive(buf)) buf = export(machine, bo, fd_flags & O_RDWR);
  if (IS_ERR(buf)) return PTR_ERR(buf);
  fd = dma_buf_fd(buf, (int)(fd_flags & O_CLOEXEC));
  if (fd < 0) {
    dma_buf_put(buf);
    return fd;
  }
  *out = (u32)fd;
  return 0;
}

int vam_buffer_of_fd(const struct vam_call* call, u32 fd, u32* bo) {
  struct dma_buf* buf = dma_buf_get((int)fd);
  int err = -EINVAL;
  if (IS_ERR(buf)) return PTR_ERR(buf);
  if (buf->ops == &buffer_ops) {
    *bo = ((const struct buffer*)buf->priv)->bo;
    err = 0;
  }
  dma_buf_put(buf);
  return err;
}
