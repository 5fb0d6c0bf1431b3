/* SPDX-License-Identifier: MIT */
/*
 * The render node as programs see it: the DRM core and amdgpu ioctls that the virtual GPU answers, their
 * argument layouts and constants (Linux 7.2; shorter forms of older kernels and libdrm are zero-extended).
 * Facts of the kernel's uapi, in our own words.
 */
#ifndef VAM_DRM_ABI_H
#define VAM_DRM_ABI_H

#include "platform.h"

enum vam_drm_nr {
  VAM_DRM_VERSION = 0x00,
  VAM_DRM_GET_UNIQUE = 0x01,
  VAM_DRM_GET_CLIENT = 0x05,
  VAM_DRM_GEM_CLOSE = 0x09,
  VAM_DRM_GET_CAP = 0x0c,
  VAM_DRM_SET_CLIENT_CAP = 0x0d,
  VAM_DRM_PRIME_HANDLE_TO_FD = 0x2d,
  VAM_DRM_PRIME_FD_TO_HANDLE = 0x2e,
  VAM_DRM_GEM_CREATE = 0x40,
  VAM_DRM_GEM_MMAP = 0x41,
  VAM_DRM_CTX = 0x42,
  VAM_DRM_BO_LIST = 0x43,
  VAM_DRM_CS = 0x44,
  VAM_DRM_INFO = 0x45,
  VAM_DRM_GEM_METADATA = 0x46,
  VAM_DRM_GEM_WAIT_IDLE = 0x47,
  VAM_DRM_GEM_VA = 0x48,
  VAM_DRM_WAIT_CS = 0x49,
  VAM_DRM_GEM_OP = 0x50,
  VAM_DRM_GEM_USERPTR = 0x51,
  VAM_DRM_WAIT_FENCES = 0x52,
  VAM_DRM_VM = 0x53,
  VAM_DRM_FENCE_TO_HANDLE = 0x54,
  VAM_DRM_GEM_LIST_HANDLES = 0x59,
  VAM_DRM_SYNCOBJ_CREATE = 0xbf,
  VAM_DRM_SYNCOBJ_DESTROY = 0xc0,
  VAM_DRM_SYNCOBJ_HANDLE_TO_FD = 0xc1,
  VAM_DRM_SYNCOBJ_FD_TO_HANDLE = 0xc2,
  VAM_DRM_SYNCOBJ_WAIT = 0xc3,
  VAM_DRM_SYNCOBJ_RESET = 0xc4,
  VAM_DRM_SYNCOBJ_SIGNAL = 0xc5,
  VAM_DRM_SYNCOBJ_TIMELINE_WAIT = 0xca,
  VAM_DRM_SYNCOBJ_QUERY = 0xcb,
  VAM_DRM_SYNCOBJ_TRANSFER = 0xcc,
  VAM_DRM_SYNCOBJ_TIMELINE_SIGNAL = 0xcd,
  VAM_DRM_SYNCOBJ_EVENTFD = 0xcf,
  VAM_DRM_SET_CLIENT_NAME = 0xd1,
  VAM_DRM_GEM_CHANGE_HANDLE = 0xd2
};

#define VAM_DOMAIN_CPU 1u
#define VAM_DOMAIN_GTT 2u
#define VAM_DOMAIN_VRAM 4u
#define VAM_DOMAIN_ALL 0x7fu

#define VAM_DOMAIN_DOORBELL 0x40u

#define VAM_GEM_CPU_ACCESS (1u << 0)
#define VAM_GEM_NO_CPU_ACCESS (1u << 1)
#define VAM_GEM_VRAM_CLEARED (1u << 3)
#define VAM_GEM_VM_ALWAYS_VALID (1u << 6)
#define VAM_GEM_EXPLICIT_SYNC (1u << 7)
#define VAM_GEM_VRAM_CONTIGUOUS (1u << 5)
#define VAM_GEM_WIPE_ON_RELEASE (1u << 9)
#define VAM_GEM_ENCRYPTED (1u << 10)
#define VAM_GEM_PREEMPTIBLE (1u << 11)
#define VAM_GEM_COHERENT (1u << 13)
#define VAM_GEM_UNCACHED (1u << 14)
#define VAM_GEM_EXT_COHERENT (1u << 15)
/* What GEM_CREATE takes from user space, by kernel. */
#define VAM_GEM_SETTABLE_61 0x14cfu
#define VAM_GEM_SETTABLE_612 0x114cfu
#define VAM_GEM_SETTABLE_72 0x1f6cfu

#define VAM_VA_MAP 1u
#define VAM_VA_UNMAP 2u
#define VAM_VA_CLEAR 3u
#define VAM_VA_REPLACE 4u
#define VAM_VM_READABLE 2u
#define VAM_VM_WRITEABLE 4u
#define VAM_VM_PRT 0x10u
#define VAM_VM_VALID_FLAGS 0x3ffu

#define VAM_USERPTR_READONLY 1u
#define VAM_USERPTR_ANONONLY 2u
#define VAM_USERPTR_VALIDATE 4u
#define VAM_USERPTR_REGISTER 8u

#define VAM_IP_COMPUTE 1u
#define VAM_IP_DMA 2u
#define VAM_IP_NUM 10u
#define VAM_LAST_FIRMWARE 0x21u
#define VAM_GB_ADDR_CONFIG 0x263eu
#define VAM_DMA_RINGS 2u

#define VAM_CHUNK_IB 1u
#define VAM_CHUNK_FENCE 2u
#define VAM_CHUNK_DEPENDENCIES 3u
#define VAM_CHUNK_SYNCOBJ_IN 4u
#define VAM_CHUNK_SYNCOBJ_OUT 5u
#define VAM_CHUNK_BO_HANDLES 6u
#define VAM_CHUNK_SCHEDULED_DEPENDENCIES 7u
#define VAM_CHUNK_TIMELINE_WAIT 8u
#define VAM_CHUNK_TIMELINE_SIGNAL 9u

#define VAM_MAX_IBS 49u
#define VAM_MAX_IB_DWORDS 0xfffffu
#define VAM_BO_LIST_MAX 131072u

struct vam_gem_create_args { /* in; out: handle u32 at 0 */
  uint64_t size, alignment, domains, flags;
};
struct vam_gem_mmap_args {
  uint32_t handle, pad; /* out: u64 offset over both */
};
struct vam_gem_userptr_args {
  uint64_t addr, size;
  uint32_t flags, handle;
};
struct vam_gem_va_args {
  uint32_t handle, pad, operation, flags;
  uint64_t va, offset, size;
  uint64_t timeline_point;
  uint32_t syncobj_out, num_syncobjs;
  uint64_t syncobjs;
};
struct vam_gem_op_args {
  uint32_t handle, op;
  uint64_t value;
  uint32_t num_entries, padding;
};
struct vam_gem_metadata_args {
  uint32_t handle, op; /* 1 set, 2 get */
  uint64_t flags, tiling_info;
  uint32_t data_bytes;
  uint32_t data[64];
  uint32_t pad;
};
struct vam_gem_wait_idle_args {
  uint32_t handle, flags; /* out: status u32, domain u32 */
  uint64_t timeout;
};
struct vam_gem_list_args {
  uint64_t entries;
  uint32_t num_entries, padding;
};
struct vam_gem_list_entry {
  uint32_t handle, flags;
  uint64_t size, domains, alloc_flags, alignment;
};
struct vam_mapping_info {
  uint64_t addr, size, offset, flags;
};
struct vam_prime_args {
  uint32_t handle, flags;
  int32_t fd;
};
struct vam_ctx_args { /* out.alloc: ctx_id u32 at 0; out.state: flags u64, hangs u32, reset_status u32 */
  uint32_t op, flags, ctx_id;
  int32_t priority;
};
struct vam_bo_list_args { /* out: list handle u32 at 0 */
  uint32_t operation, list, number, info_size;
  uint64_t info;
};
struct vam_bo_list_entry {
  uint32_t handle, priority;
};
struct vam_cs_args { /* out: u64 sequence at 0 */
  uint32_t ctx_id, bo_list, num_chunks, flags;
  uint64_t chunks;
};
struct vam_cs_chunk {
  uint32_t id, length_dw;
  uint64_t data;
};
struct vam_cs_ib {
  uint32_t pad, flags;
  uint64_t va;
  uint32_t bytes, ip_type, ip_instance, ring;
};
struct vam_cs_fence { /* user fence */
  uint32_t handle, offset;
};
struct vam_cs_dep {
  uint32_t ip_type, ip_instance, ring, ctx_id;
  uint64_t seq;
};
struct vam_cs_syncobj {
  uint32_t handle, flags;
  uint64_t point;
};
struct vam_fence_id {
  uint32_t ctx_id, ip_type, ip_instance, ring;
  uint64_t seq;
};
struct vam_wait_cs_args { /* out: u64 status at 0 */
  uint64_t seq, timeout;
  uint32_t ip_type, ip_instance, ring, ctx_id;
};
struct vam_wait_fences_args { /* out: status u32, first u32 at 0 */
  uint64_t fences;
  uint32_t count, wait_all;
  uint64_t timeout;
};
struct vam_info_args {
  uint64_t pointer;
  uint32_t size, query;
  uint32_t a, b, c, d;
};
struct vam_fence_to_handle_args {
  struct vam_fence_id fence;
  uint32_t what, pad; /* out: u32 at 0 */
};
struct vam_syncobj_args {
  uint32_t handle, flags;
};
struct vam_syncobj_fd_args {
  uint32_t handle, flags;
  int32_t fd;
  uint32_t pad;
  uint64_t point;
};
struct vam_syncobj_wait_args {
  uint64_t handles;
  int64_t timeout_ns;
  uint32_t count, flags, first, pad;
  uint64_t deadline;
};
struct vam_syncobj_timeline_wait_args {
  uint64_t handles, points;
  int64_t timeout_ns;
  uint32_t count, flags, first, pad;
  uint64_t deadline;
};
struct vam_syncobj_array_args {
  uint64_t handles;
  uint32_t count, pad;
};
struct vam_syncobj_timeline_array_args {
  uint64_t handles, points;
  uint32_t count, flags;
};
struct vam_syncobj_transfer_args {
  uint32_t src, dst;
  uint64_t src_point, dst_point;
  uint32_t flags, pad;
};
struct vam_syncobj_eventfd_args {
  uint32_t handle, flags;
  uint64_t point;
  int32_t fd;
  uint32_t pad;
};
struct vam_change_handle_args {
  uint32_t handle, new_handle;
};

/* INFO queries. */
enum vam_info {
  VAM_INFO_ACCEL_WORKING = 0x00,
  VAM_INFO_HW_IP_INFO = 0x02,
  VAM_INFO_HW_IP_COUNT = 0x03,
  VAM_INFO_TIMESTAMP = 0x05,
  VAM_INFO_FW_VERSION = 0x0e,
  VAM_INFO_VRAM_USAGE = 0x10,
  VAM_INFO_GTT_USAGE = 0x11,
  VAM_INFO_GDS_CONFIG = 0x13,
  VAM_INFO_VRAM_GTT = 0x14,
  VAM_INFO_READ_MMR_REG = 0x15,
  VAM_INFO_DEV_INFO = 0x16,
  VAM_INFO_VIS_VRAM_USAGE = 0x17,
  VAM_INFO_MEMORY = 0x19,
  VAM_INFO_SENSOR = 0x1d,
  VAM_INFO_VRAM_LOST = 0x1f,
  VAM_INFO_MAX_IBS = 0x22
};

struct vam_info_hw_ip {
  uint32_t version_major, version_minor;
  uint64_t capabilities;
  uint32_t ib_start_alignment, ib_size_alignment, available_rings, discovery_version;
  uint32_t userq_slots, pad;
};
struct vam_info_device {
  uint32_t device_id, chip_rev, external_rev, pci_rev, family;
  uint32_t num_shader_engines, num_shader_arrays, gpu_counter_freq_khz;
  uint64_t max_engine_clock, max_memory_clock;
  uint32_t cu_active, cu_ao_mask, cu_bitmap[4][4], rb_pipes_mask, num_rb_pipes, num_hw_gfx_contexts, pcie_gen;
  uint64_t ids_flags, va_offset, va_max;
  uint32_t va_alignment, pte_fragment_size, gart_page_size, ce_ram_size, vram_type, vram_bit_width,
      vce_harvest, double_offchip_lds;
  uint64_t buffer_addrs[4];
  uint32_t buffer_sizes[4];
  uint32_t wave_front_size, shader_vgprs, cu_per_sh, tcc_blocks, vgt_depth, prim_depth, gs_waves, pcie_lanes;
  uint32_t cu_ao_bitmap[4][4];
  uint64_t high_va_offset, high_va_max;
  uint32_t steering_override, pad;
  uint64_t tcc_disabled_mask;
  uint64_t min_engine_clock, min_memory_clock;
  uint32_t tcp_cache_size, sqc_per_wgp, sqc_data_size, sqc_inst_size, gl1c_size, gl2c_size;
  uint64_t mall_size;
  uint32_t rb_pipes_mask_hi, shadow_size, shadow_alignment, csa_size, csa_alignment, userq_ip_mask;
};

VAM_STATIC_ASSERT(sizeof(struct vam_gem_va_args) == 64, "gem_va");
VAM_STATIC_ASSERT(sizeof(struct vam_gem_op_args) == 24, "gem_op");
VAM_STATIC_ASSERT(sizeof(struct vam_gem_metadata_args) == 288, "gem_metadata");
VAM_STATIC_ASSERT(sizeof(struct vam_info_args) == 32, "info");
VAM_STATIC_ASSERT(sizeof(struct vam_info_hw_ip) == 40, "hw_ip");
VAM_STATIC_ASSERT(sizeof(struct vam_info_device) == 440, "dev_info");
VAM_STATIC_ASSERT(sizeof(struct vam_fence_to_handle_args) == 32, "fence_to_handle");
VAM_STATIC_ASSERT(sizeof(struct vam_syncobj_timeline_wait_args) == 48, "timeline_wait");
VAM_STATIC_ASSERT(sizeof(struct vam_gem_list_entry) == 40, "list_entry");

#endif
