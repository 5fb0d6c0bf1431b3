// SPDX-License-Identifier: MIT
// Gives the images their names as CRIU asks for the plan's files, and writes their metadata: last, so that an
// incomplete dump never looks complete.
//
// Main thread only.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "plugin/dump/carry/carrier.h"
#include "plugin/dump/carry/image_set.h"
#include "plugin/dump/plan/dump_plan.h"

namespace sluice::plugin {

class Commit {
 public:
  // Borrowed, except the plan.
  Commit(const DumpBasis& basis, Carrier& carrier, ImageSet& images, DumpPlan plan);

  const DumpPlan& plan() const { return plan_; }

  // The file of the plan that is the same open file as `fd`, if CRIU has not asked for it yet.
  Result<std::optional<std::size_t>> find(int fd, bool is_kfd) const;
  // Before anything is written. Errors: EIO if a GPU of a render file has lost its VRAM since the dump first
  // looked.
  Result<void> look_at_vram(VramWatch& watch) const;
  // CRIU asks for the file, under `id`.
  void name(std::size_t file, int id) { ids_[file] = id; }
  bool is_named(std::size_t file) const { return ids_[file].has_value(); }
  bool all_named() const;
  std::string image_name(std::size_t file) const;  // REQUIRES: it is named

  // Joins the file's contents, and writes it. Once; further calls do nothing. REQUIRES: it is named, and its
  // contents are started. Errors: those of its lanes; of writing; ESTALE if the parent has changed.
  Result<void> finish(std::size_t file);
  // One way: finishes all named files, and writes the index. `maps`: the tree's.
  Result<void> finish_with_index(std::map<std::uint32_t, std::vector<PluginMap>> maps);

  // CRIU asks for descriptor `fd` of a dma-buf, as file `id`. The memory, or null, with a warning, if no file
  // of the plan has it. Errors: EINVAL if it could not be restored as it is.
  Result<const SharedMemory*> memory_of_dmabuf(int fd, ino_t inode, int id) const;
  // Saves the descriptor's image. `holders` have it.
  Result<void> save_dmabuf(const SharedMemory& memory, int id, const std::vector<pid_t>& holders);

  // Call when CRIU asks for nothing more. Errors: EINVAL for memory of which only importers were saved: CRIU
  // has not asked for its creator's file, which belongs to another tree that CRIU has stopped, too.
  Result<void> check_saved() const;
  // Warns of files that CRIU has not asked for.
  void warn_of_losses() const;

 private:
  Result<void> save_empty_pages(const PlannedFile& file, int id);
  Result<std::vector<std::uint8_t>> pack(std::size_t file);

  const DumpBasis& basis_;
  Carrier& carrier_;
  ImageSet& images_;
  DumpPlan plan_;
  std::vector<std::optional<int>> ids_;  // CRIU's, by file
  std::vector<bool> finished_;
  std::set<std::uint32_t> saved_dmabufs_;  // numbers of shared memory that saved descriptors import
};

}  // namespace sluice::plugin
