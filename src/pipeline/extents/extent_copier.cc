// SPDX-License-Identifier: MIT
#include "pipeline/extents/extent_copier.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "base/format.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "pipeline/extents/extent_cloner.h"

namespace sluice {
namespace {

Result<void> read_all(int fd, std::span<std::byte> bytes, std::uint64_t at, const std::string& words) {
  while (!bytes.empty()) {
    const ssize_t got = TEMP_FAILURE_RETRY(::pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(at)));
    if (got <= 0)
      return make_error(got < 0 ? errno : EBADMSG, "read " + words + " at " + std::to_string(at),
                        Topic::Images);
    bytes = bytes.subspan(static_cast<std::size_t>(got));
    at += static_cast<std::uint64_t>(got);
  }
  return {};
}

// A direct file takes only aligned addresses; whole parts are aligned in the file.
Result<void> write_all(int fd, std::span<const std::byte> bytes, std::uint64_t at, const std::string& name) {
  while (!bytes.empty()) {
    const ssize_t done = TEMP_FAILURE_RETRY(::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(at)));
    if (done <= 0)
      return make_error(done < 0 ? errno : EIO, "write " + name + " at " + std::to_string(at), Topic::Images);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    at += static_cast<std::uint64_t>(done);
  }
  return {};
}

// Runs of one file, block by block: no unit crosses the end of a block.
class Copier {
 public:
  Copier(int fd, const std::string& name, std::uint32_t file, const RunSums& sums)
      : fd_(fd),
        name_(name),
        file_(file),
        layout_(*sums.layout),
        table_(sums.tables[file]),
        units_(layout_, table_.block_bytes),
        memory_(new (std::align_val_t{kBufferAlignment}) std::byte[table_.block_bytes]) {}

  Result<void> copy(int from, const CloneRun& run, const std::string& words,
                    const std::atomic<bool>* stopped) {
    const std::uint64_t end = run.begin + run.bytes;
    for (std::uint64_t at = run.begin; at < end;) {
      if (stopped != nullptr && *stopped) return Error{ECANCELED, "cancelled"};
      const std::uint64_t block = align_down(at, table_.block_bytes);
      const std::uint64_t until = std::min(end, block + table_.block_bytes);
      SLUICE_TRY(copy_part(from, block, at, until, run.offset - run.begin, words));
      at = until;
    }
    return {};
  }

 private:
  struct FreeAligned {
    void operator()(std::byte* bytes) const {
      ::operator delete[](bytes, std::align_val_t{kBufferAlignment});
    }
  };

  // [begin, end) of the file, within a block. `further`: by how much its offset in the source is higher,
  // modulo 2^64.
  Result<void> copy_part(int from, std::uint64_t block, std::uint64_t begin, std::uint64_t end,
                         std::uint64_t further, const std::string& words) {
    const std::uint64_t length = std::min(table_.block_bytes, layout_.file_bytes(file_) - block);
    std::vector<SumRange> whole;  // all units with a byte of the part, in the block
    SumRange range;
    for (SumRangeCursor ranges(layout_, units_, Chunk{0, block, length, file_}); ranges.next(range);) {
      if (block + range.begin < end && block + range.end > begin) whole.push_back(range);
    }
    const std::uint64_t first = block + whole.front().begin;
    // The part is aligned in memory as it is in the file.
    const std::span<std::byte> bytes(memory_.get() + (first - block),
                                     static_cast<std::size_t>(block + whole.back().end - first));
    SLUICE_TRY(read_all(from, bytes, first + further, words));
    for (const SumRange& unit : whole) {
      const std::span<const std::byte> its =
          bytes.subspan(static_cast<std::size_t>(block + unit.begin - first),
                        static_cast<std::size_t>(unit.end - unit.begin));
      if (table_.method.of(its) == table_.sums[static_cast<std::size_t>(unit.index)]) continue;
      return Error{
          EBADMSG,
          formatted("{} [{}, {}) cannot be shared, and differs from its {} sum; run sluice verify there, "
                    "and dump without this parent [SL-C90]",
                    words, block + unit.begin + further, block + unit.end + further, table_.method.name())};
    }
    return write_all(fd_, {memory_.get() + (begin - block), static_cast<std::size_t>(end - begin)}, begin,
                     name_);
  }

  int fd_;
  const std::string& name_;
  std::uint32_t file_;
  const ImageLayout& layout_;
  const SumTable& table_;
  UnitIndex units_;
  std::unique_ptr<std::byte[], FreeAligned> memory_;  // a block of the file
};

}  // namespace

Result<void> copy_runs(int fd, const std::string& name, std::uint32_t file, const CloneRuns& runs,
                       const RunSums& sums, const std::atomic<bool>* stopped) {
  Copier copier(fd, name, file, sums);
  UniqueFd from;
  std::optional<std::uint32_t> opened;  // its index
  for (const CloneRun& run : runs.runs) {
    if (opened != run.file) {
      SLUICE_TRY_ASSIGN(from, open_source(runs.files[run.file]));
      opened = run.file;
    }
    SLUICE_TRY(copier.copy(from.get(), run, runs.files[run.file].words, stopped));
  }
  return {};
}

}  // namespace sluice
