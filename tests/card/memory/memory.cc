// SPDX-License-Identifier: MIT
#include "memory/memory.h"

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace sluice::card {

namespace {

constexpr std::uint64_t join(std::uint32_t low, std::uint32_t high) {
  return low | static_cast<std::uint64_t>(high) << 32;
}

Fault because(Fault request, Fault::Why why) {
  request.why = why;
  return request;
}

const char* reason(Fault::Why why) {
  switch (why) {
    case Fault::Why::kNoAperture:
      return "is in no aperture";
    case Fault::Why::kNotValid:
      return "is not valid";
    case Fault::Why::kNotAllowed:
      return "does not allow it";
    case Fault::Why::kOutOfVram:
      return "is beyond the end of VRAM";
    case Fault::Why::kNoBusAddress:
      return "has no memory on the bus";
    case Fault::Why::kNoTable:
      return "has no page table";
  }
  return "";
}

}  // namespace

std::string Fault::text() const {
  char text[200];
  const bool of_table = why != Why::kNoAperture && why != Why::kNoTable;
  char entry_text[48] = "";
  if (of_table)
    (void)std::snprintf(entry_text, sizeof entry_text, "level %u entry 0x%" PRIx64 " ", level, entry);
  (void)std::snprintf(text, sizeof text, "%s hub vmid %u pasid 0x%x: %s of 0x%" PRIx64 ": %s%s",
                      hub == Hub::kMm ? "MM" : "GC", vmid, pasid, access == Access::kRead ? "read" : "write",
                      address, entry_text, reason(why));
  return text;
}

Memory::Memory(std::span<std::byte> vram, const GuestMemory& guest) : vram_(vram), guest_(guest) {
  reset();
}

void Memory::reset() {
  for (HubRegisters& hub : hubs_) {
    hub = HubRegisters{};
    hub.fb_base = static_cast<std::uint32_t>(kFbBase >> 24);
    hub.fb_top = static_cast<std::uint32_t>((kFbBase + vram_.size() - 1) >> 24);
  }
}

Reached Memory::nowhere(const Fault& request, std::uint64_t length) const {
  const std::uint64_t offset = request.address % kPageBytes;
  auto& page = request.access == Access::kRead ? nowhere_->read : nowhere_->written;
  return Reached{page.data() + offset, std::min(length, kPageBytes - offset)};
}

OrFault<Reached> Memory::in_vram(const Fault& request, std::uint64_t offset, std::uint64_t length) const {
  if (offset >= vram_.size()) return because(request, Fault::Why::kOutOfVram);
  return Reached{vram_.data() + offset, std::min<std::uint64_t>(length, vram_.size() - offset)};
}

OrFault<Reached> Memory::on_bus(const Fault& request, std::uint64_t address, std::uint64_t length) const {
  // A page never lies in two maps in part, so a piece of one page is there or is not.
  const std::uint64_t count = std::min(length, kPageBytes - address % kPageBytes);
  const std::span<std::byte> bytes = guest_.at(address, count);
  if (bytes.empty()) return because(request, Fault::Why::kNoBusAddress);
  return Reached{bytes.data(), bytes.size()};
}

OrFault<std::uint64_t> Memory::load_entry(const Fault& request, std::uint64_t table,
                                          std::uint64_t index) const {
  const std::uint64_t at = (table & entry::kTableAddress) + index * 8;
  auto reached = (table & entry::kSystem) != 0 ? on_bus(request, at, 8) : in_vram(request, at, 8);
  if (!reached) return reached.error();
  if (reached->count < 8) return because(request, Fault::Why::kOutOfVram);
  return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(reached->bytes)).load(std::memory_order_relaxed);
}

OrFault<Reached> Memory::page(const Fault& request, std::uint64_t page, std::uint64_t page_bytes,
                              std::uint64_t offset, std::uint64_t length) const {
  const std::uint64_t at = (page & entry::kPageAddress) + offset;
  const std::uint64_t count = std::min(length, page_bytes - offset);
  return (page & entry::kSystem) != 0 ? on_bus(request, at, count) : in_vram(request, at, count);
}

OrFault<Reached> Memory::reach_vmid0(Fault request, std::uint64_t length) const {
  const HubRegisters& registers = hub(request.hub);
  const std::uint64_t address = request.address;
  const std::uint64_t fb_base = static_cast<std::uint64_t>(registers.fb_base) << 24;
  const std::uint64_t fb_top = static_cast<std::uint64_t>(registers.fb_top) << 24 | 0xffffff;
  if (address >= fb_base && address <= fb_top) return in_vram(request, address - fb_base, length);

  const std::uint64_t agp_bottom = static_cast<std::uint64_t>(registers.agp_bottom) << 24;
  const std::uint64_t agp_top = static_cast<std::uint64_t>(registers.agp_top) << 24 | 0xffffff;
  if (address >= agp_bottom && address <= agp_top) {
    return on_bus(request, address - agp_bottom + (static_cast<std::uint64_t>(registers.agp_base) << 24),
                  length);
  }

  const HubRegisters::Context& context = registers.contexts[0];
  const std::uint64_t start = join(context.start_lo, context.start_hi) * kPageBytes;
  const std::uint64_t end = join(context.end_lo, context.end_hi) * kPageBytes + (kPageBytes - 1);
  if ((context.control & 1) == 0 || address < start || address > end) {
    return because(request, Fault::Why::kNoAperture);
  }
  request.level = 0;
  auto loaded = load_entry(request, join(context.base_lo, context.base_hi), (address - start) / kPageBytes);
  if (!loaded) return loaded.error();
  request.entry = *loaded;
  if ((request.entry & entry::kValid) == 0) return because(request, Fault::Why::kNotValid);
  const std::uint64_t needed = request.access == Access::kRead ? entry::kRead : entry::kWrite;
  if ((request.entry & needed) == 0) return because(request, Fault::Why::kNotAllowed);
  return page(request, request.entry, kPageBytes, address % kPageBytes, length);
}

OrFault<Reached> Memory::reach_by_tables(Fault request, std::uint64_t root, std::uint64_t length) const {
  std::uint64_t table = root;
  for (unsigned level = 4; level-- > 0;) {
    const unsigned shift = 12 + 9 * level;
    request.level = level;
    request.entry = table;
    auto loaded = load_entry(request, table, request.address >> shift & 0x1ff);
    if (!loaded) return loaded.error();
    const std::uint64_t found = *loaded;
    request.entry = found;
    if ((found & entry::kValid) == 0) {
      if ((found & entry::kPartial) != 0) return nowhere(request, length);
      return because(request, Fault::Why::kNotValid);
    }
    // Aldebaran translates further: an entry of level 1 is a page of 2 MiB unless it says that there is more.
    const bool is_page =
        level == 0 || (level == 1 ? (found & entry::kFurther) == 0 : (found & entry::kIsPte) != 0);
    if (!is_page) {
      table = found;
      continue;
    }
    const std::uint64_t needed = request.access == Access::kRead ? entry::kRead : entry::kWrite;
    if ((found & needed) == 0) return because(request, Fault::Why::kNotAllowed);
    const std::uint64_t page_bytes = std::uint64_t{1} << shift;
    return page(request, found, page_bytes, request.address & (page_bytes - 1), length);
  }
  return because(request, Fault::Why::kNotValid);
}

}  // namespace sluice::card
