// SPDX-License-Identifier: MIT
#include "base/device_node.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>

#include "base/format.h"

namespace sluice {
namespace {

Result<UniqueFd> open_if_it_is(const std::string& path, dev_t number, int directory, int flags) {
  UniqueFd fd(static_cast<int>(TEMP_FAILURE_RETRY(::openat(directory, path.c_str(), flags | O_CLOEXEC))));
  if (!fd) return make_error(errno, "open " + path);
  struct stat st {};
  if (::fstat(fd.get(), &st) != 0) return make_error(errno, "fstat of " + path);
  if (S_ISCHR(st.st_mode) && st.st_rdev == number) return fd;
  return Error{ENODEV, formatted("{} is not the device {}:{}, nor a link to it; make the container's node "
                                 "anew with these numbers [SL-H01]",
                                 path, major(number), minor(number))};
}

}  // namespace

// Some devices act when they are opened, so the file is looked at first. The second open goes by name and may
// lead elsewhere by now, so its own fstat decides. Opening by /proc/self/fd would avoid that, but /proc is
// the container's and may be missing.
Result<UniqueFd> open_device_node(const std::string& path, dev_t number, int directory) {
  SLUICE_TRY(open_if_it_is(path, number, directory, O_PATH));
  return open_if_it_is(path, number, directory, O_RDWR);
}

}  // namespace sluice
