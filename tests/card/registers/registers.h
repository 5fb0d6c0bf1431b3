// SPDX-License-Identifier: MIT
// The card's registers by byte offset: what the table (table.h) says of each, and what parts of the card do
// at those that they attach to. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>

#include "registers/table.h"

namespace sluice::card {

class Registers {
 public:
  // Registers that keep what is written; a guest that writes everywhere fills no more memory than these take.
  static constexpr std::size_t kMostLatched = 1U << 16;

  using Read = std::function<std::uint32_t()>;
  using Write = std::function<void(std::uint32_t)>;

  // `vram_bytes`: what CONFIG_MEMSIZE tells.
  explicit Registers(std::uint64_t vram_bytes);

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

  // "CP_HQD_ACTIVE", or "?" for one that the table does not have.
  static std::string name(std::uint32_t byte);
  static bool known(std::uint32_t byte);
  // Of microcode: not worth a line of the trace.
  static bool is_port(std::uint32_t byte);

  // The register that an access of `byte` means: PCIE_DATA2 stands for another one.
  std::uint32_t target(std::uint32_t byte) const;

 private:
  struct Part {
    Read read;
    Write write;
  };

  std::uint64_t vram_bytes_;
  std::unordered_map<std::uint32_t, std::uint32_t> values_;
  std::unordered_map<std::uint32_t, Part> parts_;
};

}  // namespace sluice::card
