// SPDX-License-Identifier: MIT
// How the files of an image directory are opened. Whoever may write there may have put anything under any
// name. So no symbolic link is followed, nothing waits, and what is no regular file is refused. Names are of
// the directory's own files: they have no '/'.
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

// EINVAL, named, for what is no regular file.
Result<void> check_regular(const std::string& name, const struct stat& status);

// Whether nobody but this process' user can have it open: a regular file of his, of mode 0600.
bool is_private(const struct stat& status);

// For reading. Errors: those of openat and fstat; EINVAL for what is no regular file.
Result<ImageFile> open_image_file(int dir_fd, const std::string& name);

// Its bytes. Errors: EFBIG, before there is memory for it, for more than `most` bytes; EBADMSG when it
// becomes shorter meanwhile; those of pread.
Result<std::vector<std::uint8_t>> read_whole(const ImageFile& file, std::uint64_t most,
                                             const std::string& name);

// A new file, for reading and writing, mode 0600 whatever the umask. What has the name already is removed,
// and not written to. Errors: those of openat, unlinkat, fchmod.
Result<UniqueFd> create_image_file(int dir_fd, const std::string& name);

}  // namespace sluice
