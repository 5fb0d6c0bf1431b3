// SPDX-License-Identifier: MIT
// Executes SMEM, FLAT (with GLOBAL and SCRATCH) and MUBUF.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "shader/lane_memory.h"

namespace sluice::card::shader {

namespace {

using Action = MemoryLine::Action;
using Part = MemoryLine::Half;

constexpr U64 kAddressMask = 0x0000'ffff'ffff'ffff;

std::string no_memory(const Instruction& in, U64 address) {
  char text[32];
  (void)std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address));
  return describe(in) + ": no memory at " + text;
}

U64 sign_extended(U64 value, unsigned bits) {
  const U64 sign = U64{1} << (bits - 1);
  return (value ^ sign) - sign;
}

}  // namespace

// ---- values in VGPRs ----

U32 loaded(const MemoryLine& line, U32 value, U32 old) {
  if (line.is_signed) {
    value = line.bytes == 1 ? static_cast<U32>(static_cast<std::int8_t>(value))
                            : static_cast<U32>(static_cast<I16>(value));
  }
  if (line.half == Part::kLow) return (old & 0xffff0000) | (value & 0xffff);
  if (line.half == Part::kHigh) return (old & 0xffff) | value << 16;
  return value;
}

bool LaneMemory::access(U64 address, std::span<U32> words, U32 bytes, bool writes) {
  if (address >> 32 == machine_.surroundings().shared_base >> 32) {
    return in_lds(static_cast<U32>(address), words, bytes, writes);
  }
  if (address >> 32 == machine_.surroundings().private_base >> 32) {
    return in_scratch(static_cast<U32>(address), words, bytes, writes);
  }
  const auto all = std::as_writable_bytes(words).first(bytes);
  return writes ? machine_.write(address & kAddressMask, all) : machine_.read(address & kAddressMask, all);
}

bool LaneMemory::in_lds(U32 at, std::span<U32> words, U32 bytes, bool writes) {
  const auto all = std::as_writable_bytes(words).first(bytes);
  const bool inside = U64{at} + bytes <= group_.lds.size();
  if (!writes) {
    if (inside) {
      std::memcpy(all.data(), group_.lds.data() + at, bytes);
    } else {
      std::fill(all.begin(), all.end(), std::byte{0});
    }
  } else if (inside) {
    std::memcpy(group_.lds.data() + at, all.data(), bytes);
  }
  return true;
}

// A lane's scratch is a dword of every 64.
bool LaneMemory::in_scratch(U32 at, std::span<U32> words, U32 bytes, bool writes) {
  const U64 base = wave_.pair(sgpr::kFlatScratch);
  auto all = std::as_writable_bytes(words).first(bytes);
  while (!all.empty()) {
    const U64 address = (base + U64{at / 4} * kLanes * 4 + lane * 4 + at % 4) & kAddressMask;
    const auto piece = all.first(std::min<std::size_t>(all.size(), 4 - at % 4));
    if (!(writes ? machine_.write(address, piece) : machine_.read(address, piece))) return false;
    at += static_cast<U32>(piece.size());
    all = all.subspan(piece.size());
  }
  return true;
}

namespace {

// Registers of a vector memory instruction.
struct Registers {
  U32 data, destination;
  bool returns;  // of an atomic
};

U32 word_of(const Wave& wave, U32 at, unsigned lane) {
  return at < wave.vector.size() ? wave.vector[at][lane] : 0;
}

// One lane. False: no memory.
bool transfer(LaneMemory& memory, Machine& machine, Wave& wave, const MemoryLine& line,
              const Registers& registers, U64 address) {
  std::array<U32, 4> words{};
  const unsigned lane = memory.lane;
  const unsigned count = std::max(1, line.bytes / 4);
  switch (line.action) {
    case Action::kLoad: {
      if (!memory.access(address, words, line.bytes, false)) return false;
      for (unsigned i = 0; i < count; ++i) {
        const U32 to = registers.destination + i;
        Machine::store(wave, to, Kind::kB32,
                       i == 0 ? loaded(line, words[0], word_of(wave, to, lane)) : words[i], lane);
      }
      return true;
    }
    case Action::kStore:
      for (unsigned i = 0; i < count; ++i) words[i] = word_of(wave, registers.data + i, lane);
      if (line.half == Part::kHigh) words[0] >>= 16;
      return memory.access(address, words, line.bytes, true);
    case Action::kAtomic:
      break;
  }
  const bool wide = line.bytes == 8;
  const auto value = [&](U32 at) {
    return word_of(wave, at, lane) | (wide ? U64{word_of(wave, at + 1, lane)} << 32 : 0);
  };
  const U64 data = value(registers.data);
  const U64 compare = line.compares ? value(registers.data + (wide ? 2 : 1)) : 0;
  U64 old = 0;
  if (address >> 32 == machine.surroundings().shared_base >> 32) {
    (void)memory.access(address, words, line.bytes, false);
    old = words[0] | (wide ? U64{words[1]} << 32 : 0);
    const U64 changed = line.change(old, data, compare);
    words = {static_cast<U32>(changed), static_cast<U32>(changed >> 32)};
    (void)memory.access(address, words, line.bytes, true);
  } else if (!machine.change(address & kAddressMask, line.bytes, line.change, data, compare, &old)) {
    return false;
  }
  if (registers.returns)
    Machine::store(wave, registers.destination, wide ? Kind::kB64 : Kind::kB32, old, lane);
  return true;
}

}  // namespace

// ---- FLAT, GLOBAL, SCRATCH ----

bool Machine::execute_flat(Group& group, Wave& wave, const Instruction& in) {
  constexpr U32 kScratch = 1, kGlobal = 2, kNoScalar = 0x7f, kScratchVector = 13;
  const MemoryLine* line = memory_table().find(in.op);
  if (line == nullptr) return refuse(wave, describe(in));
  const U32 segment = in.bits(14, 2);
  const U64 offset = segment == 0 ? U64{in.bits(0, 12)} : sign_extended(in.bits(0, 13), 13);
  const U32 address_at = in.bits2(0, 8), scalar_at = in.bits2(16, 7);
  const U32 file = in.has2(23) ? kVectorRegisters : 0;  // AccVGPRs
  const Registers registers{file + in.bits2(8, 8), file + in.bits2(24, 8), in.has(16)};

  LaneMemory memory(*this, group, wave);
  for (memory.lane = 0; memory.lane < kLanes; ++memory.lane) {
    if ((wave.exec() >> memory.lane & 1) == 0) continue;
    U64 address = 0;
    if (segment == kScratch) {
      const bool by_scalar = scalar_at != kNoScalar;
      const bool by_vector = surroundings_.presets_scratch ? in.has(kScratchVector) : !by_scalar;
      const U32 at =
          (by_scalar ? wave.scalar[scalar_at] : 0) + (by_vector ? word_of(wave, address_at, memory.lane) : 0);
      address = surroundings_.private_base | static_cast<U32>(at + offset);
    } else if (segment == kGlobal && scalar_at != kNoScalar) {
      address = wave.pair(scalar_at) + word_of(wave, address_at, memory.lane) + offset;
    } else {
      address = source(wave, operand::kVector + address_at, Kind::kB64, 0, memory.lane) + offset;
    }
    if (!transfer(memory, *this, wave, *line, registers, address))
      return refuse(wave, no_memory(in, address));
  }
  return true;
}

// ---- MUBUF ----

namespace {

// A buffer resource, as four SGPRs have it (ISA, 8.1.8).
struct Buffer {
  U64 base;
  U32 stride, records, index_stride;
  bool swizzled, adds_lane;
};

Buffer buffer_of(const Wave& wave, U32 at) {
  const U32 one = wave.scalar[(at + 1) & 127], three = wave.scalar[(at + 3) & 127];
  Buffer buffer{wave.pair(at) & kAddressMask, one >> 16 & 0x3fff, wave.scalar[(at + 2) & 127],
                U32{8} << (three >> 21 & 3),  one >> 31 != 0,     (three >> 23 & 1) != 0};
  if (buffer.adds_lane) buffer.stride |= (three >> 15 & 0xf) << 14;
  return buffer;
}

// Of the dword `offset` bytes into element `index`.
U64 place_in(const Buffer& buffer, U64 index, U64 offset) {
  if (!buffer.swizzled) return index * buffer.stride + offset;
  const U64 row = index / buffer.index_stride, column = index % buffer.index_stride;
  return (row * buffer.stride + (offset & ~U64{3})) * buffer.index_stride + column * 4 + offset % 4;
}

}  // namespace

bool Machine::execute_buffer(Group& group, Wave& wave, const Instruction& in) {
  const MemoryLine* line = memory_table().find(in.op);
  if (line == nullptr) return refuse(wave, describe(in));
  const bool by_offset = in.has(12), by_index = in.has(13), to_lds = in.has(16);
  const U32 vgpr = in.bits2(0, 8);
  const U32 file = in.has2(23) ? kVectorRegisters : 0;
  const Buffer buffer = buffer_of(wave, in.bits2(16, 5) * 4);
  const U32 scalar_offset = scalar(wave, in.bits2(24, 8), 0);

  LaneMemory memory(*this, group, wave);
  for (memory.lane = 0; memory.lane < kLanes; ++memory.lane) {
    if ((wave.exec() >> memory.lane & 1) == 0) continue;
    U64 index = by_index ? word_of(wave, vgpr, memory.lane) : 0;
    if (buffer.adds_lane) index += memory.lane;
    U64 offset = in.bits(0, 12);
    if (by_offset) offset += word_of(wave, vgpr + (by_index ? 1 : 0), memory.lane);
    // Beyond the end loads give 0, and stores nothing.
    if (buffer.stride == 0 && offset + line->bytes > buffer.records) {
      if (line->action == Action::kLoad && !to_lds) {
        for (U32 i = 0; i < std::max(1U, line->bytes / 4U); ++i) {
          store(wave, file + in.bits2(8, 8) + i, Kind::kB32, 0, memory.lane);
        }
      }
      continue;
    }
    const U64 base = buffer.base + scalar_offset;
    if (to_lds) {
      std::array<U32, 1> word{};
      const U64 address = base + place_in(buffer, index, offset);
      if (!memory.access(address & kAddressMask, word, 4, false)) return refuse(wave, no_memory(in, address));
      (void)memory.in_lds((wave.m0() & 0xffff) + in.bits(0, 12) + memory.lane * 4, word, 4, true);
      continue;
    }
    // A swizzled buffer has each dword at a place of its own.
    MemoryLine piece = *line;
    if (line->action != Action::kAtomic) piece.bytes = std::min<U8>(line->bytes, 4);
    for (U32 done = 0; done < line->bytes; done += piece.bytes) {
      const U32 at = file + in.bits2(8, 8) + done / 4;
      const U64 address = (base + place_in(buffer, index, offset + done)) & kAddressMask;
      if (!transfer(memory, *this, wave, piece, {at, at, in.has(14)}, address)) {
        return refuse(wave, no_memory(in, address));
      }
    }
  }
  return true;
}

// ---- SMEM ----

bool Machine::execute_scalar_memory(Wave& wave, const Instruction& in) {
  const auto go_on = [&] {
    wave.pc += 4 * in.dwords;
    return true;
  };
  const U32 data = in.bits(6, 7);
  switch (in.op) {
    case 0x20:  // s_dcache_inv, s_dcache_wb and their _vol: there is no cache
    case 0x21:
    case 0x22:
    case 0x23:
      return go_on();
    case 0x24:  // s_memtime
    case 0x25:  // s_memrealtime
      wave.pair(data, outside_.clock());
      return go_on();
    default:
      break;
  }
  const MemoryLine* line = find_scalar_memory(in.op);
  if (line == nullptr) return refuse(wave, describe(in));
  const bool buffer = (in.op >= 0x08 && in.op <= 0x0c) || (in.op >= 0x18 && in.op < 0x80);
  U64 address = wave.pair(in.bits(0, 6) * 2) & kAddressMask;
  if (!buffer) address = wave.pair(in.bits(0, 6) * 2);
  address += in.has(17) ? sign_extended(in.bits2(0, 21), 21) : U64{wave.scalar[in.bits2(0, 7)]};
  if (in.has(14)) address += wave.scalar[in.bits2(25, 7)];
  address &= kAddressMask & ~U64{3};

  std::array<U32, 16> words{};
  const U32 count = line->bytes / 4U;
  const auto bytes = std::as_writable_bytes(std::span(words).first(count));
  bool reached = false;
  switch (line->action) {
    case Action::kLoad:
      reached = read(address, bytes);
      for (U32 i = 0; reached && i < count; ++i) wave.scalar[(data + i) & 127] = words[i];
      break;
    case Action::kStore:
      for (U32 i = 0; i < count; ++i) words[i] = wave.scalar[(data + i) & 127];
      reached = write(address, bytes);
      break;
    case Action::kAtomic: {
      const bool wide = line->bytes == 8;
      const auto value = [&](U32 at) { return wide ? wave.pair(at) : U64{wave.scalar[at & 127]}; };
      U64 old = 0;
      reached = change(address, line->bytes, line->change, value(data), value(data + (wide ? 2 : 1)), &old);
      if (reached && in.has(16) && wide) wave.pair(data, old);
      if (reached && in.has(16) && !wide) wave.scalar[data & 127] = static_cast<U32>(old);
      break;
    }
  }
  return reached ? go_on() : refuse(wave, no_memory(in, address));
}

}  // namespace sluice::card::shader
