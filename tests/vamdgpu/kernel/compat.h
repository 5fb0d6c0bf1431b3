/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Where the kernels that the module builds for (6.1, 6.12, 7.2) differ, behind one name each.
 */
#ifndef VAM_COMPAT_H
#define VAM_COMPAT_H

#include <linux/device.h>
#include <linux/dma-buf.h>
#include <linux/eventfd.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
static inline void vam_vm_flags_set(struct vm_area_struct* vma, unsigned long flags) {
  vma->vm_flags |= flags;
}
static inline void vam_vm_flags_clear(struct vm_area_struct* vma, unsigned long flags) {
  vma->vm_flags &= ~flags;
}
#else
static inline void vam_vm_flags_set(struct vm_area_struct* vma, unsigned long flags) {
  vm_flags_set(vma, flags);
}
static inline void vam_vm_flags_clear(struct vm_area_struct* vma, unsigned long flags) {
  vm_flags_clear(vma, flags);
}
#endif

static inline struct class* vam_class_create(const char* name) {
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 4, 0)
  return class_create(THIS_MODULE, name);
#else
  return class_create(name);
#endif
}

/* The type of class.devnode's device. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 2, 0)
typedef struct device vam_devnode_device;
#else
typedef const struct device vam_devnode_device;
#endif

static inline void vam_eventfd_signal(struct eventfd_ctx* context) {
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 8, 0)
  eventfd_signal(context, 1);
#else
  eventfd_signal(context);
#endif
}

/* Takes a reference on a dma-buf that its release may be about to end: false when it is too late. The memory
 * is there as long as the release has not run. */
static inline bool vam_dma_buf_revive(struct dma_buf* buf) {
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 7, 0)
  return get_file_rcu(buf->file);
#else
  return get_file_active(&buf->file) != NULL;
#endif
}

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 12, 0)
#define VAM_DRM_MINOR 49
#define VAM_UNSIGNED_OFFSETS
#else
#define VAM_DRM_MINOR 61
#define VAM_UNSIGNED_OFFSETS .fop_flags = FOP_UNSIGNED_OFFSET,
#endif

#endif
