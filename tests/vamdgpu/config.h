/* SPDX-License-Identifier: MIT */
/*
 * What a virtual machine with virtual AMD GPUs is made of: the plain numbers from which the device model, the
 * sysfs tree and the render nodes are built. Freestanding C11.
 */
#ifndef VAMDGPU_CONFIG_H
#define VAMDGPU_CONFIG_H

#include <stdint.h>

#define VAMDGPU_MAX_GPUS 16

/* One GPU. All sizes in bytes. */
struct vamdgpu_gpu_config {
  uint32_t gpu_id;           /* KFD's 16-bit hash, 1..65535, unique on the machine */
  uint32_t render_minor;     /* 128.. : /dev/dri/renderD<render_minor> */
  uint32_t card_minor;       /* 0..   : the card node libdrm tells GPUs apart by */
  uint32_t family;           /* AMDGPU_FAMILY_*: 141 = AI (MI200, MI300) */
  uint32_t device_id;        /* PCI device id */
  uint32_t sdma_instances;   /* DMA engines; a context sees at most two rings over them */
  uint32_t sdma_xgmi;        /* how many of them, the last ones, are KFD's engines for XGMI */
  uint32_t sdma_max_bytes;   /* largest count an SDMA packet of this generation may carry */
  uint32_t doorbell_bytes;   /* process doorbell slice, 8192 on SOC15 */
  uint32_t mqd_bytes;        /* size of one compute queue's MQDs in the private data */
  uint32_t ctl_stack_bytes;  /* size of one queue's control stack in the private data */
  uint32_t cwsr_bytes;       /* least context save area of a compute queue, of each XCC */
  uint32_t debug_bytes;      /* the debugger's, after the save area */
  uint32_t xccs;             /* the mapping of a save area is (size + debug_bytes) times this */
  uint32_t vram_public;      /* 1: whole VRAM is CPU visible (large BAR) */
  uint64_t vram_bytes;       /* size of the VRAM pool */
  uint64_t gtt_bytes;        /* size of the GTT pool of this GPU */
  uint64_t sdma_bytes_per_s; /* rate limit of all engines of this GPU together, 0 = none */
};

/*
 * Whose records of BOs the private data has. All begin with the CPU's address and the handle; in all but the
 * last the GPUs follow at once, up to 16 or 64, then what AMD keeps of IPC (struct vam_priv_ipc).
 */
enum vamdgpu_bo_record {
  VAMDGPU_BO_RECORD_LINUX_61 = 80,
  VAMDGPU_BO_RECORD_AMD_16 = 104, /* AMD's out-of-tree driver, KFD 1.11 */
  VAMDGPU_BO_RECORD_LINUX_612 = 272,
  VAMDGPU_BO_RECORD_AMD_64 = 296, /* AMD's, KFD 1.18 */
  VAMDGPU_BO_RECORD_NOBODYS = 288 /* nobody's: 16 bytes of its own come before the GPUs */
};

/* The machine. */
struct vamdgpu_machine_config {
  uint32_t num_gpus;
  uint32_t kfd_major;         /* char major of /dev/kfd: dynamic in the kernel, not 226 */
  uint32_t kfd_minor_version; /* GET_VERSION says 1.<this>: 11 (6.1), 17 (6.12), 23 (7.2) */
  uint32_t bo_record_bytes;   /* private data record of a BO, see enum vamdgpu_bo_record */
  uint32_t out_of_tree;       /* 1: AMD's own driver, with IPC ioctls */
  uint32_t evict_once;        /* 0: as kernels <= 7.2, PROCESS_INFO evicts every time; 1: as 7.3 */
  uint32_t change_handle;     /* 1: DRM_IOCTL_GEM_CHANGE_HANDLE works */
  uint32_t list_handles;      /* 1: GEM_LIST_HANDLES and GET_MAPPING_INFO exist */
  uint32_t tolerant_sdma;     /* 1: one byte past a copy's end is forgiven (upstream's off-by-one) */
  struct vamdgpu_gpu_config gpus[VAMDGPU_MAX_GPUS];
};

#endif
