// SPDX-License-Identifier: MIT
// See ioctl_fault.h.
#include "ioctl_fault.h"

#include <dlfcn.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstdarg>
#include <mutex>
#include <utility>

namespace sluice::drm {
namespace {

struct Plan {
  bool active = false;
  int spared_fd = -1;
  BeforeIoctl before;
  AfterIoctl after;
};

// A planned function may call ioctl itself: it is not planned for then.
thread_local bool inside = false;

std::mutex& plan_mutex() {
  static std::mutex mutex;
  return mutex;
}

Plan& plan() {
  static Plan the_plan;
  return the_plan;
}

}  // namespace

IoctlPlan::IoctlPlan(int spared_fd, BeforeIoctl before, AfterIoctl after) {
  const std::lock_guard lock(plan_mutex());
  plan() = {true, spared_fd, std::move(before), std::move(after)};
}

IoctlPlan::~IoctlPlan() {
  const std::lock_guard lock(plan_mutex());
  plan() = {};
}

}  // namespace sluice::drm

extern "C" int ioctl(int fd, unsigned long request, ...) noexcept {
  using Function = int (*)(int, unsigned long, ...);
  static const auto next = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "ioctl"));
  std::va_list list;
  va_start(list, request);
  void* const args = va_arg(list, void*);
  va_end(list);

  using sluice::drm::inside;
  using sluice::drm::plan;
  const auto type = static_cast<char>(_IOC_TYPE(request));
  const auto number = static_cast<unsigned>(_IOC_NR(request));
  if (inside || (type != 'd' && type != '>')) return next(fd, request, args);
  const std::lock_guard lock(sluice::drm::plan_mutex());
  if (!plan().active || fd == plan().spared_fd) return next(fd, request, args);
  inside = true;
  int outcome = -1;
  if (const int err = plan().before ? plan().before(type, number, args) : 0; err != 0) {
    errno = err;
  } else {
    outcome = next(fd, request, args);
    if (outcome == 0 && plan().after) plan().after(type, number, args);
  }
  inside = false;
  return outcome;
}
