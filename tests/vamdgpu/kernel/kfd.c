/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * /dev/kfd: the char device, and the life of KFD processes. A KFD process belongs to an mm: it dies with it
 * (exit or execve), whoever still has its files open, which the mm's notifier tells us.
 */
#include <linux/compat.h>
#include <linux/device.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "compat.h"
#include "core.h"

/* An mm that has opened /dev/kfd. */
struct vam_owner {
  struct mmu_notifier notifier;
  struct list_head link; /* in `owners`, below the machine's lock; empty once its end has been seen to */
};

static LIST_HEAD(owners);
static struct vam_machine* kfd_machine;

/* ---- processes --------------------------------------------------------------------------------------------
 */

static void mm_released(struct mmu_notifier* notifier, struct mm_struct* mm) {
  struct vam_owner* owner = container_of(notifier, struct vam_owner, notifier);
  struct vam_machine* machine = kfd_machine;
  bool listed;
  mutex_lock(&machine->lock);
  listed = !list_empty(&owner->link);
  list_del_init(&owner->link);
  for (u32 i = 1; listed && i < machine->model->table[VAM_T_PROCESS].high; ++i) {
    if (machine->owner[i] != owner) continue;
    machine->owner[i] = NULL;
    vam_doorbells_drop(machine, i);
    vam_process_died(machine->model, i);
  }
  vam_changed(machine, 0);
  mutex_unlock(&machine->lock);
  if (listed) mmu_notifier_put(notifier);
}

static struct mmu_notifier* alloc_owner(struct mm_struct* mm) {
  struct vam_owner* owner = kzalloc(sizeof(*owner), GFP_KERNEL);
  if (!owner) return ERR_PTR(-ENOMEM);
  INIT_LIST_HEAD(&owner->link);
  return &owner->notifier;
}

static void free_owner(struct mmu_notifier* notifier) {
  kfree(container_of(notifier, struct vam_owner, notifier));
}

static const struct mmu_notifier_ops owner_ops = {
    .release = mm_released,
    .alloc_notifier = alloc_owner,
    .free_notifier = free_owner,
};

struct mm_struct* vam_process_mm(struct vam_machine* machine, u32 process) {
  const struct vam_owner* owner = machine->owner[process];
  return owner && mmget_not_zero(owner->notifier.mm) ? owner->notifier.mm : NULL;
}

/* ---- files ------------------------------------------------------------------------------------------------
 */

static int kfd_open(struct inode* inode, struct file* file) {
  struct vam_machine* machine = kfd_machine;
  struct mmu_notifier* notifier;
  struct vam_owner* owner;
  struct vam_open* open;
  struct vam_frame frame;
  bool extra;
  int err;
  if (iminor(inode) != 0) return -ENODEV;
  if (in_compat_syscall()) return -EPERM;
  if (!current->mm) return -EINVAL;
  open = kzalloc(sizeof(*open), GFP_KERNEL);
  if (!open) return -ENOMEM;
  notifier = mmu_notifier_get(&owner_ops, current->mm); /* takes mmap_lock */
  if (IS_ERR(notifier)) {
    kfree(open);
    return PTR_ERR(notifier);
  }
  owner = container_of(notifier, struct vam_owner, notifier);
  vam_frame_init(&frame, machine, 0);
  open->machine = machine;
  open->device = VAM_DEVICE_KFD;
  mutex_lock(&machine->lock);
  extra = !list_empty(&owner->link); /* one reference an mm is enough */
  err = vam_open_kfd(&frame.call, &open->file);
  if (err) {
    extra = true;
  } else {
    VAM_FILE_AT(machine->model, open->file)->inode = 1;
    machine->owner[VAM_FILE_AT(machine->model, open->file)->process] = owner;
    if (!extra) list_add(&owner->link, &owners);
  }
  mutex_unlock(&machine->lock);
  if (extra) mmu_notifier_put(notifier);
  if (err) {
    kfree(open);
    return err;
  }
  file->private_data = open;
  return 0;
}

static int kfd_release(struct inode* inode, struct file* file) {
  struct vam_open* open = file->private_data;
  mutex_lock(&open->machine->lock);
  vam_close_file(open->machine->model, open->file);
  vam_changed(open->machine, 0);
  mutex_unlock(&open->machine->lock);
  kfree(open);
  return 0;
}

static long kfd_ioctl(struct file* file, unsigned int command, unsigned long argument) {
  return vam_ioctl(file->private_data, command, argument);
}

static int kfd_mmap(struct file* file, struct vm_area_struct* vma) {
  return vam_map_file(file->private_data, vma);
}

static const struct file_operations kfd_fops = {
    .owner = THIS_MODULE,
    .open = kfd_open,
    .release = kfd_release,
    .unlocked_ioctl = kfd_ioctl,
    .mmap = kfd_mmap,
    .llseek = noop_llseek,
};

bool vam_is_kfd_file(const struct file* file) {
  return file->f_op == &kfd_fops;
}

/* ---- the device -------------------------------------------------------------------------------------------
 */

static char* kfd_devnode(vam_devnode_device* device, umode_t* mode) {
  if (mode) *mode = 0666;
  return NULL;
}

int vam_kfd_create(struct vam_machine* machine) {
  int err;
  kfd_machine = machine;
  machine->kfd_major = register_chrdev(0, "kfd", &kfd_fops);
  if (machine->kfd_major < 0) return machine->kfd_major;
  machine->kfd_class = vam_class_create("kfd");
  if (IS_ERR(machine->kfd_class)) {
    err = PTR_ERR(machine->kfd_class);
    goto no_class;
  }
  machine->kfd_class->devnode = kfd_devnode;
  machine->kfd = device_create(machine->kfd_class, NULL, MKDEV(machine->kfd_major, 0), NULL, "kfd");
  if (IS_ERR(machine->kfd)) {
    err = PTR_ERR(machine->kfd);
    goto no_device;
  }
  return 0;
no_device:
  class_destroy(machine->kfd_class);
no_class:
  unregister_chrdev(machine->kfd_major, "kfd");
  machine->kfd = NULL;
  return err;
}

void vam_kfd_destroy(struct vam_machine* machine) {
  struct vam_owner *owner, *next;
  LIST_HEAD(left);
  if (!machine->kfd) return;
  device_destroy(machine->kfd_class, MKDEV(machine->kfd_major, 0));
  class_destroy(machine->kfd_class);
  unregister_chrdev(machine->kfd_major, "kfd");
  /* No file is open, but programs that had one may live on. */
  mutex_lock(&machine->lock);
  list_splice_init(&owners, &left);
  list_for_each_entry_safe(owner, next, &left, link) {
    list_del_init(&owner->link);
    mmu_notifier_put(&owner->notifier);
  }
  /* Their queues stay in the model, and the queues' thread runs until vam_queues_destroy(). */
  for (u32 i = 1; i < machine->model->table[VAM_T_PROCESS].high; ++i) {
    machine->owner[i] = NULL;
    vam_doorbells_drop(machine, i);
  }
  mutex_unlock(&machine->lock);
  mmu_notifier_synchronize();
}
