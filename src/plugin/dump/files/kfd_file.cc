// SPDX-License-Identifier: MIT
#include "plugin/dump/files/kfd_file.h"

#include <algorithm>

#include "base/format.h"
#include "images/files/files.h"
#include "images/kfd_image.h"
#include "images/metadata.h"
#include "kfd/device.h"
#include "kfd/kfd_limits.h"
#include "plugin/host/criu_host.h"

namespace sluice::plugin {

namespace {

// The kernel's checkpoint would silently leave these out.
Result<void> check_saved_wholly(const kfd::KfdDevice& own, const std::vector<pid_t>& holders) {
  for (const pid_t pid : holders) {
    const std::string who = "process " + std::to_string(pid);
    SLUICE_TRY_ASSIGN(const bool contexts, kfd::has_secondary_contexts(pid));
    if (contexts) {
      return Error{
          EINVAL,
          who +
              " has secondary KFD contexts (CREATE_PROCESS), which the kernel does not checkpoint; it must "
              "close them [SL-D32]"};
    }
    SLUICE_TRY_ASSIGN(const bool debugged, kfd::is_debugged(own, pid));
    if (debugged) {
      return Error{EINVAL, who +
                               " is debugged through the KFD (DBG_TRAP), whose state the kernel does not "
                               "checkpoint; detach the "
                               "debugger [SL-D33]"};
    }
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<KfdFile>> KfdFile::open(UniqueFd own, std::vector<pid_t> holders, const All& all,
                                               kfd::UnpauseGuard& sessions, DumpRun& run) {
  std::string name = holders.empty() ? "a process of the tree" : "process " + std::to_string(holders.front());
  kfd::CriuSession& session = sessions.open_session(std::move(own), std::move(name));
  std::unique_ptr<KfdFile> file(new KfdFile(session, std::move(holders), all, run));
  // Later, a file may belong to a process that this dump has paused; PROCESS_INFO does it for all others.
  if (sessions.paused_count() == 0) SLUICE_TRY(session.end_older_pause());
  return file;
}

KfdFile::KfdFile(kfd::CriuSession& session, std::vector<pid_t> holders, const All& all, DumpRun& run)
    : DumpedFile(std::move(holders), run), session_(session), all_(all) {
  name_ = session.name();
}

Result<void> KfdFile::begin() {
  SLUICE_TRY(run_.ready);
  SLUICE_TRY_ASSIGN(const kfd::KfdDevice device,
                    kfd::KfdDevice::open(run_.kfd_device));  // checks the version
  run_.kfd_minor_version = device.version().minor;
  SLUICE_TRY_ASSIGN(alias_of_, find_alias());
  if (is_alias()) return {};
  if (holders_.empty()) {
    return Error{
        EINVAL,
        "a file of /dev/kfd is in flight in a UNIX socket; its receiver must receive it before the dump "
        "[SL-D34]"};
  }
  SLUICE_TRY(check_saved_wholly(device, holders_));
  auto process = std::make_unique<ProcessDump>(session_, holders_, run_);
  SLUICE_TRY(process->stop());
  process_ = std::move(process);
  return {};
}

// The file through which this one's KFD process was dumped, or null if the process runs. Refuses what could
// not be restored: in a restored task every /dev/kfd file that it opens itself belongs to its own KFD
// process.
Result<const KfdFile*> KfdFile::find_alias() const {
  const auto refusal = [&] {
    return Error{EINVAL, name_ +
                             " has several files of /dev/kfd and inherited one through a fork, which is not "
                             "supported; it must "
                             "close the inherited one [SL-D35]"};
  };
  const KfdFile* same = nullptr;
  bool runs = true;
  for (const auto& file : all_) {
    if (!file->process_) continue;
    SLUICE_TRY_ASSIGN(const bool is_same, file->session_.same_process(session_.fd()));
    if (is_same) runs = false;
    if (!share_any(holders_, file->holders_)) continue;  // unrelated processes may have the same counts
    if (!is_same || holders_.size() != 1 || file->holders_.size() != 1) return refusal();
    same = file.get();
  }
  if (same == nullptr && !runs) return refusal();  // unreached: no test
  return same;
}

std::string KfdFile::image_name() const {
  return run_.name_of(kfd_image_name(*id()));
}

Result<void> KfdFile::finish_contents() {
  return process_ ? process_->finish(*id()) : Result<void>();
}

Result<void> KfdFile::write() {
  return process_ ? process_->write(*id()) : write_alias();
}

Result<void> KfdFile::write_alias() const {
  if (!alias_of_->id()) {  // unreached: no test
    return Error{
        EINVAL,
        formatted(
            "file {} of /dev/kfd comes before the one through which its process was dumped; the process "
            "must close all but one [SL-D36]",
            *id())};
  }
  kfd::KfdImage alias;
  alias.alias_of = static_cast<std::uint32_t>(*alias_of_->id());
  alias.dump_id = run_.dump_id;
  alias.id = static_cast<std::uint32_t>(*id());
  run_.images.add_metadata(image_name());
  return run_.save(image_name(), pack_kfd_image(alias, run_.store.keys()));
}

void KfdFile::warn_of_loss() const {
  log_line(Level::Warning, name_ +
                               ": CRIU did not ask for its /dev/kfd, so its GPU memory is in no image; do "
                               "not rely on this checkpoint [SL-D37]");
}

}  // namespace sluice::plugin
