// SPDX-License-Identifier: MIT
// The calls that open by name: open and its kin, fopen, freopen, opendir, scandir, chdir. Thread-safe; open
// and openat are async-signal-safe as in libc. The wrappers are defined under C++ names and exported under
// libc's by asm labels, so that libc's own declarations (attributes, 64-bit redirections) do not get in the
// way.
#include <dirent.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "next.h"
#include "paths_resolve.h"
#include "raw.h"

namespace vamdgpu::paths {
namespace {

constexpr int kNotOurs = -2;

int refuse(int error) {
  errno = error;
  return -1;
}

// open(2) of a device node by name: what the kernel says before the driver is asked. With O_PATH nobody is.
int open_device(const Target& target, int flags) {
  struct stat stands_for;
  if (raw::fstatat(AT_FDCWD, target.path, &stands_for, AT_SYMLINK_NOFOLLOW) != 0) return -1;
  if ((flags & O_PATH) != 0) return raw::openat(AT_FDCWD, target.path, flags | O_NOFOLLOW, 0);
  if ((flags & O_CREAT) != 0 && (flags & O_EXCL) != 0) return refuse(EEXIST);
  if ((flags & O_DIRECTORY) != 0) return refuse(ENOTDIR);
  if (target.refused) return refuse(EPERM);
  if (target.node.kind == NodeKind::None) return refuse(EACCES);  // card nodes are listed, not simulated
  return open_node(target.node, flags);
}

// open(2) of /proc/PID/fd/N: a device file is opened anew, as the kernel does; a dma-buf or fence cannot be.
// kNotOurs when it is neither.
int open_again(int directory, const char* path, int flags) {
  if ((flags & (O_PATH | O_NOFOLLOW)) != 0) return kNotOurs;
  struct stat status;
  if (raw::fstatat(directory, path, &status, 0) != 0) return kNotOurs;
  Target opened;
  if (is_path_descriptor(directory, path, status, &opened)) return open_device(opened, flags);
  if (!rewrite_stat(&status)) return kNotOurs;
  if (!S_ISCHR(status.st_mode)) return refuse(ENXIO);
  const Node node = node_of_device(status.st_rdev);
  if (node.kind == NodeKind::None) return refuse(ENXIO);
  if ((flags & O_DIRECTORY) != 0) return refuse(ENOTDIR);
  return open_node(node, flags);
}

// A file that holds `text`.
int open_text(const char* name, const char* text, int length, int flags) {
  const auto fd =
      static_cast<int>(::syscall(SYS_memfd_create, name, (flags & O_CLOEXEC) != 0 ? MFD_CLOEXEC : 0U));
  if (fd < 0) return -1;
  if (::syscall(SYS_pwrite64, fd, text, static_cast<std::size_t>(length), 0) == length) return fd;
  raw::close(fd);
  return refuse(EIO);
}

// open(2) of an attribute that changes: a file that says what it is now. kNotOurs when it is none.
int open_attribute(const char* path, int flags) {
  std::uint64_t number = 0;
  const int saved = errno;
  if ((flags & O_PATH) != 0 || !memory_in_use(path, &number)) {
    errno = saved;
    return kNotOurs;
  }
  char text[32];
  const int length = std::snprintf(text, sizeof text, "%llu\n", static_cast<unsigned long long>(number));
  return open_text("attribute", text, length, flags);
}

// open(2) of /proc/PID/fdinfo/N, of a dma-buf: a file that says what it is now. kNotOurs when it is none.
int open_file_info(const char* path, int flags) {
  constexpr char kProc[] = "/proc/", kDirectory[] = "/fdinfo/";
  const char* const directory = path != nullptr && std::strncmp(path, kProc, sizeof kProc - 1) == 0
                                    ? std::strstr(path, kDirectory)
                                    : nullptr;
  if (directory == nullptr) return kNotOurs;
  char link[64];
  std::snprintf(link, sizeof link, "%.*s/fd/%s", static_cast<int>(directory - path), path,
                directory + sizeof kDirectory - 1);
  struct stat status;
  std::uint64_t count = 0;
  const int saved = errno;
  if (raw::fstatat(AT_FDCWD, link, &status, 0) != 0 || !dmabuf_references(status, &count)) {
    errno = saved;
    return kNotOurs;
  }
  char text[256];
  const int length =
      std::snprintf(text, sizeof text,
                    "pos:\t0\nflags:\t02\nmnt_id:\t1\nino:\t%llu\nsize:\t%llu\ncount:\t%llu\n"
                    "exp_name:\tdrm\n",
                    static_cast<unsigned long long>(status.st_ino),
                    static_cast<unsigned long long>(status.st_size), static_cast<unsigned long long>(count));
  return open_text("fdinfo", text, length, flags);
}

// What is opened without the file system: the fd, -1 with errno, or kNotOurs; then `path` is to be opened.
int open_special(int directory, const char** path, int flags, Target* target) {
  resolve(directory, *path, (flags & O_NOFOLLOW) != 0 ? Last::NoFollow : Last::Follow, target);
  switch (target->meaning) {
    case Meaning::Untouched:
      return open_file_info(*path, flags);
    case Meaning::Refused:
      if ((flags & O_PATH) == 0) return refuse(EPERM);
      [[fallthrough]];
    case Meaning::Virtual:
      *path = target->path;
      return open_attribute(target->path, flags);
    case Meaning::Device:
      return open_device(*target, flags);
    case Meaning::OpenFile:
      return open_again(directory, *path, flags);
  }
  return kNotOurs;
}

int open_at(int directory, const char* path, int flags, mode_t mode) {
  Target target;
  const int fd = open_special(directory, &path, flags, &target);
  return fd != kNotOurs ? fd : raw::openat(directory, path, flags, mode);
}

bool takes_mode(int flags) {
  return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
}

// open(2) flags of an fopen mode.
int flags_of(const char* mode) {
  const bool update = std::strchr(mode, '+') != nullptr;
  int flags = update ? O_RDWR : O_WRONLY;
  if (*mode == 'r') flags = update ? O_RDWR : O_RDONLY;
  if (*mode == 'w') flags |= O_CREAT | O_TRUNC;
  if (*mode == 'a') flags |= O_CREAT | O_APPEND;
  if (std::strchr(mode, 'e') != nullptr) flags |= O_CLOEXEC;
  if (std::strchr(mode, 'x') != nullptr) flags |= O_EXCL;
  return flags;
}

using Fopen = FILE*(const char*, const char*);

FILE* open_stream(Next<Fopen>* next, const char* path, const char* mode) {
  Target target;
  const int fd = open_special(AT_FDCWD, &path, flags_of(mode), &target);
  if (fd == kNotOurs) return next->get()(path, mode);
  if (fd < 0) return nullptr;
  FILE* stream = ::fdopen(fd, mode);
  if (stream == nullptr) {
    const int error = errno;
    raw::close(fd);
    errno = error;
  }
  return stream;
}

using Freopen = FILE*(const char*, const char*, FILE*);

FILE* reopen_stream(Next<Freopen>* next, const char* path, const char* mode, FILE* stream) {
  Target target;
  resolve(AT_FDCWD, path, Last::Follow, &target);
  if (target.meaning == Meaning::Virtual) path = target.path;
  return next->get()(path, mode, stream);
}

// `path`, or what to use instead of it for a call that takes a directory; null with errno for a device.
const char* directory_path(const char* path, Target* target) {
  resolve(AT_FDCWD, path, Last::Follow, target);
  if (target->meaning == Meaning::Device) {
    errno = ENOTDIR;
    return nullptr;
  }
  return target->meaning == Meaning::Virtual || target->meaning == Meaning::Refused ? target->path : path;
}

using Filter = int(const dirent*);
using Compare = int(const dirent**, const dirent**);
using Scandir = int(const char*, dirent***, Filter*, Compare*);

int scan(Next<Scandir>* next, const char* path, dirent*** list, Filter* filter, Compare* compare) {
  Target target;
  const char* directory = directory_path(path, &target);
  return directory == nullptr ? -1 : next->get()(directory, list, filter, compare);
}

}  // namespace
}  // namespace vamdgpu::paths

namespace {

using vamdgpu::Next;
using namespace vamdgpu::paths;

constinit Next<Fopen> next_fopen("fopen");
constinit Next<Fopen> next_fopen64("fopen64");
constinit Next<Freopen> next_freopen("freopen");
constinit Next<Freopen> next_freopen64("freopen64");
constinit Next<DIR*(const char*)> next_opendir("opendir");
constinit Next<Scandir> next_scandir("scandir");
constinit Next<Scandir> next_scandir64("scandir64");

}  // namespace

// The mode is the one variadic argument, there only when the flags ask for it.
#define VAMDGPU_MODE(flags)           \
  mode_t mode = 0;                    \
  if (takes_mode(flags)) {            \
    va_list arguments;                \
    va_start(arguments, flags);       \
    mode = va_arg(arguments, mode_t); \
    va_end(arguments);                \
  }

#define VAMDGPU_OPEN(wrapper, name)                                           \
  VAMDGPU_EXPORT int wrapper(const char* path, int flags, ...) __asm__(name); \
  int wrapper(const char* path, int flags, ...) {                             \
    VAMDGPU_MODE(flags)                                                       \
    return open_at(AT_FDCWD, path, flags, mode);                              \
  }

#define VAMDGPU_OPENAT(wrapper, name)                                                        \
  VAMDGPU_EXPORT int wrapper(int directory, const char* path, int flags, ...) __asm__(name); \
  int wrapper(int directory, const char* path, int flags, ...) {                             \
    VAMDGPU_MODE(flags)                                                                      \
    return open_at(directory, path, flags, mode);                                            \
  }

VAMDGPU_OPEN(wrap_open, "open")
VAMDGPU_OPEN(wrap_open64, "open64")
VAMDGPU_OPEN(wrap_open_internal, "__open")
VAMDGPU_OPEN(wrap_open64_internal, "__open64")
VAMDGPU_OPENAT(wrap_openat, "openat")
VAMDGPU_OPENAT(wrap_openat64, "openat64")

// _FORTIFY_SOURCE turns calls without a mode into these.
VAMDGPU_EXPORT int wrap_open_2(const char* path, int flags) __asm__("__open_2");
int wrap_open_2(const char* path, int flags) {
  return open_at(AT_FDCWD, path, flags, 0);
}

VAMDGPU_EXPORT int wrap_open64_2(const char* path, int flags) __asm__("__open64_2");
int wrap_open64_2(const char* path, int flags) {
  return open_at(AT_FDCWD, path, flags, 0);
}

VAMDGPU_EXPORT int wrap_openat_2(int directory, const char* path, int flags) __asm__("__openat_2");
int wrap_openat_2(int directory, const char* path, int flags) {
  return open_at(directory, path, flags, 0);
}

VAMDGPU_EXPORT int wrap_openat64_2(int directory, const char* path, int flags) __asm__("__openat64_2");
int wrap_openat64_2(int directory, const char* path, int flags) {
  return open_at(directory, path, flags, 0);
}

VAMDGPU_EXPORT FILE* wrap_fopen(const char* path, const char* mode) __asm__("fopen");
FILE* wrap_fopen(const char* path, const char* mode) {
  return open_stream(&next_fopen, path, mode);
}

VAMDGPU_EXPORT FILE* wrap_fopen64(const char* path, const char* mode) __asm__("fopen64");
FILE* wrap_fopen64(const char* path, const char* mode) {
  return open_stream(&next_fopen64, path, mode);
}

VAMDGPU_EXPORT FILE* wrap_freopen(const char* path, const char* mode, FILE* stream) __asm__("freopen");
FILE* wrap_freopen(const char* path, const char* mode, FILE* stream) {
  return reopen_stream(&next_freopen, path, mode, stream);
}

VAMDGPU_EXPORT FILE* wrap_freopen64(const char* path, const char* mode, FILE* stream) __asm__("freopen64");
FILE* wrap_freopen64(const char* path, const char* mode, FILE* stream) {
  return reopen_stream(&next_freopen64, path, mode, stream);
}

VAMDGPU_EXPORT DIR* wrap_opendir(const char* path) __asm__("opendir");
DIR* wrap_opendir(const char* path) {
  Target target;
  const char* directory = directory_path(path, &target);
  return directory == nullptr ? nullptr : next_opendir.get()(directory);
}

VAMDGPU_EXPORT int wrap_scandir(const char* path, dirent*** list, Filter* filter,
                                Compare* compare) __asm__("scandir");
int wrap_scandir(const char* path, dirent*** list, Filter* filter, Compare* compare) {
  return scan(&next_scandir, path, list, filter, compare);
}

VAMDGPU_EXPORT int wrap_scandir64(const char* path, dirent*** list, Filter* filter,
                                  Compare* compare) __asm__("scandir64");
int wrap_scandir64(const char* path, dirent*** list, Filter* filter, Compare* compare) {
  return scan(&next_scandir64, path, list, filter, compare);
}

VAMDGPU_EXPORT int wrap_chdir(const char* path) __asm__("chdir");
int wrap_chdir(const char* path) {
  Target target;
  const char* directory = directory_path(path, &target);
  return directory == nullptr ? -1 : vamdgpu::raw::chdir(directory);
}
