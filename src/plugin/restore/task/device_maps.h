// SPDX-License-Identifier: MIT
// A restored task's maps of device files: through which file each can be made, and at which offset the BO is
// now.
//
// The KFD acquires one render file per GPU of a process, and only that file may map the process' unshared
// BOs. From its opening it is ours, at a number above all of the task's, until the task has a descriptor of
// it or until the last map. A host that dups the descriptors leaves it to the task.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "plugin/host/criu_host.h"
#include "plugin/host/image_store.h"
#include "plugin/host/vma_runs.h"

namespace sluice::plugin {

// A range of mmap offsets of a device file, before and after.
struct OffsetRange {
  bool kfd = false;  // of /dev/kfd, else of a render node
  std::uint32_t source_minor = 0;
  std::uint32_t minor = 0;  // the local render node
  std::uint64_t old_begin = 0;
  std::uint64_t bytes = 0;
  std::uint64_t new_begin = 0;
  std::optional<int> render_id;  // CRIU's id of the render file that has the BO; none: a BO of the KFD
};

// An offset that no GPU device can map: KFD's doorbells of GPU 0, an id that no GPU has, and far above the
// offsets of DRM.
inline constexpr std::uint64_t kNoMmapOffset = std::uint64_t{3} << 62;

class DeviceMaps {
 public:
  // The task, by its pid in its own namespace.
  void set_task(std::uint32_t pid);
  bool met() const { return pid_.has_value(); }

  // Reads which maps the host will request; once. If the task has no such image, or one of unknown form,
  // every map counts as the first of a run and none as the last. Then some of our descriptors stay in the
  // task. An unreadable image fails the restore here, because the host ignores errors of UPDATE_VMA_MAP.
  Result<void> read_runs(ImageStore& store);
  // Whether the task maps part of [offset, offset + bytes) of a device; true if unknown.
  bool maps(std::uint64_t offset, std::uint64_t bytes) const { return runs_.maps(offset, bytes); }

  // Moves it to a number above all of the task's own, where it may stay while CRIU restores other files.
  Result<UniqueFd> make_high(UniqueFd file) const;
  // Opens a render node there.
  Result<UniqueFd> open_high(std::uint32_t minor) const;
  // The file that KFD acquires for a GPU, borrowed; opened at the first call. -1: only the task has it now.
  Result<int> acquire(std::uint32_t minor);
  // The same for a GPU that the image does not name. The container may lack its node: then KFD gets the
  // machine's, and the task none. `why`: why the node may be missing, for the error if there is no other
  // either.
  Result<int> acquire_unnamed(std::uint32_t minor, const std::string& why);
  // Number of GPUs for which the machine's node was used.
  std::size_t acquired_outside() const { return outside_.size(); }
  // A descriptor of it, at a high number, for CRIU to take.
  Result<UniqueFd> hand_out(std::uint32_t minor);
  bool has_handed_out(std::uint32_t minor) const;
  // RESTORE has given KFD its files, so the task's descriptors of them serve us, too. If no map of a device
  // will come, ours are closed here instead of after the last map. Exception: GPUs in `to_come`, by local
  // minor, whose files are yet to be handed out.
  void kfd_has_files(const std::set<std::uint32_t>& to_come);

  // The mmap offset of a BO that KFD imports, by its dma-buf.
  Result<std::uint64_t> mmap_offset_of(std::uint32_t minor, int dmabuf) const;
  // For a task that maps BOs of the GPU through several files. CRIU takes one descriptor for a whole run of
  // maps of one path, through whichever files they were mapped. So the BO may be mapped through a common
  // file.
  Result<void> allow_in_common_file(std::uint32_t minor, int dmabuf);
  // Adds a BO's old and new place.
  void add(const OffsetRange& range) { offsets_.push_back(range); }

  // UPDATE_VMA_MAP, see RestoreTask. After the last map, files kept for maps are closed.
  Result<Answer> update(const char* path, std::uint64_t address, std::uint64_t old_offset,
                        std::uint64_t& new_offset, int& fd);

 private:
  struct AcquiredFile {
    std::uint32_t minor = 0;
    UniqueFd file;            // empty: CRIU has moved it to the task's number
    bool handed_out = false;  // the task has a descriptor, too
    int task_fd = -1;         // the task's descriptor, once it was searched for
  };

  Result<UniqueFd> copy_high(int file) const;
  Result<AcquiredFile*> acquired(std::uint32_t minor);
  Result<int> mapping_file(std::uint32_t minor);
  Result<int> task_file_of(const OffsetRange& bo) const;
  Result<int> map_source(const OffsetRange& bo);
  Result<Answer> find(const std::string& path, std::uint64_t address, std::uint64_t old_offset,
                      std::uint64_t& new_offset, int& fd);
  Result<int> give_away(int file) const;
  void close_kept_files();

  std::optional<std::uint32_t> pid_;
  int first_unused_fd_ = -1;
  bool runs_read_ = false;
  bool kfd_has_files_ = false;
  VmaRuns runs_;
  std::vector<AcquiredFile> acquired_;
  std::vector<UniqueFd> outside_;  // of acquire_unnamed(), empty once KFD has them
  std::vector<OffsetRange> offsets_;
  std::map<std::uint32_t, UniqueFd> common_files_;  // by local minor
  std::map<int, int> render_fds_;  // the task's descriptor by render file, once a map needed it
};

}  // namespace sluice::plugin
