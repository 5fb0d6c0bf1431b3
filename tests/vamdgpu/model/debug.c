/* SPDX-License-Identifier: MIT */
/* Faults, trace and counters of a machine. See debug.h. */
#include "debug.h"

void vam_debug_init(struct vam_debug* debug, const struct vamdgpu_machine_config* config) {
  debug->layout = VAM_DEBUG_LAYOUT;
  for (uint32_t i = 0; i < config->num_gpus && i < VAMDGPU_MAX_GPUS; ++i)
    debug->bytes_per_s[i] = config->gpus[i].sdma_bytes_per_s;
}

static uint32_t word_at(const void* argument, uint32_t bytes, uint32_t offset) {
  uint32_t value = 0;
  if (offset + 4 <= bytes) memcpy(&value, (const char*)argument + offset, 4);
  return value;
}

uint32_t vam_debug_op(uint32_t device, uint32_t nr, const void* argument, uint32_t bytes) {
  if (device == VAM_FILE_KFD) return nr == VAM_KFD_CRIU_OP ? word_at(argument, bytes, 48) : 0;
  switch (nr) {
    case VAM_DRM_GEM_VA:
      return word_at(argument, bytes, 8);
    case VAM_DRM_CTX:
    case VAM_DRM_BO_LIST:
      return word_at(argument, bytes, 0);
    case VAM_DRM_GEM_OP:
    case VAM_DRM_GEM_METADATA:
      return word_at(argument, bytes, 4);
    case VAM_DRM_INFO:
      return word_at(argument, bytes, 12);
    case VAM_DRM_FENCE_TO_HANDLE:
      return word_at(argument, bytes, 24);
    default:
      return 0;
  }
}

int vam_debug_fault(struct vam_debug* debug, uint32_t device, uint32_t nr, uint32_t op, int* after) {
  for (uint32_t i = 0; i < VAM_FAULT_RULES; ++i) {
    struct vam_fault_rule* rule = &debug->faults[i];
    uint64_t seen;
    if (!rule->active || rule->device != device || rule->nr != nr) continue;
    if (rule->op >= 0 && (uint32_t)rule->op != op) continue;
    seen = rule->seen++;
    if (seen < rule->skip || (rule->times && seen >= (uint64_t)rule->skip + rule->times)) continue;
    rule->hit++;
    *after = rule->after != 0;
    return -rule->error;
  }
  return 0;
}

enum vam_fence_fate vam_debug_fence(struct vam_debug* debug, uint32_t gpu, uint64_t number, int32_t* error) {
  for (uint32_t i = 0; i < VAM_FAULT_RULES; ++i) {
    struct vam_fence_fault* fault = &debug->fence_faults[i];
    if (!fault->active || fault->gpu != gpu || (fault->number && fault->number != number)) continue;
    fault->hit++;
    if (fault->number) fault->active = 0;
    *error = -fault->error;
    return (enum vam_fence_fate)fault->fate;
  }
  return VAM_FENCE_RUNS;
}

int vam_debug_locate(const struct vam_model* m, int32_t pid, uint32_t gpu_id, uint64_t va, uint32_t* bo,
                     uint64_t* offset, uint64_t* bytes) {
  const uint32_t process = vam_find_process(m, pid, 0);
  uint32_t gpu, file, range;
  const struct vam_range* mapping;
  if (!process) return -VAM_ENOENT;
  gpu = vam_pdd_by_user_id(m, process, gpu_id);
  if (!gpu) gpu = vam_gpu_by_id(m, gpu_id);
  file = gpu ? VAM_PROCESS_AT(m, process)->pdd[gpu - 1].file : 0;
  if (!file) return -VAM_ENOENT;
  range = vam_range_find(m, VAM_FILE_AT(m, file)->vm, va);
  if (!range || !VAM_RANGE_AT(m, range)->bo) return -VAM_ENOENT;
  mapping = VAM_RANGE_AT(m, range);
  if (VAM_BO_AT(m, mapping->bo)->pool == VAM_POOL_NONE) return -VAM_ENOENT;
  *bo = mapping->bo;
  *offset = mapping->bo_offset + (va - mapping->start);
  *bytes = mapping->size - (va - mapping->start);
  return 0;
}

void vam_debug_trace(struct vam_debug* debug, const struct vam_trace_record* call) {
  struct vam_trace_record* record = &debug->trace[debug->trace_count++ % VAM_TRACE_RECORDS];
  *record = *call;
  record->sequence = debug->trace_count;
  debug->calls[call->device][call->nr & 255]++;
  if (call->device == VAM_FILE_KFD && call->nr == VAM_KFD_CRIU_OP) debug->criu_calls[call->op & 7]++;
}

int vam_debug_add_fault(struct vam_debug* debug, const struct vam_fault_rule* rule) {
  if ((rule->device != VAM_FILE_KFD && rule->device != VAM_FILE_RENDER) || rule->nr > 255 || rule->error <= 0)
    return -VAM_EINVAL;
  for (uint32_t i = 0; i < VAM_FAULT_RULES; ++i) {
    struct vam_fault_rule* slot = &debug->faults[i];
    if (slot->active) continue;
    debug->old_hits += slot->hit;
    *slot = *rule;
    slot->active = 1;
    slot->seen = 0;
    slot->hit = 0;
    return 0;
  }
  return -VAM_ENOSPC;
}

int vam_debug_add_fence_fault(struct vam_debug* debug, const struct vam_fence_fault* fault) {
  if (fault->gpu >= VAMDGPU_MAX_GPUS ||
      (fault->fate == VAM_FENCE_FAILS ? fault->error <= 0 : fault->fate != VAM_FENCE_HANGS))
    return -VAM_EINVAL;
  for (uint32_t i = 0; i < VAM_FAULT_RULES; ++i) {
    struct vam_fence_fault* slot = &debug->fence_faults[i];
    if (slot->active) continue;
    debug->old_hits += slot->hit;
    *slot = *fault;
    slot->active = 1;
    slot->hit = 0;
    return 0;
  }
  return -VAM_ENOSPC;
}

void vam_debug_clear_faults(struct vam_debug* debug) {
  for (uint32_t i = 0; i < VAM_FAULT_RULES; ++i) debug->faults[i].active = debug->fence_faults[i].active = 0;
}

void vam_debug_clear_trace(struct vam_debug* debug) {
  debug->trace_count = 0;
  memset(debug->calls, 0, sizeof(debug->calls));
  memset(debug->criu_calls, 0, sizeof(debug->criu_calls));
}

uint64_t vam_debug_hits(const struct vam_debug* debug) {
  uint64_t hits = debug->old_hits;
  for (uint32_t i = 0; i < VAM_FAULT_RULES; ++i) hits += debug->faults[i].hit + debug->fence_faults[i].hit;
  return hits;
}
