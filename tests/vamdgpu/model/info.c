/* SPDX-License-Identifier: MIT */
/*
 * DRM_AMDGPU_INFO: what libdrm asks at its start, and what monitoring programs ask. The kernel copies as many
 * bytes as both sides know.
 */
#include "model.h"

static int put(const struct vam_call* call, const struct vam_info_args* args, const void* value,
               uint32_t size) {
  uint32_t n = args->size < size ? args->size : size;
  return call->os->copy_out(call, args->pointer, value, n) ? -VAM_EFAULT : 0;
}

static int put64(const struct vam_call* call, const struct vam_info_args* args, uint64_t value) {
  return put(call, args, &value, sizeof(value));
}

static int put32(const struct vam_call* call, const struct vam_info_args* args, uint32_t value) {
  return put(call, args, &value, sizeof(value));
}

static int device(const struct vam_call* call, const struct vam_info_args* args) {
  const struct vam_model* m = call->model;
  const struct vamdgpu_gpu_config* config = &m->gpu[VAM_FILE_AT(m, call->file)->gpu].config;
  struct vam_info_device d;
  memset(&d, 0, sizeof(d));
  d.device_id = config->device_id;
  d.chip_rev = 1;
  d.external_rev = 0x3d;
  d.family = config->family;
  d.num_shader_engines = 8;
  d.num_shader_arrays = 1;
  d.gpu_counter_freq_khz = 100000;
  d.max_engine_clock = 1700000;
  d.max_memory_clock = 1600000;
  d.cu_active = 104;
  d.num_rb_pipes = 8;
  d.num_hw_gfx_contexts = 8;
  d.pcie_gen = 4;
  d.va_offset = m->config.kfd_minor_version < 17 ? 0x200000 : 0x10000;
  d.va_max = 0x800000000000ull;
  d.va_alignment = 4096;
  d.pte_fragment_size = 2097152;
  d.gart_page_size = 4096;
  d.vram_type = 6;
  d.vram_bit_width = 4096;
  d.wave_front_size = 64;
  d.shader_vgprs = 512;
  d.cu_per_sh = 14;
  d.tcc_blocks = 16;
  d.pcie_lanes = 16;
  d.high_va_offset = 0xffff800000000000ull;
  d.high_va_max = m->config.kfd_minor_version < 17 ? 0xffffffffffe00000ull : 0xffffffffffbf0000ull;
  d.min_engine_clock = 500000;
  d.min_memory_clock = 400000;
  return put(call, args, &d, sizeof(d));
}

static int hw_ip(const struct vam_call* call, const struct vam_info_args* args) {
  const struct vam_model* m = call->model;
  const struct vamdgpu_gpu_config* config = &m->gpu[VAM_FILE_AT(m, call->file)->gpu].config;
  struct vam_info_hw_ip ip;
  if (args->a >= VAM_IP_NUM || args->b != 0) return -VAM_EINVAL;
  memset(&ip, 0, sizeof(ip));
  if (args->a <= VAM_IP_COMPUTE) { /* no graphics ring, four compute rings */
    ip.version_major = 9;
    ip.ib_start_alignment = ip.ib_size_alignment = 32;
    ip.available_rings = args->a == VAM_IP_COMPUTE ? 0xf : 0;
    ip.discovery_version = 0x00090402;
  } else if (args->a == VAM_IP_DMA) {
    ip.version_major = 4;
    ip.ib_start_alignment = 256;
    ip.ib_size_alignment = 4;
    ip.available_rings = config->sdma_instances > 1 ? 3 : 1;
    ip.discovery_version = 0x00040400;
  }
  return put(call, args, &ip, sizeof(ip));
}

static int memory(const struct vam_call* call, const struct vam_info_args* args) {
  const struct vam_gpu* g = &call->model->gpu[VAM_FILE_AT(call->model, call->file)->gpu];
  uint64_t vram = g->config.vram_bytes, gtt = g->config.gtt_bytes;
  uint64_t visible = g->config.vram_public || vram < (256u << 20) ? vram : 256u << 20;
  uint64_t used = g->used_bytes[VAM_POOL_VRAM];
  if (args->query == VAM_INFO_VRAM_GTT) {
    uint64_t v[3] = {vram, visible, gtt};
    return put(call, args, v, sizeof(v));
  } else {
    uint64_t v[12] = {vram,
                      vram,
                      used,
                      vram * 3 / 4,
                      visible,
                      visible,
                      used < visible ? used : visible,
                      visible * 3 / 4,
                      gtt,
                      gtt,
                      g->used_bytes[VAM_POOL_GTT],
                      gtt * 3 / 4};
    return put(call, args, v, sizeof(v));
  }
}

int vam_lose_vram(struct vam_model* m, uint32_t gpu, uint32_t answers) {
  if (gpu >= m->num_gpus) return -VAM_EINVAL;
  m->gpu[gpu].vram_loss_is_due = 1;
  m->gpu[gpu].answers_before_loss = answers;
  return 0;
}

static uint32_t vram_losses(struct vam_gpu* g) {
  if (g->vram_loss_is_due && g->answers_before_loss-- == 0) {
    g->vram_loss_is_due = 0;
    g->vram_losses++;
  }
  return g->vram_losses;
}

int vam_info_ioctl(const struct vam_call* call, const struct vam_info_args* args) {
  struct vam_model* m = call->model;
  struct vam_gpu* g = &m->gpu[VAM_FILE_AT(m, call->file)->gpu];
  if (!args->pointer || !args->size) return -VAM_EINVAL;
  switch (args->query) {
    case VAM_INFO_ACCEL_WORKING:
      return put32(call, args, 1);
    case VAM_INFO_HW_IP_INFO:
      return hw_ip(call, args);
    case VAM_INFO_HW_IP_COUNT:
      if (args->a >= VAM_IP_NUM) return -VAM_EINVAL;
      if (m->config.kfd_minor_version >= 17 && args->a == VAM_IP_DMA)
        return put32(call, args, g->config.sdma_instances);
      return put32(call, args, args->a <= VAM_IP_DMA);
    case VAM_INFO_TIMESTAMP:
      return put64(call, args, call->os->now_ns(call, 0) / 10);
    case VAM_INFO_FW_VERSION: {
      uint32_t version[2] = {9, 0};
      if (args->a == 0 || args->a > VAM_LAST_FIRMWARE) return -VAM_EINVAL;
      return put(call, args, version, sizeof(version));
    }
    case VAM_INFO_VRAM_USAGE:
    case VAM_INFO_VIS_VRAM_USAGE:
      return put64(call, args, g->used_bytes[VAM_POOL_VRAM]);
    case VAM_INFO_GTT_USAGE:
      return put64(call, args, g->used_bytes[VAM_POOL_GTT]);
    case VAM_INFO_GDS_CONFIG: {
      uint32_t none[8] = {0};
      return put(call, args, none, sizeof(none));
    }
    case VAM_INFO_VRAM_GTT:
    case VAM_INFO_MEMORY:
      return memory(call, args);
    case VAM_INFO_READ_MMR_REG: /* {offset, count, instance, flags}; GB_ADDR_CONFIG is all that is told */
      if (args->b > 128 || args->d) return -VAM_EINVAL;
      if (args->b && args->a != VAM_GB_ADDR_CONFIG) return -VAM_EFAULT;
      for (uint32_t i = 0; i < args->b && (i + 1) * 4 <= args->size; ++i) {
        uint32_t value = 0x24000042;
        if (call->os->copy_out(call, args->pointer + 4ull * i, &value, 4)) return -VAM_EFAULT;
      }
      return 0;
    case VAM_INFO_DEV_INFO:
      return device(call, args);
    case VAM_INFO_VRAM_LOST:
      return put32(call, args, vram_losses(g));
    case VAM_INFO_MAX_IBS: {
      uint32_t max[VAM_IP_NUM] = {0};
      if (m->config.kfd_minor_version < 17) return -VAM_EINVAL;
      max[VAM_IP_DMA] = VAM_MAX_IBS;
      return put(call, args, max, sizeof(max));
    }
    default:
      return -VAM_EINVAL;
  }
}
