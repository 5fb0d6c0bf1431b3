// SPDX-License-Identifier: MIT
// A card whose GPU is a few bytes, and messages to it as QEMU puts them together.
#pragma once

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bus/vfio_user.h"
#include "models/model.h"

namespace sluice::card::tests {

using Bytes = std::vector<std::byte>;

// Little endian, one after another.
class Packed {
 public:
  template <class T>
  Packed& add(T value) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof value);
    std::memcpy(bytes_.data() + at, &value, sizeof value);
    return *this;
  }
  Packed& u16(std::uint16_t value) { return add(value); }
  Packed& u32(std::uint32_t value) { return add(value); }
  Packed& u64(std::uint64_t value) { return add(value); }
  Packed& text(const std::string& text) {  // with its NUL
    for (const char each : text) add(each);
    return add('\0');
  }
  operator Bytes() const { return bytes_; }  // NOLINT(google-explicit-constructor)

 private:
  Bytes bytes_;
};

template <class T>
T value_at(const Bytes& bytes, std::size_t offset) {
  if (offset + sizeof(T) > bytes.size()) throw std::out_of_range("a reply is too short");
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

inline UniqueFd memory_file(std::size_t bytes) {
  UniqueFd fd(::memfd_create("guest", MFD_CLOEXEC));
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) throw std::runtime_error("no memory file");
  return fd;
}

// What came, and memory that answers. Checks what the bus promises: accesses are inside their BAR.
class RecordingDevice final : public Device {
 public:
  struct Access {
    Bar bar;
    std::uint64_t offset;
    Bytes data;  // empty: it was a read
    bool operator==(const Access&) const = default;
  };

  void read(Bar bar, std::uint64_t offset, std::span<std::byte> out) override {
    check(bar, offset, out.size());
    accesses.push_back({bar, offset, {}});
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(offset + i);
  }
  void write(Bar bar, std::uint64_t offset, std::span<const std::byte> in) override {
    check(bar, offset, in.size());
    accesses.push_back({bar, offset, Bytes(in.begin(), in.end())});
  }
  void reset() override { ++resets; }
  bool work() override {
    ++works;
    return works < works_until;
  }

  std::vector<Access> accesses;
  int resets = 0;
  int works = 0;
  int works_until = 0;  // how often there is more to do

 private:
  static void check(Bar bar, std::uint64_t offset, std::size_t length) {
    const std::uint64_t bytes = bar == Bar::kRegisters   ? kRegisterBytes
                                : bar == Bar::kDoorbells ? kDoorbellBytes
                                                         : 0;
    if (length == 0 || offset >= bytes || length > bytes - offset)
      throw std::out_of_range("not inside its BAR");
  }
};

constexpr std::size_t kTestVram = 16 << 20;

struct TestCard {
  explicit TestCard(const std::string& directory = "") : peers(directory) {}

  RecordingDevice device;
  Vram vram = std::move(Vram::make(kTestVram)).value();
  Bytes rom = Bytes(8192, std::byte{0x55});
  PciConfig config{mi210(), kTestVram, 8192};
  DmaMaps maps;
  Peers peers;
  Msi msi;
  Trace trace;
  VfioUser session{{device, vram, config, maps, peers, msi, rom, trace}};
};

enum Command : std::uint16_t {
  kVersion = 1,
  kDmaMap = 2,
  kDmaUnmap = 3,
  kDeviceInfo = 4,
  kRegionInfo = 5,
  kIrqInfo = 7,
  kSetIrqs = 8,
  kRegionRead = 9,
  kRegionWrite = 10,
  kReset = 13,
};

inline Bytes version_body(std::uint16_t major = 0) {
  return Packed().u16(major).u16(0).text(R"({"capabilities":{"max_msg_fds":8}})");
}
inline Bytes dma_map_body(std::uint64_t address, std::uint64_t bytes, std::uint64_t offset = 0,
                          std::uint32_t flags = 3) {
  return Packed().u32(32).u32(flags).u64(offset).u64(address).u64(bytes);
}
inline Bytes dma_unmap_body(std::uint64_t address, std::uint64_t bytes, std::uint32_t flags = 0) {
  return Packed().u32(24).u32(flags).u64(address).u64(bytes);
}
inline Bytes region_info_body(std::uint32_t index) {
  return Packed().u32(32).u32(0).u32(index).u32(0).u64(0).u64(0);
}
inline Bytes irq_info_body(std::uint32_t index) {
  return Packed().u32(16).u32(0).u32(index).u32(0);
}
inline Bytes set_irqs_body(std::uint32_t flags, std::uint32_t index, std::uint32_t start,
                           std::uint32_t count) {
  return Packed().u32(20).u32(flags).u32(index).u32(start).u32(count);
}
inline Bytes access_body(std::uint64_t offset, std::uint32_t region, std::uint32_t count) {
  return Packed().u64(offset).u32(region).u32(count);
}
template <class T>
Bytes write_body(std::uint64_t offset, std::uint32_t region, T value) {
  return Packed().u64(offset).u32(region).u32(sizeof value).add(value);
}

// A header and its body.
inline Bytes message(std::uint16_t id, std::uint16_t command, const Bytes& body, std::uint32_t flags = 0) {
  Bytes bytes =
      Packed().u16(id).u16(command).u32(static_cast<std::uint32_t>(16 + body.size())).u32(flags).u32(0);
  bytes.insert(bytes.end(), body.begin(), body.end());
  return bytes;
}

}  // namespace sluice::card::tests
