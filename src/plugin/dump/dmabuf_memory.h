// SPDX-License-Identifier: MIT
// The dma-bufs that the tree has open, and whose memory each is.
//
// Where no file of the tree exports one's inode, the memory may belong to a file of the tree under another
// dma-buf: the mmap offset tells, because no two BOs of a GPU share one. Linux 6.1 makes a new dma-buf for
// each CHECKPOINT (criu_get_prime_handle of kfd_chardev.c), so there the inode never matches. Or only
// descriptors still hold the memory, because its exporter has closed it. It is then dumped as the BO of a
// render file of its own, unless a process outside the dump holds it, too.
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
#include "kfd/open_dmabufs.h"
#include "plugin/dump/dumped_files.h"
#include "plugin/dump/target_tree.h"

namespace sluice::plugin {

class DmaBufs {
 public:
  explicit DmaBufs(DumpRun& run) : run_(run) {}  // borrowed

  // Which there are. Before any file is added.
  Result<void> list(const TargetTree& tree);
  // When all files of the tree are begun: those whose memory none of them has get a file of their own in
  // `files`. What cannot be found out is said when CRIU asks for the descriptor, which then refuses it.
  Result<void> find_memory(DumpedFiles& files);

  // CRIU asks for descriptor `fd` of a dma-buf, as file `id`: its image, which counts as saved from now on;
  // nothing, with a warning, where nothing of ours has the memory. Errors: EINVAL where it could not be
  // restored as it is.
  Result<std::optional<DmaBufImage>> describe(int fd, ino_t inode, int id, const TargetTree& tree) const;
  // The file of its own; null where there is none.
  DumpedFile* memory_of(ino_t inode) const;

 private:
  Result<std::unique_ptr<RenderDump>> memory_of_none(const kfd::OpenDmaBuf& dmabuf,
                                                     const kfd::KfdDevice& kfd) const;

  DumpRun& run_;
  std::vector<kfd::OpenDmaBuf> open_;
  std::map<ino_t, Error> not_restored_;  // of these, why
  std::map<ino_t, DumpedFile*> memory_;  // of these, of `files`
};

}  // namespace sluice::plugin
