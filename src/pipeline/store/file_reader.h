// SPDX-License-Identifier: MIT
// Reads one pages file of a restore. No stage: FileSetSource has one per file.
//
// Holes are marked, not read. Symbolic links are not followed (image_file.h). With IoMode::Auto, chunks of a
// direct file that are in the page cache are read from there. Thread-bound to the lane.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/unique_fd.h"
#include "pipeline/layout.h"
#include "pipeline/store/file_runs.h"
#include "pipeline/store/page_cache.h"

namespace sluice {

// Whether a file may be read: EINVAL unless it is a regular file, EBADMSG for the wrong size, both with its
// name.
Result<void> check_pages_file(const std::string& name, const struct stat& status, std::uint64_t file_bytes);
// Only the second check, of a file that has `bytes`.
Result<void> check_pages_size(const std::string& name, std::uint64_t bytes, std::uint64_t file_bytes);

// begin() marks holes of the chunk in slot.zero_units; their buffer bytes are then undefined. A reader is
// busy() while a chunk comes from the page cache. The kernel copies it within the starting call, and its
// bytes should be used while the processor's caches have them.
class FileReader final : public FileRuns {
 public:
  // Opens `name` in `dir_fd`, `file` of the layout. It must be exactly layout.file_bytes(file) long, else
  // EBADMSG with both sizes; so a truncated image is found before any BO is made or filled. Slot buffers must
  // be aligned to kBufferAlignment. Errors: those of open_image_file().
  static Result<std::unique_ptr<FileReader>> open(int dir_fd, std::string name, const ImageLayout& layout,
                                                  std::uint32_t file, Reactor& reactor, IoMode mode);

 private:
  FileReader(std::string name, std::uint64_t file_bytes, Reactor& reactor);
  void open_cache(int dir_fd);
  void prepare(Slot& slot) override;
  void mark_holes(Slot& slot);
  bool find_extent(std::uint64_t at);
  void transfer(Slot& slot, Op& op, std::span<std::byte> bytes, std::uint64_t at) override;

  std::uint64_t file_bytes_;
  UniqueFd cached_fd_;                // with a cache_: the same file, not direct
  std::unique_ptr<PageCache> cache_;  // for a direct file that is partly cached
  bool finds_holes_ = true;           // the file system supports SEEK_DATA
  // The last lseek result: [extent_begin_, extent_end_) is all data or all hole.
  std::uint64_t extent_begin_ = 0;
  std::uint64_t extent_end_ = 0;
  bool extent_is_hole_ = false;
};

}  // namespace sluice
