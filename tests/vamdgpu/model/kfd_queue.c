/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * User-mode queues of a KFD process: creation with the kernel's checks, and their state in the private data.
 * Whether a queue runs is its process' eviction counter on its GPU; queue_run.c runs it. Its MQD and control
 * stack are bytes computed from a seed, so that damage to the opaque data shows.
 */
#include "queue_run.h"

/* Types inside the kernel, and so in the private data. */
enum { TYPE_COMPUTE = 0, TYPE_SDMA = 1, TYPE_SDMA_XGMI = 4, TYPE_COUNT = 6 };

uint8_t vam_queue_state_byte(uint64_t seed, uint64_t at) {
  uint64_t x;
  if (at < 8) return (uint8_t)(seed >> (8 * at));
  x = seed + (at / 8) * 0x9e3779b97f4a7c15ull;
  x ^= x >> 31;
  x *= 0xbf58476d1ce4e5b9ull;
  return (uint8_t)(x >> (8 * (at & 7)));
}

/* Whether a VA mapping starts at the page of `address` and, unless `size` is 0, is exactly as long. */
static int backed(const struct vam_model* m, uint32_t file, uint64_t address, uint64_t size) {
  uint32_t range = vam_range_find(m, VAM_FILE_AT(m, file)->vm, address);
  if (!range || VAM_RANGE_AT(m, range)->start != (address & ~(VAM_PAGE - 1))) return 0;
  return size == 0 || VAM_RANGE_AT(m, range)->size == ((size + VAM_PAGE - 1) & ~(VAM_PAGE - 1));
}

static int check_buffers(const struct vam_call* call, uint32_t process, uint32_t gpu,
                         const struct vam_create_queue_args* args, uint32_t ring_size) {
  const struct vam_model* m = call->model;
  const struct vamdgpu_gpu_config* config = &m->gpu[gpu].config;
  uint32_t file = VAM_PROCESS_AT(m, process)->pdd[gpu].file;
  if (m->config.kfd_minor_version < 17) return 0;
  if (!backed(m, file, args->write_pointer, VAM_PAGE) || !backed(m, file, args->read_pointer, VAM_PAGE))
    return -VAM_EINVAL;
  if (!backed(m, file, args->ring_base, ring_size)) return -VAM_EINVAL;
  if (args->type != VAM_QUEUE_COMPUTE && args->type != VAM_QUEUE_COMPUTE_AQL) return 0;
  if (args->eop_address && !backed(m, file, args->eop_address, args->eop_size)) return -VAM_EINVAL;
  if (args->ctl_stack_size != config->ctl_stack_bytes || args->ctx_size < config->cwsr_bytes)
    return -VAM_EINVAL;
  if (!backed(m, file, args->ctx_address, 0) &&
      !vam_svm_covers(m, process, args->ctx_address, args->ctx_size))
    return -VAM_EINVAL;
  return 0;
}

static int free_doorbell(const struct vam_model* m, uint32_t process, uint32_t gpu, uint32_t* doorbell) {
  const struct vam_process* p = VAM_PROCESS_AT(m, process);
  uint32_t slots = m->gpu[gpu].config.doorbell_bytes / 8, value;
  for (*doorbell = 0; *doorbell < slots; ++*doorbell) {
    int taken = 0;
    for (uint32_t id = 0; !taken && (value = vam_idr_next(m, &p->queues, &id)); ++id) {
      const struct vam_queue* q = VAM_AT(m, VAM_T_QUEUE, vam_queue, value);
      taken = q->gpu == gpu && q->doorbell == *doorbell;
    }
    if (!taken) return 0;
  }
  return -VAM_ENOMEM;
}

static int add_queue(struct vam_model* m, uint32_t process, uint32_t gpu, int64_t fixed_id, uint32_t* out) {
  struct vam_process* p = VAM_PROCESS_AT(m, process);
  uint32_t queue = vam_take(m, VAM_T_QUEUE), id = (uint32_t)fixed_id;
  int err;
  if (!queue) return -VAM_ENOMEM;
  err = fixed_id < 0 ? vam_idr_add(m, &p->queues, 0, 1023, queue, &id)
                     : vam_idr_add_at(m, &p->queues, id, queue);
  if (err) {
    vam_put(m, VAM_T_QUEUE, queue);
    return err == -VAM_ENOSPC ? -VAM_ENOMEM : err;
  }
  VAM_AT(m, VAM_T_QUEUE, vam_queue, queue)->process = process;
  VAM_AT(m, VAM_T_QUEUE, vam_queue, queue)->gpu = gpu;
  VAM_AT(m, VAM_T_QUEUE, vam_queue, queue)->id = id;
  p->num_queues++;
  *out = queue;
  return 0;
}

static int create_queue(const struct vam_call* call, uint32_t process, struct vam_create_queue_args* args) {
  struct vam_model* m = call->model;
  struct vam_process* p = VAM_PROCESS_AT(m, process);
  uint32_t gpu, queue, doorbell, ring_size = args->ring_size;
  struct vam_queue* q;
  int err;
  if ((args->percentage & 0xff) > 100 || args->priority > 15) return -VAM_EINVAL;
  if (ring_size && (ring_size & (ring_size - 1))) return -VAM_EINVAL;
  if (ring_size && ring_size < 1024) ring_size = 1024;
  if ((args->ring_base | args->read_pointer | args->write_pointer | args->eop_address | args->ctx_address) >>
      47)
    return -VAM_EFAULT; /* no user address */
  if (args->type > VAM_QUEUE_SDMA_BY_ENG_ID) return -VAM_ENOTSUPP;
  gpu = vam_pdd_by_user_id(m, process, args->gpu_id);
  if (!gpu) return -VAM_EINVAL;
  gpu--;
  if (!p->pdd[gpu].file) return -VAM_ESRCH;
  if (args->type == VAM_QUEUE_SDMA_BY_ENG_ID && args->sdma_engine_id >= m->gpu[gpu].config.sdma_instances)
    return -VAM_EINVAL;
  err = check_buffers(call, process, gpu, args, ring_size);
  if (!err) err = free_doorbell(m, process, gpu, &doorbell);
  if (!err) err = add_queue(m, process, gpu, -1, &queue);
  if (err) return err;
  q = VAM_AT(m, VAM_T_QUEUE, vam_queue, queue);
  q->type = args->type == VAM_QUEUE_SDMA || args->type == VAM_QUEUE_SDMA_BY_ENG_ID ? (uint32_t)TYPE_SDMA
            : args->type == VAM_QUEUE_SDMA_XGMI                                    ? (uint32_t)TYPE_SDMA_XGMI
                                                                                   : (uint32_t)TYPE_COMPUTE;
  q->format = args->type == VAM_QUEUE_COMPUTE_AQL;
  q->priority = args->priority;
  q->percent = args->percentage & 0xff;
  q->doorbell = doorbell;
  q->sdma_id = args->type == VAM_QUEUE_SDMA_BY_ENG_ID ? args->sdma_engine_id : 0;
  q->ring = args->ring_base;
  q->ring_size = ring_size;
  q->read_ptr = args->read_pointer;
  q->write_ptr = args->write_pointer;
  q->eop = args->eop_address;
  q->eop_size = (uint32_t)args->eop_size;
  q->ctx_area = args->ctx_address;
  q->ctx_size = args->ctx_size;
  q->ctl_stack_size = args->ctl_stack_size;
  q->active = q->ring && q->ring_size && q->percent;
  q->seed = (++m->serial) * 0xd1342543de82ef95ull;
  args->queue_id = q->id;
  args->doorbell_offset =
      VAM_MMAP_DOORBELL | (uint64_t)args->gpu_id << VAM_MMAP_GPU_SHIFT | (uint64_t)doorbell * 8;
  return 0;
}

void vam_queue_free(struct vam_model* m, uint32_t queue) {
  struct vam_queue* q = VAM_AT(m, VAM_T_QUEUE, vam_queue, queue);
  struct vam_process* p = VAM_PROCESS_AT(m, q->process);
  vam_idr_remove(m, &p->queues, q->id);
  p->num_queues--;
  vam_put(m, VAM_T_QUEUE, queue);
}

static int check_update(const struct vam_update_queue_args* args) {
  if ((args->percentage & 0xff) > 100 || args->priority > 15) return -VAM_EINVAL;
  return args->ring_size & (args->ring_size - 1) ? -VAM_EINVAL : 0;
}

static int update_missing_queue(const struct vam_update_queue_args* args) {
  int err = check_update(args);
  return err ? err : -VAM_EFAULT;
}

static int update_queue(struct vam_queue* q, const struct vam_update_queue_args* args) {
  int err = check_update(args);
  if (err) return err;
  q->ring = args->ring_base;
  q->ring_size = args->ring_size && args->ring_size < 1024 ? 1024 : args->ring_size;
  q->percent = args->percentage & 0xff;
  q->priority = args->priority;
  q->active = q->ring && q->ring_size && q->percent;
  q->fault = VAM_QUEUE_OK;
  q->done = 0;
  return 0;
}

int vam_queue_ioctl(const struct vam_call* call, uint32_t nr, void* arg) {
  struct vam_model* m = call->model;
  uint32_t process = VAM_FILE_AT(m, call->file)->process, id, queue;
  struct vam_queue* q;
  if (nr == VAM_KFD_CREATE_QUEUE) return create_queue(call, process, arg);
  if (nr == VAM_KFD_UPDATE_QUEUE)
    id = ((struct vam_update_queue_args*)arg)->queue_id;
  else if (nr == VAM_KFD_GET_QUEUE_WAVE_STATE)
    id = ((struct vam_wave_state_args*)arg)->queue_id;
  else
    id = *(const uint32_t*)arg; /* DESTROY_QUEUE, SET_CU_MASK, ALLOC_QUEUE_GWS begin with it */
  queue = vam_idr_find(m, &VAM_PROCESS_AT(m, process)->queues, id);
  if (!queue) return nr == VAM_KFD_UPDATE_QUEUE ? update_missing_queue(arg) : -VAM_EINVAL;
  q = VAM_AT(m, VAM_T_QUEUE, vam_queue, queue);
  switch (nr) {
    case VAM_KFD_DESTROY_QUEUE:
      vam_queue_free(m, queue);
      return 0;
    case VAM_KFD_UPDATE_QUEUE:
      return update_queue(q, arg);
    case VAM_KFD_SET_CU_MASK:
      return ((struct vam_cu_mask_args*)arg)->num_cu_mask % 32 ? -VAM_EINVAL : 0;
    case VAM_KFD_ALLOC_QUEUE_GWS:
      return -VAM_ENODEV;
    default:
      return -VAM_EINVAL; /* wave state: the queue is never stopped by a debugger here */
  }
}

int vam_queue_restore(const struct vam_call* call, uint32_t process, const struct vam_priv_queue* r,
                      uint64_t state_user, uint32_t* consumed) {
  struct vam_model* m = call->model;
  uint32_t gpu = vam_pdd_by_user_id(m, process, r->gpu_id), queue;
  uint64_t total = (uint64_t)r->mqd_size + r->ctl_stack_size, seed = 0;
  struct vam_queue* q;
  int err, damaged = 0;
  if (!gpu || r->type >= TYPE_COUNT) return -VAM_EINVAL;
  gpu--;
  if (r->mqd_size != m->gpu[gpu].config.mqd_bytes) return -VAM_EINVAL;
  for (uint64_t at = 0; at < total;) {
    uint8_t block[256];
    uint64_t n = total - at < sizeof(block) ? total - at : sizeof(block);
    if (call->os->copy_in(call, block, state_user + at, n)) return -VAM_EFAULT;
    if (at == 0) memcpy(&seed, block, n < 8 ? n : 8);
    for (uint64_t i = 0; i < n; ++i) damaged |= block[i] != vam_queue_state_byte(seed, at + i);
    at += n;
  }
  err = add_queue(m, process, gpu, (int64_t)r->q_id, &queue);
  if (err) return err;
  if (damaged) VAM_PROCESS_AT(m, process)->mqd_damaged++;
  q = VAM_AT(m, VAM_T_QUEUE, vam_queue, queue);
  q->type = r->type;
  q->format = r->format;
  q->priority = r->priority;
  q->percent = r->percent;
  q->doorbell = r->doorbell_id;
  q->sdma_id = r->sdma_id;
  q->gws = r->gws;
  q->ring = r->q_address;
  q->ring_size = r->q_size;
  q->read_ptr = r->read_ptr;
  q->write_ptr = r->write_ptr;
  q->eop = r->eop_address;
  q->eop_size = r->eop_size;
  q->ctx_area = r->ctx_address;
  q->ctx_size = r->ctx_size;
  q->ctl_stack_size = r->ctl_stack_size;
  q->active = q->ring && q->ring_size && q->percent;
  q->seed = seed;
  *consumed = (uint32_t)total;
  return 0;
}
