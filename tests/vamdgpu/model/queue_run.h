/* SPDX-License-Identifier: MIT */
/*
 * User-mode queues that consume their packets. A front that wants queues to run calls, for every queue that
 * vam_queue_runnable() names, vam_queue_step() again and again (every few milliseconds, or when a doorbell
 * page is written): it reads the write and read pointers from the process' GPU memory, executes what lies
 * between them and advances the read pointer. Nothing else of a queue is kept anywhere: pointers and rings
 * are the process' memory, so a queue whose memory was restored goes on where it stood.
 *
 *   for (q = vam_queue_runnable(m, 0); q; q = vam_queue_runnable(m, q)) {
 *     vam_queue_step(&run, q, 64, &out);
 *     if (out.events) wake who waits for events (as after vam_os.fence_changed);
 *     if (out.packets) call again soon;
 *   }
 *
 * Rules. The caller serialises steps with every other call into the model (the same lock) and keeps holding
 * that lock while the callbacks move bytes; so the callbacks must not take it, and a page fault of the
 * process that they wait for must not need it. No step blocks, allocates or sleeps by itself; its work is
 * bounded by `max_packets` and by VAM_QUEUE_STEP_BYTES of copying.
 *
 * What is executed:
 * - AQL: KERNEL_DISPATCH (no shader runs), BARRIER_AND, BARRIER_OR, vendor packets PM4_IB (not looked into)
 *   and BARRIER_VALUE; each then decrements its completion signal and, where that has a mailbox, writes the
 *   event id there and raises the event. The packet becomes INVALID, then the read index goes on by one.
 *   An INVALID packet stops the queue until its writer has published it.
 * - SDMA: NOP, linear COPY, CONST_FILL, FENCE, linear WRITE, TRAP, POLL_REGMEM on memory, ATOMIC ADD_64.
 *   Pointers count bytes and never wrap.
 * - PM4: NOP, WRITE_DATA to memory, RELEASE_MEM with 32 or 64 bits of data and interrupt, ACQUIRE_MEM. The
 *   write pointer counts dwords and never wraps; the read pointer is the dword's place in the ring.
 * Anything else, and an address that is not mapped for the access, is a fault: the queue stands from then on
 * (vam_queue.fault says why, until UPDATE_QUEUE, DESTROY_QUEUE or a restore) and its read pointer stays at
 * the bad packet.
 *
 * Not modelled: doorbell values (the write pointer in memory counts, as on a queue that has just been
 * mapped), CWSR, priorities, timestamps of signals and packets.
 */
#ifndef VAM_QUEUE_RUN_H
#define VAM_QUEUE_RUN_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

#define VAM_QUEUE_STEP_BYTES (4u << 20) /* a longer packet goes on in the next step */

/* A place of bytes. `bo` != 0: byte `offset` of that BO, which has memory of its own in a pool. `bo` == 0:
 * address `offset` of process `process` (index of a vam_process), for userptr BOs and SVM ranges. */
struct vam_place {
  uint32_t process, bo;
  uint64_t offset;
};

/* Why a queue stands. */
enum vam_queue_fault {
  VAM_QUEUE_OK = 0,
  VAM_QUEUE_BAD_POINTER, /* read and write pointer make no sense together */
  VAM_QUEUE_BAD_PACKET,  /* not one that is executed here */
  VAM_QUEUE_BAD_ADDRESS  /* not mapped, or not for this access; or its memory could not be reached */
};
const char* vam_queue_fault_name(uint32_t fault);

/* How a step reaches memory. All return 0 or a negative VAM_E*; an error is a fault of the queue. */
struct vam_queue_run {
  struct vam_model* model;
  void* shim; /* for the callbacks */
  /* `bytes` bytes, which lie in one VA mapping (a place in process memory: in one page). Four and eight
   * aligned bytes are read and written in one piece. Writes become visible to the process in their order. */
  int (*read)(void* shim, const struct vam_place* from, void* to, uint32_t bytes);
  int (*write)(void* shim, const struct vam_place* to, const void* from, uint32_t bytes);
  /* Adds to eight aligned bytes, atomically with what the process' threads do to them. */
  int (*add64)(void* shim, const struct vam_place* at, uint64_t value);
  /* Memory that the step may use: bytes are moved through it. At least 64 bytes, a multiple of 8; a page or
   * more is good. */
  uint8_t* bounce;
  uint32_t bounce_bytes;
};

struct vam_queue_out {
  uint32_t packets; /* consumed by this step */
  uint32_t events;  /* raised by this step: somebody may wait for one */
  uint32_t
      waiting;    /* 1: the packet at the read pointer waits for memory to change (barrier, poll, INVALID) */
  uint32_t fault; /* VAM_QUEUE_OK, or why the queue stands now */
};

/* The first queue after `after` (0: of all) that is active, not evicted, of a living process with a VM, and
 * without a fault. 0 = none. */
uint32_t vam_queue_runnable(const struct vam_model* m, uint32_t after);

/* Consumes at most `max_packets` packets of a queue that vam_queue_runnable() gave. Always fills *out. */
void vam_queue_step(const struct vam_queue_run* run, uint32_t queue, uint32_t max_packets,
                    struct vam_queue_out* out);

#ifdef __cplusplus
}
#endif

#endif
