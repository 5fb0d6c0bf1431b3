// SPDX-License-Identifier: MIT
// Preloaded into hosts, before the virtual machine: a clock was ahead when the link named parent was made.
// Its ctime is kLinkAheadVariable seconds later than the file system says.
#include <dlfcn.h>
#include <sys/stat.h>

#include <cstdlib>
#include <cstring>

#include "future_link.h"

extern "C" {
int fstatat64(int dir_fd, const char* path, struct stat64* status, int flags);
[[gnu::visibility("default")]] int fstatat64(int dir_fd, const char* path, struct stat64* status, int flags) {
  static const auto next = reinterpret_cast<decltype(&fstatat64)>(::dlsym(RTLD_NEXT, "fstatat64"));
  const int result = next(dir_fd, path, status, flags);
  const char* const ahead = std::getenv(sluice::plugin_test::kLinkAheadVariable);
  if (result == 0 && ahead != nullptr && std::strcmp(path, "parent") == 0 && S_ISLNK(status->st_mode))
    status->st_ctim.tv_sec += std::atol(ahead);
  return result;
}
}
