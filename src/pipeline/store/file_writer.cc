// SPDX-License-Identifier: MIT
#include "pipeline/store/file_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cassert>
#include <cstdio>
#include <cstring>

#include "base/format.h"
#include "base/image_file.h"
#include "base/units.h"

namespace sluice {

std::string temporary_name_of(const std::string& name) {
  return name + ".tmp";
}

Result<std::unique_ptr<FileWriter>> FileWriter::create(int dir_fd, std::string name,
                                                       const ImageLayout& layout, std::uint32_t file,
                                                       Reactor& reactor, const FileOptions& options) {
  std::unique_ptr<FileWriter> writer(
      new FileWriter(dir_fd, std::move(name), layout.file_bytes(file), reactor));
  const std::string& temporary = writer->temporary_;
  if (options.reuse) SLUICE_TRY(writer->take_over());
  if (!writer->fd_) {
    SLUICE_TRY_ASSIGN(writer->fd_, create_image_file(dir_fd, temporary));
  }
  writer->created_ = true;
  writer->every_unit_ = writer->reused_ || !options.holes;
  SLUICE_TRY_ASSIGN(writer->alignment_, set_up_io(writer->fd(), options.io_mode, layout, file, temporary));

  // Sized first: a write that extends the file would take the inode's lock exclusively, and skipped ranges
  // are holes. The padded tail is included; cut() removes it.
  const std::uint64_t bytes = align_up(writer->file_bytes_, writer->alignment_);
  if (::ftruncate(writer->fd(), static_cast<off_t>(bytes)) != 0)
    return make_error(errno, formatted("size {} to {} bytes", temporary, bytes), Topic::Images);
  return writer;
}

FileWriter::FileWriter(int dir_fd, std::string name, std::uint64_t file_bytes, Reactor& reactor)
    : FileRuns(std::move(name), reactor, {"write", EIO, ""}),
      dir_fd_(dir_fd),
      temporary_(temporary_name_of(name_)),
      file_bytes_(file_bytes) {}

FileWriter::~FileWriter() {
  fd_.reset();
  if (created_) (void)::unlinkat(dir_fd_, temporary_.c_str(), 0);
}

// Sets fd_ and reused_ if there is a file to take over. Three kinds of file are left alone, and replaced by
// the new file in the end. One has a second name. One may be open for another user, who could read the new
// contents. One has a lease, so that opening it without O_NONBLOCK would wait.
Result<void> FileWriter::take_over() {
  UniqueFd fd(::openat(dir_fd_, name_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0 || !is_private(status) || status.st_nlink != 1) return {};
  if (::fcntl(fd.get(), F_SETFL, 0) != 0) return make_error(errno, "set up " + name_, Topic::Images);
  if (::renameat(dir_fd_, name_.c_str(), dir_fd_, temporary_.c_str()) != 0)
    return make_error(errno, "rename " + name_ + " to " + temporary_, Topic::Images);
  created_ = true;
  // Before the first byte changes: after a crash nobody may find new bytes under the old name.
  const UniqueFd directory(::openat(dir_fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory || ::fsync(directory.get()) != 0)
    return make_error(errno, "sync the directory of " + name_, Topic::Images);
  fd_ = std::move(fd);
  reused_ = true;
  return {};
}

// The end of the file is padded to the alignment with zeros: the buffer is a whole chunk, and the bytes after
// the contents belong to nobody.
void FileWriter::transfer(Slot& /*slot*/, Op& op, std::span<std::byte> bytes, std::uint64_t at) {
  const auto padding = bytes.subspan(static_cast<std::size_t>(op.end - op.begin));
  if (!padding.empty()) std::memset(padding.data(), 0, padding.size());
  reactor_.write(op, fd_.get(), bytes, at);
}

Result<void> FileWriter::cut() {
  if (!is_aligned(file_bytes_, alignment_) && ::ftruncate(fd_.get(), static_cast<off_t>(file_bytes_)) != 0)
    return make_error(errno, formatted("cut {} to {} bytes", temporary_, file_bytes_), Topic::Images);
  cut_ = true;
  return {};
}

Result<void> FileWriter::finish() {
  if (!cut_) SLUICE_TRY(cut());
  if (::close(fd_.release()) != 0) return make_error(errno, "close " + temporary_, Topic::Images);
  return {};
}

Result<void> FileWriter::commit() {
  assert(created_ && !fd_);
  if (::renameat(dir_fd_, temporary_.c_str(), dir_fd_, name_.c_str()) != 0)
    return make_error(errno, "rename " + temporary_ + " to " + name_, Topic::Images);
  created_ = false;
  return {};
}

}  // namespace sluice
