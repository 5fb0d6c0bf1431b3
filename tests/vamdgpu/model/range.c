/* SPDX-License-Identifier: MIT */
/*
 * Ranges in a treap ordered by start, with the largest size of each subtree: VA mappings of a VM, allocated
 * and free pieces of a memory pool. Priorities are a hash of the record's index, so runs are reproducible.
 */
#include "model.h"

static struct vam_range* at(const struct vam_model* m, uint32_t index) {
  return VAM_RANGE_AT(m, index);
}

static uint32_t hash32(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

static void update(const struct vam_model* m, uint32_t index) {
  struct vam_range* r = at(m, index);
  r->biggest = r->size;
  if (r->left && at(m, r->left)->biggest > r->biggest) r->biggest = at(m, r->left)->biggest;
  if (r->right && at(m, r->right)->biggest > r->biggest) r->biggest = at(m, r->right)->biggest;
}

/* Ranges that start below `start` go to *low, the others to *high. */
static void split(const struct vam_model* m, uint32_t root, uint64_t start, uint32_t* low, uint32_t* high) {
  if (!root) {
    *low = *high = 0;
  } else if (at(m, root)->start < start) {
    split(m, at(m, root)->right, start, &at(m, root)->right, high);
    *low = root;
    update(m, root);
  } else {
    split(m, at(m, root)->left, start, low, &at(m, root)->left);
    *high = root;
    update(m, root);
  }
}

static uint32_t merge(const struct vam_model* m, uint32_t low, uint32_t high) {
  if (!low || !high) return low ? low : high;
  if (at(m, low)->priority > at(m, high)->priority) {
    at(m, low)->right = merge(m, at(m, low)->right, high);
    update(m, low);
    return low;
  }
  at(m, high)->left = merge(m, low, at(m, high)->left);
  update(m, high);
  return high;
}

void vam_range_insert(struct vam_model* m, uint32_t* root, uint32_t range) {
  struct vam_range* r = at(m, range);
  uint32_t low, high;
  r->left = r->right = 0;
  r->priority = hash32(range);
  r->biggest = r->size;
  split(m, *root, r->start, &low, &high);
  *root = merge(m, merge(m, low, range), high);
}

void vam_range_erase(struct vam_model* m, uint32_t* root, uint32_t range) {
  uint32_t low, rest, self, high;
  split(m, *root, at(m, range)->start, &low, &rest);
  split(m, rest, at(m, range)->start + 1, &self, &high);
  *root = merge(m, low, high);
}

uint32_t vam_range_find(const struct vam_model* m, uint32_t root, uint64_t where) {
  uint32_t found = vam_range_from(m, root, where);
  return found && at(m, found)->start <= where ? found : 0;
}

uint32_t vam_range_from(const struct vam_model* m, uint32_t root, uint64_t where) {
  uint32_t best = 0;
  while (root) {
    const struct vam_range* r = at(m, root);
    if (r->start + r->size > where) {
      best = root;
      root = r->left;
    } else {
      root = r->right;
    }
  }
  return best;
}

uint32_t vam_range_first_fit(const struct vam_model* m, uint32_t root, uint64_t size) {
  if (!root || at(m, root)->biggest < size) return 0;
  for (;;) {
    const struct vam_range* r = at(m, root);
    if (r->left && at(m, r->left)->biggest >= size) {
      root = r->left;
    } else if (r->size >= size) {
      return root;
    } else {
      root = r->right;
    }
  }
}

int vam_range_overlaps(const struct vam_model* m, uint32_t root, uint64_t start, uint64_t size) {
  uint32_t next = vam_range_from(m, root, start);
  return next && at(m, next)->start < start + size;
}
