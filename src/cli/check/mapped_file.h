// SPDX-License-Identifier: MIT
// The bytes of a file that is a program or a plugin, read only. A path that is no regular file, or that
// cannot be read, has none. What shortens the file meanwhile ends the reader.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "base/unique_fd.h"
#include "base/units.h"

namespace sluice::cli {

class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    constexpr off_t kMostBytes = 64 * static_cast<off_t>(kMiB);  // Debian's criu has two
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat status {};
    if (!fd || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_size == 0 ||
        status.st_size > kMostBytes)
      return;
    const auto length = static_cast<std::size_t>(status.st_size);
    void* const map = ::mmap(nullptr, length, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (map != MAP_FAILED) bytes_ = {static_cast<const char*>(map), length};
  }
  ~MappedFile() {
    if (!bytes_.empty()) (void)::munmap(const_cast<char*>(bytes_.data()), bytes_.size());
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view bytes() const { return bytes_; }

 private:
  std::string_view bytes_;
};

}  // namespace sluice::cli
