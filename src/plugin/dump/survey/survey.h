// SPDX-License-Identifier: MIT
// What the KFD and DRM say of the tree's files: their BOs, who has which memory, and what a restore needs to
// know of each. Making it stops the queues, and refuses what the kernel does not save. Nothing is written.
//
// Main thread only, the one that traces the processes.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "images/kfd_image.h"
#include "images/metadata.h"
#include "kfd/criu_ops.h"
#include "plugin/contents/contents_job.h"
#include "plugin/dump/basis/dump_basis.h"
#include "plugin/dump/survey/memory_table.h"
#include "plugin/dump/tree/target_tree.h"
#include "proc/mapped_files.h"
#include "proc/processes.h"

namespace sluice::plugin {

// What AMD's out-of-tree driver says of memory with an IPC handle.
enum class Ipc { None, Exported, Imported };

// A BO with contents, and the dma-buf through which they are copied.
struct SurveyedBo {
  std::uint32_t number = 0;  // in the BO table of its file's image
  UniqueFd dmabuf;
  ino_t inode = 0;  // of the dma-buf
  BoPlace place;    // of a KFD process' BO
  // KFD process: it looks like a result of IMPORT_DMABUF, whose flags say little about the memory. Where the
  // memory has an IPC handle, the driver says it.
  bool looks_imported = false;
  Ipc ipc = Ipc::None;
  bool can_create = true;    // false: its memory lies on another GPU
  std::uint32_t handle = 0;  // GEM handle, of a render file
};

// The KFD process of this file is dumped through another one.
struct KfdAlias {
  std::size_t of = 0;  // the other file's number in the survey

  bool operator==(const KfdAlias&) const = default;
};

// An open file of /dev/kfd or of a render node.
struct SurveyedFile {
  // What its image will say, as far as it is known: everything but CRIU's id and what the plan decides.
  std::variant<KfdImage, RenderImage, KfdAlias> image;
  std::string name;            // for messages
  std::vector<pid_t> holders;  // processes that have it open
  // CRIU restores it in the one of lowest pid.
  proc::RestoringProcess restorer;
  int fd = -1;   // ours of the open file; a KFD file's session owns it
  UniqueFd own;  // the same, of a render file
  std::vector<SurveyedBo> bos;
  std::optional<std::size_t> acquired_by;  // render file: the KFD file whose process uses it
  std::uint64_t began_ns = 0;              // its first ioctl
};

// "process 4711's BO at 0x7f00", "renderD128 of process 4711, GEM handle 3".
std::string describe_bo(const SurveyedFile& file, const SurveyedBo& bo);

struct Survey {
  // KFD files first, in the order in which CRIU will ask for them; last those of memory that only descriptors
  // have.
  std::vector<SurveyedFile> files;
  MemoryTable memory;
  std::map<ino_t, std::size_t> orphans;  // dma-bufs whose memory is one of the last files
  std::map<ino_t, Error> not_restored;   // why descriptors of these dma-bufs are not
  // Maps of render nodes, by process. Of a dump only.
  std::map<pid_t, std::vector<proc::DeviceMap>> maps;
  std::uint64_t stopped_from_ns = 0;  // when the first queues were about to stop; 0: none were

  void add(SurveyedFile file);
};

// What the effects of a dump share while the job's queues are stopped. All borrowed.
struct StoppedJob {
  kfd::UnpauseGuard& sessions;
  SharedByJobs& shared;
};

// What a dump may do about running kernels whose waves would be lost.
struct KernelWait {
  bool unread = false;           // nobody has read memory of the tree, so queues may run once more
  std::chrono::seconds most{0};  // in all
};

// Stops the queues of the KFD processes and reads their state; lists the BOs of the render files, waits for
// them and exports them. Queues that an older dump has left paused run first. Errors: EINVAL, named, for
// what could not be restored; EBUSY for waves that would be lost; EIO if a GPU has lost its VRAM; ETIMEDOUT
// for a BO that stays busy; ECANCELED once the dump is stopped; those of the ioctls. On error some queues
// may be stopped.
Result<Survey> survey_tree(TreeFiles open, const TargetTree& tree, const DumpBasis& basis,
                           const KernelWait& wait, const StoppedJob& job);

bool share_any(const std::vector<pid_t>& left, const std::vector<pid_t>& right);

}  // namespace sluice::plugin
