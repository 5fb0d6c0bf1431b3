/* SPDX-License-Identifier: MIT */
/*
 * BOs, the pools they lie in, and VA mappings. A BO is one contiguous piece of its GPU's VRAM or GTT pool,
 * first fit; BOs without memory of their own (userptr, doorbell, MMIO) take an address of a third pool. A
 * render node's mmap offset is linear in the pool offset, so a CPU map can be traced back to its BO.
 */
#include "model.h"

/* Render-node offsets of different GPUs never meet, so imports between GPUs need no second offset. */
#define VAM_MMAP_BASE 0x100000000ull
#define VAM_MMAP_GPU_SPAN (1ull << 40)

static uint64_t pool_base(const struct vam_model* m, uint32_t gpu, enum vam_pool pool) {
  const struct vamdgpu_gpu_config* config = &m->gpu[gpu].config;
  uint64_t base = VAM_MMAP_BASE + gpu * VAM_MMAP_GPU_SPAN;
  if (pool != VAM_POOL_VRAM) base += config->vram_bytes;
  if (pool == VAM_POOL_NONE) base += config->gtt_bytes;
  return base;
}

static int pool_alloc(struct vam_model* m, uint32_t gpu, enum vam_pool pool, uint64_t size,
                      uint64_t alignment, uint32_t* range) {
  struct vam_gpu* g = &m->gpu[gpu];
  uint32_t hole, piece, rest;
  uint64_t start, end;
  if (size > UINT64_MAX - alignment) return -VAM_ENOMEM;
  hole = vam_range_first_fit(m, g->free_root[pool], size);
  if (hole) {
    start = (VAM_RANGE_AT(m, hole)->start + alignment - 1) & ~(alignment - 1);
    if (start + size > VAM_RANGE_AT(m, hole)->start + VAM_RANGE_AT(m, hole)->size)
      hole = vam_range_first_fit(m, g->free_root[pool], size + alignment - VAM_PAGE);
  }
  if (!hole) return -VAM_ENOMEM;
  piece = vam_take(m, VAM_T_RANGE);
  rest = vam_take(m, VAM_T_RANGE);
  if (!piece || !rest) {
    if (piece) vam_put(m, VAM_T_RANGE, piece);
    if (rest) vam_put(m, VAM_T_RANGE, rest);
    return -VAM_ENOMEM;
  }
  start = (VAM_RANGE_AT(m, hole)->start + alignment - 1) & ~(alignment - 1);
  end = VAM_RANGE_AT(m, hole)->start + VAM_RANGE_AT(m, hole)->size;
  vam_range_erase(m, &g->free_root[pool], hole);
  if (start > VAM_RANGE_AT(m, hole)->start) {
    VAM_RANGE_AT(m, hole)->size = start - VAM_RANGE_AT(m, hole)->start;
    vam_range_insert(m, &g->free_root[pool], hole);
  } else {
    vam_put(m, VAM_T_RANGE, hole);
  }
  if (start + size < end) {
    VAM_RANGE_AT(m, rest)->start = start + size;
    VAM_RANGE_AT(m, rest)->size = end - start - size;
    vam_range_insert(m, &g->free_root[pool], rest);
  } else {
    vam_put(m, VAM_T_RANGE, rest);
  }
  VAM_RANGE_AT(m, piece)->start = start;
  VAM_RANGE_AT(m, piece)->size = size;
  vam_range_insert(m, &g->used_root[pool], piece);
  g->used_bytes[pool] += size;
  *range = piece;
  return 0;
}

static void pool_free(struct vam_model* m, uint32_t gpu, enum vam_pool pool, uint32_t piece) {
  struct vam_gpu* g = &m->gpu[gpu];
  struct vam_range* r = VAM_RANGE_AT(m, piece);
  uint32_t before = 0, after;
  vam_range_erase(m, &g->used_root[pool], piece);
  g->used_bytes[pool] -= r->size;
  if (r->start) before = vam_range_find(m, g->free_root[pool], r->start - 1);
  after = vam_range_find(m, g->free_root[pool], r->start + r->size);
  if (before) {
    vam_range_erase(m, &g->free_root[pool], before);
    r->start = VAM_RANGE_AT(m, before)->start;
    r->size += VAM_RANGE_AT(m, before)->size;
    vam_put(m, VAM_T_RANGE, before);
  }
  if (after) {
    vam_range_erase(m, &g->free_root[pool], after);
    r->size += VAM_RANGE_AT(m, after)->size;
    vam_put(m, VAM_T_RANGE, after);
  }
  r->bo = 0;
  vam_range_insert(m, &g->free_root[pool], piece);
}

uint64_t vam_bo_own_flags(const struct vam_model* m) {
  return m->config.kfd_minor_version >= 17 ? VAM_GEM_WIPE_ON_RELEASE : 0;
}

void vam_bo_touched(struct vam_model* m, uint32_t bo) {
  if (!(VAM_BO_AT(m, bo)->gem_flags & VAM_GEM_CPU_ACCESS)) VAM_BO_AT(m, bo)->gem_flags |= VAM_GEM_CPU_ACCESS;
}

int vam_bo_create(struct vam_model* m, uint32_t gpu, enum vam_pool pool, enum vam_bo_kind kind, uint64_t size,
                  uint64_t alignment, uint32_t* out) {
  struct vam_bo* bo;
  uint64_t place;
  uint32_t index, range;
  int err;
  if (size == 0 || size > (1ull << 46)) return size ? -VAM_ENOMEM : -VAM_EINVAL;
  size = (size + VAM_PAGE - 1) & ~(VAM_PAGE - 1);
  if (alignment > (1ull << 40)) return -VAM_EINVAL;
  alignment = (alignment + VAM_PAGE - 1) & ~(VAM_PAGE - 1);
  place = alignment ? alignment : VAM_PAGE;
  while (place & (place - 1)) place += place & (~place + 1); /* the pools know powers of two alone */
  index = vam_take(m, VAM_T_BO);
  if (!index) return -VAM_ENOMEM;
  err = pool_alloc(m, gpu, pool, size, place, &range);
  if (err) {
    vam_put(m, VAM_T_BO, index);
    return err;
  }
  VAM_RANGE_AT(m, range)->bo = index;
  bo = VAM_BO_AT(m, index);
  bo->size = size;
  bo->alignment = alignment;
  bo->pool_offset = VAM_RANGE_AT(m, range)->start;
  bo->gpu = gpu;
  bo->pool = pool;
  bo->kind = kind;
  bo->domains = pool == VAM_POOL_VRAM  ? VAM_DOMAIN_VRAM
                : pool == VAM_POOL_GTT ? VAM_DOMAIN_GTT
                                       : VAM_DOMAIN_CPU;
  bo->range = range;
  bo->refs = 1;
  bo->serial = ++m->serial;
  *out = index;
  return 0;
}

void (*vam_bo_released)(struct vam_model* m, uint32_t bo);

void vam_bo_ref(struct vam_model* m, uint32_t bo) {
  VAM_BO_AT(m, bo)->refs++;
}

void vam_bo_unref(struct vam_model* m, uint32_t index) {
  struct vam_bo* bo = VAM_BO_AT(m, index);
  if (--bo->refs) return;
  while (bo->maps) vam_vm_unmap_range(m, bo->maps);
  if (vam_bo_released) vam_bo_released(m, index);
  pool_free(m, bo->gpu, bo->pool, bo->range);
  if (bo->metadata) vam_put(m, VAM_T_METADATA, bo->metadata);
  vam_put(m, VAM_T_BO, index);
}

void vam_bo_set_exported(struct vam_model* m, uint32_t index, uint64_t inode) {
  struct vam_bo* bo = VAM_BO_AT(m, index);
  bo->inode = inode;
  if (inode && !bo->exported) {
    bo->exported = 1;
    bo->refs++;
  } else if (!inode && bo->exported) {
    bo->exported = 0;
    vam_bo_unref(m, index);
  }
}

uint64_t vam_pool_mmap_offset(const struct vam_model* m, uint32_t gpu, enum vam_pool pool, uint64_t offset) {
  return pool_base(m, gpu, pool) + offset;
}

uint64_t vam_bo_mmap_offset(const struct vam_model* m, uint32_t index) {
  const struct vam_bo* bo = VAM_BO_AT(m, index);
  return pool_base(m, bo->gpu, bo->pool) + bo->pool_offset;
}

uint32_t vam_bo_at_mmap_offset(const struct vam_model* m, uint64_t offset) {
  uint64_t inside;
  uint32_t range, gpu;
  int pool;
  if (offset < VAM_MMAP_BASE) return 0;
  gpu = (uint32_t)((offset - VAM_MMAP_BASE) / VAM_MMAP_GPU_SPAN);
  if (gpu >= m->num_gpus) return 0;
  for (pool = VAM_POOL_NONE; pool > VAM_POOL_VRAM && offset < pool_base(m, gpu, pool); --pool) {
  }
  inside = offset - pool_base(m, gpu, pool);
  range = vam_range_find(m, m->gpu[gpu].used_root[pool], inside);
  return range && VAM_RANGE_AT(m, range)->start == inside ? VAM_RANGE_AT(m, range)->bo : 0;
}

int vam_handle_get(struct vam_model* m, uint32_t file, uint32_t bo, uint32_t* id) {
  uint32_t h;
  int err;
  for (h = VAM_BO_AT(m, bo)->handles; h; h = VAM_HANDLE_AT(m, h)->next) {
    if (VAM_HANDLE_AT(m, h)->file == file) {
      *id = VAM_HANDLE_AT(m, h)->id;
      return 0;
    }
  }
  h = vam_take(m, VAM_T_HANDLE);
  if (!h) return -VAM_ENOMEM;
  err = vam_idr_add(m, &VAM_FILE_AT(m, file)->gem, 1, VAM_IDR_MAX, h, id);
  if (err) {
    vam_put(m, VAM_T_HANDLE, h);
    return err;
  }
  VAM_HANDLE_AT(m, h)->bo = bo;
  VAM_HANDLE_AT(m, h)->file = file;
  VAM_HANDLE_AT(m, h)->id = *id;
  VAM_HANDLE_AT(m, h)->next = VAM_BO_AT(m, bo)->handles;
  VAM_BO_AT(m, bo)->handles = h;
  vam_bo_ref(m, bo);
  return 0;
}

uint32_t vam_handle_bo(const struct vam_model* m, uint32_t file, uint32_t id) {
  uint32_t h = vam_idr_find(m, &VAM_FILE_AT(m, file)->gem, id);
  return h ? VAM_HANDLE_AT(m, h)->bo : 0;
}

void vam_handle_drop(struct vam_model* m, uint32_t file, uint32_t id) {
  uint32_t h = vam_idr_remove(m, &VAM_FILE_AT(m, file)->gem, id), bo = VAM_HANDLE_AT(m, h)->bo;
  uint32_t* link = &VAM_BO_AT(m, bo)->handles;
  while (*link != h) link = &VAM_HANDLE_AT(m, *link)->next;
  *link = VAM_HANDLE_AT(m, h)->next;
  vam_put(m, VAM_T_HANDLE, h);
  vam_vm_unmap_bo(m, file, bo);
  vam_bo_unref(m, bo);
}

void vam_mem_attach(struct vam_model* m, uint32_t mem, uint32_t bo) {
  VAM_MEM_AT(m, mem)->bo = bo;
  VAM_MEM_AT(m, mem)->bo_next = VAM_BO_AT(m, bo)->mems;
  VAM_BO_AT(m, bo)->mems = mem;
}

void vam_mem_detach(struct vam_model* m, uint32_t mem) {
  uint32_t bo = VAM_MEM_AT(m, mem)->bo;
  uint32_t* link = &VAM_BO_AT(m, bo)->mems;
  while (*link != mem) link = &VAM_MEM_AT(m, *link)->bo_next;
  *link = VAM_MEM_AT(m, mem)->bo_next;
}

int vam_vm_map(struct vam_model* m, uint32_t file, uint64_t va, uint64_t size, uint32_t bo,
               uint64_t bo_offset, uint32_t flags, uint32_t mem) {
  struct vam_file* f = VAM_FILE_AT(m, file);
  struct vam_range* r;
  uint32_t range;
  if (vam_range_overlaps(m, f->vm, va, size)) return -VAM_EINVAL;
  range = vam_take(m, VAM_T_RANGE);
  if (!range) return -VAM_ENOMEM;
  r = VAM_RANGE_AT(m, range);
  r->start = va;
  r->size = size;
  r->bo = bo;
  r->bo_offset = bo_offset;
  r->flags = flags;
  r->mem = mem;
  r->file = file;
  if (bo) {
    r->bo_next = VAM_BO_AT(m, bo)->maps;
    if (r->bo_next) VAM_RANGE_AT(m, r->bo_next)->bo_prev = range;
    VAM_BO_AT(m, bo)->maps = range;
  }
  vam_range_insert(m, &f->vm, range);
  return 0;
}

void vam_vm_unmap_range(struct vam_model* m, uint32_t range) {
  struct vam_range* r = VAM_RANGE_AT(m, range);
  if (r->bo) {
    if (r->bo_prev)
      VAM_RANGE_AT(m, r->bo_prev)->bo_next = r->bo_next;
    else
      VAM_BO_AT(m, r->bo)->maps = r->bo_next;
    if (r->bo_next) VAM_RANGE_AT(m, r->bo_next)->bo_prev = r->bo_prev;
  }
  vam_range_erase(m, &VAM_FILE_AT(m, r->file)->vm, range);
  vam_put(m, VAM_T_RANGE, range);
}

void vam_vm_unmap_bo(struct vam_model* m, uint32_t file, uint32_t bo) {
  uint32_t next;
  for (uint32_t range = VAM_BO_AT(m, bo)->maps; range; range = next) {
    next = VAM_RANGE_AT(m, range)->bo_next;
    if (VAM_RANGE_AT(m, range)->file == file && !VAM_RANGE_AT(m, range)->mem) vam_vm_unmap_range(m, range);
  }
}
