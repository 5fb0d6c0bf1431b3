/* SPDX-License-Identifier: MIT */
/* HSA's AQL packets (see packets.h). Layouts: HSA Platform System Architecture 1.2, 2.9 and 2.8; AMD's signal
 * and vendor packets: amd_hsa_signal.h, hsa_ven_amd_aqlprofile.h of ROCr. */
#include "step.h"

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

static int load(struct pkt_here* here, uint64_t va, void* to, uint64_t bytes) {
  if (!here->space->read(here->space->self, va, to, bytes)) return 0;
  pkt_stop(here, PKT_BAD_ADDRESS, va, "a signal cannot be read");
  return 1;
}

static int store(struct pkt_here* here, uint64_t va, const void* from, uint64_t bytes) {
  if (!here->space->write(here->space->self, va, from, bytes)) return 0;
  pkt_stop(here, PKT_BAD_ADDRESS, va, "an address of the packet cannot be written");
  return 1;
}

/* PKT_DONE: the dependencies of a barrier are met. */
static enum pkt_result signals_met(struct pkt_here* here, const struct aql_packet* packet, int all) {
  int named = 0, met = 0;
  for (int i = 0; i < BARRIER_SIGNALS; ++i) {
    uint64_t value;
    if (!packet->body[i]) continue;
    if (load(here, packet->body[i] + SIGNAL_VALUE, &value, 8)) return PKT_FAULT;
    named++;
    met += value == 0;
  }
  return (all ? met == named : met || !named) ? PKT_DONE : PKT_WAITS;
}

static enum pkt_result barrier_value(struct pkt_here* here, const struct aql_packet* packet) {
  uint64_t value;
  int64_t have, want = (int64_t)packet->body[1];
  int met;
  /* HIP writes one without a signal as a plain barrier. */
  if (!packet->body[0]) return PKT_DONE;
  if (load(here, packet->body[0] + SIGNAL_VALUE, &value, 8)) return PKT_FAULT;
  have = (int64_t)(value & packet->body[2]);
  switch ((uint32_t)packet->body[3]) {
    case 0:
      met = have == want;
      break;
    case 1:
      met = have != want;
      break;
    case 2:
      met = have < want;
      break;
    case 3:
      met = have >= want;
      break;
    default:
      return pkt_stop(here, PKT_BAD_PACKET, 0, "barrier with an unknown condition");
  }
  return met ? PKT_DONE : PKT_WAITS;
}

static enum pkt_result ready(struct pkt_here* here, const struct aql_packet* packet) {
  switch (packet->header & 0xff) {
    case AQL_INVALID:
      return PKT_WAITS;
    case AQL_DISPATCH:
      if (!here->owner->dispatch) return PKT_DONE;
      return here->owner->dispatch(here->owner->self, here->q, packet, here->base + here->at);
    case AQL_BARRIER_AND:
    case AQL_BARRIER_OR:
      return signals_met(here, packet, (packet->header & 0xff) == AQL_BARRIER_AND);
    case AQL_VENDOR:
      if (packet->vendor == VENDOR_PM4_IB) return PKT_DONE;
      if (packet->vendor == VENDOR_BARRIER_VALUE) return barrier_value(here, packet);
      return pkt_stop(here, PKT_BAD_PACKET, 0, "vendor packet of an unknown format");
    default:
      return pkt_stop(here, PKT_BAD_PACKET, 0, "unknown packet");
  }
}

/* The completion signal. `*event`: the id that its mailbox was given. 0 or nonzero. */
static int complete(struct pkt_here* here, uint64_t signal, int* told, uint64_t* event) {
  uint64_t mailbox;
  if (here->space->add64(here->space->self, signal + SIGNAL_VALUE, ~(uint64_t)0)) {
    pkt_stop(here, PKT_BAD_ADDRESS, signal, "the completion signal cannot be decremented");
    return 1;
  }
  if (load(here, signal + SIGNAL_MAILBOX, &mailbox, 8)) return 1;
  if (!mailbox) return 0;
  if (load(here, signal + SIGNAL_EVENT, event, 4) || store(here, mailbox, event, 8)) return 1;
  *told = 1;
  return 0;
}

enum pkt_result pkt_aql_step(struct pkt_queue* q, const struct pkt_space* space,
                             const struct pkt_owner* owner) {
  static const uint16_t invalid = AQL_INVALID;
  struct aql_packet packet;
  struct pkt_here here;
  uint64_t event = 0;
  int told = 0;
  enum pkt_result result = pkt_find(q, space, owner, AQL_BYTES, &here);
  if (result != PKT_DONE) return result;
  if (space->read(space->self, here.base + here.at, &packet, AQL_BYTES))
    return pkt_stop(&here, PKT_BAD_ADDRESS, here.base + here.at, "the packet cannot be read");
  q->fault_header = packet.header;
  result = ready(&here, &packet);
  if (result != PKT_DONE) return result;
  if (packet.completion % 8 ||
      (packet.completion && space->probe(space->self, packet.completion + SIGNAL_VALUE, 8, 1)))
    return pkt_stop(&here, PKT_BAD_ADDRESS, packet.completion, "the completion signal is not mapped");
  if (store(&here, here.base + here.at, &invalid, sizeof(invalid))) return PKT_FAULT;
  result = pkt_go_on(&here, AQL_BYTES / 4, 0, 0);
  if (result != PKT_DONE || !packet.completion) return result;
  if (complete(&here, packet.completion, &told, &event)) return PKT_FAULT;
  if (told && owner->interrupt && owner->interrupt(owner->self, q, (uint32_t)event))
    return pkt_stop(&here, PKT_REFUSED, 0, "the interrupt was refused");
  return PKT_DONE;
}
