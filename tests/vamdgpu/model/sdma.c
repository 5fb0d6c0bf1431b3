/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * SDMA packet decoder (see sdma.h). Packet layouts: SDMA 4 and later. What an IB of a DMA ring has no
 * business to contain (nested IBs, polling, register writes) is refused.
 */
#include "sdma.h"

enum { OP_NOP = 0, OP_COPY = 1, OP_FENCE = 5, OP_TRAP = 6, OP_CONST_FILL = 11 };

#define COPY_HEADER_BITS 0x000dffffu /* op, sub op, encrypt, TMZ, CPV */
#define COUNT_MASK 0x3fffffffu

static int bad(struct vam_sdma_reader* r, const char* why) {
  r->fault = why;
  return -VAM_EINVAL;
}

static uint64_t address(const uint32_t* dw) {
  return dw[0] | (uint64_t)dw[1] << 32;
}

static int counted(struct vam_sdma_reader* r, uint32_t field) {
  uint64_t bytes = (uint64_t)field + (r->count_is_bytes_less_one ? 1 : 0);
  if (field & ~COUNT_MASK) return bad(r, "count field has bits above 29");
  if (bytes == 0) return bad(r, "count 0");
  if (bytes > r->max_bytes && !(r->tolerant && bytes == (uint64_t)r->max_bytes + 1))
    return bad(r, "count above this generation's limit");
  r->packet.bytes = bytes;
  return 1;
}

static int copy(struct vam_sdma_reader* r, const uint32_t* dw) {
  if (dw[0] & ~COPY_HEADER_BITS) return bad(r, "copy header has unknown bits");
  if (dw[0] >> 8 & 0xff) return bad(r, "copy sub-operation is not linear");
  if (dw[2]) return bad(r, "copy swap fields are not 0");
  r->packet.kind = VAM_SDMA_COPY;
  r->packet.src = address(dw + 3);
  r->packet.dst = address(dw + 5);
  return counted(r, dw[1]);
}

static int fill(struct vam_sdma_reader* r, const uint32_t* dw) {
  uint32_t size = dw[0] >> 30;
  if (dw[0] & 0x3fffff00u) return bad(r, "fill header has unknown bits");
  if (size == 1 || size == 3) return bad(r, "fill size is not dwords");
  r->packet.kind = VAM_SDMA_FILL;
  r->packet.dst = address(dw + 1);
  r->packet.value = dw[3];
  if ((r->packet.dst & 3) != 0) return bad(r, "fill address is not dword aligned");
  if (counted(r, dw[4]) < 0) return -VAM_EINVAL;
  return r->packet.bytes % 4 ? bad(r, "fill count is no multiple of 4") : 1;
}

int vam_sdma_decode(struct vam_sdma_reader* r) {
  while (r->at < r->count) {
    const uint32_t* dw = r->dwords + r->at;
    uint32_t left = r->count - r->at, op = dw[0] & 0xff, length;
    switch (op) {
      case OP_NOP:
        length = 1 + (dw[0] >> 16 & 0x3fff);
        break;
      case OP_COPY:
        length = 7;
        break;
      case OP_FENCE:
        length = 4;
        break;
      case OP_TRAP:
        length = 2;
        break;
      case OP_CONST_FILL:
        length = 5;
        break;
      default:
        return bad(r, "unknown packet");
    }
    if (length > left) return bad(r, "packet reaches beyond the IB");
    r->at += length;
    switch (op) {
      case OP_COPY:
        return copy(r, dw);
      case OP_CONST_FILL:
        return fill(r, dw);
      case OP_FENCE: /* a dword write */
        if (dw[1] & 3) return bad(r, "fence address is not dword aligned");
        r->packet.kind = VAM_SDMA_FILL;
        r->packet.dst = address(dw + 1);
        r->packet.value = dw[3];
        r->packet.bytes = 4;
        return 1;
      default:
        break;
    }
  }
  return 0;
}

int vam_vm_translate(const struct vam_model* m, uint32_t file, uint64_t va, int write, uint32_t* bo,
                     uint64_t* offset, uint64_t* bytes) {
  uint32_t range, need = write ? VAM_VM_WRITEABLE : VAM_VM_READABLE;
  const struct vam_range* r;
  va &= VAM_VA_MASK;
  range = vam_range_find(m, VAM_FILE_AT(m, file)->vm, va);
  if (!range) return -VAM_EFAULT;
  r = VAM_RANGE_AT(m, range);
  if (!r->bo || !(r->flags & need)) return -VAM_EFAULT;
  *bo = r->bo;
  *offset = r->bo_offset + (va - r->start);
  *bytes = r->start + r->size - va;
  return 0;
}

int vam_sdma_next(const struct vam_model* m, struct vam_sdma_reader* r, struct vam_sdma_op* op) {
  uint64_t n;
  int err;
  if (r->packet.bytes == 0) {
    err = vam_sdma_decode(r);
    if (err <= 0) return err;
  }
  op->kind = r->packet.kind;
  op->value = r->packet.value;
  op->bytes = r->packet.bytes;
  op->src_bo = 0;
  r->fault_va = r->packet.dst;
  err = vam_vm_translate(m, r->file, r->packet.dst, 1, &op->dst_bo, &op->dst_offset, &n);
  if (!err && n < op->bytes) op->bytes = n;
  if (!err && op->kind == VAM_SDMA_COPY) {
    r->fault_va = r->packet.src;
    err = vam_vm_translate(m, r->file, r->packet.src, 0, &op->src_bo, &op->src_offset, &n);
    if (!err && n < op->bytes) op->bytes = n;
  }
  if (err && r->tolerant && r->packet.bytes == 1) { /* the one byte too many of a forgiven count */
    r->packet.bytes = 0;
    return vam_sdma_next(m, r, op);
  }
  if (err) {
    r->fault = "address is not mapped for this access";
    return err;
  }
  r->packet.bytes -= op->bytes;
  r->packet.src += op->bytes;
  r->packet.dst += op->bytes;
  return 1;
}
