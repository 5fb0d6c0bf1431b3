// SPDX-License-Identifier: MIT
#pragma once

#include <sys/ioctl.h>

#include <cerrno>

namespace sluice::drm {

// An ioctl of a DRM file, repeated after a signal. Returns 0 or a positive errno.
inline int drm_call(int fd, unsigned long request, void* args) {
  int outcome;
  do {
    outcome = ::ioctl(fd, request, args);
  } while (outcome < 0 && errno == EINTR);
  return outcome < 0 ? errno : 0;
}

}  // namespace sluice::drm
