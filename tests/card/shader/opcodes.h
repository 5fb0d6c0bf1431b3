// SPDX-License-Identifier: MIT
// The tables of opcodes: one line an opcode, with what it computes. A table is found by encoding, a line by
// number.
//
// A line's function has the operands' types as its parameters, so that the line alone says what it reads: a
// U64 or a double is a pair of registers, a float takes the modifiers of floats.
//
// Facts: "AMD Instinct MI200 Instruction Set Architecture", chapter 12.
#pragma once

#include <array>
#include <span>

#include "shader/instruction.h"

namespace sluice::card::shader {

class Machine;

// Lines by their numbers.
template <class Line, std::size_t kNumbers>
class Table {
 public:
  explicit Table(std::span<const Line> lines) : lines_(lines) {
    for (const Line& line : lines) by_number_[line.op] = &line;
  }
  // Null where there is no such line.
  const Line* find(U32 op) const { return op < kNumbers ? by_number_[op] : nullptr; }
  std::span<const Line> lines() const { return lines_; }

 private:
  std::span<const Line> lines_;
  std::array<const Line*, kNumbers> by_number_{};
};

// ---- scalar ----

// One scalar instruction at work.
struct Scalar {
  Machine& machine;
  Wave& wave;
  const Instruction& in;
  U64 a = 0, b = 0;  // sources
  U64 d = 0;         // result
  U64 next = 0;      // the program counter after it
};

struct ScalarLine {
  U32 op;
  const char* name;
  // Of a source or the result: 0 none, 1 one register, 2 a pair.
  U8 a, b, d;
  void (*run)(Scalar&);
};

namespace sopk {
constexpr U32 kSetregImm = 20;
}

const Table<ScalarLine, 256>& sop1();
const Table<ScalarLine, 128>& sop2();
const Table<ScalarLine, 32>& sopk_table();
const Table<ScalarLine, 128>& sopc();
const Table<ScalarLine, 128>& sopp();

// ---- vector arithmetic ----

// What a lane's operand is: its width, and which modifiers it takes.
enum class Kind : U8 { kNone, kB16, kF16, kB32, kF32, kB64, kF64 };

// One lane of a vector instruction at work.
struct Lane {
  unsigned lane = 0;
  std::array<U64, 3> s{};  // sources, with their modifiers
  U64 old = 0;             // the destination before
  U64 d = 0;
  bool carry_in = false;
  bool carry_out = false;
  bool clamp = false;      // of integers: to what the result's type holds
  bool high_part = false;  // VOP3P: of the two at once, this is the second
};

struct VectorLine {
  U32 op;  // of VOP3
  const char* name;
  Kind d;
  std::array<Kind, 3> s;
  U8 flags;
  void (*run)(Lane&);
};

// Flags of a VectorLine.
namespace vector {
constexpr U8 kCarryOut = 1;        // to VCC, or the scalar pair of VOP3B
constexpr U8 kCarryIn = 2;         // from VCC, or the third source of VOP3
constexpr U8 kReadsOld = 4;        // the destination is a source
constexpr U8 kScalarResult = 8;    // v_readfirstlane_b32, v_readlane_b32
constexpr U8 kSwap = 16;           // v_swap_b32
constexpr U8 kLiteralThird = 32;   // v_madak, v_fmaak: the literal is added
constexpr U8 kLiteralSecond = 64;  // v_madmk, v_fmamk: the literal is multiplied
constexpr U8 kAccumulators = 128;  // v_accvgpr_mov_b32: both operands are AccVGPRs
}  // namespace vector

const Table<VectorLine, 1024>& vector_table();
// v_madmk_f32 and its like, which have a dword of their own.
bool is_mad_with_literal(U32 op);

// VOPC: the name without cmp or cmpx, and the answer. `s[1]` is a mask for the class tests.
struct CompareLine {
  U32 op;  // of v_cmp; v_cmpx is 16 more, or 1 more for the class tests
  const char* name;
  Kind a, b;
  bool (*run)(const Lane&);
};
// Both forms. `*writes_exec`: it is a v_cmpx.
const CompareLine* find_compare(U32 op, bool* writes_exec);

// VOP3P: packed halves or pairs, and the moves of AccVGPRs. `s` have what op_sel picked.
struct PackedLine {
  U32 op;
  const char* name;
  U8 sources;
  // Of 16-bit halves, of 32-bit halves, or a whole dword computed from both halves of each source.
  enum class Shape : U8 { kHalves, kPairs, kWhole, kReadAccumulator, kWriteAccumulator } shape;
  Kind kind;  // of each part, for modifiers
  void (*run)(Lane&);
};
const Table<PackedLine, 128>& packed_table();

// Of VOP3P, too: a product of matrices by all lanes of a wave.
struct MatrixLine {
  U32 op;
  const char* name;
  U8 rows;                                               // of A, and columns of B
  U8 depth;                                              // columns of A, rows of B
  U8 blocks;                                             // products at once
  enum class Part : U8 { kF32, kF16, kBf16, kI8 } part;  // elements of A and B; D has dwords
};
const Table<MatrixLine, 128>& matrix_table();

// ---- memory ----

struct MemoryLine {
  enum class Action : U8 { kLoad, kStore, kAtomic };
  U32 op;
  const char* name;  // without "flat_", "buffer_" and the like
  Action action;
  U8 bytes;
  bool is_signed = false;  // a load of less than a dword
  // Halves: a load leaves the other half of the register, and a store takes the upper half.
  enum class Half : U8 { kWhole, kLow, kHigh } half = Half::kWhole;
  bool compares = false;  // an atomic with a second value, which follows the first in the registers
  // What an atomic leaves in memory.
  U64 (*change)(U64 old, U64 data, U64 compare) = nullptr;
};

// FLAT, GLOBAL, SCRATCH and MUBUF have the same numbers.
const Table<MemoryLine, 128>& memory_table();
// Scalar: of s_load_dword to s_buffer_store_dwordx4. Atomics have the lines of memory_table(), 64 or 128
// higher.
const MemoryLine* find_scalar_memory(U32 op);

struct LdsLine {
  enum class Action : U8 {
    kRead,
    kWrite,
    kAtomic,
    kRead2,
    kWrite2,
    kSwizzle,
    kPermute,
    kBackwardPermute,
    kNothing
  };
  U32 op;
  const char* name;
  Action action;
  U8 bytes;  // of one access
  bool is_signed = false;
  MemoryLine::Half half = MemoryLine::Half::kWhole;
  U8 stride = 1;         // of read2 and write2: offsets count so many elements
  bool returns = false;  // an atomic gives what was there before
  bool compares = false;
  U64 (*change)(U64 old, U64 data, U64 compare) = nullptr;
};
const Table<LdsLine, 256>& lds_table();

}  // namespace sluice::card::shader
