/* SPDX-License-Identifier: MIT */
/*
 * Memory that processes share by a handle of 128 bits: two ioctls of AMD's out-of-tree driver, and what its
 * RESTORE does with a handle. Rules and errors as in kfd_ipc.c, kfd_chardev.c and amdgpu_amdkfd_gpuvm.c of
 * amdgpu-dkms 6.0.5 (KFD 1.11), 6.7.0 (1.15) and 6.12.12 (1.17).
 */
#include "model.h"

enum { LAST_WITHOUT_OTHER_GPUS = 11 }; /* KFD 1.<this> imports memory of the same GPU only */

static uint32_t find(const struct vam_model* m, const uint32_t* handle) {
  for (uint32_t i = 1; i < m->table[VAM_T_IPC].high; ++i) {
    const struct vam_ipc* ipc = vam_rec_live(m, VAM_T_IPC, i);
    if (ipc && memcmp(ipc->handle, handle, sizeof(ipc->handle)) == 0) return i;
  }
  return 0;
}

static uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

/* Another one on each machine, as a random number is: an image must not find a stranger's memory. */
static void make_handle(const struct vam_call* call, uint32_t* handle) {
  const uint64_t first = mix(call->os->now_ns(call, 0) + ++call->model->serial), second = mix(~first);
  memcpy(handle, &first, sizeof(first));
  memcpy(handle + 2, &second, sizeof(second));
}

/* Gives the object's BO a handle: `wanted`, or (0) a new one. -EINVAL: another BO has it. */
static int share(const struct vam_call* call, uint32_t mem, uint32_t flags, const uint32_t* wanted) {
  struct vam_model* m = call->model;
  uint32_t index;
  struct vam_ipc* ipc;
  if (VAM_BO_AT(m, VAM_MEM_AT(m, mem)->bo)->pool == VAM_POOL_NONE) return -VAM_EPERM;
  if (wanted && find(m, wanted)) return -VAM_EINVAL;
  index = vam_take(m, VAM_T_IPC);
  if (!index) return -VAM_ENOMEM;
  ipc = VAM_IPC_AT(m, index);
  if (wanted)
    memcpy(ipc->handle, wanted, sizeof(ipc->handle));
  else
    make_handle(call, ipc->handle);
  ipc->flags = flags;
  ipc->bo = VAM_MEM_AT(m, mem)->bo;
  ipc->refs = 1;
  vam_bo_ref(m, ipc->bo);
  VAM_MEM_AT(m, mem)->ipc = index;
  return 0;
}

void vam_ipc_unref(struct vam_model* m, uint32_t index) {
  struct vam_ipc* ipc = VAM_IPC_AT(m, index);
  if (--ipc->refs) return;
  vam_bo_unref(m, ipc->bo);
  vam_put(m, VAM_T_IPC, index);
}

/* -EINVAL: nothing has the handle. */
static int attach(struct vam_model* m, uint32_t process, uint32_t gpu, const uint32_t* handle, uint64_t va,
                  uint32_t idr_handle, int fixed_handle, uint32_t* mem) {
  uint32_t ipc = find(m, handle);
  int err;
  if (!ipc) return -VAM_EINVAL;
  if (VAM_BO_AT(m, VAM_IPC_AT(m, ipc)->bo)->gpu != gpu &&
      m->config.kfd_minor_version <= LAST_WITHOUT_OTHER_GPUS)
    return -VAM_EINVAL;
  err = vam_kfd_import_at(m, process, gpu, VAM_IPC_AT(m, ipc)->bo, va, idr_handle, fixed_handle, mem);
  if (err) return err == -VAM_ENOMEM ? -VAM_EFAULT : err;
  VAM_MEM_AT(m, *mem)->ipc = ipc;
  VAM_IPC_AT(m, ipc)->refs++;
  return 0;
}

int vam_ipc_export(const struct vam_call* call, uint32_t process, struct vam_ipc_export_args* args) {
  struct vam_model* m = call->model;
  uint32_t gpu = vam_pdd_by_user_id(m, process, args->gpu_id), mem;
  int err;
  if (!gpu) return -VAM_EINVAL;
  if (!VAM_PROCESS_AT(m, process)->pdd[--gpu].file) return -VAM_ENODEV;
  mem = vam_idr_find(m, &VAM_PROCESS_AT(m, process)->pdd[gpu].mems, (uint32_t)args->handle);
  if (!mem) return -VAM_EINVAL;
  err = VAM_MEM_AT(m, mem)->ipc ? 0 : share(call, mem, args->flags, 0);
  if (err) return err;
  memcpy(args->share_handle, VAM_IPC_AT(m, VAM_MEM_AT(m, mem)->ipc)->handle, sizeof(args->share_handle));
  return 0;
}

int vam_ipc_import(const struct vam_call* call, uint32_t process, struct vam_ipc_import_args* args) {
  struct vam_model* m = call->model;
  uint32_t gpu = vam_pdd_by_user_id(m, process, args->gpu_id), mem;
  int err;
  if (!gpu || !find(m, args->share_handle)) return -VAM_EINVAL;
  if (!VAM_PROCESS_AT(m, process)->pdd[--gpu].file) return -VAM_ENODEV;
  err = attach(m, process, gpu, args->share_handle, args->va, 0, 0, &mem);
  if (err) return err;
  args->handle = (uint64_t)args->gpu_id << 32 | VAM_MEM_AT(m, mem)->handle;
  args->mmap_offset = vam_bo_mmap_offset(m, VAM_MEM_AT(m, mem)->bo);
  args->flags = VAM_IPC_AT(m, VAM_MEM_AT(m, mem)->ipc)->flags;
  return 0;
}

int vam_ipc_restore(const struct vam_call* call, uint32_t process, uint32_t gpu, const struct vam_criu_bo* b,
                    uint32_t idr_handle, const struct vam_priv_ipc* record, uint32_t* mem) {
  struct vam_model* m = call->model;
  int err = attach(m, process, gpu, record->share_handle, b->addr, idr_handle, 1, mem);
  if (err == -VAM_EINVAL) {
    err = vam_kfd_alloc_at(call, process, gpu, b->addr, b->size, b->alloc_flags, 0, idr_handle, 1, mem);
    if (err) return err;
    err = share(call, *mem, record->flags, record->share_handle);
    if (err) vam_mem_free(m, *mem);
  }
  if (err) return err;
  VAM_MEM_AT(m, *mem)->imported = record->is_imported;
  return 0;
}
