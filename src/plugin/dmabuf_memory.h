// SPDX-License-Identifier: MIT
// Whose memory a dma-buf is that tasks have open, where its inode does not tell: no file of the tree exports
// its memory under that one.
//
// Another dma-buf of memory that a file has is told by its place, which no two BOs of a GPU share. Linux 6.1
// makes one anew for each CHECKPOINT (criu_get_prime_handle of kfd_chardev.c), so there it is never the one
// that the KFD has imported. Memory that no file has, for whoever exported it has closed it since, is the
// descriptors' alone, and dumped as the BO of a file of its own; unless others have it, who are not dumped.
#pragma once

#include <memory>

#include "kfd/device.h"
#include "kfd/open_dmabufs.h"
#include "plugin/process_dump.h"
#include "plugin/render_dump.h"

namespace sluice::plugin {

// When all files of the tree are known to `run`'s shared BOs, and not before CHECKPOINT. The dump of memory
// that descriptors of the tree alone have, which is not begun; null where a holder was found. `kfd`: our own.
// Errors: EINVAL for memory of no AMD GPU, or that could not be restored; EBUSY where a process that is not
// dumped has it, too; ENODEV; those of taking, opening and importing it. Main thread only.
Result<std::unique_ptr<RenderDump>> memory_of_dmabuf(const kfd::OpenDmaBuf& dmabuf, const kfd::KfdDevice& kfd,
                                                     DumpRun& run);

}  // namespace sluice::plugin
