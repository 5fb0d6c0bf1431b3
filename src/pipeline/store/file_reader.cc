// SPDX-License-Identifier: MIT
#include "pipeline/store/file_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "base/image_file.h"
#include "base/units.h"

namespace sluice {

Result<void> check_pages_file(const std::string& name, const struct stat& status, std::uint64_t file_bytes) {
  SLUICE_TRY(check_regular(name, status));
  return check_pages_size(name, static_cast<std::uint64_t>(status.st_size), file_bytes);
}

Result<void> check_pages_size(const std::string& name, std::uint64_t bytes, std::uint64_t file_bytes) {
  if (bytes == file_bytes) return {};
  return Error{
      EBADMSG,
      formatted("{} has {} bytes, its BO table asks for {}; copy the file again, or use another checkpoint "
                "[SL-I04]",
                name, bytes, file_bytes)};
}

Result<std::unique_ptr<FileReader>> FileReader::open(int dir_fd, std::string name, const ImageLayout& layout,
                                                     std::uint32_t file, Reactor& reactor, IoMode mode) {
  const std::uint64_t file_bytes = layout.file_bytes(file);
  SLUICE_TRY_ASSIGN(ImageFile opened, open_image_file(dir_fd, name));
  SLUICE_TRY(check_pages_file(name, opened.status, file_bytes));
  std::unique_ptr<FileReader> reader(new FileReader(std::move(name), file_bytes, reactor));
  reader->fd_ = std::move(opened.fd);
  const int fd = reader->fd();
  SLUICE_TRY_ASSIGN(reader->alignment_, set_up_io(fd, mode, layout, file, reader->name_));
  if (!reader->direct()) (void)::posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  if (reader->direct() && mode == IoMode::Auto) reader->open_cache(dir_fd);
  return reader;
}

FileReader::FileReader(std::string name, std::uint64_t file_bytes, Reactor& reactor)
    : FileRuns(std::move(name), reactor, {"read", EBADMSG, ": the file ends early"}),
      file_bytes_(file_bytes) {}

void FileReader::open_cache(int dir_fd) {
  cache_ = PageCache::of(fd(), file_bytes_);
  if (!cache_) return;
  // Reading through the cache is an optimisation: without it there is no error.
  if (auto cached = open_image_file(dir_fd, name_)) cached_fd_ = std::move(cached->fd);
  // No read-ahead: chunks outside the cache are read directly.
  if (cached_fd_) (void)::posix_fadvise(cached_fd_.get(), 0, 0, POSIX_FADV_RANDOM);
}

void FileReader::prepare(Slot& slot) {
  std::fill(slot.zero_units.begin(), slot.zero_units.end(), false);
  mark_holes(slot);
  if (cached_fd_ && cache_->holds(slot.chunk.file_offset, slot.chunk.file_offset + slot.chunk.length))
    alone_ = &slot;
}

// Sets slot.zero_units of units that lie entirely in a hole. Chunks come in order: the last lseek result
// serves most calls, and a file without holes costs two calls in all.
void FileReader::mark_holes(Slot& slot) {
  const std::uint64_t chunk_begin = slot.chunk.file_offset;
  const std::uint64_t chunk_end = chunk_begin + slot.chunk.length;
  for (std::uint64_t at = chunk_begin; finds_holes_ && at < chunk_end;
       at = std::min(extent_end_, chunk_end)) {
    if (at < extent_begin_ || at >= extent_end_) {
      if (!find_extent(at)) return;
    }
    if (!extent_is_hole_) continue;
    // Whole units of [at, hole_end), counted from the chunk's begin; a unit cut short by the chunk's end
    // counts as whole.
    const std::uint64_t hole_end = std::min(extent_end_, chunk_end);
    for (std::uint64_t unit_begin = chunk_begin + align_up(at - chunk_begin, kZeroUnitBytes);
         unit_begin < hole_end; unit_begin += kZeroUnitBytes) {
      if (std::min(unit_begin + kZeroUnitBytes, chunk_end) > hole_end) break;
      slot.zero_units[static_cast<std::size_t>((unit_begin - chunk_begin) / kZeroUnitBytes)] = true;
    }
  }
}

// Looks up the data or hole that contains `at`. False, for good, if the file system cannot tell.
bool FileReader::find_extent(std::uint64_t at) {
  const auto offset = static_cast<off_t>(at);
  off_t data = ::lseek(fd_.get(), offset, SEEK_DATA);
  if (data < 0 && errno == ENXIO) {  // a hole up to the end, if the end has not moved
    struct stat status {};
    if (::fstat(fd_.get(), &status) == 0 && static_cast<std::uint64_t>(status.st_size) >= file_bytes_)
      data = static_cast<off_t>(file_bytes_);
  }
  if (data < offset) {
    finds_holes_ = false;
    return false;
  }
  extent_begin_ = at;
  extent_is_hole_ = data > offset;
  if (extent_is_hole_) {
    extent_end_ = static_cast<std::uint64_t>(data);
    return true;
  }
  const off_t hole = ::lseek(fd_.get(), offset, SEEK_HOLE);
  extent_end_ = hole > offset ? static_cast<std::uint64_t>(hole) : file_bytes_;
  return true;
}

// At the end of the file a direct read comes back short.
void FileReader::transfer(Slot& slot, Op& op, std::span<std::byte> bytes, std::uint64_t at) {
  reactor_.read(op, &slot == alone_ ? cached_fd_.get() : fd_.get(), bytes, at);
}

}  // namespace sluice
