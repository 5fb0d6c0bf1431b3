// SPDX-License-Identifier: MIT
// Surveys an open file of /dev/kfd. The unit is the KFD process, not the file. A process that opens /dev/kfd
// twice has one, and a second PROCESS_INFO would stop its queues for ever. So each KFD process is surveyed
// through one file, and its other files are aliases.
//
// Main thread only.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kfd/criu_ops.h"
#include "kfd/records/queue_records.h"
#include "plugin/dump/survey/survey.h"

namespace sluice::plugin {

class KfdSurvey {
 public:
  using All = std::vector<std::unique_ptr<KfdSurvey>>;  // the tree's

  // Creates the session in `job` and ends an older dump's pause. `basis` and `job` are borrowed.
  static Result<std::unique_ptr<KfdSurvey>> open(TakenFile taken, const DumpBasis& basis,
                                                 const StoppedJob& job);

  // If one of `all`, which began earlier, has this file's process, the file is its alias. Otherwise checks
  // that the kernel saves all of the process, and stops it. Errors: EINVAL for what could not be restored;
  // stop()'s.
  Result<void> begin(const All& all);
  // PROCESS_INFO and CHECKPOINT: stops the queues. Again after the session's unpause(): then everything is
  // checkpointed anew. Nothing for an alias. Errors: those of the two; EINVAL for what could not be restored.
  Result<void> stop();
  const std::string& name() const { return session_.name(); }
  // What a restore of the queues would lose, as stop() found it. Nothing for an alias, or if the private data
  // cannot be split.
  const kfd::QueueLosses& losses() const { return losses_; }

  // Once, when the queues do not run again before the dump's end: takes the last checkpoint.
  Result<SurveyedFile> finish() &&;

 private:
  KfdSurvey(kfd::CriuSession& session, std::vector<pid_t> holders, const DumpBasis& basis,
            const StoppedJob& job);
  Result<std::optional<std::size_t>> find_alias(const All& all) const;
  std::uint32_t find_records();
  Result<void> take_image(KfdImage& image);
  Result<void> take_bos(const KfdImage& image, std::vector<SurveyedBo>& bos);

  kfd::CriuSession& session_;
  std::vector<pid_t> holders_;
  proc::RestoringProcess restorer_;
  const DumpBasis& basis_;
  StoppedJob job_;
  std::uint64_t began_ns_ = 0;
  std::optional<std::size_t> alias_of_;
  std::uint32_t kfd_minor_version_ = 0;
  kfd::Checkpoint checkpoint_;
  kfd::Topology topology_;
  kfd::QueueLosses losses_;
};

}  // namespace sluice::plugin
