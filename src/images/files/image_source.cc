// SPDX-License-Identifier: MIT
#include "images/files/image_source.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/image_file.h"
#include "images/files/files.h"

namespace sluice {
namespace {

class FileStream final : public ByteStream {
 public:
  FileStream(const ImageFile& file, const std::string& name) : file_(file), name_(name) {}

  // The page cache returns a hole's zeros as fast as anyone could read them.
  std::uint64_t zeros_ahead(std::uint64_t /*most*/) override { return 0; }

  Result<void> read(std::span<std::byte> into) override {
    while (!into.empty()) {
      const ssize_t got =
          TEMP_FAILURE_RETRY(::pread(file_.fd.get(), into.data(), into.size(), static_cast<off_t>(at_)));
      if (got <= 0)
        return make_error(got < 0 ? errno : EBADMSG, "read " + name_ + " at " + std::to_string(at_));
      at_ += static_cast<std::uint64_t>(got);
      into = into.subspan(static_cast<std::size_t>(got));
    }
    return {};
  }
  Result<void> skip(std::uint64_t bytes) override {
    at_ += bytes;
    return {};
  }

 private:
  const ImageFile& file_;
  const std::string& name_;
  std::uint64_t at_ = 0;
};

}  // namespace

Result<std::vector<std::string>> DirectorySource::names() const {
  return list_names(dir_fd_);
}

Result<std::vector<std::uint8_t>> DirectorySource::read(const std::string& name, std::uint64_t most) const {
  SLUICE_TRY_ASSIGN(const ImageFile file, open_image_file(dir_fd_, name));
  return read_whole(file, most, name);
}

Result<SourceFile> DirectorySource::look(const std::string& name) const {
  SLUICE_TRY_ASSIGN(const ImageFile file, open_image_file(dir_fd_, name));
  return SourceFile{static_cast<std::uint64_t>(file.status.st_size),
                    static_cast<std::uint64_t>(file.status.st_blocks) * 512};
}

// A file system without holes reports none.
std::uint64_t DirectorySource::hole_bytes(const std::string& name) const {
  const auto file = open_image_file(dir_fd_, name);
  if (!file) return 0;  // unreached: a guard
  const int fd = file->fd.get();
  std::uint64_t holes = 0;
  off_t at = 0;
  const off_t end = file->status.st_size;
  while (at < end) {
    off_t data = ::lseek(fd, at, SEEK_DATA);
    if (data < 0 && errno != ENXIO) return 0;
    if (data < 0 || data > end) data = end;
    holes += static_cast<std::uint64_t>(data - at);
    if (data == end) break;
    at = ::lseek(fd, data, SEEK_HOLE);
    if (at <= data) break;  // unreached: a race
  }
  return holes;
}

Result<void> DirectorySource::stream(const std::set<std::string>& names, const Take& take) const {
  for (const std::string& name : names) {
    SLUICE_TRY_ASSIGN(const ImageFile file, open_image_file(dir_fd_, name));
    (void)::posix_fadvise(file.fd.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
    FileStream bytes(file, name);
    SLUICE_TRY(take(name, bytes));
  }
  return {};
}

Result<std::vector<std::uint8_t>> ImageSource::load(const std::string& name) const {
  return read_image(*this, name);
}

Result<std::vector<std::uint8_t>> read_image(const ImageSource& source, const std::string& name) {
  SLUICE_TRY_ASSIGN(std::vector<std::uint8_t> bytes, source.read(name, kLargestImageBytes));
  return unframe(std::move(bytes), name);
}

}  // namespace sluice
