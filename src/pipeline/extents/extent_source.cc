// SPDX-License-Identifier: MIT
#include "pipeline/extents/extent_source.h"

#include <string>
#include <utility>

namespace sluice {

ExtentSource::ExtentSource(std::vector<ExtentMap> maps, const ImageLayout& layout, Reactor& reactor,
                           const FileOptions& options)
    : ReadingSet(-1, std::vector<std::string>(maps.size()), layout, reactor, options),
      maps_(std::move(maps)) {}

Result<std::unique_ptr<ExtentReader>> ExtentSource::open_reader(std::uint32_t file) {
  return ExtentReader::open(maps_[file], layout_, file, reactor_, options_);
}

std::string ExtentSource::describe(std::uint32_t file, std::uint64_t offset) const {
  const ExtentMap& map = maps_[file];
  const Extent& extent = map.at(offset);
  if (extent.is_zeros() || map.files.size() == 1) return {};
  return " in " + map.files[extent.file].words + ", at " +
         std::to_string(extent.offset + (offset - extent.begin));
}

}  // namespace sluice
