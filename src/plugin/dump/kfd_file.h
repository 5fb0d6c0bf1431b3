// SPDX-License-Identifier: MIT
// An open file of /dev/kfd. A KFD process is the unit, not the file: a process that opens /dev/kfd twice has
// one, and a second PROCESS_INFO would stop its queues for ever. So through one file of each KFD process that
// process is dumped, and others are its aliases.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "kfd/criu_ops.h"
#include "plugin/dump/dumped_file.h"
#include "plugin/dump/process_dump.h"

namespace sluice::plugin {

class KfdFile final : public DumpedFile {
 public:
  using All = std::vector<std::unique_ptr<KfdFile>>;  // of the tree

  // `own`: a descriptor of the target's. The session is made in `sessions`. An older dump's pause is ended.
  // `all`, which this one is about to join, `sessions` and `run` are borrowed.
  static Result<std::unique_ptr<KfdFile>> open(UniqueFd own, std::vector<pid_t> holders, const All& all,
                                               kfd::UnpauseGuard& sessions, DumpRun& run);

  int fd() const override { return session_.fd(); }
  // Stops the queues of the file's KFD process and asks its state, or finds that another file's dump has.
  Result<void> begin() override;
  DumpContents* contents() override { return process_ ? &process_->contents() : nullptr; }
  Result<void> take_contents() override { return process_->take_contents(); }
  std::string image_name() const override;
  Result<void> write() override;
  void warn_of_loss() const override;

  bool is_alias() const { return alias_of_ != nullptr; }
  // Of its KFD process, once it is settled which BOs are shared. None of an alias.
  std::vector<ProcessGpu> gpus() const { return process_ ? process_->gpus() : std::vector<ProcessGpu>(); }

 private:
  KfdFile(kfd::CriuSession& session, std::vector<pid_t> holders, const All& all, DumpRun& run);
  Result<const KfdFile*> find_alias() const;
  Result<void> finish_contents() override;
  Result<void> write_alias() const;

  kfd::CriuSession& session_;
  const All& all_;
  std::unique_ptr<ProcessDump> process_;
  const KfdFile* alias_of_ = nullptr;  // another of `all`; then it has no process
};

}  // namespace sluice::plugin
