// SPDX-License-Identifier: MIT
// The card's registers by byte offset: what the table (table.h) says of each, and what parts of the card do
// at those that they attach to. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <utility>

#include "registers/table.h"

namespace sluice::card {

class Registers {
 public:
  // Registers that keep what is written; a guest that writes everywhere fills no more memory than these take.
  static constexpr std::size_t kMostLatched = 1U << 16;

  using Read = std::function<std::uint32_t()>;
  using Write = std::function<void(std::uint32_t)>;

  // `table` outlives this. `vram_bytes`: what CONFIG_MEMSIZE tells.
  Registers(const RegisterTable& table, std::uint64_t vram_bytes);

  std::uint32_t read(std::uint32_t byte);
  void write(std::uint32_t byte, std::uint32_t value);

  // From now on `read` and `write` answer for the register. One that is not given: as if latched.
  // REQUIRES: the table says kPart of it.
  void attach(std::uint32_t byte, Read read, Write write);
  // It is a variable of somebody, who outlives this. REQUIRES: as attach().
  void attach(std::uint32_t byte, std::uint32_t* variable);

  // The latched value, without any behaviour.
  std::uint32_t latched(std::uint32_t byte) const;
  void latch(std::uint32_t byte, std::uint32_t value) { values_[byte] = value; }

  // All values as after power on. Attached parts reset themselves.
  void reset();

  const RegisterTable& table() const { return table_; }

  // The register that an access of `byte` means: PCIE_DATA2 stands for another one.
  std::uint32_t target(std::uint32_t byte) const;

 private:
  struct Part {
    Read read;
    Write write;
  };

  const RegisterTable& table_;
  std::uint64_t vram_bytes_;
  std::unordered_map<std::uint32_t, std::uint32_t> values_;
  std::unordered_map<std::uint32_t, Part> parts_;
};

// The registers of one XCC by the byte offsets that they have in the first one.
class RegisterBank {
 public:
  // `registers` outlive this. `base`: XccModel::registers.
  explicit RegisterBank(Registers& registers, std::uint32_t base = 0) : registers_(registers), base_(base) {}

  void attach(std::uint32_t byte, Registers::Read read, Registers::Write write) {
    registers_.attach(base_ + byte, std::move(read), std::move(write));
  }
  std::uint32_t latched(std::uint32_t byte) const { return registers_.latched(base_ + byte); }
  void latch(std::uint32_t byte, std::uint32_t value) { registers_.latch(base_ + byte, value); }

 private:
  Registers& registers_;
  std::uint32_t base_;
};

}  // namespace sluice::card
