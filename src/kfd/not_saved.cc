// SPDX-License-Identifier: MIT
#include "kfd/not_saved.h"

#include <dirent.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>

#include "kfd/uapi.h"

namespace sluice::kfd {
namespace {

struct CloseDirectory {
  void operator()(DIR* directory) const { (void)::closedir(directory); }
};

// Entries of the process in `sysfs` whose names begin with `prefix`.
Result<std::size_t> count_entries(pid_t pid, const char* sysfs, std::string_view prefix) {
  const std::string path = std::string(sysfs) + "/" + std::to_string(pid);
  const std::unique_ptr<DIR, CloseDirectory> directory(::opendir(path.c_str()));
  if (!directory) {
    if (errno == ENOENT) return 0;
    return make_error(errno, "list " + path);
  }
  for (std::size_t count = 0;;) {
    errno = 0;
    const dirent* entry = ::readdir(directory.get());
    if (entry == nullptr && errno != 0) return make_error(errno, "list " + path);
    if (entry == nullptr) return count;
    if (std::string_view(entry->d_name).starts_with(prefix)) ++count;
  }
}

}  // namespace

Result<bool> has_secondary_contexts(pid_t pid, const char* sysfs) {
  SLUICE_TRY_ASSIGN(const std::size_t contexts, count_entries(pid, sysfs, "context_"));
  return contexts > 0;
}

Result<std::size_t> gpus_seen(pid_t pid, const char* sysfs) {
  return count_entries(pid, sysfs, "vram_");
}

// After a line of titles one for each file (drm_debugfs.c): the command in 20 columns, and who has opened it,
// which is a thread in Linux 6.1. One that is gone tells nothing.
std::optional<bool> is_drm_client(pid_t pid, std::uint32_t minor, const char* debugfs, const char* proc) {
  constexpr std::size_t kCommandColumns = 20;
  std::ifstream clients(std::string(debugfs) + "/" + std::to_string(minor) + "/clients");
  std::string line;
  if (!std::getline(clients, line)) return std::nullopt;
  bool all_known = true;
  while (std::getline(clients, line)) {
    pid_t opener = 0;
    if (line.size() <= kCommandColumns || !(std::istringstream(line.substr(kCommandColumns)) >> opener))
      return std::nullopt;
    const std::string thread = std::to_string(opener);
    const std::string processes = std::string(proc) + "/";
    if (::access((processes + std::to_string(pid) + "/task/" + thread).c_str(), F_OK) == 0) return true;
    if (::access((processes + thread).c_str(), F_OK) != 0) all_known = false;
  }
  return all_known ? std::optional(false) : std::nullopt;
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
      return make_error(
          EIO, "ask whether process " + std::to_string(pid) + " is debugged: errno " + std::to_string(err));
  }
}

}  // namespace sluice::kfd
