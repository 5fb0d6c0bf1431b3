// SPDX-License-Identifier: MIT
// The one table of registers: byte offset, name, behaviour. What is not in it is not known to the card; it
// latches all the same, and is counted and logged by its number.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace sluice::card {

enum class Behaviour : std::uint8_t {
  kLatch,  // reads what was written last; `value` until then
  kFixed,  // reads `value`, whatever is written
  kPart,   // a part of the card answers (Registers::attach)
  kPort,   // words of microcode: taken and forgotten, not traced
};

// `count` registers of one name, `stride` bytes apart; '#' in the name stands for the index.
struct RegisterRow {
  std::uint32_t byte;
  std::string name;
  Behaviour behaviour = Behaviour::kLatch;
  std::uint32_t value = 0;
  std::uint32_t count = 1;
  std::uint32_t stride = 4;
};

// Rows do not overlap.
std::span<const RegisterRow> register_table();

// "VM_CONTEXT3_CNTL" for the register `index` of a row.
std::string register_name(const RegisterRow& row, std::uint32_t index);

}  // namespace sluice::card
