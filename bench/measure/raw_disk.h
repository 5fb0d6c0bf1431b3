// SPDX-License-Identifier: MIT
// What the disk can do: the raw speed of direct writes and reads, measured with nothing of the engine but in
// its shape: one thread, ring and file per lane, blocks of one size at one depth, registered buffers in huge
// pages, all lanes at once; writes count until fdatasync and close have returned. Where io_uring is refused
// the blocks go one by one per lane, and where the file system has no O_DIRECT through the page cache; both
// are told.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/result.h"
#include "measure/sample.h"

namespace sluice::bench {

// What the file is when a write begins. A block of a new file must be found and its extent be made, one of an
// allocated file (fallocate) must be turned from unwritten into written, one of a rewritten file is there.
enum class FillState : std::uint8_t { New, Allocated, Rewritten };
const char* name_of(FillState fill);

struct RawPlan {
  std::vector<std::filesystem::path> files;  // one lane each
  std::uint64_t bytes_per_file = 0;          // rounded down to whole blocks, one at least
  std::uint64_t block_bytes = 0;             // a multiple of the alignment of direct I/O
  std::uint32_t depth = 0;                   // blocks in flight per file
  FillState fill = FillState::New;
  bool registered = true;  // buffers known to the ring beforehand, where that is allowed
  bool fsync = false;      // ends writes, instead of fdatasync
};

// Buffers and rings are made once and touched; runs may be repeated and mixed. One thread calls.
class RawDisk {
 public:
  // Errors: ENOMEM (buffers).
  static Result<std::unique_ptr<RawDisk>> make(RawPlan plan);
  ~RawDisk();

  // Brings about the fill state.
  Result<void> prepare();
  // prepare(), then the clock starts.
  Result<Sample> write();
  // REQUIRES: nothing has been written since prepare().
  Result<Sample> write_prepared();
  // The files must be there: written by write(), or whoever made them as long at least.
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
