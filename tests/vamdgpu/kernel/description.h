/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The file that tells the kernel module what machine it is: written by vamdgpu-load, read once when the
 * module loads (parameter "description"). Native byte order, every number naturally aligned: both sides are
 * built from this header for one machine, and `layout` refuses anything else.
 *
 *   file    := header text*
 *   header  := struct vamdgpu_description
 *   text    := struct vamdgpu_text, path NUL, contents NUL, zeroes up to a multiple of 8 bytes
 *
 * A text is one file of KFD's topology: its path below /sys/class/kfd/kfd/topology ("nodes/0/gpu_id"), names
 * of letters, digits and '_' joined by single slashes. A path that ends in a slash is a directory, listed
 * because it may be empty. Every directory comes before what lies in it.
 */
#ifndef VAMDGPU_KERNEL_DESCRIPTION_H
#define VAMDGPU_KERNEL_DESCRIPTION_H

#include "../config.h"

#define VAMDGPU_DESCRIPTION_MAGIC 0x6e69686361664d56ull
#define VAMDGPU_DESCRIPTION_VERSION 1u

/* Most of what a file may hold; the module refuses more. */
#define VAMDGPU_MAX_TEXTS 65536u
#define VAMDGPU_MAX_PATH 128u  /* bytes of a path, NUL included */
#define VAMDGPU_MAX_TEXT 4095u /* bytes of a text without its NUL: a sysfs file shows one page */
#define VAMDGPU_MAX_DESCRIPTION (64u << 20)

/* One GPU as a PCI device DOMAIN:BUS:00.0. Sizes in bytes. */
struct vamdgpu_pci {
  uint32_t domain; /* 16 bits */
  uint32_t bus;    /* 8 bits */
  uint32_t vendor_id, device_id, subsystem_vendor_id, subsystem_device_id;
  uint32_t revision;
  uint32_t class_code; /* 24 bits: base class, sub-class, programming interface */
  uint32_t numa_node;
  uint32_t pad;
  uint64_t unique_id;
  uint64_t vram_bytes, visible_vram_bytes, gtt_bytes;
};

struct vamdgpu_text {
  uint32_t path_bytes; /* NUL included */
  uint32_t text_bytes; /* NUL included */
  uint32_t gpu;        /* 1 + index of the GPU whose device cgroup permission guards it, 0: open to all */
  uint32_t pad;
};

struct vamdgpu_description {
  uint64_t magic;
  uint32_t version;
  uint32_t layout; /* VAMDGPU_DESCRIPTION_LAYOUT of the writer */
  uint64_t bytes;  /* of the whole file */
  uint32_t num_texts;
  uint32_t pad;
  struct vamdgpu_machine_config config; /* kfd_major is the kernel's to choose and not read */
  struct vamdgpu_pci pci[VAMDGPU_MAX_GPUS];
};

#define VAMDGPU_DESCRIPTION_LAYOUT \
  ((uint32_t)(sizeof(struct vamdgpu_description) << 8 ^ sizeof(struct vamdgpu_machine_config)))

#ifdef __cplusplus
extern "C" {
#endif

/* NULL when `file` (8-byte aligned) is a description, else what is wrong with it. */
const char* vamdgpu_description_wrong(const void* file, uint64_t bytes);

/* Of a good one: the text after `text` (NULL: the first), NULL at the end, and its two strings. */
const struct vamdgpu_text* vamdgpu_text_next(const struct vamdgpu_description* d,
                                             const struct vamdgpu_text* text);
const char* vamdgpu_text_path(const struct vamdgpu_text* text);
const char* vamdgpu_text_contents(const struct vamdgpu_text* text);

#ifdef __cplusplus
}
#endif

#ifdef __KERNEL__
/* The file as it was read and found good, in one piece; constant. */
struct vam_description {
  struct vamdgpu_description file;
};
#endif

#endif
