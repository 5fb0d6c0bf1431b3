/* SPDX-License-Identifier: MIT */
/*
 * Record tables and integer ids of the device model. Records are handed out lowest-never-used last: freed
 * ones first, so that the block stays sparse. Ids (GEM handles, KFD handles, event ids) are lowest free
 * first, as the kernel's idr gives them.
 */
#include "model.h"

#define VAM_MAGIC 0x756772756475616dull

static const uint32_t record_bytes[VAM_T_COUNT] = {
    [VAM_T_IDR_NODE] = sizeof(struct vam_idr_node),
    [VAM_T_RANGE] = sizeof(struct vam_range),
    [VAM_T_BO] = sizeof(struct vam_bo),
    [VAM_T_MEM] = sizeof(struct vam_mem),
    [VAM_T_FILE] = sizeof(struct vam_file),
    [VAM_T_PROCESS] = sizeof(struct vam_process),
    [VAM_T_QUEUE] = sizeof(struct vam_queue),
    [VAM_T_EVENT] = sizeof(struct vam_event),
    [VAM_T_SVM] = sizeof(struct vam_svm),
    [VAM_T_CTX] = sizeof(struct vam_ctx),
    [VAM_T_BO_LIST] = sizeof(struct vam_bo_list),
    [VAM_T_CHUNK] = sizeof(struct vam_chunk),
    [VAM_T_FENCE] = sizeof(struct vam_fence),
    [VAM_T_JOB] = sizeof(struct vam_job),
    [VAM_T_SYNCOBJ] = sizeof(struct vam_syncobj),
    [VAM_T_EXPORT] = sizeof(struct vam_export),
    [VAM_T_HANDLE] = sizeof(struct vam_handle),
    [VAM_T_METADATA] = sizeof(struct vam_metadata),
    [VAM_T_IPC] = sizeof(struct vam_ipc),
};

static uint64_t align64(uint64_t bytes) {
  return (bytes + 63) & ~63ull;
}

uint64_t vam_model_bytes(const struct vam_limits* limits) {
  uint64_t bytes = align64(sizeof(struct vam_model));
  for (int t = 0; t < VAM_T_COUNT; ++t)
    bytes += align64((uint64_t)record_bytes[t] * ((uint64_t)limits->capacity[t] + 1));
  return bytes;
}

static int add_free(struct vam_model* m, struct vam_gpu* gpu, enum vam_pool pool, uint64_t bytes) {
  uint32_t range = vam_take(m, VAM_T_RANGE);
  if (!range) return -VAM_ENOMEM;
  VAM_RANGE_AT(m, range)->start = 0;
  VAM_RANGE_AT(m, range)->size = bytes;
  vam_range_insert(m, &gpu->free_root[pool], range);
  return 0;
}

static int valid_config(const struct vamdgpu_machine_config* config) {
  if (config->num_gpus > VAMDGPU_MAX_GPUS) return 0;
  switch (config->bo_record_bytes) {
    case VAMDGPU_BO_RECORD_LINUX_61:
    case VAMDGPU_BO_RECORD_AMD_16:
    case VAMDGPU_BO_RECORD_LINUX_612:
    case VAMDGPU_BO_RECORD_AMD_64:
    case VAMDGPU_BO_RECORD_NOBODYS:
      break;
    default:
      return 0;
  }
  for (uint32_t i = 0; i < config->num_gpus; ++i) {
    const struct vamdgpu_gpu_config* gpu = &config->gpus[i];
    if (gpu->gpu_id == 0 || gpu->gpu_id > 0xffff || gpu->render_minor < 128 || gpu->render_minor > 191)
      return 0;
    if (gpu->vram_bytes == 0 || gpu->vram_bytes % VAM_PAGE || gpu->gtt_bytes % VAM_PAGE) return 0;
    if (gpu->sdma_instances == 0 || gpu->sdma_xgmi >= gpu->sdma_instances || gpu->sdma_max_bytes == 0)
      return 0;
    if (gpu->sdma_instances > VAM_MAX_SDMA_ENGINES || gpu->xccs == 0 || gpu->xccs > 64) return 0;
    if (gpu->mqd_bytes > 65536 || gpu->ctl_stack_bytes > 1048576) return 0;
    for (uint32_t j = 0; j < i; ++j) {
      if (config->gpus[j].gpu_id == gpu->gpu_id || config->gpus[j].render_minor == gpu->render_minor)
        return 0;
    }
  }
  return 1;
}

int vam_model_init(struct vam_model* m, const struct vam_limits* limits,
                   const struct vamdgpu_machine_config* config) {
  uint64_t offset = align64(sizeof(struct vam_model));
  if (!valid_config(config)) return -VAM_EINVAL;
  for (int t = 0; t < VAM_T_COUNT; ++t) {
    struct vam_table* table = &m->table[t];
    table->offset = offset;
    table->stride = record_bytes[t];
    table->capacity = limits->capacity[t];
    table->high = 1;
    offset += align64((uint64_t)record_bytes[t] * ((uint64_t)limits->capacity[t] + 1));
  }
  m->total_bytes = offset;
  m->config = *config;
  m->num_gpus = config->num_gpus;
  for (uint32_t i = 0; i < config->num_gpus; ++i) {
    struct vam_gpu* gpu = &m->gpu[i];
    gpu->config = config->gpus[i];
    /* The third pool has no memory: it gives addresses to BOs that have none of their own. */
    if (add_free(m, gpu, VAM_POOL_VRAM, gpu->config.vram_bytes)) return -VAM_ENOMEM;
    if (gpu->config.gtt_bytes && add_free(m, gpu, VAM_POOL_GTT, gpu->config.gtt_bytes)) return -VAM_ENOMEM;
    if (add_free(m, gpu, VAM_POOL_NONE, 1ull << 39)) return -VAM_ENOMEM;
  }
  m->magic = VAM_MAGIC;
  return 0;
}

void* vam_rec_at(const struct vam_model* m, enum vam_table_id table, uint32_t index) {
  const struct vam_table* t = &m->table[table];
  return (char*)(uintptr_t)m + t->offset + (uint64_t)index * t->stride;
}

void* vam_rec_live(const struct vam_model* m, enum vam_table_id table, uint32_t index) {
  struct vam_rec* rec;
  if (index == 0 || index >= m->table[table].high) return 0;
  rec = vam_rec_at(m, table, index);
  return rec->live ? rec : 0;
}

uint32_t vam_take(struct vam_model* m, enum vam_table_id table) {
  struct vam_table* t = &m->table[table];
  struct vam_rec* rec;
  uint32_t index = t->free_head;
  if (index) {
    rec = vam_rec_at(m, table, index);
    t->free_head = rec->next_free;
    memset(rec, 0, t->stride);
  } else {
    if (t->high > t->capacity) return 0;
    index = t->high++;
    rec = vam_rec_at(m, table, index);
  }
  rec->live = 1;
  t->live++;
  return index;
}

void vam_put(struct vam_model* m, enum vam_table_id table, uint32_t index) {
  struct vam_table* t = &m->table[table];
  struct vam_rec* rec = vam_rec_at(m, table, index);
  rec->live = 0;
  rec->next_free = t->free_head;
  t->free_head = index;
  t->live--;
}

/* ---- idr
 * ---------------------------------------------------------------------------------------------------- */

static struct vam_idr_node* node_at(const struct vam_model* m, uint32_t index) {
  return vam_rec_at(m, VAM_T_IDR_NODE, index);
}

/* Number of ids below a tree of `height` levels, saturating. */
static uint64_t span(uint32_t height) {
  return height >= 6 ? (1ull << 36) : 1ull << (6 * height);
}

static int grow(struct vam_model* m, struct vam_idr* idr, uint32_t id) {
  if (idr->height == 0) {
    idr->root = vam_take(m, VAM_T_IDR_NODE);
    if (!idr->root) return -VAM_ENOMEM;
    idr->height = 1;
  }
  while (id >= span(idr->height)) {
    uint32_t top = vam_take(m, VAM_T_IDR_NODE);
    if (!top) return -VAM_ENOMEM;
    node_at(m, top)->slot[0] = idr->root;
    node_at(m, top)->present = 1;
    if (node_at(m, idr->root)->full == ~0ull) node_at(m, top)->full = 1;
    idr->root = top;
    idr->height++;
  }
  return 0;
}

int vam_idr_add_at(struct vam_model* m, struct vam_idr* idr, uint32_t id, uint32_t value) {
  uint32_t path[6], node, level;
  int err = grow(m, idr, id);
  if (err) return err;
  node = idr->root;
  for (level = idr->height; level-- > 0;) {
    struct vam_idr_node* n = node_at(m, node);
    uint32_t slot = (id >> (6 * level)) & 63;
    path[level] = node;
    if (level == 0) {
      if (n->present >> slot & 1) return -VAM_ENOSPC;
      n->slot[slot] = value;
      n->present |= 1ull << slot;
      n->full |= 1ull << slot;
      break;
    }
    if (!(n->present >> slot & 1)) {
      uint32_t child = vam_take(m, VAM_T_IDR_NODE);
      if (!child) return -VAM_ENOMEM;
      n->slot[slot] = child;
      n->present |= 1ull << slot;
    }
    node = n->slot[slot];
  }
  for (level = 1; level < idr->height && node_at(m, path[level - 1])->full == ~0ull; ++level)
    node_at(m, path[level])->full |= 1ull << ((id >> (6 * level)) & 63);
  return 0;
}

/* Lowest free id >= first below `node`; ids of the subtree start at `base`. 1 found, 0 none. */
static int lowest_free(const struct vam_model* m, uint32_t node, uint32_t level, uint64_t base,
                       uint64_t first, uint64_t* id) {
  const struct vam_idr_node* n = node_at(m, node);
  uint64_t step = span(level);
  for (uint32_t slot = 0; slot < 64; ++slot) {
    uint64_t start = base + slot * step;
    if (start + step <= first || (n->full >> slot & 1)) continue;
    if (level == 0 || !(n->present >> slot & 1)) {
      *id = start > first ? start : first;
      return 1;
    }
    if (lowest_free(m, n->slot[slot], level - 1, start, first, id)) return 1;
  }
  return 0;
}

int vam_idr_add(struct vam_model* m, struct vam_idr* idr, uint32_t first, uint32_t last, uint32_t value,
                uint32_t* id) {
  uint64_t found = first;
  int err;
  if (idr->height && first < span(idr->height) &&
      !lowest_free(m, idr->root, idr->height - 1, 0, first, &found)) {
    found = span(idr->height);
    if (found < first) found = first;
  }
  if (found > last) return -VAM_ENOSPC;
  err = vam_idr_add_at(m, idr, (uint32_t)found, value);
  if (!err) *id = (uint32_t)found;
  return err;
}

uint32_t vam_idr_find(const struct vam_model* m, const struct vam_idr* idr, uint32_t id) {
  uint32_t node = idr->root;
  if (idr->height == 0 || id >= span(idr->height)) return 0;
  for (uint32_t level = idr->height; level-- > 0;) {
    const struct vam_idr_node* n = node_at(m, node);
    uint32_t slot = (id >> (6 * level)) & 63;
    if (!(n->present >> slot & 1)) return 0;
    node = n->slot[slot];
  }
  return node;
}

uint32_t vam_idr_remove(struct vam_model* m, struct vam_idr* idr, uint32_t id) {
  uint32_t path[6], value = vam_idr_find(m, idr, id), node = idr->root, level;
  if (!value) return 0;
  for (level = idr->height; level-- > 0;) {
    path[level] = node;
    node = node_at(m, node)->slot[(id >> (6 * level)) & 63];
  }
  for (level = 0; level < idr->height; ++level) {
    struct vam_idr_node* n = node_at(m, path[level]);
    uint64_t bit = 1ull << ((id >> (6 * level)) & 63);
    n->full &= ~bit;
    if (level == 0 || node_at(m, path[level - 1])->present == 0) {
      n->present &= ~bit;
      if (level) vam_put(m, VAM_T_IDR_NODE, path[level - 1]);
    }
  }
  if (node_at(m, idr->root)->present == 0) {
    vam_put(m, VAM_T_IDR_NODE, idr->root);
    idr->root = 0;
    idr->height = 0;
  }
  return value;
}

static uint32_t next_in(const struct vam_model* m, uint32_t node, uint32_t level, uint64_t base,
                        uint32_t* id) {
  const struct vam_idr_node* n = node_at(m, node);
  uint64_t step = span(level);
  for (uint32_t slot = 0; slot < 64; ++slot) {
    uint64_t start = base + slot * step;
    uint32_t value;
    if (start + step <= *id || !(n->present >> slot & 1)) continue;
    if (level == 0) {
      *id = (uint32_t)start;
      return n->slot[slot];
    }
    value = next_in(m, n->slot[slot], level - 1, start, id);
    if (value) return value;
  }
  return 0;
}

uint32_t vam_idr_next(const struct vam_model* m, const struct vam_idr* idr, uint32_t* id) {
  if (idr->height == 0) return 0;
  return next_in(m, idr->root, idr->height - 1, 0, id);
}

static void clear_node(struct vam_model* m, uint32_t node, uint32_t level) {
  struct vam_idr_node* n = node_at(m, node);
  for (uint32_t slot = 0; level && slot < 64; ++slot) {
    if (n->present >> slot & 1) clear_node(m, n->slot[slot], level - 1);
  }
  vam_put(m, VAM_T_IDR_NODE, node);
}

void vam_idr_clear(struct vam_model* m, struct vam_idr* idr) {
  if (idr->height) clear_node(m, idr->root, idr->height - 1);
  idr->root = 0;
  idr->height = 0;
}
