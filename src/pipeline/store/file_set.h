// SPDX-License-Identifier: MIT
// The store stages of a lane whose layout has several files: each file is open from its first chunk to its
// last, so that thousands of small files are never open at once. Small ones are not read and written
// directly, unless asked for: to find out whether that can be done costs more than it brings.
//
// FileSetSink: a file that is complete is made durable by an Op of its last slot, while others are written:
// as many at once as there are slots, which costs a journalling file system little more than one. Then it is
// closed. Nothing has its name before commit(). Thread-bound to the lane, but for commit().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "pipeline/store/file_store.h"

namespace sluice {

class FileSet : public Stage {
 public:
  // Of the files so far: one at least does not go through the page cache.
  bool direct() const { return direct_; }

 protected:
  bool direct_ = false;
};

class FileSetSink final : public FileSet {
 public:
  // `names`: one per file of the layout. Otherwise as FileSink::create, which is called when a file's first
  // chunk comes.
  FileSetSink(int dir_fd, std::vector<std::string> names, const ImageLayout& layout, Reactor& reactor,
              const FileOptions& options);

  const char* name() const override { return "store"; }
  Result<Submit> submit(Slot& slot) override;
  Result<Progress> advance(Slot& slot, Op& op, std::int32_t result) override;
  // Every file is complete. Errors: EIO if not.
  Result<void> finish() override;

  // Before commit(): the names that the files get.
  void set_names(std::vector<std::string> names);
  // As FileSink::commit, of all files. Errors leave some with their names; the caller removes them.
  Result<void> commit();

 private:
  struct File {
    std::string name;
    std::unique_ptr<FileSink> sink;  // from the first chunk on
    std::uint64_t chunks_left = 0;
    bool syncing = false;  // its last slot waits for that
  };

  int dir_fd_;
  const ImageLayout& layout_;
  Reactor& reactor_;
  FileOptions options_;  // of a file: without sync, that is the set's
  bool sync_;
  FairShare::Member share_;  // the lane's: all files are its
  std::vector<File> files_;
  std::uint64_t files_left_;
};

class FileSetSource final : public FileSet {
 public:
  // `names`: one per file of the layout. Every file is looked at: as FileSource::open, EBADMSG for one that
  // has not the size it must have, before any chunk is read.
  static Result<std::unique_ptr<FileSetSource>> open(int dir_fd, std::vector<std::string> names,
                                                     const ImageLayout& layout, Reactor& reactor,
                                                     const FileOptions& options);

  const char* name() const override { return "store"; }
  Result<Submit> submit(Slot& slot) override;
  Result<Progress> advance(Slot& slot, Op& op, std::int32_t result) override;

 private:
  struct File {
    std::string name;
    std::unique_ptr<FileSource> source;  // from the first chunk to the last
    std::uint64_t chunks_left = 0;
  };
  FileSetSource(int dir_fd, std::vector<std::string> names, const ImageLayout& layout, Reactor& reactor,
                const FileOptions& options);

  int dir_fd_;
  const ImageLayout& layout_;
  Reactor& reactor_;
  FileOptions options_;
  FairShare::Member share_;
  std::vector<File> files_;
};

}  // namespace sluice
