// SPDX-License-Identifier: MIT
// What a restore does, decided from its images before there are tasks: a plain value, constant from then on.
//
// Which local GPU replaces which is decided later, in each task, because each may see other GPUs: by
// kfd/matching/matching.h, called from gpus/gpu_match.h. Who makes shared memory, the dump has decided.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "images/metadata.h"
#include "images/undeclared_sharing.h"
#include "kfd/matching/tree_choice.h"
#include "kfd/topology.h"
#include "plugin/restore/survey/found_images.h"

namespace sluice::plugin {

struct RestorePlan {
  FoundImages found;
  // All images are of one dump, and show no memory twice; a later one must agree with them.
  SameDump same_dump;
  UndeclaredSharing undeclared_sharing;

  // Files by id, with the pid of the process that restores them, if known.
  std::map<int, std::uint32_t> kfd_pids;
  std::map<int, std::uint32_t> render_pids;
  std::set<std::uint32_t> shared_numbers;  // of the shared memory that one of the files makes
  kfd::TreeGpus gpus;                      // without the user's map
  std::vector<kfd::Topology> topologies;   // that KFD processes saw, without duplicates, the widest first
  DriverRecords records;                   // of the driver that made the KFD images
  // Memory that RESTORE makes with an IPC handle, unless there is memory with that handle.
  struct IpcMemory {
    std::uint32_t pid = 0;
    kfd::IpcHandle handle{};
  };
  std::vector<IpcMemory> ipc_memory;
  std::set<std::string> read_by_several;  // pages files that have contents of other files, too
  std::vector<std::string> warnings;

  // REQUIRES: `id` is in kfd_pids, or in render_pids.
  const KfdImage& kfd_image(int id) const { return *with_id(found.checkpoint.kfd, id); }
  const RenderImage& render_image(int id) const { return *with_id(found.checkpoint.render, id); }

  // Lanes of the whole restore on a GPU, by its render minor in the images, and on all GPUs; at least 1.
  unsigned lanes_on(std::uint32_t source_minor) const;
  std::size_t all_lanes() const;
  // Whether the process maps BOs of the GPU through several files, or may.
  bool maps_several_files(std::uint32_t pid, std::uint32_t source_minor) const;
  // Whether the process gets, or may get, a render file of the GPU, named as in its KFD image.
  bool may_restore_render_file(std::uint32_t pid, const kfd::Node& source) const;

  std::map<std::uint32_t, unsigned> lanes_by_minor;
  // Through how many files one process maps BOs of one GPU, by pid and render minor. KFD's own is one of
  // them, whether or not it has an image.
  struct MappedFiles {
    bool acquired = false;
    unsigned others = 0;
  };
  std::map<std::pair<std::uint32_t, std::uint32_t>, MappedFiles> mapped_files;
  // Render files: the process, if known, and the minor. Where that is unknown, the gpu_id.
  std::set<std::pair<std::optional<std::uint32_t>, std::uint32_t>> render_files;
  std::set<std::uint32_t> render_gpu_ids;
};

// Without effects. Errors: EBADMSG for images of two dumps or under another's name. ENOSYS for memory that
// upstream's images show twice.
Result<RestorePlan> plan_restore(FoundImages found);

}  // namespace sluice::plugin
