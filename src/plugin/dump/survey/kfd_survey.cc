// SPDX-License-Identifier: MIT
#include "plugin/dump/survey/kfd_survey.h"

#include <sys/utsname.h>

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "kfd/device.h"
#include "kfd/kfd_limits.h"
#include "kfd/memory/hsakmt_shm.h"
#include "kfd/records/bo_order.h"
#include "kfd/records/private_data.h"
#include "kfd/uapi.h"
#include "pipeline/checksum/units.h"
#include "plugin/host/criu_host.h"

namespace sluice::plugin {

namespace {

std::string kernel_release() {
  utsname names{};
  return uname(&names) == 0 ? names.release : "";
}

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

// CRIU restores a file in the process of the lowest pid that holds it, which then owns the KFD process.
// `owner`: the process that opened it, from PROCESS_INFO, in its own pid namespace.
Result<void> check_owner(pid_t owner, const proc::RestoringProcess& restorer) {
  const std::optional<std::uint32_t> lowest = restorer.innermost;
  if (!lowest || *lowest == static_cast<std::uint32_t>(owner)) return {};
  return Error{
      EINVAL,
      formatted("a file of /dev/kfd was opened by process {} and would be restored in process {}, which "
                "inherited it; let process {} close it [SL-D38]",
                owner, *lowest, *lowest)};
}

// Borrows the private data.
Result<kfd::PrivateData> records_of(const kfd::Checkpoint& checkpoint) {
  kfd::PrivateOwners owners;
  for (const kfd::DeviceIds& device : checkpoint.devices) owners.gpu_ids.push_back(device.user_gpu_id);
  for (const kfd::KfdBo& bo : checkpoint.bos)
    owners.bos.push_back({bo.gpu_id, (bo.alloc_flags & kfd::kAllocUserptr) != 0});
  owners.objects = checkpoint.info.num_objects;
  return kfd::PrivateData::read(checkpoint.priv_data, std::move(owners));
}

}  // namespace

Result<std::unique_ptr<KfdSurvey>> KfdSurvey::open(TakenFile taken, const DumpBasis& basis,
                                                   const StoppedJob& job) {
  kfd::CriuSession& session =
      job.sessions.open_session(std::move(taken.own), "process " + std::to_string(taken.holders.front()));
  std::unique_ptr<KfdSurvey> file(new KfdSurvey(session, std::move(taken.holders), basis, job));
  // Later, a file may belong to a process that this dump has paused; PROCESS_INFO does it for all others.
  if (job.sessions.paused_count() == 0) SLUICE_TRY(session.end_older_pause());
  return file;
}

KfdSurvey::KfdSurvey(kfd::CriuSession& session, std::vector<pid_t> holders, const DumpBasis& basis,
                     const StoppedJob& job)
    : session_(session),
      holders_(std::move(holders)),
      restorer_(proc::restoring_process(holders_)),
      basis_(basis),
      job_(job) {}

Result<void> KfdSurvey::begin(const All& all) {
  began_ns_ = job_.shared.world.now_ns();
  SLUICE_TRY_ASSIGN(const kfd::KfdDevice device,
                    kfd::KfdDevice::open(basis_.kfd_device));  // checks the version
  kfd_minor_version_ = device.version().minor;
  SLUICE_TRY_ASSIGN(alias_of_, find_alias(all));
  if (alias_of_) return {};
  SLUICE_TRY(check_saved_wholly(device, holders_));
  return stop();
}

// The file through which this one's KFD process is surveyed, or nothing if the process runs. Refuses what
// could not be restored: in a restored task every /dev/kfd file that it opens itself belongs to its own KFD
// process.
Result<std::optional<std::size_t>> KfdSurvey::find_alias(const All& all) const {
  const auto refusal = [&] {
    return Error{EINVAL, name() +
                             " has several files of /dev/kfd and inherited one through a fork, which is not "
                             "supported; it must "
                             "close the inherited one [SL-D35]"};
  };
  std::optional<std::size_t> same;
  bool runs = true;
  for (std::size_t i = 0; i < all.size() && all[i].get() != this; ++i) {
    const KfdSurvey& file = *all[i];
    if (file.alias_of_) continue;
    SLUICE_TRY_ASSIGN(const bool is_same, file.session_.same_process(session_.fd()));
    if (is_same) runs = false;
    if (!share_any(holders_, file.holders_)) continue;  // unrelated processes may have the same counts
    if (!is_same || holders_.size() != 1 || file.holders_.size() != 1) return refusal();
    same = i;
  }
  if (!same && !runs) return refusal();  // unreached: no test
  return same;
}

Result<void> KfdSurvey::stop() {
  if (alias_of_) return {};
  checkpoint_ = {};  // each BO needs a descriptor
  const auto answer = session_.process_info();
  if (!answer && answer.error().err == EBADF) {
    return Error{
        EBADF,
        formatted(
            "a file of /dev/kfd was opened by a process that is gone or not part of this dump; {}, which "
            "inherited it, must close it: {} [SL-D39]",
            name(), answer.error().what)};
  }
  if (!answer) return answer.error();
  SLUICE_TRY(check_owner(static_cast<pid_t>(answer->pid), restorer_));
  SLUICE_TRY_ASSIGN(checkpoint_, session_.checkpoint());
  SLUICE_TRY_ASSIGN(topology_, topology_of_process(basis_.topology, checkpoint_.devices));
  const auto data = records_of(checkpoint_);
  losses_ = data ? kfd::losses_of_queues(*data, topology_) : kfd::QueueLosses{};
  return {};
}

Result<SurveyedFile> KfdSurvey::finish() && {
  SurveyedFile file{.image = KfdImage{},
                    .name = name(),
                    .holders = holders_,
                    .restorer = restorer_,
                    .fd = session_.fd(),
                    .own = {},
                    .bos = {},
                    .acquired_by = {},
                    .began_ns = began_ns_};
  if (alias_of_) {
    file.image = KfdAlias{*alias_of_};
    return file;
  }
  auto& image = std::get<KfdImage>(file.image);
  SLUICE_TRY(take_image(image));
  SLUICE_TRY(take_bos(image, file.bos));
  return file;
}

// As a table of contents.
Result<void> KfdSurvey::take_image(KfdImage& image) {
  if (session_.found_paused()) {
    log_line(Level::Warning,
             name() + ": its queues were still paused by a dump that was killed; nothing to do [SL-D40]");
  }
  const kfd::ProcessInfo& info = checkpoint_.info;
  log_line(Level::Info, formatted("{}: {} GPUs, {} BOs, {} queues, events and SVM ranges", name(),
                                  info.num_devices, info.num_bos, info.num_objects));
  image.bo_record_bytes = find_records();
  kfd::put_in_order(checkpoint_, image.bo_record_bytes, kSumBlockBytes);
  image.topology = std::move(topology_);
  image.pid = info.pid;
  for (const kfd::KfdBo& bo : checkpoint_.bos) image.bos.push_back({bo});
  image.num_objects = info.num_objects;
  SLUICE_TRY_ASSIGN(const std::optional<kfd::HsakmtShm> shm, kfd::read_hsakmt_shm());
  image.shm = shm.value_or(kfd::HsakmtShm{});
  image.priv_data = std::move(checkpoint_.priv_data);
  image.sluice_version = SLUICE_VERSION;
  image.kernel_release = kernel_release();
  image.kfd_minor_version = kfd_minor_version_;
  image.dump_id = basis_.dump_id;
  image.has_sums = basis_.config.checksum;
  return {};
}

// A restore without records passes the private data on as they are: it is said now what it cannot do. Returns
// the size of a BO's record, 0 if unknown.
std::uint32_t KfdSurvey::find_records() {
  const auto records = records_of(checkpoint_);
  if (!records) {
    log_line(Level::Warning,
             formatted("{}: this sluice does not know the records of this amdgpu driver; restore only under "
                       "the same driver, where {} GPUs are visible [SL-D80]",
                       name(), checkpoint_.devices.size()));
    return 0;
  }
  return records->bo_record_bytes();
}

Result<void> KfdSurvey::take_bos(const KfdImage& image, std::vector<SurveyedBo>& bos) {
  const auto records = private_records(image);
  std::size_t exported = 0;
  for (std::uint32_t i = 0; i < image.bos.size(); ++i) {
    const BoEntry& entry = image.bos[i];
    if (!kfd::has_contents(entry.alloc_flags)) continue;
    SurveyedBo bo{.number = i, .dmabuf = std::move(checkpoint_.dmabufs[i])};
    SLUICE_TRY_ASSIGN(bo.inode, kfd::inode_of_dmabuf(bo.dmabuf.get()));
    bo.looks_imported = (entry.alloc_flags & ~kfd::kAllocFlagsOfImports) == 0;
    if (const auto ipc = records ? records->bo(i).ipc : std::nullopt) {
      bo.looks_imported = ipc->is_imported;
      bo.ipc = ipc->is_imported ? Ipc::Imported : Ipc::Exported;
      if (bo.ipc == Ipc::Exported) ++exported;
    }
    bo.place = {image.topology.find_gpu(entry.gpu_id)->drm_render_minor, entry.offset};
    bos.push_back(std::move(bo));
  }
  if (exported > 0) {
    log_line(Level::Warning,
             formatted("{}: {} of its BOs have an IPC handle; a process outside this dump that has imported "
                       "one keeps that memory, and the restored process gets its own; dump all that share "
                       "memory as one tree [SL-D81]",
                       name(), exported));
  }
  return {};
}

}  // namespace sluice::plugin
