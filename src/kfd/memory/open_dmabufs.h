// SPDX-License-Identifier: MIT
// Dma-bufs that processes have open, and what the kernel reveals of one: whose memory it is, and whether
// others hold it.
//
// A dma-buf is one open file for all its holders, so its inode identifies it. But one memory can have
// several. Sources: dma-buf.c (dma_buf_show_fdinfo), kfd_chardev.c (kfd_ioctl_get_dmabuf_info), equal in
// Linux 6.1, 6.12 and 7.2. Functions without state.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "kfd/device.h"
#include "proc/processes.h"

namespace sluice::kfd {

struct OpenDmaBuf {
  ino_t inode = 0;
  proc::FileHolder first;      // a descriptor of it
  std::vector<pid_t> holders;  // the processes that have a descriptor, ascending
  std::uint64_t entries = 0;   // in all their descriptor tables: a shared table counts once
};

// What identifies a dma-buf, for as long as it exists. Errors: those of fstat().
Result<ino_t> inode_of_dmabuf(int dmabuf);

// The dma-bufs of `pids` (ascending), each once. Errors: dmabuf_descriptors()', same_open_file()'s.
Result<std::vector<OpenDmaBuf>> open_dmabufs(const std::vector<pid_t>& pids);

// A descriptor of this process for it. Errors: take_descriptor()'s; ESTALE if the file has changed.
Result<UniqueFd> take_dmabuf(const OpenDmaBuf& listed);

// The gpu_id, in the kernel's own numbering, of the GPU that has a dma-buf's memory. Errors: EINVAL for
// memory of no AMD GPU.
Result<std::uint32_t> gpu_of_dmabuf(const KfdDevice& kfd, int dmabuf);

// How many references the dma-buf has: descriptors of all processes, and drivers. A GEM handle adds one, and
// so does a BO of the KFD in Linux 6.12 and 7.2; in 6.1 an import into the KFD does not. Errors: those of
// open(2); ENODATA if fdinfo does not say.
Result<std::uint64_t> references_of_dmabuf(int dmabuf);

}  // namespace sluice::kfd
