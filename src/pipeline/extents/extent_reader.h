// SPDX-License-Identifier: MIT
// Reads one pages file of a restore whose bytes are in several files: those of a dump with a parent, and
// those of older dumps. No stage: ExtentSource has one per file.
//
// A shared file comes from the disk once for all who read it. Lanes of one process have a SharedReader.
// Lanes of several have the page cache: who comes first reads it in, who follows within kKeptBytes finds it
// there. What is further behind is dropped, so each reader leaves at most kKeptBytes of each shared file. A
// reader that is later than that reads the disk again; nobody waits.
//
// Extents begin and end anywhere. Whole blocks of an extent are read directly if they have the same alignment
// in the other file as in the slot's buffer. The edges are read through the page cache. Only extents say
// where a byte is; holes of a file are ordinary zeros. Thread-bound to the lane.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "pipeline/extents/shared_reader.h"
#include "pipeline/layout.h"
#include "pipeline/store/file_runs.h"

namespace sluice {

// A file that has some of the bytes.
struct ExtentFile {
  int dir_fd = -1;  // borrowed, until the last chunk is done
  std::string name;
  static constexpr std::uint64_t kAnyBytes = UINT64_MAX;

  std::uint64_t bytes = 0;      // its required size, or kAnyBytes
  std::string words;            // for messages: the name with its path
  bool must_be_private = true;  // is_private() (image_file.h)
  // Others read it, too, at about the same time.
  bool shared = false;
  int open_fd = -1;  // borrowed; -1: it is opened by its name
};

// [begin, end) of the file being read is in another file, or is zero. Bytes.
struct Extent {
  static constexpr std::uint32_t kZeros = UINT32_MAX;

  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint32_t file = kZeros;  // of ExtentMap::files
  std::uint64_t offset = 0;     // of `begin`, in that file

  bool is_zeros() const { return file == kZeros; }
  bool operator==(const Extent&) const = default;
};

struct ExtentMap {
  std::vector<ExtentFile> files;
  std::vector<Extent> extents;  // ascending, without a gap, all of the file

  // The extent of the byte at `offset` of the file.
  const Extent& at(std::uint64_t offset) const;
};

class ExtentReader final : public FileRuns {
 public:
  static constexpr std::uint64_t kKeptBytes = 256 * kMiB;

  // `map` is borrowed, for `file` of the layout, and ends with it. Slot buffers must be aligned to
  // kBufferAlignment. Errors: those of open_image_file(); EBADMSG for a file of another size; EACCES for one
  // that must be private and is not.
  static Result<std::unique_ptr<ExtentReader>> open(const ExtentMap& map, const ImageLayout& layout,
                                                    std::uint32_t file, Reactor& reactor,
                                                    const FileOptions& options);

  bool moves_any(const Slot& slot) const override;

 private:
  struct Source {
    UniqueFd fd;           // direct if possible
    UniqueFd buffered_fd;  // in addition to a direct one
    std::uint64_t alignment = 1;
    const SharedReader::File* shared = nullptr;  // the reader has it
    bool cached = false;                         // shared by the page cache
    std::uint64_t dropped = 0;                   // what is before it is in the page cache no longer
  };
  // An Op that waits for the shared reader.
  struct Wait {
    UniqueFd event;  // an eventfd, once there was one to wait for
    SharedReader::Piece piece;
  };
  static void drop_behind(Source& source, std::uint64_t offset);
  ExtentReader(const ExtentMap& map, Reactor& reactor, SharedReader* shared);
  Result<void> open_source(const ExtentFile& file, const ImageLayout& layout, std::uint32_t number,
                           IoMode mode);
  Wait& wait_of(const Slot& slot, const Op& op);
  bool take_shared(Slot& slot, Op& op, const SharedReader::File& file, std::span<std::byte> bytes,
                   std::uint64_t offset);
  bool may_be_direct(const Extent& extent) const;
  bool is_direct(const Slot& slot, const Op& op) const;
  void prepare(Slot& slot) override;
  bool next_run(Slot& slot, Op& op) const override;
  std::uint64_t alignment_of(const Slot& slot, const Op& op) const override;
  std::string describe(const Slot& slot, const Op& op) const override;
  void transfer(Slot& slot, Op& op, std::span<std::byte> bytes, std::uint64_t at) override;
  bool only_waited(const Slot& slot, const Op& op) override;

  const ExtentMap& map_;
  SharedReader* const shared_;
  std::vector<Source> sources_;  // by file of the map
  std::vector<Wait> waits_;      // by Op of a slot, as far as any has waited
};

}  // namespace sluice
