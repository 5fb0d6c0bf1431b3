/* SPDX-License-Identifier: MIT */
/*
 * DRM syncobjs: containers of a fence, or of a timeline of fences (ascending points). Waiting is done by the
 * shim; here is only whether it is over.
 */
#include "model.h"

enum { WAIT_ALL = 1, WAIT_FOR_SUBMIT = 2, WAIT_AVAILABLE = 4, DEADLINE = 8 };
enum { EXPORT_SYNC_FILE = 1, EXPORT_TIMELINE = 2 };

static struct vam_syncobj* at(const struct vam_model* m, uint32_t syncobj) {
  return VAM_AT(m, VAM_T_SYNCOBJ, vam_syncobj, syncobj);
}

static int done(const struct vam_model* m, uint32_t fence) {
  return !fence || VAM_FENCE_AT(m, fence)->state == VAM_FENCE_DONE;
}

static uint64_t point_at(const struct vam_model* m, const struct vam_syncobj* s, uint32_t i) {
  return vam_chain_word(m, s->points, 4 * i) | (uint64_t)vam_chain_word(m, s->points, 4 * i + 1) << 32;
}

static void reset(struct vam_model* m, uint32_t syncobj) {
  struct vam_syncobj* s = at(m, syncobj);
  vam_fence_unref(m, s->fence);
  for (uint32_t i = 0; i < s->num_points; ++i) vam_fence_unref(m, vam_chain_word(m, s->points, 4 * i + 2));
  vam_chain_free(m, s->points);
  s->fence = s->points = s->num_points = 0;
  s->signaled_point = 0;
  s->has_payload = 0;
}

void vam_syncobj_ref(struct vam_model* m, uint32_t syncobj) {
  at(m, syncobj)->refs++;
}

void vam_syncobj_unref(struct vam_model* m, uint32_t syncobj) {
  if (--at(m, syncobj)->refs) return;
  reset(m, syncobj);
  vam_put(m, VAM_T_SYNCOBJ, syncobj);
}

/* Drops the leading points that have signalled. */
static void settle(struct vam_model* m, uint32_t syncobj) {
  struct vam_syncobj* s = at(m, syncobj);
  uint32_t head = 0, tail = 0, keep = 0, i = 0;
  while (i < s->num_points && done(m, vam_chain_word(m, s->points, 4 * i + 2))) {
    s->signaled_point = point_at(m, s, i);
    vam_fence_unref(m, vam_chain_word(m, s->points, 4 * i + 2));
    i++;
  }
  if (i == 0) return;
  for (; i < s->num_points; ++i, ++keep) {
    for (uint32_t w = 0; w < 4; ++w) {
      if (vam_chain_push(m, &head, &tail, vam_chain_word(m, s->points, 4 * i + w))) return;
    }
  }
  vam_chain_free(m, s->points);
  s->points = head;
  s->num_points = keep;
}

int vam_syncobj_set(struct vam_model* m, uint32_t syncobj, uint64_t point, uint32_t fence) {
  struct vam_syncobj* s = at(m, syncobj);
  uint32_t tail;
  if (point == 0) {
    vam_fence_ref(m, fence);
    reset(m, syncobj);
    s->fence = fence;
    s->has_payload = 1;
    return 0;
  }
  settle(m, syncobj);
  if (s->num_points == 0 && done(m, fence)) {
    if (point > s->signaled_point) s->signaled_point = point;
    s->has_payload = 1;
    return 0;
  }
  for (tail = s->points; tail && VAM_CHUNK_AT(m, tail)->next;) tail = VAM_CHUNK_AT(m, tail)->next;
  if (vam_chain_push(m, &s->points, &tail, (uint32_t)point) ||
      vam_chain_push(m, &s->points, &tail, (uint32_t)(point >> 32)) ||
      vam_chain_push(m, &s->points, &tail, fence) || vam_chain_push(m, &s->points, &tail, 0))
    return -VAM_ENOMEM;
  vam_fence_ref(m, fence);
  s->num_points++;
  s->has_payload = 1;
  return 0;
}

int vam_syncobj_get(struct vam_model* m, uint32_t syncobj, uint64_t point, uint32_t* fence) {
  struct vam_syncobj* s = at(m, syncobj);
  *fence = 0;
  if (!s->has_payload) return 0;
  settle(m, syncobj);
  if (point == 0) {
    *fence = s->num_points ? vam_chain_word(m, s->points, 4 * (s->num_points - 1) + 2) : s->fence;
    return 1;
  }
  if (point <= s->signaled_point) return 1;
  for (uint32_t i = 0; i < s->num_points; ++i) {
    if (point_at(m, s, i) >= point) {
      *fence = vam_chain_word(m, s->points, 4 * i + 2);
      return 1;
    }
  }
  return 0;
}

static uint32_t find(const struct vam_call* call, uint32_t handle) {
  return vam_idr_find(call->model, &VAM_FILE_AT(call->model, call->file)->syncobjs, handle);
}

static int give_handle(const struct vam_call* call, uint32_t syncobj, uint32_t* handle) {
  struct vam_model* m = call->model;
  int err = vam_idr_add(m, &VAM_FILE_AT(m, call->file)->syncobjs, 1, VAM_IDR_MAX, syncobj, handle);
  if (!err) vam_syncobj_ref(m, syncobj);
  return err;
}

static int create(const struct vam_call* call, struct vam_syncobj_args* args) {
  struct vam_model* m = call->model;
  uint32_t syncobj;
  int err;
  if (args->flags & ~1u) return -VAM_EINVAL;
  syncobj = vam_take(m, VAM_T_SYNCOBJ);
  if (!syncobj) return -VAM_ENOMEM;
  at(m, syncobj)->refs = 1;
  at(m, syncobj)->has_payload = args->flags & 1;
  err = give_handle(call, syncobj, &args->handle);
  vam_syncobj_unref(m, syncobj);
  return err;
}

static int destroy(const struct vam_call* call, const struct vam_syncobj_args* args) {
  uint32_t syncobj = find(call, args->handle);
  if (args->flags || !syncobj) return -VAM_EINVAL;
  vam_idr_remove(call->model, &VAM_FILE_AT(call->model, call->file)->syncobjs, args->handle);
  vam_syncobj_unref(call->model, syncobj);
  return 0;
}

static int handle_to_fd(const struct vam_call* call, struct vam_syncobj_fd_args* args) {
  uint32_t syncobj, fence, fd, known = EXPORT_SYNC_FILE;
  int err;
  if (call->model->config.kfd_minor_version >= 23) known |= EXPORT_TIMELINE;
  if (args->pad || (args->flags & ~known)) return -VAM_EINVAL;
  syncobj = find(call, args->handle);
  if (!syncobj) return -VAM_ENOENT;
  if (args->flags & EXPORT_SYNC_FILE) {
    if (!vam_syncobj_get(call->model, syncobj, args->flags & EXPORT_TIMELINE ? args->point : 0, &fence))
      return -VAM_EINVAL;
    err = call->os->export_fence(call, fence, &fd);
  } else {
    err = call->os->export_syncobj(call, syncobj, &fd);
  }
  if (!err) args->fd = (int32_t)fd;
  return err;
}

static int fd_to_handle(const struct vam_call* call, struct vam_syncobj_fd_args* args) {
  struct vam_model* m = call->model;
  uint32_t syncobj, fence;
  int err, error;
  if (args->pad || (args->flags & ~1u)) return -VAM_EINVAL;
  if (args->flags & 1) { /* import a sync_file into an existing syncobj */
    err = call->os->fence_of_fd(call, (uint32_t)args->fd, &fence, &error);
    if (err) return -VAM_EINVAL;
    syncobj = find(call, args->handle);
    if (!syncobj) return -VAM_ENOENT;
    if (!fence && error) {
      fence = vam_fence_new(m, VAM_FILE_AT(m, call->file)->gpu);
      if (!fence) return -VAM_ENOMEM;
      VAM_FENCE_AT(m, fence)->state = VAM_FENCE_DONE;
      VAM_FENCE_AT(m, fence)->error = error;
      err = vam_syncobj_set(m, syncobj, 0, fence);
      vam_fence_unref(m, fence);
    } else {
      err = vam_syncobj_set(m, syncobj, 0, fence);
    }
    call->os->fence_changed(call, 0);
    return err;
  }
  err = call->os->syncobj_of_fd(call, (uint32_t)args->fd, &syncobj);
  if (err) return err;
  return give_handle(call, syncobj, &args->handle);
}

/* Whether handle (and point) i of a wait is satisfied: 1, 0; -EINVAL nothing submitted and not told to wait
 * for it. */
static int satisfied(const struct vam_call* call, uint32_t handle, uint64_t point, uint32_t flags) {
  uint32_t syncobj = find(call, handle), fence;
  if (!syncobj) return -VAM_ENOENT;
  if (!vam_syncobj_get(call->model, syncobj, point, &fence))
    return flags & (WAIT_FOR_SUBMIT | WAIT_AVAILABLE) ? 0 : -VAM_EINVAL;
  return (flags & WAIT_AVAILABLE) ? 1 : done(call->model, fence);
}

static int wait(const struct vam_call* call, uint64_t handles, uint64_t points, uint32_t count,
                uint32_t flags, int64_t timeout_ns, uint32_t* first, int again, uint64_t* deadline_ns) {
  uint32_t met = 0;
  if (flags & ~(uint32_t)(WAIT_ALL | WAIT_FOR_SUBMIT | DEADLINE | (points ? WAIT_AVAILABLE : 0)))
    return -VAM_EINVAL;
  if (count == 0) return 0;
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t handle;
    uint64_t point = 0;
    int is;
    if (call->os->copy_in(call, &handle, handles + 4ull * i, 4)) return -VAM_EFAULT;
    if (points && call->os->copy_in(call, &point, points + 8ull * i, 8)) return -VAM_EFAULT;
    is = satisfied(call, handle, point, flags);
    if (is < 0) return is;
    if (is && met++ == 0) *first = i;
  }
  if (flags & WAIT_ALL ? met == count : met > 0) return 0;
  if (again == VAM_EXPIRED || timeout_ns <= 0 || (uint64_t)timeout_ns <= call->os->now_ns(call, 0))
    return -VAM_ETIME;
  *deadline_ns = timeout_ns == INT64_MAX ? UINT64_MAX : (uint64_t)timeout_ns;
  return -VAM_WOULD_BLOCK;
}

/* RESET, SIGNAL, TIMELINE_SIGNAL, QUERY: something for each handle of an array. */
static int each(const struct vam_call* call, uint32_t nr,
                const struct vam_syncobj_timeline_array_args* args) {
  struct vam_model* m = call->model;
  int timeline = nr == VAM_DRM_SYNCOBJ_TIMELINE_SIGNAL || nr == VAM_DRM_SYNCOBJ_QUERY, err = 0;
  const struct vam_syncobj_array_args* plain = (const void*)args;
  uint32_t count = timeline ? args->count : plain->count;
  if (count == 0 || (!timeline && plain->pad)) return -VAM_EINVAL;
  if (timeline && (args->flags & ~(nr == VAM_DRM_SYNCOBJ_QUERY ? 1u : 0u))) return -VAM_EINVAL;
  for (int pass = 0; pass < 2; ++pass) { /* nothing happens unless every handle exists */
    for (uint32_t i = 0; i < count && !err; ++i) {
      uint32_t handle, syncobj;
      uint64_t point = 0;
      if (call->os->copy_in(call, &handle, args->handles + 4ull * i, 4)) return -VAM_EFAULT;
      syncobj = find(call, handle);
      if (!syncobj) return -VAM_ENOENT;
      if (pass == 0) continue;
      if (nr == VAM_DRM_SYNCOBJ_RESET) {
        reset(m, syncobj);
      } else if (nr == VAM_DRM_SYNCOBJ_QUERY) {
        settle(m, syncobj);
        point = at(m, syncobj)->signaled_point;
        if ((args->flags & 1) && at(m, syncobj)->num_points)
          point = point_at(m, at(m, syncobj), at(m, syncobj)->num_points - 1);
        if (call->os->copy_out(call, args->points + 8ull * i, &point, 8)) return -VAM_EFAULT;
      } else {
        if (timeline && call->os->copy_in(call, &point, args->points + 8ull * i, 8)) return -VAM_EFAULT;
        err = vam_syncobj_set(m, syncobj, point, 0);
      }
    }
  }
  call->os->fence_changed(call, 0);
  return err;
}

static int transfer(const struct vam_call* call, const struct vam_syncobj_transfer_args* args, int again,
                    uint64_t* deadline_ns) {
  struct vam_model* m = call->model;
  uint32_t src = find(call, args->src), dst = find(call, args->dst), fence;
  int err;
  (void)again;
  if (args->pad) return -VAM_EINVAL;
  if (!src || !dst) return -VAM_ENOENT;
  if (!vam_syncobj_get(m, src, args->src_point, &fence)) {
    if (!(args->flags & WAIT_FOR_SUBMIT)) return -VAM_EINVAL;
    *deadline_ns = UINT64_MAX;
    return -VAM_WOULD_BLOCK;
  }
  vam_fence_ref(m, fence);
  err = vam_syncobj_set(m, dst, args->dst_point, fence);
  vam_fence_unref(m, fence);
  call->os->fence_changed(call, 0);
  return err;
}

static int eventfd(const struct vam_call* call, const struct vam_syncobj_eventfd_args* args) {
  uint32_t syncobj;
  if (call->model->config.kfd_minor_version < 17) return -VAM_EINVAL; /* Linux 6.1 has no such ioctl */
  if (args->pad || (args->flags & ~(uint32_t)WAIT_AVAILABLE)) return -VAM_EINVAL;
  syncobj = find(call, args->handle);
  if (!syncobj) return -VAM_ENOENT;
  return call->os->watch_eventfd(call, syncobj, args->point, args->flags & WAIT_AVAILABLE,
                                 (uint32_t)args->fd);
}

int vam_syncobj_ioctl(const struct vam_call* call, uint32_t nr, void* arg, uint32_t bytes, int again,
                      uint64_t* deadline_ns) {
  (void)bytes;
  switch (nr) {
    case VAM_DRM_SYNCOBJ_CREATE:
      return create(call, arg);
    case VAM_DRM_SYNCOBJ_DESTROY:
      return destroy(call, arg);
    case VAM_DRM_SYNCOBJ_HANDLE_TO_FD:
      return handle_to_fd(call, arg);
    case VAM_DRM_SYNCOBJ_FD_TO_HANDLE:
      return fd_to_handle(call, arg);
    case VAM_DRM_SYNCOBJ_WAIT: {
      struct vam_syncobj_wait_args* a = arg;
      return wait(call, a->handles, 0, a->count, a->flags, a->timeout_ns, &a->first, again, deadline_ns);
    }
    case VAM_DRM_SYNCOBJ_TIMELINE_WAIT: {
      struct vam_syncobj_timeline_wait_args* a = arg;
      return wait(call, a->handles, a->points, a->count, a->flags, a->timeout_ns, &a->first, again,
                  deadline_ns);
    }
    case VAM_DRM_SYNCOBJ_RESET:
    case VAM_DRM_SYNCOBJ_SIGNAL:
    case VAM_DRM_SYNCOBJ_TIMELINE_SIGNAL:
    case VAM_DRM_SYNCOBJ_QUERY:
      return each(call, nr, arg);
    case VAM_DRM_SYNCOBJ_TRANSFER:
      return transfer(call, arg, again, deadline_ns);
    case VAM_DRM_SYNCOBJ_EVENTFD: /* since Linux 6.6 */
      return call->model->config.kfd_minor_version < 17 ? -VAM_EINVAL : eventfd(call, arg);
    default:
      return -VAM_EINVAL;
  }
}
