// SPDX-License-Identifier: MIT
// How many references a dma-buf has, as its fdinfo tells. See front.h. Only processes in /proc count: the
// front has no other way to their descriptors. It may allocate, and so is not async-signal-safe.
#include <dirent.h>

#include <cstdio>
#include <cstdlib>

#include "front.h"
#include "local.h"
#include "raw.h"

namespace vamdgpu {
namespace {

bool is_number(const char* name) {
  return *name >= '0' && *name <= '9';
}

std::uint64_t descriptors_of(const char* pid, const struct stat& file) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%.20s/fd", pid);
  DIR* const directory = ::opendir(path);
  if (directory == nullptr) return 0;
  std::uint64_t count = 0;
  while (const dirent* entry = ::readdir(directory)) {
    struct stat status;
    if (is_number(entry->d_name) && raw::fstatat(::dirfd(directory), entry->d_name, &status, 0) == 0 &&
        status.st_dev == file.st_dev && status.st_ino == file.st_ino)
      ++count;
  }
  ::closedir(directory);
  return count;
}

}  // namespace

bool dmabuf_references(const struct stat& real, std::uint64_t* count) {
  const Local* const machine = local();
  if (machine == nullptr) return false;
  const FileTag tag = tag_of(real, machine->device);
  if (tag.kind != FileKind::DmaBuf) return false;
  *count = 0;
  {
    const Locked locked(machine->shared->lock);
    const auto* bo = static_cast<const vam_bo*>(vam_rec_live(machine->model(), VAM_T_BO, tag.index));
    if (bo == nullptr || bo->inode != real.st_ino) return false;
    *count = bo->refs - bo->exported;
  }
  DIR* const processes = ::opendir("/proc");
  if (processes == nullptr) return false;
  while (const dirent* entry = ::readdir(processes)) {
    if (is_number(entry->d_name)) *count += descriptors_of(entry->d_name, real);
  }
  ::closedir(processes);
  return true;
}

}  // namespace vamdgpu
