/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * A virtual amdgpu for a stock kernel: loading the module makes the machine that the file named by its
 * parameter describes; removing it ends it. Each part is made after what it stands on and removed before it.
 */
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/version.h>
#include <linux/vmalloc.h>

#include "core.h"

static char* description = "";
module_param(description, charp, 0400);
MODULE_PARM_DESC(description, "file that describes the machine, as vamdgpu-load writes it");

static struct vam_machine* machine;

/* Room for a program with some ten thousand BOs and placeholders for as many GEM handles. */
static const struct vam_limits limits = {
    .capacity =
        {
            [VAM_T_IDR_NODE] = 8192,
            [VAM_T_RANGE] = 131072,
            [VAM_T_BO] = 98304,
            [VAM_T_HANDLE] = 131072,
            [VAM_T_MEM] = 32768,
            [VAM_T_FILE] = 1024,
            [VAM_T_PROCESS] = 128,
            [VAM_T_QUEUE] = 1024,
            [VAM_T_EVENT] = 16384,
            [VAM_T_SVM] = 8192,
            [VAM_T_CTX] = 1024,
            [VAM_T_BO_LIST] = 1024,
            [VAM_T_CHUNK] = 32768,
            [VAM_T_FENCE] = 16384,
            [VAM_T_JOB] = 4096,
            [VAM_T_SYNCOBJ] = 8192,
            [VAM_T_EXPORT] = 1,
            [VAM_T_METADATA] = 4096,
        },
};

static int make_model(const struct vamdgpu_machine_config* config) {
  const u32* capacity = limits.capacity;
  machine->model = vzalloc(vam_model_bytes(&limits));
  machine->bo = kvcalloc(capacity[VAM_T_BO] + 1, sizeof(*machine->bo), GFP_KERNEL);
  machine->fence = kvcalloc(capacity[VAM_T_FENCE] + 1, sizeof(*machine->fence), GFP_KERNEL);
  machine->owner = kvcalloc(capacity[VAM_T_PROCESS] + 1, sizeof(*machine->owner), GFP_KERNEL);
  machine->doorbells =
      kvcalloc((capacity[VAM_T_PROCESS] + 1) * VAMDGPU_MAX_GPUS, sizeof(*machine->doorbells), GFP_KERNEL);
  if (!machine->model || !machine->bo || !machine->fence || !machine->owner || !machine->doorbells)
    return -ENOMEM;
  machine->num_gpus = config->num_gpus;
  for (u32 i = 0; i < VAMDGPU_MAX_GPUS; ++i) {
    machine->gpu[i].machine = machine;
    machine->gpu[i].index = i;
  }
  return vam_model_init(machine->model, &limits, config);
}

static void free_all(void) {
  vfree(machine->model);
  kvfree(machine->bo);
  kvfree(machine->fence);
  kvfree(machine->owner);
  kvfree(machine->doorbells);
  kvfree(machine);
}

static int __init vamdgpu_init(void) {
  struct vam_description* read;
  int err = vam_description_read(description, &read);
  if (err) return err;
  err = -ENOMEM;
  machine = kvzalloc(sizeof(*machine), GFP_KERNEL);
  if (!machine) goto no_machine;
  mutex_init(&machine->lock);
  init_rwsem(&machine->borrowing);
  init_waitqueue_head(&machine->wait);
  INIT_LIST_HEAD(&machine->watches);
  machine->description = read;
  err = make_model(vam_description_config(read));
  if (err) goto no_model;
  vam_pools_init(machine);
  err = vam_engines_create(machine);
  if (err) goto no_engines;
  err = vam_queues_create(machine);
  if (err) goto no_engines;
  err = vam_pci_create(machine, read);
  if (err) goto no_engines;
  err = vam_drm_create(machine);
  if (err) goto no_drm;
  err = vam_kfd_create(machine);
  if (err) goto no_kfd;
  machine->model->config.kfd_major = (u32)machine->kfd_major;
  err = vam_topology_create(machine, read);
  if (err) goto no_topology;
  err = vam_debugfs_create(machine);
  if (err) goto no_debugfs;
  pr_info("vamdgpu: %u GPUs, kfd major %d\n", machine->num_gpus, machine->kfd_major);
  return 0;
no_debugfs:
  vam_topology_destroy(machine);
no_topology:
  vam_kfd_destroy(machine);
no_kfd:
  vam_drm_destroy(machine);
no_drm:
  vam_pci_destroy(machine);
no_engines:
  vam_queues_destroy(machine);
  vam_engines_destroy(machine);
  vam_pools_destroy(machine);
no_model:
  free_all();
no_machine:
  vam_description_free(read);
  pr_err("vamdgpu: no machine: error %d\n", err);
  return err;
}

static void __exit vamdgpu_exit(void) {
  vam_debugfs_destroy(machine);
  vam_topology_destroy(machine);
  vam_kfd_destroy(machine);
  vam_drm_destroy(machine);
  mutex_lock(&machine->lock);
  vam_release_hung(machine, 0);
  vam_watches_destroy(machine);
  mutex_unlock(&machine->lock);
  vam_queues_destroy(machine);
  vam_engines_destroy(machine);
  vam_pci_destroy(machine);
  vam_pools_destroy(machine);
  vam_description_free((struct vam_description*)machine->description);
  free_all();
}

module_init(vamdgpu_init);
module_exit(vamdgpu_exit);
MODULE_DESCRIPTION("virtual AMD GPUs: /dev/kfd and render nodes made of memory");
MODULE_LICENSE("Dual MIT/GPL");
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
MODULE_IMPORT_NS("DMA_BUF");
#else
MODULE_IMPORT_NS(DMA_BUF);
#endif
