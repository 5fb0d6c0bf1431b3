/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * User-mode queues that consume their packets (see queue_run.h). One packet at a time: it is read from the
 * ring, everything it names is looked up, then it is executed, then the read pointer goes on, then its
 * completion is told. So a packet that is a fault changes nothing, and who sees a completion finds the packet
 * consumed. Packet layouts: HSA's AQL, SDMA 4 and later, PM4 of gfx9 and later.
 */
#include "queue_run.h"

#include "sdma.h"

/* Queue types inside the kernel. */
enum { TYPE_COMPUTE = 0, TYPE_SDMA = 1, TYPE_SDMA_XGMI = 4 };

/* Attributes of an SVM range that let a GPU in. */
enum { SVM_ACCESS = 2, SVM_ACCESS_IN_PLACE = 3 };

/* What trying a packet comes to. */
enum { CONSUMED = 1, STANDS = 0 }; /* or negative: a fault */

struct step {
  const struct vam_queue_run* run;
  struct vam_model* m;
  struct vam_queue* q;
  struct vam_queue_out* out;
  uint32_t budget; /* bytes that may still be moved */
};

const char* vam_queue_fault_name(uint32_t fault) {
  static const char* const names[] = {"none", "bad read or write pointer", "packet that is not executed",
                                      "address that is not mapped for this access"};
  return fault < sizeof(names) / sizeof(names[0]) ? names[fault] : "unknown";
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

static int load(struct step* s, uint64_t va, void* to, uint64_t bytes) {
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

static int store(struct step* s, uint64_t va, const void* from, uint64_t bytes) {
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

static int add64(struct step* s, uint64_t va, uint64_t value) {
  struct vam_place place;
  uint64_t n;
  int err = find(s, va, 1, &place, &n);
  if (err) return err;
  if (va % 8 || n < 8 || s->run->add64(s->run->shim, &place, value))
    return stop(s, VAM_QUEUE_BAD_ADDRESS, va);
  return 0;
}

/* Whether eight aligned bytes are there for writing. */
static int writable64(struct step* s, uint64_t va) {
  struct vam_place place;
  uint64_t n;
  if (va % 8) return stop(s, VAM_QUEUE_BAD_ADDRESS, va);
  return find(s, va, 1, &place, &n);
}

/* Bytes of the ring from position `at` on, which may be beyond its end: it is taken modulo the size. */
static int ring_load(struct step* s, uint64_t at, void* to, uint64_t bytes) {
  uint8_t* out = to;
  while (bytes) {
    uint64_t here = at % s->q->ring_size, n = s->q->ring_size - here;
    int err;
    if (n > bytes) n = bytes;
    err = load(s, s->q->ring + here, out, n);
    if (err) return err;
    at += n;
    out += n;
    bytes -= n;
  }
  return 0;
}

enum source { FROM_MEMORY, FROM_RING, FROM_VALUE };

/* Moves what is left of a packet's `bytes` bytes to `dst` as far as the budget goes. CONSUMED: all is there.
 * `src`: address, position in the ring, or dword to fill with. */
static int move(struct step* s, enum source source, uint64_t src, uint64_t dst, uint64_t bytes) {
  uint8_t* bounce = s->run->bounce;
  uint32_t most = s->run->bounce_bytes & ~7u;
  while (s->q->done < bytes) {
    uint64_t n = bytes - s->q->done;
    int err = 0;
    if (s->budget == 0) return STANDS;
    if (n > most) n = most;
    if (n > s->budget) n = s->budget;
    if (source == FROM_MEMORY)
      err = load(s, src + s->q->done, bounce, n);
    else if (source == FROM_RING)
      err = ring_load(s, src + s->q->done, bounce, n);
    else
      for (uint64_t i = 0; i < n; ++i) bounce[i] = (uint8_t)(src >> 8 * ((s->q->done + i) % 4));
    if (!err) err = store(s, dst + s->q->done, bounce, n);
    if (err) return err;
    s->q->done += n;
    s->budget -= (uint32_t)n;
  }
  s->q->done = 0;
  return CONSUMED;
}

/* ---- events
 * ------------------------------------------------------------------------------------------------- */

/* An interrupt with an event's id, as the kernel takes it: the event is raised if its slot in the event page
 * was written, and the slot is given back. */
static int interrupt(struct step* s, uint32_t id) {
  const uint64_t unsignalled = ~(uint64_t)0;
  struct vam_process* p = process_of(s);
  struct vam_place slot = {s->q->process, p->event_page_bo, (uint64_t)id * 8};
  uint32_t event = id < VAM_SIGNAL_EVENTS ? vam_idr_find(s->m, &p->signal_events, id) : 0;
  uint64_t value;
  if (!p->event_page_bo || !event) return 0;
  if (s->run->read(s->run->shim, &slot, &value, 8)) return stop(s, VAM_QUEUE_BAD_ADDRESS, 0);
  if (value == unsignalled) return 0;
  if (s->run->write(s->run->shim, &slot, &unsignalled, 8)) return stop(s, VAM_QUEUE_BAD_ADDRESS, 0);
  vam_event_set(s->m, event);
  s->out->events++;
  return 0;
}

/* ---- AQL
 * ---------------------------------------------------------------------------------------------------- */

enum {
  AQL_BYTES = 64,
  AQL_VENDOR = 0,
  AQL_INVALID = 1,
  AQL_DISPATCH = 2,
  AQL_BARRIER_AND = 3,
  AQL_BARRIER_OR = 5,
  VENDOR_PM4_IB = 1,
  VENDOR_BARRIER_VALUE = 2,
  BARRIER_SIGNALS = 5,
  /* of an AMD signal */
  SIGNAL_VALUE = 8,
  SIGNAL_MAILBOX = 16,
  SIGNAL_EVENT = 24
};

struct aql_packet {
  uint16_t header;
  uint8_t vendor; /* VENDOR_SPECIFIC: its format */
  uint8_t pad[5];
  uint64_t body[6];
  uint64_t completion;
};
VAM_STATIC_ASSERT(sizeof(struct aql_packet) == AQL_BYTES, "aql_packet");

/* CONSUMED: the dependencies of a barrier are met. */
static int barrier_packet(struct step* s, const struct aql_packet* packet, int all) {
  int named = 0, met = 0;
  for (int i = 0; i < BARRIER_SIGNALS; ++i) {
    uint64_t value;
    int err;
    if (!packet->body[i]) continue;
    err = load(s, packet->body[i] + SIGNAL_VALUE, &value, 8);
    if (err) return err;
    named++;
    met += value == 0;
  }
  return (all ? met == named : met || !named) ? CONSUMED : STANDS;
}

static int barrier_value(struct step* s, const struct aql_packet* packet) {
  uint64_t value;
  int64_t have, want = (int64_t)packet->body[1];
  int err = load(s, packet->body[0] + SIGNAL_VALUE, &value, 8);
  if (err) return err;
  have = (int64_t)(value & packet->body[2]);
  switch ((uint32_t)packet->body[3]) {
    case 0:
      return have == want;
    case 1:
      return have != want;
    case 2:
      return have < want;
    case 3:
      return have >= want;
    default:
      return stop(s, VAM_QUEUE_BAD_PACKET, 0);
  }
}

static int complete(struct step* s, uint64_t signal) {
  uint64_t mailbox, id = 0;
  int err = add64(s, signal + SIGNAL_VALUE, ~(uint64_t)0);
  if (!err) err = load(s, signal + SIGNAL_MAILBOX, &mailbox, 8);
  if (err || !mailbox) return err;
  err = load(s, signal + SIGNAL_EVENT, &id, 4);
  if (!err) err = store(s, mailbox, &id, 8);
  return err ? err : interrupt(s, (uint32_t)id);
}

static int aql(struct step* s, uint64_t* read, uint64_t write) {
  static const uint16_t invalid = AQL_INVALID;
  uint64_t at = s->q->ring + *read * AQL_BYTES % s->q->ring_size, next = *read + 1;
  struct aql_packet packet;
  int err, ready;
  if (*read == write) return STANDS;
  err = load(s, at, &packet, AQL_BYTES);
  if (err) return err;
  switch (packet.header & 0xff) {
    case AQL_INVALID:
      ready = STANDS;
      break;
    case AQL_DISPATCH:
      ready = CONSUMED;
      break;
    case AQL_BARRIER_AND:
    case AQL_BARRIER_OR:
      ready = barrier_packet(s, &packet, (packet.header & 0xff) == AQL_BARRIER_AND);
      break;
    case AQL_VENDOR:
      ready = packet.vendor == VENDOR_PM4_IB          ? CONSUMED
              : packet.vendor == VENDOR_BARRIER_VALUE ? barrier_value(s, &packet)
                                                      : stop(s, VAM_QUEUE_BAD_PACKET, at);
      break;
    default:
      return stop(s, VAM_QUEUE_BAD_PACKET, at);
  }
  s->out->waiting = ready == STANDS;
  if (ready != CONSUMED) return ready;
  if (packet.completion) err = writable64(s, packet.completion + SIGNAL_VALUE);
  if (!err) err = store(s, at, &invalid, sizeof(invalid));
  if (!err) err = store(s, s->q->read_ptr, &next, 8);
  if (err) return err;
  *read = next;
  s->out->packets++;
  return packet.completion && complete(s, packet.completion) ? -VAM_EFAULT : CONSUMED;
}

/* ---- SDMA
 * --------------------------------------------------------------------------------------------------- */

enum {
  SDMA_NOP = 0,
  SDMA_COPY = 1,
  SDMA_WRITE = 2,
  SDMA_FENCE = 5,
  SDMA_TRAP = 6,
  SDMA_POLL = 8,
  SDMA_ATOMIC = 10,
  SDMA_FILL = 11,
  SDMA_MOST_DWORDS = 8,
  ATOMIC_ADD_64 = 47
};

static uint64_t address(const uint32_t* dw) {
  return dw[0] | (uint64_t)dw[1] << 32;
}

/* Packets that the decoder of IBs knows. */
static int sdma_common(struct step* s, const uint32_t* dw, uint32_t dwords, uint64_t at) {
  const struct vamdgpu_gpu_config* config = &s->m->gpu[s->q->gpu].config;
  struct vam_sdma_reader reader;
  int decoded;
  memset(&reader, 0, sizeof(reader));
  reader.dwords = dw;
  reader.count = dwords;
  reader.max_bytes = config->sdma_max_bytes;
  reader.count_is_bytes_less_one = config->family >= 141;
  decoded = vam_sdma_decode(&reader);
  if (decoded < 0) return stop(s, VAM_QUEUE_BAD_PACKET, at);
  if (decoded == 0) return CONSUMED;
  if (reader.packet.kind == VAM_SDMA_FILL)
    return move(s, FROM_VALUE, reader.packet.value, reader.packet.dst, reader.packet.bytes);
  return move(s, FROM_MEMORY, reader.packet.src, reader.packet.dst, reader.packet.bytes);
}

static int sdma_poll(struct step* s, const uint32_t* dw, uint64_t at) {
  uint32_t value, want = dw[3];
  int err, met;
  if (!(dw[0] >> 31)) /* a register: only what waits for no value, as flushes do, which are nothing here */
    return dw[0] >> 26 & 1 || !(dw[0] >> 28 & 7) ? CONSUMED : stop(s, VAM_QUEUE_BAD_PACKET, at);
  err = load(s, address(dw + 1), &value, 4);
  if (err) return err;
  value &= dw[4];
  switch (dw[0] >> 28 & 7) {
    case 0:
      met = 1;
      break;
    case 1:
      met = value < want;
      break;
    case 2:
      met = value <= want;
      break;
    case 3:
      met = value == want;
      break;
    case 4:
      met = value != want;
      break;
    case 5:
      met = value >= want;
      break;
    case 6:
      met = value > want;
      break;
    default:
      return stop(s, VAM_QUEUE_BAD_PACKET, at);
  }
  s->out->waiting = !met;
  return met ? CONSUMED : STANDS;
}

/* Dwords of a packet, for WRITE without its data; 0 = not one that is executed. */
static uint32_t sdma_dwords(uint32_t op) {
  switch (op) {
    case SDMA_NOP:
      return 1;
    case SDMA_TRAP:
      return 2;
    case SDMA_WRITE:
    case SDMA_FENCE:
      return 4;
    case SDMA_FILL:
      return 5;
    case SDMA_POLL:
      return 6;
    case SDMA_COPY:
      return 7;
    case SDMA_ATOMIC:
      return 8;
    default:
      return 0;
  }
}

static int sdma(struct step* s, uint64_t* read, uint64_t write) {
  uint32_t dw[SDMA_MOST_DWORDS], op, dwords, id = 0;
  uint64_t at = s->q->ring + *read % s->q->ring_size, bytes, next;
  int result;
  if (*read == write) return STANDS;
  result = ring_load(s, *read, dw, 4);
  if (result) return result;
  op = dw[0] & 0xff;
  dwords = sdma_dwords(op);
  bytes = 4 * (uint64_t)dwords;
  if (bytes == 0 || bytes > write - *read) return stop(s, VAM_QUEUE_BAD_PACKET, at);
  result = ring_load(s, *read, dw, bytes);
  if (result) return result;
  if (op == SDMA_NOP) bytes += 4 * (uint64_t)(dw[0] >> 16 & 0x3fff);
  if (op == SDMA_WRITE) bytes += 4 * ((uint64_t)dw[3] + 1);
  if (bytes > write - *read) return stop(s, VAM_QUEUE_BAD_PACKET, at);
  switch (op) {
    case SDMA_NOP:
      result = CONSUMED;
      break;
    case SDMA_TRAP:
      id = dw[1] & 0xfffffff;
      result = CONSUMED;
      break;
    case SDMA_WRITE:
      if (dw[0] >> 8 & 0xff || dw[3] >> 20) return stop(s, VAM_QUEUE_BAD_PACKET, at);
      result = move(s, FROM_RING, *read + 16, address(dw + 1), bytes - 16);
      break;
    case SDMA_POLL:
      result = sdma_poll(s, dw, at);
      break;
    case SDMA_ATOMIC:
      if (dw[0] >> 25 != ATOMIC_ADD_64) return stop(s, VAM_QUEUE_BAD_PACKET, at);
      result = add64(s, address(dw + 1), address(dw + 3));
      if (!result) result = CONSUMED;
      break;
    default:
      result = sdma_common(s, dw, dwords, at);
      break;
  }
  if (result != CONSUMED) return result;
  next = *read + bytes;
  result = store(s, s->q->read_ptr, &next, 8);
  if (result) return result;
  *read = next;
  s->out->packets++;
  return id && interrupt(s, id) ? -VAM_EFAULT : CONSUMED;
}

/* ---- PM4
 * ---------------------------------------------------------------------------------------------------- */

enum {
  PM4_NOP = 0x10,
  PM4_WRITE_DATA = 0x37,
  PM4_RELEASE_MEM = 0x49,
  PM4_ACQUIRE_MEM = 0x58,
  PM4_RELEASE_DWORDS = 8
};

/* Executes the packet of `dwords` dwords at dword `at` of the ring. `*id`: event to raise afterwards. */
static int pm4_packet(struct step* s, uint32_t header, uint64_t at, uint64_t dwords, uint32_t* id) {
  uint32_t dw[PM4_RELEASE_DWORDS];
  uint64_t place = s->q->ring + 4 * at;
  int err;
  switch (header >> 8 & 0xff) {
    case PM4_NOP:
    case PM4_ACQUIRE_MEM:
      return CONSUMED;
    case PM4_WRITE_DATA: {
      uint32_t target;
      if (dwords < 5) return stop(s, VAM_QUEUE_BAD_PACKET, place);
      err = ring_load(s, 4 * at, dw, 16);
      if (err) return err;
      target = dw[1] >> 8 & 0xf;
      /* Memory, directly or through the L2 cache, one dword after the other. */
      if ((target != 5 && target != 2) || dw[1] >> 16 & 1) return stop(s, VAM_QUEUE_BAD_PACKET, place);
      return move(s, FROM_RING, 4 * at + 16, address(dw + 2), 4 * (dwords - 4));
    }
    case PM4_RELEASE_MEM: {
      uint32_t data;
      if (dwords != PM4_RELEASE_DWORDS) return stop(s, VAM_QUEUE_BAD_PACKET, place);
      err = ring_load(s, 4 * at, dw, sizeof(dw));
      if (err) return err;
      data = dw[2] >> 29;
      if (data > 2) return stop(s, VAM_QUEUE_BAD_PACKET, place);
      if (data) err = store(s, address(dw + 3), dw + 5, 4 * (uint64_t)data);
      if (err) return err;
      if (dw[2] >> 24 & 7) *id = dw[7];
      return CONSUMED;
    }
    default:
      return stop(s, VAM_QUEUE_BAD_PACKET, place);
  }
}

static int pm4(struct step* s, uint64_t* read, uint64_t write) {
  uint64_t ring = s->q->ring_size / 4, at = *read % ring, ready = (write - *read) % ring, dwords;
  uint32_t header, next, id = 0;
  int result;
  if (ready == 0) return STANDS;
  result = ring_load(s, 4 * at, &header, 4);
  if (result) return result;
  if (header >> 30 == 2) { /* one dword of filling */
    dwords = 1;
  } else if (header >> 30 == 3) {
    dwords = (uint64_t)(header >> 16 & 0x3fff) + 2;
    if ((header >> 8 & 0xff) == PM4_NOP && dwords == 0x3fff + 2) dwords = 1;
  } else {
    return stop(s, VAM_QUEUE_BAD_PACKET, s->q->ring + 4 * at);
  }
  if (dwords > ready) return stop(s, VAM_QUEUE_BAD_PACKET, s->q->ring + 4 * at);
  result = header >> 30 == 2 ? CONSUMED : pm4_packet(s, header, at, dwords, &id);
  if (result != CONSUMED) return result;
  next = (uint32_t)((at + dwords) % ring);
  result = store(s, s->q->read_ptr, &next, 4);
  if (result) return result;
  *read = next;
  s->out->packets++;
  return id && interrupt(s, id) ? -VAM_EFAULT : CONSUMED;
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

/* Reads both pointers. */
static int pointers(struct step* s, uint64_t* read, uint64_t* write) {
  const struct vam_queue* q = s->q;
  uint32_t place = 0;
  int err;
  *read = 0;
  if (q->write_ptr % 8) return stop(s, VAM_QUEUE_BAD_POINTER, q->write_ptr);
  err = writable64(s, q->read_ptr);
  if (!err) err = load(s, q->write_ptr, write, 8);
  if (err) return err;
  if (q->type == TYPE_COMPUTE && !is_aql(q)) {
    err = load(s, q->read_ptr, &place, 4);
    *read = place;
    return !err && place >= q->ring_size / 4 ? stop(s, VAM_QUEUE_BAD_POINTER, q->read_ptr) : err;
  }
  err = load(s, q->read_ptr, read, 8);
  if (err) return err;
  if (*write < *read) return stop(s, VAM_QUEUE_BAD_POINTER, q->write_ptr);
  /* Writers of AQL packets may claim places that are not free yet: those are INVALID until written. */
  if (is_sdma(q) && (*write - *read > q->ring_size || (*write | *read) % 4))
    return stop(s, VAM_QUEUE_BAD_POINTER, q->write_ptr);
  return 0;
}

void vam_queue_step(const struct vam_queue_run* run, uint32_t queue, uint32_t max_packets,
                    struct vam_queue_out* out) {
  struct step s = {run, run->model, VAM_AT(run->model, VAM_T_QUEUE, vam_queue, queue), out,
                   VAM_QUEUE_STEP_BYTES};
  uint64_t read, write;
  int result;
  memset(out, 0, sizeof(*out));
  result = pointers(&s, &read, &write);
  if (result == 0) result = CONSUMED;
  while (result == CONSUMED && out->packets < max_packets) {
    result = is_aql(s.q)    ? aql(&s, &read, write)
             : is_sdma(s.q) ? sdma(&s, &read, write)
                            : pm4(&s, &read, write);
  }
  s.q->consumed += out->packets;
  out->fault = s.q->fault;
}
