// SPDX-License-Identifier: MIT
// How the files of an image directory are opened. Anyone who can write there may have put anything under any
// name. So no symbolic link is followed, nothing blocks, and only regular files are accepted. Names have no
// '/': they are the directory's own files.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace sluice {

struct ImageFile {
  UniqueFd fd;
  struct stat status {};
};

// EINVAL, with the name, unless it is a regular file.
Result<void> check_regular(const std::string& name, const struct stat& status);

// What tells a file from any other, and from itself with other contents. Its ctime is no part of this,
// because a hard link changes that.
struct FileIdentity {
  dev_t device = 0;
  ino_t inode = 0;
  off_t bytes = 0;
  std::int64_t mtime_ns = 0;

  bool operator==(const FileIdentity&) const = default;
};
FileIdentity identity_of(const struct stat& status);

// Whether only this process' user can have it open: a regular file of that user, of mode 0600.
bool is_private(const struct stat& status);

// For reading. Errors: those of openat and fstat; EINVAL unless it is a regular file.
Result<ImageFile> open_image_file(int dir_fd, const std::string& name);

// Its bytes. Errors: EFBIG for more than `most` bytes, before any memory is allocated; EBADMSG when it
// shrinks meanwhile; those of pread.
Result<std::vector<std::uint8_t>> read_whole(const ImageFile& file, std::uint64_t most,
                                             const std::string& name);

// A new file without a name, for reading and writing, of mode 0600. Errors: those of openat; of
// create_image_file(), if the file system has no such files: then its name is removed at once.
Result<UniqueFd> create_unnamed_file(int dir_fd);

// A new file for reading and writing, mode 0600 whatever the umask. An old file of that name is removed,
// never written to. Errors: those of openat, unlinkat, fchmod.
Result<UniqueFd> create_image_file(int dir_fd, const std::string& name);

}  // namespace sluice
