// SPDX-License-Identifier: MIT
// Executes DS: LDS, and exchanges between lanes.
#include <algorithm>

#include "shader/lane_memory.h"

namespace sluice::card::shader {

namespace {

using Action = LdsLine::Action;

// Fields of a DS instruction; registers are in the file of VGPRs or of AccVGPRs.
struct Fields {
  explicit Fields(const Instruction& in)
      : offset0(in.bits(0, 8)),
        offset1(in.bits(8, 8)),
        address(in.bits2(0, 8)),
        data0(file(in) + in.bits2(8, 8)),
        data1(file(in) + in.bits2(16, 8)),
        destination(file(in) + in.bits2(24, 8)) {}
  static U32 file(const Instruction& in) { return in.has(25) ? kVectorRegisters : 0; }

  U32 offset0, offset1;  // together a number of 16 bits, except for two accesses
  U32 address, data0, data1, destination;
};

// The lane whose value ds_swizzle_b32 gives to `lane`.
unsigned swizzled(U32 pattern, unsigned lane) {
  if ((pattern >> 15 & 1) != 0) return (lane & ~3U) | (pattern >> 2 * (lane & 3) & 3);
  const unsigned in_half = ((lane & pattern & 31) | (pattern >> 5 & 31)) ^ (pattern >> 10 & 31);
  return (lane & 32) | (in_half & 31);
}

// Of ds_swizzle, ds_permute and ds_bpermute: all lanes at once.
void exchange_lanes(Wave& wave, const LdsLine& line, const Fields& at) {
  const U32 offset = at.offset0 | at.offset1 << 8;
  const U64 exec = wave.exec();
  const VectorRegister from = wave.vector[line.action == Action::kSwizzle ? at.address : at.data0];
  const VectorRegister places = wave.vector[at.address];
  VectorRegister result{};
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if ((exec >> lane & 1) == 0) continue;
    const unsigned named = (places[lane] + offset) / 4 % kLanes;
    if (line.action == Action::kPermute) {
      result[named] = from[lane];
      continue;
    }
    const unsigned other = line.action == Action::kSwizzle ? swizzled(offset, lane) : named;
    result[lane] = (exec >> other & 1) != 0 ? from[other] : 0;
  }
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if ((exec >> lane & 1) != 0) Machine::store(wave, at.destination, Kind::kB32, result[lane], lane);
  }
}

// Of one lane.
class LaneAccess {
 public:
  LaneAccess(LaneMemory& memory, Wave& wave, const LdsLine& line, const Fields& at)
      : memory_(memory), wave_(wave), line_(line), at_(at) {}

  void run() {
    const U32 base = wave_.vector[at_.address][memory_.lane];
    const U32 step = U32{line_.bytes} * line_.stride;
    const U32 one = base + (at_.offset0 | at_.offset1 << 8);
    switch (line_.action) {
      case Action::kRead:
        read(one, at_.destination);
        break;
      case Action::kWrite:
        write(one, at_.data0);
        break;
      case Action::kRead2:
        read(base + at_.offset0 * step, at_.destination);
        read(base + at_.offset1 * step, at_.destination + line_.bytes / 4U);
        break;
      case Action::kWrite2:
        write(base + at_.offset0 * step, at_.data0);
        write(base + at_.offset1 * step, at_.data1);
        break;
      case Action::kAtomic:
        change(one);
        break;
      default:
        break;
    }
  }

 private:
  U32 word(U32 vgpr) const { return vgpr < wave_.vector.size() ? wave_.vector[vgpr][memory_.lane] : 0; }
  U64 value(U32 vgpr) const { return word(vgpr) | (line_.bytes == 8 ? U64{word(vgpr + 1)} << 32 : 0); }

  void read(U32 from, U32 to) {
    std::array<U32, 4> words{};
    (void)memory_.in_lds(from, words, line_.bytes, false);
    const MemoryLine how{0, "", MemoryLine::Action::kLoad, line_.bytes, line_.is_signed, line_.half};
    words[0] = loaded(how, words[0], word(to));
    for (U32 i = 0; i < std::max(1U, line_.bytes / 4U); ++i) {
      Machine::store(wave_, to + i, Kind::kB32, words[i], memory_.lane);
    }
  }
  void write(U32 to, U32 from) {
    std::array<U32, 4> words{};
    for (U32 i = 0; i < std::max(1U, line_.bytes / 4U); ++i) words[i] = word(from + i);
    if (line_.half == MemoryLine::Half::kHigh) words[0] >>= 16;
    (void)memory_.in_lds(to, words, line_.bytes, true);
  }
  void change(U32 where) {
    std::array<U32, 2> words{};
    (void)memory_.in_lds(where, words, line_.bytes, false);
    const U64 old = words[0] | (line_.bytes == 8 ? U64{words[1]} << 32 : 0);
    // A compare and store has what it compares with first, and what it stores second.
    const U64 changed = line_.compares ? line_.change(old, value(at_.data1), value(at_.data0))
                                       : line_.change(old, value(at_.data0), 0);
    words = {static_cast<U32>(changed), static_cast<U32>(changed >> 32)};
    (void)memory_.in_lds(where, words, line_.bytes, true);
    if (line_.returns) {
      Machine::store(wave_, at_.destination, line_.bytes == 8 ? Kind::kB64 : Kind::kB32, old, memory_.lane);
    }
  }

  LaneMemory& memory_;
  Wave& wave_;
  const LdsLine& line_;
  const Fields& at_;
};

}  // namespace

bool Machine::execute_lds(Group& group, Wave& wave, const Instruction& in) {
  const LdsLine* line = lds_table().find(in.op);
  if (line == nullptr) return refuse(wave, describe(in));
  if (line->action == Action::kNothing) return true;
  if (in.has(16)) return refuse(wave, describe(in) + " of GDS");
  const Fields fields(in);
  if (line->action >= Action::kSwizzle) {
    exchange_lanes(wave, *line, fields);
    return true;
  }
  LaneMemory memory(*this, group, wave);
  LaneAccess access(memory, wave, *line, fields);
  for (memory.lane = 0; memory.lane < kLanes; ++memory.lane) {
    if ((wave.exec() >> memory.lane & 1) != 0) access.run();
  }
  return true;
}

}  // namespace sluice::card::shader
