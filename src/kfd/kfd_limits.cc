// SPDX-License-Identifier: MIT
#include "kfd/kfd_limits.h"

#include <dirent.h>

#include <cerrno>
#include <memory>
#include <string>
#include <string_view>

#include "base/format.h"
#include "kfd/uapi.h"

namespace sluice::kfd {
namespace {

struct CloseDirectory {
  void operator()(DIR* directory) const { (void)::closedir(directory); }
};

}  // namespace

Result<bool> has_secondary_contexts(pid_t pid, const char* sysfs) {
  constexpr std::string_view kContext = "context_";
  const std::string path = std::string(sysfs) + "/" + std::to_string(pid);
  const std::unique_ptr<DIR, CloseDirectory> directory(::opendir(path.c_str()));
  if (!directory) {
    if (errno == ENOENT) return false;
    return make_error(errno, "list " + path);
  }
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(directory.get());
    if (entry == nullptr && errno != 0) return make_error(errno, "list " + path);
    if (entry == nullptr) return false;
    if (std::string_view(entry->d_name).starts_with(kContext)) return true;
  }
}

Result<bool> is_debugged(const KfdDevice& own, pid_t pid) {
  DebugTrapArgs args{};
  args.pid = static_cast<std::uint32_t>(pid);
  args.op = kDebugTrapQueryEvent;
  switch (const int err = call_ioctl(own.ioctl_function(), own.fd(), kIocDebugTrap, &args)) {
    case 0:
    case EAGAIN:  // no event is pending
      return true;
    case EINVAL:
    case ESRCH:   // no KFD process
    case ENOTTY:  // KFD before 1.13
      return false;
    case EPERM:
      return make_error(err, "ask whether process " + std::to_string(pid) + " is debugged");
    default:
      return make_error(EIO, formatted("ask whether process {} is debugged, errno {}", pid, err));
  }
}

}  // namespace sluice::kfd
