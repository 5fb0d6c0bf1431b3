/* SPDX-License-Identifier: MIT */
/*
 * Render node: DRM core ioctls, GEM objects, PRIME, VA mappings of a DRM file, and the dispatch of the rest.
 */
#include "model.h"

/* 64-bit addresses: the driver takes 48 bits of them, and keeps the top for itself. */
#define VA_HOLE_START 0x800000000000ull
#define VA_HOLE_END 0xffff800000000000ull

static uint64_t va_bottom(const struct vam_model* m) {
  return m->config.kfd_minor_version < 17 ? 0x200000 : 0x10000;
}

static uint64_t va_end(const struct vam_model* m) {
  return (1ull << 48) - (m->config.kfd_minor_version < 17 ? 0x200000 : 0x410000);
}

static uint64_t settable_flags(const struct vam_model* m) {
  uint32_t minor = m->config.kfd_minor_version;
  return minor < 17 ? VAM_GEM_SETTABLE_61 : minor < 23 ? VAM_GEM_SETTABLE_612 : VAM_GEM_SETTABLE_72;
}

/* ---- create, close, share
 * -------------------------------------------------------------------------------------- */

static int give_handle(struct vam_model* m, uint32_t file, uint32_t bo, uint32_t* handle) {
  int err = vam_handle_get(m, file, bo, handle);
  vam_bo_unref(m, bo); /* the handle holds it, or nothing does */
  return err;
}

static int gem_create(const struct vam_call* call, struct vam_gem_create_args* args) {
  struct vam_model* m = call->model;
  uint32_t gpu = VAM_FILE_AT(m, call->file)->gpu, bo, handle = 0;
  uint64_t flags = args->flags, domains = args->domains;
  int err;
  if (flags & ~settable_flags(m)) return -VAM_EINVAL;
  if (domains & ~(uint64_t)(VAM_DOMAIN_CPU | VAM_DOMAIN_GTT | VAM_DOMAIN_VRAM)) return -VAM_EINVAL;
  if (args->size == 0) return -VAM_ENOSPC; /* no place for it among the addresses that mmap takes */
  err = domains & VAM_DOMAIN_VRAM
            ? vam_bo_create(m, gpu, VAM_POOL_VRAM, VAM_BO_GEM, args->size, args->alignment, &bo)
            : -VAM_ENOMEM;
  if (err == -VAM_ENOMEM)
    err = vam_bo_create(m, gpu, VAM_POOL_GTT, VAM_BO_GEM, args->size, args->alignment, &bo);
  if (err) return err;
  if (m->config.kfd_minor_version >= 17) flags |= VAM_GEM_VRAM_CLEARED;
  /* CPU access is a hint of where to place it, and comes back when the CPU touches it. */
  VAM_BO_AT(m, bo)->gem_flags = (flags & ~(uint64_t)VAM_GEM_CPU_ACCESS) | vam_bo_own_flags(m);
  VAM_BO_AT(m, bo)->domains = (uint32_t)domains;
  /* System pages come zeroed; VRAM only when asked for. */
  if (VAM_BO_AT(m, bo)->pool == VAM_POOL_GTT || (flags & VAM_GEM_VRAM_CLEARED))
    call->os->fill_bo(call, bo, 0, VAM_BO_AT(m, bo)->size, 0);
  err = give_handle(m, call->file, bo, &handle);
  if (err) return err;
  memset(args, 0, 8);
  *(uint32_t*)args = handle;
  return 0;
}

static int gem_userptr(const struct vam_call* call, struct vam_gem_userptr_args* args) {
  struct vam_model* m = call->model;
  uint32_t bo;
  int err;
  if (args->addr % VAM_PAGE || args->size % VAM_PAGE) return -VAM_EINVAL;
  if (args->flags &
      ~(VAM_USERPTR_READONLY | VAM_USERPTR_ANONONLY | VAM_USERPTR_VALIDATE | VAM_USERPTR_REGISTER))
    return -VAM_EINVAL;
  if (!(args->flags & (VAM_USERPTR_READONLY | VAM_USERPTR_REGISTER))) return -VAM_EACCES;
  if (args->size == 0) return -VAM_ENOSPC;
  if (args->flags & VAM_USERPTR_VALIDATE) {
    err = call->os->user_range(call, args->addr, args->size, args->flags);
    if (err) return err;
  }
  err = vam_bo_create(m, VAM_FILE_AT(m, call->file)->gpu, VAM_POOL_NONE, VAM_BO_USERPTR, args->size, 0, &bo);
  if (err) return err;
  VAM_BO_AT(m, bo)->gem_flags = vam_bo_own_flags(m);
  VAM_BO_AT(m, bo)->domains = VAM_DOMAIN_GTT;
  VAM_BO_AT(m, bo)->user_addr = args->addr;
  VAM_BO_AT(m, bo)->owner_pid = call->pid;
  VAM_BO_AT(m, bo)->userptr_flags = args->flags;
  return give_handle(m, call->file, bo, &args->handle);
}

static int prime_export(const struct vam_call* call, struct vam_prime_args* args) {
  struct vam_model* m = call->model;
  uint32_t bo, fd;
  int err;
  if (args->flags & ~(02000000u | 2u)) return -VAM_EINVAL; /* O_CLOEXEC, O_RDWR */
  bo = vam_handle_bo(m, call->file, args->handle);
  if (!bo) return -VAM_ENOENT;
  if (VAM_BO_AT(m, bo)->kind == VAM_BO_USERPTR || (VAM_BO_AT(m, bo)->gem_flags & VAM_GEM_VM_ALWAYS_VALID))
    return -VAM_EPERM;
  err = call->os->export_bo(call, bo, args->flags, &fd);
  if (!err) args->fd = (int32_t)fd;
  return err;
}

static int prime_import(const struct vam_call* call, struct vam_prime_args* args) {
  uint32_t bo;
  int err = call->os->bo_of_fd(call, (uint32_t)args->fd, &bo);
  if (err) return err;
  return vam_handle_get(call->model, call->file, bo, &args->handle);
}

static int gem_close(const struct vam_call* call, uint32_t handle) {
  if (!vam_handle_bo(call->model, call->file, handle)) return -VAM_EINVAL;
  vam_handle_drop(call->model, call->file, handle);
  return 0;
}

static int change_handle(const struct vam_call* call, const struct vam_change_handle_args* args) {
  struct vam_model* m = call->model;
  struct vam_idr* gem = &VAM_FILE_AT(m, call->file)->gem;
  uint32_t h;
  int err;
  if (!m->config.change_handle || args->new_handle > VAM_IDR_MAX || args->new_handle == 0) return -VAM_EINVAL;
  h = vam_idr_find(m, gem, args->handle);
  if (!h) return -VAM_ENOENT;
  if (args->handle == args->new_handle) return 0;
  err = vam_idr_add_at(m, gem, args->new_handle, h);
  if (err) return err;
  vam_idr_remove(m, gem, args->handle);
  VAM_HANDLE_AT(m, h)->id = args->new_handle;
  return 0;
}

/* ---- asking
 * ------------------------------------------------------------------------------------------------------ */

static int gem_mmap(const struct vam_call* call, struct vam_gem_mmap_args* args) {
  struct vam_model* m = call->model;
  uint32_t bo = vam_handle_bo(m, call->file, args->handle);
  uint64_t offset;
  if (!bo) return -VAM_ENOENT;
  if (VAM_BO_AT(m, bo)->kind == VAM_BO_USERPTR || (VAM_BO_AT(m, bo)->gem_flags & VAM_GEM_NO_CPU_ACCESS))
    return -VAM_EPERM;
  offset = vam_bo_mmap_offset(m, bo);
  memcpy(args, &offset, sizeof(offset));
  return 0;
}

static int gem_metadata(const struct vam_call* call, struct vam_gem_metadata_args* args) {
  struct vam_model* m = call->model;
  uint32_t index = vam_handle_bo(m, call->file, args->handle);
  struct vam_bo* bo;
  struct vam_metadata* metadata;
  if (!index) return -VAM_ENOENT;
  bo = VAM_BO_AT(m, index);
  if (args->op == 2) {
    args->flags = bo->metadata_flags;
    args->tiling_info = bo->tiling;
    args->data_bytes = 0;
    if (bo->metadata) {
      metadata = VAM_AT(m, VAM_T_METADATA, vam_metadata, bo->metadata);
      args->data_bytes = metadata->bytes;
      memcpy(args->data, metadata->data, metadata->bytes);
    }
    return 0;
  }
  if (args->op != 1) return 0;
  if (args->data_bytes > sizeof(args->data)) return -VAM_EINVAL;
  if (!bo->metadata && args->data_bytes) {
    bo->metadata = vam_take(m, VAM_T_METADATA);
    if (!bo->metadata) return -VAM_ENOMEM;
  }
  if (args->data_bytes) bo->metadata_flags = args->flags;
  bo->tiling = args->tiling_info;
  if (bo->metadata) {
    metadata = VAM_AT(m, VAM_T_METADATA, vam_metadata, bo->metadata);
    metadata->bytes = args->data_bytes;
    memcpy(metadata->data, args->data, sizeof(args->data));
  }
  return 0;
}

static int mapping_info(const struct vam_call* call, uint32_t bo, struct vam_gem_op_args* args) {
  const struct vam_model* m = call->model;
  uint32_t count = 0, given = args->num_entries;
  int found = 0;
  if (args->padding || !m->config.list_handles) return -VAM_EINVAL;
  for (uint32_t h = VAM_BO_AT(m, bo)->handles; h; h = VAM_HANDLE_AT(m, h)->next)
    found |= VAM_HANDLE_AT(m, h)->file == call->file;
  for (uint32_t i = VAM_BO_AT(m, bo)->maps; i; i = VAM_RANGE_AT(m, i)->bo_next)
    count += VAM_RANGE_AT(m, i)->file == call->file;
  if (!found && !count) return -VAM_ENOENT;
  args->num_entries = count;
  if (count == 0 || count > given) return 0;
  count = 0;
  for (uint32_t i = VAM_BO_AT(m, bo)->maps; i; i = VAM_RANGE_AT(m, i)->bo_next) {
    const struct vam_range* r = VAM_RANGE_AT(m, i);
    struct vam_mapping_info info = {r->start, r->size, r->bo_offset, r->flags};
    if (r->file != call->file) continue;
    if (call->os->copy_out(call, args->value + count++ * sizeof(info), &info, sizeof(info)))
      return -VAM_EFAULT;
  }
  return 0;
}

static int gem_op(const struct vam_call* call, struct vam_gem_op_args* args) {
  struct vam_model* m = call->model;
  uint32_t index = vam_handle_bo(m, call->file, args->handle);
  struct vam_bo* bo;
  if (!index) return -VAM_ENOENT;
  bo = VAM_BO_AT(m, index);
  if (args->op == 0) {
    struct vam_gem_create_args info = {bo->size, bo->alignment, bo->domains, bo->gem_flags};
    return call->os->copy_out(call, args->value, &info, sizeof(info)) ? -VAM_EFAULT : 0;
  }
  if (args->op == 1) {
    if (bo->kind == VAM_BO_USERPTR) return -VAM_EPERM;
    if (bo->exported && VAM_FILE_AT(m, call->file)->gpu != bo->gpu) return -VAM_EINVAL;
    bo->domains = (uint32_t)args->value & (VAM_DOMAIN_CPU | VAM_DOMAIN_GTT | VAM_DOMAIN_VRAM);
    return 0;
  }
  if (args->op == 2) return mapping_info(call, index, args);
  return -VAM_EINVAL;
}

static int list_handles(const struct vam_call* call, struct vam_gem_list_args* args) {
  const struct vam_model* m = call->model;
  const struct vam_file* f = VAM_FILE_AT(m, call->file);
  uint32_t count = 0, given = args->num_entries, h, id;
  if (!m->config.list_handles) return -VAM_EINVAL;
  for (id = 0; vam_idr_next(m, &f->gem, &id); ++id) count++;
  args->num_entries = count;
  if (count > given) return 0;
  count = 0;
  for (id = 0; (h = vam_idr_next(m, &f->gem, &id)); ++id) {
    const struct vam_bo* bo = VAM_BO_AT(m, VAM_HANDLE_AT(m, h)->bo);
    struct vam_gem_list_entry entry = {id,
                                       bo->gpu != f->gpu,
                                       bo->size,
                                       bo->domains,
                                       bo->gem_flags & settable_flags(m),
                                       bo->alignment / VAM_PAGE};
    if (call->os->copy_out(call, args->entries + count++ * sizeof(entry), &entry, sizeof(entry)))
      return -VAM_EFAULT;
  }
  return 0;
}

static int wait_idle(const struct vam_call* call, struct vam_gem_wait_idle_args* args, int again,
                     uint64_t* deadline_ns) {
  const struct vam_model* m = call->model;
  uint32_t bo = vam_handle_bo(m, call->file, args->handle), out[2];
  if (!bo) return -VAM_ENOENT;
  if (VAM_BO_AT(m, bo)->jobs && again != VAM_EXPIRED && args->timeout > call->os->now_ns(call, 0)) {
    *deadline_ns = args->timeout >> 63 ? UINT64_MAX : args->timeout;
    return -VAM_WOULD_BLOCK;
  }
  out[0] = VAM_BO_AT(m, bo)->jobs != 0;
  out[1] = 0; /* the domain, which the driver has never said */
  memcpy(args, out, sizeof(out));
  return 0;
}

/* ---- VA
 * ------------------------------------------------------------------------------------------------------------
 */

/* Removes [va, va + size) from every mapping of the file's VM, cutting those that stick out. */
static int va_clear(struct vam_model* m, uint32_t file, uint64_t va, uint64_t size) {
  uint64_t end = va + size;
  uint32_t range;
  while ((range = vam_range_from(m, VAM_FILE_AT(m, file)->vm, va)) && VAM_RANGE_AT(m, range)->start < end) {
    struct vam_range r = *VAM_RANGE_AT(m, range);
    uint64_t r_end = r.start + r.size;
    vam_vm_unmap_range(m, range);
    if (r.start < va && vam_vm_map(m, file, r.start, va - r.start, r.bo, r.bo_offset, r.flags, r.mem))
      return -VAM_ENOMEM;
    if (r_end > end &&
        vam_vm_map(m, file, end, r_end - end, r.bo, r.bo_offset + (end - r.start), r.flags, r.mem))
      return -VAM_ENOMEM;
  }
  return 0;
}

static int va_unmap(struct vam_model* m, uint32_t file, uint32_t bo, uint64_t va) {
  uint32_t range = vam_range_find(m, VAM_FILE_AT(m, file)->vm, va);
  if (!range || VAM_RANGE_AT(m, range)->start != va || VAM_RANGE_AT(m, range)->bo != bo) return -VAM_ENOENT;
  vam_vm_unmap_range(m, range);
  return 0;
}

static int gem_va(const struct vam_call* call, const struct vam_gem_va_args* args) {
  struct vam_model* m = call->model;
  uint32_t bo = 0, syncobj = 0;
  int err, needs_bo = args->operation != VAM_VA_CLEAR && !(args->flags & VAM_VM_PRT);
  uint64_t va = args->va & VAM_VA_MASK;
  if (args->va < va_bottom(m) || (args->va >= VA_HOLE_START && args->va < VA_HOLE_END)) return -VAM_EINVAL;
  if (args->size > va_end(m) || va + args->size > va_end(m)) return -VAM_EINVAL;
  if (args->flags & ~VAM_VM_VALID_FLAGS) return -VAM_EINVAL;
  if (args->operation < VAM_VA_MAP || args->operation > VAM_VA_REPLACE) return -VAM_EINVAL;
  if (needs_bo) {
    bo = vam_handle_bo(m, call->file, args->handle);
    if (!bo) return -VAM_ENOENT;
  }
  if (args->syncobj_out) {
    syncobj = vam_idr_find(m, &VAM_FILE_AT(m, call->file)->syncobjs, args->syncobj_out);
    if (!syncobj) return -VAM_ENOENT;
  }
  if (args->operation == VAM_VA_UNMAP) {
    err = va_unmap(m, call->file, bo, va);
  } else {
    if (args->va % VAM_PAGE || args->size % VAM_PAGE || args->size == 0) return -VAM_EINVAL;
    if (args->operation != VAM_VA_CLEAR && bo) {
      if (args->offset % VAM_PAGE || args->offset + args->size < args->offset ||
          args->offset + args->size > VAM_BO_AT(m, bo)->size)
        return -VAM_EINVAL;
    }
    err = 0;
    if (args->operation != VAM_VA_MAP) err = va_clear(m, call->file, va, args->size);
    if (!err && args->operation != VAM_VA_CLEAR)
      err = vam_vm_map(m, call->file, va, args->size, bo, args->offset, args->flags, 0);
  }
  if (!err && syncobj) {
    err = vam_syncobj_set(m, syncobj, args->timeline_point, 0);
    call->os->fence_changed(call, 0);
  }
  return err;
}

/* ---- the core's own
 * -------------------------------------------------------------------------------------------------- */

struct drm_version {
  int32_t major, minor, patch, pad;
  uint64_t name_len, name, date_len, date, desc_len, desc;
};

static int put_text(const struct vam_call* call, uint64_t to, uint64_t* length, const char* text) {
  uint64_t full = strlen(text), n = *length < full ? *length : full;
  *length = full;
  return n && to && call->os->copy_out(call, to, text, n) ? -VAM_EFAULT : 0;
}

static int version(const struct vam_call* call, struct drm_version* v) {
  uint32_t minor = call->model->config.kfd_minor_version;
  v->major = 3;
  v->minor = minor < 17 ? 49 : minor < 23 ? 61 : 64;
  v->patch = 0;
  if (put_text(call, v->name, &v->name_len, "amdgpu")) return -VAM_EFAULT;
  if (put_text(call, v->date, &v->date_len, minor < 17 ? "20150101" : "0")) return -VAM_EFAULT;
  return put_text(call, v->desc, &v->desc_len, "AMD GPU");
}

static int get_cap(uint64_t* cap_value) {
  static const struct {
    uint64_t cap, value;
  } caps[] = {{1, 1},   {2, 0},   {3, 0},    {4, 1},    {5, 3},    {6, 1},    {7, 0},
              {8, 256}, {9, 256}, {0x10, 1}, {0x11, 0}, {0x12, 0}, {0x13, 1}, {0x14, 1}};
  for (uint32_t i = 0; i < sizeof(caps) / sizeof(caps[0]); ++i) {
    if (caps[i].cap == cap_value[0]) {
      cap_value[1] = caps[i].value;
      return 0;
    }
  }
  return -VAM_EINVAL;
}

/* ---- dispatch
 * ----------------------------------------------------------------------------------------------------------
 */

int vam_drm_arg_bytes(uint32_t nr) {
  switch (nr) {
    case VAM_DRM_VERSION:
    case VAM_DRM_GEM_VA:
      return 64;
    case VAM_DRM_GET_UNIQUE:
    case VAM_DRM_GET_CAP:
    case VAM_DRM_SET_CLIENT_CAP:
    case VAM_DRM_CTX:
    case VAM_DRM_GEM_WAIT_IDLE:
    case VAM_DRM_GEM_LIST_HANDLES:
    case VAM_DRM_SYNCOBJ_RESET:
    case VAM_DRM_SYNCOBJ_SIGNAL:
    case VAM_DRM_SET_CLIENT_NAME:
      return 16;
    case VAM_DRM_GET_CLIENT:
    case VAM_DRM_SYNCOBJ_WAIT:
      return 40;
    case VAM_DRM_GEM_CLOSE:
    case VAM_DRM_GEM_MMAP:
    case VAM_DRM_VM:
    case VAM_DRM_SYNCOBJ_CREATE:
    case VAM_DRM_SYNCOBJ_DESTROY:
    case VAM_DRM_GEM_CHANGE_HANDLE:
      return 8;
    case VAM_DRM_PRIME_HANDLE_TO_FD:
    case VAM_DRM_PRIME_FD_TO_HANDLE:
      return 12;
    case VAM_DRM_GEM_CREATE:
    case VAM_DRM_INFO:
    case VAM_DRM_WAIT_CS:
    case VAM_DRM_FENCE_TO_HANDLE:
    case VAM_DRM_SYNCOBJ_TRANSFER:
      return 32;
    case VAM_DRM_BO_LIST:
    case VAM_DRM_CS:
    case VAM_DRM_GEM_OP:
    case VAM_DRM_GEM_USERPTR:
    case VAM_DRM_WAIT_FENCES:
    case VAM_DRM_SYNCOBJ_HANDLE_TO_FD:
    case VAM_DRM_SYNCOBJ_FD_TO_HANDLE:
    case VAM_DRM_SYNCOBJ_QUERY:
    case VAM_DRM_SYNCOBJ_TIMELINE_SIGNAL:
    case VAM_DRM_SYNCOBJ_EVENTFD:
      return 24;
    case VAM_DRM_GEM_METADATA:
      return 288;
    case VAM_DRM_SYNCOBJ_TIMELINE_WAIT:
      return 48;
    default:
      return -1;
  }
}

int vam_gem_ioctl(const struct vam_call* call, uint32_t nr, void* arg, int again, uint64_t* deadline_ns) {
  switch (nr) {
    case VAM_DRM_GEM_CLOSE:
      return gem_close(call, *(uint32_t*)arg);
    case VAM_DRM_PRIME_HANDLE_TO_FD:
      return prime_export(call, arg);
    case VAM_DRM_PRIME_FD_TO_HANDLE:
      return prime_import(call, arg);
    case VAM_DRM_GEM_CREATE:
      return gem_create(call, arg);
    case VAM_DRM_GEM_MMAP:
      return gem_mmap(call, arg);
    case VAM_DRM_GEM_METADATA:
      return gem_metadata(call, arg);
    case VAM_DRM_GEM_WAIT_IDLE:
      return wait_idle(call, arg, again, deadline_ns);
    case VAM_DRM_GEM_VA:
      return gem_va(call, arg);
    case VAM_DRM_GEM_OP:
      return gem_op(call, arg);
    case VAM_DRM_GEM_USERPTR:
      return gem_userptr(call, arg);
    case VAM_DRM_GEM_LIST_HANDLES:
      return list_handles(call, arg);
    case VAM_DRM_GEM_CHANGE_HANDLE:
      return change_handle(call, arg);
    default:
      return -VAM_EINVAL;
  }
}

int vam_drm_ioctl(const struct vam_call* call, uint32_t nr, void* arg, uint32_t bytes, int again,
                  uint64_t* deadline_ns) {
  switch (nr) {
    case VAM_DRM_VERSION:
      return version(call, arg);
    case VAM_DRM_GET_UNIQUE:
    case VAM_DRM_GET_CLIENT:
    case VAM_DRM_SET_CLIENT_CAP:
      return -VAM_EACCES; /* not of a render node */
    case VAM_DRM_GET_CAP:
      return get_cap(arg);
    case VAM_DRM_SET_CLIENT_NAME:
      return call->model->config.kfd_minor_version < 23 ? -VAM_EINVAL : 0;
    case VAM_DRM_VM:
      return ((uint32_t*)arg)[0] == 1 || ((uint32_t*)arg)[0] == 2 ? 0 : -VAM_EINVAL;
    case VAM_DRM_INFO:
      return vam_info_ioctl(call, arg);
    case VAM_DRM_CTX:
    case VAM_DRM_BO_LIST:
    case VAM_DRM_CS:
    case VAM_DRM_WAIT_CS:
    case VAM_DRM_WAIT_FENCES:
    case VAM_DRM_FENCE_TO_HANDLE:
      return vam_cs_ioctl(call, nr, arg, again, deadline_ns);
    default:
      if (nr >= VAM_DRM_SYNCOBJ_CREATE && nr <= VAM_DRM_SYNCOBJ_EVENTFD)
        return vam_syncobj_ioctl(call, nr, arg, bytes, again, deadline_ns);
      return vam_gem_ioctl(call, nr, arg, again, deadline_ns);
  }
}
