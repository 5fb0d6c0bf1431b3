// SPDX-License-Identifier: MIT
// A disk that loses power: what a directory can look like afterwards, from a record of what was done to it.
//
// What was synced is there. Of the rest any part may be. A file may have each of its writes and cuts since
// its last sync, and each block of 4 KiB of a write. Of renames, removals and new names since the directory's
// last sync the first ones may be there, as on journalling file systems, or any of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "disk_record.h"
#include "support/rng.h"
#include "support/serial_writer.h"

namespace sluice::plugin_test {

struct DiskEvent {
  DiskOp op = DiskOp::Write;
  std::uint64_t inode = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::string name;
  std::string to;
  test::Bytes data;
};

// Throws at a record that is cut short.
std::vector<DiskEvent> read_disk_record(const std::filesystem::path& file);

// Contents by name.
using DirectoryState = std::map<std::string, test::Bytes>;

// The plugin's files of a directory that is all durable, with their inodes.
struct DurableDirectory {
  std::map<std::string, std::uint64_t> names;
  std::map<std::uint64_t, test::Bytes> inodes;
};
DurableDirectory read_durable(const std::filesystem::path& directory);

class CrashModel {
 public:
  explicit CrashModel(DurableDirectory before);

  // Goes on by one event.
  void apply(const DiskEvent& event);

  enum class Loss {
    Everything,  // that is not durable
    Nothing,
    Data,      // names have changed, files have not
    InOrder,   // by chance: the last changes of names, any of the data
    AnyOrder,  // by chance: any changes of names, any of the data
  };
  // The directory after a crash now.
  DirectoryState crash(Loss loss, test::Rng& rng) const;

 private:
  // File systems give an inode's number again, so files have numbers of our own.
  using FileNumber = std::uint64_t;
  struct NameChange {
    std::string from;  // goes; empty: none
    std::string to;    // comes; empty: none
    FileNumber file = 0;
    std::size_t at = 0;
  };
  struct DataChange {
    std::uint64_t offset = 0;  // of a write
    std::uint64_t length = 0;  // of a cut
    bool is_cut = false;
    test::Bytes data;
    std::size_t at = 0;
  };
  struct File {
    test::Bytes durable;
    std::vector<DataChange> pending;
    std::size_t sync_began = 0;
  };
  FileNumber add_file(std::uint64_t inode, test::Bytes durable);
  void change_name(NameChange change);
  File& file_of(const DiskEvent& event);

  std::size_t events_ = 0;
  std::vector<File> files_;                        // by number
  std::map<std::uint64_t, FileNumber> number_of_;  // by inode: the newest
  std::map<std::string, FileNumber> names_;        // as running programs see them
  std::map<std::string, FileNumber> durable_names_;
  std::vector<NameChange> pending_names_;
  std::size_t directory_sync_began_ = 0;
};

}  // namespace sluice::plugin_test
