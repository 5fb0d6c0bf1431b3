// SPDX-License-Identifier: MIT
// The store stages of a lane whose contents are files: FileSetSink writes them (dump), FileSetSource reads
// them (restore). Each file is open from its first chunk to its last, so that thousands of small files are
// never open at once.
//
// FileSetSink: after a file's last chunk, an Op of its last slot adds its clones and makes it durable, while
// others are written. As many files as there are slots are synced at once, which costs a journalling file
// system little more than one. Then the file is closed. No file has its name before commit(). Thread-bound to
// the lane, except for commit().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "pipeline/layout.h"
#include "pipeline/reactor/reactor.h"
#include "pipeline/stage.h"
#include "pipeline/store/fair_share.h"
#include "pipeline/store/file_reader.h"
#include "pipeline/store/file_writer.h"

namespace sluice {

// The common part: the files' names and chunks, and the lane's share of the disk.
class FileSet : public Stage {
 public:
  // `dir_fd`, `layout` and `reactor` are borrowed. `names`: one per file of the layout.
  FileSet(int dir_fd, std::vector<std::string> names, const ImageLayout& layout, Reactor& reactor,
          const FileOptions& options);

  const char* name() const final { return "store"; }
  // Whether any file so far bypasses the page cache.
  bool direct() const { return direct_; }

 protected:
  // As Stage::submit(), for an open file. A chunk that moves nothing takes no turn on the disk.
  Submit begin(FileRuns& file, Slot& slot);
  // As Stage::advance().
  Result<Progress> go_on(FileRuns& file, Slot& slot, Op& op, std::int32_t result);
  // Counts a finished chunk. True: it was the file's last.
  bool was_last(std::uint32_t file) { return --chunks_left_[file] == 0; }

  const int dir_fd_;
  const std::vector<std::string> names_;
  const ImageLayout& layout_;
  Reactor& reactor_;
  const FileOptions options_;

 private:
  FairShare::Member share_;                 // the lane's, for all its files
  std::vector<std::uint64_t> chunks_left_;  // by file
  bool direct_ = false;
};

class FileSetSink final : public FileSet {
 public:
  using FileSet::FileSet;

  // Errors: those of FileWriter::create(), for a file's first chunk.
  Result<Submit> submit(Slot& slot) override;
  Result<Progress> advance(Slot& slot, Op& op, std::int32_t result) override;
  // Checks that every file is complete. Errors: EIO if not.
  Result<void> finish() override;

  // Before commit(): the files' final names.
  void set_names(std::vector<std::string> names);
  // As FileWriter::commit(), for all files. After an error some have their names; the caller removes them.
  Result<void> commit();

 private:
  // Steps for a file whose chunks are done and that has its clones; the second step is the last.
  Result<Progress> make_durable(FileWriter& writer, Op& op);
  Result<Progress> complete(FileWriter& writer);

  std::vector<std::unique_ptr<FileWriter>> writers_{names_.size()};  // by file, from its first chunk on
  std::vector<bool> cloning_ = std::vector<bool>(names_.size());     // by file: it is getting its clones
  std::size_t files_left_ = names_.size();
};

// The common part of sources: a reader per file, from its first chunk to its last.
template <class Reader>
class ReadingSet : public FileSet {
 public:
  using FileSet::FileSet;

  // Errors: those of open_reader(), for a file's first chunk.
  Result<Submit> submit(Slot& slot) final {
    std::unique_ptr<Reader>& reader = readers_[slot.chunk.file];
    if (!reader) {
      SLUICE_TRY_ASSIGN(reader, open_reader(slot.chunk.file));
    }
    return begin(*reader, slot);
  }
  Result<Progress> advance(Slot& slot, Op& op, std::int32_t result) final {
    std::unique_ptr<Reader>& reader = readers_[slot.chunk.file];
    Result<Progress> progress = go_on(*reader, slot, op, result);
    if (progress && *progress == Progress::Pending) return progress;
    // Failed chunks count, too: a caller that goes on must not run out of descriptors.
    if (was_last(slot.chunk.file)) reader.reset();
    return progress;
  }

 protected:
  virtual Result<std::unique_ptr<Reader>> open_reader(std::uint32_t file) = 0;

 private:
  std::vector<std::unique_ptr<Reader>> readers_{names_.size()};  // by file
};

class FileSetSource final : public ReadingSet<FileReader> {
 public:
  using ReadingSet::ReadingSet;
  // Checks every file before any chunk is read: errors as FileReader::open(), EBADMSG for a wrong size.
  static Result<std::unique_ptr<FileSetSource>> open(int dir_fd, std::vector<std::string> names,
                                                     const ImageLayout& layout, Reactor& reactor,
                                                     const FileOptions& options);

 private:
  Result<std::unique_ptr<FileReader>> open_reader(std::uint32_t file) override;
};

}  // namespace sluice
