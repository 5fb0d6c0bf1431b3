// SPDX-License-Identifier: MIT
// A whole GPU on plain memory, as the driver would set it up: VRAM, a piece of guest memory on the bus, page
// tables, the interrupt ring, and rings with packets.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <vector>

#include "gpu.h"
#include "models/mi210.h"
#include "models/model.h"
#include "registers/names.h"

namespace sluice::card::tests {

constexpr std::uint64_t kVramBytes = 32 << 20;
constexpr std::uint64_t kGuestBytes = 4 << 20;
constexpr std::uint64_t kGuestBase = 0x1'0000'0000;  // bus address

// Pages that begin where pages do.
class Pages {
 public:
  explicit Pages(std::size_t bytes)
      : memory_(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kPageBytes}))),
        bytes_(memory_.get(), bytes) {
    std::memset(memory_.get(), 0, bytes);
  }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete (memory, std::align_val_t{kPageBytes}); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::span<std::byte> bytes_;
};

template <class T>
T value_in(std::span<const std::byte> bytes, std::uint64_t offset) {
  if (offset + sizeof(T) > bytes.size()) throw std::out_of_range("beyond the memory");
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

template <class T>
void put_in(std::span<std::byte> bytes, std::uint64_t offset, T value) {
  if (offset + sizeof(T) > bytes.size()) throw std::out_of_range("beyond the memory");
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

class PlainGuest final : public GuestMemory {
 public:
  std::span<std::byte> at(std::uint64_t bus_address, std::size_t length) const override {
    if (bus_address < kGuestBase || bus_address - kGuestBase > kGuestBytes ||
        length > kGuestBytes - (bus_address - kGuestBase)) {
      return {};
    }
    return pages_.bytes().subspan(bus_address - kGuestBase, length);
  }
  std::span<std::byte> bytes() const { return pages_.bytes(); }

 private:
  Pages pages_{kGuestBytes};
};

class CountedInterrupt final : public Interrupt {
 public:
  void raise() override { ++raised; }
  unsigned raised = 0;
};

constexpr std::uint64_t kAll = entry::kValid | entry::kRead | entry::kWrite;

// Places in VRAM that tests use.
constexpr std::uint64_t kGartTable = 1 << 20;  // 512 entries
constexpr std::uint64_t kTables = 2 << 20;     // page tables of processes, one page after another
constexpr std::uint64_t kRings = 4 << 20;
constexpr std::uint64_t kMqds = 6 << 20;
constexpr std::uint64_t kData = 8 << 20;  // of processes

class GpuKit {
 public:
  explicit GpuKit(const Model& model = mi210()) : gpu(model, vram_pages.bytes(), guest, interrupt, trace) {
    set_up();
  }

  // What every driver does, once more after a reset.
  void set_up() {
    read_ = 0;
    gpu.write_register(reg::kDoorbellAperEn, 1);
    // The command processor's pipes send all interrupts.
    for (unsigned pipe = 0; pipe < 8; ++pipe) gpu.write_register(reg::kCpMeIntCntl + 4 * pipe, 0xffffffff);
    // The GART: 2 MiB of addresses from 0 on, none mapped yet.
    for (const HubModel& model : gpu.model().hubs) {
      const std::uint32_t hub = model.base;
      gpu.write_register(hub + reg::hub::kContextBaseLo,
                         static_cast<std::uint32_t>(kGartTable | entry::kValid));
      gpu.write_register(hub + reg::hub::kContextStartLo, 0);
      gpu.write_register(hub + reg::hub::kContextEndLo, 511);
      for (unsigned vmid = 0; vmid < kVmids; ++vmid) {
        gpu.write_register(hub + reg::hub::kContextCntl + 4 * vmid, kContextOn);
      }
    }
    // The interrupt ring: 1 KiB at the start of guest memory, its write pointer after it.
    gpu.write_register(reg::kIhRbBase, static_cast<std::uint32_t>(kGuestBase >> 8));
    gpu.write_register(reg::kIhRbWptrAddrLo, static_cast<std::uint32_t>(kGuestBase + 0x1000));
    gpu.write_register(reg::kIhRbWptrAddrHi, static_cast<std::uint32_t>((kGuestBase + 0x1000) >> 32));
    gpu.write_register(reg::kIhDoorbellRptr, 1 << 28 | kIhDoorbell / 4);
    gpu.write_register(reg::kIhRbCntl, kIhOn);
  }

  static constexpr std::uint32_t kContextOn = 1 | 0x0aaa00;  // and all its fault interrupts
  static constexpr std::uint32_t kIhDoorbell = 0xbc0;
  static constexpr std::uint32_t kIhRingBytes = 1024;
  // On, 2^8 dwords, write-back, overflow, interrupt, bus addresses.
  static constexpr std::uint32_t kIhOn = 1 | 8 << 1 | 1 << 8 | 1 << 16 | 1 << 17 | 1 << 28;

  std::span<std::byte> vram() const { return vram_pages.bytes(); }
  static std::uint64_t fb(std::uint64_t offset) { return kFbBase + offset; }
  template <class T>
  T vram_value(std::uint64_t offset) const {
    return value_in<T>(vram(), offset);
  }
  template <class T>
  void put_vram(std::uint64_t offset, T value) const {
    put_in<T>(vram(), offset, value);
  }

  // ---- interrupts ----
  // Entries that were written, oldest first, since the last call.
  std::vector<std::array<std::uint32_t, 8>> interrupts() {
    std::vector<std::array<std::uint32_t, 8>> entries;
    const auto write = value_in<std::uint32_t>(guest.bytes(), 0x1000) & ~1U;
    for (; read_ != write; read_ = (read_ + 32) % kIhRingBytes) {
      entries.push_back(value_in<std::array<std::uint32_t, 8>>(guest.bytes(), read_));
    }
    doorbell(kIhDoorbell, read_);
    return entries;
  }

  // ---- rings and packets ----
  void doorbell(std::uint64_t offset, std::uint64_t value) {
    gpu.write(Bar::kDoorbells, offset, std::as_bytes(std::span(&value, 1)));
  }
  // Until nothing is left to do, or something waits.
  void run() {
    for (unsigned i = 0; i < 8 && gpu.work(); ++i) {
    }
  }

  CountedInterrupt interrupt;
  PlainGuest guest;
  Pages vram_pages{kVramBytes};
  Trace trace;
  Gpu gpu;

 private:
  std::uint32_t read_ = 0;
};

inline std::uint32_t client_of(const std::array<std::uint32_t, 8>& entry) {
  return entry[0] & 0xff;
}
inline std::uint32_t source_of(const std::array<std::uint32_t, 8>& entry) {
  return entry[0] >> 8 & 0xff;
}
inline std::uint32_t ring_id_of(const std::array<std::uint32_t, 8>& entry) {
  return entry[0] >> 16 & 0xff;
}
inline std::uint32_t vmid_of(const std::array<std::uint32_t, 8>& entry) {
  return entry[0] >> 24 & 0xf;
}
inline std::uint32_t pasid_of(const std::array<std::uint32_t, 8>& entry) {
  return entry[3] & 0xffff;
}

// Four levels of tables in VRAM, built as mappings are added.
class TableKit {
 public:
  explicit TableKit(const GpuKit& kit, std::uint64_t at = kTables)
      : kit_(kit), next_(at + kPageBytes), root_(at) {}

  std::uint64_t root() const { return root_ | entry::kValid; }
  // One page; `pte` is its whole entry.
  void map(std::uint64_t va, std::uint64_t pte) { set(va, 0, pte); }
  // An entry of the level (3: the root table).
  void set(std::uint64_t va, unsigned level, std::uint64_t value) {
    kit_.put_vram<std::uint64_t>(slot(va, level), value);
  }
  // VRAM's own pages at the address, read and written.
  void map_vram(std::uint64_t va, std::uint64_t offset, std::uint64_t bytes) {
    for (std::uint64_t done = 0; done < bytes; done += kPageBytes) map(va + done, (offset + done) | kAll);
  }
  // Where the entry is in VRAM.
  std::uint64_t slot(std::uint64_t va, unsigned level) {
    std::uint64_t table = root_;
    for (unsigned at = 3; at > level; --at) {
      const std::uint64_t place = table + (va >> (12 + 9 * at) & 0x1ff) * 8;
      auto entry = kit_.vram_value<std::uint64_t>(place);
      if ((entry & entry::kValid) == 0) {
        entry = next_ | entry::kValid | (at == 1 ? entry::kFurther : 0);
        next_ += kPageBytes;
        kit_.put_vram(place, entry);
      }
      table = entry & entry::kPageAddress;
    }
    return table + (va >> (12 + 9 * level) & 0x1ff) * 8;
  }

 private:
  const GpuKit& kit_;
  std::uint64_t next_;
  std::uint64_t root_;
};

// Dwords one after another.
class Pm4 {
 public:
  // A packet of type 3.
  Pm4& packet(std::uint32_t op, std::initializer_list<std::uint32_t> body) {
    words_.push_back(3U << 30 | static_cast<std::uint32_t>(body.size() - 1) << 16 | op << 8);
    words_.insert(words_.end(), body);
    return *this;
  }
  Pm4& word(std::uint32_t value) {
    words_.push_back(value);
    return *this;
  }
  Pm4& write_memory(std::uint64_t address, std::uint32_t value) {
    return packet(0x37, {5 << 8, lo(address), hi(address), value});
  }
  Pm4& write_register(std::uint32_t byte, std::uint32_t value) {
    return packet(0x37, {0, byte / 4, 0, value});
  }
  Pm4& set_scratch(std::uint32_t value) { return packet(0x79, {reg::kScratchReg0 / 4 - 0xc000, value}); }
  Pm4& wait_memory(std::uint64_t address, std::uint32_t value) {
    return packet(0x3c, {3 | 1 << 4, lo(address), hi(address), value, 0xffffffff, 4});
  }
  Pm4& fence(std::uint64_t address, std::uint32_t value) {
    return packet(0x49, {0x514, 1U << 29 | 2U << 24, lo(address), hi(address), value, 0, 0});
  }
  Pm4& indirect(std::uint64_t address, std::uint32_t dwords, unsigned vmid) {
    return packet(0x3f, {lo(address), hi(address), dwords | 1U << 23 | vmid << 24});
  }
  std::vector<std::uint32_t> words() const { return words_; }  // a copy: packets are often temporary

  static std::uint32_t lo(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
  static std::uint32_t hi(std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); }

 private:
  std::vector<std::uint32_t> words_;
};

// A ring in VRAM that packets are appended to.
class RingKit {
 public:
  RingKit(GpuKit& kit, std::uint64_t offset, std::uint64_t dwords, std::uint32_t doorbell)
      : kit_(kit), offset_(offset), dwords_(dwords), doorbell_(doorbell) {}
  // Writes the packets and rings the doorbell; the GPU has not worked yet.
  void submit(const Pm4& packets) {
    for (const std::uint32_t word : packets.words()) {
      kit_.put_vram<std::uint32_t>(offset_ + written_ % dwords_ * 4, word);
      ++written_;
    }
    kit_.doorbell(doorbell_, written_);
  }
  void run(const Pm4& packets) {
    submit(packets);
    kit_.run();
  }
  // A ring of a GPU that was reset: its pointers are 0.
  void restart() { written_ = 0; }
  std::uint64_t written() const { return written_; }
  std::uint32_t doorbell() const { return doorbell_; }
  std::uint64_t offset() const { return offset_; }
  std::uint64_t dwords() const { return dwords_; }

 private:
  GpuKit& kit_;
  std::uint64_t offset_, dwords_;
  std::uint64_t written_ = 0;
  std::uint32_t doorbell_;
};

}  // namespace sluice::card::tests
