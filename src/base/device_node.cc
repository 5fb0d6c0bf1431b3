// SPDX-License-Identifier: MIT
#include "base/device_node.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>

namespace sluice {
namespace {

Result<UniqueFd> open_if_it_is(const std::string& path, dev_t number, int flags) {
  UniqueFd fd(static_cast<int>(TEMP_FAILURE_RETRY(::open(path.c_str(), flags | O_CLOEXEC))));
  if (!fd) return make_error(errno, "open " + path);
  struct stat st {};
  if (::fstat(fd.get(), &st) != 0) return make_error(errno, "fstat of " + path);
  if (S_ISCHR(st.st_mode) && st.st_rdev == number) return fd;
  return Error{ENODEV, path + " is, or leads to, something else than the device " +
                           std::to_string(major(number)) + ":" + std::to_string(minor(number))};
}

}  // namespace

// Some devices act when they are opened, so nothing is before it is known. Then the name is opened again,
// which may lead elsewhere by now: what counts is what the second look says. By /proc/self/fd it would be the
// same file, but /proc is the container's, too, and may not be there.
Result<UniqueFd> open_device_node(const std::string& path, dev_t number) {
  SLUICE_TRY(open_if_it_is(path, number, O_PATH));
  return open_if_it_is(path, number, O_RDWR);
}

}  // namespace sluice
