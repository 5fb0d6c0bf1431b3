// SPDX-License-Identifier: MIT
#include "pipeline/store/file_set.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cassert>
#include <utility>

#include "base/units.h"

namespace sluice {
namespace {

constexpr std::uint64_t kSmallBytes = 256 * kKiB;

FileOptions for_file(FileOptions options, std::uint64_t file_bytes) {
  if (options.io_mode == IoMode::Auto && file_bytes <= kSmallBytes) options.io_mode = IoMode::Buffered;
  return options;
}

}  // namespace
FileSetSink::FileSetSink(int dir_fd, std::vector<std::string> names, const ImageLayout& layout,
                         Reactor& reactor, const FileOptions& options)
    : dir_fd_(dir_fd),
      layout_(layout),
      reactor_(reactor),
      options_(options),
      sync_(std::exchange(options_.sync, false)),
      share_(options.share, options.turn, options.most_on_disk),
      files_left_(names.size()) {
  options_.member = &share_;
  assert(names.size() == layout.file_count());
  files_.resize(names.size());
  for (std::uint32_t i = 0; i < files_.size(); ++i) {
    files_[i].name = std::move(names[i]);
    files_[i].chunks_left = layout.chunks_of_file(i);
  }
}

Result<Submit> FileSetSink::submit(Slot& slot) {
  File& file = files_[slot.chunk.file];
  if (!file.sink) {
    SLUICE_TRY_ASSIGN(file.sink, FileSink::create(dir_fd_, file.name, layout_, reactor_,
                                                  for_file(options_, layout_.file_bytes(slot.chunk.file)),
                                                  slot.chunk.file));
    direct_ = direct_ || file.sink->direct();
  }
  return file.sink->submit(slot);
}

Result<Progress> FileSetSink::advance(Slot& slot, Op& op, std::int32_t result) {
  File& file = files_[slot.chunk.file];
  if (!file.syncing) {
    SLUICE_TRY_ASSIGN(const Progress progress, file.sink->advance(slot, op, result));
    if (progress == Progress::Pending) return progress;
    if (--file.chunks_left > 0) return Progress::Done;
    if (sync_) {
      SLUICE_TRY(file.sink->cut());
      file.syncing = true;
      reactor_.sync_data(op, file.sink->fd());
      return Progress::Pending;
    }
  } else if (result < 0) {
    return make_error(-result, "sync " + file.name);
  }
  SLUICE_TRY(file.sink->finish());
  --files_left_;
  return Progress::Done;
}

Result<void> FileSetSink::finish() {
  if (files_left_ == 0) return {};
  return make_error(EIO, std::to_string(files_left_) + " files are not complete");
}

void FileSetSink::set_names(std::vector<std::string> names) {
  assert(names.size() == files_.size());
  for (std::size_t i = 0; i < files_.size(); ++i) {
    files_[i].sink->set_name(names[i]);
    files_[i].name = std::move(names[i]);
  }
}

Result<void> FileSetSink::commit() {
  for (const File& file : files_) SLUICE_TRY(file.sink->commit());
  return {};
}

Result<std::unique_ptr<FileSetSource>> FileSetSource::open(int dir_fd, std::vector<std::string> names,
                                                           const ImageLayout& layout, Reactor& reactor,
                                                           const FileOptions& options) {
  assert(names.size() == layout.file_count());
  for (std::uint32_t i = 0; i < names.size(); ++i) {
    struct stat status {};
    if (::fstatat(dir_fd, names[i].c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0)
      return make_error(errno, "open " + names[i]);
    SLUICE_TRY(check_pages_file(names[i], status, layout.file_bytes(i)));
  }
  return std::unique_ptr<FileSetSource>(
      new FileSetSource(dir_fd, std::move(names), layout, reactor, options));
}

FileSetSource::FileSetSource(int dir_fd, std::vector<std::string> names, const ImageLayout& layout,
                             Reactor& reactor, const FileOptions& options)
    : dir_fd_(dir_fd),
      layout_(layout),
      reactor_(reactor),
      options_(options),
      share_(options.share, options.turn, options.most_on_disk) {
  options_.member = &share_;
  files_.resize(names.size());
  for (std::uint32_t i = 0; i < files_.size(); ++i) {
    files_[i].name = std::move(names[i]);
    files_[i].chunks_left = layout.chunks_of_file(i);
  }
}

Result<Submit> FileSetSource::submit(Slot& slot) {
  File& file = files_[slot.chunk.file];
  if (!file.source) {
    SLUICE_TRY_ASSIGN(file.source, FileSource::open(dir_fd_, file.name, layout_, reactor_,
                                                    for_file(options_, layout_.file_bytes(slot.chunk.file)),
                                                    slot.chunk.file));
    direct_ = direct_ || file.source->direct();
  }
  return file.source->submit(slot);
}

Result<Progress> FileSetSource::advance(Slot& slot, Op& op, std::int32_t result) {
  File& file = files_[slot.chunk.file];
  Result<Progress> progress = file.source->advance(slot, op, result);
  if (progress && *progress == Progress::Pending) return progress;
  // A chunk that failed has been there, too: who goes on all the same is not to run out of descriptors.
  if (--file.chunks_left == 0) file.source.reset();
  return progress;
}

}  // namespace sluice
