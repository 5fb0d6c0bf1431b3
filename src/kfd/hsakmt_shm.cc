// SPDX-License-Identifier: MIT
#include "kfd/hsakmt_shm.h"

#include <fcntl.h>
#include <semaphore.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "pipeline/unique_fd.h"

namespace sluice::kfd {
namespace {

constexpr char kFileName[] = "hsakmt_shared_mem";
// sem_open("/hsakmt_semaphore") is this file: a sem_t, nothing more.
constexpr char kSemaphoreName[] = "sem.hsakmt_semaphore";
constexpr mode_t kMode = 0666;
// The file is a table of a few pages. More in an image is damage.
constexpr std::uint64_t kBytesMax = 64U << 20;

// Puts a file of `bytes` bytes that begins with `head` at `path`, unless something is there. Whole from the
// moment it can be seen: it is made under a name of its own and linked.
Result<void> create_if_missing(const std::string& path, const void* head, std::size_t head_bytes,
                               std::uint64_t bytes) {
  if (::access(path.c_str(), F_OK) == 0) return {};
  std::string temporary = path + ".XXXXXX";  // no name that somebody could have taken in advance
  const UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd) return make_error(errno, "create " + temporary);

  const int err = [&] {
    if (::fchmod(fd.get(), kMode) != 0) return errno;  // whatever the umask
    if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return errno;
    const ssize_t written = ::pwrite(fd.get(), head, head_bytes, 0);
    if (written < 0) return errno;
    if (written != static_cast<ssize_t>(head_bytes)) return ENOSPC;
    return ::link(temporary.c_str(), path.c_str()) == 0 || errno == EEXIST ? 0 : errno;
  }();
  (void)::unlink(temporary.c_str());
  if (err != 0) return make_error(err, "create " + path);
  return {};
}

}  // namespace

Result<std::optional<HsakmtShm>> read_hsakmt_shm(const char* directory) {
  const std::string path = std::string(directory) + "/" + kFileName;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd) {
    if (errno == ENOENT || errno == ELOOP || errno == ENXIO) return std::optional<HsakmtShm>();
    return make_error(errno, "open " + path);
  }
  struct stat st {};
  if (::fstat(fd.get(), &st) != 0) return make_error(errno, "fstat of " + path);
  HsakmtShm shm;
  shm.bytes = static_cast<std::uint64_t>(st.st_size);
  if (!S_ISREG(st.st_mode) || shm.bytes < sizeof shm.magic || shm.bytes > kBytesMax)
    return std::optional<HsakmtShm>();
  const ssize_t length = ::pread(fd.get(), &shm.magic, sizeof shm.magic, 0);
  if (length != static_cast<ssize_t>(sizeof shm.magic))
    return make_error(length < 0 ? errno : EIO, "read " + path);
  return std::optional<HsakmtShm>(shm);
}

Result<void> restore_hsakmt_shm(const HsakmtShm& shm, const char* directory) {
  if (shm.bytes < sizeof shm.magic || shm.bytes > kBytesMax) {
    return make_error(EINVAL,
                      "size of " + std::string(kFileName) + " in the image is " + std::to_string(shm.bytes));
  }
  const std::string base = std::string(directory) + "/";
  SLUICE_TRY(create_if_missing(base + kFileName, &shm.magic, sizeof shm.magic, shm.bytes));

  // glibc keeps a named semaphore as the bytes of a process-shared sem_t.
  sem_t semaphore;
  std::memset(&semaphore, 0, sizeof semaphore);
  if (::sem_init(&semaphore, 1, 1) != 0) return make_error(errno, "sem_init");
  auto result = create_if_missing(base + kSemaphoreName, &semaphore, sizeof semaphore, sizeof semaphore);
  (void)::sem_destroy(&semaphore);
  return result;
}

}  // namespace sluice::kfd
