// SPDX-License-Identifier: MIT
// Memory as one lane reaches it: flat addresses, among which are LDS and the lane's scratch.
#pragma once

#include "shader/machine.h"

namespace sluice::card::shader {

class LaneMemory {
 public:
  LaneMemory(Machine& machine, Group& group, Wave& wave) : machine_(machine), group_(group), wave_(wave) {}

  // `bytes` of `words` from or to a flat address. False: nothing is mapped there.
  bool access(U64 address, std::span<U32> words, U32 bytes, bool writes);
  // LDS from byte `at` on: beyond its end reads give 0, and writes nothing. Always true.
  bool in_lds(U32 at, std::span<U32> words, U32 bytes, bool writes);

  unsigned lane = 0;

 private:
  bool in_scratch(U32 at, std::span<U32> words, U32 bytes, bool writes);

  Machine& machine_;
  Group& group_;
  Wave& wave_;
};

// What a register has after a load of `value`, extended and placed.
U32 loaded(const MemoryLine& line, U32 value, U32 old);

}  // namespace sluice::card::shader
