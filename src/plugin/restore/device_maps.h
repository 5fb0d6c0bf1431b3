// SPDX-License-Identifier: MIT
// A restored task's maps of device files: through which file each can be made, and where in it the BO lies
// now.
//
// The KFD acquires one render file for each GPU of a process: the only one that may map those of its BOs that
// are not shared. It is ours from the moment it is opened, at a number above all of the task's own, until the
// task has a descriptor of it, or until the last map; a host that dups what it maps through leaves it to the
// task.
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
#include "plugin/host/map_runs.h"

namespace sluice::plugin {

// A range of mmap offsets of a device file, as it was and as it is.
struct OffsetRange {
  bool kfd = false;  // of /dev/kfd, else of a render node
  std::uint32_t source_minor = 0;
  std::uint32_t minor = 0;  // the local render node
  std::uint64_t old_begin = 0;
  std::uint64_t bytes = 0;
  std::uint64_t new_begin = 0;
  std::optional<int> render_id;  // CRIU's id of the render file that has the BO; none: the KFD has it
};

// An offset that no GPU device can be mapped at: KFD's of the doorbells of GPU 0, a number that no GPU has,
// and far above those that DRM gives.
inline constexpr std::uint64_t kNoMmapOffset = std::uint64_t{3} << 62;

class DeviceMaps {
 public:
  // The task, by its pid in its own namespace.
  void meet(std::uint32_t pid);
  bool met() const { return pid_.has_value(); }

  // Reads which maps the host will ask for; once. Where the task has no such image, or one of a form that is
  // not known, every map counts as the first of a run, and none as the last: descriptors of ours stay in the
  // task then. One that cannot be read fails the restore, and does so here: the host ignores what
  // UPDATE_VMA_MAP answers.
  Result<void> read_runs();
  // Whether the task maps something of [offset, offset + bytes) of a device; true where that is not known.
  bool maps(std::uint64_t offset, std::uint64_t bytes) const { return runs_.maps(offset, bytes); }

  // To a number above all of the task's own, where it may stay while CRIU restores other files.
  Result<UniqueFd> make_high(UniqueFd file) const;
  // A render node of one's own, there.
  Result<UniqueFd> open_high(std::uint32_t minor) const;
  // The file that KFD acquires for a GPU, borrowed; opened at the first call. -1: the task alone has it now.
  Result<int> acquire(std::uint32_t minor);
  // A descriptor of it for CRIU to take, as high.
  Result<UniqueFd> hand_out(std::uint32_t minor);
  bool has_handed_out(std::uint32_t minor) const;
  // RESTORE has given KFD its files: the task's descriptors of them will do for us, too. Where no map of a
  // device will come, behind the last of which ours are closed, they are closed here: but those of the GPUs
  // in `to_come`, by local minor, which are still to be handed out.
  void kfd_has_files(const std::set<std::uint32_t>& to_come);

  // Where a BO that KFD imports is mapped, by its dma-buf.
  Result<std::uint64_t> mmap_offset_of(std::uint32_t minor, int dmabuf) const;
  // The task maps BOs of the GPU through several files, and CRIU takes one descriptor for a whole run of maps
  // of one path, whichever files they were mapped through: the BO may be mapped through a file in common.
  Result<void> allow_in_common_file(std::uint32_t minor, int dmabuf);
  // Where a BO is mapped from now on.
  void add(const OffsetRange& range) { offsets_.push_back(range); }

  // UPDATE_VMA_MAP, as Restorer says. Behind the last map what was kept for them is closed.
  Result<Answer> update(const char* path, std::uint64_t address, std::uint64_t old_offset,
                        std::uint64_t& new_offset, int& fd);

 private:
  struct AcquiredFile {
    std::uint32_t minor = 0;
    UniqueFd file;            // empty: CRIU has given it a number of the task's
    bool handed_out = false;  // the task has a descriptor, too
    int task_fd = -1;         // that one, once it was looked for on behalf of a map
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
  MapRuns runs_;
  std::vector<AcquiredFile> acquired_;
  std::vector<OffsetRange> offsets_;
  std::map<std::uint32_t, UniqueFd> common_files_;  // by local minor
  std::map<int, int> render_fds_;  // the task's descriptor by render file, once a map of it was asked for
};

}  // namespace sluice::plugin
