/* SPDX-License-Identifier: MIT */
/* PM4 packets of compute queues (see packets.h). Layouts: gfx9 and later (soc15d.h). */
#include "step.h"

enum {
  UCONFIG_BASE = 0xc000, /* dword index of the first register that SET_UCONFIG_REG reaches */
  CHAIN = 1 << 20,       /* of INDIRECT_BUFFER */
  /* where WRITE_DATA and COPY_DATA go or come from */
  AT_REGISTER = 0,
  AT_MEMORY_GRBM = 1, /* COPY_DATA's source: memory */
  AT_L2 = 2,
  AT_MEMORY = 5, /* COPY_DATA's source: immediate */
  AT_CLOCK = 9
};

struct pm4 {
  struct pkt_here* here;
  const struct pkt_pm4_rules* rules;
  uint64_t* budget;
  uint32_t op;
  uint64_t dwords;                 /* of the whole packet */
  uint32_t head[1 + PKT_PM4_BODY]; /* of the packet, as much as there is */
  const uint32_t* body;            /* after the header */
  uint32_t told, context;          /* an interrupt, once the packet is behind us */
};

static enum pkt_result bad(struct pm4* p, const char* why) {
  return pkt_stop(p->here, PKT_BAD_PACKET, 0, why);
}

static enum pkt_result unmapped(struct pm4* p, uint64_t va) {
  return pkt_stop(p->here, PKT_BAD_ADDRESS, va, "an address of the packet is not mapped");
}

static int read_register(struct pm4* p, uint32_t index, uint32_t* value) {
  const struct pkt_owner* owner = p->here->owner;
  if (!owner->read_register) {
    bad(p, "register read in this queue");
    return 1;
  }
  if (!owner->read_register(owner->self, index, value)) return 0;
  pkt_stop(p->here, PKT_REFUSED, 0, "the register read was refused");
  return 1;
}

static int write_register(struct pm4* p, uint32_t index, uint32_t value) {
  const struct pkt_owner* owner = p->here->owner;
  if (!owner->write_register) {
    bad(p, "register write in this queue");
    return 1;
  }
  if (!owner->write_register(owner->self, index, value)) return 0;
  pkt_stop(p->here, PKT_REFUSED, 0, "the register write was refused");
  return 1;
}

/* The packet's dwords from `first` on, written to registers from `index` on, or all to that one. */
static enum pkt_result registers(struct pm4* p, uint32_t index, uint64_t first, int one) {
  for (uint64_t i = first; i < p->dwords; ++i) {
    uint32_t value;
    if (pkt_load(p->here, i, &value, 1)) return PKT_FAULT;
    if (write_register(p, one ? index : index + (uint32_t)(i - first), value)) return PKT_FAULT;
  }
  return PKT_DONE;
}

static enum pkt_result write_data(struct pm4* p) {
  uint32_t target = p->body[0] >> 8 & 0xf, one = p->body[0] >> 16 & 1;
  if (p->dwords < 5) return bad(p, "WRITE_DATA without data");
  if (target == AT_REGISTER) return registers(p, p->body[1], 4, (int)one);
  /* Memory, directly or through the L2 cache, one dword after the other. */
  if ((target != AT_MEMORY && target != AT_L2) || one)
    return bad(p, "WRITE_DATA to neither memory nor registers");
  if (p->body[1] & 3) return bad(p, "WRITE_DATA address is not dword aligned");
  return pkt_move(p->here, PKT_FROM_PACKET, 4, pkt_address(p->body + 1), 4 * (p->dwords - 4), p->budget);
}

static enum pkt_result wait_reg_mem(struct pm4* p) {
  uint32_t function = p->body[0] & 7, memory = p->body[0] >> 4 & 3, operation = p->body[0] >> 6 & 3, value;
  if (p->dwords != 7) return bad(p, "WAIT_REG_MEM of another length");
  if (function == 7 || memory > 1 || operation > 1 || (memory && operation))
    return bad(p, "WAIT_REG_MEM with an unknown function or operation");
  if (memory) {
    uint64_t va = pkt_address(p->body + 1);
    if (va & 3) return bad(p, "WAIT_REG_MEM address is not dword aligned");
    if (p->here->space->read(p->here->space->self, va, &value, 4)) return unmapped(p, va);
  } else {
    if (operation && !p->here->q->done) {
      if (write_register(p, p->body[1], p->body[3])) return PKT_FAULT;
      p->here->q->done = 1;
    }
    if (read_register(p, operation ? p->body[2] : p->body[1], &value)) return PKT_FAULT;
  }
  /* The reference is masked, too: a TLB flush is waited for with its whole request (amdgpu_gmc.c). */
  return pkt_compare(function, value & p->body[4], p->body[3] & p->body[4]) ? PKT_DONE : PKT_WAITS;
}

static enum pkt_result release_mem(struct pm4* p) {
  const struct pkt_owner* owner = p->here->owner;
  uint32_t data, interrupt;
  uint64_t va, value;
  if (p->dwords != 8) return bad(p, "RELEASE_MEM of another length");
  data = p->body[1] >> 29;
  interrupt = p->body[1] >> 24 & 7;
  va = pkt_address(p->body + 2);
  value = pkt_address(p->body + 4);
  if (data > 4) return bad(p, "RELEASE_MEM with unknown data");
  if (data >= 3) { /* the GPU's clock, or the system's */
    if (!(p->rules->groups & PKT_PM4_SYNC) || !owner->clock) return bad(p, "RELEASE_MEM with a clock");
    value = owner->clock(owner->self);
  }
  if (data && va & (data == 1 ? 3 : 7)) return bad(p, "RELEASE_MEM address is not aligned");
  if (data && owner->holds_fence && owner->holds_fence(owner->self, p->here->q)) return PKT_WAITS;
  if (data && p->here->space->write(p->here->space->self, va, &value, data == 1 ? 4 : 8))
    return unmapped(p, va);
  p->told = interrupt == 1 || interrupt == 2; /* 3, as Mesa has it, waits for the write and tells nobody */
  p->context = p->body[6];
  return PKT_DONE;
}

static enum pkt_result copy_data(struct pm4* p) {
  const struct pkt_owner* owner = p->here->owner;
  const struct pkt_space* space = p->here->space;
  uint32_t from = p->body[0] & 0xf, to = p->body[0] >> 8 & 0xf, wide = p->body[0] >> 16 & 1, half[2] = {0, 0};
  uint64_t src = pkt_address(p->body + 1), dst = pkt_address(p->body + 3), value = 0, bytes = wide ? 8 : 4;
  if (p->dwords != 6) return bad(p, "COPY_DATA of another length");
  switch (from) {
    case AT_REGISTER:
      for (uint32_t i = 0; i <= wide; ++i)
        if (read_register(p, p->body[1] + i, &half[i])) return PKT_FAULT;
      value = pkt_address(half);
      break;
    case AT_MEMORY_GRBM:
    case AT_L2:
      if (src & (bytes - 1)) return bad(p, "COPY_DATA address is not aligned");
      if (space->read(space->self, src, &value, bytes)) return unmapped(p, src);
      break;
    case AT_MEMORY:
      value = src;
      break;
    case AT_CLOCK:
      if (!owner->clock) return bad(p, "COPY_DATA of a clock in this queue");
      value = owner->clock(owner->self);
      break;
    default:
      return bad(p, "COPY_DATA from an unknown source");
  }
  switch (to) {
    case AT_REGISTER:
      for (uint32_t i = 0; i <= wide; ++i)
        if (write_register(p, p->body[3] + i, (uint32_t)(value >> 32 * i))) return PKT_FAULT;
      return PKT_DONE;
    case AT_MEMORY_GRBM:
    case AT_L2:
    case AT_MEMORY:
      if (dst & (bytes - 1)) return bad(p, "COPY_DATA address is not aligned");
      return space->write(space->self, dst, &value, bytes) ? unmapped(p, dst) : PKT_DONE;
    default:
      return bad(p, "COPY_DATA to an unknown target");
  }
}

static enum pkt_result cond_exec(struct pm4* p) {
  uint64_t va = pkt_address(p->body);
  uint32_t value, skip = p->body[3] & 0x3fff;
  if (p->dwords != 5) return bad(p, "COND_EXEC of another length");
  if (va & 3) return bad(p, "COND_EXEC address is not dword aligned");
  if (p->here->space->read(p->here->space->self, va, &value, 4)) return unmapped(p, va);
  if (!value) p->dwords += skip;
  return p->dwords > p->here->left ? bad(p, "COND_EXEC skips beyond the end") : PKT_DONE;
}

static enum pkt_result indirect(struct pm4* p) {
  const struct pkt_owner* owner = p->here->owner;
  struct pkt_queue* q = p->here->q;
  uint64_t va = pkt_address(p->body);
  uint32_t dwords = p->body[2] & 0xfffff, vmid = p->body[2] >> 24 & 0xf, caller = (uint32_t)p->dwords;
  if (p->dwords != 4) return bad(p, "INDIRECT_BUFFER of another length");
  if (!owner->space) return bad(p, "IB in a queue that may have none");
  if (va & 3) return bad(p, "IB address is not dword aligned");
  if (dwords == 0) return PKT_DONE;
  if (!owner->space(owner->self, vmid))
    return pkt_stop(p->here, PKT_BAD_ADDRESS, va, "the IB's vmid has no memory");
  if (p->body[2] & CHAIN) { /* goes on in another IB and does not come back */
    if (!q->depth) return bad(p, "chained IB in a ring");
    caller = q->ib[q->depth - 1].caller_dwords;
    q->depth--;
  }
  if (pkt_enter_ib(q, va, dwords, vmid)) return bad(p, "IB that is too deep");
  q->ib[q->depth - 1].caller_dwords = caller;
  p->dwords = 0;
  return PKT_DONE;
}

static enum pkt_result of_owner(struct pm4* p) {
  const struct pkt_owner* owner = p->here->owner;
  struct pkt_queue* q = p->here->q;
  uint32_t depth = q->depth;
  if (!owner->pm4) return bad(p, "unknown packet");
  if (owner->pm4(owner->self, q, p->here->space, p->op, p->body, (uint32_t)p->dwords - 1))
    return pkt_stop(p->here, PKT_BAD_PACKET, 0, "packet that the command processor refuses");
  if (q->depth > depth) {
    q->ib[depth].caller_dwords = (uint32_t)p->dwords;
    p->dwords = 0;
  }
  return PKT_DONE;
}

/* PKT_DONE: it is executed; p->dwords 0: an IB of it has begun. */
static enum pkt_result execute(struct pm4* p) {
  uint32_t groups = p->rules->groups;
  switch (p->op) {
    case PKT_PM4_NOP:
    case PKT_PM4_ACQUIRE_MEM:
      return PKT_DONE;
    case PKT_PM4_WRITE_DATA:
      return write_data(p);
    case PKT_PM4_RELEASE_MEM:
      return release_mem(p);
    case PKT_PM4_SET_UCONFIG_REG:
      if (p->dwords < 3) return bad(p, "SET_UCONFIG_REG without a value");
      return registers(p, UCONFIG_BASE + (p->body[0] & 0xffff), 2, 0);
    case PKT_PM4_INDIRECT_BUFFER:
      return indirect(p);
    case PKT_PM4_WAIT_REG_MEM:
      return groups & PKT_PM4_SYNC ? wait_reg_mem(p) : bad(p, "WAIT_REG_MEM in this queue");
    case PKT_PM4_COPY_DATA:
      return groups & PKT_PM4_SYNC ? copy_data(p) : bad(p, "COPY_DATA in this queue");
    case PKT_PM4_COND_EXEC:
      return groups & PKT_PM4_SYNC ? cond_exec(p) : bad(p, "COND_EXEC in this queue");
    case PKT_PM4_SET_SH_REG:
    case PKT_PM4_SET_CONFIG_REG:
    case PKT_PM4_CONTEXT_CONTROL:
    case PKT_PM4_EVENT_WRITE:
    case PKT_PM4_DISPATCH_DIRECT:
    case PKT_PM4_DISPATCH_INDIRECT:
    case PKT_PM4_RUN_CLEANER_SHADER_9_0:
    case PKT_PM4_RUN_CLEANER_SHADER:
      return groups & PKT_PM4_SHADERS ? PKT_DONE : bad(p, "packet of shaders in this queue");
    default:
      return of_owner(p);
  }
}

enum pkt_result pkt_pm4_step(struct pkt_queue* q, const struct pkt_space* space,
                             const struct pkt_owner* owner, const struct pkt_pm4_rules* rules,
                             uint64_t* budget) {
  struct pkt_here here;
  struct pm4 p;
  uint32_t header, body;
  enum pkt_result result = pkt_find(q, space, owner, 4, &here);
  if (result != PKT_DONE) return result;
  if (!q->depth && q->write - q->read > q->ring_bytes / 4)
    return pkt_stop(&here, PKT_BAD_POINTER, 0, "the pointers are further apart than the ring is long");
  if (pkt_load(&here, 0, &header, 1)) return PKT_FAULT;
  q->fault_header = header;
  if (header >> 30 == 2) return pkt_go_on(&here, 1, 0, 0); /* one dword of filling */
  memset(&p, 0, sizeof(p));
  p.here = &here;
  p.rules = rules;
  p.budget = budget;
  p.op = header >> 8 & 0xff;
  p.dwords = (uint64_t)(header >> 16 & 0x3fff) + 2;
  if (header >> 30 != 3) return bad(&p, "header of a type that is not taken");
  if (p.op == PKT_PM4_NOP && p.dwords == 0x3fff + 2) p.dwords = 1;
  if (p.dwords > here.left) return bad(&p, "packet reaches beyond the end");
  body = p.dwords - 1 < PKT_PM4_BODY ? (uint32_t)p.dwords - 1 : PKT_PM4_BODY;
  p.head[0] = header;
  p.body = p.head + 1;
  if (p.op != PKT_PM4_NOP && pkt_load(&here, 1, p.head + 1, body)) return PKT_FAULT;
  if (owner->seen) owner->seen(owner->self, q, p.head, p.op == PKT_PM4_NOP ? 1 : 1 + body);
  result = execute(&p);
  if (result != PKT_DONE || p.dwords == 0) return result;
  return pkt_go_on(&here, p.dwords, (int)p.told, p.context);
}
