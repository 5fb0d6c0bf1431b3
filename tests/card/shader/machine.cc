// SPDX-License-Identifier: MIT
#include "shader/machine.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>

#include "shader/half.h"

namespace sluice::card::shader {

namespace {

constexpr U64 kAddressMask = 0x0000'ffff'ffff'ffff;
constexpr unsigned kTurn = 256;  // instructions of a wave before the next has its turn

// The numbers that operand codes 240 to 248 stand for.
float inline_float(U32 code) {
  static constexpr float kValues[] = {0.5F, -0.5F, 1.0F, -1.0F, 2.0F, -2.0F, 4.0F, -4.0F, 0.15915494F};
  return kValues[code - 240];
}
bool is_inline_float(U32 code) {
  return code >= 240 && code <= 248;
}
bool is_integer(U32 code) {
  return code >= operand::kZero && code <= 208;
}
I32 inline_integer(U32 code) {
  return code <= 192 ? static_cast<I32>(code) - 128 : 192 - static_cast<I32>(code);
}
U64 inline_double(U32 code) {
  return code == 248 ? 0x3fc45f306dc9c882 : bits_of(static_cast<double>(inline_float(code)));
}

}  // namespace

bool Machine::refuse(const Wave& wave, const std::string& what) {
  char address[32];
  (void)std::snprintf(address, sizeof address, " at 0x%llx", static_cast<unsigned long long>(wave.pc));
  why_ = what + address;
  return false;
}

// ---- operands ----

U32 Machine::scalar(const Wave& wave, U32 code, U32 literal) const {
  if (code < sgpr::kCount) return wave.scalar[code];
  if (is_integer(code)) return static_cast<U32>(inline_integer(code));
  if (is_inline_float(code)) return bits_of(inline_float(code));
  switch (code) {
    case operand::kSharedBase:
    case operand::kPrivateBase:
      return static_cast<U32>(scalar_pair(wave, code, literal) >> 32);
    case operand::kSharedLimit:
    case operand::kPrivateLimit:
      return ~U32{0};
    case operand::kVccZero:
      return wave.vcc() == 0 ? 1 : 0;
    case operand::kExecZero:
      return wave.exec() == 0 ? 1 : 0;
    case operand::kScc:
      return wave.scc ? 1 : 0;
    case operand::kLiteral:
      return literal;
    default:
      return 0;
  }
}

U64 Machine::scalar_pair(const Wave& wave, U32 code, U32 literal) const {
  if (code < sgpr::kCount) return wave.pair(code);
  if (is_integer(code)) return static_cast<U64>(I64{inline_integer(code)});
  if (is_inline_float(code)) return inline_double(code);
  switch (code) {
    case operand::kSharedBase:
      return surroundings_.shared_base;
    case operand::kSharedLimit:
      return surroundings_.shared_base | 0xffffffff;
    case operand::kPrivateBase:
      return surroundings_.private_base;
    case operand::kPrivateLimit:
      return surroundings_.private_base | 0xffffffff;
    default:
      return scalar(wave, code, literal);
  }
}

U64 Machine::source(const Wave& wave, U32 code, Kind kind, U32 literal, unsigned lane) const {
  const bool wide = kind == Kind::kB64 || kind == Kind::kF64;
  if (code >= operand::kVector) {
    const std::size_t at = code - operand::kVector;
    if (at >= wave.vector.size()) return 0;
    const U64 low = wave.vector[at][lane];
    if (!wide) return low;
    return low | U64{at + 1 < wave.vector.size() ? wave.vector[at + 1][lane] : 0} << 32;
  }
  if (kind == Kind::kF64 && code == operand::kLiteral) return U64{literal} << 32;
  if (wide) return scalar_pair(wave, code, literal);
  if (kind == Kind::kF16 && is_inline_float(code)) return to_half(inline_float(code)).bits;
  return scalar(wave, code, literal);
}

void Machine::store(Wave& wave, U32 vgpr, Kind kind, U64 value, unsigned lane) {
  if (vgpr >= wave.vector.size()) return;
  wave.vector[vgpr][lane] = static_cast<U32>(value);
  const bool wide = kind == Kind::kB64 || kind == Kind::kF64;
  if (wide && vgpr + 1 < wave.vector.size()) wave.vector[vgpr + 1][lane] = static_cast<U32>(value >> 32);
}

// ---- memory ----

bool Machine::read(U64 address, std::span<std::byte> out) {
  while (!out.empty()) {
    const auto piece = outside_.at(address, out.size(), Access::kRead);
    if (piece.empty()) return false;
    if (out.size() == 4 && piece.size() == 4 && address % 4 == 0) {
      const U32 value = std::atomic_ref<U32>(*reinterpret_cast<U32*>(piece.data())).load();
      std::memcpy(out.data(), &value, 4);
    } else {
      std::memcpy(out.data(), piece.data(), piece.size());
    }
    address += piece.size();
    out = out.subspan(piece.size());
  }
  return true;
}

bool Machine::write(U64 address, std::span<const std::byte> in) {
  while (!in.empty()) {
    const auto piece = outside_.at(address, in.size(), Access::kWrite);
    if (piece.empty()) return false;
    if (in.size() == 4 && piece.size() == 4 && address % 4 == 0) {
      U32 value = 0;
      std::memcpy(&value, in.data(), 4);
      std::atomic_ref<U32>(*reinterpret_cast<U32*>(piece.data())).store(value);
    } else {
      std::memcpy(piece.data(), in.data(), piece.size());
    }
    address += piece.size();
    in = in.subspan(piece.size());
  }
  return true;
}

namespace {

template <class T>
U64 exchange(std::byte* place, U64 (*function)(U64, U64, U64), U64 data, U64 compare) {
  std::atomic_ref<T> word(*reinterpret_cast<T*>(place));
  T old = word.load();
  while (!word.compare_exchange_weak(old, static_cast<T>(function(old, data, compare)))) {
  }
  return old;
}

}  // namespace

bool Machine::change(U64 address, unsigned bytes, U64 (*function)(U64, U64, U64), U64 data, U64 compare,
                     U64* old) {
  const auto piece = outside_.at(address & ~U64{bytes - 1}, bytes, Access::kWrite);
  if (piece.size() < bytes) return false;
  *old = bytes == 8 ? exchange<U64>(piece.data(), function, data, compare)
                    : exchange<U32>(piece.data(), function, data, compare);
  return true;
}

// ---- hardware registers: s_getreg_b32 and s_setreg_b32 ----

namespace {

namespace hwreg {
constexpr U32 kMode = 1, kStatus = 2, kTrapsts = 3, kHwId = 4, kGprAlloc = 5, kLdsAlloc = 6, kIbSts = 7;
constexpr U32 kShMemBases = 15, kTbaLow = 16, kTbaHigh = 17, kTmaLow = 18, kTmaHigh = 19;
}  // namespace hwreg

}  // namespace

U32 Machine::hardware_register(const Wave& wave, U32 id) const {
  switch (id) {
    case hwreg::kMode:
      return wave.mode;
    case hwreg::kStatus:
      return wave.whole_status();
    case hwreg::kTrapsts:
      return wave.trapsts;
    case hwreg::kHwId:
      return wave.scratch_slot & 0xf;
    case hwreg::kGprAlloc:  // sizes less one, of 8 VGPRs, of 4 plain ones, of 16 SGPRs
      return (wave.vgprs / 8 - 1) << 6 | (wave.arch_vgprs / 4 - 1) << 12 | (wave.sgprs / 16 - 1) << 24;
    case hwreg::kLdsAlloc:  // of 256 bytes
      return static_cast<U32>(group_->lds.size() / 256) << 12;
    case hwreg::kIbSts:
      return wave.ib_sts;
    case hwreg::kShMemBases:
      return static_cast<U32>(surroundings_.private_base >> 48 | surroundings_.shared_base >> 48 << 16);
    case hwreg::kTbaLow:
      return static_cast<U32>(surroundings_.tba >> 8);
    case hwreg::kTbaHigh:
      return static_cast<U32>(surroundings_.tba >> 40);
    case hwreg::kTmaLow:
      return static_cast<U32>(surroundings_.tma >> 8);
    case hwreg::kTmaHigh:
      return static_cast<U32>(surroundings_.tma >> 40);
    default:
      return 0;
  }
}

void Machine::hardware_register(Wave& wave, U32 id, U32 value) {
  switch (id) {
    case hwreg::kMode:
      wave.mode = value;
      break;
    case hwreg::kStatus:
      // A program cannot make itself privileged.
      wave.status = wave.privileged() ? value : (value & ~status::kPrivileged);
      wave.scc = (value & status::kScc) != 0;
      break;
    case hwreg::kTrapsts:
      wave.trapsts = value;
      break;
    case hwreg::kIbSts:
      wave.ib_sts = value;
      break;
    default:
      break;
  }
}

// ---- running ----

void Machine::enter_trap(Wave& wave, U32 trap, U64 next) const {
  if (surroundings_.tba == 0) {
    wave.pc = next;
    return;
  }
  wave.scalar[sgpr::kTtmp] = static_cast<U32>(wave.pc);
  wave.scalar[sgpr::kTtmp + 1] = static_cast<U32>(wave.pc >> 32 & 0xffff) | trap << 16;
  wave.status |= status::kPrivileged;
  wave.pc = surroundings_.tba;
}

bool Machine::fetch(Wave& wave, Instruction* instruction) {
  U32 words[2] = {};
  wave.pc &= kAddressMask & ~U64{3};
  if (!read(wave.pc, std::as_writable_bytes(std::span(words, 1))))
    return refuse(wave, "no memory for the program");
  if (length_of(words[0]) == 2 && !read(wave.pc + 4, std::as_writable_bytes(std::span(words + 1, 1)))) {
    return refuse(wave, "no memory for the program");
  }
  *instruction = decode(words[0], words[1]);
  return true;
}

bool Machine::execute(Group& group, Wave& wave, const Instruction& in) {
  switch (in.encoding) {
    case Encoding::kSop1:
    case Encoding::kSop2:
    case Encoding::kSopk:
    case Encoding::kSopc:
    case Encoding::kSopp:
      return execute_scalar(wave, in);
    case Encoding::kSmem:
      return execute_scalar_memory(wave, in);
    case Encoding::kVop1:
    case Encoding::kVop2:
      return execute_vector(wave, in);
    case Encoding::kVopc:
      return execute_compare(wave, in);
    case Encoding::kVop3:
      return in.op < 0x100 ? execute_compare(wave, in) : execute_vector(wave, in);
    case Encoding::kVop3p:
      if (const MatrixLine* line = matrix_table().find(in.op)) return execute_matrix(wave, in, *line);
      return execute_packed(wave, in);
    case Encoding::kDs:
      return execute_lds(group, wave, in);
    case Encoding::kFlat:
      return execute_flat(group, wave, in);
    case Encoding::kMubuf:
      return execute_buffer(group, wave, in);
    case Encoding::kUnknown:
      break;
  }
  return refuse(wave, describe(in));
}

bool Machine::step(Group& group, Wave& wave) {
  Instruction in;
  if (!fetch(wave, &in)) return false;
  ++executed_;
  group_ = &group;
  const bool scalar = in.encoding <= Encoding::kSmem;
  if (scalar) return execute(group, wave, in);
  // S_SETVSKIP: vector instructions are jumped over.
  if ((wave.mode & mode::kVectorSkip) == 0 && !execute(group, wave, in)) return false;
  wave.pc += 4 * in.dwords;
  return true;
}

Machine::Result Machine::run(Group& group, U64& budget) {
  const auto runs = [](const Wave& wave) {
    const bool halted = (wave.status & status::kHalt) != 0 && !wave.privileged();
    return !wave.ended && !wave.at_barrier && !halted;
  };
  for (;;) {
    bool alive = false, at_barrier = true, went_on = false;
    for (const auto& wave : group.waves) {
      for (unsigned i = 0; i < kTurn && runs(*wave); ++i) {
        if (budget == 0) return Result::kMore;
        --budget;
        if (!step(group, *wave)) return Result::kStopped;
        went_on = true;
      }
      if (wave->ended) continue;
      alive = true;
      at_barrier &= wave->at_barrier;
    }
    if (!alive) return Result::kDone;
    if (at_barrier) {
      for (const auto& wave : group.waves) wave->at_barrier = false;
    } else if (!went_on) {
      return Result::kHalted;
    }
  }
}

}  // namespace sluice::card::shader
