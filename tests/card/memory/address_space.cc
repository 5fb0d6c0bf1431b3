// SPDX-License-Identifier: MIT
#include "memory/address_space.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "memory/memory.h"

namespace sluice::card {

namespace {

constexpr std::uint64_t kAddressMask = 0x0000'ffff'ffff'ffff;

// The `T` at `bytes`, which are aligned for it: pages are, in VRAM and in every map.
template <class T>
std::atomic_ref<T> word(std::span<std::byte> bytes) {
  return std::atomic_ref<T>(*reinterpret_cast<T*>(bytes.data()));
}

}  // namespace

AddressSpace AddressSpace::of_vmid(const Memory& memory, Hub hub, unsigned vmid) {
  return AddressSpace(memory, hub, vmid % kVmids, 0, std::nullopt);
}

AddressSpace AddressSpace::of_process(const Memory& memory, Hub hub, unsigned vmid, std::uint32_t pasid,
                                      std::uint64_t root) {
  return AddressSpace(memory, hub, vmid % kVmids, pasid, root);
}

OrFault<std::span<std::byte>> AddressSpace::at(std::uint64_t address, std::size_t length,
                                               Access access) const {
  Fault request;
  request.hub = hub_;
  request.access = access;
  request.vmid = vmid_;
  request.pasid = pasid_;
  request.address = address & kAddressMask;
  OrFault<Reached> reached = Reached{};
  if (root_) {
    reached = memory_->reach_by_tables(request, *root_, length);
  } else if (vmid_ == 0) {
    reached = memory_->reach_vmid0(request, length);
  } else {
    const HubRegisters::Context& context = memory_->hub(hub_).contexts[vmid_];
    if ((context.control & 1) == 0) {
      request.why = Fault::Why::kNoTable;
      return request;
    }
    reached = memory_->reach_by_tables(
        request, context.base_lo | static_cast<std::uint64_t>(context.base_hi) << 32, length);
  }
  if (!reached) return reached.error();
  return std::span(reached->bytes, static_cast<std::size_t>(reached->count));
}

OrFault<void> AddressSpace::read(std::uint64_t address, std::span<std::byte> out) const {
  while (!out.empty()) {
    SLUICE_TRY_ASSIGN(const auto piece, at(address, out.size(), Access::kRead));
    std::memcpy(out.data(), piece.data(), piece.size());
    address += piece.size();
    out = out.subspan(piece.size());
  }
  return {};
}

OrFault<void> AddressSpace::write(std::uint64_t address, std::span<const std::byte> in) const {
  if (in.size() == 4 && address % 4 == 0) {
    std::uint32_t value = 0;
    std::memcpy(&value, in.data(), sizeof value);
    return store32(address, value);
  }
  if (in.size() == 8 && address % 8 == 0) {
    std::uint64_t value = 0;
    std::memcpy(&value, in.data(), sizeof value);
    return store64(address, value);
  }
  while (!in.empty()) {
    SLUICE_TRY_ASSIGN(const auto piece, at(address, in.size(), Access::kWrite));
    std::memcpy(piece.data(), in.data(), piece.size());
    address += piece.size();
    in = in.subspan(piece.size());
  }
  return {};
}

OrFault<std::uint32_t> AddressSpace::load32(std::uint64_t address) const {
  SLUICE_TRY_ASSIGN(const auto piece, at(address & ~std::uint64_t{3}, 4, Access::kRead));
  return word<std::uint32_t>(piece).load();
}

OrFault<std::uint64_t> AddressSpace::load64(std::uint64_t address) const {
  SLUICE_TRY_ASSIGN(const auto piece, at(address & ~std::uint64_t{7}, 8, Access::kRead));
  return word<std::uint64_t>(piece).load();
}

OrFault<void> AddressSpace::store32(std::uint64_t address, std::uint32_t value) const {
  SLUICE_TRY_ASSIGN(const auto piece, at(address & ~std::uint64_t{3}, 4, Access::kWrite));
  word<std::uint32_t>(piece).store(value);
  return {};
}

OrFault<void> AddressSpace::store64(std::uint64_t address, std::uint64_t value) const {
  SLUICE_TRY_ASSIGN(const auto piece, at(address & ~std::uint64_t{7}, 8, Access::kWrite));
  word<std::uint64_t>(piece).store(value);
  return {};
}

OrFault<std::uint64_t> AddressSpace::add64(std::uint64_t address, std::uint64_t value) const {
  SLUICE_TRY_ASSIGN(const auto piece, at(address & ~std::uint64_t{7}, 8, Access::kWrite));
  return word<std::uint64_t>(piece).fetch_add(value);
}

}  // namespace sluice::card
