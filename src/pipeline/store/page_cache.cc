// SPDX-License-Identifier: MIT
#include "pipeline/store/page_cache.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "base/units.h"

namespace sluice {
namespace {

constexpr std::uint64_t kSampleBytes = 256 * kKiB;  // one page is sampled in each
constexpr std::uint64_t kSamplesOfFile = 64;        // to see whether anything is cached

}  // namespace

std::unique_ptr<PageCache> PageCache::of(int fd, std::uint64_t file_bytes) {
  const auto bytes = static_cast<std::size_t>(file_bytes);
  void* const map = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) return nullptr;
  std::unique_ptr<PageCache> cache(new PageCache(std::span<std::byte>(static_cast<std::byte*>(map), bytes)));
  if (!cache->holds_any()) return nullptr;
  return cache;
}

PageCache::PageCache(std::span<std::byte> map)
    : map_(map), page_bytes_(static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE))) {}

PageCache::~PageCache() {
  (void)::munmap(map_.data(), map_.size());
}

bool PageCache::holds(std::uint64_t begin, std::uint64_t end) const {
  for (std::uint64_t at = begin; at < end; at += kSampleBytes) {
    if (!holds_page(at)) return false;
  }
  return true;
}

bool PageCache::holds_any() const {
  const std::uint64_t step = std::max<std::uint64_t>(map_.size() / kSamplesOfFile, 1);
  for (std::uint64_t at = 0; at < map_.size(); at += step) {
    if (holds_page(at)) return true;
  }
  return false;
}

bool PageCache::holds_page(std::uint64_t at) const {
  unsigned char state = 0;
  const auto page = static_cast<std::size_t>(align_down(at, page_bytes_));
  return ::mincore(&map_[page], static_cast<std::size_t>(page_bytes_), &state) == 0 && (state & 1U) != 0;
}

}  // namespace sluice
