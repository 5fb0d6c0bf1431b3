// SPDX-License-Identifier: MIT
#include "registers/registers.h"

#include <utility>

#include "registers/names.h"

namespace sluice::card {

Registers::Registers(const RegisterTable& table, std::uint64_t vram_bytes)
    : table_(table), vram_bytes_(vram_bytes) {
  reset();
}

void Registers::reset() {
  values_.clear();
  for (const RegisterRow& row : table_.rows()) {
    if (row.value == 0) continue;
    for (std::uint32_t i = 0; i < row.count; ++i) values_[row.byte + i * row.stride] = row.value;
  }
  values_[reg::kConfigMemsize] = static_cast<std::uint32_t>(vram_bytes_ >> 20);
}

std::uint32_t Registers::target(std::uint32_t byte) const {
  return byte == reg::kPcieData2 ? latched(reg::kPcieIndex2) & ~3U : byte;
}

std::uint32_t Registers::latched(std::uint32_t byte) const {
  const auto found = values_.find(byte);
  return found == values_.end() ? 0 : found->second;
}

std::uint32_t Registers::read(std::uint32_t byte) {
  byte = target(byte);
  const auto part = parts_.find(byte);
  if (part != parts_.end() && part->second.read) return part->second.read();
  return latched(byte);
}

void Registers::write(std::uint32_t byte, std::uint32_t value) {
  byte = target(byte);
  const auto part = parts_.find(byte);
  if (part != parts_.end() && part->second.write) return part->second.write(value);
  const RegisterRow* row = table_.row(byte);
  if (row != nullptr && (row->behaviour == Behaviour::kFixed || row->behaviour == Behaviour::kPort)) return;
  if (row == nullptr && values_.size() >= kMostLatched && !values_.contains(byte)) return;
  values_[byte] = value;
}

void Registers::attach(std::uint32_t byte, Read read, Write write) {
  parts_[byte] = Part{std::move(read), std::move(write)};
}

void Registers::attach(std::uint32_t byte, std::uint32_t* variable) {
  attach(
      byte, [variable] { return *variable; }, [variable](std::uint32_t value) { *variable = value; });
}

}  // namespace sluice::card
