// SPDX-License-Identifier: MIT
// Direct I/O: whether a file system supports it, and with which alignment. The kernel tells (statx DIOALIGN);
// otherwise 4096 is assumed and tried.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "pipeline/layout.h"

namespace sluice {

// Auto: direct if possible, else buffered; a reader takes chunks that are in the page cache from there. A
// small file is buffered, because testing for direct I/O costs more than it gains.
// Uncached: direct if possible, else buffered; reads the disk, not the page cache. Direct: fail with EINVAL
// if direct I/O is impossible. Buffered: never direct.
enum class IoMode : std::uint8_t { Auto, Uncached, Direct, Buffered };

// Alignment in bytes for direct I/O on an open file; 0: unsupported. If the kernel does not tell, the value
// to try first.
std::uint64_t direct_alignment(int fd);

// Turns direct I/O on if `mode` asks for it and the layout's chunks allow it. Returns the alignment of file
// ranges, lengths and addresses, in bytes; 1: the file is buffered. Buffers must be aligned to
// kBufferAlignment. Error: EINVAL with `name`, if IoMode::Direct is impossible.
Result<std::uint64_t> set_up_io(int fd, IoMode mode, const ImageLayout& layout, std::uint32_t file,
                                const std::string& name);

// Whether a new file of the directory would have direct I/O for such chunks: makes one and removes it. EINVAL
// if not. Errors: those of create_image_file().
Result<void> check_direct_io(int dir_fd, std::uint64_t chunk_bytes);

}  // namespace sluice
