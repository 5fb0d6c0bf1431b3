// SPDX-License-Identifier: MIT
// One KFD process on its way into the images: its queues stop, its state is asked, its contents flow beside
// whatever the host does meanwhile, and when the host has said which file it is, all of it gets its names.
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
#include "kfd/topology.h"
#include "plugin/dump/dump_contents.h"

namespace sluice::plugin {

// A GPU of a dumped KFD process, as far as render files of it want to know.
struct ProcessGpu {
  std::uint32_t minor = 0;
  std::uint32_t user_gpu_id = 0;
  // mmap offset of a BO that no render file has: only the file KFD acquired may map it.
  std::optional<std::uint64_t> bo_offset;
};

class ProcessDump {
 public:
  // PROCESS_INFO and CHECKPOINT: the queues stand from now on. `session` and `run` are borrowed. `holders`:
  // the processes that hold its file. Errors: those of the two; EINVAL for what could not be restored.
  static Result<std::unique_ptr<ProcessDump>> begin(kfd::CriuSession& session,
                                                    const std::vector<pid_t>& holders, DumpRun& run);

  // When it is settled which BOs others make: contents() of the rest are waiting then. Idempotent. Errors:
  // EBADMSG where the private data cannot be told apart, as a restore of imports must.
  Result<void> take_contents();
  DumpContents& contents() { return contents_; }

  // When it is settled which BOs are shared.
  std::vector<ProcessGpu> gpus() const;

  // Joins the contents and writes all but the metadata under `id`.
  Result<void> finish(int id);
  // After finish(): the metadata, and what it took.
  Result<void> write(int id);

 private:
  ProcessDump(kfd::CriuSession& session, DumpRun& run) : session_(session), run_(run), contents_(run) {}
  void note_maps(const kfd::Checkpoint& checkpoint, pid_t pid);
  Result<void> sort_contents(kfd::Checkpoint& checkpoint);
  Result<void> check_imports() const;
  Result<void> finish_contents(int id);

  kfd::CriuSession& session_;
  DumpRun& run_;
  kfd::KfdImage image_;
  std::vector<ProcessGpu> gpus_;
  std::vector<GpuContents> contents_of_gpus_;  // from begin() to take_contents()
  std::vector<std::uint32_t> empty_gpus_;      // without contents, from then on
  DumpContents contents_;
};

}  // namespace sluice::plugin
