// SPDX-License-Identifier: MIT
#include "pipeline/extents/extent_reader.h"

#include <fcntl.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/image_file.h"
#include "base/units.h"
#include "pipeline/store/file_reader.h"

namespace sluice {
namespace {

void fill_with_zeros(Slot& slot, std::uint64_t begin, std::uint64_t end) {
  std::memset(&slot.buffer[static_cast<std::size_t>(begin)], 0, static_cast<std::size_t>(end - begin));
}

// [begin, end) of the chunk is zero: marks whole units of it and clears the rest.
void make_zeros(Slot& slot, std::uint64_t begin, std::uint64_t end) {
  const std::uint64_t first = align_up(begin, kZeroUnitBytes);
  const std::uint64_t last = end == slot.chunk.length ? end : align_down(end, kZeroUnitBytes);
  if (first >= last) return fill_with_zeros(slot, begin, end);
  if (begin < first) fill_with_zeros(slot, begin, first);
  for (std::uint64_t at = first; at < last; at += kZeroUnitBytes)
    slot.zero_units[static_cast<std::size_t>(at / kZeroUnitBytes)] = true;
  if (last < end) fill_with_zeros(slot, last, end);
}

}  // namespace

const Extent& ExtentMap::at(std::uint64_t offset) const {
  const auto after =
      std::upper_bound(extents.begin(), extents.end(), offset,
                       [](std::uint64_t wanted, const Extent& extent) { return wanted < extent.begin; });
  return *std::prev(after);
}

Result<std::unique_ptr<ExtentReader>> ExtentReader::open(const ExtentMap& map, const ImageLayout& layout,
                                                         std::uint32_t file, Reactor& reactor,
                                                         const FileOptions& options) {
  assert(!map.extents.empty() && map.extents.back().end == layout.file_bytes(file));
  std::unique_ptr<ExtentReader> reader(new ExtentReader(map, reactor, options.reader));
  for (const ExtentFile& each : map.files)
    SLUICE_TRY(reader->open_source(each, layout, file, options.io_mode));
  return reader;
}

ExtentReader::ExtentReader(const ExtentMap& map, Reactor& reactor, SharedReader* shared)
    : FileRuns(map.files.empty() ? std::string() : map.files.front().words, reactor,
               {"read", EBADMSG, ": the file ends early"}),
      map_(map),
      shared_(shared) {}

Result<void> ExtentReader::open_source(const ExtentFile& file, const ImageLayout& layout,
                                       std::uint32_t number, IoMode mode) {
  auto opened = open_image_file(file.dir_fd, file.name);
  if (!opened) return explain(file.words, opened.error());
  if (file.bytes != ExtentFile::kAnyBytes)
    SLUICE_TRY(check_pages_file(file.words, opened->status, file.bytes));
  if (file.must_be_private && !is_private(opened->status)) {
    return Error{
        // unreached: a race
        EACCES,
        file.words + " is a parent's file that is not this user's alone; chown it, and chmod 0600 [SL-I03]"};
  }
  Source source;
  source.fd = std::move(opened->fd);
  source.cached = file.shared && shared_ == nullptr && mode == IoMode::Auto;
  if (source.cached) mode = IoMode::Buffered;
  SLUICE_TRY_ASSIGN(source.alignment, set_up_io(source.fd.get(), mode, layout, number, file.words));
  // A chunk is large enough without the kernel's reading ahead, which would take it in small pieces.
  if (source.cached) (void)::posix_fadvise(source.fd.get(), 0, 0, POSIX_FADV_NORMAL);
  if (file.shared && shared_ != nullptr) source.shared = shared_->add(source.fd.get());
  if (source.alignment > 1) {
    SLUICE_TRY_ASSIGN(ImageFile buffered, open_image_file(file.dir_fd, file.name));
    source.buffered_fd = std::move(buffered.fd);
    (void)::posix_fadvise(source.buffered_fd.get(), 0, 0, POSIX_FADV_RANDOM);
  }
  alignment_ = std::max(alignment_, source.alignment);
  sources_.push_back(std::move(source));
  return {};
}

// Whether a block of it is a block of the other file.
bool ExtentReader::may_be_direct(const Extent& extent) const {
  const std::uint64_t alignment = sources_[extent.file].alignment;
  return alignment > 1 && is_aligned(extent.offset - extent.begin, alignment);
}

bool ExtentReader::is_direct(const Slot& slot, const Op& op) const {
  const std::uint64_t begin = slot.chunk.file_offset + op.begin;
  const Extent& extent = map_.at(begin);
  const std::uint64_t alignment = sources_[extent.file].alignment;
  return may_be_direct(extent) && is_aligned(begin, alignment) && is_aligned(op.end - op.begin, alignment);
}

bool ExtentReader::moves_any(const Slot& slot) const {
  const std::uint64_t end = slot.chunk.file_offset + slot.chunk.length;
  for (const Extent* extent = &map_.at(slot.chunk.file_offset); extent->begin < end; ++extent) {
    if (!extent->is_zeros()) return true;
    if (extent == &map_.extents.back()) return false;
  }
  return false;
}

void ExtentReader::prepare(Slot& slot) {
  std::fill(slot.zero_units.begin(), slot.zero_units.end(), false);
  const std::uint64_t chunk_begin = slot.chunk.file_offset;
  for (std::uint64_t at = 0; at < slot.chunk.length;) {
    const Extent& extent = map_.at(chunk_begin + at);
    const std::uint64_t end = std::min(extent.end - chunk_begin, slot.chunk.length);
    if (extent.is_zeros()) make_zeros(slot, at, end);
    at = end;
  }
}

// An extent has up to three runs: up to the first block's begin, its blocks, and the rest.
bool ExtentReader::next_run(Slot& slot, Op& op) const {
  const std::uint64_t chunk_begin = slot.chunk.file_offset;
  while (slot.cursor < slot.chunk.length) {
    const Extent& extent = map_.at(chunk_begin + slot.cursor);
    const std::uint64_t begin = slot.cursor;
    std::uint64_t end = std::min(extent.end - chunk_begin, slot.chunk.length);
    slot.cursor = end;
    if (extent.is_zeros()) continue;
    if (may_be_direct(extent)) {
      const std::uint64_t alignment = sources_[extent.file].alignment;
      if (!is_aligned(begin, alignment)) {
        end = std::min(end, align_up(begin, alignment));
      } else if (end - begin >= alignment) {
        end = align_down(end, alignment);
      }
    }
    op.begin = begin;
    op.end = slot.cursor = end;
    return true;
  }
  return false;
}

std::uint64_t ExtentReader::alignment_of(const Slot& slot, const Op& op) const {
  return is_direct(slot, op) ? sources_[map_.at(slot.chunk.file_offset + op.begin).file].alignment : 1;
}

std::string ExtentReader::describe(const Slot& slot, const Op& op) const {
  const std::uint64_t begin = slot.chunk.file_offset + op.begin;
  const Extent& extent = map_.at(begin);
  const std::uint64_t offset = extent.offset + (begin - extent.begin);
  return map_.files[extent.file].words + " [" + std::to_string(offset) + ", " +
         std::to_string(offset + (op.end - op.begin)) + ")";
}

void ExtentReader::transfer(Slot& slot, Op& op, std::span<std::byte> bytes, std::uint64_t at) {
  const Extent& extent = map_.at(at);
  Source& source = sources_[extent.file];
  const std::uint64_t offset = extent.offset + (at - extent.begin);
  if (source.shared != nullptr && take_shared(slot, op, *source.shared, bytes, offset)) return;
  if (source.cached) drop_behind(source, offset);
  const bool buffered = source.buffered_fd && !is_direct(slot, op);
  reactor_.read(op, buffered ? source.buffered_fd.get() : source.fd.get(), bytes, offset);
}

ExtentReader::Wait& ExtentReader::wait_of(const Slot& slot, const Op& op) {
  const std::size_t number = slot.index * kOpsPerSlot + op.tag;
  if (number >= waits_.size()) waits_.resize(number + 1);
  return waits_[number];
}

// False: the lane has to read it. True: the Op completes with what was copied, or once the disk has read.
bool ExtentReader::take_shared(Slot& slot, Op& op, const SharedReader::File& file, std::span<std::byte> bytes,
                               std::uint64_t offset) {
  SharedReader::Piece piece = shared_->get(file, offset);
  if (!piece) return false;
  Wait& wait = wait_of(slot, op);
  if (!wait.event) wait.event.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wait.event) return false;
  if (piece.waits(wait.event.get())) {
    wait.piece = std::move(piece);
    reactor_.poll_readable(op, wait.event.get(), kForEver);
    return true;
  }
  const std::size_t copied = piece.copy(offset, bytes);
  if (copied > 0) reactor_.post(op, static_cast<std::int32_t>(copied));
  return copied > 0;
}

bool ExtentReader::only_waited(const Slot& slot, const Op& op) {
  if (shared_ == nullptr) return false;
  Wait& wait = wait_of(slot, op);
  if (!wait.piece) return false;
  wait.piece = {};
  eventfd_t ignored = 0;
  (void)::eventfd_read(wait.event.get(), &ignored);
  return true;
}

// In steps of a quarter, because each call costs something.
void ExtentReader::drop_behind(Source& source, std::uint64_t offset) {
  if (offset < source.dropped + kKeptBytes) return;
  const std::uint64_t end = offset - kKeptBytes * 3 / 4;
  (void)::posix_fadvise(source.fd.get(), static_cast<off_t>(source.dropped),
                        static_cast<off_t>(end - source.dropped), POSIX_FADV_DONTNEED);
  source.dropped = end;
}

}  // namespace sluice
