// SPDX-License-Identifier: MIT
// Which parts of a file are in the page cache, judged by samples: a wrong answer only costs time. Maps the
// file but never touches the map, so that checking reads nothing in. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace sluice {

class PageCache {
 public:
  // Null if no sample of the file is cached, or it cannot be mapped. `fd` is not kept.
  static std::unique_ptr<PageCache> of(int fd, std::uint64_t file_bytes);
  ~PageCache();
  PageCache(const PageCache&) = delete;
  PageCache& operator=(const PageCache&) = delete;

  // Whether every sample of [begin, end) is cached.
  bool holds(std::uint64_t begin, std::uint64_t end) const;

 private:
  explicit PageCache(std::span<std::byte> map);
  bool holds_any() const;
  bool holds_page(std::uint64_t at) const;

  std::span<std::byte> map_;
  std::uint64_t page_bytes_;
};

}  // namespace sluice
