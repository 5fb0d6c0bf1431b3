/* SPDX-License-Identifier: MIT */
/* What the decoders of packets.h share (see step.h). */
#include "step.h"

const char* pkt_fault_name(enum pkt_fault fault) {
  static const char* const names[] = {"none", "bad read or write pointer", "packet that is not executed",
                                      "address that is not mapped for this access", "refused by the engine"};
  return (unsigned)fault < sizeof(names) / sizeof(names[0]) ? names[fault] : "unknown";
}

enum pkt_result pkt_stop(struct pkt_here* here, enum pkt_fault fault, uint64_t va, const char* why) {
  struct pkt_queue* q = here->q;
  if (q->fault == PKT_NO_FAULT) {
    q->fault = fault;
    q->fault_va = va;
    q->fault_why = why;
    q->fault_at = here->base + here->at;
  }
  return PKT_FAULT;
}

enum pkt_result pkt_find(struct pkt_queue* q, const struct pkt_space* space, const struct pkt_owner* owner,
                         uint32_t unit, struct pkt_here* here) {
  here->q = q;
  here->owner = owner;
  here->space = space;
  here->unit = unit;
  here->base = q->ring;
  here->bytes = q->ring_bytes;
  here->at = 0;
  here->left = 0;
  if (q->fault != PKT_NO_FAULT) return PKT_FAULT;
  if (q->ring_bytes < unit || q->ring_bytes % unit || q->ring_bytes % 4)
    return pkt_stop(here, PKT_BAD_POINTER, q->ring, "the ring has no size that a packet fits into");
  if (q->depth) {
    const struct pkt_ib* ib = &q->ib[q->depth - 1];
    here->base = ib->address;
    here->bytes = 4 * (uint64_t)ib->dwords;
    here->at = 4 * (uint64_t)ib->at;
    here->left = ib->dwords - ib->at;
    here->space = owner->space ? owner->space(owner->self, ib->vmid) : 0;
    return here->space ? PKT_DONE
                       : pkt_stop(here, PKT_BAD_ADDRESS, ib->address, "the IB's vmid has no memory");
  }
  here->at = q->read % (q->ring_bytes / unit) * unit;
  if (q->read == q->write) return PKT_IDLE;
  if (q->write < q->read)
    return pkt_stop(here, PKT_BAD_POINTER, 0, "the write pointer is before the read pointer");
  here->left = (q->write - q->read) * unit / 4;
  return PKT_DONE;
}

int pkt_load(struct pkt_here* here, uint64_t first, uint32_t* to, uint32_t dwords) {
  while (dwords) {
    uint64_t at = (here->at + 4 * first) % here->bytes, n = (here->bytes - at) / 4;
    if (n > dwords) n = dwords;
    if (here->space->read(here->space->self, here->base + at, to, 4 * n)) {
      pkt_stop(here, PKT_BAD_ADDRESS, here->base + at, "the packet cannot be read");
      return 1;
    }
    first += n;
    to += n;
    dwords -= (uint32_t)n;
  }
  return 0;
}

enum pkt_result pkt_go_on(struct pkt_here* here, uint64_t dwords, int interrupt, uint32_t context) {
  struct pkt_queue* q = here->q;
  q->done = 0;
  while (q->depth) {
    struct pkt_ib* ib = &q->ib[q->depth - 1];
    ib->at += (uint32_t)dwords;
    dwords = 0;
    if (ib->at < ib->dwords) break;
    dwords = ib->caller_dwords;
    q->depth--;
  }
  if (dwords) {
    uint64_t units = dwords * 4 / here->unit;
    q->read += units;
    if (here->owner->moved && here->owner->moved(here->owner->self, q)) {
      q->read -= units;
      return pkt_stop(here, PKT_BAD_ADDRESS, 0, "the read pointer cannot be written back");
    }
  }
  if (interrupt && here->owner->interrupt && here->owner->interrupt(here->owner->self, q, context))
    return pkt_stop(here, PKT_REFUSED, 0, "the interrupt was refused");
  return PKT_DONE;
}

/* At most `n` bytes of the packet from byte `from` on, not over the end of the ring. Returns how many went.
 */
static uint64_t copy_of_packet(struct pkt_here* here, uint64_t from, uint64_t dst, uint64_t n) {
  uint64_t at = (here->at + from) % here->bytes;
  if (n > here->bytes - at) n = here->bytes - at;
  return here->space->copy(here->space->self, dst, here->base + at, n) ? 0 : n;
}

enum pkt_result pkt_move(struct pkt_here* here, enum pkt_source source, uint64_t src, uint64_t dst,
                         uint64_t bytes, uint64_t* budget) {
  const struct pkt_space* space = here->space;
  uint64_t* done = &here->q->done;
  while (*done < bytes) {
    uint64_t n = bytes - *done;
    int err = 0;
    if (n > *budget) n = *budget & ~3ull; /* a fill goes on with whole dwords */
    if (n == 0) return PKT_MORE;
    if (source == PKT_FROM_MEMORY) {
      err = space->copy(space->self, dst + *done, src + *done, n);
    } else if (source == PKT_FROM_PACKET) {
      n = copy_of_packet(here, 4 * src + *done, dst + *done, n);
      err = n == 0;
    } else {
      err = space->fill(space->self, dst + *done, (uint32_t)src, n);
    }
    if (err) return pkt_stop(here, PKT_BAD_ADDRESS, dst + *done, "an address of the packet is not mapped");
    *done += n;
    *budget -= n;
  }
  return PKT_DONE;
}

int pkt_compare(uint32_t function, uint32_t value, uint32_t reference) {
  switch (function) {
    case 0:
      return 1;
    case 1:
      return value < reference;
    case 2:
      return value <= reference;
    case 3:
      return value == reference;
    case 4:
      return value != reference;
    case 5:
      return value >= reference;
    default:
      return value > reference;
  }
}

int pkt_enter_ib(struct pkt_queue* q, uint64_t address, uint32_t dwords, uint32_t vmid) {
  struct pkt_ib* ib;
  if (q->depth >= PKT_IB_DEPTH || dwords == 0 || dwords > PKT_IB_DWORDS || address % 4) return 1;
  ib = &q->ib[q->depth++];
  ib->address = address;
  ib->dwords = dwords;
  ib->at = 0;
  ib->vmid = vmid;
  ib->caller_dwords = 0;
  return 0;
}
