// SPDX-License-Identifier: MIT
#include "models/discovery.h"

namespace sluice::card {

namespace {

constexpr std::uint32_t kBinarySignature = 0x28211407;
constexpr std::uint32_t kIpSignature = 0x53445049;       // "IPDS"
constexpr std::uint32_t kHarvestSignature = 0x56524148;  // "HARV"
constexpr std::uint32_t kComputeId = 0x4347;             // "GC"
constexpr unsigned kTables = 6;
constexpr unsigned kDies = 16;       // room in the IP table's header
constexpr unsigned kHarvested = 32;  // entries of the harvest table

// Places in the binary's header.
constexpr std::size_t kBinaryChecksum = 8, kBinarySize = 10, kTableList = 12;

class Writer {
 public:
  void put8(std::uint32_t value) { bytes_.push_back(static_cast<std::byte>(value)); }
  void put16(std::uint32_t value) {
    put8(value & 0xff);
    put8(value >> 8 & 0xff);
  }
  void put32(std::uint32_t value) {
    put16(value & 0xffff);
    put16(value >> 16);
  }
  void zeros(std::size_t count) { bytes_.resize(bytes_.size() + count); }
  void set16(std::size_t at, std::size_t value) {
    bytes_.at(at) = static_cast<std::byte>(value);
    bytes_.at(at + 1) = static_cast<std::byte>(value >> 8);
  }
  std::size_t size() const { return bytes_.size(); }
  // The sum of all bytes from `from` on.
  std::uint16_t sum(std::size_t from) const {
    std::uint16_t sum = 0;
    for (std::size_t at = from; at < bytes_.size(); ++at) {
      sum = static_cast<std::uint16_t>(sum + static_cast<std::uint8_t>(bytes_[at]));
    }
    return sum;
  }
  // What was written since `from` is the table `index`.
  void enter_table(unsigned index, std::size_t from) {
    const std::size_t entry = kTableList + std::size_t{8} * index;
    set16(entry, from);
    set16(entry + 2, sum(from));
    set16(entry + 4, size() - from);
  }
  std::vector<std::byte> take() && { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// ip_discovery_header, and one die with all blocks.
void put_blocks(Writer& writer, std::span<const IpBlock> blocks) {
  constexpr std::uint32_t kVersion = 4;
  const std::size_t from = writer.size();
  writer.put32(kIpSignature);
  writer.put16(kVersion);
  const std::size_t size_at = writer.size();
  writer.put16(0);
  writer.put32(0);  // id
  writer.put16(1);  // dies
  const std::size_t die_at = writer.size();
  writer.zeros(std::size_t{4} * kDies);
  writer.put16(0);  // bases have 32 bits
  writer.set16(die_at + 2, writer.size());
  writer.put16(0);  // the die's number
  writer.put16(static_cast<std::uint32_t>(blocks.size()));
  for (const IpBlock& block : blocks) {
    writer.put16(block.id);
    writer.put8(block.instance);
    writer.put8(static_cast<std::uint32_t>(block.bases.size()));
    writer.put8(block.major);
    writer.put8(block.minor);
    writer.put8(block.revision);
    writer.put8(0);  // variant
    for (const std::uint32_t base : block.bases) writer.put32(base);
  }
  writer.set16(size_at, writer.size() - from);
  writer.enter_table(0, from);
}

// gc_info of version 2.1.
void put_compute(Writer& writer, const ComputeUnits& units) {
  const std::size_t from = writer.size();
  const std::uint32_t words[] = {
      units.engines,
      units.units_of_engine,
      1,  // arrays of an engine
      units.backends_of_engine,
      units.texture_caches,
      256,   // registers
      32,    // threads of geometry
      32,    // depth of their table
      1792,  // depth of the primitive buffer
      0,     // parameter cache
      1,     // double LDS buffer
      64,    // lanes of a wave
      8,     // waves of a SIMD
      32,    // scratch slots of a unit
      64,    // KiB of LDS
      1,
      4,  // scan converters of an engine, packers of one
      units.units_of_engine,
      32,  // KiB of the first data cache
      16,  // interfaces to memory
      2,   // units that share caches of instructions and scalars
      64,
      16,
      4096,  // KiB of those, and of the second data cache
  };
  writer.put32(kComputeId);
  writer.put16(2);
  writer.put16(1);
  writer.put32(static_cast<std::uint32_t>(12 + sizeof words));
  for (const std::uint32_t word : words) writer.put32(word);
  writer.enter_table(1, from);
}

// Nothing is harvested.
void put_harvest(Writer& writer) {
  const std::size_t from = writer.size();
  writer.put32(kHarvestSignature);
  writer.put32(0);
  writer.zeros(std::size_t{4} * kHarvested);
  writer.enter_table(2, from);
}

}  // namespace

std::vector<std::byte> make_discovery_table(std::span<const IpBlock> blocks, const ComputeUnits& units) {
  Writer writer;
  writer.put32(kBinarySignature);
  writer.put16(1);  // version
  writer.put16(0);
  writer.zeros(4);  // sum and size
  writer.zeros(std::size_t{8} * kTables);
  put_blocks(writer, blocks);
  put_compute(writer, units);
  put_harvest(writer);
  writer.set16(kBinarySize, writer.size());
  writer.set16(kBinaryChecksum, writer.sum(kBinarySize));
  return std::move(writer).take();
}

}  // namespace sluice::card
