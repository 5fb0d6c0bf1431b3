/* SPDX-License-Identifier: MIT */
/* SDMA packets (see packets.h). Layouts: SDMA 4 and later (vega10_sdma_pkt_open.h). */
#include "step.h"

enum { ATOMIC_ADD_64 = 47, SUB_OP = 0xff00, PTES = 32 };

#define COPY_HEADER_BITS 0x000dffffu /* op, sub op, encrypt, TMZ, CPV */
#define COUNT_MASK 0x3fffffffu
#define IB_SIZE_MASK 0xfffffu

static int bad(const char** why, const char* text) {
  *why = text;
  return 1;
}

/* Dwords of a packet without its data (WRITE, NOP); 0 = unknown. */
static uint32_t head_dwords(uint32_t op) {
  static const uint8_t dwords[] = {1, 7, 4, 0, 6, 4, 2, 0, 6, 5, 8, 5, 10, 3, 3};
  return op < sizeof(dwords) ? dwords[op] : 0;
}

static int counted(const struct pkt_sdma_rules* rules, uint32_t field, struct pkt_sdma* p, const char** why) {
  p->bytes = (uint64_t)field + (rules->count_is_bytes_less_one ? 1 : 0);
  if (field & ~COUNT_MASK) return bad(why, "count field has bits above 29");
  if (p->bytes == 0) return bad(why, "count 0");
  if (p->bytes > rules->max_bytes &&
      !(rules->one_byte_forgiven && p->bytes == (uint64_t)rules->max_bytes + 1))
    return bad(why, "count above this generation's limit");
  return 0;
}

static int copy(const struct pkt_sdma_rules* rules, const uint32_t* dw, struct pkt_sdma* p,
                const char** why) {
  if (dw[0] & ~COPY_HEADER_BITS) return bad(why, "copy header has unknown bits");
  if (dw[0] & SUB_OP) return bad(why, "copy sub-operation is not linear");
  if (dw[2]) return bad(why, "copy swap fields are not 0");
  p->src = pkt_address(dw + 3);
  p->dst = pkt_address(dw + 5);
  return counted(rules, dw[1], p, why);
}

static int fill(const struct pkt_sdma_rules* rules, const uint32_t* dw, struct pkt_sdma* p,
                const char** why) {
  uint32_t size = dw[0] >> 30;
  if (dw[0] & 0x3fffff00u) return bad(why, "fill header has unknown bits");
  if (size == 1 || size == 3) return bad(why, "fill size is not dwords");
  p->dst = pkt_address(dw + 1);
  p->value = dw[3];
  if (p->dst & 3) return bad(why, "fill address is not dword aligned");
  if (counted(rules, dw[4], p, why)) return 1;
  return p->bytes % 4 ? bad(why, "fill count is no multiple of 4") : 0;
}

static int poll(const uint32_t* dw, struct pkt_sdma* p, const char** why) {
  p->memory = dw[0] >> 31;
  p->function = dw[0] >> 28 & 7;
  p->flush = dw[0] >> 26 & 1;
  p->value = dw[3];
  p->mask = dw[4];
  if (p->function == 7) return bad(why, "poll function 7 is none");
  if (p->memory && p->flush) return bad(why, "poll of memory with a flush");
  p->src = p->memory ? pkt_address(dw + 1) : dw[1];
  p->dst = p->memory ? 0 : dw[2];
  return p->memory && p->src & 3 ? bad(why, "poll address is not dword aligned") : 0;
}

/* The fields of the packet at `dw`, which is complete except for its data. */
static int fields(const struct pkt_sdma_rules* rules, const uint32_t* dw, struct pkt_sdma* p,
                  const char** why) {
  uint32_t sub = dw[0] >> 8 & 0xff;
  switch (p->op) {
    case PKT_SDMA_COPY:
      return copy(rules, dw, p, why);
    case PKT_SDMA_CONST_FILL:
      return fill(rules, dw, p, why);
    case PKT_SDMA_POLL_REGMEM:
      return sub ? bad(why, "poll sub-operation is not the plain one") : poll(dw, p, why);
    case PKT_SDMA_WRITE:
      p->dst = pkt_address(dw + 1);
      p->bytes = 4 * ((uint64_t)dw[3] + 1);
      if (sub) return bad(why, "write sub-operation is not linear");
      if (dw[3] >> 20) return bad(why, "write count has bits above 19");
      return p->dst & 3 ? bad(why, "write address is not dword aligned") : 0;
    case PKT_SDMA_INDIRECT:
      p->vmid = dw[0] >> 16 & 0xf;
      p->src = pkt_address(dw + 1);
      p->bytes = 4 * (uint64_t)(dw[3] & IB_SIZE_MASK);
      if (sub) return bad(why, "indirect sub-operation is not 0");
      if (dw[3] & ~IB_SIZE_MASK && !rules->ib_size_is_cut) return bad(why, "IB size has bits above 19");
      return p->src & 31 ? bad(why, "IB address is no multiple of 32") : 0;
    case PKT_SDMA_FENCE:
      p->dst = pkt_address(dw + 1);
      p->value = dw[3];
      p->bytes = 4;
      if (sub) return bad(why, "fence sub-operation is not 0");
      return p->dst & 3 ? bad(why, "fence address is not dword aligned") : 0;
    case PKT_SDMA_TRAP:
      p->value = dw[1] & 0xfffffff;
      return sub ? bad(why, "trap sub-operation is not 0") : 0;
    case PKT_SDMA_COND_EXE:
      p->src = pkt_address(dw + 1);
      p->value = dw[3];
      p->skip = dw[4];
      if (sub) return bad(why, "condition sub-operation is not 0");
      if (dw[4] >> 14) return bad(why, "condition count has bits above 13");
      return p->src & 3 ? bad(why, "condition address is not dword aligned") : 0;
    case PKT_SDMA_ATOMIC:
      p->dst = pkt_address(dw + 1);
      p->add = pkt_address(dw + 3);
      if (dw[0] >> 25 != ATOMIC_ADD_64) return bad(why, "atomic operation is not ADD_64");
      if (dw[0] >> 8 & 0x1ff) return bad(why, "atomic header has unknown bits");
      return p->dst & 7 ? bad(why, "atomic address is no multiple of 8") : 0;
    case PKT_SDMA_PTEPDE:
      p->dst = pkt_address(dw + 1);
      p->flags = pkt_address(dw + 3);
      p->first = pkt_address(dw + 5);
      p->add = pkt_address(dw + 7);
      p->entries = dw[9] + 1;
      p->bytes = 8 * (uint64_t)p->entries;
      if (sub) return bad(why, "page table sub-operation is not generate");
      if (dw[9] >> 19) return bad(why, "page table count has bits above 18");
      return p->dst & 7 ? bad(why, "page table address is no multiple of 8") : 0;
    case PKT_SDMA_TIMESTAMP:
      p->dst = pkt_address(dw + 1);
      p->bytes = 8;
      if (sub != 1 && sub != 2) return bad(why, "timestamp sub-operation is not get");
      return p->dst & 7 ? bad(why, "timestamp address is no multiple of 8") : 0;
    case PKT_SDMA_SRBM_WRITE:
      p->dst = dw[1];
      p->value = dw[2];
      if (sub) return bad(why, "register write sub-operation is not 0");
      if (dw[0] >> 28 != 0xf) return bad(why, "register write of some bytes only");
      return dw[1] >> 18 ? bad(why, "register number has bits above 17") : 0;
    default:
      return 0;
  }
}

int pkt_sdma_decode(const struct pkt_sdma_rules* rules, const uint32_t* dw, uint32_t have, uint64_t left,
                    struct pkt_sdma* out, const char** why) {
  uint32_t op, dwords;
  if (have == 0 || left == 0) return bad(why, "no packet");
  op = dw[0] & 0xff;
  dwords = head_dwords(op);
  memset(out, 0, sizeof(*out));
  if (dwords == 0) return bad(why, "unknown packet");
  if (!(rules->allowed & PKT_SDMA_BIT(op))) return bad(why, "packet that this queue may not hold");
  if (dwords > left || dwords > have) return bad(why, "packet reaches beyond the end");
  out->op = (enum pkt_sdma_op)op;
  if (fields(rules, dw, out, why)) return 1;
  if (op == PKT_SDMA_NOP) dwords += dw[0] >> 16 & 0x3fff;
  if (op == PKT_SDMA_WRITE) dwords += (uint32_t)(out->bytes / 4);
  if (dwords > left) return bad(why, "packet reaches beyond the end");
  out->dwords = dwords;
  return 0;
}

/* ---- doing it ---- */

static enum pkt_result ptepde(struct pkt_here* here, const struct pkt_sdma* p, uint64_t* budget) {
  uint64_t* done = &here->q->done;
  while (*done < p->bytes) {
    uint64_t entries[PTES], first = *done / 8, n = p->entries - first;
    if (n > PTES) n = PTES;
    if (n > *budget / 8) n = *budget / 8;
    if (n == 0) return PKT_MORE;
    for (uint64_t i = 0; i < n; ++i) entries[i] = (p->first + (first + i) * p->add) | p->flags;
    if (here->space->write(here->space->self, p->dst + *done, entries, 8 * n))
      return pkt_stop(here, PKT_BAD_ADDRESS, p->dst + *done, "a page table is not mapped");
    *done += 8 * n;
    *budget -= 8 * n;
  }
  return PKT_DONE;
}

static enum pkt_result wait_for(struct pkt_here* here, const struct pkt_sdma* p) {
  const struct pkt_owner* owner = here->owner;
  uint32_t value;
  if (p->memory) {
    if (here->space->read(here->space->self, p->src, &value, 4))
      return pkt_stop(here, PKT_BAD_ADDRESS, p->src, "the polled address is not mapped");
  } else if (!owner->read_register) { /* what waits for no value, as flushes do, is nothing without registers
                                       */
    return p->flush || !p->function ? PKT_DONE
                                    : pkt_stop(here, PKT_BAD_PACKET, 0, "poll of a register in this queue");
  } else {
    if (p->flush && !here->q->done) {
      if (!owner->write_register || owner->write_register(owner->self, (uint32_t)p->dst / 4, p->value))
        return pkt_stop(here, PKT_REFUSED, 0, "the register of a flush was refused");
      here->q->done = 1;
    }
    if (owner->read_register(owner->self, (uint32_t)p->src / 4, &value))
      return pkt_stop(here, PKT_REFUSED, 0, "the polled register was refused");
  }
  return pkt_compare(p->function, value & p->mask, p->value) ? PKT_DONE : PKT_WAITS;
}

static enum pkt_result condition(struct pkt_here* here, const struct pkt_sdma* p, uint64_t* dwords) {
  uint32_t value;
  if (here->space->read(here->space->self, p->src, &value, 4))
    return pkt_stop(here, PKT_BAD_ADDRESS, p->src, "the address of the condition is not mapped");
  if (value == p->value) return PKT_DONE;
  *dwords += p->skip;
  return *dwords > here->left ? pkt_stop(here, PKT_BAD_PACKET, 0, "condition skips beyond the end")
                              : PKT_DONE;
}

static enum pkt_result indirect(struct pkt_here* here, const struct pkt_sdma* p) {
  const struct pkt_owner* owner = here->owner;
  struct pkt_queue* q = here->q;
  if (!owner->space) return pkt_stop(here, PKT_BAD_PACKET, 0, "IB in a queue that may have none");
  if (q->depth) return pkt_stop(here, PKT_BAD_PACKET, 0, "IB in an IB");
  if (p->bytes == 0) return pkt_go_on(here, p->dwords, 0, 0);
  if (!owner->space(owner->self, p->vmid))
    return pkt_stop(here, PKT_BAD_ADDRESS, p->src, "the IB's vmid has no memory");
  if (pkt_enter_ib(q, p->src, (uint32_t)(p->bytes / 4), p->vmid))
    return pkt_stop(here, PKT_BAD_PACKET, 0, "IB that cannot be called");
  q->ib[q->depth - 1].caller_dwords = p->dwords;
  return PKT_DONE;
}

static enum pkt_result timestamp(struct pkt_here* here, const struct pkt_sdma* p) {
  uint64_t now;
  if (!here->owner->clock) return pkt_stop(here, PKT_BAD_PACKET, 0, "timestamp in a queue without a clock");
  now = here->owner->clock(here->owner->self);
  return here->space->write(here->space->self, p->dst, &now, 8)
             ? pkt_stop(here, PKT_BAD_ADDRESS, p->dst, "the timestamp's address is not mapped")
             : PKT_DONE;
}

static enum pkt_result execute(struct pkt_here* here, const struct pkt_sdma* p, uint64_t* budget) {
  const struct pkt_owner* owner = here->owner;
  uint64_t dwords = p->dwords;
  enum pkt_result result = PKT_DONE;
  switch (p->op) {
    case PKT_SDMA_NOP:
    case PKT_SDMA_TRAP:
      break;
    case PKT_SDMA_COPY:
      result = pkt_move(here, PKT_FROM_MEMORY, p->src, p->dst, p->bytes, budget);
      break;
    case PKT_SDMA_WRITE:
      result = pkt_move(here, PKT_FROM_PACKET, 4, p->dst, p->bytes, budget);
      break;
    case PKT_SDMA_FENCE:
      if (owner->holds_fence && owner->holds_fence(owner->self, here->q)) return PKT_WAITS;
      if (here->space->write(here->space->self, p->dst, &p->value, 4))
        return pkt_stop(here, PKT_BAD_ADDRESS, p->dst, "the fence's address is not mapped");
      break;
    case PKT_SDMA_CONST_FILL:
      result = pkt_move(here, PKT_FROM_VALUE, p->value, p->dst, p->bytes, budget);
      break;
    case PKT_SDMA_POLL_REGMEM:
      result = wait_for(here, p);
      break;
    case PKT_SDMA_COND_EXE:
      result = condition(here, p, &dwords);
      break;
    case PKT_SDMA_ATOMIC:
      if (here->space->add64(here->space->self, p->dst, p->add))
        return pkt_stop(here, PKT_BAD_ADDRESS, p->dst, "the atomic's address is not mapped");
      break;
    case PKT_SDMA_PTEPDE:
      result = ptepde(here, p, budget);
      break;
    case PKT_SDMA_TIMESTAMP:
      result = timestamp(here, p);
      break;
    case PKT_SDMA_SRBM_WRITE:
      if (!owner->write_register) return pkt_stop(here, PKT_BAD_PACKET, 0, "register write in this queue");
      if (owner->write_register(owner->self, (uint32_t)p->dst, p->value))
        return pkt_stop(here, PKT_REFUSED, 0, "the register write was refused");
      break;
    case PKT_SDMA_INDIRECT:
      return indirect(here, p);
  }
  return result == PKT_DONE ? pkt_go_on(here, dwords, p->op == PKT_SDMA_TRAP, p->value) : result;
}

enum pkt_result pkt_sdma_step(struct pkt_queue* q, const struct pkt_space* space,
                              const struct pkt_owner* owner, const struct pkt_sdma_rules* rules,
                              uint64_t* budget) {
  uint32_t dw[PKT_SDMA_HEAD], have = PKT_SDMA_HEAD;
  const char* why = "";
  struct pkt_here here;
  struct pkt_sdma packet;
  enum pkt_result result = pkt_find(q, space, owner, 1, &here);
  if (result != PKT_DONE) return result;
  if (!q->depth && ((q->write | q->read) % 4 || q->write - q->read > q->ring_bytes))
    return pkt_stop(&here, PKT_BAD_POINTER, 0,
                    "the pointers are not aligned, or further apart than the ring is long");
  if (have > here.left) have = (uint32_t)here.left;
  if (pkt_load(&here, 0, dw, have)) return PKT_FAULT;
  q->fault_header = dw[0];
  if (pkt_sdma_decode(rules, dw, have, here.left, &packet, &why))
    return pkt_stop(&here, PKT_BAD_PACKET, 0, why);
  if (owner->seen) owner->seen(owner->self, q, dw, have < packet.dwords ? have : packet.dwords);
  return execute(&here, &packet, budget);
}
