/* SPDX-License-Identifier: MIT */
/*
 * Open device files and KFD processes: birth, death and what dies with them. A DRM file that a KFD process
 * has acquired lives until that process is gone, whoever closes it; a file with jobs in flight until they are
 * through.
 */
#include "model.h"

uint32_t vam_find_process(const struct vam_model* m, int32_t pid, uint64_t start_time) {
  for (uint32_t i = 1; i < m->table[VAM_T_PROCESS].high; ++i) {
    const struct vam_process* p = VAM_PROCESS_AT(m, i);
    if (p->rec.live && !p->dead && p->pid == pid && (start_time == 0 || p->start_time == start_time))
      return i;
  }
  return 0;
}

static int any_gpu(const struct vam_model* m) {
  for (uint32_t i = 0; i < m->num_gpus; ++i) {
    if (!m->gpu[i].hidden) return 1;
  }
  return 0;
}

int vam_open_kfd(const struct vam_call* call, uint32_t* out) {
  struct vam_model* m = call->model;
  uint32_t file, process;
  if (!any_gpu(m)) return -VAM_EINVAL;
  process = vam_find_process(m, call->pid, call->start_time);
  file = vam_take(m, VAM_T_FILE);
  if (!file) return -VAM_ENFILE;
  if (!process) {
    struct vam_process* p;
    process = vam_take(m, VAM_T_PROCESS);
    if (!process) {
      vam_put(m, VAM_T_FILE, file);
      return -VAM_ENOMEM;
    }
    p = VAM_PROCESS_AT(m, process);
    p->pid = call->pid;
    p->start_time = call->start_time;
    for (uint32_t i = 0; i < m->num_gpus; ++i) {
      if (m->gpu[i].hidden || (call->os->gpu_allowed && !call->os->gpu_allowed(call, i))) continue;
      p->pdd[i].present = 1;
      p->pdd[i].user_gpu_id = m->gpu[i].config.gpu_id;
    }
  }
  VAM_PROCESS_AT(m, process)->files++;
  VAM_FILE_AT(m, file)->kind = VAM_FILE_KFD;
  VAM_FILE_AT(m, file)->process = process;
  VAM_FILE_AT(m, file)->opener_pid = call->pid;
  VAM_FILE_AT(m, file)->serial = ++m->serial;
  *out = file;
  return 0;
}

int vam_open_render(const struct vam_call* call, uint32_t gpu, uint32_t* out) {
  struct vam_model* m = call->model;
  uint32_t file = vam_take(m, VAM_T_FILE);
  if (!file) return -VAM_ENFILE;
  VAM_FILE_AT(m, file)->kind = VAM_FILE_RENDER;
  VAM_FILE_AT(m, file)->gpu = gpu;
  VAM_FILE_AT(m, file)->opener_pid = call->pid;
  VAM_FILE_AT(m, file)->serial = ++m->serial;
  VAM_FILE_AT(m, file)->client_id = m->serial;
  *out = file;
  return 0;
}

/* A closed DRM file that nothing holds any more. */
static void release_render(struct vam_model* m, uint32_t file) {
  struct vam_file* f = VAM_FILE_AT(m, file);
  uint32_t id, value;
  if (!f->closed || f->process || f->jobs) return;
  for (id = 0; (value = vam_idr_next(m, &f->ctxs, &id)); ++id) vam_ctx_free(m, value);
  for (id = 0; (value = vam_idr_next(m, &f->lists, &id)); ++id) vam_bo_list_free(m, value);
  for (id = 0; (value = vam_idr_next(m, &f->syncobjs, &id)); ++id) vam_syncobj_unref(m, value);
  for (id = 0; vam_idr_next(m, &f->gem, &id); ++id) vam_handle_drop(m, file, id);
  while (f->vm) vam_vm_unmap_range(m, f->vm);
  vam_idr_clear(m, &f->ctxs);
  vam_idr_clear(m, &f->lists);
  vam_idr_clear(m, &f->syncobjs);
  vam_put(m, VAM_T_FILE, file);
}

static void release_process(struct vam_model* m, uint32_t process) {
  struct vam_process* p = VAM_PROCESS_AT(m, process);
  if (p->dead && p->files == 0) vam_put(m, VAM_T_PROCESS, process);
}

void vam_close_file(struct vam_model* m, uint32_t file) {
  struct vam_file* f = VAM_FILE_AT(m, file);
  if (f->kind == VAM_FILE_KFD) {
    uint32_t process = f->process;
    vam_put(m, VAM_T_FILE, file);
    VAM_PROCESS_AT(m, process)->files--;
    release_process(m, process);
    return;
  }
  f->closed = 1;
  f->inode = 0;
  release_render(m, file);
}

void vam_file_job_done(struct vam_model* m, uint32_t file) {
  VAM_FILE_AT(m, file)->jobs--;
  release_render(m, file);
}

void vam_process_died(struct vam_model* m, uint32_t process) {
  struct vam_process* p = VAM_PROCESS_AT(m, process);
  uint32_t id, value;
  for (id = 0; (value = vam_idr_next(m, &p->queues, &id)); ++id) vam_put(m, VAM_T_QUEUE, value);
  for (id = 0; (value = vam_idr_next(m, &p->signal_events, &id)); ++id) vam_put(m, VAM_T_EVENT, value);
  for (id = 0; (value = vam_idr_next(m, &p->other_events, &id)); ++id) vam_put(m, VAM_T_EVENT, value);
  vam_idr_clear(m, &p->queues);
  vam_idr_clear(m, &p->signal_events);
  vam_idr_clear(m, &p->other_events);
  while (p->svm_first) vam_svm_free(m, p->svm_first);
  p->event_page_mem = 0;
  for (uint32_t i = 0; i < m->num_gpus; ++i) {
    struct vam_pdd* pdd = &p->pdd[i];
    for (id = 0; (value = vam_idr_next(m, &pdd->mems, &id)); ++id) {
      for (uint32_t range = VAM_BO_AT(m, VAM_MEM_AT(m, value)->bo)->maps, next; range; range = next) {
        next = VAM_RANGE_AT(m, range)->bo_next;
        if (VAM_RANGE_AT(m, range)->mem == value) vam_vm_unmap_range(m, range);
      }
      vam_mem_free(m, value);
    }
  }
  for (uint32_t i = 0; i < m->num_gpus; ++i) {
    uint32_t file = p->pdd[i].file;
    if (!file) continue;
    p->pdd[i].file = 0;
    VAM_FILE_AT(m, file)->process = 0;
    release_render(m, file);
  }
  p->dead = 1;
  release_process(m, process);
}
