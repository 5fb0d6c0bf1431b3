/* SPDX-License-Identifier: MIT */
/*
 * IBs of jobs (see sdma.h). Packets are those of ../packets; what an IB of a DMA ring has no business to
 * contain (nested IBs, polling, register writes) is refused.
 */
#include "sdma.h"

#include "../packets/packets.h"

#define JOB_PACKETS                                                                          \
  (PKT_SDMA_BIT(PKT_SDMA_NOP) | PKT_SDMA_BIT(PKT_SDMA_COPY) | PKT_SDMA_BIT(PKT_SDMA_FENCE) | \
   PKT_SDMA_BIT(PKT_SDMA_TRAP) | PKT_SDMA_BIT(PKT_SDMA_CONST_FILL))

int vam_sdma_decode(struct vam_sdma_reader* r) {
  const struct pkt_sdma_rules rules = {JOB_PACKETS, r->max_bytes, r->count_is_bytes_less_one, r->tolerant, 0};
  while (r->at < r->count) {
    struct pkt_sdma p;
    uint32_t left = r->count - r->at, have = left < PKT_SDMA_HEAD ? left : PKT_SDMA_HEAD;
    if (pkt_sdma_decode(&rules, r->dwords + r->at, have, left, &p, &r->fault)) return -VAM_EINVAL;
    r->at += p.dwords;
    if (p.bytes == 0) continue; /* NOP, TRAP */
    r->packet.kind =
        p.op == PKT_SDMA_COPY ? VAM_SDMA_COPY : VAM_SDMA_FILL; /* a fence is a dword of filling */
    r->packet.value = p.value;
    r->packet.src = p.src;
    r->packet.dst = p.dst;
    r->packet.bytes = p.bytes;
    return 1;
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
