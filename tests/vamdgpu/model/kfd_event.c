/* SPDX-License-Identifier: MIT */
/*
 * Events of a KFD process: ids, the signal page, waiting. Signal events have ids 1..4095 (their slot in the
 * page), the others from 0x40000000.
 */
#include "model.h"

static struct vam_event* event_at(const struct vam_model* m, uint32_t index) {
  return VAM_AT(m, VAM_T_EVENT, vam_event, index);
}

static uint32_t find_event(const struct vam_model* m, const struct vam_process* p, uint32_t id) {
  return vam_idr_find(m, id >= VAM_NONSIGNAL_EVENT_FIRST ? &p->other_events : &p->signal_events, id);
}

static int has_slot(uint32_t type) {
  return type == VAM_EVENT_SIGNAL || type == VAM_EVENT_DEBUG;
}

int vam_event_set_page(const struct vam_call* call, uint32_t process, uint64_t handle) {
  struct vam_model* m = call->model;
  struct vam_process* p = VAM_PROCESS_AT(m, process);
  uint32_t gpu = vam_pdd_by_user_id(m, process, (uint32_t)(handle >> 32)), mem;
  if (p->event_page_mem || !gpu) return -VAM_EINVAL;
  mem = vam_idr_find(m, &p->pdd[gpu - 1].mems, (uint32_t)handle);
  if (!mem || VAM_BO_AT(m, VAM_MEM_AT(m, mem)->bo)->pool != VAM_POOL_GTT ||
      VAM_MEM_AT(m, mem)->size < VAM_SIGNAL_PAGE_BYTES)
    return -VAM_EINVAL;
  p->event_page_mem = mem;
  p->event_page_bo = VAM_MEM_AT(m, mem)->bo;
  call->os->fill_bo(call, p->event_page_bo, 0, VAM_SIGNAL_EVENTS * 8, 0xff);
  return 0;
}

static int add_event(struct vam_model* m, uint32_t process, uint32_t type, int64_t fixed_id, uint32_t* out) {
  struct vam_process* p = VAM_PROCESS_AT(m, process);
  uint32_t event = vam_take(m, VAM_T_EVENT), id = (uint32_t)fixed_id;
  struct vam_idr* idr = has_slot(type) ? &p->signal_events : &p->other_events;
  int err;
  if (!event) return -VAM_ENOMEM;
  if (fixed_id >= 0)
    err = vam_idr_add_at(m, idr, id, event);
  else if (has_slot(type))
    err = vam_idr_add(m, idr, 1, VAM_SIGNAL_EVENTS - 1, event, &id);
  else
    err = vam_idr_add(m, idr, VAM_NONSIGNAL_EVENT_FIRST, VAM_IDR_MAX, event, &id);
  if (err) {
    vam_put(m, VAM_T_EVENT, event);
    return err;
  }
  event_at(m, event)->process = process;
  event_at(m, event)->type = type;
  event_at(m, event)->id = id;
  p->num_events++;
  *out = event;
  return 0;
}

static int create_event(const struct vam_call* call, uint32_t process, struct vam_create_event_args* args) {
  struct vam_model* m = call->model;
  uint32_t event;
  int err;
  if (args->page_offset) {
    err = vam_event_set_page(call, process, args->page_offset);
    if (err) return err;
  }
  err = add_event(m, process, args->type, -1, &event);
  if (err) return err;
  event_at(m, event)->auto_reset = args->auto_reset;
  event_at(m, event)->age = 1; /* a restored one has none: whoever waits with an age wakes once */
  args->event_id = args->trigger_data = event_at(m, event)->id;
  args->page_offset = has_slot(args->type) ? VAM_MMAP_EVENTS : 0;
  args->slot_index = has_slot(args->type) ? args->event_id : 0;
  return 0;
}

void vam_event_free(struct vam_model* m, uint32_t event) {
  struct vam_process* p = VAM_PROCESS_AT(m, event_at(m, event)->process);
  vam_idr_remove(m, has_slot(event_at(m, event)->type) ? &p->signal_events : &p->other_events,
                 event_at(m, event)->id);
  p->num_events--;
  vam_put(m, VAM_T_EVENT, event);
}

void vam_event_set(struct vam_model* m, uint32_t event) {
  struct vam_event* e = event_at(m, event);
  e->signaled = 1;
  e->age++;
  e->set_at = ++VAM_PROCESS_AT(m, e->process)->event_clock;
}

/* Linux 6.5: who waits says which age of the event it has seen last; 0: it does not use ages. */
static int has_seen_age(const struct vam_model* m, const struct vam_event* e, uint64_t age) {
  return m->config.kfd_minor_version >= 14 && e->type == VAM_EVENT_SIGNAL && age != 0;
}

/* Whether an event wakes a waiter: it is set, was set since the wait began (a set wakes all that wait, also
 * when one of them resets the event at once), or is older than the waiter knows. */
static int wakes(const struct vam_model* m, const struct vam_event* e, const struct vam_event_data* d,
                 uint32_t began) {
  uint64_t age;
  memcpy(&age, d->data, sizeof(age));
  return e->signaled || (int32_t)(e->set_at - began) > 0 || (has_seen_age(m, e, age) && e->age != age);
}

/* What waits keep between two calls is the clock at their begin, in `result`, which is an output. */
static int wait_events(const struct vam_call* call, const struct vam_process* p,
                       struct vam_wait_events_args* args, int again, uint64_t* deadline_ns) {
  struct vam_model* m = call->model;
  uint32_t awake = 0;
  if (args->num_events > VAM_SIGNAL_EVENTS && m->config.kfd_minor_version >= 23) return -VAM_ENOMEM;
  if (again == VAM_FIRST) args->result = p->event_clock;
  for (uint32_t i = 0; i < args->num_events; ++i) {
    struct vam_event_data d;
    uint32_t event;
    if (call->os->copy_in(call, &d, args->events + i * sizeof(d), sizeof(d))) return -VAM_EFAULT;
    event = find_event(m, p, d.event_id);
    if (!event) return again ? -VAM_EIO : -VAM_EINVAL; /* destroyed while waiting */
    awake += wakes(m, event_at(m, event), &d, args->result) ? 1 : 0;
  }
  if (awake == args->num_events || (awake && !args->wait_all)) {
    for (uint32_t i = 0; i < args->num_events; ++i) {
      struct vam_event_data d;
      struct vam_event* e;
      uint64_t age;
      if (call->os->copy_in(call, &d, args->events + i * sizeof(d), sizeof(d))) return -VAM_EFAULT;
      e = event_at(m, find_event(m, p, d.event_id));
      if (!wakes(m, e, &d, args->result)) continue;
      memcpy(&age, d.data, sizeof(age));
      if (has_seen_age(m, e, age))
        memcpy(d.data, &e->age, sizeof(e->age));
      else if (e->type != VAM_EVENT_SIGNAL)
        memcpy(d.data, e->data, sizeof(d.data));
      if (call->os->copy_out(call, args->events + i * sizeof(d), &d, sizeof(d))) return -VAM_EFAULT;
      if (e->auto_reset) e->signaled = 0;
    }
    args->result = VAM_WAIT_COMPLETE;
    return 0;
  }
  if (args->timeout_ms == 0 || again == VAM_EXPIRED) {
    args->result = VAM_WAIT_TIMEOUT;
    return 0;
  }
  *deadline_ns = args->timeout_ms == VAM_EVENT_TIMEOUT_INFINITE
                     ? UINT64_MAX
                     : call->os->now_ns(call, 0) + args->timeout_ms * 1000000ull;
  return -VAM_WOULD_BLOCK;
}

int vam_event_ioctl(const struct vam_call* call, uint32_t nr, void* arg, int again, uint64_t* deadline_ns) {
  struct vam_model* m = call->model;
  uint32_t process = VAM_FILE_AT(m, call->file)->process, event;
  struct vam_process* p = VAM_PROCESS_AT(m, process);
  struct vam_event* e;
  if (nr == VAM_KFD_CREATE_EVENT) return create_event(call, process, arg);
  if (nr == VAM_KFD_WAIT_EVENTS) return wait_events(call, p, arg, again, deadline_ns);
  event = find_event(m, p, ((const struct vam_event_id_args*)arg)->event_id);
  if (!event) return -VAM_EINVAL;
  e = event_at(m, event);
  if (nr == VAM_KFD_DESTROY_EVENT) {
    vam_event_free(m, event);
    call->os->fence_changed(call, 0);
    return 0;
  }
  if (e->type != VAM_EVENT_SIGNAL) return -VAM_EINVAL;
  if (nr == VAM_KFD_SET_EVENT) {
    vam_event_set(m, event);
    call->os->fence_changed(call, 0);
  } else {
    e->signaled = 0;
  }
  return 0;
}

int vam_event_restore(const struct vam_call* call, uint32_t process, const struct vam_priv_event* r) {
  struct vam_model* m = call->model;
  uint32_t event;
  int err;
  if (r->user_handle) {
    err = vam_event_set_page(call, process, r->user_handle);
    if (err) return err;
  }
  if (r->event_id > VAM_IDR_MAX) return -VAM_EINVAL;
  if (m->config.kfd_minor_version >= 17 && r->type != VAM_EVENT_SIGNAL && r->type != VAM_EVENT_HW_EXCEPTION &&
      r->type != VAM_EVENT_DEBUG && r->type != VAM_EVENT_MEMORY)
    return -VAM_EINVAL;
  if (has_slot(r->type) && r->event_id >= VAM_SIGNAL_EVENTS) return -VAM_EINVAL;
  err = add_event(m, process, r->type, (int64_t)r->event_id, &event);
  if (err) return err;
  event_at(m, event)->auto_reset = r->auto_reset;
  event_at(m, event)->signaled = r->signaled;
  memcpy(event_at(m, event)->data, r->data, sizeof(r->data));
  return 0;
}
