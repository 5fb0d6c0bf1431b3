// SPDX-License-Identifier: MIT
#include "bus/dma_maps.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>
#include <string>

namespace sluice::card {
namespace {

constexpr std::uint64_t kPage = 4096;  // the smallest that a guest may map by, and what is promised to QEMU

std::string range_text(const DmaMaps::Range& range) {
  return "bus addresses " + hex(range.address) + " and " + hex(range.bytes) + " bytes on";
}

bool whole_pages(const DmaMaps::Range& range) {
  // The very last page would end at 2^64, which no number holds; no guest has memory there.
  return range.bytes != 0 && range.address % kPage == 0 && range.bytes % kPage == 0 &&
         range.address <= ~std::uint64_t{0} - range.bytes;
}

Result<std::byte*> map_file(const UniqueFd& file, std::uint64_t offset, std::uint64_t bytes) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return make_error(errno, "look at the file of a map");
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (offset % kPage != 0 || offset > size || bytes > size - offset) {
    return make_error(EINVAL, hex(bytes) + " bytes at " + hex(offset) + " of a file of " + hex(size));
  }
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file.get(),
                          static_cast<off_t>(offset));
  if (at == MAP_FAILED) return make_error(errno, "map the file of a map");
  return static_cast<std::byte*>(at);
}

}  // namespace

std::span<std::byte> DmaMaps::at(std::uint64_t bus_address, std::size_t length) const {
  auto found = maps_.upper_bound(bus_address);
  if (found == maps_.begin()) return {};
  --found;
  const Map& map = found->second;
  const std::uint64_t inside = bus_address - found->first;
  if (map.memory == nullptr || inside >= map.bytes || length > map.bytes - inside) return {};
  return {map.memory + inside, length};
}

Result<void> DmaMaps::add(const Range& range, const UniqueFd& file, std::uint64_t offset, bool writable) {
  if (!whole_pages(range)) return make_error(EINVAL, "map " + range_text(range));
  const auto after = maps_.lower_bound(range.address);
  const bool into_next = after != maps_.end() && after->first - range.address < range.bytes;
  const bool out_of_last =
      after != maps_.begin() && range.address - std::prev(after)->first < std::prev(after)->second.bytes;
  if (into_next || out_of_last) return make_error(EEXIST, "map " + range_text(range));
  if (maps_.size() >= kMost) return make_error(ENOSPC, "map " + range_text(range));
  std::byte* memory = nullptr;
  if (file && writable) {
    SLUICE_TRY_ASSIGN(memory, map_file(file, offset, range.bytes));
  }
  maps_.emplace_hint(after, range.address, Map{range.bytes, memory});
  return {};
}

Result<std::uint64_t> DmaMaps::remove(const Range& range) {
  if (!whole_pages(range)) return make_error(EINVAL, "unmap " + range_text(range));
  const std::uint64_t end = range.address + range.bytes;
  const auto first = maps_.lower_bound(range.address);
  const auto last = maps_.lower_bound(end);
  if (first != maps_.begin() && std::prev(first)->first + std::prev(first)->second.bytes > range.address) {
    return make_error(EINVAL, "unmap a part of a map: " + range_text(range));
  }
  if (last != first && std::prev(last)->first + std::prev(last)->second.bytes > end) {
    return make_error(EINVAL, "unmap a part of a map: " + range_text(range));
  }
  std::uint64_t bytes = 0;
  for (auto each = first; each != last; ++each) {
    bytes += each->second.bytes;
    drop(each->second);
  }
  maps_.erase(first, last);
  return bytes;
}

void DmaMaps::clear() {
  for (const auto& each : maps_) drop(each.second);
  maps_.clear();
}

void DmaMaps::drop(const Map& map) {
  if (map.memory != nullptr) (void)::munmap(map.memory, map.bytes);
}

}  // namespace sluice::card
