// SPDX-License-Identifier: MIT
// Runs the waves of a workgroup, an instruction at a time.
//
// Nothing is early and nothing is late: an access is over when its instruction is, so s_waitcnt has nothing
// to wait for. An opcode that is not in the tables stops the wave, and why() names it and its address.
#pragma once

#include <span>
#include <string>

#include "memory/fault.h"
#include "shader/instruction.h"
#include "shader/opcodes.h"
#include "shader/wave.h"

namespace sluice::card::shader {

// What waves reach outside of their group.
class Outside {
 public:
  Outside() = default;
  Outside(const Outside&) = delete;
  Outside& operator=(const Outside&) = delete;
  virtual ~Outside() = default;

  // Memory of the process at `address`: at least one and at most `length` bytes, up to the end of its page.
  // Empty where nothing is mapped for that access; who implements this keeps the fault. Eight aligned bytes
  // never cross a page. The span is valid until the guest or another engine runs.
  virtual std::span<std::byte> at(U64 address, std::size_t length, Access access) = 0;
  virtual U64 clock() = 0;  // 100 MHz
  // s_sendmsg MSG_INTERRUPT: `data` is M0.
  virtual void interrupt(U32 data) = 0;
};

// Of the process and its queue.
struct Surroundings {
  U64 tba = 0;  // the trap handler; 0: none
  U64 tma = 0;  // its memory
  // Where the apertures of flat addresses begin (SH_MEM_BASES): LDS, and scratch. Each is 4 GiB.
  U64 shared_base = U64{1} << 48;
  U64 private_base = U64{2} << 48;
  U32 doorbell = 0;  // of the queue, in dwords; trap handlers ask for it
  // gfx942: a wave begins with FLAT_SCRATCH set, and SCRATCH instructions say by a bit whether they have a
  // VGPR (SVE).
  bool presets_scratch = false;
};

class Machine {
 public:
  enum class Result : U8 {
    kDone,     // all waves ended
    kMore,     // the budget is used up
    kHalted,   // every wave that has not ended is halted, or waits at a barrier for one that is
    kStopped,  // an instruction that a wave cannot execute, or an access to memory that is not there: see
               // why()
  };

  // `outside` outlives this.
  Machine(Outside& outside, const Surroundings& surroundings)
      : outside_(outside), surroundings_(surroundings) {}

  // Executes at most `budget` instructions, and counts it down.
  Result run(Group& group, U64& budget);
  // One instruction. False: the wave cannot go on.
  bool step(Group& group, Wave& wave);

  const std::string& why() const { return why_; }
  U64 executed() const { return executed_; }
  Outside& outside() { return outside_; }
  const Surroundings& surroundings() const { return surroundings_; }

  // The wave goes on in the trap handler. `trap`: 0 for a context save. Where there is no handler it goes on
  // at `next`.
  void enter_trap(Wave& wave, U32 trap, U64 next) const;

  // ---- operands ----

  // A scalar source; `literal` is the instruction's second dword.
  U32 scalar(const Wave& wave, U32 code, U32 literal) const;
  U64 scalar_pair(const Wave& wave, U32 code, U32 literal) const;
  // Of a vector instruction: what an operand of this kind has in `lane`. A VGPR that does not exist reads as
  // 0.
  U64 source(const Wave& wave, U32 code, Kind kind, U32 literal, unsigned lane) const;
  static void store(Wave& wave, U32 vgpr, Kind kind, U64 value, unsigned lane);

  // ---- memory: false where it is not there ----

  bool read(U64 address, std::span<std::byte> out);
  bool write(U64 address, std::span<const std::byte> in);
  // Changes 4 or 8 bytes, atomically with the processors of the guest; `address` is rounded down to their
  // size.
  bool change(U64 address, unsigned bytes, U64 (*function)(U64, U64, U64), U64 data, U64 compare, U64* old);

  // s_getreg_b32 and s_setreg_b32: whole registers.
  U32 hardware_register(const Wave& wave, U32 id) const;
  static void hardware_register(Wave& wave, U32 id, U32 value);

  bool refuse(const Wave& wave, const std::string& what);  // sets why(); false

 private:
  bool fetch(Wave& wave, Instruction* instruction);
  bool execute(Group& group, Wave& wave, const Instruction& in);
  bool execute_scalar(Wave& wave, const Instruction& in);
  bool execute_scalar_memory(Wave& wave, const Instruction& in);
  bool execute_vector(Wave& wave, const Instruction& in);
  bool execute_compare(Wave& wave, const Instruction& in);
  bool execute_packed(Wave& wave, const Instruction& in);
  bool execute_matrix(Wave& wave, const Instruction& in, const MatrixLine& line);
  bool execute_lds(Group& group, Wave& wave, const Instruction& in);
  bool execute_flat(Group& group, Wave& wave, const Instruction& in);
  bool execute_buffer(Group& group, Wave& wave, const Instruction& in);

  Outside& outside_;
  Surroundings surroundings_;
  std::string why_;
  U64 executed_ = 0;
  const Group* group_ = nullptr;  // of the instruction at work
};

}  // namespace sluice::card::shader
