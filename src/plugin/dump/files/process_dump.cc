// SPDX-License-Identifier: MIT
#include "plugin/dump/files/process_dump.h"

#include <sys/utsname.h>

#include <algorithm>

#include "base/format.h"
#include "images/files/files.h"
#include "images/metadata.h"
#include "images/pages.h"
#include "kfd/memory/hsakmt_shm.h"
#include "kfd/records/bo_order.h"
#include "kfd/records/private_data.h"
#include "kfd/uapi.h"
#include "pipeline/checksum/units.h"
#include "plugin/dump/files/render_maps.h"
#include "proc/processes.h"

namespace sluice::plugin {

namespace {

std::string kernel_release() {
  utsname names{};
  return uname(&names) == 0 ? names.release : "";
}

// CRIU restores a file in the process of the lowest pid that holds it, which then owns the KFD process.
// `owner`: the process that opened it, from PROCESS_INFO, in its own pid namespace.
Result<void> check_owner(pid_t owner, const std::vector<pid_t>& holders) {
  const std::optional<std::uint32_t> lowest = proc::restoring_process(holders).innermost;
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

Result<void> ProcessDump::stop() {
  if (run_.frozen_from_ns == 0) run_.frozen_from_ns = run_.shared.world.now_ns();
  checkpoint_ = {};  // each BO needs a descriptor
  const auto answer = session_.process_info();
  if (!answer && answer.error().err == EBADF) {
    return Error{
        EBADF,
        formatted(
            "a file of /dev/kfd was opened by a process that is gone or not part of this dump; {}, which "
            "inherited it, must close it: {} [SL-D39]",
            session_.name(), answer.error().what)};
  }
  if (!answer) return answer.error();
  SLUICE_TRY(check_owner(static_cast<pid_t>(answer->pid), holders_));
  SLUICE_TRY_ASSIGN(checkpoint_, session_.checkpoint());
  SLUICE_TRY_ASSIGN(image_.topology, kfd::topology_of_process(run_.topology, checkpoint_.devices));
  const auto data = records_of(checkpoint_);
  losses_ = data ? kfd::losses_of_queues(*data, image_.topology) : kfd::QueueLosses{};
  return {};
}

// As a table of contents.
Result<void> ProcessDump::list() {
  if (session_.found_paused()) {
    log_line(
        Level::Warning,
        session_.name() + ": its queues were still paused by a dump that was killed; nothing to do [SL-D40]");
  }
  const kfd::ProcessInfo& info = checkpoint_.info;
  log_line(Level::Info, formatted("{}: {} GPUs, {} BOs, {} queues, events and SVM ranges", session_.name(),
                                  info.num_devices, info.num_bos, info.num_objects));
  kfd::put_in_order(checkpoint_, find_records(), kSumBlockBytes);
  image_.pid = info.pid;
  for (const kfd::KfdBo& bo : checkpoint_.bos) image_.bos.push_back({bo});
  image_.num_objects = info.num_objects;
  SLUICE_TRY_ASSIGN(const std::optional<kfd::HsakmtShm> shm, kfd::read_hsakmt_shm());
  image_.shm = shm.value_or(kfd::HsakmtShm{});
  image_.priv_data = std::move(checkpoint_.priv_data);
  image_.sluice_version = SLUICE_VERSION;
  image_.kernel_release = kernel_release();
  image_.kfd_minor_version = run_.kfd_minor_version;
  image_.dump_id = run_.dump_id;
  image_.has_sums = run_.config.checksum;
  dmabufs_ = std::move(checkpoint_.dmabufs);
  note_maps(proc::restoring_process(holders_).pid);
  return add_holders();
}

// A restore without records passes the private data on as they are: it is said now what it cannot do. Returns
// the size of a BO's record, 0 if unknown.
std::uint32_t ProcessDump::find_records() {
  const auto records = records_of(checkpoint_);
  if (!records) {
    log_line(Level::Warning,
             formatted("{}: this sluice does not know the records of this amdgpu driver; restore only under "
                       "the same driver, where {} GPUs are visible [SL-D80]",
                       session_.name(), checkpoint_.devices.size()));
    return 0;
  }
  std::size_t with_more = 0;
  for (std::size_t i = 0; i < checkpoint_.bos.size(); ++i) with_more += records->bo(i).has_more ? 1 : 0;
  if (with_more > 0) {
    log_line(Level::Warning,
             formatted("{}: {} of its BOs have an IPC handle, by which a restore finds memory that still "
                       "exists; before a restore on this machine, end every process that has it [SL-D81]",
                       session_.name(), with_more));
  }
  image_.bo_record_bytes = records->bo_record_bytes();
  return image_.bo_record_bytes;
}

// The process' maps of render nodes that can be restored.
void ProcessDump::note_maps(pid_t pid) {
  BoRanges& ranges = run_.maps[pid];
  for (const kfd::BoEntry& bo : image_.bos) {
    if (kfd::has_contents(bo.alloc_flags))
      ranges.emplace(std::pair(minor_of(bo.gpu_id), bo.offset), bo.offset + bo.bytes);
  }
}

Result<void> ProcessDump::add_holders() {
  for (std::size_t i = 0; i < image_.bos.size(); ++i) {
    const kfd::BoEntry& bo = image_.bos[i];
    if (!kfd::has_contents(bo.alloc_flags)) continue;
    SharedBos::Holder holder{.name = session_.name() + "'s BO at " + hex(bo.addr), .kfd = true};
    holder.looks_imported = (bo.alloc_flags & ~kfd::kAllocFlagsOfImports) == 0;
    holder.place = {minor_of(bo.gpu_id), bo.offset};
    SLUICE_TRY_ASSIGN(const std::size_t number, run_.shared_bos.add(dmabufs_[i].get(), std::move(holder)));
    bo_holders_.push_back(number);
  }
  return {};
}

void ProcessDump::take_shares() {
  auto holder = bo_holders_.begin();
  for (kfd::BoEntry& bo : image_.bos) {
    if (!kfd::has_contents(bo.alloc_flags)) continue;
    const SharedBos::Share share = run_.shared_bos.share_of(*holder++);
    bo.shared = share.number;
    bo.imports = share.imports;
    if (share.number != 0) bo.handle = share.handle;
  }
}

// In bucket order, by GPU.
Result<void> ProcessDump::take_contents() {
  SLUICE_TRY(check_imports());
  if (dmabufs_.empty()) return {};
  for (PagesSet& pages : pages_of(image_)) {
    const std::uint32_t minor = minor_of(pages.gpu_id);
    contents_.waiting().push_back({std::move(pages), dmabufs_, minor});
  }
  dmabufs_.clear();
  return {};
}

// A restore must be able to tell the private data's records apart.
Result<void> ProcessDump::check_imports() const {
  const auto checked = check_private_data(image_, image_.topology.gpu_count(), 0);
  return checked ? checked : explain(session_.name(), checked.error());
}

std::vector<ProcessGpu> ProcessDump::gpus() const {
  std::vector<ProcessGpu> gpus;
  for (const kfd::Node& node : image_.topology.nodes) {
    if (!node.is_gpu()) continue;
    gpus.push_back({node.drm_render_minor, node.gpu_id, std::nullopt});
    const auto own = std::find_if(image_.bos.begin(), image_.bos.end(), [&](const kfd::BoEntry& bo) {
      return bo.gpu_id == node.gpu_id && bo.shared == 0 && kfd::has_contents(bo.alloc_flags);
    });
    if (own != image_.bos.end()) gpus.back().bo_offset = own->offset;
  }
  return gpus;
}

Result<void> ProcessDump::finish(int id) {
  image_.id = static_cast<std::uint32_t>(id);
  run_.images.add_metadata(run_.name_of(kfd_image_name(id)));
  SLUICE_TRY(finish_contents(id));
  for (const kfd::BoEntry& bo : image_.bos) run_.shared_bos.note_saved(bo.shared, bo.imports);
  return {};
}

Result<void> ProcessDump::write(int id) {
  if (run_.is_predump) image_.priv_data.clear();  // of a moment that is over: never restored
  SLUICE_TRY(run_.save(run_.name_of(kfd_image_name(id)), pack_kfd_image(image_, run_.store.keys())));
  contents_.note_stats(id);
  return {};
}

// A GPU without contents gets a file with only the header, as upstream writes it.
Result<void> ProcessDump::finish_contents(int id) {
  SLUICE_TRY(contents_.join(id));
  for (const kfd::Node& node : image_.topology.nodes) {
    if (run_.is_predump) break;
    if (!node.is_gpu() || has_contents(image_, node.gpu_id)) continue;
    run_.images.add(pages_image_name(id, node.gpu_id));
    SLUICE_TRY(run_.store.save(pages_image_name(id, node.gpu_id), {}, run_.config.sync));
  }
  if (run_.config.sync) SLUICE_TRY(run_.store.sync());
  return {};
}

}  // namespace sluice::plugin
