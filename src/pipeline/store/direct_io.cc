// SPDX-License-Identifier: MIT
#include "pipeline/store/direct_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "base/image_file.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "pipeline/slot.h"

namespace sluice {
namespace {

// Alignment if the kernel does not report one: every disk's logical block.
constexpr std::uint64_t kAssumedAlignment = 4096;

constexpr std::uint64_t kSmallBytes = 256 * kKiB;

bool set_direct(int fd, bool on) {
  const int flags = ::fcntl(fd, F_GETFL);
  return flags >= 0 && ::fcntl(fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

// Reads one unit to see whether the file system supports what set_direct() allowed.
bool direct_read_works(int fd, std::uint64_t alignment) {
  const auto bytes = static_cast<std::size_t>(alignment);
  void* const memory = ::aligned_alloc(bytes, bytes);
  if (memory == nullptr) return false;
  const bool works = ::pread(fd, memory, bytes, 0) >= 0;
  std::free(memory);
  return works;
}

// Turns direct I/O on if it is possible for such chunks; returns its alignment, or 1 for buffered. A chunk
// starts at a multiple of its size, so the alignment must divide it.
std::uint64_t try_direct(int fd, std::uint64_t chunk_bytes) {
  const std::uint64_t alignment = direct_alignment(fd);
  if (alignment == 0 || !std::has_single_bit(alignment)) return 1;        // unreached: another machine
  if (alignment > chunk_bytes || alignment > kBufferAlignment) return 1;  // unreached: another machine
  if (!set_direct(fd, true)) return 1;
  if (direct_read_works(fd, std::max(alignment, kAssumedAlignment))) return alignment;
  (void)set_direct(fd, false);
  return 1;
}

}  // namespace

std::uint64_t direct_alignment(int fd) {
#ifdef STATX_DIOALIGN  // Linux 6.1
  struct statx status {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 &&
      (status.stx_mask & STATX_DIOALIGN) != 0) {
    return std::max(status.stx_dio_mem_align, status.stx_dio_offset_align);  // both 0: not possible
  }
#endif
  return kAssumedAlignment;
}

Result<std::uint64_t> set_up_io(int fd, IoMode mode, const ImageLayout& layout, std::uint32_t file,
                                const std::string& name) {
  const bool small = mode == IoMode::Auto && layout.file_bytes(file) <= kSmallBytes;
  const std::uint64_t alignment =
      mode == IoMode::Buffered || small ? 1 : try_direct(fd, layout.chunk_bytes());
  if (mode == IoMode::Direct && alignment == 1)
    return Error{EINVAL, name + " does not allow direct I/O; set SLUICE_IO_MODE=auto [SL-C09]"};
  return alignment;
}

Result<void> check_direct_io(int dir_fd, std::uint64_t chunk_bytes) {
  constexpr const char* kProbe = "amdgpu-direct.img.tmp";  // a dump removes such files
  SLUICE_TRY_ASSIGN(const UniqueFd fd, create_image_file(dir_fd, kProbe));
  const bool direct = try_direct(fd.get(), chunk_bytes) > 1;
  (void)::unlinkat(dir_fd, kProbe, 0);
  return direct
             ? Result<void>()
             : Error{EINVAL,
                     "the image directory's file system has no direct I/O; set SLUICE_IO_MODE=auto [SL-C10]"};
}

}  // namespace sluice
