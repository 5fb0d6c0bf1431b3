// SPDX-License-Identifier: MIT
// One pages file of a checkpoint with a parent, as a stream of bytes from wherever the chain has them
// (Chain::resolve()). One thread.
#pragma once

#include <vector>

#include "images/files/image_source.h"
#include "pipeline/extents/extent_reader.h"

namespace sluice {

class ExtentStream final : public ByteStream {
 public:
  // `map` is borrowed. Errors: those of opening its files.
  static Result<ExtentStream> open(const ExtentMap& map);

  std::uint64_t zeros_ahead(std::uint64_t most) override;
  Result<void> read(std::span<std::byte> into) override;
  Result<void> skip(std::uint64_t bytes) override;

 private:
  explicit ExtentStream(const ExtentMap& map) : map_(&map) {}
  std::uint64_t end() const { return map_->extents.back().end; }

  const ExtentMap* map_;
  std::vector<UniqueFd> fds_;  // by file of the map
  std::uint64_t at_ = 0;
};

}  // namespace sluice
