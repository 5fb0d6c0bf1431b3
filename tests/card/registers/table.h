// SPDX-License-Identifier: MIT
// The one table of a chip's registers: byte offset, name, behaviour. What is not in it is not known to the
// card; it latches all the same, and is counted and logged by its number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace sluice::card {

struct Model;

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

class RegisterTable {
 public:
  RegisterTable() = default;
  // REQUIRES: rows do not overlap.
  explicit RegisterTable(std::vector<RegisterRow> rows);

  std::span<const RegisterRow> rows() const { return rows_; }
  // nullptr: the table does not have it.
  const RegisterRow* row(std::uint32_t byte) const;
  // "CP_HQD_ACTIVE", "VM_CONTEXT3_CNTL"; "?" for one that the table does not have.
  std::string name(std::uint32_t byte) const;

 private:
  struct Place {
    std::size_t row;
    std::uint32_t index;
  };

  std::vector<RegisterRow> rows_;
  std::unordered_map<std::uint32_t, Place> places_;
};

// Registers of one XCC, by their dword, as packets of its own rings name them (XCC_REG_RANGE_* in
// gfx_v9_4_3.c).
constexpr bool is_of_xcc(std::uint32_t byte) {
  const std::uint32_t dword = byte / 4;
  return (dword >= 0x2000 && dword < 0x3400) || (dword >= 0xa000 && dword < 0x10000);
}

// The table of a model with everything in it but its table: what all chips have, `own` rows, and those of
// its XCCs, hubs and SDMA engines. A row of an XCC is there once for each.
RegisterTable make_register_table(const Model& model, std::span<const RegisterRow> own);

}  // namespace sluice::card
