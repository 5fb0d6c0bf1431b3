/* SPDX-License-Identifier: MIT */
/*
 * SDMA packets of an indirect buffer, decoded strictly and cut at the borders of VA mappings: what comes out
 * are plain operations between BOs. A packet that the hardware of this GPU would not take, or an address that
 * is not mapped (or not in the job's BO list), is a fault and ends the job.
 */
#ifndef VAM_SDMA_H
#define VAM_SDMA_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

enum vam_sdma_kind { VAM_SDMA_COPY, VAM_SDMA_FILL };

/* `bytes` bytes from (src_bo, src_offset), or of the dword `value`, to (dst_bo, dst_offset). */
struct vam_sdma_op {
  enum vam_sdma_kind kind;
  uint32_t src_bo, dst_bo, value;
  uint64_t src_offset, dst_offset, bytes;
};

/* One packet's work that is not yet cut up. */
struct vam_sdma_packet {
  enum vam_sdma_kind kind;
  uint32_t value;
  uint64_t src, dst, bytes;
};

struct vam_sdma_reader {
  const uint32_t* dwords;
  uint32_t count, at;
  struct vam_sdma_packet packet; /* bytes 0: fetch the next one */
  uint32_t max_bytes;            /* of one packet */
  uint32_t count_is_bytes_less_one;
  uint32_t tolerant;
  uint32_t file; /* whose VM translates */
  uint64_t fault_va;
  const char* fault; /* why it ended badly */
};

/* Decodes the next packet that does something. 1 decoded, 0 end of the IB, -EINVAL with `fault` set. */
int vam_sdma_decode(struct vam_sdma_reader* r);

/* Next operation: 1 given, 0 end, -EINVAL bad packet, -EFAULT unmapped address. */
int vam_sdma_next(const struct vam_model* m, struct vam_sdma_reader* r, struct vam_sdma_op* op);

/* Translates one address for reading or writing: BO, offset, and for how many bytes it holds. 0 or -EFAULT.
 */
int vam_vm_translate(const struct vam_model* m, uint32_t file, uint64_t va, int write, uint32_t* bo,
                     uint64_t* offset, uint64_t* bytes);

#ifdef __cplusplus
}
#endif

#endif
