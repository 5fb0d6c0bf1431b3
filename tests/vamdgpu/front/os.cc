// SPDX-License-Identifier: MIT
// The device model's view of the calling process (vam_os): its memory, descriptors, tracer and capabilities,
// and the files that stand for dma-bufs, fences and syncobjs. Every function runs with the shared lock held,
// on the thread that made the ioctl; errors are negative errnos.
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "engine.h"
#include "front.h"
#include "local.h"
#include "raw.h"
#include "watch.h"

namespace vamdgpu {
namespace {

constexpr std::uint64_t kUserEnd = 0x7ffffffff000;

const CallFrame& frame_of(const vam_call* call) {
  return *static_cast<const CallFrame*>(call->shim);
}

bool is_user_range(std::uint64_t address, std::uint64_t bytes) {
  return address >= 4096 && address < kUserEnd && bytes <= kUserEnd - address;
}

int copy_in(const vam_call*, void* to, std::uint64_t from, std::uint64_t bytes) {
  if (bytes == 0) return 0;
  if (!is_user_range(from, bytes)) return -EFAULT;
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return 0;
}

int copy_out(const vam_call*, std::uint64_t to, const void* from, std::uint64_t bytes) {
  if (bytes == 0) return 0;
  if (!is_user_range(to, bytes)) return -EFAULT;
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return 0;
}

// ---- descriptors
// ---------------------------------------------------------------------------------------------------

int file_of_fd(const vam_call* call, std::uint32_t fd, std::uint32_t* file) {
  FileTag tag;
  const int error = tag_of_fd(*frame_of(call).local, static_cast<int>(fd), &tag);
  if (error != 0) return error;
  if (tag.kind != FileKind::Kfd && tag.kind != FileKind::Render) return -EINVAL;
  *file = tag.index;
  return 0;
}

int bo_of_fd(const vam_call* call, std::uint32_t fd, std::uint32_t* bo) {
  FileTag tag;
  const int error = tag_of_fd(*frame_of(call).local, static_cast<int>(fd), &tag);
  if (error != 0) return error;
  if (tag.kind != FileKind::DmaBuf) return -EINVAL;
  *bo = tag.index;
  return 0;
}

int export_bo(const vam_call* call, std::uint32_t bo, std::uint32_t flags, std::uint32_t* fd) {
  const Local& local = *frame_of(call).local;
  const vam_bo* record = VAM_BO_AT(call->model, bo);
  const StatePath path = buffer_path(local.directory, *record);
  const int access = (flags & O_RDWR) != 0 ? O_RDWR : O_RDONLY;
  const int open_flags = access | static_cast<int>(flags & O_CLOEXEC);
  int opened;
  if (record->exported) {
    opened = open_tagged(path.c_str(), open_flags);
  } else {
    std::uint64_t inode = 0;
    opened = create_tagged(path.c_str(), {FileKind::DmaBuf, bo}, open_flags, record->size, &inode);
    if (opened >= 0) vam_bo_set_exported(call->model, bo, inode);
  }
  if (opened < 0) return opened;
  *fd = static_cast<std::uint32_t>(opened);
  return 0;
}

void close_fd(const vam_call*, std::uint32_t fd) {
  raw::close(static_cast<int>(fd));
}

// ---- identity
// ------------------------------------------------------------------------------------------------------

// The value of a "Name:\tvalue" line of /proc/<who>/status, as text; false when there is none.
bool status_field(const char* who, const char* name, char* out, std::size_t size) {
  char path[64], text[4096];
  std::snprintf(path, sizeof(path), "/proc/%s/status", who);
  const int fd = raw::openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return false;
  const ssize_t length = raw::read(fd, text, sizeof(text) - 1);
  raw::close(fd);
  if (length <= 0) return false;
  text[length] = 0;
  const char* line = std::strstr(text, name);
  if (line == nullptr) return false;
  line += std::strlen(name);
  while (*line == '\t' || *line == ' ') ++line;
  std::size_t used = 0;
  while (*line != 0 && *line != '\n' && used + 1 < size) out[used++] = *line++;
  out[used] = 0;
  return true;
}

// The tracer of the lead thread must be this very thread.
int traces(const vam_call* call, std::int32_t pid) {
  char who[16], value[32];
  std::snprintf(who, sizeof(who), "%d", pid);
  if (!status_field(who, "TracerPid:", value, sizeof(value))) return 0;
  return std::atoi(value) == call->tid;
}

int capable(const vam_call*) {
  char value[32];
  if (!status_field("thread-self", "CapEff:", value, sizeof(value))) return 0;
  const std::uint64_t caps = std::strtoull(value, nullptr, 16);
  constexpr unsigned kCheckpointRestore = 40;
  return ((caps >> CAP_SYS_ADMIN) & 1) != 0 || ((caps >> kCheckpointRestore) & 1) != 0;
}

// ---- userptr
// -------------------------------------------------------------------------------------------------------

struct Vma {
  std::uint64_t start, end, inode;
  bool writable;
};

bool parse_vma(const char* line, Vma* vma) {
  char* at = nullptr;
  vma->start = std::strtoull(line, &at, 16);
  if (*at != '-') return false;
  vma->end = std::strtoull(at + 1, &at, 16);
  if (*at != ' ') return false;
  vma->writable = at[2] == 'w';
  at += 6;                     // " rw-p "
  std::strtoull(at, &at, 16);  // offset
  std::strtoull(at, &at, 16);  // device, major
  if (*at == ':') ++at;
  std::strtoull(at, &at, 16);
  vma->inode = std::strtoull(at, &at, 10);
  return true;
}

// Walks /proc/self/maps, line by line, through a buffer of its own.
class MapsReader {
 public:
  MapsReader() : fd_(raw::openat(AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC, 0)) {}
  ~MapsReader() {
    if (fd_ >= 0) raw::close(fd_);
  }
  MapsReader(const MapsReader&) = delete;
  MapsReader& operator=(const MapsReader&) = delete;

  bool next(Vma* vma) {
    for (;;) {
      char* newline = static_cast<char*>(std::memchr(text_ + at_, '\n', used_ - at_));
      if (newline != nullptr) {
        *newline = 0;
        const char* line = text_ + at_;
        at_ = static_cast<std::size_t>(newline - text_) + 1;
        return parse_vma(line, vma);
      }
      if (fd_ < 0) return false;
      std::memmove(text_, text_ + at_, used_ - at_);
      used_ -= at_;
      at_ = 0;
      const ssize_t got = raw::read(fd_, text_ + used_, sizeof(text_) - used_);
      if (got <= 0) return false;
      used_ += static_cast<std::size_t>(got);
    }
  }

 private:
  int fd_;
  char text_[8192];
  std::size_t at_ = 0, used_ = 0;
};

int user_range(const vam_call*, std::uint64_t address, std::uint64_t bytes, std::uint32_t flags) {
  const std::uint64_t end = address + bytes;
  if (end < address) return -EFAULT;
  std::uint64_t covered = address;
  MapsReader maps;
  Vma vma;
  while (covered < end && maps.next(&vma)) {
    if (vma.end <= covered) continue;
    if (vma.start > covered) return -EFAULT;
    if ((flags & VAM_USERPTR_ANONONLY) != 0 && vma.inode != 0) return -EPERM;
    if ((flags & VAM_USERPTR_READONLY) == 0 && !vma.writable) return -EFAULT;
    covered = vma.end;
  }
  return covered < end ? -EFAULT : 0;
}

// ---- BO contents
// -----------------------------------------------------------------------------------------------------

void fill_bo(const vam_call* call, std::uint32_t bo, std::uint64_t offset, std::uint64_t bytes,
             std::uint8_t byte) {
  const Local& local = *frame_of(call).local;
  const vam_bo* record = VAM_BO_AT(call->model, bo);
  const StatePath path = pool_path(local.directory, static_cast<vam_pool>(record->pool), record->gpu);
  const int fd = raw::openat(AT_FDCWD, path.c_str(), O_RDWR | O_CLOEXEC, 0);
  if (fd < 0) return;
  char block[16384];
  std::memset(block, byte, sizeof(block));
  for (std::uint64_t at = 0; at < bytes;) {
    const std::uint64_t n = bytes - at < sizeof(block) ? bytes - at : sizeof(block);
    if (::syscall(SYS_pwrite64, fd, block, n, record->pool_offset + offset + at) <= 0) break;
    at += n;
  }
  raw::close(fd);
}

std::uint64_t now_ns(const vam_call*, int clock) {
  timespec now;
  ::clock_gettime(clock == 0 ? CLOCK_MONOTONIC : CLOCK_BOOTTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

// ---- fences and syncobjs
// -----------------------------------------------------------------------------------------------

int export_fence(const vam_call* call, std::uint32_t fence, std::uint32_t* fd) {
  const Local& local = *frame_of(call).local;
  vam_model* model = call->model;
  const std::uint64_t id = ++local.shared->next_name;
  const StatePath path = fence_path(local.directory, id);
  const bool done = fence == 0 || VAM_FENCE_AT(model, fence)->state == VAM_FENCE_DONE;
  if (::syscall(SYS_mknodat, AT_FDCWD, path.c_str(), S_IFIFO | 0600, 0) != 0) return -errno;
  ::syscall(SYS_fchmodat, AT_FDCWD, path.c_str(), 01600);
  // Both ends in one descriptor: it never hangs up, and shows POLLIN exactly when something was written.
  const int opened = raw::openat(AT_FDCWD, path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC, 0);
  const int error = opened < 0 ? errno : 0;
  if (opened >= 0 && done) {
    static const char kBytes[4097] = {};
    const int status = fence != 0 ? VAM_FENCE_AT(model, fence)->error : 0;
    (void)!::syscall(SYS_write, opened, kBytes, static_cast<std::size_t>(1 - status));
  }
  std::uint32_t record = 0;
  struct stat status;
  if (opened >= 0 && !done) {
    record = vam_take(model, VAM_T_EXPORT);
    if (record != 0 && raw::fstat(opened, &status) == 0) {
      auto* file = VAM_AT(model, VAM_T_EXPORT, vam_export, record);
      file->fence = fence;
      file->id = id;
      file->inode = status.st_ino;
      file->next = VAM_FENCE_AT(model, fence)->exports;
      VAM_FENCE_AT(model, fence)->exports = record;
    }
  }
  if (record == 0) ::syscall(SYS_unlinkat, AT_FDCWD, path.c_str(), 0);
  if (opened < 0) return -error;
  if (!done && record == 0) {
    raw::close(opened);
    return -ENOMEM;
  }
  *fd = static_cast<std::uint32_t>(opened);
  return 0;
}

int fence_of_fd(const vam_call* call, std::uint32_t fd, std::uint32_t* fence, int* error) {
  FileTag tag;
  const int failed = tag_of_fd(*frame_of(call).local, static_cast<int>(fd), &tag);
  if (failed != 0) return failed;
  if (tag.kind != FileKind::Fence) return -EINVAL;
  int status = 0;
  if (::syscall(SYS_ioctl, fd, FIONREAD, &status) != 0) return -EINVAL;
  *fence = 0;
  *error = status > 1 ? 1 - status : 0;
  if (status > 0) return 0;
  struct stat file;
  if (raw::fstat(static_cast<int>(fd), &file) != 0) return -EBADF;
  const vam_model* model = call->model;
  for (std::uint32_t i = 1; i < model->table[VAM_T_EXPORT].high; ++i) {
    const auto* record = VAM_AT(model, VAM_T_EXPORT, vam_export, i);
    if (record->rec.live && record->inode == file.st_ino) {
      *fence = record->fence;
      return 0;
    }
  }
  return -EINVAL;
}

int export_syncobj(const vam_call* call, std::uint32_t syncobj, std::uint32_t* fd) {
  const Local& local = *frame_of(call).local;
  auto* record = VAM_AT(call->model, VAM_T_SYNCOBJ, vam_syncobj, syncobj);
  int opened;
  if (record->inode != 0) {
    opened = open_tagged(syncobj_path(local.directory, record->name).c_str(), O_RDWR | O_CLOEXEC);
  } else {
    record->name = ++local.shared->next_name;
    opened = create_tagged(syncobj_path(local.directory, record->name).c_str(), {FileKind::Syncobj, syncobj},
                           O_RDWR | O_CLOEXEC, 0, &record->inode);
    if (opened >= 0) vam_syncobj_ref(call->model, syncobj);
  }
  if (opened < 0) return opened;
  *fd = static_cast<std::uint32_t>(opened);
  return 0;
}

int syncobj_of_fd(const vam_call* call, std::uint32_t fd, std::uint32_t* syncobj) {
  FileTag tag;
  const int error = tag_of_fd(*frame_of(call).local, static_cast<int>(fd), &tag);
  if (error != 0) return error;
  if (tag.kind != FileKind::Syncobj) return -EINVAL;
  *syncobj = tag.index;
  return 0;
}

int watch_eventfd(const vam_call* call, std::uint32_t syncobj, std::uint64_t point, int available,
                  std::uint32_t fd) {
  return watch(*frame_of(call).local, syncobj, point, available != 0, static_cast<int>(fd));
}

void submitted(const vam_call* call, std::uint32_t job) {
  engine_submit(*frame_of(call).local, job);
}

void fence_changed(const vam_call* call, std::uint32_t fence) {
  const Local& local = *frame_of(call).local;
  if (fence != 0) signal_exports(local.shared, local.directory, fence);
  announce_change(local.shared);
}

}  // namespace

const vam_os kOs = {
    copy_in,     copy_out,       file_of_fd,    bo_of_fd,      export_bo, close_fd,
    traces,      capable,        user_range,    fill_bo,       now_ns,    export_fence,
    fence_of_fd, export_syncobj, syncobj_of_fd, watch_eventfd, submitted, fence_changed,
};

std::uint64_t own_start_time() {
  // Asked anew after fork: the process id tells.
  static std::atomic<std::uint64_t> known_start{0};
  static std::atomic<int> known_pid{0};
  const int pid = static_cast<int>(::syscall(SYS_getpid));
  if (known_pid.load(std::memory_order_acquire) != pid) {
    known_start.store(process_start_time(pid), std::memory_order_relaxed);
    known_pid.store(pid, std::memory_order_release);
  }
  return known_start.load(std::memory_order_relaxed);
}

void fill_call(const Local& local, std::uint32_t file, CallFrame* frame) {
  frame->local = &local;
  frame->fd_flags = 0;
  frame->call.model = local.model();
  frame->call.os = &kOs;
  frame->call.shim = frame;
  frame->call.file = file;
  frame->call.pid = static_cast<std::int32_t>(::syscall(SYS_getpid));
  frame->call.tid = static_cast<std::int32_t>(::syscall(SYS_gettid));
  frame->call.start_time = own_start_time();
}

int tag_of_fd(const Local& local, int fd, FileTag* tag) {
  struct stat status;
  *tag = FileTag();
  if (raw::fstat(fd, &status) != 0) return -errno;
  *tag = tag_of(status, local.device);
  vam_model* model = local.model();
  // The mark in the file is only a hint; the record says whether it is so.
  switch (tag->kind) {
    case FileKind::Kfd:
    case FileKind::Render: {
      const auto* file = static_cast<const vam_file*>(vam_rec_live(model, VAM_T_FILE, tag->index));
      if (file == nullptr || file->inode != status.st_ino) tag->kind = FileKind::None;
      break;
    }
    case FileKind::DmaBuf: {
      const auto* bo = static_cast<const vam_bo*>(vam_rec_live(model, VAM_T_BO, tag->index));
      if (bo == nullptr || bo->inode != status.st_ino) tag->kind = FileKind::None;
      break;
    }
    case FileKind::Syncobj: {
      const auto* syncobj = static_cast<const vam_syncobj*>(vam_rec_live(model, VAM_T_SYNCOBJ, tag->index));
      if (syncobj == nullptr || syncobj->inode != status.st_ino) tag->kind = FileKind::None;
      break;
    }
    case FileKind::Fence:
    case FileKind::None:
      break;
  }
  return 0;
}

}  // namespace vamdgpu
