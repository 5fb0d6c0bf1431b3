// SPDX-License-Identifier: MIT
// The calls that report a name: readlink, realpath, getcwd and their kin. Open device files, dma-bufs and
// fences have the link text that the kernel gives them; a file of the virtual sysfs has its name there, not
// the one below the state directory. Thread-safe; readlink and getcwd are async-signal-safe.
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "next.h"
#include "paths_resolve.h"
#include "raw.h"

namespace vamdgpu::paths {
namespace {

// The text of a /proc/PID/fd link of an open device file, dma-buf or fence; 0 if the file is another.
std::size_t open_file_text(int directory, const char* path, char* text) {
  const int saved = errno;
  struct stat status;
  std::size_t length = 0;
  if (raw::fstatat(directory, path, &status, 0) == 0) length = link_text(status, text, kPathBytes);
  errno = saved;
  return length;
}

// readlink into text[kPathBytes]: the length or -1.
ssize_t link_of(int directory, const char* path, char* text) {
  Target target;
  resolve(directory, path, Last::NoFollow, &target);
  switch (target.meaning) {
    case Meaning::Virtual:
    case Meaning::Refused:
      return raw::readlinkat(AT_FDCWD, target.path, text, kPathBytes);
    case Meaning::Device:
      // Not a symbolic link, whatever stands for it.
      errno = raw::faccessat(AT_FDCWD, target.path, F_OK) == 0 ? EINVAL : ENOENT;
      return -1;
    case Meaning::OpenFile: {
      const std::size_t length = open_file_text(directory, path, text);
      if (length != 0) return static_cast<ssize_t>(length);
      break;
    }
    case Meaning::Untouched:
      break;
  }
  const ssize_t length = raw::readlinkat(directory, path, text, kPathBytes);
  return length <= 0 ? length : static_cast<ssize_t>(to_machine_name(text, static_cast<std::size_t>(length)));
}

ssize_t readlink_at(int directory, const char* path, char* out, std::size_t size) {
  if (state_dir() == nullptr || size == 0) return raw::readlinkat(directory, path, out, size);
  char text[kPathBytes];
  const ssize_t length = link_of(directory, path, text);
  if (length < 0) return length;
  const std::size_t copied =
      static_cast<std::size_t>(length) < size ? static_cast<std::size_t>(length) : size;
  std::memcpy(out, text, copied);
  return static_cast<ssize_t>(copied);
}

// `text` as realpath returns it: in the caller's buffer or a new one.
char* hand_out(const char* text, char* resolved) {
  if (resolved == nullptr) return ::strdup(text);
  std::memcpy(resolved, text, std::strlen(text) + 1);
  return resolved;
}

char* no_name(int error) {
  errno = error;
  return nullptr;
}

using Realpath = char*(const char*, char*);
constinit Next<Realpath> next_realpath("realpath");

char* real_path(const char* path, char* resolved) {
  Target target;
  char text[kPathBytes];
  resolve(AT_FDCWD, path, Last::Follow, &target);
  switch (target.meaning) {
    case Meaning::Device: {
      struct stat ignored;
      if (raw::fstatat(AT_FDCWD, target.path, &ignored, AT_SYMLINK_NOFOLLOW) != 0) return nullptr;
      device_name(target, text);
      return hand_out(text, resolved);
    }
    case Meaning::OpenFile: {
      const std::size_t length = open_file_text(AT_FDCWD, path, text);
      if (length == 0) break;
      text[length < kPathBytes ? length : kPathBytes - 1] = '\0';
      return text[0] == '/' && std::strncmp(text, "/dev/", 5) == 0 ? hand_out(text, resolved)
                                                                   : no_name(ENOENT);
    }
    case Meaning::Virtual:
    case Meaning::Refused: {
      if (next_realpath.get()(target.path, text) == nullptr) return nullptr;
      text[to_machine_name(text, std::strlen(text))] = '\0';
      return hand_out(text, resolved);
    }
    case Meaning::Untouched:
      break;
  }
  return next_realpath.get()(path, resolved);
}

char* current_directory(char* out, std::size_t size) {
  char text[kPathBytes];
  const ssize_t counted = raw::getcwd(text, sizeof text);
  if (counted < 0) return nullptr;
  if (text[0] != '/') return no_name(ENOENT);  // unreachable from this process's root
  const std::size_t length = to_machine_name(text, static_cast<std::size_t>(counted) - 1);
  text[length] = '\0';
  if (out == nullptr) {
    if (size != 0 && size <= length) return no_name(ERANGE);
    out = static_cast<char*>(std::malloc(size != 0 ? size : length + 1));
    if (out == nullptr) return nullptr;
  } else if (size == 0) {
    return no_name(EINVAL);
  } else if (size <= length) {
    return no_name(ERANGE);
  }
  std::memcpy(out, text, length + 1);
  return out;
}

}  // namespace
}  // namespace vamdgpu::paths

using namespace vamdgpu::paths;

VAMDGPU_EXPORT ssize_t wrap_readlink(const char* path, char* out, std::size_t size) __asm__("readlink");
ssize_t wrap_readlink(const char* path, char* out, std::size_t size) {
  return readlink_at(AT_FDCWD, path, out, size);
}

VAMDGPU_EXPORT ssize_t wrap_readlinkat(int directory, const char* path, char* out,
                                       std::size_t size) __asm__("readlinkat");
ssize_t wrap_readlinkat(int directory, const char* path, char* out, std::size_t size) {
  return readlink_at(directory, path, out, size);
}

// _FORTIFY_SOURCE passes the size of the caller's buffer too; a call beyond it is a bug that ends the
// program.
VAMDGPU_EXPORT ssize_t wrap_readlink_chk(const char* path, char* out, std::size_t size,
                                         std::size_t room) __asm__("__readlink_chk");
ssize_t wrap_readlink_chk(const char* path, char* out, std::size_t size, std::size_t room) {
  if (size > room) std::abort();
  return readlink_at(AT_FDCWD, path, out, size);
}

VAMDGPU_EXPORT ssize_t wrap_readlinkat_chk(int directory, const char* path, char* out, std::size_t size,
                                           std::size_t room) __asm__("__readlinkat_chk");
ssize_t wrap_readlinkat_chk(int directory, const char* path, char* out, std::size_t size, std::size_t room) {
  if (size > room) std::abort();
  return readlink_at(directory, path, out, size);
}

VAMDGPU_EXPORT char* wrap_realpath(const char* path, char* resolved) __asm__("realpath");
char* wrap_realpath(const char* path, char* resolved) {
  return real_path(path, resolved);
}

VAMDGPU_EXPORT char* wrap_realpath_chk(const char* path, char* resolved,
                                       std::size_t room) __asm__("__realpath_chk");
char* wrap_realpath_chk(const char* path, char* resolved, std::size_t room) {
  if (room < kPathBytes) std::abort();
  return real_path(path, resolved);
}

VAMDGPU_EXPORT char* wrap_canonicalize_file_name(const char* path) __asm__("canonicalize_file_name");
char* wrap_canonicalize_file_name(const char* path) {
  return real_path(path, nullptr);
}

VAMDGPU_EXPORT char* wrap_getcwd(char* out, std::size_t size) __asm__("getcwd");
char* wrap_getcwd(char* out, std::size_t size) {
  return current_directory(out, size);
}

VAMDGPU_EXPORT char* wrap_getcwd_chk(char* out, std::size_t size, std::size_t room) __asm__("__getcwd_chk");
char* wrap_getcwd_chk(char* out, std::size_t size, std::size_t room) {
  if (size > room) std::abort();
  return current_directory(out, size);
}
