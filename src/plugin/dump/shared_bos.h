// SPDX-License-Identifier: MIT
// Memory that several files of the tree have: told apart by the dma-buf that the kernel exports it as, of
// which a BO has one for as long as somebody has it. It is dumped once and made once; the others import it.
// It is made by the KFD process that has allocated it; else through the render file that comes first; else by
// the KFD process that does.
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
  // Who has a BO. What is pointed to stays where it is until the dump ends, and is set by settle().
  struct Holder {
    std::string name;  // for messages
    bool kfd = false;
    // Of a KFD process: it looks like what IMPORT_DMABUF makes, whose flags say little of the memory.
    bool looks_imported = false;
    bool can_create = true;           // else its memory lies on another GPU
    std::uint32_t handle = 0;         // GEM handle, of a render file
    std::uint32_t* shared = nullptr;  // the number of the memory in the dump, from 1; 0: nobody else has it
    std::uint32_t* kfd_handle =
        nullptr;              // of a KFD process: the GEM handle that upstream's images name it by
    bool* imports = nullptr;  // another one makes the memory
    // Of a KFD process: the GPU's render minor and the mmap offset there, which no other BO has.
    std::pair<std::uint32_t, std::uint64_t> place{};  // offset 0: none
  };

  // `dmabuf`: borrowed. Errors: EINVAL for a BO that was settled without this holder.
  //
  // Memory is told by the dma-buf's inode, and by its place: Linux 6.1 makes a dma-buf anew for each
  // CHECKPOINT (criu_get_prime_handle of kfd_chardev.c, amdgpu_gem_prime_export).
  Result<void> add(int dmabuf, Holder holder);
  // A task has a descriptor of the dma-buf.
  void add_descriptor(ino_t dmabuf) { ++bos_[dmabuf].descriptors; }
  // Whether a holder's dma-buf is this one.
  bool has_holder(ino_t dmabuf) const;
  // The dma-buf is another one of the memory at `place`, as an import of it tells: its descriptors count for
  // that. False where no holder is there. Before settle().
  bool find_at(ino_t dmabuf, const std::pair<std::uint32_t, std::uint64_t>& place);

  // When all are known; may be called again when more have come. Errors: EINVAL for what could not be made
  // again, naming its holders; E2BIG for more than a restore takes (kMostSharedBos).
  Result<void> settle();

  // A holder stands in the images. `shared` as settled.
  void note_saved(std::uint32_t shared, bool imports);
  // When all that do are known. Errors: EINVAL for memory of which only importers stand there: CRIU has not
  // asked for the file of who makes it, who then is of another tree that it has stopped, too.
  Result<void> check_saved() const;

  // Of a dma-buf that a task has a descriptor of: its number, and the GEM handle that upstream knows it by. 0
  // where no file of the tree has the memory.
  struct Number {
    std::uint32_t shared = 0;
    std::uint32_t handle = 0;
  };
  Number number_of(ino_t dmabuf) const;

 private:
  struct Bo {
    std::vector<Holder> holders;
    unsigned descriptors = 0;
    bool settled = false;
    Number number;
  };
  Result<void> settle(Bo& bo);

  std::map<ino_t, Bo> bos_;
  std::map<ino_t, ino_t> others_;  // further dma-bufs of the same memory
  std::map<std::pair<std::uint32_t, std::uint64_t>, ino_t> places_;
  std::uint32_t last_number_ = 0;
  std::set<std::uint32_t> made_, imported_;  // numbers of memory that holders in the images make, and import
};

}  // namespace sluice::plugin
