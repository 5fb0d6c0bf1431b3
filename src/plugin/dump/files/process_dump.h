// SPDX-License-Identifier: MIT
// One KFD process on its way into the images. Its queues stop, its state is read, and its contents flow while
// the host does other work. When the host has named the file, the images get their names.
//
// Main thread only.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "images/kfd_image.h"
#include "kfd/criu_ops.h"
#include "kfd/records/queue_records.h"
#include "kfd/topology.h"
#include "plugin/dump/contents/dump_contents.h"

namespace sluice::plugin {

// What render files need to know about a GPU of a dumped KFD process.
struct ProcessGpu {
  std::uint32_t minor = 0;
  std::uint32_t user_gpu_id = 0;
  // mmap offset of a BO that no render file has: only the file that KFD acquired may map it.
  std::optional<std::uint64_t> bo_offset;
};

class ProcessDump {
 public:
  // `session` and `run` are borrowed. `holders`: the processes that hold its file.
  ProcessDump(kfd::CriuSession& session, std::vector<pid_t> holders, DumpRun& run)
      : session_(session), holders_(std::move(holders)), run_(run), contents_(run) {}

  // PROCESS_INFO and CHECKPOINT: stops the queues. Again after the session's unpause(): then everything is
  // checkpointed anew. Errors: those of the two; EINVAL for what could not be restored.
  Result<void> stop();
  // What a restore of the queues would lose, as stop() found it. Nothing if the private data cannot be split.
  const kfd::QueueLosses& losses() const { return losses_; }
  // Once, when the queues do not run again before the dump's end: takes the last checkpoint into the image.
  Result<void> list();

  // Called when it is decided which BOs are shared, and who creates them.
  void take_shares();
  // After that: contents() of what it creates itself are waiting. Idempotent. Errors: EBADMSG if the private
  // data cannot be split into records, which a restore of imports needs.
  Result<void> take_contents();
  DumpContents& contents() { return contents_; }

  // After take_shares().
  std::vector<ProcessGpu> gpus() const;

  // Joins the contents and writes everything but the metadata under `id`.
  Result<void> finish(int id);
  // After finish(): the metadata; adds to the statistics.
  Result<void> write(int id);

 private:
  std::uint32_t find_records();
  void note_maps(pid_t pid);
  Result<void> add_holders();
  std::uint32_t minor_of(std::uint32_t gpu_id) const {
    return image_.topology.find_gpu(gpu_id)->drm_render_minor;
  }
  Result<void> check_imports() const;
  Result<void> finish_contents(int id);

  kfd::CriuSession& session_;
  std::vector<pid_t> holders_;
  DumpRun& run_;
  kfd::Checkpoint checkpoint_;  // from stop() to list()
  kfd::QueueLosses losses_;
  kfd::KfdImage image_;
  std::vector<UniqueFd> dmabufs_;        // one per BO, from list() to take_contents()
  std::vector<std::size_t> bo_holders_;  // SharedBos numbers of the BOs that have contents
  DumpContents contents_;
};

}  // namespace sluice::plugin
