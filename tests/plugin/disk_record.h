// SPDX-License-Identifier: MIT
// What a preloaded recorder (disk_recorder.cc) writes down of the plugin's files in one directory: every
// write, cut and sync, every rename and removal, in the order in which they were done.
#pragma once

#include <cstdint>

namespace sluice::plugin_test {

enum class DiskOp : std::uint32_t {
  Write,      // of `inode` at `offset`; the bytes follow
  Truncate,   // of `inode` to `length`
  SyncBegin,  // of `inode`: what was recorded before is durable when it ends
  SyncEnd,
  DirectorySyncBegin,  // of the directory: what was renamed and removed before
  DirectorySyncEnd,
  Rename,  // `name` to `to`
  Unlink,  // `name`
};

// Followed by `name`, `to` and the bytes of a write. `name` is the file's at the time.
struct DiskRecord {
  DiskOp op = DiskOp::Write;
  std::uint32_t name_bytes = 0;
  std::uint32_t to_bytes = 0;
  std::uint32_t data_bytes = 0;
  std::uint64_t inode = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

// Variables of the recorder: the directory, and the file for the record.
inline constexpr char kRecordDirectory[] = "DISK_RECORD_DIRECTORY";
inline constexpr char kRecordFile[] = "DISK_RECORD_FILE";

}  // namespace sluice::plugin_test
