// SPDX-License-Identifier: MIT
// An address space as the packet decoders (tests/vamdgpu/packets) want it, which keeps the last fault: the
// decoders only learn that an address was not there.
//
// It is pointed at by decoders' structures, so it does not move.
#pragma once

#include <optional>

#include "memory/address_space.h"
#include "packets/packets.h"

namespace sluice::card {

class PacketSpace {
 public:
  explicit PacketSpace(const AddressSpace& space);
  PacketSpace(const PacketSpace&) = delete;
  PacketSpace& operator=(const PacketSpace&) = delete;

  const pkt_space* c() const { return &table_; }
  const AddressSpace& space() const { return space_; }
  // Another space from now on.
  void use(const AddressSpace& space) { space_ = space; }

  // Of the last access that failed; nothing when none did since the last call.
  std::optional<Fault> take_fault() {
    std::optional<Fault> fault = fault_;
    fault_.reset();
    return fault;
  }

 private:
  template <class T>
  int keep(const OrFault<T>& result) {
    if (result) return 0;
    fault_ = result.error();
    return 1;
  }

  AddressSpace space_;
  std::optional<Fault> fault_;
  pkt_space table_;
};

}  // namespace sluice::card
