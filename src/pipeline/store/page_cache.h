// SPDX-License-Identifier: MIT
// What of a file the page cache holds, as far as samples tell: a wrong answer only costs time. Maps the file
// and never touches the map, so looking reads nothing in. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace sluice {

class PageCache {
 public:
  // Null when no sample of the file is in the cache, or it cannot be mapped. `fd` is not kept.
  static std::unique_ptr<PageCache> of(int fd, std::uint64_t file_bytes);
  ~PageCache();
  PageCache(const PageCache&) = delete;
  PageCache& operator=(const PageCache&) = delete;

  // Whether every sample of [begin, end) is there.
  bool holds(std::uint64_t begin, std::uint64_t end) const;

 private:
  explicit PageCache(std::span<std::byte> map);
  bool holds_any() const;
  bool holds_page(std::uint64_t at) const;

  std::span<std::byte> map_;
  std::uint64_t page_bytes_;
};

}  // namespace sluice
