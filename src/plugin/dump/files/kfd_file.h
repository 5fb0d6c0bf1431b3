// SPDX-License-Identifier: MIT
// An open file of /dev/kfd. The unit is the KFD process, not the file. A process that opens /dev/kfd twice
// has one, and a second PROCESS_INFO would stop its queues for ever. So each KFD process is dumped through
// one file, and its other files are aliases.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "kfd/criu_ops.h"
#include "plugin/dump/files/dumped_file.h"
#include "plugin/dump/files/process_dump.h"

namespace sluice::plugin {

class KfdFile final : public DumpedFile {
 public:
  using All = std::vector<std::unique_ptr<KfdFile>>;  // the tree's

  // `own`: a descriptor of the target's file. Creates the session in `sessions` and ends an older dump's
  // pause. `all`, which this one is about to join, `sessions` and `run` are borrowed.
  static Result<std::unique_ptr<KfdFile>> open(UniqueFd own, std::vector<pid_t> holders, const All& all,
                                               kfd::UnpauseGuard& sessions, DumpRun& run);

  int fd() const override { return session_.fd(); }
  // Stops the queues of the file's KFD process and reads its state, or finds that another file has done so.
  Result<void> begin() override;
  // Its KFD process, begun; null for an alias.
  ProcessDump* process() { return process_.get(); }
  // When queues do not run again: takes the last state that was read.
  Result<void> list() { return process_ ? process_->list() : Result<void>(); }
  DumpContents* contents() override { return process_ ? &process_->contents() : nullptr; }
  void take_shares() override {
    if (process_) process_->take_shares();
  }
  Result<void> take_contents() override { return process_->take_contents(); }
  std::string image_name() const override;
  Result<void> write() override;
  void warn_of_loss() const override;

  bool is_alias() const { return alias_of_ != nullptr; }
  // The GPUs of its KFD process, once shared BOs are settled. Empty for an alias.
  std::vector<ProcessGpu> gpus() const { return process_ ? process_->gpus() : std::vector<ProcessGpu>(); }

 private:
  KfdFile(kfd::CriuSession& session, std::vector<pid_t> holders, const All& all, DumpRun& run);
  Result<const KfdFile*> find_alias() const;
  Result<void> finish_contents() override;
  Result<void> write_alias() const;

  kfd::CriuSession& session_;
  const All& all_;
  std::unique_ptr<ProcessDump> process_;
  const KfdFile* alias_of_ = nullptr;  // another of `all`; then process_ is null
};

}  // namespace sluice::plugin
