// SPDX-License-Identifier: MIT
// Writes one pages file of a dump. No stage: FileSetSink has one per file.
//
// An incomplete file never looks complete: "<name>.tmp" is written (mode 0600, exclusive), and only commit()
// renames it. The destructor of a writer that has not committed unlinks the temporary file. Symbolic links
// are not followed (image_file.h).
//
// A chunk's file range is aligned by construction. The last chunk is zero-padded to the alignment, and cut()
// removes the excess. Zero units become holes, because the file is new and has its size before the first
// write; with holes off every byte is written. Parts that a dump's parent has are never written, and their
// holes mean nothing. Thread-bound to the lane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "pipeline/layout.h"
#include "pipeline/store/file_runs.h"

namespace sluice {

// What a file is called until it is committed.
std::string temporary_name_of(const std::string& name);

class FileWriter final : public FileRuns {
 public:
  // Creates "<name>.tmp" in `dir_fd` (borrowed; must stay open until commit() or destruction), replacing a
  // stale one, or takes over the file called `name`. Sizes it for `file` of the layout; chunks of other files
  // must not come. Slot buffers must be aligned to kBufferAlignment. Errors: those of openat, statx,
  // ftruncate, and with reuse of renameat and fsync.
  static Result<std::unique_ptr<FileWriter>> create(int dir_fd, std::string name, const ImageLayout& layout,
                                                    std::uint32_t file, Reactor& reactor,
                                                    const FileOptions& options);
  ~FileWriter() override;

  bool reused() const { return reused_; }

  // Its name until commit(), for messages.
  const std::string& temporary_name() const { return temporary_; }

  // After the last chunk: gives the file its final size. Then it can be made durable.
  Result<void> cut();
  bool is_cut() const { return cut_; }
  // Closes the file, which is a file system's last chance to report lost data. Calls cut() if that has not
  // been done. Does not make it durable.
  Result<void> finish();

  // For a file whose name was unknown when it was begun. Before commit().
  void set_name(std::string name) { name_ = std::move(name); }
  // Renames the temporary file to its name. The caller syncs the directory once for all files.
  // REQUIRES: finish() succeeded. May be called from another thread after the lane ended, as may set_name().
  Result<void> commit();

 private:
  FileWriter(int dir_fd, std::string name, std::uint64_t file_bytes, Reactor& reactor);
  Result<void> take_over();
  void transfer(Slot& slot, Op& op, std::span<std::byte> bytes, std::uint64_t at) override;

  int dir_fd_;
  std::string temporary_;
  std::uint64_t file_bytes_;
  bool created_ = false;  // temporary_ exists, and is ours
  bool reused_ = false;
  bool cut_ = false;
};

}  // namespace sluice
