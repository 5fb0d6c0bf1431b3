// SPDX-License-Identifier: MIT
// Packets of SDMA, PM4 and AQL in a ring and in indirect buffers: whatever they are, a step ends, memory that
// is not mapped is not touched, and what is refused stays refused.
#include "packets/packets.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "fuzz.h"
#include "tests/packets_kit.h"

namespace {

using vamdgpu::tests::FlatMemory;
using vamdgpu::tests::Owner;

sluice::fuzz::Goal an_sdma_ib("an SDMA ring with an IB, to its end");
sluice::fuzz::Goal a_pm4_ib("a PM4 ring with an IB, to its end");
sluice::fuzz::Goal a_signal("AQL packets that raise an event, to their end");

constexpr std::uint64_t kRing = FlatMemory::kBase, kRingBytes = 0x1000, kIb = FlatMemory::kBase + 0x5000,
                        kIbBytes = 0x1000;
constexpr int kSteps = 3000;  // a chain of IBs may go on for ever, a step at a time

enum Kind : std::uint8_t { kSdma, kPm4, kAql, kKinds };

// What is at the end of the ring and of the IB: how many bytes each has.
struct Header {
  std::uint8_t kind, privileged;
  std::uint16_t ring_bytes, ib_bytes, start;
};

pkt_result step(Kind kind, bool privileged, pkt_queue& q, FlatMemory& memory, Owner& owner) {
  const pkt_sdma_rules sdma{privileged ? PKT_SDMA_KERNEL : PKT_SDMA_USER, 1u << 20, 1, 0,
                            privileged ? 1u : 0u};
  const pkt_pm4_rules pm4{privileged ? std::uint32_t{PKT_PM4_SYNC | PKT_PM4_SHADERS} : 0};
  std::uint64_t budget = 1000;
  if (kind == kSdma) return pkt_sdma_step(&q, memory.c(), &owner.table, &sdma, &budget);
  if (kind == kPm4) return pkt_pm4_step(&q, memory.c(), &owner.table, &pm4, &budget);
  return pkt_aql_step(&q, memory.c(), &owner.table);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Header header;
  if (size < sizeof header) return 0;
  std::memcpy(&header, data, sizeof header);
  data += sizeof header;
  size -= sizeof header;
  const auto kind = static_cast<Kind>(header.kind % kKinds);
  const bool privileged = header.privileged % 2 != 0;

  FlatMemory memory;
  Owner owner(memory);
  if (!privileged) {
    owner.table.space = nullptr;
    owner.table.read_register = nullptr;
    owner.table.write_register = nullptr;
    owner.table.pm4 = nullptr;
  }
  pkt_queue q{};
  q.ring = kRing;
  q.ring_bytes = kRingBytes;
  const std::uint64_t unit = kind == kSdma ? 1 : kind == kPm4 ? 4 : 64;
  q.read = q.write = header.start;
  const std::size_t in_ring = std::min<std::size_t>({size, header.ring_bytes, kRingBytes});
  for (std::size_t i = 0; i < in_ring; ++i) *memory.at(kRing + (q.read * unit + i) % kRingBytes) = data[i];
  q.write += in_ring / unit;
  data += in_ring;
  size -= in_ring;
  const std::size_t in_ib = std::min<std::size_t>({size, header.ib_bytes, kIbBytes});
  if (in_ib != 0) std::memcpy(memory.at(kIb), data, in_ib);

  const std::uint64_t first = q.read;
  bool in_an_ib = false;
  pkt_result result = PKT_DONE;
  for (int i = 0; i < kSteps && (result == PKT_DONE || result == PKT_MORE); ++i) {
    const std::uint64_t before = q.read;
    result = step(kind, privileged, q, memory, owner);
    in_an_ib = in_an_ib || q.depth != 0;
    FUZZ_CHECK(q.depth <= PKT_IB_DEPTH);
    FUZZ_CHECK(q.read >= before && (q.read <= q.write || result == PKT_FAULT));
    FUZZ_CHECK(result != PKT_IDLE || q.read == q.write);
    FUZZ_CHECK(q.read == first || owner.reported == q.read);
    for (std::uint32_t depth = 0; depth < q.depth; ++depth) FUZZ_CHECK(q.ib[depth].at < q.ib[depth].dwords);
  }
  FUZZ_CHECK((result == PKT_FAULT) == (q.fault != PKT_NO_FAULT));
  FUZZ_CHECK(privileged || (owner.registers.empty() && owner.foreign.empty() && !in_an_ib));
  if (result == PKT_FAULT) {
    FUZZ_CHECK(q.fault_why != nullptr && *q.fault_why != '\0');
    const std::uint64_t at = q.read;
    const std::vector<std::uint8_t> bytes = memory.all();
    FUZZ_CHECK(step(kind, privileged, q, memory, owner) == PKT_FAULT);
    FUZZ_CHECK(q.read == at && memory.all() == bytes);
  }
  if (result != PKT_IDLE) return 0;
  if (kind == kSdma && in_an_ib) an_sdma_ib.reach();
  if (kind == kPm4 && in_an_ib) a_pm4_ib.reach();
  if (kind == kAql && !owner.interrupts.empty()) a_signal.reach();
  return 0;
}
