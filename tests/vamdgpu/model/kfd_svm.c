/* SPDX-License-Identifier: MIT */
/*
 * SVM ranges of a KFD process: attributes on page ranges, set and got, and their records in the private data.
 * Ranges never overlap; setting attributes on part of a range splits it.
 */
#include "model.h"

enum {
  ATTR_PREFERRED = 0,
  ATTR_PREFETCH = 1,
  ATTR_ACCESS = 2,
  ATTR_IN_PLACE = 3,
  ATTR_NO_ACCESS = 4,
  ATTR_SET_FLAGS = 5,
  ATTR_CLR_FLAGS = 6,
  ATTR_GRANULARITY = 7,
  LOCATION_SYSMEM = 0
};
#define LOCATION_UNDEFINED 0xffffffffu
#define DEFAULT_FLAGS 3u /* host access, coherent */
#define DEFAULT_GRANULARITY 9u
#define KNOWN_FLAGS 0xffu

static struct vam_svm* svm_at(const struct vam_model* m, uint32_t index) {
  return VAM_AT(m, VAM_T_SVM, vam_svm, index);
}

static uint32_t add_svm(struct vam_model* m, uint32_t process, uint64_t start, uint64_t pages) {
  struct vam_process* p = VAM_PROCESS_AT(m, process);
  uint32_t index = vam_take(m, VAM_T_SVM), before = p->svm_last;
  struct vam_svm* s;
  if (!index) return 0;
  while (before && svm_at(m, before)->start_page > start) before = svm_at(m, before)->prev;
  s = svm_at(m, index);
  s->process = process;
  s->start_page = start;
  s->pages = pages;
  s->preferred = s->prefetch = LOCATION_UNDEFINED;
  s->flags = DEFAULT_FLAGS;
  s->granularity = DEFAULT_GRANULARITY;
  s->prev = before;
  s->next = before ? svm_at(m, before)->next : p->svm_first;
  if (before)
    svm_at(m, before)->next = index;
  else
    p->svm_first = index;
  if (s->next)
    svm_at(m, s->next)->prev = index;
  else
    p->svm_last = index;
  p->num_svm++;
  return index;
}

void vam_svm_free(struct vam_model* m, uint32_t index) {
  struct vam_svm* s = svm_at(m, index);
  struct vam_process* p = VAM_PROCESS_AT(m, s->process);
  if (s->prev)
    svm_at(m, s->prev)->next = s->next;
  else
    p->svm_first = s->next;
  if (s->next)
    svm_at(m, s->next)->prev = s->prev;
  else
    p->svm_last = s->prev;
  p->num_svm--;
  vam_put(m, VAM_T_SVM, index);
}

/* Cuts the range that contains `page` in two there. */
static int cut(struct vam_model* m, uint32_t process, uint64_t page) {
  for (uint32_t i = VAM_PROCESS_AT(m, process)->svm_first; i; i = svm_at(m, i)->next) {
    struct vam_svm* s = svm_at(m, i);
    if (s->start_page < page && page < s->start_page + s->pages) {
      uint32_t rest = add_svm(m, process, page, s->start_page + s->pages - page);
      struct vam_svm* r;
      if (!rest) return -VAM_ENOMEM;
      r = svm_at(m, rest);
      r->preferred = s->preferred;
      r->prefetch = s->prefetch;
      r->flags = s->flags;
      r->granularity = s->granularity;
      memcpy(r->access, s->access, sizeof(r->access));
      s->pages = page - s->start_page;
      return 0;
    }
  }
  return 0;
}

static int check_attr(const struct vam_model* m, uint32_t process, const struct vam_svm_attr* a) {
  switch (a->type) {
    case ATTR_PREFERRED:
    case ATTR_PREFETCH:
      if (a->value == LOCATION_SYSMEM || (a->type == ATTR_PREFERRED && a->value == LOCATION_UNDEFINED))
        return 0;
      return vam_pdd_by_user_id(m, process, a->value) ? 0 : -VAM_EINVAL;
    case ATTR_ACCESS:
    case ATTR_IN_PLACE:
    case ATTR_NO_ACCESS:
      return vam_pdd_by_user_id(m, process, a->value) ? 0 : -VAM_EINVAL;
    case ATTR_SET_FLAGS:
    case ATTR_CLR_FLAGS: /* any bits: the thunk clears all that it does not set */
    case ATTR_GRANULARITY:
      return 0;
    default:
      return -VAM_EINVAL;
  }
}

static void apply(const struct vam_model* m, uint32_t process, struct vam_svm* s,
                  const struct vam_svm_attr* a) {
  switch (a->type) {
    case ATTR_PREFERRED:
      s->preferred = a->value;
      break;
    case ATTR_PREFETCH:
      s->prefetch = a->value;
      break;
    case ATTR_SET_FLAGS:
      s->flags |= a->value;
      break;
    case ATTR_CLR_FLAGS:
      s->flags &= ~a->value;
      break;
    case ATTR_GRANULARITY:
      s->granularity = a->value < 0x3f ? a->value : 0x3f;
      break;
    default:
      s->access[vam_pdd_by_user_id(m, process, a->value) - 1] = a->type;
  }
}

/* Makes ranges exactly cover [start, end): cuts at both ends, fills holes. */
static int cover(struct vam_model* m, uint32_t process, uint64_t start, uint64_t end) {
  uint64_t at = start;
  if (cut(m, process, start) || cut(m, process, end)) return -VAM_ENOMEM;
  for (uint32_t i = VAM_PROCESS_AT(m, process)->svm_first; i && at < end; i = svm_at(m, i)->next) {
    struct vam_svm* s = svm_at(m, i);
    if (s->start_page + s->pages <= at) continue;
    if (s->start_page > at) {
      uint64_t stop = s->start_page < end ? s->start_page : end;
      if (!add_svm(m, process, at, stop - at)) return -VAM_ENOMEM;
    }
    at = s->start_page + s->pages;
  }
  if (at < end && !add_svm(m, process, at, end - at)) return -VAM_ENOMEM;
  return 0;
}

static int set_attrs(const struct vam_call* call, uint32_t process, const struct vam_svm_args* args) {
  const struct vam_svm_attr* attrs = (const struct vam_svm_attr*)(args + 1);
  struct vam_model* m = call->model;
  uint64_t start = args->start / VAM_PAGE, end = start + args->size / VAM_PAGE;
  int acquired = 0, err;
  for (uint32_t i = 0; i < m->num_gpus; ++i) acquired |= VAM_PROCESS_AT(m, process)->pdd[i].file != 0;
  if (!acquired) return -VAM_EINVAL;
  for (uint32_t i = 0; i < args->nattr; ++i) {
    if (check_attr(m, process, &attrs[i])) return -VAM_EINVAL;
  }
  err = call->os->user_range(call, args->start, args->size, VAM_USERPTR_READONLY);
  if (!err) err = cover(m, process, start, end);
  if (err) return err;
  for (uint32_t i = VAM_PROCESS_AT(m, process)->svm_first; i; i = svm_at(m, i)->next) {
    struct vam_svm* s = svm_at(m, i);
    if (s->start_page < start || s->start_page >= end) continue;
    for (uint32_t a = 0; a < args->nattr; ++a) apply(m, process, s, &attrs[a]);
  }
  return 0;
}

static int get_attrs(const struct vam_call* call, uint32_t process, struct vam_svm_args* args) {
  struct vam_svm_attr* attrs = (struct vam_svm_attr*)(args + 1);
  const struct vam_model* m = call->model;
  uint64_t start = args->start / VAM_PAGE, end = start + args->size / VAM_PAGE;
  for (uint32_t a = 0; a < args->nattr; ++a) {
    struct vam_svm_attr* attr = &attrs[a];
    uint32_t gpu = attr->type >= ATTR_ACCESS && attr->type <= ATTR_NO_ACCESS
                       ? vam_pdd_by_user_id(m, process, attr->value)
                       : 1;
    int seen = 0;
    if (!gpu || attr->type > ATTR_GRANULARITY) return -VAM_EINVAL;
    for (uint32_t i = VAM_PROCESS_AT(m, process)->svm_first; i; i = svm_at(m, i)->next) {
      const struct vam_svm* s = svm_at(m, i);
      uint32_t value;
      if (s->start_page + s->pages <= start || s->start_page >= end) continue;
      if (attr->type == ATTR_SET_FLAGS || attr->type == ATTR_CLR_FLAGS) {
        value = attr->type == ATTR_SET_FLAGS ? s->flags : ~s->flags & KNOWN_FLAGS;
        attr->value = seen ? attr->value & value : value;
      } else if (attr->type == ATTR_PREFERRED || attr->type == ATTR_PREFETCH) {
        value = attr->type == ATTR_PREFERRED ? s->preferred : s->prefetch;
        attr->value = seen && attr->value != value ? LOCATION_UNDEFINED : value;
      } else if (attr->type == ATTR_GRANULARITY) {
        attr->value = seen && attr->value < s->granularity ? attr->value : s->granularity;
      } else {
        attr->type = s->access[gpu - 1] ? s->access[gpu - 1] : (uint32_t)ATTR_NO_ACCESS;
      }
      seen = 1;
    }
    if (seen) continue;
    if (attr->type == ATTR_PREFERRED || attr->type == ATTR_PREFETCH)
      attr->value = LOCATION_UNDEFINED;
    else if (attr->type == ATTR_SET_FLAGS)
      attr->value = DEFAULT_FLAGS;
    else if (attr->type == ATTR_CLR_FLAGS)
      attr->value = ~DEFAULT_FLAGS & KNOWN_FLAGS;
    else if (attr->type == ATTR_GRANULARITY)
      attr->value = DEFAULT_GRANULARITY;
    else
      attr->type = ATTR_NO_ACCESS;
  }
  return 0;
}

int vam_svm_ioctl(const struct vam_call* call, struct vam_svm_args* args, uint32_t bytes) {
  uint32_t process = VAM_FILE_AT(call->model, call->file)->process;
  if (bytes < sizeof(*args) || (bytes - sizeof(*args)) / sizeof(struct vam_svm_attr) < args->nattr)
    return -VAM_EINVAL;
  if (args->start % VAM_PAGE || args->size % VAM_PAGE || !args->start || !args->size) return -VAM_EINVAL;
  if (args->start + args->size < args->start) return -VAM_EINVAL;
  if (args->op == 0) return set_attrs(call, process, args);
  if (args->op == 1) return get_attrs(call, process, args);
  return -VAM_EINVAL;
}

/* The record's attributes: preferred, prefetch, granularity, set flags, then one access attribute per GPU. */
uint32_t vam_svm_attrs(const struct vam_model* m, uint32_t index, struct vam_svm_attr* out) {
  const struct vam_svm* s = svm_at(m, index);
  const struct vam_process* p = VAM_PROCESS_AT(m, s->process);
  uint32_t n = 0;
  out[n++] = (struct vam_svm_attr){ATTR_PREFERRED, s->preferred};
  out[n++] = (struct vam_svm_attr){ATTR_PREFETCH, s->prefetch};
  out[n++] = (struct vam_svm_attr){ATTR_GRANULARITY, s->granularity};
  out[n++] = (struct vam_svm_attr){ATTR_SET_FLAGS, s->flags};
  for (uint32_t i = 0; i < m->num_gpus; ++i) {
    if (!p->pdd[i].present) continue;
    out[n++] =
        (struct vam_svm_attr){s->access[i] ? s->access[i] : (uint32_t)ATTR_NO_ACCESS, p->pdd[i].user_gpu_id};
  }
  return n;
}

int vam_svm_restore(const struct vam_call* call, uint32_t process, const struct vam_priv_svm* r,
                    uint64_t attrs_user, uint32_t num_attrs) {
  struct vam_model* m = call->model;
  uint32_t index;
  if (!r->pages || r->start_page + r->pages < r->start_page) return -VAM_EINVAL;
  index = add_svm(m, process, r->start_page, r->pages);
  if (!index) return -VAM_ENOMEM;
  VAM_PROCESS_AT(m, process)->svm_pending++;
  for (uint32_t i = 0; i < num_attrs; ++i) {
    struct vam_svm_attr a;
    if (call->os->copy_in(call, &a, attrs_user + i * sizeof(a), sizeof(a))) return -VAM_EFAULT;
    if (a.type == ATTR_SET_FLAGS) svm_at(m, index)->flags = 0;
    if (a.type == ATTR_PREFETCH && a.value == LOCATION_UNDEFINED) continue;
    if (check_attr(m, process, &a) == 0) apply(m, process, svm_at(m, index), &a);
  }
  return 0;
}

int vam_svm_overlaps(const struct vam_model* m, uint32_t process, uint64_t start, uint64_t size) {
  uint64_t end = (start + size + VAM_PAGE - 1) / VAM_PAGE;
  for (uint32_t i = VAM_PROCESS_AT(m, process)->svm_first; i; i = svm_at(m, i)->next) {
    const struct vam_svm* s = svm_at(m, i);
    if (s->start_page < end && s->start_page + s->pages > start / VAM_PAGE) return 1;
  }
  return 0;
}

int vam_svm_covers(const struct vam_model* m, uint32_t process, uint64_t start, uint64_t size) {
  uint64_t at = start / VAM_PAGE, end = (start + size + VAM_PAGE - 1) / VAM_PAGE;
  for (uint32_t i = VAM_PROCESS_AT(m, process)->svm_first; i && at < end; i = svm_at(m, i)->next) {
    const struct vam_svm* s = svm_at(m, i);
    if (s->start_page <= at && s->start_page + s->pages > at) at = s->start_page + s->pages;
  }
  return at >= end;
}
