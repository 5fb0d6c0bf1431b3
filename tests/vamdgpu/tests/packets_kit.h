// SPDX-License-Identifier: MIT
// The smallest address space that packets can be executed on, and an owner of a queue that remembers what it
// was told: for tests of the decoders by themselves. One thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "packets/packets.h"

namespace vamdgpu::tests {

// Bytes from kBase on; nothing else is mapped, and the page at kReadOnly is not for writing.
class FlatMemory {
 public:
  static constexpr std::uint64_t kBase = 0x700000000000, kReadOnly = kBase + 0x3000;
  static constexpr std::uint64_t kEnd = kBase + 0x40000;

  FlatMemory() { space_ = {this, read, write, copy, fill, add64, probe}; }
  FlatMemory(const FlatMemory&) = delete;
  FlatMemory& operator=(const FlatMemory&) = delete;

  const pkt_space* c() const { return &space_; }
  std::uint8_t* at(std::uint64_t va) { return &bytes_[va - kBase]; }
  template <class T>
  T get(std::uint64_t va) {
    T value;
    std::memcpy(&value, at(va), sizeof value);
    return value;
  }
  template <class T>
  void put(std::uint64_t va, const T& value) {
    std::memcpy(at(va), &value, sizeof value);
  }
  void put_dwords(std::uint64_t va, const std::vector<std::uint32_t>& dwords) {
    std::memcpy(at(va), dwords.data(), 4 * dwords.size());
  }
  // Of a ring of `bytes` bytes, from byte position `position` on; the position behind them.
  std::uint64_t put_ring(std::uint64_t ring, std::uint64_t bytes, std::uint64_t position,
                         const std::vector<std::uint32_t>& dwords) {
    for (const std::uint32_t dword : dwords) {
      put(ring + position % bytes, dword);
      position += 4;
    }
    return position;
  }
  const std::vector<std::uint8_t>& all() const { return bytes_; }

 private:
  static FlatMemory& self(void* me) { return *static_cast<FlatMemory*>(me); }
  static bool is_there(std::uint64_t va, std::uint64_t bytes, bool writes) {
    if (va < kBase || va > kEnd || bytes > kEnd - va) return false;
    return !writes || va + bytes <= kReadOnly || va >= kReadOnly + 0x1000;
  }
  static int read(void* me, std::uint64_t va, void* to, std::uint64_t bytes) {
    if (!is_there(va, bytes, false)) return 1;
    std::memcpy(to, self(me).at(va), bytes);
    return 0;
  }
  static int write(void* me, std::uint64_t va, const void* from, std::uint64_t bytes) {
    if (!is_there(va, bytes, true)) return 1;
    std::memcpy(self(me).at(va), from, bytes);
    return 0;
  }
  static int copy(void* me, std::uint64_t to, std::uint64_t from, std::uint64_t bytes) {
    if (!is_there(from, bytes, false) || !is_there(to, bytes, true)) return 1;
    std::memmove(self(me).at(to), self(me).at(from), bytes);
    return 0;
  }
  static int fill(void* me, std::uint64_t to, std::uint32_t dword, std::uint64_t bytes) {
    if (!is_there(to, bytes, true)) return 1;
    for (std::uint64_t i = 0; i < bytes; ++i)
      *self(me).at(to + i) = static_cast<std::uint8_t>(dword >> 8 * (i % 4));
    return 0;
  }
  static int add64(void* me, std::uint64_t va, std::uint64_t value) {
    if (va % 8 != 0 || !is_there(va, 8, true)) return 1;
    self(me).put(va, self(me).get<std::uint64_t>(va) + value);
    return 0;
  }
  static int probe(void*, std::uint64_t va, std::uint64_t bytes, int writes) {
    return is_there(va, bytes, writes != 0) ? 0 : 1;
  }

  std::vector<std::uint8_t> bytes_ = std::vector<std::uint8_t>(kEnd - kBase);
  pkt_space space_{};
};

// Everything is allowed; vmid 15 has no memory, register 0xdead is refused.
class Owner {
 public:
  static constexpr std::uint64_t kClock = 0x123456789a;
  static constexpr std::uint32_t kBadRegister = 0xdead, kNoMemory = 15;

  explicit Owner(FlatMemory& memory) : memory_(memory) {
    table.self = this;
    table.space = [](void* me, std::uint32_t vmid) {
      self(me).vmids.push_back(vmid);
      return vmid == kNoMemory ? nullptr : self(me).memory_.c();
    };
    table.read_register = [](void* me, std::uint32_t index, std::uint32_t* value) {
      *value = self(me).registers[index];
      return index == kBadRegister ? 1 : 0;
    };
    table.write_register = [](void* me, std::uint32_t index, std::uint32_t value) {
      if (index == kBadRegister) return 1;
      self(me).registers[index] = value;
      ++self(me).register_writes;
      return 0;
    };
    table.clock = [](void*) { return kClock; };
    table.holds_fence = [](void* me, pkt_queue*) { return self(me).holds ? 1 : 0; };
    table.moved = [](void* me, pkt_queue* q) {
      self(me).reported = q->read;
      return self(me).report_fails ? 1 : 0;
    };
    table.interrupt = [](void* me, pkt_queue*, std::uint32_t context) {
      // A reader that sees the interrupt finds the packet consumed.
      self(me).interrupts.push_back({context, self(me).reported});
      return 0;
    };
    table.pm4 = [](void* me, pkt_queue* q, const pkt_space*, std::uint32_t op, const std::uint32_t* body,
                   std::uint32_t dwords) { return self(me).pm4(q, op, body, dwords); };
  }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;

  struct Told {
    std::uint32_t context;
    std::uint64_t reported;
  };
  pkt_owner table{};
  std::map<std::uint32_t, std::uint32_t> registers;
  unsigned register_writes = 0;
  std::vector<std::uint32_t> vmids;
  std::vector<Told> interrupts;
  std::uint64_t reported = 0;
  bool holds = false, report_fails = false;
  std::vector<std::vector<std::uint32_t>> foreign;  // PM4 packets of the owner: op and body

 private:
  static Owner& self(void* me) { return *static_cast<Owner*>(me); }
  // Op 0xa5 is a call, as RUN_LIST is; 0xee is refused.
  int pm4(pkt_queue* q, std::uint32_t op, const std::uint32_t* body, std::uint32_t dwords) {
    std::vector<std::uint32_t> packet{op};
    for (std::uint32_t i = 0; i < dwords && i < PKT_PM4_BODY; ++i) packet.push_back(body[i]);
    foreign.push_back(packet);
    if (op == 0xa5 && dwords == 3) return pkt_enter_ib(q, body[0] | std::uint64_t{body[1]} << 32, body[2], 0);
    return op == 0xee ? 1 : 0;
  }

  FlatMemory& memory_;
};

inline std::uint32_t low(std::uint64_t value) {
  return static_cast<std::uint32_t>(value);
}
inline std::uint32_t high(std::uint64_t value) {
  return static_cast<std::uint32_t>(value >> 32);
}
// Header of a type 3 packet of `dwords` dwords in all.
inline std::uint32_t pm4_header(std::uint32_t op, std::uint32_t dwords) {
  return 3u << 30 | (dwords - 2) << 16 | op << 8;
}

}  // namespace vamdgpu::tests
