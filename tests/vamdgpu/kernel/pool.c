/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Memory of the GPUs. A pool is as large as the description says and takes no memory until it is written: an
 * index without a page reads as its BO's "fresh" byte, and a page whose bytes are all the same is only a
 * number. Pages live as long as their BO, so a PTE that points at one needs no reference of its own: whoever
 * maps holds the BO. Nothing here takes the machine's lock; callers hold the BO.
 */
#include <linux/highmem.h>
#include <linux/mm.h>
#include <linux/uaccess.h>

#include "core.h"

static struct vam_pool_pages* pool_of(struct vam_machine* machine, const struct vam_bo* bo) {
  return &machine->gpu[bo->gpu].pool[bo->pool];
}

/* The page at `index` with a reference, or NULL: then every byte of it is *byte. */
static struct page* page_to_read(struct vam_machine* machine, u32 index_of_bo, u64 offset, u8* byte) {
  const struct vam_bo* bo = VAM_BO_AT(machine->model, index_of_bo);
  struct vam_pool_pages* pool = pool_of(machine, bo);
  unsigned long index = (bo->pool_offset + offset) >> PAGE_SHIFT;
  struct page* page = NULL;
  void* entry;
  xa_lock(&pool->pages);
  entry = xa_load(&pool->pages, index);
  if (entry && !xa_is_value(entry)) {
    page = entry;
    get_page(page);
  }
  xa_unlock(&pool->pages);
  if (!page) *byte = entry ? (u8)xa_to_value(entry) : machine->bo[index_of_bo].fresh;
  return page;
}

struct page* vam_bo_page(struct vam_machine* machine, u32 index_of_bo, u64 offset) {
  const struct vam_bo* bo = VAM_BO_AT(machine->model, index_of_bo);
  struct vam_pool_pages* pool = pool_of(machine, bo);
  unsigned long index = (bo->pool_offset + offset) >> PAGE_SHIFT;
  for (;;) {
    u8 byte = 0;
    void *before, *entry;
    struct page* page = page_to_read(machine, index_of_bo, offset, &byte);
    if (page) return page;
    entry = xa_load(&pool->pages, index);
    if (entry && !xa_is_value(entry)) continue;
    if (entry) byte = (u8)xa_to_value(entry);
    page = alloc_page(GFP_KERNEL | __GFP_RETRY_MAYFAIL | __GFP_NOWARN);
    if (!page) return ERR_PTR(-ENOMEM);
    memset(page_address(page), byte, PAGE_SIZE);
    get_page(page); /* the caller's, before anybody can find it */
    WRITE_ONCE(machine->bo[index_of_bo].touched, 1);
    before = xa_cmpxchg(&pool->pages, index, entry, page, GFP_KERNEL);
    if (before == entry) return page;
    put_page(page);
    put_page(page);
    if (xa_is_err(before)) return ERR_PTR(xa_err(before));
  }
}

/* Makes a whole page one byte over, without memory for it if it has none. */
static int set_uniform(struct vam_machine* machine, u32 index_of_bo, u64 offset, u8 byte) {
  const struct vam_bo* bo = VAM_BO_AT(machine->model, index_of_bo);
  struct vam_pool_pages* pool = pool_of(machine, bo);
  unsigned long index = (bo->pool_offset + offset) >> PAGE_SHIFT;
  for (;;) {
    u8 now = 0;
    void *before, *entry;
    struct page* page = page_to_read(machine, index_of_bo, offset, &now);
    if (page) {
      memset(page_address(page), byte, PAGE_SIZE);
      put_page(page);
      return 0;
    }
    entry = xa_load(&pool->pages, index);
    if (entry && !xa_is_value(entry)) continue;
    if (!entry && byte == machine->bo[index_of_bo].fresh) return 0;
    WRITE_ONCE(machine->bo[index_of_bo].touched, 1);
    before = xa_cmpxchg(&pool->pages, index, entry, xa_mk_value(byte), GFP_KERNEL);
    if (before == entry) return 0;
    if (xa_is_err(before)) return xa_err(before);
  }
}

static u64 left_in_page(u64 offset, u64 bytes) {
  return min_t(u64, bytes, PAGE_SIZE - offset % PAGE_SIZE);
}

static bool inside(const struct vam_bo* bo, u64 offset, u64 bytes) {
  return bo->pool != VAM_POOL_NONE && offset <= bo->size && bytes <= bo->size - offset;
}

int vam_bo_read(struct vam_machine* machine, u32 bo, u64 offset, void* to, size_t bytes) {
  if (!inside(VAM_BO_AT(machine->model, bo), offset, bytes)) return -EINVAL;
  while (bytes) {
    u64 n = left_in_page(offset, bytes);
    u8 byte = 0;
    struct page* page = page_to_read(machine, bo, offset, &byte);
    if (page) {
      memcpy(to, page_address(page) + offset % PAGE_SIZE, n);
      put_page(page);
    } else {
      memset(to, byte, n);
    }
    to += n;
    offset += n;
    bytes -= n;
  }
  return 0;
}

int vam_bo_write(struct vam_machine* machine, u32 bo, u64 offset, const void* from, size_t bytes) {
  if (!inside(VAM_BO_AT(machine->model, bo), offset, bytes)) return -EINVAL;
  while (bytes) {
    u64 n = left_in_page(offset, bytes);
    struct page* page = vam_bo_page(machine, bo, offset);
    if (IS_ERR(page)) return PTR_ERR(page);
    memcpy(page_address(page) + offset % PAGE_SIZE, from, n);
    put_page(page);
    from += n;
    offset += n;
    bytes -= n;
  }
  return 0;
}

int vam_bo_fill(struct vam_machine* machine, u32 bo, u64 offset, u32 value, u64 bytes) {
  bool uniform = value == (value & 0xff) * 0x01010101u;
  u64 done = 0;
  if (!inside(VAM_BO_AT(machine->model, bo), offset, bytes)) return -EINVAL;
  while (done < bytes) {
    u64 at = offset + done, n = left_in_page(at, bytes - done);
    struct page* page;
    u8* to;
    if (uniform && n == PAGE_SIZE) {
      int err = set_uniform(machine, bo, at, (u8)value);
      if (err) return err;
    } else {
      page = vam_bo_page(machine, bo, at);
      if (IS_ERR(page)) return PTR_ERR(page);
      to = page_address(page) + at % PAGE_SIZE;
      for (u64 i = 0; i < n; ++i) to[i] = (u8)(value >> 8 * ((done + i) % 4));
      put_page(page);
    }
    done += n;
    cond_resched();
  }
  return 0;
}

int vam_bo_copy(struct vam_machine* machine, u32 to, u64 to_offset, u32 from, u64 from_offset, u64 bytes) {
  if (!inside(VAM_BO_AT(machine->model, to), to_offset, bytes) ||
      !inside(VAM_BO_AT(machine->model, from), from_offset, bytes))
    return -EINVAL;
  while (bytes) {
    u64 n = left_in_page(to_offset, left_in_page(from_offset, bytes));
    u8 byte = 0;
    int err = 0;
    struct page* source = page_to_read(machine, from, from_offset, &byte);
    if (!source && n == PAGE_SIZE) {
      err = set_uniform(machine, to, to_offset, byte);
    } else {
      struct page* target = vam_bo_page(machine, to, to_offset);
      if (IS_ERR(target)) {
        err = PTR_ERR(target);
      } else {
        void* at = page_address(target) + to_offset % PAGE_SIZE;
        if (source)
          memmove(at, page_address(source) + from_offset % PAGE_SIZE, n);
        else
          memset(at, byte, n);
        put_page(target);
      }
    }
    if (source) put_page(source);
    if (err) return err;
    to_offset += n;
    from_offset += n;
    bytes -= n;
    cond_resched();
  }
  return 0;
}

/* `bytes` bytes of the same value to current->mm; how many of them could not be written. */
static unsigned long put_uniform(u64 to, u8 byte, u64 bytes) {
  u8 block[256];
  if (!byte) return clear_user(u64_to_user_ptr(to), bytes);
  memset(block, byte, sizeof(block));
  while (bytes) {
    u64 n = min_t(u64, bytes, sizeof(block));
    if (copy_to_user(u64_to_user_ptr(to), block, n)) return bytes;
    to += n;
    bytes -= n;
  }
  return 0;
}

int vam_bo_to_user(struct vam_machine* machine, u64 to, u32 bo, u64 offset, u64 bytes) {
  if (!inside(VAM_BO_AT(machine->model, bo), offset, bytes)) return -EINVAL;
  while (bytes) {
    u64 n = left_in_page(offset, bytes);
    u8 byte = 0;
    unsigned long failed = 0;
    struct page* page = page_to_read(machine, bo, offset, &byte);
    if (page) {
      failed = copy_to_user(u64_to_user_ptr(to), page_address(page) + offset % PAGE_SIZE, n);
      put_page(page);
    } else {
      failed = put_uniform(to, byte, n);
    }
    if (failed) return -EFAULT;
    to += n;
    offset += n;
    bytes -= n;
    cond_resched();
  }
  return 0;
}

int vam_bo_from_user(struct vam_machine* machine, u32 bo, u64 offset, u64 from, u64 bytes) {
  if (!inside(VAM_BO_AT(machine->model, bo), offset, bytes)) return -EINVAL;
  while (bytes) {
    u64 n = left_in_page(offset, bytes);
    unsigned long failed;
    struct page* page = vam_bo_page(machine, bo, offset);
    if (IS_ERR(page)) return PTR_ERR(page);
    failed = copy_from_user(page_address(page) + offset % PAGE_SIZE, u64_to_user_ptr(from), n);
    put_page(page);
    if (failed) return -EFAULT;
    from += n;
    offset += n;
    bytes -= n;
    cond_resched();
  }
  return 0;
}

/* ---- birth and death --------------------------------------------------------------------------------------
 */

static struct vam_machine* pools_owner; /* whose BOs come here; one machine at a time */

/* The model lets go of a BO: so does its memory. Lock held. */
static void bo_released(struct vam_model* model, uint32_t index_of_bo) {
  struct vam_machine* machine = pools_owner;
  const struct vam_bo* bo = VAM_BO_AT(model, index_of_bo);
  struct vam_bo_state* state = &machine->bo[index_of_bo];
  if (bo->pool != VAM_POOL_NONE && state->touched) {
    struct vam_pool_pages* pool = pool_of(machine, bo);
    unsigned long index, first = bo->pool_offset >> PAGE_SHIFT;
    unsigned long last = (bo->pool_offset + bo->size - 1) >> PAGE_SHIFT;
    void* entry;
    xa_for_each_range(&pool->pages, index, entry, first, last) {
      xa_erase(&pool->pages, index);
      if (!xa_is_value(entry)) put_page(entry);
    }
  }
  state->buf = NULL;
  state->touched = 0;
  state->fresh = VAM_FRESH_BYTE;
}

void vam_pools_init(struct vam_machine* machine) {
  for (u32 gpu = 0; gpu < VAMDGPU_MAX_GPUS; ++gpu) {
    for (u32 pool = 0; pool < VAM_POOL_NONE; ++pool) xa_init(&machine->gpu[gpu].pool[pool].pages);
  }
  for (u32 i = 0; i <= machine->model->table[VAM_T_BO].capacity; ++i) machine->bo[i].fresh = VAM_FRESH_BYTE;
  pools_owner = machine;
  vam_bo_released = bo_released;
}

void vam_pools_destroy(struct vam_machine* machine) {
  vam_bo_released = NULL;
  for (u32 gpu = 0; gpu < VAMDGPU_MAX_GPUS; ++gpu) {
    for (u32 pool = 0; pool < VAM_POOL_NONE; ++pool) {
      unsigned long index;
      void* entry;
      xa_for_each(&machine->gpu[gpu].pool[pool].pages, index, entry) {
        if (!xa_is_value(entry)) put_page(entry);
      }
      xa_destroy(&machine->gpu[gpu].pool[pool].pages);
    }
  }
}
