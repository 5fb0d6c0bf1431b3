/* SPDX-License-Identifier: MIT */
/*
 * AMDKFD_IOC_CRIU_OP: PROCESS_INFO, CHECKPOINT, UNPAUSE, RESTORE, RESUME, and the private data between
 * CHECKPOINT and RESTORE (opaque to user space, no alignment between records): process, devices, BOs, then
 * queues, events and SVM ranges. The BO record's size differs (config.h); the version number is 1 in all.
 */
#include "model.h"

struct totals {
  uint64_t bytes;
  uint32_t bos, objects;
};

/* Places in the private data. */
struct cursor {
  uint64_t user, at, end;
};

static uint64_t bo_records_at(const struct vam_model* m, const struct vam_process* p) {
  return sizeof(struct vam_priv_process) + vam_num_pdds(m, p) * sizeof(struct vam_priv_device);
}

static int counts(const struct vam_model* m, const struct vam_mem* mem) {
  if (mem->va == 0) return m->config.kfd_minor_version >= 17;
  return mem->va > vam_gpuvm_base(m);
}

/* Linux 7.2 asks for the node's size before there is a node, and so saves no control stack at all. */
static uint32_t saved_stack_bytes(const struct vam_model* m, const struct vam_queue* q) {
  if (q->type != VAM_QUEUE_COMPUTE || m->config.kfd_minor_version >= 23) return 0;
  return q->ctl_stack_size;
}

static uint64_t queue_state_bytes(const struct vam_model* m, const struct vam_queue* q) {
  return (uint64_t)vam_queue_mqd_bytes(m, q->gpu, q->type) + saved_stack_bytes(m, q);
}

static int count_all(const struct vam_model* m, const struct vam_process* p, struct totals* t) {
  uint32_t id, value;
  memset(t, 0, sizeof(*t));
  t->bytes = bo_records_at(m, p);
  for (uint32_t i = 0; i < m->num_gpus; ++i) {
    for (id = 0; (value = vam_idr_next(m, &p->pdd[i].mems, &id)); ++id)
      t->bos += counts(m, VAM_MEM_AT(m, value)) ? 1 : 0;
  }
  t->bytes += (uint64_t)t->bos * m->config.bo_record_bytes;
  for (id = 0; (value = vam_idr_next(m, &p->queues, &id)); ++id) {
    t->bytes +=
        sizeof(struct vam_priv_queue) + queue_state_bytes(m, VAM_AT(m, VAM_T_QUEUE, vam_queue, value));
    t->objects++;
  }
  t->objects += p->num_events + p->num_svm;
  t->bytes += (uint64_t)p->num_events * sizeof(struct vam_priv_event);
  t->bytes += (uint64_t)p->num_svm *
              (sizeof(struct vam_priv_svm) + sizeof(struct vam_svm_attr) * (4ull + vam_num_pdds(m, p)));
  return 0;
}

static void evict(const struct vam_model* m, struct vam_process* p) {
  for (uint32_t i = 0; i < m->num_gpus; ++i) p->pdd[i].evicted++;
}

static void unevict(const struct vam_model* m, struct vam_process* p) {
  for (uint32_t i = 0; i < m->num_gpus; ++i) {
    if (p->pdd[i].evicted) p->pdd[i].evicted--;
  }
}

static int process_info(const struct vam_call* call, struct vam_process* p, struct vam_criu_args* args) {
  struct vam_model* m = call->model;
  struct totals t;
  if (vam_num_pdds(m, p) == 0) return -VAM_ENODEV;
  if (!(m->config.evict_once && p->queues_paused)) evict(m, p);
  p->queues_paused = 1;
  p->process_infos++;
  p->waves_saved = p->stops_with_waves ? p->waves : VAM_WAVES_NONE;
  if (p->stops_with_waves && p->stops_with_waves != VAM_FOR_EVER) p->stops_with_waves--;
  count_all(m, p, &t);
  args->pid = (uint32_t)p->pid;
  args->num_devices = vam_num_pdds(m, p);
  args->num_bos = t.bos;
  args->num_objects = t.objects;
  args->priv_data_size = t.bytes;
  return 0;
}

/* ---- CHECKPOINT
 * --------------------------------------------------------------------------------------------- */

static int put(const struct vam_call* call, struct cursor* c, const void* bytes, uint64_t size) {
  if (call->os->copy_out(call, c->user + c->at, bytes, size)) return -VAM_EFAULT;
  c->at += size;
  return 0;
}

static int put_queue(const struct vam_call* call, struct cursor* c, const struct vam_process* p,
                     const struct vam_queue* q) {
  struct vam_priv_queue r;
  uint8_t block[256];
  uint64_t total = queue_state_bytes(call->model, q);
  memset(&r, 0, sizeof(r));
  r.object_type = VAM_PRIV_QUEUE;
  r.q_address = q->ring;
  r.q_size = q->ring_size;
  r.read_ptr = q->read_ptr;
  r.write_ptr = q->write_ptr;
  r.doorbell_off = q->doorbell;
  r.eop_address = q->eop;
  r.ctx_address = q->ctx_area;
  r.gpu_id = p->pdd[q->gpu].user_gpu_id;
  r.type = q->type;
  r.format = q->format;
  r.q_id = q->id;
  r.priority = q->priority;
  r.percent = q->percent;
  r.doorbell_id = q->doorbell;
  r.gws = q->gws;
  r.sdma_id = q->sdma_id;
  r.eop_size = q->eop_size;
  r.ctx_size = q->ctx_size;
  r.mqd_size = vam_queue_mqd_bytes(call->model, q->gpu, q->type);
  r.ctl_stack_size = (uint32_t)(total - r.mqd_size);
  if (put(call, c, &r, sizeof(r))) return -VAM_EFAULT;
  for (uint64_t at = 0; at < total;) {
    uint64_t n = total - at < sizeof(block) ? total - at : sizeof(block);
    for (uint64_t i = 0; i < n; ++i) block[i] = vam_queue_state_byte(call->model, q, at + i);
    if (put(call, c, block, n)) return -VAM_EFAULT;
    at += n;
  }
  return 0;
}

/* The queue made before `last`, or the newest; 0 when there is none left. */
static const struct vam_queue* next_queue(const struct vam_model* m, const struct vam_process* p,
                                          const struct vam_queue* last) {
  const struct vam_queue* best = 0;
  uint32_t value;
  for (uint32_t id = 0; (value = vam_idr_next(m, &p->queues, &id)); ++id) {
    const struct vam_queue* q = VAM_AT(m, VAM_T_QUEUE, vam_queue, value);
    if ((!last || q->serial < last->serial) && (!best || q->serial > best->serial)) best = q;
  }
  return best;
}

static int put_events(const struct vam_call* call, struct cursor* c, const struct vam_process* p) {
  const struct vam_model* m = call->model;
  uint64_t user_handle = 0;
  if (p->event_page_mem) {
    const struct vam_mem* mem = VAM_MEM_AT(m, p->event_page_mem);
    user_handle = (uint64_t)p->pdd[mem->gpu].user_gpu_id << 32 | mem->handle;
  }
  for (int table = 0; table < 2; ++table) {
    uint32_t value;
    for (uint32_t id = 0; (value = vam_idr_next(m, table ? &p->other_events : &p->signal_events, &id));
         ++id) {
      const struct vam_event* e = VAM_AT(m, VAM_T_EVENT, vam_event, value);
      struct vam_priv_event r;
      memset(&r, 0, sizeof(r));
      r.object_type = VAM_PRIV_EVENT;
      r.user_handle = user_handle; /* in the first one only */
      user_handle = 0;
      r.event_id = e->id;
      r.auto_reset = e->auto_reset;
      r.type = e->type;
      r.signaled = e->signaled;
      memcpy(r.data, e->data, sizeof(r.data));
      if (put(call, c, &r, sizeof(r))) return -VAM_EFAULT;
    }
  }
  return 0;
}

static int put_svm(const struct vam_call* call, struct cursor* c, const struct vam_process* p) {
  const struct vam_model* m = call->model;
  for (uint32_t i = p->svm_first; i; i = VAM_AT(m, VAM_T_SVM, vam_svm, i)->next) {
    struct vam_svm_attr attrs[4 + VAMDGPU_MAX_GPUS];
    struct vam_priv_svm r;
    uint32_t n = vam_svm_attrs(m, i, attrs);
    memset(&r, 0, sizeof(r));
    r.object_type = VAM_PRIV_SVM;
    r.start_page = VAM_AT(m, VAM_T_SVM, vam_svm, i)->start_page;
    r.pages = VAM_AT(m, VAM_T_SVM, vam_svm, i)->pages;
    if (put(call, c, &r, sizeof(r)) || put(call, c, attrs, n * sizeof(attrs[0]))) return -VAM_EFAULT;
  }
  return 0;
}

static uint64_t bucket_offset(const struct vam_model* m, const struct vam_mem* mem) {
  uint64_t gpu = (uint64_t)m->gpu[mem->gpu].config.gpu_id << VAM_MMAP_GPU_SHIFT; /* the actual id */
  switch (VAM_BO_AT(m, mem->bo)->kind) {
    case VAM_BO_DOORBELL:
      return VAM_MMAP_DOORBELL | gpu;
    case VAM_BO_MMIO:
      return VAM_MMAP_MMIO | gpu;
    default:
      return vam_bo_mmap_offset(m, mem->bo);
  }
}

/* The GPUs that a record has room for. */
static uint32_t most_ids(const struct vam_model* m) {
  const uint32_t bytes = m->config.bo_record_bytes;
  return bytes == VAMDGPU_BO_RECORD_LINUX_61 || bytes == VAMDGPU_BO_RECORD_AMD_16 ? 16 : VAM_PRIV_BO_MAX_IDS;
}

static int keeps_ipc(const struct vam_model* m) {
  const uint32_t bytes = m->config.bo_record_bytes;
  return bytes == VAMDGPU_BO_RECORD_AMD_16 || bytes == VAMDGPU_BO_RECORD_AMD_64;
}

/* From Linux's form into the driver's. */
static void add_rest(const struct vam_model* m, const struct vam_mem* mem, struct vam_priv_bo* r) {
  enum { OWN = 16 };
  uint8_t* ids = (uint8_t*)r + offsetof(struct vam_priv_bo, mapped_gpu_ids);
  if (m->config.bo_record_bytes == VAMDGPU_BO_RECORD_NOBODYS) {
    memmove(ids + OWN, ids, sizeof(r->mapped_gpu_ids));
    memset(ids, 0x5A, OWN);
  } else if (keeps_ipc(m) && mem->ipc) {
    const struct vam_ipc* ipc = VAM_IPC_AT(m, mem->ipc);
    struct vam_priv_ipc own = {mem->imported, ipc->flags, {0}};
    memcpy(own.share_handle, ipc->handle, sizeof(own.share_handle));
    memcpy(ids + 4ull * most_ids(m), &own, sizeof(own));
  }
}

/* And back. */
static void drop_rest(const struct vam_model* m, struct vam_priv_bo* r) {
  enum { OWN = 16 };
  uint8_t* ids = (uint8_t*)r + offsetof(struct vam_priv_bo, mapped_gpu_ids);
  if (m->config.bo_record_bytes == VAMDGPU_BO_RECORD_NOBODYS)
    memmove(ids, ids + OWN, sizeof(r->mapped_gpu_ids));
}

/* All 0 if the driver keeps none. */
static struct vam_priv_ipc ipc_of(const struct vam_model* m, const struct vam_priv_bo* r) {
  struct vam_priv_ipc own;
  memset(&own, 0, sizeof(own));
  if (keeps_ipc(m)) {
    const uint8_t* ids = (const uint8_t*)r + offsetof(struct vam_priv_bo, mapped_gpu_ids);
    memcpy(&own, ids + 4ull * most_ids(m), sizeof(own));
  }
  return own;
}

static int put_bo(const struct vam_call* call, const struct vam_process* p, const struct vam_mem* mem,
                  uint64_t bucket_user, uint64_t priv_user) {
  const struct vam_model* m = call->model;
  struct vam_criu_bo b;
  struct vam_priv_bo r;
  uint32_t n = 0;
  int err = 0;
  memset(&b, 0, sizeof(b));
  memset(&r, 0, sizeof(r));
  b.addr = mem->va;
  b.size = mem->size;
  b.gpu_id = p->pdd[mem->gpu].user_gpu_id;
  b.alloc_flags = mem->flags;
  b.offset = bucket_offset(m, mem);
  b.dmabuf_fd = VAM_KFD_INVALID_FD;
  r.user_addr = mem->user_addr;
  r.idr_handle = mem->handle;
  for (uint32_t i = 0; i < m->num_gpus; ++i) {
    if (mem->mapped >> i & 1) r.mapped_gpu_ids[n++] = p->pdd[i].user_gpu_id;
  }
  add_rest(m, mem, &r);
  if (mem->flags & (VAM_ALLOC_VRAM | VAM_ALLOC_GTT))
    err = call->os->export_bo(call, mem->bo, mem->flags & VAM_ALLOC_WRITABLE ? 2 : 0, &b.dmabuf_fd);
  if (err) return err;
  if (call->os->copy_out(call, bucket_user, &b, sizeof(b)) ||
      call->os->copy_out(call, priv_user, &r, m->config.bo_record_bytes)) {
    if (b.dmabuf_fd != VAM_KFD_INVALID_FD) call->os->close_fd(call, b.dmabuf_fd);
    return -VAM_EFAULT;
  }
  return 0;
}

/* Closes what put_bo installed in the first `count` buckets. */
static void close_buckets(const struct vam_call* call, uint64_t buckets, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    struct vam_criu_bo b;
    if (call->os->copy_in(call, &b, buckets + i * sizeof(b), sizeof(b))) continue;
    if (b.dmabuf_fd == VAM_KFD_INVALID_FD) continue;
    call->os->close_fd(call, b.dmabuf_fd);
    b.dmabuf_fd = VAM_KFD_INVALID_FD;
    call->os->copy_out(call, buckets + i * sizeof(b), &b, sizeof(b));
  }
}

static int put_bos(const struct vam_call* call, const struct vam_process* p,
                   const struct vam_criu_args* args) {
  const struct vam_model* m = call->model;
  uint64_t priv = args->priv_data + bo_records_at(m, p);
  uint32_t done = 0, value;
  for (uint32_t i = 0; i < m->num_gpus; ++i) {
    for (uint32_t id = 0; (value = vam_idr_next(m, &p->pdd[i].mems, &id)); ++id) {
      const struct vam_mem* mem = VAM_MEM_AT(m, value);
      int err;
      if (!counts(m, mem)) continue;
      err = put_bo(call, p, mem, args->bos + done * sizeof(struct vam_criu_bo),
                   priv + (uint64_t)done * m->config.bo_record_bytes);
      if (err) {
        close_buckets(call, args->bos, done);
        return err;
      }
      done++;
    }
  }
  return 0;
}

static int checkpoint(const struct vam_call* call, struct vam_process* p, const struct vam_criu_args* args) {
  struct vam_model* m = call->model;
  struct vam_priv_process process = {1, p->xnack};
  struct vam_priv_device device = {0};
  struct cursor c = {args->priv_data, 0, args->priv_data_size};
  struct totals t;
  uint32_t done = 0;
  if (!args->devices || !args->bos || !args->priv_data) return -VAM_EINVAL;
  if (vam_num_pdds(m, p) == 0) return -VAM_ENODEV;
  if (!p->queues_paused) return -VAM_EINVAL;
  count_all(m, p, &t);
  if (args->num_devices != vam_num_pdds(m, p) || args->num_bos != t.bos || args->num_objects != t.objects ||
      args->priv_data_size != t.bytes)
    return -VAM_EINVAL;
  if (put(call, &c, &process, sizeof(process))) return -VAM_EFAULT;
  for (uint32_t i = 0; i < m->num_gpus; ++i) {
    struct vam_criu_device d = {p->pdd[i].user_gpu_id, m->gpu[i].config.gpu_id, 0, 0};
    if (!p->pdd[i].present) continue;
    if (call->os->copy_out(call, args->devices + done++ * sizeof(d), &d, sizeof(d))) return -VAM_EFAULT;
    if (put(call, &c, &device, sizeof(device))) return -VAM_EFAULT;
  }
  c.at += (uint64_t)t.bos * m->config.bo_record_bytes; /* written last, when nothing else can fail */
  for (const struct vam_queue* q = 0; (q = next_queue(m, p, q));) {
    if (put_queue(call, &c, p, q)) return -VAM_EFAULT;
  }
  if (put_events(call, &c, p) || put_svm(call, &c, p)) return -VAM_EFAULT;
  return put_bos(call, p, args);
}

/* ---- RESTORE
 * ------------------------------------------------------------------------------------------------ */

/* -EINVAL: the private data ends before. */
static int get(const struct vam_call* call, struct cursor* c, void* bytes, uint64_t size) {
  if (size > c->end - c->at) return -VAM_EINVAL;
  if (call->os->copy_in(call, bytes, c->user + c->at, size)) return -VAM_EFAULT;
  c->at += size;
  return 0;
}

static int restore_device(const struct vam_call* call, uint32_t process, const struct vam_criu_device* d) {
  struct vam_model* m = call->model;
  struct vam_process* p = VAM_PROCESS_AT(m, process);
  uint32_t gpu, file;
  if (d->user_gpu_id == 0) return -VAM_EINVAL;
  gpu = vam_gpu_by_id(m, d->actual_gpu_id);
  if (!gpu || !p->pdd[--gpu].present || p->pdd[gpu].file) return -VAM_EINVAL;
  p->pdd[gpu].user_gpu_id = d->user_gpu_id;
  if (call->os->file_of_fd(call, d->drm_fd, &file)) return -VAM_EINVAL;
  return vam_acquire_vm(m, process, gpu, file) ? -VAM_EINVAL : 0;
}

static int restore_bo(const struct vam_call* call, uint32_t process, const struct vam_criu_bo* b,
                      const struct vam_priv_bo* r) {
  struct vam_model* m = call->model;
  uint32_t gpu = vam_pdd_by_user_id(m, process, b->gpu_id), mem;
  const struct vam_priv_ipc ipc = ipc_of(m, r);
  uint32_t ids = most_ids(m);
  int err;
  if (!gpu) return -VAM_ENODEV;
  gpu--;
  if (!VAM_PROCESS_AT(m, process)->pdd[gpu].file) return -VAM_ENODEV;
  if ((b->alloc_flags & VAM_ALLOC_DOORBELL) && b->size != m->gpu[gpu].config.doorbell_bytes)
    return -VAM_EINVAL;
  if ((b->alloc_flags & VAM_ALLOC_MMIO) && b->size != VAM_PAGE) return -VAM_EINVAL;
  if (r->idr_handle > VAM_IDR_MAX) return m->config.kfd_minor_version < 17 ? -VAM_ENOMEM : -VAM_EINVAL;
  if (b->size == 0) return m->config.kfd_minor_version < 17 ? -VAM_ENOSPC : -VAM_EINVAL;
  if (ipc.share_handle[0] | ipc.share_handle[1] | ipc.share_handle[2] | ipc.share_handle[3])
    err = vam_ipc_restore(call, process, gpu, b, r->idr_handle, &ipc, &mem);
  else
    err = vam_kfd_alloc_at(call, process, gpu, b->addr, b->size, b->alloc_flags, r->user_addr, r->idr_handle,
                           1, &mem);
  if (err) return err;
  VAM_MEM_AT(m, mem)->userptr_invalid = VAM_BO_AT(m, VAM_MEM_AT(m, mem)->bo)->kind == VAM_BO_USERPTR;
  for (uint32_t i = 0; i < ids && r->mapped_gpu_ids[i]; ++i) {
    uint32_t peer = vam_pdd_by_user_id(m, process, r->mapped_gpu_ids[i]);
    if (!peer) return -VAM_EINVAL;
    err = vam_kfd_map_mem(m, mem, peer - 1);
    if (err) return err;
  }
  return 0;
}

static int restore_objects(const struct vam_call* call, uint32_t process, struct cursor* c, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    uint64_t start = c->at;
    uint32_t type, consumed;
    int err = get(call, c, &type, sizeof(type));
    if (err) return err;
    c->at = start;
    if (type == VAM_PRIV_QUEUE) {
      struct vam_priv_queue r;
      err = get(call, c, &r, sizeof(r));
      if (err) return err;
      if ((uint64_t)r.mqd_size + r.ctl_stack_size > c->end - c->at) return -VAM_EINVAL;
      err = vam_queue_restore(call, process, &r, c->user + c->at, &consumed);
      if (err) return err;
      c->at += consumed;
    } else if (type == VAM_PRIV_EVENT) {
      struct vam_priv_event r;
      err = get(call, c, &r, sizeof(r));
      if (!err) err = vam_event_restore(call, process, &r);
      if (err) return err;
    } else if (type == VAM_PRIV_SVM) {
      struct vam_priv_svm r;
      uint32_t attrs = 4 + vam_num_pdds(call->model, VAM_PROCESS_AT(call->model, process));
      err = get(call, c, &r, sizeof(r));
      if (err) return err;
      if (attrs * sizeof(struct vam_svm_attr) > c->end - c->at) return -VAM_EINVAL;
      err = vam_svm_restore(call, process, &r, c->user + c->at, attrs);
      if (err) return err;
      c->at += attrs * sizeof(struct vam_svm_attr);
    } else {
      return -VAM_EINVAL;
    }
  }
  return c->at == c->end ? 0 : -VAM_EINVAL;
}

/* 0: none. The names come from the caller's memory a second time, and may have changed there meanwhile. */
static uint32_t restored_mem(const struct vam_model* m, uint32_t process, uint32_t gpu_id, uint32_t handle) {
  uint32_t gpu = vam_pdd_by_user_id(m, process, gpu_id);
  return gpu ? vam_idr_find(m, &VAM_PROCESS_AT(m, process)->pdd[gpu - 1].mems, handle) : 0;
}

/* Gives the caller offset and descriptor of each restored BO. */
static int hand_out(const struct vam_call* call, uint32_t process, const struct vam_criu_args* args,
                    uint64_t records) {
  const struct vam_model* m = call->model;
  for (uint32_t i = 0; i < args->num_bos; ++i) {
    uint64_t user = args->bos + i * sizeof(struct vam_criu_bo);
    struct vam_criu_bo b;
    struct vam_priv_bo r;
    const struct vam_mem* mem;
    uint32_t index;
    int err = 0;
    memset(&r, 0, sizeof(r));
    if (call->os->copy_in(call, &b, user, sizeof(b)) ||
        call->os->copy_in(call, &r, records + (uint64_t)i * m->config.bo_record_bytes, 16)) {
      close_buckets(call, args->bos, i);
      return -VAM_EFAULT;
    }
    index = restored_mem(m, process, b.gpu_id, r.idr_handle);
    if (!index) {
      close_buckets(call, args->bos, i);
      return -VAM_EINVAL;
    }
    mem = VAM_MEM_AT(m, index);
    if (VAM_BO_AT(m, mem->bo)->kind != VAM_BO_USERPTR) b.restored_offset = bucket_offset(m, mem);
    b.dmabuf_fd = VAM_KFD_INVALID_FD;
    if (mem->flags & (VAM_ALLOC_VRAM | VAM_ALLOC_GTT))
      err = call->os->export_bo(call, mem->bo, 2, &b.dmabuf_fd);
    if (!err && call->os->copy_out(call, user, &b, sizeof(b))) {
      if (b.dmabuf_fd != VAM_KFD_INVALID_FD) call->os->close_fd(call, b.dmabuf_fd);
      err = -VAM_EFAULT;
    }
    if (err) {
      close_buckets(call, args->bos, i);
      return err;
    }
  }
  return 0;
}

static int restore(const struct vam_call* call, uint32_t process, const struct vam_criu_args* args) {
  struct vam_model* m = call->model;
  struct vam_process* p = VAM_PROCESS_AT(m, process);
  struct cursor c = {args->priv_data, 0, args->priv_data_size};
  struct vam_priv_process priv;
  struct vam_priv_device device;
  int err;
  if (!args->devices || !args->priv_data || !args->priv_data_size || !args->num_devices ||
      (args->num_bos && !args->bos))
    return -VAM_EINVAL;
  evict(m, p);
  p->restore_blocked = 1;
  err = get(call, &c, &priv, sizeof(priv));
  if (err) return err;
  if (priv.version != 1) return -VAM_EINVAL;
  if (priv.xnack_mode && m->config.kfd_minor_version < 23) return -VAM_EPERM;
  p->xnack = priv.xnack_mode;
  if (args->num_devices != vam_num_pdds(m, p)) return -VAM_EINVAL;
  for (uint32_t i = 0; i < args->num_devices; ++i) {
    struct vam_criu_device d;
    err = get(call, &c, &device, sizeof(device));
    if (err) return err;
    if (call->os->copy_in(call, &d, args->devices + i * sizeof(d), sizeof(d))) return -VAM_EFAULT;
    err = restore_device(call, process, &d);
    if (err) return err;
  }
  for (uint32_t i = 0; i < args->num_bos; ++i) {
    struct vam_criu_bo b;
    struct vam_priv_bo r;
    memset(&r, 0, sizeof(r));
    err = get(call, &c, &r, m->config.bo_record_bytes);
    if (err) return err;
    if (call->os->copy_in(call, &b, args->bos + i * sizeof(b), sizeof(b))) return -VAM_EFAULT;
    drop_rest(m, &r);
    err = restore_bo(call, process, &b, &r);
    if (err) return err;
  }
  err = restore_objects(call, process, &c, args->num_objects);
  if (err) return err;
  return hand_out(call, process, args, args->priv_data + bo_records_at(m, p));
}

/* ---- UNPAUSE, RESUME
 * ---------------------------------------------------------------------------------------- */

static int unpause(const struct vam_call* call, struct vam_process* p) {
  if (!p->queues_paused) return -VAM_EINVAL;
  /* Where Linux 6.1 follows a NULL pointer: a GPU whose VM was not acquired. */
  for (uint32_t i = 0; i < call->model->num_gpus && call->model->config.kfd_minor_version < 17; ++i)
    if (p->pdd[i].present && !p->pdd[i].file) return -VAM_EFAULT;
  unevict(call->model, p);
  p->queues_paused = 0;
  p->unpauses++;
  return 0;
}

static int resume(const struct vam_call* call, const struct vam_criu_args* args) {
  struct vam_model* m = call->model;
  uint32_t process = vam_find_process(m, (int32_t)args->pid, 0);
  struct vam_process* p;
  if (!process) return -VAM_ESRCH;
  p = VAM_PROCESS_AT(m, process);
  p->svm_pending = 0;
  if (!p->restore_blocked) return -VAM_EINVAL;
  p->restore_blocked = 0;
  for (uint32_t i = 0; i < m->num_gpus; ++i) {
    uint32_t value;
    for (uint32_t id = 0; (value = vam_idr_next(m, &p->pdd[i].mems, &id)); ++id)
      VAM_MEM_AT(m, value)->userptr_invalid = 0;
  }
  unevict(m, p);
  return 0;
}

int vam_kfd_criu(const struct vam_call* call, struct vam_criu_args* args) {
  uint32_t process = VAM_FILE_AT(call->model, call->file)->process;
  struct vam_process* p = VAM_PROCESS_AT(call->model, process);
  switch (args->op) {
    case VAM_CRIU_PROCESS_INFO:
      return process_info(call, p, args);
    case VAM_CRIU_CHECKPOINT:
      return checkpoint(call, p, args);
    case VAM_CRIU_UNPAUSE:
      return unpause(call, p);
    case VAM_CRIU_RESTORE:
      return restore(call, process, args);
    case VAM_CRIU_RESUME:
      return resume(call, args);
    default:
      return -VAM_EINVAL;
  }
}
