// SPDX-License-Identifier: MIT
// Wrapped libc calls on descriptors (see devices.h), and the seam to the paths half (front.h): opening device
// nodes and telling what a file of the machine looks like from outside.
#include "devices.h"

#include <fcntl.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "engine.h"
#include "front.h"
#include "raw.h"

namespace vamdgpu {
namespace {

constexpr unsigned kDrmMajor = 226;

// Which image this process runs: an execve ends the KFD process of the old one.
int g_image_pid = 0;
std::atomic<bool> g_image_opened_kfd{false};

__attribute__((constructor)) void note_image() {
  g_image_pid = static_cast<int>(::syscall(SYS_getpid));
}

void end_former_image(vam_model* model, const vam_call& call) {
  if (g_image_opened_kfd.exchange(true) || g_image_pid != call.pid) return;
  const std::uint32_t process = vam_find_process(model, call.pid, call.start_time);
  if (process != 0) vam_process_died(model, process);
}

// The tag of an fd that is one of the machine's, else kind None. errno is kept.
FileTag own_tag(const Local& machine, int fd) {
  const int error = errno;
  FileTag tag;
  if (fd < 0 || tag_of_fd(machine, fd, &tag) != 0) tag = FileTag();
  errno = error;
  return tag;
}

int finish(long result) {
  if (result >= 0) return static_cast<int>(result);
  errno = static_cast<int>(-result);
  return -1;
}

void* wrapped_mmap(void* address, std::size_t length, int protection, int flags, int fd, off_t offset) {
  const Local* machine = fd >= 0 && (flags & MAP_ANONYMOUS) == 0 ? local() : nullptr;
  if (machine != nullptr) {
    const FileTag tag = own_tag(*machine, fd);
    if (tag.kind != FileKind::None)
      return device_mmap(*machine, tag, address, length, protection, flags,
                         static_cast<std::uint64_t>(offset));
  }
  return raw::mmap(address, length, protection, flags, fd, offset);
}

}  // namespace

// ---- front.h
// -----------------------------------------------------------------------------------------------------------

int open_node(Node node, int flags) {
  const Local* machine = local();
  if (machine == nullptr || node.kind == NodeKind::None) {
    errno = ENXIO;
    return -1;
  }
  vam_model* model = machine->model();
  CallFrame frame;
  fill_call(*machine, 0, &frame);
  Locked locked(machine->shared->lock);
  reap(machine->shared, machine->directory, false);
  std::uint32_t index = 0;
  int result = -ENODEV;
  if (node.kind == NodeKind::Kfd) {
    end_former_image(model, frame.call);
    result = vam_open_kfd(&frame.call, &index);
  } else {
    for (std::uint32_t gpu = 0; gpu < model->num_gpus; ++gpu) {
      if (model->gpu[gpu].config.render_minor == node.minor)
        result = vam_open_render(&frame.call, gpu, &index);
    }
  }
  if (result != 0) return finish(result);
  vam_file* file = VAM_FILE_AT(model, index);
  const FileTag tag = {node.kind == NodeKind::Kfd ? FileKind::Kfd : FileKind::Render, index};
  const int fd = create_tagged(file_path(machine->directory, *file).c_str(), tag,
                               flags & (O_ACCMODE | O_CLOEXEC | O_NONBLOCK), 0, &file->inode);
  if (fd < 0) vam_close_file(model, index);
  return finish(fd);
}

bool rewrite_stat(struct stat* real) {
  const Local* machine = local();
  if (machine == nullptr) return false;
  const FileTag tag = tag_of(*real, machine->device);
  const vam_model* model = machine->model();
  switch (tag.kind) {
    case FileKind::Kfd:
    case FileKind::Render: {
      const auto* file = static_cast<const vam_file*>(vam_rec_live(model, VAM_T_FILE, tag.index));
      if (file == nullptr || file->inode != real->st_ino) return false;
      real->st_mode = S_IFCHR | 0666;
      real->st_rdev = tag.kind == FileKind::Kfd
                          ? makedev(model->config.kfd_major, 0)
                          : makedev(kDrmMajor, model->gpu[file->gpu].config.render_minor);
      real->st_size = 0;
      real->st_blocks = 0;
      return true;
    }
    case FileKind::DmaBuf: {
      const auto* bo = static_cast<const vam_bo*>(vam_rec_live(model, VAM_T_BO, tag.index));
      if (bo == nullptr || bo->inode != real->st_ino) return false;
      real->st_mode = 0600;  // an anonymous inode has no type
      real->st_size = static_cast<off_t>(bo->size);
      return true;
    }
    case FileKind::Syncobj:
    case FileKind::Fence:
      real->st_mode = 0600;
      real->st_size = 0;
      return true;
    case FileKind::None:
      break;
  }
  return false;
}

std::size_t link_text(const struct stat& real, char* out, std::size_t size) {
  struct stat status = real;
  const Local* machine = local();
  if (machine == nullptr || !rewrite_stat(&status)) return 0;
  char text[64];
  switch (tag_of(real, machine->device).kind) {
    case FileKind::Kfd:
      std::snprintf(text, sizeof(text), "/dev/kfd");
      break;
    case FileKind::Render:
      std::snprintf(text, sizeof(text), "/dev/dri/renderD%u", minor(status.st_rdev));
      break;
    case FileKind::DmaBuf:
      std::snprintf(text, sizeof(text), "/dmabuf:");
      break;
    case FileKind::Syncobj:
      std::snprintf(text, sizeof(text), "anon_inode:syncobj_file");
      break;
    default:
      std::snprintf(text, sizeof(text), "anon_inode:sync_file");
      break;
  }
  const std::size_t length = std::strlen(text) < size ? std::strlen(text) : size;
  std::memcpy(out, text, length);
  return length;
}

}  // namespace vamdgpu

// ---- wrapped libc functions
// ----------------------------------------------------------------------------------------------

// Under names of their own, so that libc's declarations (64-bit redirections, attributes) do not get in the
// way.
#define VAMDGPU_WRAPPER extern "C" __attribute__((visibility("default")))

VAMDGPU_WRAPPER int wrap_ioctl(int fd, unsigned long request, ...) __asm__("ioctl");
VAMDGPU_WRAPPER void* wrap_mmap(void*, std::size_t, int, int, int, off_t) noexcept __asm__("mmap");
VAMDGPU_WRAPPER void* wrap_mmap64(void*, std::size_t, int, int, int, off_t) noexcept __asm__("mmap64");
VAMDGPU_WRAPPER int wrap_close(int fd) __asm__("close");

int wrap_ioctl(int fd, unsigned long request, ...) {
  va_list list;
  va_start(list, request);
  void* argument = va_arg(list, void*);
  va_end(list);
  const vamdgpu::Local* machine = vamdgpu::local();
  if (machine != nullptr) {
    const vamdgpu::FileTag tag = vamdgpu::own_tag(*machine, fd);
    if (tag.kind == vamdgpu::FileKind::Fence)
      return vamdgpu::finish(vamdgpu::fence_ioctl(*machine, fd, request, argument));
    if (tag.kind != vamdgpu::FileKind::None)
      return vamdgpu::finish(vamdgpu::device_ioctl(*machine, tag, request, argument));
  }
  return static_cast<int>(::syscall(SYS_ioctl, fd, request, argument));
}

void* wrap_mmap(void* address, std::size_t length, int protection, int flags, int fd, off_t offset) noexcept {
  return vamdgpu::wrapped_mmap(address, length, protection, flags, fd, offset);
}

void* wrap_mmap64(void* address, std::size_t length, int protection, int flags, int fd,
                  off_t offset) noexcept {
  return vamdgpu::wrapped_mmap(address, length, protection, flags, fd, offset);
}

int wrap_close(int fd) {
  const vamdgpu::Local* machine = vamdgpu::local();
  vamdgpu::FileTag tag;
  if (machine != nullptr) tag = vamdgpu::own_tag(*machine, fd);
  const int result = vamdgpu::raw::close(fd);
  if (result != 0 || tag.kind == vamdgpu::FileKind::None || tag.kind == vamdgpu::FileKind::Fence)
    return result;
  {
    vamdgpu::Locked locked(machine->shared->lock);
    vamdgpu::reap_file(machine->shared, machine->directory, tag);
  }
  if (tag.kind == vamdgpu::FileKind::Render) vamdgpu::engine_stop_if_unused(*machine);
  return result;
}
