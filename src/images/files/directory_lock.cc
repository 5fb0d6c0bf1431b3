// SPDX-License-Identifier: MIT
#include "images/files/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <utility>

namespace sluice {

DirectoryLock& DirectoryLock::operator=(DirectoryLock&& other) noexcept {
  std::swap(directory_, other.directory_);
  return *this;
}

DirectoryLock::~DirectoryLock() {
  if (directory_) (void)::flock(directory_.get(), LOCK_UN);
}

Result<DirectoryLock> DirectoryLock::take(int directory) {
  UniqueFd own(::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!own) return make_error(errno, "open the image directory", Topic::Images);
  if (::flock(own.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
    return DirectoryLock(std::move(own));
  return Error{
      EBUSY,
      "another dump, pre-dump or sluice flatten writes into this directory; wait for its end, or use "
      "another directory [SL-T47]"};
}

}  // namespace sluice
