// SPDX-License-Identifier: MIT
// The store stage of a restore from a dump with a parent: like FileSetSource, for files whose bytes are in
// several (extent_reader.h). Thread-bound to the lane.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "pipeline/extents/extent_reader.h"
#include "pipeline/store/file_set.h"

namespace sluice {

class ExtentSource final : public ReadingSet<ExtentReader> {
 public:
  // `maps`: one per file of the layout. A file's sources are opened when its first chunk comes.
  ExtentSource(std::vector<ExtentMap> maps, const ImageLayout& layout, Reactor& reactor,
               const FileOptions& options);

  // Which file has the byte at `offset` of the layout's file: " in NAME, at 4096". Empty if there is only
  // one, and for zeros that no file has. Any thread.
  std::string describe(std::uint32_t file, std::uint64_t offset) const;

 private:
  Result<std::unique_ptr<ExtentReader>> open_reader(std::uint32_t file) override;

  const std::vector<ExtentMap> maps_;
};

}  // namespace sluice
