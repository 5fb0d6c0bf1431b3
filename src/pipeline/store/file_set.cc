// SPDX-License-Identifier: MIT
#include "pipeline/store/file_set.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cassert>
#include <utility>

#include "pipeline/extents/extent_cloner.h"

namespace sluice {

FileSet::FileSet(int dir_fd, std::vector<std::string> names, const ImageLayout& layout, Reactor& reactor,
                 const FileOptions& options)
    : dir_fd_(dir_fd),
      names_(std::move(names)),
      layout_(layout),
      reactor_(reactor),
      options_(options),
      share_(options.share, options.turn, options.most_on_disk),
      chunks_left_(names_.size()) {
  assert(names_.size() == layout.file_count());
  for (std::uint32_t file = 0; file < chunks_left_.size(); ++file)
    chunks_left_[file] = layout.chunks_of_file(file);
}

Submit FileSet::begin(FileRuns& file, Slot& slot) {
  direct_ = direct_ || file.direct();
  if (file.busy()) return Submit::Busy;
  slot.has_turn = file.moves_any(slot);
  if (slot.has_turn && !share_.begin()) return Submit::Busy;
  file.begin(slot);
  return Submit::Started;
}

Result<Progress> FileSet::go_on(FileRuns& file, Slot& slot, Op& op, std::int32_t result) {
  Result<Progress> progress = file.advance(slot, op, result);
  if (progress && *progress == Progress::Pending) return progress;
  if (slot.has_turn) share_.end();
  return progress;
}

Result<Submit> FileSetSink::submit(Slot& slot) {
  const std::uint32_t file = slot.chunk.file;
  std::unique_ptr<FileWriter>& writer = writers_[file];
  if (!writer) {
    SLUICE_TRY_ASSIGN(writer, FileWriter::create(dir_fd_, names_[file], layout_, file, reactor_, options_));
  }
  return begin(*writer, slot);
}

Result<Progress> FileSetSink::advance(Slot& slot, Op& op, std::int32_t result) {
  const std::uint32_t file = slot.chunk.file;
  FileWriter& writer = *writers_[file];
  if (writer.is_cut()) {
    if (result < 0) return make_error(-result, "sync " + writer.name());
    return complete(writer);
  }
  if (cloning_[file]) {
    SLUICE_TRY(options_.cloner->take(slot, result));
    return make_durable(writer, op);
  }
  SLUICE_TRY_ASSIGN(const Progress progress, go_on(writer, slot, op, result));
  if (progress == Progress::Pending || !was_last(file)) return progress;
  if (options_.cloner == nullptr) return make_durable(writer, op);
  cloning_[file] = true;
  options_.cloner->begin(slot, writer.fd(), writer.temporary_name(), reactor_);
  return Progress::Pending;
}

Result<Progress> FileSetSink::make_durable(FileWriter& writer, Op& op) {
  if (!options_.sync) return complete(writer);
  SLUICE_TRY(writer.cut());
  reactor_.sync_data(op, writer.fd());
  return Progress::Pending;
}

Result<Progress> FileSetSink::complete(FileWriter& writer) {
  SLUICE_TRY(writer.finish());
  --files_left_;
  return Progress::Done;
}

Result<void> FileSetSink::finish() {
  if (files_left_ == 0) return {};
  return make_error(EIO, std::to_string(files_left_) + " files are not complete");  // unreached: a guard
}

void FileSetSink::set_names(std::vector<std::string> names) {
  assert(names.size() == writers_.size());
  for (std::size_t i = 0; i < writers_.size(); ++i) writers_[i]->set_name(std::move(names[i]));
}

Result<void> FileSetSink::commit() {
  for (const auto& writer : writers_) SLUICE_TRY(writer->commit());
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
  return std::make_unique<FileSetSource>(dir_fd, std::move(names), layout, reactor, options);
}

Result<std::unique_ptr<FileReader>> FileSetSource::open_reader(std::uint32_t file) {
  return FileReader::open(dir_fd_, names_[file], layout_, file, reactor_, options_.io_mode);
}

}  // namespace sluice
