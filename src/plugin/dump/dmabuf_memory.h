// SPDX-License-Identifier: MIT
// Identifies the memory of an open dma-buf whose inode no file of the tree exports.
//
// The memory may belong to a file of the tree under another dma-buf: the mmap offset tells, because no two
// BOs of a GPU share one. Linux 6.1 makes a new dma-buf for each CHECKPOINT (criu_get_prime_handle of
// kfd_chardev.c), so there the inode never matches. Or only descriptors still hold the memory, because its
// exporter has closed it. It is then dumped as the BO of a render file of its own, unless a process outside
// the dump holds it, too.
#pragma once

#include <memory>

#include "kfd/device.h"
#include "kfd/open_dmabufs.h"
#include "plugin/dump/process_dump.h"
#include "plugin/dump/render_dump.h"

namespace sluice::plugin {

// When all files of the tree are known to `run`'s shared BOs, and not before CHECKPOINT. The dump of memory
// that descriptors of the tree alone have, which is not begun; null where a holder was found. `kfd`: our own.
// Errors: EINVAL for memory of no AMD GPU, or that could not be restored; EBUSY where a process that is not
// dumped has it, too; ENODEV; those of taking, opening and importing it. Main thread only.
Result<std::unique_ptr<RenderDump>> memory_of_dmabuf(const kfd::OpenDmaBuf& dmabuf, const kfd::KfdDevice& kfd,
                                                     DumpRun& run);

}  // namespace sluice::plugin
