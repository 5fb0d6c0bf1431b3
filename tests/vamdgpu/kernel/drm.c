/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The GPUs as DRM devices of a driver named "amdgpu". The DRM core gives names, minors and open files; every
 * ioctl that the model knows goes to the model, so that GEM handles, PRIME and syncobjs obey the same rules
 * as in user space. What it does not know goes to the core.
 *
 * The core gives the lowest free minor to the device that is made next: devices are made in ascending order
 * of the minors they are to have, with placeholders in the gaps.
 */
#include <drm/drm_drv.h>
#include <drm/drm_file.h>
#include <drm/drm_ioctl.h>
#include <linux/platform_device.h>
#include <linux/slab.h>
#include <linux/version.h>

#include "compat.h"
#include "core.h"

#define FIRST_RENDER_MINOR 128
#define RENDER_MINORS 64

static struct vam_machine* drm_machine;

static struct vam_gpu_device* gpu_of(const struct drm_device* drm) {
  for (u32 i = 0; i < drm_machine->num_gpus; ++i) {
    if (drm_machine->gpu[i].drm == drm) return &drm_machine->gpu[i];
  }
  return NULL;
}

/* ---- files ------------------------------------------------------------------------------------------------
 */

static int render_open(struct drm_device* drm, struct drm_file* file) {
  struct vam_gpu_device* gpu = gpu_of(drm);
  struct vam_open* open;
  struct vam_frame frame;
  int err;
  if (!gpu) return -ENODEV;
  if (drm_is_primary_client(file)) return -EACCES; /* no modes to set here */
  open = kzalloc(sizeof(*open), GFP_KERNEL);
  if (!open) return -ENOMEM;
  open->machine = gpu->machine;
  open->device = VAM_DEVICE_RENDER;
  open->gpu = gpu->index;
  vam_frame_init(&frame, gpu->machine, 0);
  mutex_lock(&gpu->machine->lock);
  err = vam_open_render(&frame.call, gpu->index, &open->file);
  if (!err) VAM_FILE_AT(gpu->machine->model, open->file)->inode = 1;
  mutex_unlock(&gpu->machine->lock);
  if (err) {
    kfree(open);
    return err;
  }
  file->driver_priv = open;
  return 0;
}

static void render_closed(struct drm_device* drm, struct drm_file* file) {
  struct vam_open* open = file->driver_priv;
  mutex_lock(&open->machine->lock);
  vam_release_hung(open->machine, open->file); /* what a reset of the GPU would do */
  vam_close_file(open->machine->model, open->file);
  vam_changed(open->machine, 0);
  mutex_unlock(&open->machine->lock);
  kfree(open);
}

static struct vam_open* open_of(struct file* file) {
  return ((struct drm_file*)file->private_data)->driver_priv;
}

static long render_ioctl(struct file* file, unsigned int command, unsigned long argument) {
  if (_IOC_TYPE(command) == DRM_IOCTL_BASE && !vam_drm_knows(command)) {
    long result = drm_ioctl(file, command, argument);
    if (result != -EINVAL) return result; /* else unknown to both: refused below, and in the trace */
  }
  return vam_ioctl(open_of(file), command, argument);
}

static int render_mmap(struct file* file, struct vm_area_struct* vma) {
  return vam_map_file(open_of(file), vma);
}

static const struct file_operations render_fops = {.owner = THIS_MODULE,
                                                   .open = drm_open,
                                                   .release = drm_release,
                                                   .unlocked_ioctl = render_ioctl,
                                                   .mmap = render_mmap,
                                                   .poll = drm_poll,
                                                   .read = drm_read,
                                                   .llseek = noop_llseek,
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 12, 0)
                                                   .show_fdinfo = drm_show_fdinfo,
#endif
                                                   VAM_UNSIGNED_OFFSETS};

struct vam_open* vam_render_open_of(struct file* file) {
  return file->f_op == &render_fops ? open_of(file) : NULL;
}

static const struct drm_driver driver = {
    .driver_features = DRIVER_RENDER,
    .open = render_open,
    .postclose = render_closed,
    .fops = &render_fops,
    .name = "amdgpu",
    .desc = "AMD GPU",
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 14, 0)
    .date = "20150101",
#endif
    .major = 3,
    .minor = VAM_DRM_MINOR, /* in the log; DRM_IOCTL_VERSION is the model's */
};

/* ---- devices ----------------------------------------------------------------------------------------------
 */

static void unregister(struct drm_device* drm) {
  drm_dev_unregister(drm);
  drm_dev_put(drm);
}

/* Registers a device and says which render minor it got. */
static int register_gpu(struct vam_gpu_device* gpu) {
  struct vamdgpu_gpu_config* config = &gpu->machine->model->gpu[gpu->index].config;
  struct drm_device* drm = drm_dev_alloc(&driver, gpu->parent);
  int err;
  if (IS_ERR(drm)) return PTR_ERR(drm);
  gpu->drm = drm;
  err = drm_dev_register(drm, 0);
  if (err) {
    gpu->drm = NULL;
    drm_dev_put(drm);
    return err;
  }
  if ((u32)drm->render->index != config->render_minor) {
    pr_err("vamdgpu: GPU %u cannot have render minor %u: Linux gives %d\n", gpu->index, config->render_minor,
           drm->render->index);
    return -EBUSY;
  }
  config->card_minor = (u32)drm->primary->index;
  gpu->machine->model->config.gpus[gpu->index].card_minor = config->card_minor;
  return 0;
}

static struct vam_gpu_device* gpu_with_minor(struct vam_machine* machine, u32 minor) {
  for (u32 i = 0; i < machine->num_gpus; ++i) {
    if (machine->model->gpu[i].config.render_minor == minor) return &machine->gpu[i];
  }
  return NULL;
}

/* A device that takes a minor and is never registered. */
struct placeholder {
  struct platform_device* parent;
  struct drm_device* drm;
};

static int make_placeholder(struct placeholder* placeholder, u32 minor) {
  int err;
  placeholder->parent = platform_device_register_simple("vamdgpu-gap", (int)minor, NULL, 0);
  if (IS_ERR(placeholder->parent)) return PTR_ERR(placeholder->parent);
  placeholder->drm = drm_dev_alloc(&driver, &placeholder->parent->dev);
  if (!IS_ERR(placeholder->drm)) return 0;
  err = PTR_ERR(placeholder->drm);
  platform_device_unregister(placeholder->parent);
  return err;
}

int vam_drm_create(struct vam_machine* machine) {
  struct placeholder* gaps = kcalloc(RENDER_MINORS, sizeof(*gaps), GFP_KERNEL);
  u32 registered = 0, count = 0;
  int err = 0;
  if (!gaps) return -ENOMEM;
  drm_machine = machine;
  for (u32 minor = FIRST_RENDER_MINOR; registered < machine->num_gpus && !err; ++minor) {
    struct vam_gpu_device* gpu = gpu_with_minor(machine, minor);
    if (gpu) {
      err = register_gpu(gpu);
      registered++;
    } else {
      err = make_placeholder(&gaps[count], minor);
      if (!err) count++;
    }
  }
  while (count--) {
    drm_dev_put(gaps[count].drm);
    platform_device_unregister(gaps[count].parent);
  }
  kfree(gaps);
  if (err) vam_drm_destroy(machine);
  return err;
}

void vam_drm_destroy(struct vam_machine* machine) {
  for (u32 i = 0; i < machine->num_gpus; ++i) {
    if (machine->gpu[i].drm) unregister(machine->gpu[i].drm);
    machine->gpu[i].drm = NULL;
  }
}
