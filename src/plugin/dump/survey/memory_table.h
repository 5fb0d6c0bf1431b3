// SPDX-License-Identifier: MIT
// Which BOs of the tree's files, and which open dma-bufs, are one memory.
//
// A memory is recognised by the inode of the dma-buf that the kernel exports: a BO keeps one for as long as
// any holder keeps it open. And by its place, because Linux 6.1 makes a new dma-buf for each CHECKPOINT
// (criu_get_prime_handle of kfd_chardev.c, amdgpu_gem_prime_export).
//
// A value. Thread-compatible.
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace sluice::plugin {

// The GPU's render minor and the mmap offset there: no two BOs share both. Offset 0: it has none.
struct BoPlace {
  std::uint32_t render_minor = 0;
  std::uint64_t offset = 0;

  auto operator<=>(const BoPlace&) const = default;  // NOLINT(modernize-use-nullptr)
};

// A BO among those of the survey's files.
struct BoRef {
  std::size_t file = 0;
  std::size_t bo = 0;

  bool operator==(const BoRef&) const = default;
};

class MemoryTable {
 public:
  struct Memory {
    std::vector<BoRef> bos;    // in the order in which they were added
    unsigned descriptors = 0;  // dma-bufs that tasks have open

    bool is_shared() const { return bos.size() + descriptors > 1; }
  };

  // `dmabuf`: its inode.
  void add(BoRef bo, ino_t dmabuf, const BoPlace& place);
  // A task has a descriptor of the dma-buf.
  void add_descriptor(ino_t dmabuf) { ++all_[dmabuf].descriptors; }
  // An import has shown that this dma-buf is another one of the memory at `place`, so its descriptors count
  // for that memory. False if no BO is there.
  bool find_at(ino_t dmabuf, const BoPlace& place);

  // The memory of a dma-buf, or of a BO whose dma-buf it is. Null: unknown, or no BO has it.
  const Memory* of(ino_t dmabuf) const;
  // By the inode of one of its dma-bufs. Those without BOs are memory of others.
  const std::map<ino_t, Memory>& all() const { return all_; }
  // The inode under which all() has the memory of this dma-buf.
  ino_t key_of(ino_t dmabuf) const;

 private:
  void note_other(ino_t dmabuf, ino_t key);

  std::map<ino_t, Memory> all_;
  std::map<ino_t, ino_t> others_;  // further dma-bufs of the same memory
  std::map<BoPlace, ino_t> places_;
};

}  // namespace sluice::plugin
