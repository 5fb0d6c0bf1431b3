// SPDX-License-Identifier: MIT
// The dma-bufs that the tree has open, and whose memory each is.
//
// If no file of the tree exports a dma-buf's inode, the memory may belong to a file of the tree under another
// dma-buf. The mmap offset tells, because no two BOs of a GPU share one. Linux 6.1 makes a new dma-buf for
// each CHECKPOINT (criu_get_prime_handle of kfd_chardev.c), so there the inode never matches. Or only
// descriptors still hold the memory, because its exporter has closed it. It is then dumped as the BO of its
// own render file, unless a process outside the dump holds it, too.
//
// Main thread only.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "images/metadata.h"
#include "kfd/device.h"
#include "kfd/memory/open_dmabufs.h"
#include "plugin/dump/files/dumped_files.h"
#include "plugin/dump/files/target_tree.h"

namespace sluice::plugin {

class DmaBufs {
 public:
  explicit DmaBufs(DumpRun& run) : run_(run) {}  // borrowed

  // Lists them. Before any file is added.
  Result<void> list(const TargetTree& tree);
  // Called when all files of the tree are begun: memory that none of them has gets its own file in `files`.
  // Errors are kept until CRIU asks for the descriptor, which is then refused.
  Result<void> find_memory(DumpedFiles& files);

  // CRIU asks for descriptor `fd` of a dma-buf, as file `id`. Returns its image, which counts as saved from
  // now on; nothing, with a warning, if no file of ours has the memory. Errors: EINVAL if it could not be
  // restored as it is.
  Result<std::optional<DmaBufImage>> describe(int fd, ino_t inode, int id, const TargetTree& tree) const;
  // The memory's own file; null if there is none.
  DumpedFile* memory_of(ino_t inode) const;

 private:
  Result<std::unique_ptr<RenderDump>> memory_of_none(const kfd::OpenDmaBuf& dmabuf,
                                                     const kfd::KfdDevice& kfd) const;

  DumpRun& run_;
  std::vector<kfd::OpenDmaBuf> open_;
  std::map<ino_t, Error> not_restored_;  // why these are not restored
  std::map<ino_t, DumpedFile*> memory_;  // the files of these, in `files`
};

}  // namespace sluice::plugin
