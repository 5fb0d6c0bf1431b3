// SPDX-License-Identifier: MIT
// VOP3P: two halves of a register, or two registers, at once; and the moves between VGPRs and AccVGPRs.
#include <algorithm>
#include <cmath>

#include "shader/lane_function.h"
#include "shader/operands.h"

namespace sluice::card::shader {

namespace {

using Shape = PackedLine::Shape;

template <class F>
constexpr PackedLine packed(U32 op, const char* name, Shape shape, F /*function*/) {
  const auto kinds = Signature<F>::kinds();
  return {op, name, static_cast<U8>(Signature<F>::kOperands), shape, kinds[0], &run_lane<F>};
}

template <class F>
Half half(F function, Half a, Half b) {
  return to_half(function(to_float(a), to_float(b)));
}
U16 low16(U32 value) {
  return static_cast<U16>(value);
}
// The sum of products of the parts of two dwords.
template <class Part>
U32 dot(U32 a, U32 b, U32 sum, unsigned bits) {
  for (unsigned at = 0; at < 32; at += bits) {
    sum += static_cast<U32>(I32{static_cast<Part>(a >> at)} * I32{static_cast<Part>(b >> at)});
  }
  return sum;
}
float dot_halves(U32 a, U32 b, U32 sum) {
  const auto part = [](U32 value, unsigned at) { return to_float(Half{low16(value >> at)}); };
  return part(a, 0) * part(b, 0) + part(a, 16) * part(b, 16) + as_float(sum);
}

constexpr PackedLine kLines[] = {
    packed(0x00, "v_pk_mad_i16", Shape::kHalves, [](U16 a, U16 b, U16 c) { return low16(U32{a} * b + c); }),
    packed(0x01, "v_pk_mul_lo_u16", Shape::kHalves, [](U16 a, U16 b) { return low16(U32{a} * b); }),
    packed(0x02, "v_pk_add_i16", Shape::kHalves, [](U16 a, U16 b) { return low16(U32{a} + b); }),
    packed(0x03, "v_pk_sub_i16", Shape::kHalves, [](U16 a, U16 b) { return low16(U32{a} - b); }),
    packed(0x04, "v_pk_lshlrev_b16", Shape::kHalves, [](U16 a, U16 b) { return low16(U32{b} << (a & 15)); }),
    packed(0x05, "v_pk_lshrrev_b16", Shape::kHalves, [](U16 a, U16 b) { return low16(U32{b} >> (a & 15)); }),
    packed(0x06, "v_pk_ashrrev_i16", Shape::kHalves,
           [](U16 a, I16 b) { return low16(static_cast<U32>(I32{b} >> (a & 15))); }),
    packed(0x07, "v_pk_max_i16", Shape::kHalves, [](I16 a, I16 b) { return std::max(a, b); }),
    packed(0x08, "v_pk_min_i16", Shape::kHalves, [](I16 a, I16 b) { return std::min(a, b); }),
    packed(0x09, "v_pk_mad_u16", Shape::kHalves, [](U16 a, U16 b, U16 c) { return low16(U32{a} * b + c); }),
    packed(0x0a, "v_pk_add_u16", Shape::kHalves, [](U16 a, U16 b) { return low16(U32{a} + b); }),
    packed(0x0b, "v_pk_sub_u16", Shape::kHalves, [](U16 a, U16 b) { return low16(U32{a} - b); }),
    packed(0x0c, "v_pk_max_u16", Shape::kHalves, [](U16 a, U16 b) { return std::max(a, b); }),
    packed(0x0d, "v_pk_min_u16", Shape::kHalves, [](U16 a, U16 b) { return std::min(a, b); }),
    packed(0x0e, "v_pk_fma_f16", Shape::kHalves,
           [](Half a, Half b, Half c) { return to_half(std::fma(to_float(a), to_float(b), to_float(c))); }),
    packed(0x0f, "v_pk_add_f16", Shape::kHalves,
           [](Half a, Half b) { return half([](float x, float y) { return x + y; }, a, b); }),
    packed(0x10, "v_pk_mul_f16", Shape::kHalves,
           [](Half a, Half b) { return half([](float x, float y) { return x * y; }, a, b); }),
    packed(0x11, "v_pk_min_f16", Shape::kHalves,
           [](Half a, Half b) { return half([](float x, float y) { return std::fmin(x, y); }, a, b); }),
    packed(0x12, "v_pk_max_f16", Shape::kHalves,
           [](Half a, Half b) { return half([](float x, float y) { return std::fmax(x, y); }, a, b); }),
    packed(0x23, "v_dot2_f32_f16", Shape::kWhole, [](U32 a, U32 b, U32 c) { return dot_halves(a, b, c); }),
    packed(0x26, "v_dot2_i32_i16", Shape::kWhole, [](U32 a, U32 b, U32 c) { return dot<I16>(a, b, c, 16); }),
    packed(0x28, "v_dot4_i32_i8", Shape::kWhole,
           [](U32 a, U32 b, U32 c) { return dot<std::int8_t>(a, b, c, 8); }),
    packed(0x29, "v_dot4_u32_u8", Shape::kWhole, [](U32 a, U32 b, U32 c) { return dot<U8>(a, b, c, 8); }),
    packed(0x30, "v_pk_fma_f32", Shape::kPairs, [](float a, float b, float c) { return std::fma(a, b, c); }),
    packed(0x31, "v_pk_mul_f32", Shape::kPairs, [](float a, float b) { return a * b; }),
    packed(0x32, "v_pk_add_f32", Shape::kPairs, [](float a, float b) { return a + b; }),
    packed(0x33, "v_pk_mov_b32", Shape::kPairs, [](U32 a, U32 b, Lane& l) { return l.high_part ? b : a; }),
    packed(0x58, "v_accvgpr_read_b32", Shape::kReadAccumulator, [](U32 a) { return a; }),
    packed(0x59, "v_accvgpr_write_b32", Shape::kWriteAccumulator, [](U32 a) { return a; }),
};

struct PackedOperands {
  std::array<U32, 3> code;
  U32 high_low;   // op_sel: bit i: source i of the low part is its high half
  U32 high_high;  // op_sel_hi: the same of the high part
  U32 negate_low, negate_high;
};

PackedOperands packed_operands(const Instruction& in) {
  return {{in.bits2(0, 9), in.bits2(9, 9), in.bits2(18, 9)},
          in.bits(11, 3),
          in.bits2(27, 2) | in.bits(14, 1) << 2,
          in.bits2(29, 3),
          in.bits(8, 3)};
}

// Relative to M0, where the index mode says so: bit 0 of its mask the source, bit 3 the destination.
U32 index(const Wave& wave, unsigned which) {
  const bool on = (wave.mode & mode::kGprIndex) != 0 && (wave.m0() >> (12 + which) & 1) != 0;
  return on ? wave.m0() & 0xff : 0;
}

}  // namespace

const Table<PackedLine, 128>& packed_table() {
  static const Table<PackedLine, 128> table(kLines);
  return table;
}

bool Machine::execute_packed(Wave& wave, const Instruction& in) {
  const PackedLine* line = packed_table().find(in.op);
  if (line == nullptr) return refuse(wave, describe(in));
  const PackedOperands from = packed_operands(in);
  const U32 to = in.bits(0, 8);
  VectorOperands how;
  how.clamp = in.has(15);

  // The part of a source: of a pair its register, of a register its half. A constant is in both.
  const auto part = [&](unsigned i, bool high, unsigned lane) -> U64 {
    const U32 code = from.code[i];
    if (line->shape == Shape::kPairs) {
      const bool next = high && (code >= operand::kVector || code < sgpr::kCount);
      return source(wave, code + (next ? 1 : 0), Kind::kB32, 0, lane);
    }
    const U64 value = source(wave, code, line->kind, 0, lane);
    return high && (code >= operand::kVector || code < sgpr::kCount) ? value >> 16 : value & 0xffff;
  };
  const auto compute = [&](Lane& lane, bool high) {
    const U32 chosen = high ? from.high_high : from.high_low;
    const U32 negate = high ? from.negate_high : from.negate_low;
    for (unsigned i = 0; i < line->sources; ++i) {
      // v_pk_mov_b32 has one source for each part, and op_sel says which of its pair.
      const bool pick = (from.high_low >> i & 1) != 0;
      const bool half = line->op == 0x33 ? pick : (chosen >> i & 1) != 0;
      const U64 value = modify(part(i, half, lane.lane), line->kind, false, (negate >> i & 1) != 0);
      lane.s[i] = flush(value, line->kind, wave.mode, false);
    }
    lane.high_part = high;
    line->run(lane);
    return finish(lane.d, line->kind, how, wave.mode);
  };

  const U64 exec = wave.exec();
  const Rounding rounding(wave.mode, line->kind);
  Lane lane;
  for (lane.lane = 0; lane.lane < kLanes; ++lane.lane) {
    if ((exec >> lane.lane & 1) == 0) continue;
    switch (line->shape) {
      case Shape::kHalves: {
        const U64 low = compute(lane, false);
        store(wave, to, Kind::kB32, (low & 0xffff) | compute(lane, true) << 16, lane.lane);
        break;
      }
      case Shape::kPairs: {
        const U64 low = compute(lane, false);
        store(wave, to, Kind::kB64, (low & 0xffffffff) | compute(lane, true) << 32, lane.lane);
        break;
      }
      case Shape::kWhole:
        for (unsigned i = 0; i < 3; ++i) lane.s[i] = source(wave, from.code[i], Kind::kB32, 0, lane.lane);
        line->run(lane);
        store(wave, to, Kind::kB32, lane.d, lane.lane);
        break;
      case Shape::kReadAccumulator: {
        const U32 code = operand::kVector + kVectorRegisters + (from.code[0] & 0xff) + index(wave, 0);
        store(wave, to, Kind::kB32, source(wave, code, Kind::kB32, 0, lane.lane), lane.lane);
        break;
      }
      case Shape::kWriteAccumulator:
        store(wave, kVectorRegisters + to + index(wave, 3), Kind::kB32,
              source(wave, from.code[0], Kind::kB32, 0, lane.lane), lane.lane);
        break;
    }
  }
  return true;
}

}  // namespace sluice::card::shader
