/* SPDX-License-Identifier: MIT */
/*
 * Submission to the DMA rings: contexts, BO lists, command submission, fences and the waits on them.
 *
 * A job lives from CS to vam_job_finish() and holds references on its BOs, its fence and the fences it waits
 * for. Jobs of one entity (context, ring) run in order; jobs of different entities only as dependencies and
 * implicit synchronisation between DRM files say.
 */
#include "model.h"

/* ---- chains
 * --------------------------------------------------------------------------------------------------- */

enum { CHUNK_WORDS = 60 };

uint32_t vam_chain_word(const struct vam_model* m, uint32_t head, uint32_t i) {
  while (head && i >= CHUNK_WORDS) {
    head = VAM_CHUNK_AT(m, head)->next;
    i -= CHUNK_WORDS;
  }
  return head && i < VAM_CHUNK_AT(m, head)->used ? VAM_CHUNK_AT(m, head)->word[i] : 0;
}

int vam_chain_push(struct vam_model* m, uint32_t* head, uint32_t* tail, uint32_t word) {
  if (!*tail || VAM_CHUNK_AT(m, *tail)->used == CHUNK_WORDS) {
    uint32_t chunk = vam_take(m, VAM_T_CHUNK);
    if (!chunk) return -VAM_ENOMEM;
    if (*tail)
      VAM_CHUNK_AT(m, *tail)->next = chunk;
    else
      *head = chunk;
    *tail = chunk;
  }
  VAM_CHUNK_AT(m, *tail)->word[VAM_CHUNK_AT(m, *tail)->used++] = word;
  return 0;
}

void vam_chain_free(struct vam_model* m, uint32_t head) {
  while (head) {
    uint32_t next = VAM_CHUNK_AT(m, head)->next;
    vam_put(m, VAM_T_CHUNK, head);
    head = next;
  }
}

/* ---- fences
 * ----------------------------------------------------------------------------------------------------- */

uint32_t vam_fence_new(struct vam_model* m, uint32_t gpu) {
  uint32_t fence = vam_take(m, VAM_T_FENCE);
  if (!fence) return 0;
  VAM_FENCE_AT(m, fence)->refs = 1;
  VAM_FENCE_AT(m, fence)->gpu = gpu;
  return fence;
}

void vam_fence_ref(struct vam_model* m, uint32_t fence) {
  if (fence) VAM_FENCE_AT(m, fence)->refs++;
}

void vam_fence_unref(struct vam_model* m, uint32_t fence) {
  if (!fence || --VAM_FENCE_AT(m, fence)->refs) return;
  for (uint32_t e = VAM_FENCE_AT(m, fence)->exports, next; e; e = next) {
    next = VAM_AT(m, VAM_T_EXPORT, vam_export, e)->next;
    vam_put(m, VAM_T_EXPORT, e);
  }
  vam_put(m, VAM_T_FENCE, fence);
}

static int signaled(const struct vam_model* m, uint32_t fence) {
  return !fence || VAM_FENCE_AT(m, fence)->state == VAM_FENCE_DONE;
}

static uint32_t rings(const struct vam_model* m, uint32_t file) {
  return m->gpu[VAM_FILE_AT(m, file)->gpu].config.sdma_instances > 1 ? VAM_DMA_RINGS : 1;
}

/* The entity a (context, ip, instance, ring) names. */
static int find_entity(const struct vam_model* m, uint32_t file, uint32_t ctx_id, uint32_t ip,
                       uint32_t instance, uint32_t ring, uint32_t* ctx) {
  *ctx = vam_idr_find(m, &VAM_FILE_AT(m, file)->ctxs, ctx_id);
  if (!*ctx || ip != VAM_IP_DMA || instance != 0 || ring >= rings(m, file)) return -VAM_EINVAL;
  return 0;
}

int vam_fence_lookup(const struct vam_model* m, uint32_t file, const struct vam_fence_id* id,
                     uint32_t* fence) {
  const struct vam_entity* e;
  uint32_t ctx;
  uint64_t seq = id->seq;
  int err = find_entity(m, file, id->ctx_id, id->ip_type, id->ip_instance, id->ring, &ctx);
  if (err) return err;
  e = &VAM_CTX_AT(m, ctx)->entity[id->ring];
  if (seq == UINT64_MAX) seq = e->last_seq; /* "the last one" */
  if (seq > e->last_seq) return -VAM_EINVAL;
  *fence = seq == 0 || seq + VAM_ENTITY_JOBS <= e->last_seq ? 0 : e->fence[seq % VAM_ENTITY_JOBS];
  return 0;
}

/* ---- contexts
 * ----------------------------------------------------------------------------------------------------- */

static void ctx_release(struct vam_model* m, uint32_t ctx) {
  struct vam_ctx* c = VAM_CTX_AT(m, ctx);
  if (!c->closed || c->entity[0].outstanding || c->entity[1].outstanding) return;
  for (uint32_t r = 0; r < VAM_DMA_RINGS; ++r) {
    for (uint32_t i = 0; i < VAM_ENTITY_JOBS; ++i) vam_fence_unref(m, c->entity[r].fence[i]);
  }
  vam_put(m, VAM_T_CTX, ctx);
}

void vam_ctx_free(struct vam_model* m, uint32_t ctx) {
  VAM_CTX_AT(m, ctx)->closed = 1;
  ctx_release(m, ctx);
}

static int ctx_ioctl(const struct vam_call* call, struct vam_ctx_args* args) {
  struct vam_model* m = call->model;
  struct vam_file* f = VAM_FILE_AT(m, call->file);
  uint32_t ctx, id, lost;
  int err;
  if (args->op == 1) {
    if (args->priority < -1023 || args->priority > 1023) args->priority = 0; /* as the driver takes garbage */
    if (args->priority > 0 && !call->os->capable(call)) return -VAM_EACCES;
    ctx = vam_take(m, VAM_T_CTX);
    if (!ctx) return -VAM_ENOMEM;
    err = vam_idr_add(m, &f->ctxs, 1, 4095, ctx, &id);
    if (err) {
      vam_put(m, VAM_T_CTX, ctx);
      return err;
    }
    VAM_CTX_AT(m, ctx)->file = call->file;
    VAM_CTX_AT(m, ctx)->id = id;
    memset(args, 0, sizeof(*args));
    *(uint32_t*)args = id;
    return 0;
  }
  ctx = vam_idr_find(m, &f->ctxs, args->ctx_id);
  if (!ctx || args->op < 2 || args->op > 4) return -VAM_EINVAL;
  if (args->op == 2) {
    vam_idr_remove(m, &f->ctxs, args->ctx_id);
    vam_ctx_free(m, ctx);
    return 0;
  }
  lost = VAM_CTX_AT(m, ctx)->lost;
  {
    /* STATE: flags, hangs, reset status (1 = guilty); STATE2: flags reset 1, guilty 4. */
    uint32_t out[4] = {args->op == 4 && lost ? 5u : 0u, 0, 0, args->op == 3 && lost ? 1u : 0u};
    memcpy(args, out, sizeof(out));
  }
  return 0;
}

/* ---- BO lists
 * ------------------------------------------------------------------------------------------------------- */

void vam_bo_list_free(struct vam_model* m, uint32_t list) {
  struct vam_bo_list* l = VAM_AT(m, VAM_T_BO_LIST, vam_bo_list, list);
  for (uint32_t c = l->head; c; c = VAM_CHUNK_AT(m, c)->next) {
    for (uint32_t i = 0; i < VAM_CHUNK_AT(m, c)->used; ++i) vam_bo_unref(m, VAM_CHUNK_AT(m, c)->word[i]);
  }
  vam_chain_free(m, l->head);
  vam_put(m, VAM_T_BO_LIST, list);
}

/* Reads an array of {handle, priority} into a chain of BOs, each referenced. */
static int read_bos(const struct vam_call* call, uint32_t number, uint32_t info_size, uint64_t info,
                    uint32_t* head, uint32_t* tail) {
  struct vam_model* m = call->model;
  if (number > VAM_BO_LIST_MAX || info_size < 4) return -VAM_EINVAL;
  for (uint32_t done = 0; done < number;) {
    struct vam_bo_list_entry block[64];
    uint32_t n = number - done < 64 ? number - done : 64;
    if (info_size == sizeof(block[0])) {
      if (call->os->copy_in(call, block, info + (uint64_t)done * info_size, n * sizeof(block[0])))
        return -VAM_EFAULT;
    } else {
      n = 1;
      if (call->os->copy_in(call, block, info + (uint64_t)done * info_size, info_size < 8 ? info_size : 8))
        return -VAM_EFAULT;
    }
    for (uint32_t i = 0; i < n; ++i) {
      uint32_t bo = vam_handle_bo(m, call->file, block[i].handle);
      if (!bo) return -VAM_ENOENT;
      if (vam_chain_push(m, head, tail, bo)) return -VAM_ENOMEM;
      vam_bo_ref(m, bo);
    }
    done += n;
  }
  return 0;
}

static void drop_bos(struct vam_model* m, uint32_t head) {
  for (uint32_t c = head; c; c = VAM_CHUNK_AT(m, c)->next) {
    for (uint32_t i = 0; i < VAM_CHUNK_AT(m, c)->used; ++i) vam_bo_unref(m, VAM_CHUNK_AT(m, c)->word[i]);
  }
  vam_chain_free(m, head);
}

static int bo_list_ioctl(const struct vam_call* call, struct vam_bo_list_args* args) {
  struct vam_model* m = call->model;
  struct vam_file* f = VAM_FILE_AT(m, call->file);
  uint32_t list = 0, head = 0, tail = 0, id;
  int err;
  if (args->operation > 2) return -VAM_EINVAL;
  if (args->operation != 0) {
    list = vam_idr_find(m, &f->lists, args->list);
    if (!list) return args->operation == 1 ? 0 : -VAM_ENOENT;
  }
  if (args->operation == 1) {
    vam_idr_remove(m, &f->lists, args->list);
    vam_bo_list_free(m, list);
    return 0;
  }
  err = read_bos(call, args->number, args->info_size, args->info, &head, &tail);
  if (err) {
    drop_bos(m, head);
    return err;
  }
  if (args->operation == 2) {
    drop_bos(m, VAM_AT(m, VAM_T_BO_LIST, vam_bo_list, list)->head);
    id = args->list;
  } else {
    list = vam_take(m, VAM_T_BO_LIST);
    err = list ? vam_idr_add(m, &f->lists, 1, VAM_IDR_MAX, list, &id) : -VAM_ENOMEM;
    if (err) {
      if (list) vam_put(m, VAM_T_BO_LIST, list);
      drop_bos(m, head);
      return err;
    }
  }
  VAM_AT(m, VAM_T_BO_LIST, vam_bo_list, list)->head = head;
  VAM_AT(m, VAM_T_BO_LIST, vam_bo_list, list)->count = args->number;
  VAM_AT(m, VAM_T_BO_LIST, vam_bo_list, list)->file = call->file;
  *(uint32_t*)args = id;
  return 0;
}

/* ---- CS
 * -------------------------------------------------------------------------------------------------------------
 */

/* What a submission collects before it becomes a job; everything in it is referenced. */
struct submission {
  uint32_t ibs, ibs_tail, num_ibs, ring;
  uint32_t bos, bos_tail;
  uint32_t deps, deps_tail;
  uint32_t user_fence_bo, user_fence_offset;
  uint32_t ctx;
  int have_list;
};

static void drop_submission(struct vam_model* m, struct submission* s) {
  vam_chain_free(m, s->ibs);
  drop_bos(m, s->bos);
  for (uint32_t c = s->deps; c; c = VAM_CHUNK_AT(m, c)->next) {
    for (uint32_t i = 0; i < VAM_CHUNK_AT(m, c)->used; ++i) vam_fence_unref(m, VAM_CHUNK_AT(m, c)->word[i]);
  }
  vam_chain_free(m, s->deps);
}

static int add_dep(struct vam_model* m, struct submission* s, uint32_t fence) {
  if (signaled(m, fence)) return 0;
  if (vam_chain_push(m, &s->deps, &s->deps_tail, fence)) return -VAM_ENOMEM;
  vam_fence_ref(m, fence);
  return 0;
}

static int chunk_ib(const struct vam_call* call, struct submission* s, const struct vam_cs_ib* ib) {
  struct vam_model* m = call->model;
  uint32_t words[4] = {(uint32_t)ib->va, (uint32_t)(ib->va >> 32), ib->bytes, 0};
  if (ib->ip_type != VAM_IP_DMA || ib->ip_instance != 0 || ib->ring >= rings(m, call->file))
    return -VAM_EINVAL;
  if (s->num_ibs && ib->ring != s->ring) return -VAM_EINVAL;
  if (s->num_ibs == VAM_MAX_IBS || ib->bytes / 4 > VAM_MAX_IB_DWORDS) return -VAM_EINVAL;
  s->ring = ib->ring;
  s->num_ibs++;
  for (int i = 0; i < 4; ++i) {
    if (vam_chain_push(m, &s->ibs, &s->ibs_tail, words[i])) return -VAM_ENOMEM;
  }
  return 0;
}

static int chunk_user_fence(const struct vam_call* call, struct submission* s,
                            const struct vam_cs_fence* fence) {
  struct vam_model* m = call->model;
  uint32_t bo = vam_handle_bo(m, call->file, fence->handle);
  if (!bo || VAM_BO_AT(m, bo)->size != VAM_PAGE || fence->offset > VAM_PAGE - 8) return -VAM_EINVAL;
  if (VAM_BO_AT(m, bo)->kind == VAM_BO_USERPTR) return -VAM_EINVAL;
  if (vam_chain_push(m, &s->bos, &s->bos_tail, bo)) return -VAM_ENOMEM;
  vam_bo_ref(m, bo);
  s->user_fence_bo = bo;
  s->user_fence_offset = fence->offset;
  return 0;
}

/* Reads element `i` of a chunk. */
static int chunk_item(const struct vam_call* call, const struct vam_cs_chunk* c, uint32_t i, void* to,
                      uint32_t size) {
  return call->os->copy_in(call, to, c->data + (uint64_t)i * size, size) ? -VAM_EFAULT : 0;
}

static int chunk_deps(const struct vam_call* call, struct submission* s, const struct vam_cs_chunk* c) {
  uint32_t n = c->length_dw * 4 / sizeof(struct vam_cs_dep);
  for (uint32_t i = 0; i < n; ++i) {
    struct vam_cs_dep d;
    struct vam_fence_id id;
    uint32_t fence;
    int err = chunk_item(call, c, i, &d, sizeof(d));
    if (err) return err;
    id = (struct vam_fence_id){d.ctx_id, d.ip_type, d.ip_instance, d.ring, d.seq};
    err = vam_fence_lookup(call->model, call->file, &id, &fence);
    if (!err) err = add_dep(call->model, s, fence);
    if (err) return err;
  }
  return 0;
}

/* SYNCOBJ_IN and TIMELINE_WAIT. */
static int chunk_syncobj_in(const struct vam_call* call, struct submission* s, const struct vam_cs_chunk* c) {
  int timeline = c->id == VAM_CHUNK_TIMELINE_WAIT;
  uint32_t size = timeline ? 16 : 4, n = c->length_dw * 4 / size;
  for (uint32_t i = 0; i < n; ++i) {
    struct vam_cs_syncobj in = {0, 0, 0};
    uint32_t syncobj, fence;
    int err = chunk_item(call, c, i, &in, size);
    if (err) return err;
    syncobj = vam_idr_find(call->model, &VAM_FILE_AT(call->model, call->file)->syncobjs, in.handle);
    if (!syncobj) return -VAM_ENOENT;
    if (!vam_syncobj_get(call->model, syncobj, in.point, &fence)) return -VAM_EINVAL;
    err = add_dep(call->model, s, fence);
    if (err) return err;
  }
  return 0;
}

/* SYNCOBJ_OUT and TIMELINE_SIGNAL; without a fence only checks the handles. */
static int chunk_syncobj_out(const struct vam_call* call, const struct vam_cs_chunk* c, uint32_t fence) {
  int timeline = c->id == VAM_CHUNK_TIMELINE_SIGNAL;
  uint32_t size = timeline ? 16 : 4, n = c->length_dw * 4 / size;
  for (uint32_t i = 0; i < n; ++i) {
    struct vam_cs_syncobj out = {0, 0, 0};
    uint32_t syncobj;
    int err = chunk_item(call, c, i, &out, size);
    if (err) return err;
    syncobj = vam_idr_find(call->model, &VAM_FILE_AT(call->model, call->file)->syncobjs, out.handle);
    if (!syncobj) return -VAM_EINVAL;
    if (fence) err = vam_syncobj_set(call->model, syncobj, out.point, fence);
    if (err) return err;
  }
  return 0;
}

static int chunk_bo_handles(const struct vam_call* call, struct submission* s, const struct vam_cs_chunk* c) {
  struct vam_bo_list_args in;
  if (s->have_list) return -VAM_EINVAL;
  if (c->length_dw * 4 < sizeof(in)) return -VAM_EINVAL;
  if (call->os->copy_in(call, &in, c->data, sizeof(in))) return -VAM_EFAULT;
  s->have_list = 1;
  return read_bos(call, in.number, in.info_size, in.info, &s->bos, &s->bos_tail);
}

static int read_chunk(const struct vam_call* call, uint64_t chunks, uint32_t i, struct vam_cs_chunk* c) {
  uint64_t user;
  if (call->os->copy_in(call, &user, chunks + 8ull * i, 8)) return -VAM_EFAULT;
  return call->os->copy_in(call, c, user, sizeof(*c)) ? -VAM_EFAULT : 0;
}

static int parse_chunk(const struct vam_call* call, struct submission* s, const struct vam_cs_chunk* c) {
  union {
    struct vam_cs_ib ib;
    struct vam_cs_fence fence;
  } u;
  switch (c->id) {
    case VAM_CHUNK_IB:
      if (c->length_dw * 4 < sizeof(u.ib)) return -VAM_EINVAL;
      if (call->os->copy_in(call, &u.ib, c->data, sizeof(u.ib))) return -VAM_EFAULT;
      return chunk_ib(call, s, &u.ib);
    case VAM_CHUNK_FENCE:
      if (c->length_dw * 4 < sizeof(u.fence)) return -VAM_EINVAL;
      if (call->os->copy_in(call, &u.fence, c->data, sizeof(u.fence))) return -VAM_EFAULT;
      return chunk_user_fence(call, s, &u.fence);
    case VAM_CHUNK_DEPENDENCIES:
    case VAM_CHUNK_SCHEDULED_DEPENDENCIES:
      return chunk_deps(call, s, c);
    case VAM_CHUNK_SYNCOBJ_IN:
    case VAM_CHUNK_TIMELINE_WAIT:
      return chunk_syncobj_in(call, s, c);
    case VAM_CHUNK_SYNCOBJ_OUT:
    case VAM_CHUNK_TIMELINE_SIGNAL:
      return chunk_syncobj_out(call, c, 0);
    case VAM_CHUNK_BO_HANDLES:
      return chunk_bo_handles(call, s, c);
    default:
      return -VAM_EINVAL;
  }
}

static int lists(const struct vam_model* m, uint32_t chain, uint32_t bo) {
  for (uint32_t c = chain; c; c = VAM_CHUNK_AT(m, c)->next) {
    for (uint32_t i = 0; i < VAM_CHUNK_AT(m, c)->used; ++i) {
      if (VAM_CHUNK_AT(m, c)->word[i] == bo) return 1;
    }
  }
  return 0;
}

/* Jobs of other DRM files on the same BOs come first; jobs of this file are its own business. */
static int implicit_sync(struct vam_model* m, uint32_t file, struct submission* s) {
  for (uint32_t c = s->bos; c; c = VAM_CHUNK_AT(m, c)->next) {
    for (uint32_t i = 0; i < VAM_CHUNK_AT(m, c)->used; ++i) {
      uint32_t bo = VAM_CHUNK_AT(m, c)->word[i];
      const struct vam_bo* b = VAM_BO_AT(m, bo);
      if (!b->jobs || b->job_file == file || (b->gem_flags & VAM_GEM_EXPLICIT_SYNC)) continue;
      for (uint32_t j = 1; j < m->table[VAM_T_JOB].high; ++j) {
        const struct vam_job* job = VAM_JOB_AT(m, j);
        if (!job->rec.live || job->file == file || !lists(m, job->bos, bo)) continue;
        if (add_dep(m, s, job->fence)) return -VAM_ENOMEM;
      }
    }
  }
  return 0;
}

/* The submission becomes the last job of its entity. */
static int make_job(const struct vam_call* call, struct submission* s, uint32_t* out) {
  struct vam_model* m = call->model;
  struct vam_gpu* gpu = &m->gpu[VAM_FILE_AT(m, call->file)->gpu];
  struct vam_entity* e = &VAM_CTX_AT(m, s->ctx)->entity[s->ring];
  uint32_t job = vam_take(m, VAM_T_JOB), fence = vam_fence_new(m, VAM_FILE_AT(m, call->file)->gpu), slot;
  struct vam_job* j;
  if (!job || !fence) {
    if (job) vam_put(m, VAM_T_JOB, job);
    if (fence) vam_fence_unref(m, fence);
    return -VAM_ENOMEM;
  }
  j = VAM_JOB_AT(m, job);
  j->file = call->file;
  j->ctx = s->ctx;
  j->ring = s->ring;
  j->fence = fence;
  j->ibs = s->ibs;
  j->num_ibs = s->num_ibs;
  j->bos = s->bos;
  j->deps = s->deps;
  j->user_fence_bo = s->user_fence_bo;
  j->user_fence_offset = s->user_fence_offset;
  j->owner_pid = call->pid;
  j->owner_start = call->start_time;
  j->seq = ++e->last_seq;
  for (uint32_t c = s->bos; c; c = VAM_CHUNK_AT(m, c)->next) {
    for (uint32_t i = 0; i < VAM_CHUNK_AT(m, c)->used; ++i) {
      struct vam_bo* bo = VAM_BO_AT(m, VAM_CHUNK_AT(m, c)->word[i]);
      bo->job_file = bo->jobs++ == 0 || bo->job_file == call->file ? call->file : VAM_SEVERAL;
    }
    j->num_bos += VAM_CHUNK_AT(m, c)->used;
  }
  slot = (uint32_t)(j->seq % VAM_ENTITY_JOBS);
  vam_fence_unref(m, e->fence[slot]);
  e->fence[slot] = fence;
  vam_fence_ref(m, fence);
  VAM_FENCE_AT(m, fence)->job = job;
  VAM_FENCE_AT(m, fence)->number = ++gpu->fences;
  if (e->job_tail)
    VAM_JOB_AT(m, e->job_tail)->next = job;
  else
    e->job_head = job;
  e->job_tail = job;
  e->outstanding++;
  VAM_FILE_AT(m, call->file)->jobs++;
  *out = job;
  return 0;
}

static int submit(const struct vam_call* call, struct vam_cs_args* args, struct submission* s,
                  uint32_t* job) {
  struct vam_model* m = call->model;
  struct vam_cs_chunk c;
  uint32_t i;
  int err = 0;
  if (args->bo_list) {
    uint32_t list = vam_idr_find(m, &VAM_FILE_AT(m, call->file)->lists, args->bo_list);
    if (!list) return -VAM_ENOENT;
    s->have_list = 1;
    for (uint32_t k = VAM_AT(m, VAM_T_BO_LIST, vam_bo_list, list)->head; k; k = VAM_CHUNK_AT(m, k)->next) {
      for (i = 0; i < VAM_CHUNK_AT(m, k)->used; ++i) {
        if (vam_chain_push(m, &s->bos, &s->bos_tail, VAM_CHUNK_AT(m, k)->word[i])) return -VAM_ENOMEM;
        vam_bo_ref(m, VAM_CHUNK_AT(m, k)->word[i]);
      }
    }
  }
  for (i = 0; i < args->num_chunks; ++i) {
    err = read_chunk(call, args->chunks, i, &c);
    if (!err) err = parse_chunk(call, s, &c);
    if (err) return err;
  }
  if (s->num_ibs == 0) return -VAM_EINVAL;
  err = implicit_sync(m, call->file, s);
  if (!err) err = make_job(call, s, job);
  if (err) return err;
  for (i = 0; i < args->num_chunks; ++i) {
    if (read_chunk(call, args->chunks, i, &c)) continue;
    if (c.id == VAM_CHUNK_SYNCOBJ_OUT || c.id == VAM_CHUNK_TIMELINE_SIGNAL)
      chunk_syncobj_out(call, &c, VAM_JOB_AT(m, *job)->fence);
  }
  return 0;
}

/* The ring a submission is for, to know whether its entity is full before anything is collected. */
static int first_ring(const struct vam_call* call, const struct vam_cs_args* args, uint32_t* ring) {
  for (uint32_t i = 0; i < args->num_chunks; ++i) {
    struct vam_cs_chunk c;
    struct vam_cs_ib ib;
    int err = read_chunk(call, args->chunks, i, &c);
    if (err) return err;
    if (c.id != VAM_CHUNK_IB) continue;
    if (c.length_dw * 4 < sizeof(ib)) return -VAM_EINVAL;
    if (call->os->copy_in(call, &ib, c.data, sizeof(ib))) return -VAM_EFAULT;
    *ring = ib.ring;
    return ib.ring < VAM_DMA_RINGS ? 0 : -VAM_EINVAL;
  }
  return -VAM_EINVAL;
}

static int cs(const struct vam_call* call, struct vam_cs_args* args, uint64_t* deadline_ns) {
  struct vam_model* m = call->model;
  struct submission s;
  uint32_t ctx, ring, job;
  uint64_t seq;
  int err;
  if (args->num_chunks == 0 || args->num_chunks > 1024) return -VAM_EINVAL;
  ctx = vam_idr_find(m, &VAM_FILE_AT(m, call->file)->ctxs, args->ctx_id);
  if (!ctx) return -VAM_EINVAL;
  if (VAM_CTX_AT(m, ctx)->lost) return -VAM_ECANCELED;
  err = first_ring(call, args, &ring);
  if (err) return err;
  if (VAM_CTX_AT(m, ctx)->entity[ring].outstanding >= VAM_ENTITY_JOBS) {
    *deadline_ns = UINT64_MAX;
    return -VAM_WOULD_BLOCK;
  }
  memset(&s, 0, sizeof(s));
  s.ctx = ctx;
  err = submit(call, args, &s, &job);
  if (err) {
    drop_submission(m, &s);
    return err;
  }
  seq = VAM_JOB_AT(m, job)->seq;
  memcpy(args, &seq, sizeof(seq));
  call->os->fence_changed(call, 0); /* a syncobj may have got its fence */
  call->os->submitted(call, job);
  return 0;
}

int vam_job_ready(const struct vam_model* m, uint32_t job) {
  for (uint32_t c = VAM_JOB_AT(m, job)->deps; c; c = VAM_CHUNK_AT(m, c)->next) {
    for (uint32_t i = 0; i < VAM_CHUNK_AT(m, c)->used; ++i) {
      if (!signaled(m, VAM_CHUNK_AT(m, c)->word[i])) return 0;
    }
  }
  return 1;
}

void vam_job_finish(struct vam_model* m, uint32_t job, int32_t error, uint32_t* fence) {
  struct vam_job* j = VAM_JOB_AT(m, job);
  struct vam_entity* e = &VAM_CTX_AT(m, j->ctx)->entity[j->ring];
  uint32_t file = j->file, ctx = j->ctx;
  struct submission held = {.ibs = j->ibs, .bos = j->bos, .deps = j->deps};
  *fence = j->fence; /* the job's reference goes to the caller */
  VAM_FENCE_AT(m, j->fence)->state = VAM_FENCE_DONE;
  VAM_FENCE_AT(m, j->fence)->error = error;
  VAM_FENCE_AT(m, j->fence)->job = 0;
  if (error) VAM_CTX_AT(m, ctx)->lost = 1;
  if (e->job_head == job) {
    e->job_head = j->next;
  } else {
    uint32_t before = e->job_head;
    while (VAM_JOB_AT(m, before)->next != job) before = VAM_JOB_AT(m, before)->next;
    VAM_JOB_AT(m, before)->next = j->next;
    if (e->job_tail == job) e->job_tail = before;
  }
  if (!e->job_head) e->job_tail = 0;
  e->outstanding--;
  for (uint32_t c = j->bos; c; c = VAM_CHUNK_AT(m, c)->next) {
    for (uint32_t i = 0; i < VAM_CHUNK_AT(m, c)->used; ++i) VAM_BO_AT(m, VAM_CHUNK_AT(m, c)->word[i])->jobs--;
  }
  vam_put(m, VAM_T_JOB, job);
  drop_submission(m, &held);
  ctx_release(m, ctx);
  vam_file_job_done(m, file);
}

/* ---- waiting
 * ------------------------------------------------------------------------------------------------------- */

static int wait_cs(const struct vam_call* call, struct vam_wait_cs_args* args, int again,
                   uint64_t* deadline_ns) {
  const struct vam_model* m = call->model;
  struct vam_fence_id id = {args->ctx_id, args->ip_type, args->ip_instance, args->ring, args->seq};
  uint64_t status = 0;
  uint32_t fence;
  int err = vam_fence_lookup(m, call->file, &id, &fence);
  if (err) return err;
  if (!signaled(m, fence)) {
    if (again != VAM_EXPIRED && args->timeout > call->os->now_ns(call, 0)) {
      *deadline_ns = args->timeout >> 63 ? UINT64_MAX : args->timeout;
      return -VAM_WOULD_BLOCK;
    }
    status = 1;
  } else if (fence && VAM_FENCE_AT(m, fence)->error) {
    return VAM_FENCE_AT(m, fence)->error;
  }
  memcpy(args, &status, sizeof(status));
  return 0;
}

static int wait_fences(const struct vam_call* call, struct vam_wait_fences_args* args, int again,
                       uint64_t* deadline_ns) {
  const struct vam_model* m = call->model;
  uint32_t done = 0, first = 0, out[2];
  if (args->count == 0 && m->config.kfd_minor_version >= 23) return -VAM_EINVAL;
  for (uint32_t i = 0; i < args->count; ++i) {
    struct vam_fence_id id;
    uint32_t fence;
    int err;
    if (call->os->copy_in(call, &id, args->fences + i * sizeof(id), sizeof(id))) return -VAM_EFAULT;
    err = vam_fence_lookup(m, call->file, &id, &fence);
    if (err) return err;
    if (!signaled(m, fence)) continue;
    if (fence && VAM_FENCE_AT(m, fence)->error) return VAM_FENCE_AT(m, fence)->error;
    if (done++ == 0) first = i;
  }
  out[0] = args->wait_all || args->count == 0 ? done == args->count : done > 0;
  out[1] = out[0] ? first : 0;
  if (!out[0] && again != VAM_EXPIRED && args->timeout > call->os->now_ns(call, 0)) {
    *deadline_ns = args->timeout >> 63 ? UINT64_MAX : args->timeout;
    return -VAM_WOULD_BLOCK;
  }
  memcpy(args, out, sizeof(out));
  return 0;
}

static int fence_to_handle(const struct vam_call* call, struct vam_fence_to_handle_args* args) {
  struct vam_model* m = call->model;
  uint32_t fence, syncobj, out = 0;
  int err = vam_fence_lookup(m, call->file, &args->fence, &fence);
  if (err) return err;
  if (args->what == 2) {
    err = call->os->export_fence(call, fence, &out);
  } else if (args->what == 0 || args->what == 1) {
    syncobj = vam_take(m, VAM_T_SYNCOBJ);
    if (!syncobj) return -VAM_ENOMEM;
    VAM_AT(m, VAM_T_SYNCOBJ, vam_syncobj, syncobj)->refs = 1;
    err = vam_syncobj_set(m, syncobj, 0, fence);
    if (!err && args->what == 0) {
      err = vam_idr_add(m, &VAM_FILE_AT(m, call->file)->syncobjs, 1, VAM_IDR_MAX, syncobj, &out);
      if (!err) vam_syncobj_ref(m, syncobj);
    } else if (!err) {
      err = call->os->export_syncobj(call, syncobj, &out);
    }
    vam_syncobj_unref(m, syncobj);
  } else {
    return -VAM_EINVAL;
  }
  if (!err) *(uint32_t*)args = out;
  return err;
}

int vam_cs_ioctl(const struct vam_call* call, uint32_t nr, void* arg, int again, uint64_t* deadline_ns) {
  switch (nr) {
    case VAM_DRM_CTX:
      return ctx_ioctl(call, arg);
    case VAM_DRM_BO_LIST:
      return bo_list_ioctl(call, arg);
    case VAM_DRM_CS:
      return cs(call, arg, deadline_ns);
    case VAM_DRM_WAIT_CS:
      return wait_cs(call, arg, again, deadline_ns);
    case VAM_DRM_WAIT_FENCES:
      return wait_fences(call, arg, again, deadline_ns);
    case VAM_DRM_FENCE_TO_HANDLE:
      return fence_to_handle(call, arg);
    default:
      return -VAM_EINVAL;
  }
}
