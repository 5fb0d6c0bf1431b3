// SPDX-License-Identifier: MIT
#include "registers/registers.h"

#include <utility>

#include "registers/names.h"

namespace sluice::card {

namespace {

struct Known {
  const RegisterRow* row;
  std::uint32_t index;
};

const std::unordered_map<std::uint32_t, Known>& by_byte() {
  static const auto map = [] {
    std::unordered_map<std::uint32_t, Known> all;
    for (const RegisterRow& row : register_table()) {
      for (std::uint32_t i = 0; i < row.count; ++i) all.emplace(row.byte + i * row.stride, Known{&row, i});
    }
    return all;
  }();
  return map;
}

const RegisterRow* row_of(std::uint32_t byte) {
  const auto found = by_byte().find(byte);
  return found == by_byte().end() ? nullptr : found->second.row;
}

}  // namespace

Registers::Registers(std::uint64_t vram_bytes) : vram_bytes_(vram_bytes) {
  reset();
}

void Registers::reset() {
  values_.clear();
  for (const auto& [byte, known] : by_byte()) {
    if (known.row->value != 0) values_[byte] = known.row->value;
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
  const RegisterRow* row = row_of(byte);
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

std::string Registers::name(std::uint32_t byte) {
  const auto found = by_byte().find(byte);
  return found == by_byte().end() ? "?" : register_name(*found->second.row, found->second.index);
}

bool Registers::known(std::uint32_t byte) {
  return row_of(byte) != nullptr;
}

bool Registers::is_port(std::uint32_t byte) {
  const RegisterRow* row = row_of(byte);
  return row != nullptr && row->behaviour == Behaviour::kPort;
}

}  // namespace sluice::card
