// SPDX-License-Identifier: MIT
#include "base/image_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "base/clock.h"
#include "base/format.h"

namespace sluice {
namespace {

constexpr mode_t kPrivate = 0600;
// A stale file can come back between unlink and open only if another dump writes here: then give up.
constexpr int kMaxCreateAttempts = 8;

Error not_regular(const std::string& name) {
  return Error{EINVAL, name + " is not a regular file; move it out of the image directory [SL-I01]"};
}

}  // namespace

Result<void> check_regular(const std::string& name, const struct stat& status) {
  if (S_ISREG(status.st_mode)) return {};
  return not_regular(name);
}

bool is_private(const struct stat& status) {
  return S_ISREG(status.st_mode) && status.st_uid == ::geteuid() && (status.st_mode & 07777U) == kPrivate;
}

FileIdentity identity_of(const struct stat& status) {
  return {status.st_dev, status.st_ino, status.st_size, ns_of(status.st_mtim)};
}

// O_NONBLOCK for the open only, which would wait for a FIFO's writer. io_uring gives EAGAIN for a file that
// keeps it.
Result<ImageFile> open_image_file(int dir_fd, const std::string& name) {
  ImageFile file;
  file.fd.reset(::openat(dir_fd, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.fd && errno == ELOOP) return not_regular(name);
  if (!file.fd) return make_error(errno, "open " + name, Topic::Images);
  if (::fstat(file.fd.get(), &file.status) != 0) return make_error(errno, "stat " + name, Topic::Images);
  SLUICE_TRY(check_regular(name, file.status));
  if (::fcntl(file.fd.get(), F_SETFL, 0) != 0) return make_error(errno, "set up " + name, Topic::Images);
  return file;
}

Result<std::vector<std::uint8_t>> read_whole(const ImageFile& file, std::uint64_t most,
                                             const std::string& name) {
  const auto size = static_cast<std::uint64_t>(file.status.st_size);
  if (size > most) {
    return Error{EFBIG, formatted("{} is larger than {} bytes, so it is damaged or another file [SL-I02]",
                                  name, most)};
  }
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(size));
  for (std::size_t have = 0; have < bytes.size();) {
    const ssize_t got = TEMP_FAILURE_RETRY(
        ::pread(file.fd.get(), &bytes[have], bytes.size() - have, static_cast<off_t>(have)));
    if (got <= 0)
      return make_error(got < 0 ? errno : EBADMSG, "read " + name + " at " + std::to_string(have),
                        Topic::Images);
    have += static_cast<std::size_t>(got);
  }
  return bytes;
}

Result<UniqueFd> create_unnamed_file(int dir_fd) {
  UniqueFd fd(::openat(dir_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, kPrivate));
  if (fd) return fd;
  constexpr const char* kName = "amdgpu-unnamed.img.tmp";  // a dump removes such files
  SLUICE_TRY_ASSIGN(fd, create_image_file(dir_fd, kName));
  (void)::unlinkat(dir_fd, kName, 0);
  return fd;
}

Result<UniqueFd> create_image_file(int dir_fd, const std::string& name) {
  for (int attempt = 0;; ++attempt) {
    UniqueFd fd(::openat(dir_fd, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kPrivate));
    if (fd && ::fchmod(fd.get(), kPrivate) == 0) return fd;
    const int err = errno;
    if (fd) (void)::unlinkat(dir_fd, name.c_str(), 0);
    if (err != EEXIST || attempt == kMaxCreateAttempts)
      return make_error(err, "create " + name, Topic::Images);
    if (::unlinkat(dir_fd, name.c_str(), 0) != 0 && errno != ENOENT)
      return make_error(errno, "remove the stale " + name, Topic::Images);
  }
}

}  // namespace sluice
