/* SPDX-License-Identifier: MIT */
/*
 * Packets of AMD GPUs: SDMA (4 and later), PM4 (gfx9 and later) and HSA's AQL, decoded and executed on an
 * address space that somebody else has. The device model (../model) runs user queues of its processes with
 * it, the emulated card (tests/card) the rings of a driver. Freestanding C:
 * no allocation, no OS call, no recursion, no libc but what ../model/platform.h says.
 *
 *   struct pkt_queue q = {.ring = ..., .ring_bytes = ..., .read = ...};
 *   q.write = new write position;                       // a doorbell
 *   uint64_t budget = 4 << 20;                          // bytes that may be moved this time
 *   while ((result = pkt_sdma_step(&q, &space, &owner, &rules, &budget)) == PKT_DONE) {}
 *   PKT_IDLE: nothing left. PKT_WAITS, PKT_MORE: call again later, nothing is lost. PKT_FAULT: q.fault says
 * why.
 *
 * One step is one packet, of the ring or of the indirect buffer (IB) that the ring is in. A packet is read,
 * checked and executed; then the read position goes on and owner->moved() is told; then its interrupt is
 * raised. So a packet that is refused changes nothing, and who sees an interrupt finds the packet consumed.
 * (An address that is not mapped may be found in the middle of a move: what came before it is moved.)
 * A queue with a fault stays as it is: its read position is at the bad packet, and each further step answers
 * PKT_FAULT until the owner sets `fault` to PKT_NO_FAULT.
 *
 * Not thread-safe: one thread steps a queue. Callbacks must not step the queue that calls them.
 */
#ifndef VAM_PACKETS_H
#define VAM_PACKETS_H

#include "../model/platform.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What an engine sees of memory: the space of a ring or of an IB. Addresses are as packets name them. All
 * return 0, or nonzero for an address that is not there for this access: the queue's fault is then
 * PKT_BAD_ADDRESS, and details (page table entry, exact page) are the space's own to keep. */
struct pkt_space {
  void* self;
  /* Four and eight aligned bytes are read and written in one piece. Writes are seen in their order. */
  int (*read)(void* self, uint64_t va, void* to, uint64_t bytes);
  int (*write)(void* self, uint64_t va, const void* from, uint64_t bytes);
  int (*copy)(void* self, uint64_t to, uint64_t from, uint64_t bytes);
  /* The dword again and again from `to` on; its first byte is at `to`. */
  int (*fill)(void* self, uint64_t to, uint32_t dword, uint64_t bytes);
  /* Adds to eight aligned bytes, atomically with what others do to them. */
  int (*add64)(void* self, uint64_t va, uint64_t value);
  /* Whether `bytes` bytes (1 to 8, in one page) may be read, or written. */
  int (*probe)(void* self, uint64_t va, uint64_t bytes, int write);
};

struct pkt_queue;
enum pkt_result {
  PKT_IDLE,  /* read position = write position */
  PKT_DONE,  /* a packet (or the end of an IB) is behind us */
  PKT_WAITS, /* the packet waits for memory or a register to change: polls, barriers, unpublished AQL */
  PKT_MORE,  /* the budget is used up in the middle of a packet */
  PKT_FAULT
};

/* The owner of the queue. Packets that need a member which is NULL are refused (PKT_BAD_PACKET),
 * unless it says otherwise. Those that return int: 0, or nonzero to stop the queue (PKT_REFUSED unless it
 * says otherwise, or the fault that they have set in the queue themselves). */
struct pkt_owner {
  void* self;
  /* The space of an IB whose packet names `vmid`; also asked again when a waiting IB goes on. NULL answer:
   * PKT_BAD_ADDRESS. */
  const struct pkt_space* (*space)(void* self, uint32_t vmid);
  /* Registers by dword index (byte address / 4). */
  int (*read_register)(void* self, uint32_t index, uint32_t* value);
  int (*write_register)(void* self, uint32_t index, uint32_t value);
  /* The GPU's clock, for timestamps. */
  uint64_t (*clock)(void* self);
  /* Asked before a fence is written (SDMA FENCE, RELEASE_MEM with data): nonzero lets it wait (PKT_WAITS).
   * NULL: none waits. */
  int (*holds_fence)(void* self, struct pkt_queue* q);
  /* For a trace: the packet at the current place is about to be executed (again, if it waited). `dw`: its
   * first dwords. SDMA and PM4 only. May be NULL. */
  void (*seen)(void* self, const struct pkt_queue* q, const uint32_t* dw, uint32_t dwords);
  /* The read position of the ring is now q->read: the place to write it back. May be NULL. Nonzero: the queue
   * stands before the packet, which was executed (PKT_BAD_ADDRESS). */
  int (*moved)(void* self, struct pkt_queue* q);
  /* SDMA: TRAP's context, 28 bits. PM4: RELEASE_MEM's. AQL: event id of a signal whose mailbox was written.
   * NULL: nothing happens. */
  int (*interrupt)(void* self, struct pkt_queue* q, uint32_t context);
  /* PM4 packets that pkt_pm4_step() does not know: op, the first min(dwords, PKT_PM4_BODY) dwords of the
   * body. May call pkt_enter_ib(). Nonzero: PKT_BAD_PACKET. */
  int (*pm4)(void* self, struct pkt_queue* q, const struct pkt_space* space, uint32_t op,
             const uint32_t* body, uint32_t dwords);
  /* AQL: some of a kernel dispatch; `packet` has its 64 bytes, `at` is its address. PKT_DONE, PKT_MORE or
   * PKT_WAITS (called again with the same packet), or PKT_FAULT with the fault set in the queue. NULL: it
   * completes and computes nothing. */
  enum pkt_result (*dispatch)(void* self, struct pkt_queue* q, const void* packet, uint64_t at);
};

enum pkt_fault {
  PKT_NO_FAULT = 0,
  PKT_BAD_POINTER, /* read and write position make no sense together */
  PKT_BAD_PACKET,  /* malformed, unknown, or not allowed in this queue */
  PKT_BAD_ADDRESS, /* the space did not take an address */
  PKT_REFUSED      /* a callback of the owner said no */
};

#define PKT_IB_DEPTH 2u /* an IB, and an IB in an IB (PM4 only) */
#define PKT_IB_DWORDS 0xfffffu
#define PKT_PM4_BODY 32u

struct pkt_ib {
  uint64_t address;
  uint32_t dwords, at, vmid;
  uint32_t caller_dwords; /* of the packet that called it: what the caller goes on by */
};

/* A ring and where it stands. All zeros but ring, ring_bytes and the positions is a fresh one. */
struct pkt_queue {
  uint64_t ring, ring_bytes;
  /* SDMA: bytes. AQL: packets of 64 bytes. PM4: dwords. All count on; their place is modulo the ring. */
  uint64_t read, write;
  uint64_t done;  /* of the packet at the current place: bytes that are moved, or 1: its first half is done */
  uint32_t depth; /* IBs that we are in */
  struct pkt_ib ib[PKT_IB_DEPTH];
  /* Why it stands. The header is that of the packet at hand, also before a fault. */
  enum pkt_fault fault;
  uint32_t fault_header; /* first dword of the packet */
  uint64_t fault_at;     /* where the packet is: address in the ring or IB */
  uint64_t fault_va;     /* PKT_BAD_ADDRESS: an address as the packet named it */
  const char* fault_why; /* in words, for logs */
};

/* For owner->pm4: the packet at hand is a call of `dwords` dwords at `address`. Nonzero: too deep or empty
 * (the caller answers with it). */
int pkt_enter_ib(struct pkt_queue* q, uint64_t address, uint32_t dwords, uint32_t vmid);

const char* pkt_fault_name(enum pkt_fault fault);

/* ---- SDMA ---- */

enum pkt_sdma_op {
  PKT_SDMA_NOP = 0,
  PKT_SDMA_COPY = 1, /* linear */
  PKT_SDMA_WRITE = 2,
  PKT_SDMA_INDIRECT = 4,
  PKT_SDMA_FENCE = 5,
  PKT_SDMA_TRAP = 6,
  PKT_SDMA_POLL_REGMEM = 8,
  PKT_SDMA_COND_EXE = 9,
  PKT_SDMA_ATOMIC = 10, /* ADD_64 */
  PKT_SDMA_CONST_FILL = 11,
  PKT_SDMA_PTEPDE = 12, /* generate */
  PKT_SDMA_TIMESTAMP = 13,
  PKT_SDMA_SRBM_WRITE = 14
};
#define PKT_SDMA_BIT(op) (1u << (op))

/* What a kernel ring may hold, with all that its IBs may; and a ring of a process. */
#define PKT_SDMA_KERNEL 0x7f77u
#define PKT_SDMA_USER                                                                                \
  (PKT_SDMA_BIT(PKT_SDMA_NOP) | PKT_SDMA_BIT(PKT_SDMA_COPY) | PKT_SDMA_BIT(PKT_SDMA_WRITE) |         \
   PKT_SDMA_BIT(PKT_SDMA_FENCE) | PKT_SDMA_BIT(PKT_SDMA_TRAP) | PKT_SDMA_BIT(PKT_SDMA_POLL_REGMEM) | \
   PKT_SDMA_BIT(PKT_SDMA_ATOMIC) | PKT_SDMA_BIT(PKT_SDMA_CONST_FILL))

struct pkt_sdma_rules {
  uint32_t allowed;                 /* PKT_SDMA_BIT of each packet that this queue may hold */
  uint32_t max_bytes;               /* of one COPY or CONST_FILL */
  uint32_t count_is_bytes_less_one; /* their count field: SDMA 4 and later */
  uint32_t one_byte_forgiven;       /* max_bytes + 1 is taken, too */
  uint32_t ib_size_is_cut;          /* to its field's 20 bits, as hardware has them; else more is a fault */
};

/* A packet of one IB or ring, decoded and checked. */
struct pkt_sdma {
  enum pkt_sdma_op op;
  uint32_t dwords;   /* whole length */
  uint64_t dst, src; /* addresses; POLL_REGMEM: src. INDIRECT: src */
  uint64_t bytes;    /* COPY, CONST_FILL, FENCE, WRITE: to be written; INDIRECT: of the IB */
  uint32_t
      value; /* CONST_FILL, FENCE, SRBM_WRITE: to write; POLL_REGMEM, COND_EXE: reference; TRAP: context */
  uint32_t mask;         /* POLL_REGMEM */
  uint32_t function;     /* POLL_REGMEM: how to compare */
  uint32_t memory;       /* POLL_REGMEM: src is memory, else a register's byte address */
  uint32_t flush;        /* POLL_REGMEM: HDP flush: write `value` to register dst, poll register src */
  uint32_t vmid;         /* INDIRECT */
  uint32_t skip;         /* COND_EXE: dwords to skip if unequal */
  uint64_t add;          /* ATOMIC; PTEPDE: increment */
  uint64_t first, flags; /* PTEPDE: entry i is (first + i * add) | flags */
  uint32_t entries;      /* PTEPDE */
};
#define PKT_SDMA_HEAD 10u /* dwords that decoding needs at most */

/* Decodes the packet at `dw`: `have` dwords are there to read (PKT_SDMA_HEAD of them are enough), `left`
 * dwords to the end of the IB or to the write position. 0, or nonzero with *why. */
int pkt_sdma_decode(const struct pkt_sdma_rules* rules, const uint32_t* dw, uint32_t have, uint64_t left,
                    struct pkt_sdma* out, const char** why);

enum pkt_result pkt_sdma_step(struct pkt_queue* q, const struct pkt_space* space,
                              const struct pkt_owner* owner, const struct pkt_sdma_rules* rules,
                              uint64_t* budget);

/* ---- PM4 ---- */

enum pkt_pm4_op {
  PKT_PM4_NOP = 0x10,
  PKT_PM4_DISPATCH_DIRECT = 0x15,
  PKT_PM4_DISPATCH_INDIRECT = 0x16,
  PKT_PM4_COND_EXEC = 0x22,
  PKT_PM4_CONTEXT_CONTROL = 0x28,
  PKT_PM4_WRITE_DATA = 0x37,
  PKT_PM4_WAIT_REG_MEM = 0x3c,
  PKT_PM4_INDIRECT_BUFFER = 0x3f,
  PKT_PM4_COPY_DATA = 0x40,
  PKT_PM4_EVENT_WRITE = 0x46,
  PKT_PM4_RELEASE_MEM = 0x49,
  PKT_PM4_ACQUIRE_MEM = 0x58,
  PKT_PM4_SET_CONFIG_REG = 0x68,
  PKT_PM4_SET_SH_REG = 0x76,
  PKT_PM4_SET_UCONFIG_REG = 0x79,
  PKT_PM4_RUN_CLEANER_SHADER_9_0 = 0xd7,
  PKT_PM4_RUN_CLEANER_SHADER = 0xd2
};

/* Groups of packets. NOP, ACQUIRE_MEM, WRITE_DATA to memory and RELEASE_MEM are always allowed; registers are
 * when the owner has them; INDIRECT_BUFFER when it has spaces. */
enum pkt_pm4_groups {
  PKT_PM4_SYNC = 1,   /* WAIT_REG_MEM, COPY_DATA, COND_EXEC, RELEASE_MEM with a clock */
  PKT_PM4_SHADERS = 2 /* SET_SH_REG, SET_CONFIG_REG, CONTEXT_CONTROL, EVENT_WRITE, DISPATCH_*, cleaner shader:
                        skipped, no shader runs */
};

struct pkt_pm4_rules {
  uint32_t groups;
};

enum pkt_result pkt_pm4_step(struct pkt_queue* q, const struct pkt_space* space,
                             const struct pkt_owner* owner, const struct pkt_pm4_rules* rules,
                             uint64_t* budget);

/* ---- AQL ---- */

/* KERNEL_DISPATCH (no shader runs), BARRIER_AND, BARRIER_OR, vendor packets PM4_IB (not looked into) and
 * BARRIER_VALUE. The packet becomes INVALID, the read index goes on, the completion signal is decremented; if
 * it has a mailbox, the event id is written there and owner->interrupt() is called. */
enum pkt_result pkt_aql_step(struct pkt_queue* q, const struct pkt_space* space,
                             const struct pkt_owner* owner);

#ifdef __cplusplus
}
#endif

#endif
