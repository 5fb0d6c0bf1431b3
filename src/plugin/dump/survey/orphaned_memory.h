// SPDX-License-Identifier: MIT
// Memory that only descriptors of the tree have.
//
// If no file of the tree exports a dma-buf's inode, the memory may belong to a file of the tree under another
// dma-buf. The mmap offset tells, because no two BOs of a GPU share one. Linux 6.1 makes a new dma-buf for
// each CHECKPOINT (criu_get_prime_handle of kfd_chardev.c), so there the inode never matches. Or only
// descriptors still hold the memory, because its exporter has closed it. It is then dumped as the BO of its
// own render file, unless a process outside the dump holds it, too.
//
// Main thread only.
#pragma once

#include <vector>

#include "kfd/memory/open_dmabufs.h"
#include "plugin/dump/survey/survey.h"

namespace sluice::plugin {

// Called when all files of the tree are surveyed: memory of `dmabufs` that none of them has gets its own file
// in `survey`. Why a descriptor is not restored is kept there, until CRIU asks for it. Errors: ECANCELED;
// those of RenderSurvey::finish().
Result<void> find_orphans(const std::vector<kfd::OpenDmaBuf>& dmabufs, const DumpBasis& basis,
                          const StoppedJob& job, Survey& survey);

}  // namespace sluice::plugin
