// SPDX-License-Identifier: MIT
#include "corruption/directory_copy.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <system_error>

#include "base/unique_fd.h"
#include "corruption/basics.h"

namespace sluice::corruption_test {

namespace {

struct CloseDirectory {
  void operator()(DIR* directory) const { (void)::closedir(directory); }
};

std::vector<std::string> image_names(int dir_fd) {
  const std::unique_ptr<DIR, CloseDirectory> listing(
      ::fdopendir(::openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
  check(listing != nullptr, "list the images");
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(listing.get())) {
    const std::string name = entry->d_name;
    if (name.starts_with("amdgpu-")) names.push_back(name);
  }
  return names;
}

}  // namespace

DirectoryCopy::DirectoryCopy(int dir_fd) {
  for (const std::string& name : image_names(dir_fd)) {
    const UniqueFd fd(::openat(dir_fd, name.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat st {};
    check(fd && ::fstat(fd.get(), &st) == 0, name);
    FileCopy& copy = files_[name];
    copy.bytes.resize(static_cast<std::size_t>(st.st_size));
    for (off_t at = 0; (at = ::lseek(fd.get(), at, SEEK_DATA)) >= 0;) {
      const off_t end = ::lseek(fd.get(), at, SEEK_HOLE);
      const auto begin = static_cast<std::size_t>(at);
      const auto bytes = static_cast<std::size_t>(end - at);
      check(end > at && ::pread(fd.get(), &copy.bytes[begin], bytes, at) == end - at, name);
      copy.data.emplace_back(begin, begin + bytes);
      at = end;
    }
  }
}

void DirectoryCopy::put_back(int dir_fd, const std::string& name) const {
  const auto file = files_.find(name);
  if (file == files_.end()) {
    check(::unlinkat(dir_fd, name.c_str(), 0) == 0 || errno == ENOENT, name);
    return;
  }
  const UniqueFd fd(::openat(dir_fd, name.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  check(fd && ::ftruncate(fd.get(), static_cast<off_t>(file->second.bytes.size())) == 0, name);
  for (const auto& [begin, end] : file->second.data) {
    const std::size_t bytes = static_cast<std::size_t>(end - begin);
    check(::pwrite(fd.get(), &file->second.bytes[begin], bytes, static_cast<off_t>(begin)) ==
              static_cast<ssize_t>(bytes),
          name);
  }
}

}  // namespace sluice::corruption_test
