// SPDX-License-Identifier: MIT
// Preloaded into a host: records what is done to the plugin's files (disk_record.h), and refuses io_uring, so
// that the plugin's reads and writes are calls, too, which can be seen here.
//
// An operation is recorded when it has succeeded; a sync when it begins, and when it has succeeded.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>

#include "disk_record.h"
#include "support/refuse_system_call.h"

namespace {

using sluice::plugin_test::DiskOp;
using sluice::plugin_test::DiskRecord;

constexpr std::string_view kPrefix = "amdgpu-";

std::mutex mutex;
int record_fd = -1;
std::array<char, 4096> directory{};

template <class Function>
Function* next(const char* symbol) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, symbol));
}
#define NEXT(name) next<decltype(::name)>(#name)
#define NEXT64(name) next<decltype(::name)>(#name "64")

[[gnu::constructor]] void begin() {
  const char* const path = std::getenv(sluice::plugin_test::kRecordDirectory);
  const char* const file = std::getenv(sluice::plugin_test::kRecordFile);
  if (path == nullptr || file == nullptr) return;
  (void)std::strncpy(directory.data(), path, directory.size() - 1);
  record_fd = ::open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const bool refused = sluice::test::refuse_system_call(__NR_io_uring_setup, EPERM);
  if (record_fd < 0 || !refused) std::abort();  // a record with holes would be worse than none
}

void append(DiskRecord record, std::string_view name, std::string_view to = {}, const void* data = nullptr) {
  record.name_bytes = static_cast<std::uint32_t>(name.size());
  record.to_bytes = static_cast<std::uint32_t>(to.size());
  const std::array<iovec, 4> parts{{{&record, sizeof record},
                                    {const_cast<char*>(name.data()), name.size()},
                                    {const_cast<char*>(to.data()), to.size()},
                                    {const_cast<void*>(data), record.data_bytes}}};
  const std::size_t bytes = sizeof record + name.size() + to.size() + record.data_bytes;
  const std::lock_guard lock(mutex);
  if (::writev(record_fd, parts.data(), parts.size()) != static_cast<ssize_t>(bytes)) std::abort();
}

// What `fd` is: empty for what is not recorded, "." for the directory, else the name of a file of the
// plugin's in it. Not by readlink(), which the virtual machine has its own answers for.
std::string_view name_of(int fd, std::array<char, 4096>& room) {
  if (record_fd < 0 || fd < 0) return {};
  std::array<char, 32> link{"/proc/self/fd/"};
  std::size_t at = std::strlen(link.data());
  std::array<char, 12> digits{};
  std::size_t count = 0;
  for (int rest = fd; count == 0 || rest > 0; rest /= 10)
    digits[count++] = static_cast<char>('0' + rest % 10);
  while (count > 0) link[at++] = digits[--count];
  const long length = ::syscall(SYS_readlinkat, AT_FDCWD, link.data(), room.data(), room.size());
  if (length <= 0) return {};
  std::string_view path(room.data(), static_cast<std::size_t>(length));
  const std::string_view images = directory.data();
  if (path == images) return ".";
  if (path.size() <= images.size() + 1 || !path.starts_with(images) || path[images.size()] != '/') return {};
  path.remove_prefix(images.size() + 1);
  return path.starts_with(kPrefix) ? path : std::string_view();
}

std::uint64_t inode_of(int fd) {
  struct stat st {};
  return ::syscall(SYS_fstat, fd, &st) == 0 ? st.st_ino : 0;
}

void note_write(int fd, const void* data, ssize_t wrote, std::uint64_t offset) {
  const int error = errno;
  std::array<char, 4096> room;
  if (const std::string_view name = name_of(fd, room); wrote > 0 && !name.empty()) {
    append({.op = DiskOp::Write,
            .data_bytes = static_cast<std::uint32_t>(wrote),
            .inode = inode_of(fd),
            .offset = offset,
            .length = static_cast<std::uint64_t>(wrote)},
           name, {}, data);
  }
  errno = error;
}

template <class Sync>
int sync(int fd, Sync* real) {
  std::array<char, 4096> room;
  const std::string_view name = name_of(fd, room);
  if (name.empty()) return real(fd);
  const bool of_directory = name == ".";
  append({.op = of_directory ? DiskOp::DirectorySyncBegin : DiskOp::SyncBegin, .inode = inode_of(fd)}, name);
  const int result = real(fd);
  const int error = errno;
  if (result == 0)
    append({.op = of_directory ? DiskOp::DirectorySyncEnd : DiskOp::SyncEnd, .inode = inode_of(fd)}, name);
  errno = error;
  return result;
}

}  // namespace

extern "C" {

[[gnu::visibility("default")]] ssize_t write(int fd, const void* data, size_t bytes) {
  static auto* const real = NEXT(write);
  std::array<char, 4096> room;
  const bool recorded = !name_of(fd, room).empty();
  const off_t at = recorded ? ::lseek(fd, 0, SEEK_CUR) : 0;
  const ssize_t wrote = real(fd, data, bytes);
  if (recorded) note_write(fd, data, wrote, static_cast<std::uint64_t>(at));
  return wrote;
}

[[gnu::visibility("default")]] ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  static auto* const real = NEXT64(pwrite);
  const ssize_t wrote = real(fd, data, bytes, offset);
  note_write(fd, data, wrote, static_cast<std::uint64_t>(offset));
  return wrote;
}

[[gnu::visibility("default")]] int ftruncate(int fd, off_t bytes) noexcept {
  static auto* const real = NEXT64(ftruncate);
  const int result = real(fd, bytes);
  const int error = errno;
  std::array<char, 4096> room;
  if (const std::string_view name = name_of(fd, room); result == 0 && !name.empty())
    append({.op = DiskOp::Truncate, .inode = inode_of(fd), .length = static_cast<std::uint64_t>(bytes)},
           name);
  errno = error;
  return result;
}

[[gnu::visibility("default")]] int fdatasync(int fd) {
  static auto* const real = NEXT(fdatasync);
  return sync(fd, real);
}

[[gnu::visibility("default")]] int fsync(int fd) {
  static auto* const real = NEXT(fsync);
  return sync(fd, real);
}

[[gnu::visibility("default")]] int renameat(int old_dir, const char* from, int new_dir,
                                            const char* to) noexcept {
  static auto* const real = NEXT(renameat);
  const int result = real(old_dir, from, new_dir, to);
  const int error = errno;
  std::array<char, 4096> room;
  if (result == 0 && name_of(old_dir, room) == "." && std::string_view(from).starts_with(kPrefix))
    append({.op = DiskOp::Rename}, from, to);
  errno = error;
  return result;
}

[[gnu::visibility("default")]] int unlinkat(int dir_fd, const char* name, int flags) noexcept {
  static auto* const real = NEXT(unlinkat);
  const int result = real(dir_fd, name, flags);
  const int error = errno;
  std::array<char, 4096> room;
  if (result == 0 && name_of(dir_fd, room) == "." && std::string_view(name).starts_with(kPrefix))
    append({.op = DiskOp::Unlink}, name);
  errno = error;
  return result;
}

}  // extern "C"
