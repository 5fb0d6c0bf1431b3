// SPDX-License-Identifier: MIT
// What QEMU has told of the guest's memory: ranges of bus addresses, most with the file that holds them.
//
// A map without a file (a ROM, another card's BAR) is known and has no bytes. So is one that the device may
// not write: what at() gives may be written, and no driver wants its BIOS changed. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>

#include "base/result.h"
#include "base/unique_fd.h"
#include "bus/device.h"

namespace sluice::card {

class DmaMaps final : public GuestMemory {
 public:
  static constexpr std::size_t kMost = 65535;  // as the version message promises

  DmaMaps() = default;
  ~DmaMaps() override { clear(); }

  std::span<std::byte> at(std::uint64_t bus_address, std::size_t length) const override;

  struct Range {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
  };
  // `file`: may be none, and is not needed any longer afterwards. EINVAL: what is not whole pages, comes
  // around the end of all addresses or is beyond the end of the file. EEXIST: a part of it is mapped already.
  Result<void> add(const Range& range, const UniqueFd& file, std::uint64_t offset, bool writable);
  // All maps in the range; how many bytes they had. EINVAL, and nothing is changed, where a map is partly
  // inside.
  Result<std::uint64_t> remove(const Range& range);
  void clear();

  std::size_t count() const { return maps_.size(); }

 private:
  struct Map {
    std::uint64_t bytes = 0;
    std::byte* memory = nullptr;  // owned; nullptr: none can be reached
  };
  using Maps = std::map<std::uint64_t, Map>;

  static void drop(const Map& map);

  Maps maps_;  // by address
};

}  // namespace sluice::card
