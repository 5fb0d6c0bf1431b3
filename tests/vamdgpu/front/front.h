// SPDX-License-Identifier: MIT
// The seam between the two halves of the user-space front (one LD_PRELOAD library):
//   devices.cc & co.  open device files, dma-bufs and fences: ioctl, mmap, close, dup, fcntl, lseek on them
//   paths.cc & co.    names: which path means which device or sysfs file, and every libc call that takes a
//   path
//                     or reports one (open*, fopen, opendir, readlink*, realpath, access*, stat*, statx)
// A device file is told by the inode behind the fd, never by the fd's number, so that it survives dup, fork
// and fd passing. All functions may be called from any thread and before constructors of other libraries ran.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>

namespace vamdgpu {

enum class NodeKind : std::uint8_t { None, Kfd, Render };

// A device node by name. `minor` is the render minor (128..) for Render, 0 for Kfd.
struct Node {
  NodeKind kind = NodeKind::None;
  std::uint32_t minor = 0;
};

// ---- implemented by the paths half
// -------------------------------------------------------------------------

// The state directory of the virtual machine (environment VAMDGPU_DIR), or nullptr when the front is
// inactive: then every wrapper passes straight through.
const char* state_dir();

// The device node a path names ("/dev/kfd", "//dev/dri/renderD128", "/dev/char/226:128"), else
// NodeKind::None.
Node node_of_path(const char* path);

// ---- implemented by the devices half
// -----------------------------------------------------------------------

// Opens a device node with open(2) flags. Returns an fd or -1 with errno, as the kernel would.
int open_node(Node node, int flags);

// Whether `real` (what the real fstat said of an fd, or of a /proc/PID/fd link's target) is an open device
// file, dma-buf or fence of this machine. If so rewrites it into what the kernel would report: S_IFCHR and
// st_rdev for device files, size for dma-bufs; st_dev, st_ino stay unique per open file.
bool rewrite_stat(struct stat* real);

// The text a /proc/PID/fd link of such a file has ("/dev/kfd", "/dev/dri/renderD128", "/dmabuf:",
// "anon_inode:sync_file"). Returns its length (not NUL-terminated, at most `size`), 0 if `real` is none of
// ours.
std::size_t link_text(const struct stat& real, char* out, std::size_t size);

// How many have an open dma-buf, as its fdinfo tells: descriptors of all processes, and what the machine has
// of its memory. `real` as above. False if it is no dma-buf of this machine.
bool dmabuf_references(const struct stat& real, std::uint64_t* count);

// What sysfs says of a GPU's memory: whether `path`, below the state directory, is one of the attributes that
// change (mem_info_vram_used, mem_info_gtt_used). Then `bytes` is its number now, with what the dead have
// left given back.
bool memory_in_use(const char* path, std::uint64_t* bytes);

}  // namespace vamdgpu
