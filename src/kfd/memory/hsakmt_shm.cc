// SPDX-License-Identifier: MIT
#include "kfd/memory/hsakmt_shm.h"

#include <fcntl.h>
#include <semaphore.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/format.h"
#include "base/unique_fd.h"
#include "proc/directory.h"

namespace sluice::kfd {
namespace {

constexpr char kFileName[] = "hsakmt_shared_mem";
// sem_open("/hsakmt_semaphore") uses this file: a sem_t, nothing more.
constexpr char kSemaphoreName[] = "sem.hsakmt_semaphore";
constexpr mode_t kMode = 0666;
// The file is a table of a few pages. More in an image means damage.
constexpr std::uint64_t kBytesMax = 64U << 20;

// Creates a file of `bytes` bytes that begins with `head` in the folder `dir_fd`, unless the name exists. It
// is complete when it becomes visible: it has no name before, and if this process dies meanwhile, nothing is
// left. Returns an errno.
int create_if_missing(int dir_fd, const char* name, const void* head, std::size_t head_bytes,
                      std::uint64_t bytes) {
  struct stat there {};
  if (::fstatat(dir_fd, name, &there, AT_SYMLINK_NOFOLLOW) == 0) return 0;
  const UniqueFd fd(::openat(dir_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, kMode));
  if (!fd) return errno;
  if (::fchmod(fd.get(), kMode) != 0) return errno;  // whatever the umask
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return errno;
  const ssize_t written = ::pwrite(fd.get(), head, head_bytes, 0);
  if (written < 0) return errno;
  if (written != static_cast<ssize_t>(head_bytes)) return ENOSPC;
  // AT_EMPTY_PATH needs no /proc, but needs CAP_DAC_READ_SEARCH before Linux 6.10.
  const std::string file = "/proc/self/fd/" + std::to_string(fd.get());
  const int linked = ::linkat(AT_FDCWD, file.c_str(), dir_fd, name, AT_SYMLINK_FOLLOW);
  return linked == 0 || errno == EEXIST ? 0 : errno;
}

}  // namespace

Result<std::optional<HsakmtShm>> read_hsakmt_shm(const char* directory) {
  const std::string path = std::string(directory) + "/" + kFileName;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd) {
    // EAGAIN: only a process that has the file open alone can get a lease that keeps readers out.
    if (errno == ENOENT || errno == ELOOP || errno == ENXIO || errno == EAGAIN)
      return std::optional<HsakmtShm>();
    return make_error(errno, "open " + path);
  }
  struct stat st {};
  if (::fstat(fd.get(), &st) != 0) return make_error(errno, "fstat of " + path);
  HsakmtShm shm;
  shm.bytes = static_cast<std::uint64_t>(st.st_size);
  if (!S_ISREG(st.st_mode) || shm.bytes < sizeof shm.magic || shm.bytes > kBytesMax)
    return std::optional<HsakmtShm>();
  const ssize_t length = ::pread(fd.get(), &shm.magic, sizeof shm.magic, 0);
  if (length < 0) return make_error(errno, "read " + path);
  // unreached: a race
  if (length != static_cast<ssize_t>(sizeof shm.magic))
    return std::optional<HsakmtShm>();  // truncated meanwhile
  return std::optional<HsakmtShm>(shm);
}

Result<void> restore_hsakmt_shm(const HsakmtShm& shm, const char* directory) {
  if (shm.bytes < sizeof shm.magic || shm.bytes > kBytesMax) {
    return Error{EINVAL, formatted("the image's size of {} is {} bytes; use another checkpoint [SL-R01]",
                                   kFileName, shm.bytes)};
  }
  // A link could lead root into one of the host's folders.
  const UniqueFd dir(::open(directory, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!dir) {
    const int err = errno;
    return with_remedy(make_error(err, std::string("open ") + directory),
                       err == ELOOP || err == ENOTDIR
                           ? "; it must be a folder and no link: mount a tmpfs there [SL-R02]"
                           : "");
  }
  const auto create = [&](const char* name, const void* head, std::size_t head_bytes,
                          std::uint64_t bytes) -> Result<void> {
    const int err = create_if_missing(dir.get(), name, head, head_bytes, bytes);
    if (err == 0) return {};
    return with_remedy(make_error(err, formatted("create {}/{}", directory, name)),
                       err == ENOENT ? proc::kMountProc : "");
  };
  SLUICE_TRY(create(kFileName, &shm.magic, sizeof shm.magic, shm.bytes));

  // glibc stores a named semaphore as the bytes of a process-shared sem_t.
  sem_t semaphore;
  std::memset(&semaphore, 0, sizeof semaphore);
  if (::sem_init(&semaphore, 1, 1) != 0) return make_error(errno, "sem_init");
  auto result = create(kSemaphoreName, &semaphore, sizeof semaphore, sizeof semaphore);
  (void)::sem_destroy(&semaphore);
  return result;
}

}  // namespace sluice::kfd
