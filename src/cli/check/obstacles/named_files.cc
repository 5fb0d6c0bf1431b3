// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <set>
#include <string_view>

#include "base/printable.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "cli/check/obstacles/dump_obstacles.h"
#include "cli/text.h"

namespace sluice::cli {
namespace {

constexpr std::size_t kMountBytes = 16 * kMiB;
constexpr std::uint64_t kGhostBytes = kMiB;  // criu's default --ghost-limit

// The device of the kernel's own shared memory, from one page of it.
dev_t shared_memory_device() {
  const UniqueFd fd(::memfd_create("sluice-check", MFD_CLOEXEC));
  struct stat status {};
  return fd && ::fstat(fd.get(), &status) == 0 ? status.st_dev : 0;
}

std::string_view without_deleted(std::string_view link) {
  constexpr std::string_view kDeleted = " (deleted)";
  if (link.ends_with(kDeleted)) link.remove_suffix(kDeleted.size());
  return link;
}

// NFS' name for a file deleted while open: .nfs and hexadecimal digits (CRIU's files-reg.c).
bool is_silly_name(const std::string& directory, const std::string& link) {
  constexpr long kNfs = 0x6969;
  constexpr std::string_view kPrefix = "/.nfs";
  constexpr std::size_t kDigits = 24;
  const std::size_t slash = link.rfind('/');
  const std::string_view name = std::string_view(link).substr(slash);
  if (!name.starts_with(kPrefix) || name.size() < kPrefix.size() + kDigits) return false;
  const std::string_view digits = name.substr(kPrefix.size(), kDigits);
  struct statfs system {};
  return std::all_of(digits.begin(), digits.end(),
                     [](unsigned char digit) { return std::isxdigit(digit) != 0; }) &&
         ::statfs(directory.c_str(), &system) == 0 && system.f_type == kNfs;
}

// Whether a task's root is on one of these mounts. In a chroot it may not be: /proc does not show mounts
// outside of it, so a missing mount proves nothing. STATX_MNT_ID: Linux 5.8.
bool has_mount_of_root(const std::set<std::uint64_t>& mounts, const std::string& task) {
  struct statx status {};
  if (::statx(AT_FDCWD, (task + "/root").c_str(), 0, STATX_MNT_ID, &status) != 0 ||
      (status.stx_mask & STATX_MNT_ID) == 0)
    return true;
  return mounts.count(status.stx_mnt_id) != 0;
}

}  // namespace

NamedFiles::NamedFiles(const DumpTree& tree, const DumpSurroundings& around)
    : tree_(tree), own_mounts_(namespaces_of(around.self)[kMntNs]), shared_memory_(shared_memory_device()) {
  for (const TaskFacts& task : tree.tasks) {
    const std::uint64_t space = task.namespaces[kMntNs];
    // Our own is visible from our own root.
    if (!roots_.emplace(space, space == own_mounts_ ? "" : task.directory + "/root").second) continue;
    const std::string text = proc_text(task.directory + "/mountinfo", kMountBytes);
    for (std::size_t at = 0; at < text.size();) {
      mounts_.insert(std::strtoull(&text[at], nullptr, 10));
      const std::size_t end = text.find('\n', at);
      at = end == std::string::npos ? text.size() : end + 1;
    }
    all_mounts_told_ = all_mounts_told_ && has_mount_of_root(mounts_, task.directory);
  }
}

bool NamedFiles::has_mount(const FileFacts& file) const {
  return !file.mount || mounts_.empty() || !all_mounts_told_ || mounts_.count(*file.mount) != 0;
}

void NamedFiles::look_at(const TaskFacts& task, const std::string& text, const std::string& link,
                         const FileFacts& file, Obstacles& found) {
  if (!looked_at_.emplace(task.namespaces[kMntNs], file.device, file.inode, link).second) return;
  if (is_shared_memory(file) || link.starts_with("/anon_hugepage") || link.starts_with("/memfd:")) return;
  const std::string name = text + printable(without_deleted(link));
  if (has_mount(file)) {
    look_at_name(task, name, link, file, found);
    return;
  }
  if (link == "/secretmem (deleted)") {
    found.add(obstacle::kSecretMemory, text + "secret memory (memfd_secret)");
    return;
  }
  const std::string id = "file[" + hex(*file.mount).substr(2) + ":" + hex(file.inode).substr(2) + "]";
  found.add(obstacle::kForeignMount, name, {}, id);
}

// As CRIU's check_path_remap does.
void NamedFiles::look_at_name(const TaskFacts& task, const std::string& name, const std::string& link,
                              const FileFacts& file, Obstacles& found) {
  struct statfs system {};
  constexpr long kProc = 0x9fa0;
  if (link.starts_with(tree_.proc + "/") && ::statfs(tree_.proc.c_str(), &system) == 0 &&
      system.f_type == kProc)
    return;  // a file of a process, even of a dead one
  if (file.links == 0) {
    if (file.bytes_on_disk > kGhostBytes)
      found.add_deleted_file(name + " (" + bytes_text(file.bytes_on_disk) + ")", file.bytes_on_disk);
    return;
  }
  const std::string path = roots_.at(task.namespaces[kMntNs]) + link;
  const auto named = file_facts(path, !S_ISLNK(file.mode));
  if (named ? is_silly_name(path.substr(0, path.rfind('/') + 1), link) : named.error().err == ENOENT) {
    found.add(obstacle::kLinkRemap, name);
  } else if (named && (named->inode != file.inode || named->device != file.device)) {
    found.add(obstacle::kPathTaken, name, name);
  }
}

}  // namespace sluice::cli
