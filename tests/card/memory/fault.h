// SPDX-License-Identifier: MIT
// Why an engine of the card did not reach an address, and a value or that.
//
// Hardware does not refuse an access, it reports a VM fault: an entry of the interrupt ring and two
// registers. So a failed access here is a value with what those need (hub, vmid, address, access), and with
// what a reader of the trace needs (the level and the entry where the walk ended). Value types,
// thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "base/result.h"

namespace sluice::card {

// The sets of page table registers: each XCC's GC hub serves its command processor, the MM hub the SDMA
// engines. An engine of an XCC says kGc, whichever XCC it is in.
enum class Hub : std::uint8_t { kGc, kMm, kGcOfXcc1 };
constexpr std::size_t kMostHubs = 9;

constexpr Hub gc_hub(unsigned xcc) {
  return xcc == 0 ? Hub::kGc : static_cast<Hub>(static_cast<unsigned>(Hub::kGcOfXcc1) + xcc - 1);
}

enum class Access : std::uint8_t { kRead, kWrite };

struct Fault {
  enum class Why : std::uint8_t {
    kNoAperture,    // vmid 0: neither frame buffer, GART nor AGP
    kNotValid,      // the entry's valid bit is clear
    kNotAllowed,    // valid, but without the bit for this access
    kOutOfVram,     // the entry (or a table) points beyond the end of VRAM
    kNoBusAddress,  // the entry (or a table) points at a bus address that the machine has no memory at
    kNoTable,       // the vmid has no page table: its context is off
  };
  Why why = Why::kNotValid;
  Hub hub = Hub::kGc;
  Access access = Access::kRead;
  unsigned vmid = 0;
  std::uint32_t pasid = 0;    // 0: the driver's own
  std::uint64_t address = 0;  // that the engine asked for, 48 bits
  unsigned level = 0;         // of the entry that ended the walk: 3 the root table's, 0 the last one's
  std::uint64_t entry = 0;    // that entry as it was read; 0 where none was
  unsigned engine = 0;        // MM hub: the SDMA engine that asked; set by who reports the fault

  // "GC hub vmid 8 pasid 0x8001: write of 0x7f0000001000: level 0 entry 0x0 is not valid".
  std::string text() const;
};

// A value, or the fault that an access ended in. Named as Result<T>, so SLUICE_TRY and SLUICE_TRY_ASSIGN work
// in functions that return one.
template <class T>
class [[nodiscard]] OrFault {
 public:
  OrFault(T value)
      : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT(google-explicit-constructor)
  OrFault(const Fault& fault)
      : state_(std::in_place_index<1>, fault) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  // REQUIRES: ok().
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  // REQUIRES: !ok().
  const Fault& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Fault> state_;
};

template <>
class [[nodiscard]] OrFault<void> {
 public:
  OrFault() = default;
  OrFault(const Fault& fault) : fault_(fault), failed_(true) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return !failed_; }
  explicit operator bool() const { return ok(); }
  const Fault& error() const { return fault_; }

 private:
  Fault fault_;
  bool failed_ = false;
};

}  // namespace sluice::card
