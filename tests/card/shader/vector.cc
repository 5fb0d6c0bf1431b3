// SPDX-License-Identifier: MIT
// Executes VOP1, VOP2 and VOP3, and the comparisons.
#include <bit>
#include <cmath>

#include "shader/half.h"
#include "shader/operands.h"

namespace sluice::card::shader {

namespace {

using vector::kAccumulators;
using vector::kCarryIn;
using vector::kCarryOut;
using vector::kReadsOld;
using vector::kScalarResult;
using vector::kSwap;

constexpr U32 kReadlane = 0x289, kWritelane = 0x28a;

// v_readfirstlane_b32, v_readlane_b32: to an SGPR.
void read_lane(const Machine& machine, Wave& wave, const VectorOperands& how, U32 op) {
  const U64 exec = wave.exec();
  unsigned lane = exec == 0 ? 0 : static_cast<unsigned>(std::countr_zero(exec));
  if (op == kReadlane) lane = machine.scalar(wave, how.code[1], how.literal) % kLanes;
  const bool moved = (wave.mode & mode::kGprIndex) != 0 && (wave.m0() >> 12 & 1) != 0;
  const U32 code = how.code[0] + (moved && how.code[0] >= operand::kVector ? wave.m0() & 0xff : 0);
  const auto value = static_cast<U32>(machine.source(wave, code, Kind::kB32, how.literal, lane));
  wave.scalar[how.destination % sgpr::kCount] = value;
}

void swap(Wave& wave, const VectorOperands& how) {
  const std::size_t other = how.code[0] - operand::kVector;
  if (how.code[0] < operand::kVector || other >= kVectorRegisters) return;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if ((wave.exec() >> lane & 1) != 0)
      std::swap(wave.vector[how.destination][lane], wave.vector[other][lane]);
  }
}

U32 destination_of(const Wave& wave, const VectorOperands& how, U8 flags) {
  U32 to = how.destination;
  if ((flags & kAccumulators) != 0) to += kVectorRegisters;
  if ((wave.mode & mode::kGprIndex) != 0 && (wave.m0() >> 15 & 1) != 0) to += wave.m0() & 0xff;
  return to;
}

}  // namespace

bool Machine::execute_vector(Wave& wave, const Instruction& in) {
  if (in.op == 0x140) return true;  // v_nop
  const VectorLine* line = vector_table().find(in.op);
  if (line == nullptr) return refuse(wave, describe(in));
  VectorOperands how = operands_of(in);
  if ((line->flags & kScalarResult) != 0) {
    read_lane(*this, wave, how, in.op);
    return true;
  }
  if ((line->flags & kSwap) != 0) {
    swap(wave, how);
    return true;
  }
  if (in.op == kWritelane) {
    const unsigned lane = scalar(wave, how.code[1], how.literal) % kLanes;
    wave.vector[how.destination][lane] = scalar(wave, how.code[0], how.literal);
    return true;
  }
  if ((line->flags & kAccumulators) != 0) how.code[0] += kVectorRegisters;
  const U32 to = destination_of(wave, how, line->flags);
  const U64 exec = wave.exec();
  const U64 carry_in = (line->flags & kCarryIn) != 0 ? scalar_pair(wave, how.carry_in, how.literal) : 0;
  U64 carry_out = 0;
  const Rounding rounding(wave.mode, line->d);
  Lane lane;
  lane.clamp = how.clamp;
  for (lane.lane = 0; lane.lane < kLanes; ++lane.lane) {
    if ((exec >> lane.lane & 1) == 0) continue;
    const auto values = sources_of(*this, wave, how, line->s, lane.lane);
    if (!values) continue;
    lane.s = *values;
    lane.old = source(wave, operand::kVector + to, line->d, 0, lane.lane);
    lane.carry_in = (carry_in >> lane.lane & 1) != 0;
    lane.carry_out = false;
    line->run(lane);
    const U64 result = finish(lane.d, line->d, how, wave.mode);
    const bool wide = line->d == Kind::kB64 || line->d == Kind::kF64;
    store(wave, to, line->d, wide ? result : place(result, line->d, how, static_cast<U32>(lane.old)),
          lane.lane);
    if (lane.carry_out) carry_out |= U64{1} << lane.lane;
  }
  if ((line->flags & kCarryOut) != 0) wave.pair(how.scalar_destination, carry_out);
  return true;
}

// ---- comparisons ----

bool Machine::execute_compare(Wave& wave, const Instruction& in) {
  bool writes_exec = false;
  const CompareLine* line = find_compare(in.op, &writes_exec);
  if (line == nullptr) return refuse(wave, describe(in));
  const VectorOperands how = operands_of(in);
  const U64 exec = wave.exec();
  U64 answers = 0;
  Lane lane;
  for (lane.lane = 0; lane.lane < kLanes; ++lane.lane) {
    if ((exec >> lane.lane & 1) == 0) continue;
    const auto values = sources_of(*this, wave, how, {line->a, line->b, Kind::kNone}, lane.lane);
    if (!values) continue;
    lane.s = *values;
    if (line->run(lane)) answers |= U64{1} << lane.lane;
  }
  wave.pair(how.scalar_destination, answers);
  if (writes_exec) wave.exec(answers);
  return true;
}

}  // namespace sluice::card::shader
