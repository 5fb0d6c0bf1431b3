// SPDX-License-Identifier: MIT
// Memory that several files of the tree share, recognised by the dma-buf that the kernel exports. A BO keeps
// one dma-buf for as long as any holder keeps it open. Shared memory is dumped once and created once; the
// other holders import it. The KFD process that allocated it creates it; else the first render file that can;
// else the first KFD process that can.
//
// Main thread only.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace sluice::plugin {

class SharedBos {
 public:
  // A file that has a BO.
  struct Holder {
    std::string name;  // for messages
    bool kfd = false;
    // KFD process: it looks like a result of IMPORT_DMABUF, whose flags say little about the memory.
    bool looks_imported = false;
    bool can_create = true;    // false: its memory lies on another GPU
    std::uint32_t handle = 0;  // GEM handle, of a render file
    // KFD process: the GPU's render minor and the mmap offset there, unique to the BO.
    std::pair<std::uint32_t, std::uint64_t> place{};  // offset 0: none
  };

  // The decision for a memory, or for a holder's BO of it.
  struct Share {
    std::uint32_t number = 0;  // of the memory in the dump, from 1; 0: it is not shared
    std::uint32_t handle = 0;  // the GEM handle that names it in upstream's images
    bool imports = false;      // of a holder: another one creates the memory
  };

  // Returns the holder's number, for share_of(). `dmabuf`: borrowed. Errors: EINVAL for a BO that was settled
  // without this holder.
  //
  // Memory is recognised by the dma-buf's inode, and by its place: Linux 6.1 makes a new dma-buf for each
  // CHECKPOINT (criu_get_prime_handle of kfd_chardev.c, amdgpu_gem_prime_export).
  Result<std::size_t> add(int dmabuf, Holder holder);
  // A task has a descriptor of the dma-buf.
  void add_descriptor(ino_t dmabuf) { ++bos_[dmabuf].descriptors; }
  // Whether some holder's dma-buf is this one.
  bool has_holder(ino_t dmabuf) const;
  // An import has shown that this dma-buf is another one of the memory at `place`, so its descriptors count
  // for that memory. False if no holder is there. Before settle().
  bool find_at(ino_t dmabuf, const std::pair<std::uint32_t, std::uint64_t>& place);

  // Call when all holders are known, and again when there are more. Errors: EINVAL for memory that could not
  // be recreated, naming its holders; E2BIG for more than a restore accepts (kMostSharedBos).
  Result<void> settle();

  // What settle() decided for a holder's BO.
  Share share_of(std::size_t holder) const { return holders_[holder].share; }

  // A holder has been saved in the images. `shared`: the number that was decided.
  void note_saved(std::uint32_t shared, bool imports);
  // Call when all holders are saved. Errors: EINVAL for memory of which only importers were saved: CRIU has
  // not asked for its creator's file, which belongs to another tree that CRIU has stopped, too.
  Result<void> check_saved() const;

  // For a dma-buf of which a task has a descriptor. Number 0 if no file of the tree has the memory.
  Share share_of_dmabuf(ino_t dmabuf) const;

 private:
  struct Held {
    Holder holder;
    Share share;
  };
  struct Bo {
    std::vector<std::size_t> holders;
    unsigned descriptors = 0;
    bool settled = false;
    Share share;
  };
  Result<void> settle(Bo& bo);

  std::vector<Held> holders_;  // all BOs, by number
  std::map<ino_t, Bo> bos_;
  std::map<ino_t, ino_t> others_;  // further dma-bufs of the same memory
  std::map<std::pair<std::uint32_t, std::uint64_t>, ino_t> places_;
  std::uint32_t last_number_ = 0;
  std::set<std::uint32_t> made_, imported_;  // numbers of memory that saved holders create, and import
};

}  // namespace sluice::plugin
