/* SPDX-License-Identifier: MIT */
/*
 * /dev/kfd: who may call what, and the ordinary ioctls of memory and devices. Queues, events, SVM and CRIU
 * have files of their own.
 */
#include "model.h"

uint32_t vam_pdd_by_user_id(const struct vam_model* m, uint32_t process, uint32_t gpu_id) {
  const struct vam_process* p = VAM_PROCESS_AT(m, process);
  for (uint32_t i = 0; i < m->num_gpus; ++i) {
    if (p->pdd[i].present && p->pdd[i].user_gpu_id == gpu_id) return i + 1;
  }
  return 0;
}

uint32_t vam_gpu_by_id(const struct vam_model* m, uint32_t gpu_id) {
  for (uint32_t i = 0; i < m->num_gpus; ++i) {
    if (m->gpu[i].config.gpu_id == gpu_id) return i + 1;
  }
  return 0;
}

uint32_t vam_num_pdds(const struct vam_model* m, const struct vam_process* p) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < m->num_gpus; ++i) count += p->pdd[i].present;
  return count;
}

uint64_t vam_gpuvm_base(const struct vam_model* m) {
  return m->config.kfd_minor_version < 17 ? 0x4000 : 0x10000;
}

int vam_acquire_vm(struct vam_model* m, uint32_t process, uint32_t gpu, uint32_t file) {
  struct vam_pdd* pdd = &VAM_PROCESS_AT(m, process)->pdd[gpu];
  struct vam_file* f = vam_rec_live(m, VAM_T_FILE, file);
  if (pdd->file) return pdd->file == file ? 0 : -VAM_EBUSY;
  if (!f || f->kind != VAM_FILE_RENDER || f->gpu != gpu || f->process) return -VAM_EINVAL;
  pdd->file = file;
  f->process = process;
  return 0;
}

static int acquire_vm(const struct vam_call* call, uint32_t process, const struct vam_acquire_vm_args* args) {
  uint32_t gpu, file;
  if (call->os->file_of_fd(call, args->drm_fd, &file)) return -VAM_EINVAL;
  gpu = vam_pdd_by_user_id(call->model, process, args->gpu_id);
  if (!gpu) return -VAM_EINVAL;
  return vam_acquire_vm(call->model, process, gpu - 1, file);
}

/* ---- memory
 * --------------------------------------------------------------------------------------------------- */

/* Flags of a KFD BO as a render file sees them. PUBLIC asks for CPU access, which is a hint and not kept. */
static uint64_t gem_flags_of(const struct vam_model* m, uint32_t flags) {
  int since_612 = m->config.kfd_minor_version >= 17;
  uint64_t gem = vam_bo_own_flags(m);
  if (flags & VAM_ALLOC_VRAM)
    gem |=
        VAM_GEM_WIPE_ON_RELEASE |
        (since_612 ? VAM_GEM_VRAM_CLEARED | (flags & VAM_ALLOC_CONTIGUOUS ? VAM_GEM_VRAM_CONTIGUOUS : 0) : 0);
  else if (flags & VAM_ALLOC_USERPTR)
    gem |= VAM_GEM_PREEMPTIBLE;
  if (since_612 && flags & VAM_ALLOC_COHERENT) gem |= VAM_GEM_COHERENT;
  if (since_612 && flags & VAM_ALLOC_EXT_COHERENT) gem |= VAM_GEM_EXT_COHERENT;
  if (since_612 && flags & VAM_ALLOC_UNCACHED) gem |= VAM_GEM_UNCACHED;
  return gem;
}

int vam_kfd_alloc_at(const struct vam_call* call, uint32_t process, uint32_t gpu, uint64_t va, uint64_t size,
                     uint32_t flags, uint64_t user_addr, uint32_t idr_handle, int fixed_handle,
                     uint32_t* out) {
  struct vam_model* m = call->model;
  struct vam_pdd* pdd = &VAM_PROCESS_AT(m, process)->pdd[gpu];
  enum vam_bo_kind kind = VAM_BO_GEM;
  enum vam_pool pool = VAM_POOL_NONE;
  struct vam_mem* mem;
  uint32_t index, bo;
  int err;
  if (flags & VAM_ALLOC_VRAM)
    pool = VAM_POOL_VRAM;
  else if (flags & VAM_ALLOC_GTT)
    pool = VAM_POOL_GTT;
  else if (flags & VAM_ALLOC_USERPTR)
    kind = VAM_BO_USERPTR;
  else if (flags & VAM_ALLOC_DOORBELL)
    kind = VAM_BO_DOORBELL;
  else if (flags & VAM_ALLOC_MMIO)
    kind = VAM_BO_MMIO;
  else
    return -VAM_EINVAL;
  if (flags & VAM_ALLOC_AQL_QUEUE_MEM) size /= 2;
  index = vam_take(m, VAM_T_MEM);
  if (!index) return -VAM_ENOMEM;
  err = vam_bo_create(m, gpu, pool, kind, size, VAM_PAGE, &bo);
  if (err) goto no_bo;
  if (fixed_handle) {
    err = vam_idr_add_at(m, &pdd->mems, idr_handle, index);
    if (err) err = -VAM_ENOMEM;
  } else {
    err = vam_idr_add(m, &pdd->mems, 0, VAM_IDR_MAX, index, &idr_handle);
  }
  if (err) goto no_handle;
  VAM_BO_AT(m, bo)->user_addr = kind == VAM_BO_USERPTR ? user_addr : 0;
  VAM_BO_AT(m, bo)->gem_flags = gem_flags_of(m, flags);
  VAM_BO_AT(m, bo)->kfd_flags = flags;
  VAM_BO_AT(m, bo)->owner_pid = VAM_PROCESS_AT(m, process)->pid;
  mem = VAM_MEM_AT(m, index);
  mem->va = va;
  mem->size = VAM_BO_AT(m, bo)->size;
  mem->user_addr = VAM_BO_AT(m, bo)->user_addr;
  mem->process = process;
  mem->gpu = gpu;
  mem->handle = idr_handle;
  vam_mem_attach(m, index, bo);
  mem->flags = flags;
  *out = index;
  return 0;
no_handle:
  vam_bo_unref(m, bo);
no_bo:
  vam_put(m, VAM_T_MEM, index);
  return err;
}

void vam_mem_free(struct vam_model* m, uint32_t index) {
  struct vam_mem* mem = VAM_MEM_AT(m, index);
  vam_idr_remove(m, &VAM_PROCESS_AT(m, mem->process)->pdd[mem->gpu].mems, mem->handle);
  vam_mem_detach(m, index);
  if (mem->ipc) vam_ipc_unref(m, mem->ipc);
  vam_bo_unref(m, mem->bo);
  vam_put(m, VAM_T_MEM, index);
}

int vam_kfd_import_at(struct vam_model* m, uint32_t process, uint32_t gpu, uint32_t bo, uint64_t va,
                      uint32_t idr_handle, int fixed_handle, uint32_t* out) {
  struct vam_pdd* pdd = &VAM_PROCESS_AT(m, process)->pdd[gpu];
  const struct vam_bo* b = VAM_BO_AT(m, bo);
  struct vam_mem* mem;
  uint32_t index;
  int err;
  if (b->pool == VAM_POOL_NONE) return -VAM_EINVAL;
  index = vam_take(m, VAM_T_MEM);
  if (!index) return -VAM_ENOMEM;
  err = fixed_handle ? vam_idr_add_at(m, &pdd->mems, idr_handle, index)
                     : vam_idr_add(m, &pdd->mems, 0, VAM_IDR_MAX, index, &idr_handle);
  if (err) {
    vam_put(m, VAM_T_MEM, index);
    return -VAM_ENOMEM;
  }
  vam_bo_ref(m, bo);
  mem = VAM_MEM_AT(m, index);
  mem->va = va;
  mem->size = b->size;
  mem->process = process;
  mem->gpu = gpu;
  mem->handle = idr_handle;
  vam_mem_attach(m, index, bo);
  mem->imported = 1;
  mem->flags =
      (b->pool == VAM_POOL_VRAM ? VAM_ALLOC_VRAM : VAM_ALLOC_GTT) | VAM_ALLOC_WRITABLE | VAM_ALLOC_EXECUTABLE;
  /* AMD's own driver copies the allocator's. */
  if (m->config.out_of_tree && b->kfd_flags) mem->flags = b->kfd_flags;
  *out = index;
  return 0;
}

static uint64_t user_handle(const struct vam_model* m, const struct vam_mem* mem) {
  return (uint64_t)VAM_PROCESS_AT(m, mem->process)->pdd[mem->gpu].user_gpu_id << 32 | mem->handle;
}

static int alloc_memory(const struct vam_call* call, uint32_t process, struct vam_alloc_memory_args* args) {
  struct vam_model* m = call->model;
  const struct vamdgpu_gpu_config* config;
  uint64_t user_addr = 0;
  uint32_t gpu, mem;
  int err;
  if (args->size == 0) return -VAM_EINVAL;
  if (vam_svm_overlaps(m, process, args->va, args->size)) return -VAM_EADDRINUSE;
  if ((args->flags & VAM_ALLOC_USERPTR) && !(args->flags & (VAM_ALLOC_VRAM | VAM_ALLOC_GTT))) {
    if (args->mmap_offset == 0) return -VAM_EINVAL;
    user_addr = args->mmap_offset;
  }
  gpu = vam_pdd_by_user_id(m, process, args->gpu_id);
  if (!gpu) return -VAM_EINVAL;
  config = &m->gpu[--gpu].config;
  if ((args->flags & VAM_ALLOC_PUBLIC) && (args->flags & VAM_ALLOC_VRAM) && !config->vram_public)
    return -VAM_EINVAL;
  if (!VAM_PROCESS_AT(m, process)->pdd[gpu].file) return -VAM_ENODEV;
  if (!(args->flags & (VAM_ALLOC_VRAM | VAM_ALLOC_GTT | VAM_ALLOC_USERPTR))) {
    if ((args->flags & VAM_ALLOC_DOORBELL) && args->size != config->doorbell_bytes) return -VAM_EINVAL;
    if (!(args->flags & VAM_ALLOC_DOORBELL) && (args->flags & VAM_ALLOC_MMIO) && args->size != VAM_PAGE)
      return -VAM_EINVAL;
  }
  if (user_addr) {
    /* Not of a page: the driver takes the pages that it lies in. */
    uint64_t first = user_addr & ~(VAM_PAGE - 1);
    err = call->os->user_range(call, first, (args->size + VAM_PAGE - 1) & ~(VAM_PAGE - 1), 0);
    if (err) return err;
  }
  err = vam_kfd_alloc_at(call, process, gpu, args->va, args->size, args->flags, user_addr, 0, 0, &mem);
  if (err) return err;
  args->handle = user_handle(m, VAM_MEM_AT(m, mem));
  if (VAM_BO_AT(m, VAM_MEM_AT(m, mem)->bo)->kind == VAM_BO_MMIO)
    args->mmap_offset = VAM_MMAP_MMIO | (uint64_t)args->gpu_id << VAM_MMAP_GPU_SHIFT;
  else if (!user_addr)
    args->mmap_offset = vam_bo_mmap_offset(m, VAM_MEM_AT(m, mem)->bo);
  return 0;
}

/* The memory object of a KFD handle. -EINVAL unknown GPU; *mem 0 unknown handle. */
static int mem_of_handle(const struct vam_call* call, uint32_t process, uint64_t handle, uint32_t* mem) {
  uint32_t gpu = vam_pdd_by_user_id(call->model, process, (uint32_t)(handle >> 32));
  if (!gpu) return -VAM_EINVAL;
  *mem =
      vam_idr_find(call->model, &VAM_PROCESS_AT(call->model, process)->pdd[gpu - 1].mems, (uint32_t)handle);
  return 0;
}

static int free_memory(const struct vam_call* call, uint32_t process,
                       const struct vam_free_memory_args* args) {
  uint32_t mem;
  int err = mem_of_handle(call, process, args->handle, &mem);
  if (err) return err;
  if (!mem) return -VAM_EINVAL;
  if (VAM_PROCESS_AT(call->model, process)->event_page_mem == mem) return -VAM_EPERM;
  if (VAM_MEM_AT(call->model, mem)->mapped) return -VAM_EBUSY;
  vam_mem_free(call->model, mem);
  return 0;
}

int vam_kfd_map_mem(struct vam_model* m, uint32_t index, uint32_t gpu) {
  struct vam_mem* mem = VAM_MEM_AT(m, index);
  uint32_t file = VAM_PROCESS_AT(m, mem->process)->pdd[gpu].file, flags = VAM_VM_READABLE;
  int err;
  if (!file) return -VAM_ENODEV;
  if (mem->mapped >> gpu & 1) return 0;
  if ((mem->flags & VAM_ALLOC_WRITABLE) || mem->imported) flags |= VAM_VM_WRITEABLE;
  if (mem->va % VAM_PAGE) return -VAM_EINVAL;
  if (m->config.kfd_minor_version < 17 && mem->va < vam_gpuvm_base(m)) return -VAM_EINVAL;
  err = vam_vm_map(m, file, mem->va, mem->size, mem->bo, 0, flags, index);
  if (!err) mem->mapped |= 1u << gpu;
  return err;
}

static int unmap_mem(struct vam_model* m, uint32_t index, uint32_t gpu) {
  struct vam_mem* mem = VAM_MEM_AT(m, index);
  uint32_t file = VAM_PROCESS_AT(m, mem->process)->pdd[gpu].file, range;
  if (!(mem->mapped >> gpu & 1)) return -VAM_EINVAL;
  if (vam_queue_uses(m, mem->process, gpu, mem->va, mem->size)) return -VAM_EBUSY;
  mem->mapped &= ~(1u << gpu);
  /* GEM_VA on the compute VM may have taken it away already. */
  range = vam_range_find(m, VAM_FILE_AT(m, file)->vm, mem->va);
  if (range && VAM_RANGE_AT(m, range)->mem == index) vam_vm_unmap_range(m, range);
  return 0;
}

static int map_memory(const struct vam_call* call, uint32_t process, struct vam_map_memory_args* args,
                      int map) {
  struct vam_model* m = call->model;
  uint32_t mem, gpu, ids;
  int err;
  if (args->n_devices == 0 || args->n_success > args->n_devices) return -VAM_EINVAL;
  for (ids = args->n_success; ids < args->n_devices; ++ids) { /* the kernel copies the array first */
    uint32_t id;
    if (call->os->copy_in(call, &id, args->device_ids + 4ull * ids, 4)) return -VAM_EFAULT;
  }
  err = mem_of_handle(call, process, args->handle, &mem);
  if (err) return err;
  if (!VAM_PROCESS_AT(m, process)
           ->pdd[vam_pdd_by_user_id(m, process, (uint32_t)(args->handle >> 32)) - 1]
           .file)
    return -VAM_ENODEV;
  if (!mem) return -VAM_ENOMEM;
  while (args->n_success < args->n_devices) {
    uint32_t id;
    if (call->os->copy_in(call, &id, args->device_ids + 4ull * args->n_success, 4)) return -VAM_EFAULT;
    gpu = vam_pdd_by_user_id(m, process, id);
    if (!gpu) return -VAM_EINVAL;
    if (!VAM_PROCESS_AT(m, process)->pdd[gpu - 1].file) return -VAM_ENODEV;
    err = map ? vam_kfd_map_mem(m, mem, gpu - 1) : unmap_mem(m, mem, gpu - 1);
    if (err) return err;
    args->n_success++;
  }
  return 0;
}

/* ---- dma-bufs
 * -------------------------------------------------------------------------------------------------- */

static int export_dmabuf(const struct vam_call* call, uint32_t process, struct vam_export_dmabuf_args* args) {
  struct vam_model* m = call->model;
  uint32_t gpu = vam_gpu_by_id(m, (uint32_t)(args->handle >> 32)),
           mem; /* the actual id: as the kernel does */
  uint32_t access;
  if (!gpu) return -VAM_EINVAL;
  mem = vam_idr_find(m, &VAM_PROCESS_AT(m, process)->pdd[gpu - 1].mems, (uint32_t)args->handle);
  if (!mem) return -VAM_EINVAL;
  if (VAM_BO_AT(m, VAM_MEM_AT(m, mem)->bo)->pool == VAM_POOL_NONE) return -VAM_EPERM;
  access = VAM_MEM_AT(m, mem)->flags & VAM_ALLOC_WRITABLE ? 2 : 0; /* O_RDWR */
  return call->os->export_bo(call, VAM_MEM_AT(m, mem)->bo, args->flags | access, &args->dmabuf_fd);
}

static int import_dmabuf(const struct vam_call* call, uint32_t process, struct vam_import_dmabuf_args* args) {
  struct vam_model* m = call->model;
  uint32_t bo, gpu = vam_pdd_by_user_id(m, process, args->gpu_id), mem;
  int err;
  /* Linux 6.1 looks at the descriptor first. */
  err = m->config.kfd_minor_version < 17 ? call->os->bo_of_fd(call, args->dmabuf_fd, &bo) : 0;
  if (err) return err;
  if (!gpu) return -VAM_EINVAL;
  if (!VAM_PROCESS_AT(m, process)->pdd[--gpu].file) return -VAM_ENODEV;
  err = call->os->bo_of_fd(call, args->dmabuf_fd, &bo);
  if (err) return err;
  err = vam_kfd_import_at(m, process, gpu, bo, args->va, 0, 0, &mem);
  if (err) return err;
  args->handle = user_handle(m, VAM_MEM_AT(m, mem));
  return 0;
}

static int dmabuf_info(const struct vam_call* call, struct vam_dmabuf_info_args* args) {
  const struct vam_model* m = call->model;
  const struct vam_bo* bo;
  const struct vam_metadata* metadata = 0;
  uint32_t index, bytes = 0;
  if (call->os->bo_of_fd(call, args->dmabuf_fd, &index)) return -VAM_EINVAL;
  bo = VAM_BO_AT(m, index);
  if (bo->pool == VAM_POOL_NONE) return -VAM_EINVAL;
  if (bo->metadata) metadata = VAM_AT(m, VAM_T_METADATA, vam_metadata, bo->metadata);
  if (metadata) bytes = metadata->bytes;
  /* Since Linux 6.12 it must fit even where no buffer was given. */
  if (bytes > args->metadata_size && (args->metadata || m->config.kfd_minor_version >= 17))
    return -VAM_EINVAL;
  if (args->metadata && bytes && call->os->copy_out(call, args->metadata, metadata->data, bytes))
    return -VAM_EFAULT;
  args->size = bo->size;
  if (args->metadata || m->config.kfd_minor_version >= 17) args->metadata_size = bytes;
  args->gpu_id = m->gpu[bo->gpu].config.gpu_id;
  args->flags = bo->pool == VAM_POOL_VRAM ? VAM_ALLOC_VRAM : VAM_ALLOC_GTT;
  if (bo->gem_flags & VAM_GEM_CPU_ACCESS) args->flags |= VAM_ALLOC_PUBLIC;
  return 0;
}

/* ---- the rest
 * ---------------------------------------------------------------------------------------------------- */

static void apertures_of(const struct vam_model* m, uint32_t gpu, struct vam_apertures* a) {
  memset(a, 0, sizeof(*a));
  a->lds_base = 1ull << 48;
  a->lds_limit = a->lds_base | 0xffffffffu;
  a->scratch_base = 2ull << 48;
  a->scratch_limit = a->scratch_base | 0xffffffffu;
  a->gpuvm_base = vam_gpuvm_base(m);
  a->gpuvm_limit = 0x00007fffffffffffull;
  a->gpu_id = m->gpu[gpu].config.gpu_id;
}

static int apertures_old(const struct vam_call* call, uint32_t process, struct vam_get_apertures_args* args) {
  const struct vam_process* p = VAM_PROCESS_AT(call->model, process);
  args->num_nodes = 0;
  for (uint32_t i = 0; i < call->model->num_gpus && args->num_nodes < 7; ++i) {
    if (p->pdd[i].present) apertures_of(call->model, i, &args->apertures[args->num_nodes++]);
  }
  return 0;
}

static int apertures_new(const struct vam_call* call, uint32_t process,
                         struct vam_get_apertures_new_args* args) {
  const struct vam_model* m = call->model;
  uint32_t count = args->num_nodes, done = 0;
  if (count == 0) {
    args->num_nodes = vam_num_pdds(m, VAM_PROCESS_AT(m, process));
    return 0;
  }
  /* Topology nodes: the GPUs and at least one CPU. Linux 6.1 gives what there is. */
  if (count > m->num_gpus + 1 && m->config.kfd_minor_version >= 17) return -VAM_EINVAL;
  for (uint32_t i = 0; i < m->num_gpus && done < count; ++i) {
    struct vam_apertures a;
    if (!VAM_PROCESS_AT(m, process)->pdd[i].present) continue;
    apertures_of(m, i, &a);
    if (call->os->copy_out(call, args->apertures + done++ * sizeof(a), &a, sizeof(a))) return -VAM_EFAULT;
  }
  args->num_nodes = done;
  return 0;
}

static int device_setting(const struct vam_call* call, uint32_t process, uint32_t nr, const void* arg) {
  const struct vam_trap_handler_args* trap = arg;
  const struct vam_scratch_args* scratch = arg;
  const struct vam_memory_policy_args* policy = arg;
  uint32_t id, gpu;
  struct vam_pdd* pdd;
  id = nr == VAM_KFD_SET_TRAP_HANDLER         ? trap->gpu_id
       : nr == VAM_KFD_SET_SCRATCH_BACKING_VA ? scratch->gpu_id
                                              : policy->gpu_id;
  if (nr == VAM_KFD_SET_MEMORY_POLICY && (policy->default_policy > 1 || policy->alternate_policy > 1))
    return -VAM_EINVAL;
  gpu = vam_pdd_by_user_id(call->model, process, id);
  if (!gpu) return -VAM_EINVAL;
  pdd = &VAM_PROCESS_AT(call->model, process)->pdd[gpu - 1];
  if (!pdd->file) return nr == VAM_KFD_SET_SCRATCH_BACKING_VA ? -VAM_ENODEV : -VAM_ESRCH;
  if (nr == VAM_KFD_SET_TRAP_HANDLER) {
    pdd->tba = trap->tba;
    pdd->tma = trap->tma;
  } else if (nr == VAM_KFD_SET_SCRATCH_BACKING_VA) {
    pdd->scratch_va = scratch->va;
  }
  return 0;
}

static int clock_counters(const struct vam_call* call, uint32_t process,
                          struct vam_clock_counters_args* args) {
  args->cpu = call->os->now_ns(call, 0);
  args->system = call->os->now_ns(call, 1);
  args->frequency = 1000000000;
  args->gpu = vam_pdd_by_user_id(call->model, process, args->gpu_id) ? args->cpu / 10 : 0;
  return 0;
}

static int tile_config(const struct vam_call* call, uint32_t process, struct vam_tile_config_args* args) {
  if (!vam_pdd_by_user_id(call->model, process, args->gpu_id)) return -VAM_EINVAL;
  args->num_tile = args->num_macro_tile = 0;
  args->gb_addr_config = args->num_banks = args->num_ranks = 0;
  return 0;
}

static int available_memory(const struct vam_call* call, uint32_t process,
                            struct vam_available_memory_args* args) {
  uint32_t gpu = vam_pdd_by_user_id(call->model, process, args->gpu_id);
  const struct vam_gpu* g;
  if (!gpu) return -VAM_EINVAL;
  g = &call->model->gpu[gpu - 1];
  args->available = g->config.vram_bytes - g->used_bytes[VAM_POOL_VRAM];
  return 0;
}

static int xnack_mode(const struct vam_model* m, struct vam_process* p, struct vam_xnack_args* args) {
  if (args->enabled < 0) {
    args->enabled = (int32_t)p->xnack;
    return 0;
  }
  if (p->num_queues) return -VAM_EBUSY;
  if (args->enabled && m->config.kfd_minor_version < 23) return -VAM_EPERM; /* Debian's builds cannot */
  p->xnack = args->enabled != 0;
  return 0;
}

/* The language runtime announces itself to a debugger: once, and before the first queue. */
static int runtime_enable(struct vam_process* p, const struct vam_runtime_enable_args* args) {
  if (!(args->mode_mask & VAM_RUNTIME_ENABLE)) {
    p->runtime_enabled = 0;
    return 0;
  }
  if (p->runtime_enabled) return -VAM_EBUSY;
  if (p->num_queues) return -VAM_EEXIST;
  p->runtime_enabled = 1;
  return 0;
}

/* Debugging can be switched on and off, and asked for events, of which there are none. */
static int debug_trap(const struct vam_call* call, uint32_t process, const struct vam_debug_trap_args* args) {
  uint32_t target = vam_find_process(call->model, args->pid, 0);
  struct vam_process* p;
  if (!target) return -VAM_ESRCH;
  p = VAM_PROCESS_AT(call->model, target);
  if (target != process && args->op != VAM_DEBUG_TRAP_DISABLE && !call->os->traces(call, p->pid))
    return -VAM_EPERM;
  if (args->op != VAM_DEBUG_TRAP_ENABLE && !p->debugged) return -VAM_EINVAL;
  switch (args->op) {
    case VAM_DEBUG_TRAP_ENABLE:
      if (p->debugged) return -VAM_EALREADY;
      p->debugged = 1;
      return 0;
    case VAM_DEBUG_TRAP_DISABLE:
      p->debugged = 0;
      return 0;
    case VAM_DEBUG_TRAP_QUERY_DEBUG_EVENT:
      return -VAM_EAGAIN;
    default:
      return -VAM_EPERM; /* what works on the hardware */
  }
}

/* ---- dispatch
 * ------------------------------------------------------------------------------------------------------ */

static uint32_t command_end(const struct vam_model* m) {
  uint32_t minor = m->config.kfd_minor_version;
  if (minor < 12) return 0x24;
  if (minor < 13) return 0x25; /* EXPORT_DMABUF */
  return minor < 23 ? 0x27 : 0x29;
}

int vam_kfd_arg_bytes(const struct vam_model* m, uint32_t nr) {
  static const uint16_t bytes[0x29] = {0,  8,  96, 8,  32, 40, 400, 24, 32, 8,  8,  8,  24, 8,
                                       8,  16, 16, 16, 40, 24, 16,  8,  40, 8,  24, 24, 16, 24,
                                       32, 24, 16, 8,  24, 4,  56,  16, 16, 16, 32, 0,  16};
  if (m->config.out_of_tree && nr == VAM_KFD_IPC_IMPORT_HANDLE) return sizeof(struct vam_ipc_import_args);
  if (m->config.out_of_tree && nr == VAM_KFD_IPC_EXPORT_HANDLE) return sizeof(struct vam_ipc_export_args);
  return nr == 0 || nr >= command_end(m) ? -1 : bytes[nr];
}

int vam_kfd_unknown(const struct vam_model* m) {
  return m->config.out_of_tree ? -VAM_EINVAL : -VAM_ENOTTY;
}

/* Ownership comes before capability, as in the kernel. */
static int may_call(const struct vam_call* call, uint32_t nr, uint32_t process) {
  const struct vam_process* p = VAM_PROCESS_AT(call->model, process);
  int owner = !p->dead && p->pid == call->pid && p->start_time == call->start_time;
  if (!owner && (p->dead || nr != VAM_KFD_CRIU_OP || !call->os->traces(call, p->pid))) return -VAM_EBADF;
  if (nr == VAM_KFD_CRIU_OP && !call->os->capable(call)) return -VAM_EACCES;
  return 0;
}

int vam_kfd_ioctl(const struct vam_call* call, uint32_t nr, void* arg, uint32_t bytes, int again,
                  uint64_t* deadline_ns) {
  struct vam_model* m = call->model;
  uint32_t process = VAM_FILE_AT(m, call->file)->process;
  int err;
  if (vam_kfd_arg_bytes(m, nr) < 0) return vam_kfd_unknown(m);
  err = may_call(call, nr, process);
  if (err) return err;
  switch (nr) {
    case VAM_KFD_GET_VERSION:
      ((struct vam_get_version_args*)arg)->major = 1;
      ((struct vam_get_version_args*)arg)->minor = m->config.kfd_minor_version;
      return 0;
    case VAM_KFD_CREATE_QUEUE:
    case VAM_KFD_DESTROY_QUEUE:
    case VAM_KFD_UPDATE_QUEUE:
    case VAM_KFD_SET_CU_MASK:
    case VAM_KFD_GET_QUEUE_WAVE_STATE:
    case VAM_KFD_ALLOC_QUEUE_GWS:
      return vam_queue_ioctl(call, nr, arg);
    case VAM_KFD_CREATE_EVENT:
    case VAM_KFD_DESTROY_EVENT:
    case VAM_KFD_SET_EVENT:
    case VAM_KFD_RESET_EVENT:
    case VAM_KFD_WAIT_EVENTS:
      return vam_event_ioctl(call, nr, arg, again, deadline_ns);
    case VAM_KFD_SET_MEMORY_POLICY:
    case VAM_KFD_SET_SCRATCH_BACKING_VA:
    case VAM_KFD_SET_TRAP_HANDLER:
      return device_setting(call, process, nr, arg);
    case VAM_KFD_GET_CLOCK_COUNTERS:
      return clock_counters(call, process, arg);
    case VAM_KFD_GET_TILE_CONFIG:
      return tile_config(call, process, arg);
    case VAM_KFD_GET_PROCESS_APERTURES:
      return apertures_old(call, process, arg);
    case VAM_KFD_GET_PROCESS_APERTURES_NEW:
      return apertures_new(call, process, arg);
    case VAM_KFD_ACQUIRE_VM:
      return acquire_vm(call, process, arg);
    case VAM_KFD_ALLOC_MEMORY:
      return alloc_memory(call, process, arg);
    case VAM_KFD_FREE_MEMORY:
      return free_memory(call, process, arg);
    case VAM_KFD_MAP_MEMORY:
      return map_memory(call, process, arg, 1);
    case VAM_KFD_UNMAP_MEMORY:
      return map_memory(call, process, arg, 0);
    case VAM_KFD_GET_DMABUF_INFO:
      return dmabuf_info(call, arg);
    case VAM_KFD_IMPORT_DMABUF:
      return import_dmabuf(call, process, arg);
    case VAM_KFD_EXPORT_DMABUF:
      return export_dmabuf(call, process, arg);
    case VAM_KFD_AVAILABLE_MEMORY:
      return available_memory(call, process, arg);
    case VAM_KFD_IPC_IMPORT_HANDLE:
      return vam_ipc_import(call, process, arg);
    case VAM_KFD_IPC_EXPORT_HANDLE:
      return vam_ipc_export(call, process, arg);
    case VAM_KFD_SVM:
      return vam_svm_ioctl(call, arg, bytes);
    case VAM_KFD_SET_XNACK_MODE:
      return xnack_mode(m, VAM_PROCESS_AT(m, process), arg);
    case VAM_KFD_CRIU_OP:
      return vam_kfd_criu(call, arg);
    case VAM_KFD_DBG_REGISTER:
    case VAM_KFD_DBG_UNREGISTER:
    case VAM_KFD_DBG_ADDRESS_WATCH:
    case VAM_KFD_DBG_WAVE_CONTROL:
      return -VAM_EPERM;
    case VAM_KFD_RUNTIME_ENABLE:
      return runtime_enable(VAM_PROCESS_AT(m, process), arg);
    case VAM_KFD_DBG_TRAP:
      return debug_trap(call, process, arg);
    case VAM_KFD_SMI_EVENTS:
    case VAM_KFD_CREATE_PROCESS:
    case VAM_KFD_PROFILER:
      return -VAM_EINVAL; /* no event stream, no second context on this machine */
    default:
      return -VAM_ENOTTY;
  }
}

/* ---- mmap
 * ------------------------------------------------------------------------------------------------------------
 */

static int map_kfd(const struct vam_call* call, uint64_t offset, uint64_t length,
                   struct vam_map_result* out) {
  const struct vam_model* m = call->model;
  uint32_t process = VAM_FILE_AT(m, call->file)->process;
  const struct vam_process* p = VAM_PROCESS_AT(m, process);
  uint32_t gpu = vam_gpu_by_id(m, (uint32_t)((offset & VAM_MMAP_GPU_MASK) >> VAM_MMAP_GPU_SHIFT));
  if (p->dead || p->pid != call->pid || p->start_time != call->start_time) return -VAM_EBADF;
  out->process = process;
  out->gpu = gpu - 1;
  switch (offset >> VAM_MMAP_TYPE_SHIFT) {
    case VAM_MMAP_DOORBELL >> VAM_MMAP_TYPE_SHIFT:
      if (!gpu) return -VAM_ENODEV;
      if (length != m->gpu[gpu - 1].config.doorbell_bytes) return -VAM_EINVAL;
      out->what = VAM_MAP_DOORBELL;
      return 0;
    case VAM_MMAP_MMIO >> VAM_MMAP_TYPE_SHIFT:
      if (!gpu) return -VAM_ENODEV;
      if (length != VAM_PAGE) return -VAM_EINVAL;
      out->what = VAM_MAP_MMIO;
      return 0;
    case VAM_MMAP_EVENTS >> VAM_MMAP_TYPE_SHIFT:
      if (!p->event_page_bo || length > VAM_SIGNAL_PAGE_BYTES) return -VAM_EINVAL;
      out->what = VAM_MAP_EVENTS;
      out->bo = p->event_page_bo;
      out->gpu = VAM_BO_AT(m, out->bo)->gpu;
      out->pool = VAM_BO_AT(m, out->bo)->pool;
      out->pool_offset = VAM_BO_AT(m, out->bo)->pool_offset;
      return 0;
    default:
      /* Reserved memory: APUs only. */
      return gpu || m->config.kfd_minor_version >= 23 ? -VAM_EINVAL : -VAM_ENODEV;
  }
}

/* Whether `file` may map the BO: it holds a handle, or is the VM of the KFD process that holds it. */
static int may_map(const struct vam_model* m, uint32_t file, uint32_t bo) {
  uint32_t process = VAM_FILE_AT(m, file)->process, i;
  for (i = VAM_BO_AT(m, bo)->handles; i; i = VAM_HANDLE_AT(m, i)->next) {
    if (VAM_HANDLE_AT(m, i)->file == file) return 1;
  }
  for (i = VAM_BO_AT(m, bo)->mems; process && i; i = VAM_MEM_AT(m, i)->bo_next) {
    if (VAM_MEM_AT(m, i)->process == process && VAM_MEM_AT(m, i)->gpu == VAM_FILE_AT(m, file)->gpu) return 1;
  }
  return 0;
}

int vam_mmap(const struct vam_call* call, uint64_t offset, uint64_t length, struct vam_map_result* out) {
  const struct vam_model* m = call->model;
  const struct vam_bo* bo;
  memset(out, 0, sizeof(*out));
  if (length == 0) return -VAM_EINVAL;
  if (VAM_FILE_AT(m, call->file)->kind == VAM_FILE_KFD) return map_kfd(call, offset, length, out);
  out->what = VAM_MAP_POOL;
  out->bo = vam_bo_at_mmap_offset(m, offset);
  if (!out->bo) return -VAM_EINVAL;
  bo = VAM_BO_AT(m, out->bo);
  if (length > bo->size) return -VAM_EINVAL;
  if (!may_map(m, call->file, out->bo)) return -VAM_EACCES;
  if (bo->pool == VAM_POOL_NONE || (bo->gem_flags & VAM_GEM_NO_CPU_ACCESS)) return -VAM_EPERM;
  out->gpu = bo->gpu;
  out->pool = bo->pool;
  out->pool_offset = bo->pool_offset;
  return 0;
}
