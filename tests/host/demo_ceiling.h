// SPDX-License-Identifier: MIT
// What the disk can do: the raw speed of direct writes and reads, measured with nothing of the engine but in
// its shape: new files, one thread, ring and file per lane, blocks of one size at one depth, registered
// buffers in huge pages, all lanes at once; writes count until fdatasync and close have returned. Where
// io_uring is refused the blocks go one by one per lane, and where the file system has no O_DIRECT through
// the page cache; both are told.
#pragma once

#include <cstdint>
#include <filesystem>

#include "pipeline/result.h"

namespace sluice::host_test {

struct CeilingPlan {
  std::filesystem::path directory;
  std::uint32_t files = 1;  // lanes
  std::uint64_t bytes = 0;  // of all files together; rounded down to whole blocks per file
  std::uint64_t block_bytes = 0;
  std::uint32_t depth = 0;  // per file
};

struct Ceiling {
  double write_gbps = 0;  // 10^9 bytes per second
  double read_gbps = 0;
  bool direct = true;
  bool ring = true;
};

// Writes, reads, deletes the files. Buffers are touched before the clock starts.
Result<Ceiling> measure_ceiling(const CeilingPlan& plan);

}  // namespace sluice::host_test
