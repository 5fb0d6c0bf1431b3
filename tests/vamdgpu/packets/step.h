/* SPDX-License-Identifier: MIT */
/*
 * What the decoders of packets.h share: the place where a queue stands, reading from there, moving bytes, and
 * going on. Not for others.
 */
#ifndef VAM_PACKETS_STEP_H
#define VAM_PACKETS_STEP_H

#include "packets.h"

/* The ring, or the IB that the ring is in. */
struct pkt_here {
  struct pkt_queue* q;
  const struct pkt_owner* owner;
  const struct pkt_space* space;
  uint64_t base, bytes, at; /* where it lies, its size, and the byte of the packet in it */
  uint64_t left;            /* dwords from here to the write position, or to the end of the IB */
  uint32_t unit;            /* bytes that one of q->read counts */
};

/* PKT_DONE: *here is filled. Else the answer of the step. */
enum pkt_result pkt_find(struct pkt_queue* q, const struct pkt_space* space, const struct pkt_owner* owner,
                         uint32_t unit, struct pkt_here* here);

/* The queue stands. A fault that a callback has set stays. */
enum pkt_result pkt_stop(struct pkt_here* here, enum pkt_fault fault, uint64_t va, const char* why);

/* Dwords of the packet from its dword `first` on. Must be within here->left. 0, or nonzero: the queue stands.
 */
int pkt_load(struct pkt_here* here, uint64_t first, uint32_t* to, uint32_t dwords);

/* The packet of `dwords` dwords is behind us; `interrupt`: its context is told then. */
enum pkt_result pkt_go_on(struct pkt_here* here, uint64_t dwords, int interrupt, uint32_t context);

enum pkt_source { PKT_FROM_MEMORY, PKT_FROM_PACKET, PKT_FROM_VALUE };

/* Moves what is left of a packet's bytes to `dst` as far as the budget goes. PKT_DONE: all is there. `src`:
 * address, dword of the packet, or dword to fill with. */
enum pkt_result pkt_move(struct pkt_here* here, enum pkt_source source, uint64_t src, uint64_t dst,
                         uint64_t bytes, uint64_t* budget);

/* How POLL_REGMEM and WAIT_REG_MEM compare; `function` is below 7. */
int pkt_compare(uint32_t function, uint32_t value, uint32_t reference);

static inline uint64_t pkt_address(const uint32_t* dw) {
  return dw[0] | (uint64_t)dw[1] << 32;
}

#endif
