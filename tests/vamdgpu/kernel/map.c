/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * CPU maps of BOs, doorbells and MMIO pages, as TTM and KFD make them: VM_PFNMAP | VM_IO, pages brought in by
 * fault. So nobody can pin them (O_DIRECT and registered buffers get EFAULT). A map keeps its BO, whatever
 * becomes of handles and files.
 */
#include <linux/mm.h>
#include <linux/refcount.h>
#include <linux/slab.h>

#include "compat.h"
#include "core.h"

#define PREFAULT_PAGES 16

/* Pages of a process on a GPU: its doorbell slice, and the page of remapped registers. */
struct vam_doorbells {
  refcount_t refs;
  unsigned int order;
  struct page *slice, *registers;
};

/* What VMAs show: all that fork or munmap made of one mmap share it. */
struct vam_map {
  refcount_t refs;
  struct vam_machine* machine;
  unsigned long first; /* vm_pgoff that shows byte `offset` */
  u64 offset;          /* of the BO */
  u32 bo;              /* 0: pages of `doorbells` */
  struct vam_doorbells* doorbells;
  struct page* page;
};

/* ---- doorbells --------------------------------------------------------------------------------------------
 */

static void doorbells_put(struct vam_doorbells* doorbells) {
  if (!refcount_dec_and_test(&doorbells->refs)) return;
  __free_pages(doorbells->slice, doorbells->order);
  __free_page(doorbells->registers);
  kfree(doorbells);
}

struct vam_doorbells* vam_doorbells_of(struct vam_machine* machine, u32 process, u32 gpu) {
  struct vam_doorbells** slot = &machine->doorbells[process * VAMDGPU_MAX_GPUS + gpu];
  struct vam_doorbells* doorbells = *slot;
  if (doorbells) return doorbells;
  doorbells = kzalloc(sizeof(*doorbells), GFP_KERNEL);
  if (!doorbells) return NULL;
  refcount_set(&doorbells->refs, 1);
  doorbells->order = get_order(machine->model->gpu[gpu].config.doorbell_bytes);
  doorbells->slice = alloc_pages(GFP_KERNEL | __GFP_ZERO, doorbells->order);
  doorbells->registers = alloc_page(GFP_KERNEL | __GFP_ZERO);
  if (!doorbells->slice || !doorbells->registers) {
    if (doorbells->slice) __free_pages(doorbells->slice, doorbells->order);
    if (doorbells->registers) __free_page(doorbells->registers);
    kfree(doorbells);
    return NULL;
  }
  *slot = doorbells;
  return doorbells;
}

void* vam_doorbells_memory(struct vam_doorbells* doorbells) {
  return page_address(doorbells->slice);
}

void vam_doorbells_drop(struct vam_machine* machine, u32 process) {
  for (u32 gpu = 0; gpu < VAMDGPU_MAX_GPUS; ++gpu) {
    struct vam_doorbells** slot = &machine->doorbells[process * VAMDGPU_MAX_GPUS + gpu];
    if (*slot) doorbells_put(*slot);
    *slot = NULL;
  }
}

/* ---- VMAs -------------------------------------------------------------------------------------------------
 */

static void map_put(struct vam_map* map) {
  if (!refcount_dec_and_test(&map->refs)) return;
  if (map->doorbells) doorbells_put(map->doorbells);
  if (map->bo) {
    mutex_lock(&map->machine->lock);
    vam_bo_unref(map->machine->model, map->bo);
    mutex_unlock(&map->machine->lock);
  }
  kfree(map);
}

static void map_opened(struct vm_area_struct* vma) {
  refcount_inc(&((struct vam_map*)vma->vm_private_data)->refs);
}

static void map_closed(struct vm_area_struct* vma) {
  map_put(vma->vm_private_data);
}

/* Brings in the page at `address` of a BO's map. */
static vm_fault_t insert_page(struct vm_area_struct* vma, unsigned long address, unsigned long pgoff) {
  const struct vam_map* map = vma->vm_private_data;
  u64 offset = map->offset + ((u64)(pgoff - map->first) << PAGE_SHIFT);
  struct page* page = vam_bo_page(map->machine, map->bo, offset);
  vm_fault_t result;
  if (IS_ERR(page)) return VM_FAULT_SIGBUS;
  result = vmf_insert_pfn(vma, address, page_to_pfn(page));
  put_page(page); /* the BO has it */
  return result;
}

static vm_fault_t map_fault(struct vm_fault* vmf) {
  struct vm_area_struct* vma = vmf->vma;
  const struct vam_map* map = vma->vm_private_data;
  vm_fault_t result;
  if (!map->bo) return vmf_insert_pfn(vma, vmf->address, page_to_pfn(map->page) + (vmf->pgoff - map->first));
  vam_bo_touched(map->machine->model, map->bo);
  result = insert_page(vma, vmf->address, vmf->pgoff);
  /* The next ones will be wanted too, as TTM thinks. */
  for (unsigned long i = 1; i < PREFAULT_PAGES && result == VM_FAULT_NOPAGE; ++i) {
    if (vmf->address + i * PAGE_SIZE >= vma->vm_end) break;
    if (insert_page(vma, vmf->address + i * PAGE_SIZE, vmf->pgoff + i) != VM_FAULT_NOPAGE) break;
  }
  return result;
}

/* ptrace and /proc/PID/mem may look into a BO's map. */
static int map_access(struct vm_area_struct* vma, unsigned long address, void* buffer, int bytes, int write) {
  const struct vam_map* map = vma->vm_private_data;
  u64 offset = ((u64)(vma->vm_pgoff - map->first) << PAGE_SHIFT) + (address - vma->vm_start);
  u64 left = vma->vm_end - address;
  int err;
  if (!map->bo || bytes <= 0) return -EIO;
  bytes = (int)min_t(u64, bytes, left);
  err = write ? vam_bo_write(map->machine, map->bo, map->offset + offset, buffer, bytes)
              : vam_bo_read(map->machine, map->bo, map->offset + offset, buffer, bytes);
  return err ? err : bytes;
}

static const struct vm_operations_struct map_ops = {
    .open = map_opened,
    .close = map_closed,
    .fault = map_fault,
    .access = map_access,
};

/* Whether a map of this kind may be: a private one may only reserve addresses. */
static int check_kind(struct vm_area_struct* vma) {
  if ((vma->vm_flags & (VM_SHARED | VM_MAYWRITE)) != VM_MAYWRITE) return 0;
  if (vma->vm_flags & (VM_READ | VM_WRITE | VM_EXEC)) return -EINVAL;
  vam_vm_flags_clear(vma, VM_MAYWRITE);
  return 0;
}

static void attach(struct vm_area_struct* vma, struct vam_map* map, unsigned long flags) {
  vma->vm_ops = &map_ops;
  vma->vm_private_data = map;
  vam_vm_flags_set(vma, VM_PFNMAP | VM_IO | VM_DONTEXPAND | VM_DONTDUMP | flags);
}

static struct vam_map* new_map(struct vam_machine* machine, const struct vm_area_struct* vma) {
  struct vam_map* map = kzalloc(sizeof(*map), GFP_KERNEL);
  if (!map) return NULL;
  refcount_set(&map->refs, 1);
  map->machine = machine;
  map->first = vma->vm_pgoff;
  return map;
}

int vam_map_bo(struct vam_machine* machine, u32 bo, u64 offset, struct vm_area_struct* vma) {
  struct vam_map* map;
  int err = check_kind(vma);
  if (err) return err;
  map = new_map(machine, vma);
  if (!map) return -ENOMEM;
  map->bo = bo;
  map->offset = offset;
  mutex_lock(&machine->lock);
  vam_bo_ref(machine->model, bo);
  mutex_unlock(&machine->lock);
  attach(vma, map, 0);
  return 0;
}

int vam_map_file(struct vam_open* open, struct vm_area_struct* vma) {
  struct vam_machine* machine = open->machine;
  struct vam_map_result where;
  struct vam_frame frame;
  struct vam_map* map = new_map(machine, vma);
  unsigned long flags = 0;
  int err;
  if (!map) return -ENOMEM;
  vam_frame_init(&frame, machine, open->file);
  mutex_lock(&machine->lock);
  err = vam_mmap(&frame.call, (u64)vma->vm_pgoff << PAGE_SHIFT, vma->vm_end - vma->vm_start, &where);
  if (!err) err = check_kind(vma);
  if (!err && (where.what == VAM_MAP_POOL || where.what == VAM_MAP_EVENTS)) {
    map->bo = where.bo;
    flags = where.what == VAM_MAP_EVENTS ? VM_DONTCOPY : 0;
    vam_bo_ref(machine->model, map->bo);
  } else if (!err) {
    map->doorbells = vam_doorbells_of(machine, where.process, where.gpu);
    if (map->doorbells) {
      refcount_inc(&map->doorbells->refs);
      map->page = where.what == VAM_MAP_MMIO ? map->doorbells->registers : map->doorbells->slice;
      flags = VM_DONTCOPY;
    } else {
      err = -ENOMEM;
    }
  }
  mutex_unlock(&machine->lock);
  if (err) {
    kfree(map);
    return err;
  }
  attach(vma, map, flags);
  return 0;
}
