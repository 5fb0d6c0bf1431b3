// SPDX-License-Identifier: MIT
// Lazy reaping of what nobody has any more, and telling the files of a fence that it has signalled. See
// shared.h.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "raw.h"
#include "shared.h"

namespace vamdgpu {
namespace {

void unlink_path(const StatePath& path) {
  ::syscall(SYS_unlinkat, AT_FDCWD, path.c_str(), 0);
}

// The record goes before the file: a process may be killed between, and a record without its file would be
// given out again, while a file without a record is made anew.
void reap_device_file(Shared* shared, const char* directory, std::uint32_t index) {
  vam_model* model = shared->model();
  const vam_file* file = VAM_FILE_AT(model, index);
  if (!file->rec.live || file->inode == 0) return;
  const StatePath path = file_path(directory, *file);
  if (file_is_open(path.c_str())) return;
  vam_close_file(model, index);
  unlink_path(path);
}

void reap_buffer(Shared* shared, const char* directory, std::uint32_t index) {
  vam_model* model = shared->model();
  const vam_bo* bo = VAM_BO_AT(model, index);
  if (!bo->rec.live || !bo->exported) return;
  const StatePath path = buffer_path(directory, *bo);
  if (file_is_open(path.c_str())) return;
  vam_bo_set_exported(model, index, 0);
  unlink_path(path);
}

void reap_syncobj(Shared* shared, const char* directory, std::uint32_t index) {
  vam_model* model = shared->model();
  auto* syncobj = VAM_AT(model, VAM_T_SYNCOBJ, vam_syncobj, index);
  if (!syncobj->rec.live || syncobj->inode == 0) return;
  const StatePath path = syncobj_path(directory, syncobj->name);
  if (file_is_open(path.c_str())) return;
  syncobj->inode = 0;
  vam_syncobj_unref(model, index);
  unlink_path(path);
}

void reap_jobs(Shared* shared, const char* directory) {
  vam_model* model = shared->model();
  bool finished = false;
  for (std::uint32_t i = 1; i < model->table[VAM_T_JOB].high; ++i) {
    const vam_job* job = VAM_JOB_AT(model, i);
    if (!job->rec.live || process_start_time(job->owner_pid) == job->owner_start) continue;
    std::uint32_t fence = 0;
    vam_job_finish(model, i, -ECANCELED, &fence);
    signal_exports(shared, directory, fence);
    vam_fence_unref(model, fence);
    finished = true;
  }
  if (finished) announce_change(shared);
}

}  // namespace

void reap_file(Shared* shared, const char* directory, FileTag tag) {
  switch (tag.kind) {
    case FileKind::Kfd:
    case FileKind::Render:
      reap_device_file(shared, directory, tag.index);
      break;
    case FileKind::DmaBuf:
      reap_buffer(shared, directory, tag.index);
      break;
    case FileKind::Syncobj:
      reap_syncobj(shared, directory, tag.index);
      break;
    case FileKind::None:
    case FileKind::Fence:
      break;
  }
}

void reap(Shared* shared, const char* directory, bool buffers) {
  vam_model* model = shared->model();
  reap_jobs(shared, directory);
  for (std::uint32_t i = 1; i < model->table[VAM_T_FILE].high; ++i) reap_device_file(shared, directory, i);
  for (std::uint32_t i = 1; i < model->table[VAM_T_PROCESS].high; ++i) {
    const vam_process* process = VAM_PROCESS_AT(model, i);
    if (!process->rec.live || process->dead) continue;
    if (process_start_time(process->pid) != process->start_time) vam_process_died(model, i);
  }
  if (!buffers) return;
  for (std::uint32_t i = 1; i < model->table[VAM_T_BO].high; ++i) reap_buffer(shared, directory, i);
  for (std::uint32_t i = 1; i < model->table[VAM_T_SYNCOBJ].high; ++i) reap_syncobj(shared, directory, i);
}

void signal_exports(Shared* shared, const char* directory, std::uint32_t fence) {
  vam_model* model = shared->model();
  vam_fence* f = VAM_FENCE_AT(model, fence);
  // The number of bytes in the FIFO is the status: 1 = signalled, 1 + errno = failed.
  static const char kBytes[4097] = {};
  const std::size_t count = 1 + static_cast<std::size_t>(f->error < 0 ? -f->error : 0);
  for (std::uint32_t e = f->exports, next; e != 0; e = next) {
    const auto* file = VAM_AT(model, VAM_T_EXPORT, vam_export, e);
    next = file->next;
    const StatePath path = fence_path(directory, file->id);
    const int fd = raw::openat(AT_FDCWD, path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC, 0);
    if (fd >= 0) {  // ENXIO: nobody has it any more
      (void)!::syscall(SYS_write, fd, kBytes, count);
      raw::close(fd);
    }
    unlink_path(path);
    vam_put(model, VAM_T_EXPORT, e);
  }
  f->exports = 0;
}

}  // namespace vamdgpu
