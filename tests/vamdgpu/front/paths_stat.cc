// SPDX-License-Identifier: MIT
// The calls that ask what a name or an fd is: the stat family with its older exported names, statx, the
// access family. A device node, and an open device file behind an fd or a /proc/PID/fd link, is a character
// device with the machine's numbers. Thread-safe, async-signal-safe but for the access family. struct stat
// and struct stat64 are one layout on the 64-bit machines this library is for.
#include <sys/sysmacros.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "next.h"
#include "paths_resolve.h"
#include "raw.h"

namespace vamdgpu::paths {
namespace {

static_assert(sizeof(struct stat) == sizeof(struct stat64));

// Mode bits that udev and amdgpu give the nodes.
constexpr mode_t kOpenToAll = S_IFCHR | 0666;
constexpr mode_t kOpenToGroup = S_IFCHR | 0660;

mode_t device_mode(const Target& target) {
  return target.node.kind == NodeKind::None ? kOpenToGroup : kOpenToAll;
}

void set_device(struct stat* out, const Target& target) {
  out->st_mode = device_mode(target);
  out->st_rdev = device_of(target);
  out->st_size = 0;
  out->st_blocks = 0;
}

int stat_at(int directory, const char* path, struct stat* out, int flags) {
  const bool follow = (flags & AT_SYMLINK_NOFOLLOW) == 0;
  Target target;
  resolve(directory, path, follow ? Last::Follow : Last::NoFollow, &target);
  switch (target.meaning) {
    case Meaning::Virtual:
    case Meaning::Refused:
      return raw::fstatat(AT_FDCWD, target.path, out, flags);
    case Meaning::Device: {
      const int result = raw::fstatat(AT_FDCWD, target.path, out, AT_SYMLINK_NOFOLLOW);
      if (result == 0) set_device(out, target);
      return result;
    }
    case Meaning::Untouched:
    case Meaning::OpenFile:
      break;
  }
  const int result = raw::fstatat(directory, path, out, flags);
  if (result == 0 && follow && state_dir() != nullptr) rewrite_stat(out);
  return result;
}

int stat_fd(int fd, struct stat* out) {
  const int result = raw::fstat(fd, out);
  if (result != 0 || state_dir() == nullptr || rewrite_stat(out)) return result;
  char link[32];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  Target target;
  if (is_path_descriptor(AT_FDCWD, link, *out, &target)) set_device(out, target);
  return result;
}

void set_device(struct statx* out, mode_t mode, dev_t device) {
  out->stx_mode = static_cast<std::uint16_t>(mode);
  out->stx_rdev_major = major(device);
  out->stx_rdev_minor = minor(device);
}

// rewrite_stat for statx: the fields by which a file is told apart go over, what changed comes back.
void rewrite_statx(struct statx* out) {
  struct stat status {};
  status.st_dev = makedev(out->stx_dev_major, out->stx_dev_minor);
  status.st_ino = out->stx_ino;
  status.st_mode = out->stx_mode;
  status.st_nlink = out->stx_nlink;
  status.st_rdev = makedev(out->stx_rdev_major, out->stx_rdev_minor);
  status.st_size = static_cast<off_t>(out->stx_size);
  status.st_blocks = static_cast<blkcnt_t>(out->stx_blocks);
  status.st_atim = {out->stx_atime.tv_sec, out->stx_atime.tv_nsec};
  status.st_mtim = {out->stx_mtime.tv_sec, out->stx_mtime.tv_nsec};
  status.st_ctim = {out->stx_ctime.tv_sec, out->stx_ctime.tv_nsec};
  if (!rewrite_stat(&status)) return;
  set_device(out, status.st_mode, status.st_rdev);
  out->stx_size = static_cast<std::uint64_t>(status.st_size);
  out->stx_blocks = static_cast<std::uint64_t>(status.st_blocks);
}

int statx_at(int directory, const char* path, int flags, unsigned mask, struct statx* out) {
  const bool follow = (flags & AT_SYMLINK_NOFOLLOW) == 0;
  Target target;
  resolve(directory, path, follow ? Last::Follow : Last::NoFollow, &target);
  switch (target.meaning) {
    case Meaning::Virtual:
    case Meaning::Refused:
      return raw::statx(AT_FDCWD, target.path, flags, mask, out);
    case Meaning::Device: {
      const int result = raw::statx(AT_FDCWD, target.path, flags | AT_SYMLINK_NOFOLLOW, mask, out);
      if (result != 0) return result;
      set_device(out, device_mode(target), device_of(target));
      out->stx_size = 0;
      out->stx_blocks = 0;
      return 0;
    }
    case Meaning::Untouched:
    case Meaning::OpenFile:
      break;
  }
  if (!follow || state_dir() == nullptr) return raw::statx(directory, path, flags, mask, out);
  const int result = raw::statx(directory, path, flags, mask | STATX_BASIC_STATS, out);
  if (result == 0) rewrite_statx(out);
  return result;
}

// Extended attributes (ls asks for access lists): those of what stands for the file; a device has none.
template <typename Call>
ssize_t attribute_of(const char* path, Last last, Call call) {
  Target target;
  resolve(AT_FDCWD, path, last, &target);
  switch (target.meaning) {
    case Meaning::Device:
      errno = raw::faccessat(AT_FDCWD, target.path, F_OK) == 0 ? ENODATA : ENOENT;
      return -1;
    case Meaning::Virtual:
    case Meaning::Refused:
      return call(target.path);
    case Meaning::Untouched:
    case Meaning::OpenFile:
      break;
  }
  return call(path);
}

using Access = int(const char*, int);

// What to ask access about: `path` itself, or what stands for it. Null with errno when the answer is no
// already.
const char* access_path(int directory, const char* path, int mode, Last last, Target* target) {
  resolve(directory, path, last, target);
  if (target->meaning == Meaning::Untouched || target->meaning == Meaning::OpenFile) return path;
  if (target->meaning == Meaning::Device && (mode & X_OK) != 0) {
    errno = EACCES;
    return nullptr;
  }
  return target->path;
}

// What stands for a device has permissions of its own; a device has those of kOpenToAll.
int access_mode(const Target& target, int mode) {
  return target.meaning == Meaning::Device ? F_OK : mode;
}

int access_by(Next<Access>* next, const char* path, int mode) {
  Target target;
  const char* asked = access_path(AT_FDCWD, path, mode, Last::Follow, &target);
  return asked == nullptr ? -1 : next->get()(asked, access_mode(target, mode));
}

}  // namespace
}  // namespace vamdgpu::paths

namespace {

using vamdgpu::Next;
using namespace vamdgpu::paths;

constinit Next<Access> next_access("access");
constinit Next<Access> next_euidaccess("euidaccess");
constinit Next<Access> next_eaccess("eaccess");
constinit Next<int(int, const char*, int, int)> next_faccessat("faccessat");

}  // namespace

#define VAMDGPU_STAT(wrapper, name, flags)                                      \
  VAMDGPU_EXPORT int wrapper(const char* path, struct stat* out) __asm__(name); \
  int wrapper(const char* path, struct stat* out) {                             \
    return stat_at(AT_FDCWD, path, out, flags);                                 \
  }

#define VAMDGPU_OLD_STAT(wrapper, name, flags)                                               \
  VAMDGPU_EXPORT int wrapper(int version, const char* path, struct stat* out) __asm__(name); \
  int wrapper(int, const char* path, struct stat* out) {                                     \
    return stat_at(AT_FDCWD, path, out, flags);                                              \
  }

VAMDGPU_STAT(wrap_stat, "stat", 0)
VAMDGPU_STAT(wrap_stat64, "stat64", 0)
VAMDGPU_STAT(wrap_lstat, "lstat", AT_SYMLINK_NOFOLLOW)
VAMDGPU_STAT(wrap_lstat64, "lstat64", AT_SYMLINK_NOFOLLOW)
VAMDGPU_OLD_STAT(wrap_xstat, "__xstat", 0)
VAMDGPU_OLD_STAT(wrap_xstat64, "__xstat64", 0)
VAMDGPU_OLD_STAT(wrap_lxstat, "__lxstat", AT_SYMLINK_NOFOLLOW)
VAMDGPU_OLD_STAT(wrap_lxstat64, "__lxstat64", AT_SYMLINK_NOFOLLOW)

VAMDGPU_EXPORT int wrap_fstat(int fd, struct stat* out) __asm__("fstat");
int wrap_fstat(int fd, struct stat* out) {
  return stat_fd(fd, out);
}

VAMDGPU_EXPORT int wrap_fstat64(int fd, struct stat* out) __asm__("fstat64");
int wrap_fstat64(int fd, struct stat* out) {
  return stat_fd(fd, out);
}

VAMDGPU_EXPORT int wrap_fxstat(int version, int fd, struct stat* out) __asm__("__fxstat");
int wrap_fxstat(int, int fd, struct stat* out) {
  return stat_fd(fd, out);
}

VAMDGPU_EXPORT int wrap_fxstat64(int version, int fd, struct stat* out) __asm__("__fxstat64");
int wrap_fxstat64(int, int fd, struct stat* out) {
  return stat_fd(fd, out);
}

VAMDGPU_EXPORT int wrap_fstatat(int directory, const char* path, struct stat* out,
                                int flags) __asm__("fstatat");
int wrap_fstatat(int directory, const char* path, struct stat* out, int flags) {
  return stat_at(directory, path, out, flags);
}

VAMDGPU_EXPORT int wrap_fstatat64(int directory, const char* path, struct stat* out,
                                  int flags) __asm__("fstatat64");
int wrap_fstatat64(int directory, const char* path, struct stat* out, int flags) {
  return stat_at(directory, path, out, flags);
}

VAMDGPU_EXPORT int wrap_fxstatat(int version, int directory, const char* path, struct stat* out,
                                 int flags) __asm__("__fxstatat");
int wrap_fxstatat(int, int directory, const char* path, struct stat* out, int flags) {
  return stat_at(directory, path, out, flags);
}

VAMDGPU_EXPORT int wrap_fxstatat64(int version, int directory, const char* path, struct stat* out,
                                   int flags) __asm__("__fxstatat64");
int wrap_fxstatat64(int, int directory, const char* path, struct stat* out, int flags) {
  return stat_at(directory, path, out, flags);
}

VAMDGPU_EXPORT int wrap_statx(int directory, const char* path, int flags, unsigned mask,
                              struct statx* out) __asm__("statx");
int wrap_statx(int directory, const char* path, int flags, unsigned mask, struct statx* out) {
  return statx_at(directory, path, flags, mask, out);
}

VAMDGPU_EXPORT int wrap_access(const char* path, int mode) __asm__("access");
int wrap_access(const char* path, int mode) {
  return access_by(&next_access, path, mode);
}

VAMDGPU_EXPORT int wrap_euidaccess(const char* path, int mode) __asm__("euidaccess");
int wrap_euidaccess(const char* path, int mode) {
  return access_by(&next_euidaccess, path, mode);
}

VAMDGPU_EXPORT int wrap_eaccess(const char* path, int mode) __asm__("eaccess");
int wrap_eaccess(const char* path, int mode) {
  return access_by(&next_eaccess, path, mode);
}

VAMDGPU_EXPORT int wrap_faccessat(int directory, const char* path, int mode, int flags) __asm__("faccessat");
int wrap_faccessat(int directory, const char* path, int mode, int flags) {
  Target target;
  const Last last = (flags & AT_SYMLINK_NOFOLLOW) != 0 ? Last::NoFollow : Last::Follow;
  const char* asked = access_path(directory, path, mode, last, &target);
  if (asked == nullptr) return -1;
  if (target.meaning == Meaning::Device) flags |= AT_SYMLINK_NOFOLLOW;
  return next_faccessat.get()(directory, asked, access_mode(target, mode), flags);
}

VAMDGPU_EXPORT ssize_t wrap_getxattr(const char* path, const char* name, void* value,
                                     std::size_t size) __asm__("getxattr");
ssize_t wrap_getxattr(const char* path, const char* name, void* value, std::size_t size) {
  return attribute_of(path, Last::Follow,
                      [=](const char* asked) { return vamdgpu::raw::getxattr(asked, name, value, size); });
}

VAMDGPU_EXPORT ssize_t wrap_lgetxattr(const char* path, const char* name, void* value,
                                      std::size_t size) __asm__("lgetxattr");
ssize_t wrap_lgetxattr(const char* path, const char* name, void* value, std::size_t size) {
  return attribute_of(path, Last::NoFollow,
                      [=](const char* asked) { return vamdgpu::raw::lgetxattr(asked, name, value, size); });
}
