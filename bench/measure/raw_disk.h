// SPDX-License-Identifier: MIT
// The limit of the disk: raw direct writes and reads, without the engine but like it. One thread, ring and
// file per lane, blocks of one size at one depth, registered buffers in huge pages, all lanes at once. Writes
// count until fdatasync and close have returned. If io_uring is refused, blocks go one by one per lane;
// without O_DIRECT, through the page cache. Both are reported.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/result.h"
#include "measure/sample.h"

namespace sluice::bench {

// The file's state when a write begins. New: blocks and extents must be allocated. Allocated (fallocate):
// extents must be converted from unwritten to written. Rewritten: everything exists.
enum class FillState : std::uint8_t { New, Allocated, Rewritten };
const char* name_of(FillState fill);

struct RawPlan {
  std::vector<std::filesystem::path> files;  // one lane each
  std::uint64_t bytes_per_file = 0;          // rounded down to whole blocks, at least one
  std::uint64_t block_bytes = 0;             // a multiple of the alignment of direct I/O
  std::uint32_t depth = 0;                   // blocks in flight per file
  FillState fill = FillState::New;
  bool registered = true;  // register the buffers with the ring, if allowed
  bool fsync = false;      // ends writes, instead of fdatasync
};

// Buffers and rings are made and touched once; runs may be repeated and mixed. One thread calls.
class RawDisk {
 public:
  // Errors: ENOMEM (buffers).
  static Result<std::unique_ptr<RawDisk>> make(RawPlan plan);
  ~RawDisk();

  // Prepares the fill state.
  Result<void> prepare();
  // prepare(), then a timed write.
  Result<Sample> write();
  // REQUIRES: nothing was written since prepare().
  Result<Sample> write_prepared();
  // The files must exist, at least that long: from write(), or made elsewhere.
  Result<Sample> read();
  // Removes the files.
  void remove();

  bool direct() const;      // of the last run: every lane did direct I/O
  bool ring() const;        // every lane has a ring
  bool registered() const;  // every lane's ring knows its buffers

 private:
  class Lane;
  explicit RawDisk(RawPlan plan);
  enum class Way : std::uint8_t { Write, Read };
  Result<Sample> run(Way way);

  RawPlan plan_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace sluice::bench
