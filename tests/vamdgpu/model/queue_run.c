/* SPDX-License-Identifier: MIT */
/*
 * User-mode queues that consume their packets (see queue_run.h): the decoders of ../packets on the memory of
 * a process. Pointers are read anew at each step, and what is done of a packet at the read pointer is in the
 * queue's record, so that nothing of a queue is kept here.
 */
#include "queue_run.h"

#include "../packets/packets.h"
#include "sdma.h"

/* Queue types inside the kernel. */
enum { TYPE_COMPUTE = 0, TYPE_SDMA = 1, TYPE_SDMA_XGMI = 4 };

/* Attributes of an SVM range that let a GPU in. */
enum { SVM_ACCESS = 2, SVM_ACCESS_IN_PLACE = 3 };

struct step {
  const struct vam_queue_run* run;
  struct vam_model* m;
  struct vam_queue* q;
  struct vam_queue_out* out;
};

VAM_STATIC_ASSERT((int)VAM_QUEUE_BAD_POINTER == (int)PKT_BAD_POINTER &&
                      (int)VAM_QUEUE_BAD_PACKET == (int)PKT_BAD_PACKET &&
                      (int)VAM_QUEUE_BAD_ADDRESS == (int)PKT_BAD_ADDRESS,
                  "names of faults");

const char* vam_queue_fault_name(uint32_t fault) {
  return pkt_fault_name((enum pkt_fault)fault);
}

static struct vam_process* process_of(const struct step* s) {
  return VAM_PROCESS_AT(s->m, s->q->process);
}

static int stop(struct step* s, enum vam_queue_fault why, uint64_t va) {
  s->q->fault = why;
  s->q->fault_va = va;
  return -VAM_EFAULT;
}

/* ---- memory
 * ------------------------------------------------------------------------------------------------- */

/* Whether the GPU may access the page of `va` through an SVM range. */
static int svm_access(const struct vam_model* m, const struct vam_queue* q, uint64_t va) {
  uint64_t page = va / VAM_PAGE;
  for (uint32_t i = VAM_PROCESS_AT(m, q->process)->svm_first; i;) {
    const struct vam_svm* svm = VAM_AT(m, VAM_T_SVM, vam_svm, i);
    if (svm->start_page <= page && page < svm->start_page + svm->pages)
      return svm->access[q->gpu] == SVM_ACCESS || svm->access[q->gpu] == SVM_ACCESS_IN_PLACE;
    i = svm->next;
  }
  return 0;
}

/* Where the bytes at `va` are, and for how many that holds. */
static int find(struct step* s, uint64_t va, int write, struct vam_place* place, uint64_t* bytes) {
  const struct vam_process* p = process_of(s);
  uint64_t offset;
  uint32_t bo;
  place->process = s->q->process;
  place->bo = 0;
  if (!vam_vm_translate(s->m, p->pdd[s->q->gpu].file, va, write, &bo, &offset, bytes)) {
    const struct vam_bo* b = VAM_BO_AT(s->m, bo);
    if (b->kind != VAM_BO_USERPTR) {
      if (b->pool == VAM_POOL_NONE) return stop(s, VAM_QUEUE_BAD_ADDRESS, va);
      place->bo = bo;
      place->offset = offset;
      return 0;
    }
    if (b->owner_pid != p->pid) return stop(s, VAM_QUEUE_BAD_ADDRESS, va);
    place->offset = b->user_addr + offset;
  } else if (svm_access(s->m, s->q, va)) {
    place->offset = va;
    *bytes = VAM_PAGE;
  } else {
    return stop(s, VAM_QUEUE_BAD_ADDRESS, va);
  }
  if (*bytes > VAM_PAGE - place->offset % VAM_PAGE) *bytes = VAM_PAGE - place->offset % VAM_PAGE;
  return 0;
}

static int load(void* self, uint64_t va, void* to, uint64_t bytes) {
  struct step* s = self;
  uint8_t* out = to;
  while (bytes) {
    struct vam_place place;
    uint64_t n;
    int err = find(s, va, 0, &place, &n);
    if (err) return err;
    if (n > bytes) n = bytes;
    if (s->run->read(s->run->shim, &place, out, (uint32_t)n)) return stop(s, VAM_QUEUE_BAD_ADDRESS, va);
    va += n;
    out += n;
    bytes -= n;
  }
  return 0;
}

static int store(void* self, uint64_t va, const void* from, uint64_t bytes) {
  struct step* s = self;
  const uint8_t* in = from;
  while (bytes) {
    struct vam_place place;
    uint64_t n;
    int err = find(s, va, 1, &place, &n);
    if (err) return err;
    if (n > bytes) n = bytes;
    if (s->run->write(s->run->shim, &place, in, (uint32_t)n)) return stop(s, VAM_QUEUE_BAD_ADDRESS, va);
    va += n;
    in += n;
    bytes -= n;
  }
  return 0;
}

static int copy(void* self, uint64_t to, uint64_t from, uint64_t bytes) {
  struct step* s = self;
  uint32_t most = s->run->bounce_bytes & ~7u;
  while (bytes) {
    uint64_t n = bytes < most ? bytes : most;
    int err = load(s, from, s->run->bounce, n);
    if (!err) err = store(s, to, s->run->bounce, n);
    if (err) return err;
    from += n;
    to += n;
    bytes -= n;
  }
  return 0;
}

static int fill(void* self, uint64_t to, uint32_t dword, uint64_t bytes) {
  struct step* s = self;
  uint32_t most = s->run->bounce_bytes & ~7u;
  for (uint32_t i = 0; i < most && i < bytes; ++i) s->run->bounce[i] = (uint8_t)(dword >> 8 * (i % 4));
  while (bytes) {
    uint64_t n = bytes < most ? bytes : most;
    int err = store(s, to, s->run->bounce, n);
    if (err) return err;
    to += n;
    bytes -= n;
  }
  return 0;
}

static int add64(void* self, uint64_t va, uint64_t value) {
  struct step* s = self;
  struct vam_place place;
  uint64_t n;
  int err = find(s, va, 1, &place, &n);
  if (err) return err;
  if (va % 8 || n < 8 || s->run->add64(s->run->shim, &place, value))
    return stop(s, VAM_QUEUE_BAD_ADDRESS, va);
  return 0;
}

static int probe(void* self, uint64_t va, uint64_t bytes, int write) {
  struct step* s = self;
  struct vam_place place;
  uint64_t n;
  int err = find(s, va, write, &place, &n);
  if (err) return err;
  return n < bytes ? stop(s, VAM_QUEUE_BAD_ADDRESS, va) : 0;
}

/* Whether eight aligned bytes are there for writing. */
static int writable64(struct step* s, uint64_t va) {
  return va % 8 ? stop(s, VAM_QUEUE_BAD_ADDRESS, va) : probe(s, va, 8, 1);
}

/* ---- events
 * ------------------------------------------------------------------------------------------------- */

/* An interrupt with an event's id, as the kernel takes it: the event is raised if its slot in the event page
 * was written, and the slot is given back. */
static int interrupt(void* self, struct pkt_queue* queue, uint32_t id) {
  struct step* s = self;
  const uint64_t unsignalled = ~(uint64_t)0;
  struct vam_process* p = process_of(s);
  struct vam_place slot = {s->q->process, p->event_page_bo, (uint64_t)id * 8};
  uint32_t event = id < VAM_SIGNAL_EVENTS ? vam_idr_find(s->m, &p->signal_events, id) : 0;
  uint64_t value;
  (void)queue;
  if (!p->event_page_bo || !event) return 0;
  if (s->run->read(s->run->shim, &slot, &value, 8)) return stop(s, VAM_QUEUE_BAD_ADDRESS, 0);
  if (value == unsignalled) return 0;
  if (s->run->write(s->run->shim, &slot, &unsignalled, 8)) return stop(s, VAM_QUEUE_BAD_ADDRESS, 0);
  vam_event_set(s->m, event);
  s->out->events++;
  return 0;
}

/* ---- queues
 * ------------------------------------------------------------------------------------------------- */

static int is_aql(const struct vam_queue* q) {
  return q->type == TYPE_COMPUTE && q->format == 1;
}

static int is_sdma(const struct vam_queue* q) {
  return q->type == TYPE_SDMA || q->type == TYPE_SDMA_XGMI;
}

uint32_t vam_queue_runnable(const struct vam_model* m, uint32_t after) {
  for (uint32_t i = after + 1; i < m->table[VAM_T_QUEUE].high; ++i) {
    const struct vam_queue* q = VAM_AT(m, VAM_T_QUEUE, vam_queue, i);
    const struct vam_process* p;
    if (!q->rec.live || !q->active || q->fault || (q->type != TYPE_COMPUTE && !is_sdma(q))) continue;
    p = VAM_PROCESS_AT(m, q->process);
    if (!p->dead && p->pdd[q->gpu].file && !p->pdd[q->gpu].evicted) return i;
  }
  return 0;
}

/* PM4 of compute queues: pointers are dwords, and the read pointer is a place in the ring. */
static int is_pm4(const struct vam_queue* q) {
  return q->type == TYPE_COMPUTE && !is_aql(q);
}

/* Reads both pointers. */
static int pointers(struct step* s, struct pkt_queue* ring) {
  const struct vam_queue* q = s->q;
  int err;
  ring->read = 0;
  if (q->write_ptr % 8) return stop(s, VAM_QUEUE_BAD_POINTER, q->write_ptr);
  err = writable64(s, q->read_ptr);
  if (!err) err = load(s, q->write_ptr, &ring->write, 8);
  if (!err) err = load(s, q->read_ptr, &ring->read, is_pm4(q) ? 4 : 8);
  if (err || !is_pm4(q)) return err;
  if (ring->read >= q->ring_size / 4) return stop(s, VAM_QUEUE_BAD_POINTER, q->read_ptr);
  ring->write = ring->read + (ring->write - ring->read) % (q->ring_size / 4);
  return 0;
}

/* The read pointer has gone on. */
static int moved(void* self, struct pkt_queue* ring) {
  struct step* s = self;
  uint64_t read = is_pm4(s->q) ? ring->read % (s->q->ring_size / 4) : ring->read;
  int err = store(s, s->q->read_ptr, &read, is_pm4(s->q) ? 4 : 8);
  if (!err) s->out->packets++;
  return err;
}

static enum pkt_result one_packet(struct step* s, struct pkt_queue* ring, uint64_t* budget) {
  static const struct pkt_pm4_rules pm4 = {0};
  const struct vamdgpu_gpu_config* config = &s->m->gpu[s->q->gpu].config;
  const struct pkt_sdma_rules sdma = {PKT_SDMA_USER, config->sdma_max_bytes, config->family >= 141, 0, 0};
  const struct pkt_space space = {s, load, store, copy, fill, add64, probe};
  const struct pkt_owner owner = {.self = s, .moved = moved, .interrupt = interrupt};
  if (is_aql(s->q)) return pkt_aql_step(ring, &space, &owner);
  if (is_sdma(s->q)) return pkt_sdma_step(ring, &space, &owner, &sdma, budget);
  return pkt_pm4_step(ring, &space, &owner, &pm4, budget);
}

void vam_queue_step(const struct vam_queue_run* run, uint32_t queue, uint32_t max_packets,
                    struct vam_queue_out* out) {
  struct step s = {run, run->model, VAM_AT(run->model, VAM_T_QUEUE, vam_queue, queue), out};
  struct pkt_queue ring;
  uint64_t budget = VAM_QUEUE_STEP_BYTES;
  enum pkt_result result = PKT_DONE;
  memset(out, 0, sizeof(*out));
  memset(&ring, 0, sizeof(ring));
  ring.ring = s.q->ring;
  ring.ring_bytes = s.q->ring_size;
  ring.done = s.q->done;
  if (pointers(&s, &ring)) result = PKT_FAULT;
  while (result == PKT_DONE && out->packets < max_packets) result = one_packet(&s, &ring, &budget);
  out->waiting = result == PKT_WAITS;
  /* An address that the process' memory did not take is known already, to the byte. */
  if (ring.fault && !s.q->fault)
    stop(&s, (enum vam_queue_fault)ring.fault, ring.fault_va ? ring.fault_va : ring.fault_at);
  s.q->done = ring.done;
  s.q->consumed += out->packets;
  out->fault = s.q->fault;
}
