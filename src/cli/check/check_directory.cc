// SPDX-License-Identifier: MIT
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/unique_fd.h"
#include "cli/check/check.h"
#include "cli/text.h"
#include "images/files/cause.h"
#include "pipeline/store/direct_io.h"

namespace sluice::cli {
namespace {

constexpr int kMostEntries = 256;  // searched for a file to test

constexpr std::uint32_t kTmpfs = 0x01021994;

// File system types as in statfs(2).
constexpr std::array kTypes = std::to_array<std::pair<std::uint32_t, const char*>>({
    {0xEF53, "ext4"},
    {0x58465342, "xfs"},
    {0x9123683E, "btrfs"},
    {0xF2F52010, "f2fs"},
    {kTmpfs, "tmpfs"},
    {0x794C7630, "overlayfs"},
    {0x6969, "nfs"},
    {0x2FC12FC1, "zfs"},
    {0x0BD00BD0, "lustre"},
});

const char* type_name(std::uint32_t type) {
  const auto known =
      std::find_if(kTypes.begin(), kTypes.end(), [type](const auto& each) { return each.first == type; });
  return known == kTypes.end() ? "unknown" : known->second;
}

struct CloseDirectory {
  void operator()(DIR* directory) const { (void)::closedir(directory); }
};

// Tests an existing file, because none may be created.
Finding check_direct_io(int dir_fd) {
  const int list_fd = ::openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, CloseDirectory> list(list_fd >= 0 ? ::fdopendir(list_fd) : nullptr);
  const dirent* entry = nullptr;
  for (int i = 0; list && i < kMostEntries && (entry = ::readdir(list.get())) != nullptr; ++i) {
    if (entry->d_type != DT_REG) continue;
    const UniqueFd fd(
        ::openat(dir_fd, entry->d_name, O_RDONLY | O_DIRECT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!fd && errno != EINVAL) continue;
    const std::uint64_t alignment = fd ? direct_alignment(fd.get()) : 0;
    if (alignment != 0)
      return {Weight::Good, "direct-io", "direct I/O, aligned to " + std::to_string(alignment) + " bytes",
              ""};
    return {Weight::Warning, "direct-io", "no direct I/O: images go through the page cache, slower",
            "use a directory on ext4 or xfs"};
  }
  return {Weight::Good, "direct-io", "not known: no file is there to ask; a dump tries and does without", ""};
}

Finding not_opened(const std::string& path, int err) {
  const char* const remedy = err == ENOENT    ? "make it: criu does not"
                             : err == ENOTDIR ? "name a directory: a part of this path is none"
                             : cause_of(err) == Cause::NotAllowed ? "run as root, or name another"
                                                                  : "name another directory";
  return {Weight::Problem, "directory", make_error(err, path).what, remedy};
}

}  // namespace

Findings check_directory(const std::string& path, std::optional<std::uint64_t> need) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return {not_opened(path, errno)};
  Findings findings;
  struct statvfs space {};
  struct statfs type {};
  if (::fstatvfs(fd.get(), &space) != 0 || ::fstatfs(fd.get(), &type) != 0)
    return {{Weight::Problem, "directory", make_error(errno, path).what, ""}};
  const auto type_number = static_cast<std::uint32_t>(type.f_type);  // signed and longer in some C libraries
  const std::string where = path + " on " + type_name(type_number);
  if ((space.f_flag & ST_RDONLY) != 0) {
    findings.push_back(
        {Weight::Problem, "directory", where + " is read-only", "name a directory that can be written"});
  } else if (::faccessat(fd.get(), ".", W_OK | X_OK, AT_EACCESS) != 0) {
    findings.push_back(
        {Weight::Problem, "directory", make_error(errno, where).what, "run as root, or name another"});
  } else if (type_number == kTmpfs) {
    findings.push_back({Weight::Warning, "directory",
                        where + ": the images are in memory and gone after a boot",
                        "name a directory on a disk"});
  } else {
    findings.push_back({Weight::Good, "directory", where, ""});
  }
  findings.push_back(check_direct_io(fd.get()));
  const std::uint64_t room = std::uint64_t{space.f_bavail} * space.f_frsize;
  if (!need) {
    findings.push_back({Weight::Good, "space", bytes_text(room) + " free", ""});
  } else if (*need <= room) {
    findings.push_back(
        {Weight::Good, "space", bytes_text(room) + " free for " + bytes_text(*need) + " of GPU memory", ""});
  } else {
    findings.push_back(
        {Weight::Problem, "space",
         bytes_text(room) + " free, the process has " + bytes_text(*need) +
             " of GPU memory (zeros in it take none; what several GPUs have alike may be written once)",
         "free space, or name another directory"});
  }
  return findings;
}

}  // namespace sluice::cli
