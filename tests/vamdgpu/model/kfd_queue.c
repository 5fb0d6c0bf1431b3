/* SPDX-License-Identifier: MIT */
/*
 * User-mode queues of a KFD process: creation with the kernel's checks, and their state in the private data.
 * Whether a queue runs is its process' eviction counter on its GPU; queue_run.c runs it. Its MQD and control
 * stack are bytes computed from a seed, so that damage to the opaque data shows.
 */
#include "queue_run.h"

/* Types inside the kernel, and so in the private data. */
enum { TYPE_COMPUTE = 0, TYPE_SDMA = 1, TYPE_SDMA_XGMI = 4, TYPE_COUNT = 6 };

/* User queues of one SDMA engine, and the doorbells (8 bytes each, by index in the process' slice) that
 * belong to them on SOC15: engine i begins at FIRST + 10 * i, and odd queues are MIRROR further. */
enum { SDMA_QUEUES = 8, SDMA_DOORBELL_FIRST = 0x100, SDMA_DOORBELL_MIRROR = 512 };

static int is_sdma(uint32_t type) {
  return type == TYPE_SDMA || type == TYPE_SDMA_XGMI;
}

uint32_t vam_queue_mqd_bytes(const struct vam_model* m, uint32_t gpu, uint32_t type) {
  return type == TYPE_COMPUTE ? m->gpu[gpu].config.mqd_bytes : VAM_SDMA_MQD_BYTES;
}

/* v9_mqd: its size, and the dwords that tell whether kernels are counted, and how far the control stack and
 * the state of waves reach. */
enum {
  MQD_BYTES = 2048,
  COUNTERS_DWORD = 12,
  STACK_OFFSET_DWORD = 174,
  STACK_SIZE_DWORD = 175,
  WAVE_STATE_DWORD = 176
};
enum { SAVED_STACK_BYTES = 64, SAVED_STATE_BYTES = 4096 };

static uint32_t meant_dword(const struct vam_model* m, const struct vam_queue* q, uint32_t dword) {
  const uint32_t waves = VAM_PROCESS_AT(m, q->process)->waves_saved;
  const int words = waves == VAM_WAVES_WORDS || waves == VAM_WAVES_SAVED;
  if (dword == COUNTERS_DWORD) return waves == VAM_WAVES_COUNTED;
  if (dword == STACK_OFFSET_DWORD) return q->stack_bytes - (words ? SAVED_STACK_BYTES : 0);
  if (dword == WAVE_STATE_DWORD) return q->stack_bytes + (waves == VAM_WAVES_SAVED ? SAVED_STATE_BYTES : 0);
  return q->stack_bytes;
}

static int is_meant_dword(const struct vam_model* m, const struct vam_queue* q, uint64_t at) {
  const uint64_t dword = at % MQD_BYTES / 4;
  if (q->type != TYPE_COMPUTE || at >= vam_queue_mqd_bytes(m, q->gpu, q->type)) return 0;
  return dword == COUNTERS_DWORD || (dword >= STACK_OFFSET_DWORD && dword <= WAVE_STATE_DWORD);
}

uint8_t vam_queue_state_byte(const struct vam_model* m, const struct vam_queue* q, uint64_t at) {
  uint64_t x;
  if (at < 8) return (uint8_t)(q->seed >> (8 * at));
  if (is_meant_dword(m, q, at))
    return (uint8_t)(meant_dword(m, q, (uint32_t)(at % MQD_BYTES / 4)) >> (8 * (at % 4)));
  x = q->seed + (at / 8) * 0x9e3779b97f4a7c15ull;
  x ^= x >> 31;
  x *= 0xbf58476d1ce4e5b9ull;
  return (uint8_t)(x >> (8 * (at & 7)));
}

int vam_run_kernels(struct vam_model* m, int32_t pid, uint32_t waves, uint32_t stops) {
  const uint32_t process = vam_find_process(m, pid, 0);
  if (!process || waves > VAM_WAVES_COUNTED) return -VAM_EINVAL;
  VAM_PROCESS_AT(m, process)->waves = waves;
  VAM_PROCESS_AT(m, process)->stops_with_waves = stops;
  return 0;
}

/* ---- buffers ----------------------------------------------------------------------------------------------
 */

static uint64_t whole_pages(uint64_t size) {
  return (size + VAM_PAGE - 1) & ~(VAM_PAGE - 1);
}

/* Whether a VA mapping starts at the page of `address` and has exactly the pages of `size`. Less than a page
 * is no page, and any mapping will do, before Linux 7.2. */
static int backed(const struct vam_model* m, uint32_t file, uint64_t address, uint64_t size) {
  uint32_t range = vam_range_find(m, VAM_FILE_AT(m, file)->vm, address & VAM_VA_MASK);
  if (!range || VAM_RANGE_AT(m, range)->start != (address & ~(VAM_PAGE - 1))) return 0;
  if (size < VAM_PAGE && m->config.kfd_minor_version < 23) return 1;
  return VAM_RANGE_AT(m, range)->size == whole_pages(size);
}

/* What Linux 6.12 asks of a queue's buffers (kfd_queue_acquire_buffers). */
static int check_buffers(const struct vam_model* m, const struct vam_queue* q) {
  const struct vamdgpu_gpu_config* config = &m->gpu[q->gpu].config;
  uint32_t file = VAM_PROCESS_AT(m, q->process)->pdd[q->gpu].file;
  uint64_t area = whole_pages(((uint64_t)q->ctx_size + config->debug_bytes) * config->xccs);
  if (!backed(m, file, q->write_ptr, VAM_PAGE) || !backed(m, file, q->read_ptr, VAM_PAGE)) return -VAM_EINVAL;
  if (!backed(m, file, q->ring, q->ring_size)) return -VAM_EINVAL;
  if (is_sdma(q->type)) return 0;
  if (q->eop && (q->eop_size < VAM_PAGE || !backed(m, file, q->eop, whole_pages(q->eop_size))))
    return -VAM_EINVAL;
  if (q->ctl_stack_size != config->ctl_stack_bytes || q->ctx_size < config->cwsr_bytes) return -VAM_EINVAL;
  if (!backed(m, file, q->ctx_area, area) && !vam_svm_covers(m, q->process, q->ctx_area, area))
    return -VAM_EINVAL;
  return 0;
}

int vam_queue_uses(const struct vam_model* m, uint32_t process, uint32_t gpu, uint64_t va, uint64_t size) {
  const struct vam_process* p = VAM_PROCESS_AT(m, process);
  uint32_t value;
  for (uint32_t id = 0; (value = vam_idr_next(m, &p->queues, &id)); ++id) {
    const struct vam_queue* q = VAM_AT(m, VAM_T_QUEUE, vam_queue, value);
    const uint64_t places[] = {q->ring, q->write_ptr, q->read_ptr, q->eop, q->ctx_area};
    if (q->gpu != gpu || !q->holds_buffers) continue;
    for (uint32_t i = 0; i < (is_sdma(q->type) ? 3u : 5u); ++i) {
      if (places[i] - va < size) return 1;
    }
  }
  return 0;
}

/* ---- what a GPU has few of --------------------------------------------------------------------------------
 */

static int doorbell_taken(const struct vam_model* m, uint32_t process, uint32_t gpu, uint32_t doorbell) {
  const struct vam_process* p = VAM_PROCESS_AT(m, process);
  uint32_t value;
  for (uint32_t id = 0; (value = vam_idr_next(m, &p->queues, &id)); ++id) {
    const struct vam_queue* q = VAM_AT(m, VAM_T_QUEUE, vam_queue, value);
    if (q->gpu == gpu && q->doorbell == doorbell) return 1;
  }
  return 0;
}

static int free_doorbell(const struct vam_model* m, uint32_t process, uint32_t gpu, uint32_t* doorbell) {
  uint32_t slots = m->gpu[gpu].config.doorbell_bytes / 8;
  for (*doorbell = 0; *doorbell < slots; ++*doorbell) {
    uint32_t place = *doorbell % SDMA_DOORBELL_MIRROR;
    if (place >= SDMA_DOORBELL_FIRST) continue; /* not a compute queue's */
    if (!doorbell_taken(m, process, gpu, *doorbell)) return 0;
  }
  return -VAM_ENOMEM;
}

/* SDMA queues are the GPU's, in all processes together: which one of its engines for this type. */
static int sdma_taken(const struct vam_model* m, uint32_t gpu, uint32_t type, uint32_t sdma_id) {
  for (uint32_t i = 1; i < m->table[VAM_T_QUEUE].high; ++i) {
    const struct vam_queue* q = VAM_AT(m, VAM_T_QUEUE, vam_queue, i);
    if (q->rec.live && q->gpu == gpu && q->type == type && q->sdma_id == sdma_id) return 1;
  }
  return 0;
}

/* Engine and doorbell of an SDMA queue that has its sdma_id. */
static void place_sdma(const struct vam_model* m, struct vam_queue* q) {
  const struct vamdgpu_gpu_config* config = &m->gpu[q->gpu].config;
  uint32_t plain = config->sdma_instances - config->sdma_xgmi;
  uint32_t engines = q->type == TYPE_SDMA ? plain : config->sdma_xgmi, number = q->sdma_id / engines;
  q->sdma_engine = q->sdma_id % engines + (q->type == TYPE_SDMA ? 0 : plain);
  q->doorbell =
      SDMA_DOORBELL_FIRST + 10 * q->sdma_engine + (number & 1) * SDMA_DOORBELL_MIRROR + (number >> 1);
}

static uint32_t sdma_engines(const struct vam_model* m, uint32_t gpu, uint32_t type) {
  const struct vamdgpu_gpu_config* config = &m->gpu[gpu].config;
  return type == TYPE_SDMA ? config->sdma_instances - config->sdma_xgmi : config->sdma_xgmi;
}

/* A free sdma_id, from `first` on in steps of `step`: the lowest. */
static int take_sdma(const struct vam_model* m, struct vam_queue* q, uint32_t first, uint32_t step) {
  uint32_t all = sdma_engines(m, q->gpu, q->type) * SDMA_QUEUES;
  for (uint32_t id = first; id < all; id += step) {
    if (sdma_taken(m, q->gpu, q->type, id)) continue;
    q->sdma_id = id;
    place_sdma(m, q);
    return 0;
  }
  return -VAM_ENOMEM;
}

static int has_exact_buffers(const struct vam_model* m) {
  return m->config.kfd_minor_version >= 17;
}

/* Puts the queue `made` into its process, under its id or the lowest that is free (-1). */
static int add_queue(struct vam_model* m, const struct vam_queue* made, int64_t fixed_id, uint32_t* out) {
  struct vam_process* p = VAM_PROCESS_AT(m, made->process);
  uint32_t queue = vam_take(m, VAM_T_QUEUE), id = (uint32_t)fixed_id;
  struct vam_rec rec;
  int err;
  if (!queue) return -VAM_ENOMEM;
  err = fixed_id < 0 ? vam_idr_add(m, &p->queues, 0, 1023, queue, &id)
                     : vam_idr_add_at(m, &p->queues, id, queue);
  if (err) {
    vam_put(m, VAM_T_QUEUE, queue);
    return err == -VAM_ENOSPC && fixed_id < 0 ? -VAM_ENOMEM : err;
  }
  rec = VAM_AT(m, VAM_T_QUEUE, vam_queue, queue)->rec;
  *VAM_AT(m, VAM_T_QUEUE, vam_queue, queue) = *made;
  VAM_AT(m, VAM_T_QUEUE, vam_queue, queue)->rec = rec;
  VAM_AT(m, VAM_T_QUEUE, vam_queue, queue)->id = id;
  VAM_AT(m, VAM_T_QUEUE, vam_queue, queue)->serial = ++m->serial;
  p->num_queues++;
  *out = queue;
  return 0;
}

static int create_queue(const struct vam_call* call, uint32_t process, struct vam_create_queue_args* args) {
  struct vam_model* m = call->model;
  struct vam_process* p = VAM_PROCESS_AT(m, process);
  uint32_t gpu, queue, ring_size = args->ring_size, first = 0, step = 1;
  struct vam_queue made;
  struct vam_queue* q = &made;
  int err;
  if ((args->percentage & 0xff) > 100 || args->priority > 15) return -VAM_EINVAL;
  if (ring_size && (ring_size & (ring_size - 1))) return -VAM_EINVAL;
  if (ring_size && ring_size < 1024) ring_size = 1024;
  if ((args->ring_base | args->read_pointer | args->write_pointer | args->eop_address | args->ctx_address) >>
      47)
    return -VAM_EFAULT; /* no user address */
  if (args->type > (m->config.kfd_minor_version < 17 ? VAM_QUEUE_SDMA_XGMI : VAM_QUEUE_SDMA_BY_ENG_ID))
    return -VAM_ENOTSUPP;
  gpu = vam_pdd_by_user_id(m, process, args->gpu_id);
  if (!gpu) return -VAM_EINVAL;
  gpu--;
  if (!p->pdd[gpu].file) return -VAM_ESRCH;
  if (args->type == VAM_QUEUE_SDMA_BY_ENG_ID && args->sdma_engine_id >= m->gpu[gpu].config.sdma_instances)
    return -VAM_EINVAL;
  memset(&made, 0, sizeof(made));
  q->process = process;
  q->gpu = gpu;
  q->type = args->type == VAM_QUEUE_SDMA        ? (uint32_t)TYPE_SDMA
            : args->type == VAM_QUEUE_SDMA_XGMI ? (uint32_t)TYPE_SDMA_XGMI
                                                : (uint32_t)TYPE_COMPUTE;
  if (args->type == VAM_QUEUE_SDMA_BY_ENG_ID) {
    uint32_t plain = sdma_engines(m, gpu, TYPE_SDMA);
    q->type = args->sdma_engine_id < plain ? (uint32_t)TYPE_SDMA : (uint32_t)TYPE_SDMA_XGMI;
    first = args->sdma_engine_id < plain ? args->sdma_engine_id : args->sdma_engine_id - plain;
    step = sdma_engines(m, gpu, q->type);
  }
  q->format = args->type == VAM_QUEUE_COMPUTE_AQL;
  q->priority = args->priority;
  q->percent = args->percentage & 0xff;
  q->ring = args->ring_base;
  q->ring_size = ring_size;
  q->read_ptr = args->read_pointer;
  q->write_ptr = args->write_pointer;
  q->eop = args->eop_address;
  q->eop_size = (uint32_t)args->eop_size;
  q->ctx_area = args->ctx_address;
  q->ctx_size = args->ctx_size;
  q->ctl_stack_size = q->stack_bytes = args->ctl_stack_size;
  q->active = q->ring && q->ring_size && q->percent;
  if (has_exact_buffers(m)) {
    err = check_buffers(m, q);
    if (err) return err;
    q->holds_buffers = 1;
  }
  err = is_sdma(q->type) ? take_sdma(m, q, first, step) : free_doorbell(m, process, gpu, &q->doorbell);
  if (!err) err = add_queue(m, &made, -1, &queue);
  if (err) return err;
  q = VAM_AT(m, VAM_T_QUEUE, vam_queue, queue);
  q->seed = q->serial * 0xd1342543de82ef95ull;
  args->queue_id = q->id;
  args->doorbell_offset =
      VAM_MMAP_DOORBELL | (uint64_t)args->gpu_id << VAM_MMAP_GPU_SHIFT | (uint64_t)q->doorbell * 8;
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

static int update_queue(const struct vam_model* m, struct vam_queue* q,
                        const struct vam_update_queue_args* args) {
  uint32_t file = VAM_PROCESS_AT(m, q->process)->pdd[q->gpu].file;
  uint64_t ring_size = args->ring_size && args->ring_size < 1024 ? 1024 : args->ring_size;
  int err = check_update(args);
  if (err) return err;
  if (has_exact_buffers(m) && args->ring_base && ring_size && !backed(m, file, args->ring_base, ring_size))
    return -VAM_EFAULT;
  q->ring = args->ring_base;
  q->ring_size = ring_size;
  q->percent = args->percentage & 0xff;
  q->priority = args->priority;
  q->active = q->ring && q->ring_size && q->percent;
  q->fault = VAM_QUEUE_OK;
  q->done = 0;
  return 0;
}

/* One queue of a process may have the GPU's global wave sync; nothing here needs it. */
static int set_gws(const struct vam_model* m, struct vam_queue* q, struct vam_queue_gws_args* args) {
  const struct vam_process* p = VAM_PROCESS_AT(m, q->process);
  uint32_t value, taken = 0;
  for (uint32_t id = 0; (value = vam_idr_next(m, &p->queues, &id)); ++id) {
    const struct vam_queue* other = VAM_AT(m, VAM_T_QUEUE, vam_queue, value);
    taken |= other->gpu == q->gpu && other->gws;
  }
  if (args->num_gws && taken) return -VAM_EBUSY;
  if (!args->num_gws && !taken) return -VAM_EINVAL;
  q->gws = args->num_gws != 0;
  args->first_gws = 0;
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
      return update_queue(m, q, arg);
    case VAM_KFD_SET_CU_MASK:
      return ((struct vam_cu_mask_args*)arg)->num_cu_mask % 32 ? -VAM_EINVAL : 0;
    case VAM_KFD_ALLOC_QUEUE_GWS:
      return set_gws(m, q, arg);
    default:
      return -VAM_EINVAL; /* wave state: the queue is never stopped by a debugger here */
  }
}

/* What a record's state begins with: the queue's seed, and the dwords of its first MQD that are not computed
 * from that. */
static int read_state(const struct vam_call* call, uint64_t state_user, uint32_t mqd_bytes,
                      struct vam_queue* q) {
  struct vam_process* p = VAM_PROCESS_AT(call->model, q->process);
  uint32_t words[3], counters; /* from STACK_OFFSET_DWORD on */
  if (call->os->copy_in(call, &q->seed, state_user, sizeof(q->seed))) return -VAM_EFAULT;
  if (q->type != TYPE_COMPUTE || mqd_bytes < MQD_BYTES) return 0;
  if (call->os->copy_in(call, words, state_user + STACK_OFFSET_DWORD * 4, sizeof(words)) ||
      call->os->copy_in(call, &counters, state_user + COUNTERS_DWORD * 4, sizeof(counters)))
    return -VAM_EFAULT;
  q->stack_bytes = words[1];
  p->waves_saved = counters               ? VAM_WAVES_COUNTED
                   : words[0] == words[1] ? VAM_WAVES_NONE
                   : words[2] > words[1]  ? VAM_WAVES_SAVED
                                          : VAM_WAVES_WORDS;
  return 0;
}

int vam_queue_restore(const struct vam_call* call, uint32_t process, const struct vam_priv_queue* r,
                      uint64_t state_user, uint32_t* consumed) {
  struct vam_model* m = call->model;
  uint32_t gpu = vam_pdd_by_user_id(m, process, r->gpu_id), queue;
  uint64_t total = (uint64_t)r->mqd_size + r->ctl_stack_size;
  struct vam_queue made;
  struct vam_queue* q = &made;
  int err, damaged = 0;
  if (!gpu || r->type >= TYPE_COUNT) return -VAM_EINVAL;
  gpu--;
  if (r->mqd_size != vam_queue_mqd_bytes(m, gpu, r->type)) return -VAM_EINVAL;
  /* Linux 7.2 compares it with the size of one XCC's. */
  if (r->type == TYPE_COMPUTE && m->config.kfd_minor_version >= 23 && r->mqd_size > MQD_BYTES)
    return -VAM_EINVAL;
  memset(&made, 0, sizeof(made));
  q->process = process;
  q->gpu = gpu;
  q->type = r->type;
  err = read_state(call, state_user, r->mqd_size, q);
  if (err) return err;
  for (uint64_t at = 0; at < total;) {
    uint8_t block[256];
    uint64_t n = total - at < sizeof(block) ? total - at : sizeof(block);
    if (call->os->copy_in(call, block, state_user + at, n)) return -VAM_EFAULT;
    for (uint64_t i = 0; i < n; ++i) damaged |= block[i] != vam_queue_state_byte(m, q, at + i);
    at += n;
  }
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
  /* Linux 7.2 has a restored queue hold none of its buffers. */
  if (has_exact_buffers(m) && m->config.kfd_minor_version < 23) {
    err = check_buffers(m, q);
    if (err) return err;
    q->holds_buffers = 1;
  }
  if (vam_idr_find(m, &VAM_PROCESS_AT(m, process)->queues, r->q_id)) return -VAM_ENOSPC;
  if (is_sdma(q->type)) {
    if (r->sdma_id >= sdma_engines(m, gpu, q->type) * SDMA_QUEUES) return -VAM_EINVAL;
    if (sdma_taken(m, gpu, q->type, r->sdma_id)) return -VAM_EBUSY; /* another process has it still */
    place_sdma(m, q);
    if (q->doorbell != r->doorbell_id) return -VAM_EINVAL;
  } else if (doorbell_taken(m, process, gpu, r->doorbell_id)) {
    return -VAM_EINVAL;
  }
  err = add_queue(m, &made, (int64_t)r->q_id, &queue);
  if (err) return err;
  if (damaged) VAM_PROCESS_AT(m, process)->mqd_damaged++;
  *consumed = (uint32_t)total;
  return 0;
}
