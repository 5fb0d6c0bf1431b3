// SPDX-License-Identifier: MIT
#include "plugin/predump/predump.h"

#include <time.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "base/caught.h"
#include "base/format.h"
#include "base/units.h"
#include "images/files/files.h"
#include "images/files/key.h"
#include "plugin/contents/local_machine.h"
#include "plugin/host/criu_host.h"

namespace sluice::plugin {
namespace {

constexpr std::uint64_t kLookNs = 20'000'000;
// A job that is stopped again and again runs for this many times as long in between.
constexpr std::uint64_t kRestOfStop = 10;
// Where next to nothing is free, the rest is left to the dump.
constexpr std::uint32_t kMostShares = 256;

}  // namespace

PreDump::PreDump(ImageStore& store, dev_t kfd_device, Shares shares)
    : run_(store), tree_(kfd_device, run_.topology), many_shares_(shares == Shares::Many) {
  run_.kfd_device = kfd_device;
  run_.is_predump = true;
}

PreDump::~PreDump() {
  sessions_.unpause_at_exit();
  if (!finished_) cancel();
}

Result<void> PreDump::read_machine() {
  SLUICE_TRY_ASSIGN(run_.topology, local_topology());
  memory_.set_machine(run_.topology);
  return {};
}

Result<void> PreDump::prepare(const settings::Config& config) {
  run_.config = config;
  run_.config.reuse_files = false;
  if (!config.checksum) {
    return Error{
        EINVAL,
        "SLUICE_CHECKSUM=off, but only checksums tell what changed after a pre-dump; set it on [SL-S16]"};
  }
  SLUICE_TRY_ASSIGN(run_.dump_id, random_dump_id());
  run_.store.set_keys(ImageKeys(settings::read_key(run_.config)));
  SLUICE_TRY(run_.store.keys().usable());
  SLUICE_TRY_ASSIGN(run_.shared.sums, new_sum_method(run_.store.keys()));
  return {};
}

Result<void> PreDump::begin() {
  SLUICE_TRY_ASSIGN(std::vector<TakenFile> taken, tree_.take_files());
  for (TakenFile& file : taken) SLUICE_TRY(files_.add(std::move(file)));
  const std::uint64_t began_ns = run_.shared.world.now_ns();
  // The tracer is gone after this call: whatever happens, the queues run again in it.
  const Result<void> begun = caught([this] { return files_.begin_all(false); });
  SLUICE_TRY(sessions_.unpause_all());
  run_.frozen_ns = run_.shared.world.now_ns() - began_ns;
  SLUICE_TRY(begun);
  SLUICE_TRY(run_.shared_bos.settle());
  ++shares_;
  return start();
}

Result<void> PreDump::start() {
  std::vector<DumpContents*> waiting;
  for (DumpedFile* file : files_.all()) {
    file->take_shares();
    if (file->contents() == nullptr) continue;
    SLUICE_TRY(file->take_contents());
    for (LaneContents& lane : file->contents()->waiting()) keep(lane, *file);
    waiting.push_back(file->contents());
  }
  SLUICE_TRY(check_stopped(run_.shared));
  SLUICE_TRY(memory_.start());
  SLUICE_TRY(run_.images.clear_directory(run_.config));
  return schedule_.start(std::move(waiting), nullptr, std::nullopt, true);
}

void PreDump::keep(LaneContents& lane, const DumpedFile& file) {
  lane.pages.predump = true;
  std::vector<UniqueFd> dmabufs(lane.dmabufs.size());
  std::swap(dmabufs, lane.dmabufs);
  const kfd::Node* const gpu = run_.topology.find_render_minor(lane.render_minor);
  const bool is_apu = gpu == nullptr || gpu->cpu_cores_count > 0 || gpu->vram_size == 0;
  auto keeper =
      std::make_shared<BoKeeper>(lane.pages, std::move(dmabufs), lane.render_minor, is_apu, many_shares_);
  memory_.add(keeper);
  lanes_.push_back({file.holders(), keeper});
  lane.giver = std::move(keeper);
}

// The files are begun as before, under their own run. Only their dma-bufs are used.
Result<void> PreDump::begin_share(const std::vector<pid_t>& pids) {
  DumpRun run(run_.store);
  run.kfd_device = run_.kfd_device;
  run.config = run_.config;
  run.topology = run_.topology;
  run.is_predump = run.is_again = true;
  TargetTree tree(run.kfd_device, run.topology);
  for (const pid_t pid : pids) tree.add(pid);
  DumpedFiles files(sessions_, run);
  SLUICE_TRY_ASSIGN(std::vector<TakenFile> taken, tree.take_files());
  for (TakenFile& file : taken) SLUICE_TRY(files.add(std::move(file)));
  const std::uint64_t began_ns = run.shared.world.now_ns();
  const Result<void> begun = caught([&files] { return files.begin_all(false); });
  const Result<void> unpaused = sessions_.unpause_all();
  if (!unpaused) (void)sessions_.unpause_all();  // while the processes are traced
  SLUICE_TRY(unpaused);
  run_.frozen_ns += run.shared.world.now_ns() - began_ns;
  SLUICE_TRY(begun);
  SLUICE_TRY(run.shared_bos.settle());
  std::vector<Lane> lanes = lanes_;
  for (DumpedFile* file : files.all()) {
    file->take_shares();
    if (file->contents() == nullptr) continue;
    SLUICE_TRY(file->take_contents());
    for (LaneContents& lane : file->contents()->waiting()) {
      lane.pages.predump = true;
      const auto same = std::find_if(lanes.begin(), lanes.end(), [&](const Lane& one) {
        return one.holders == file->holders() && one.bos->owner() == lane.pages;
      });
      if (same == lanes.end()) continue;  // the next dump writes it
      same->bos->offer(lane.pages, std::move(lane.dmabufs));
      lanes.erase(same);
    }
  }
  memory_.choose();
  ++shares_;
  return {};
}

Result<void> PreDump::finish(const std::function<Result<void>()>& next_share) {
  Result<void> written = write_all(next_share);
  memory_.stop();
  if (!written) {
    cancel();
    return written;
  }
  run_.images.commit();
  run_.write_stats();
  finished_ = true;
  log_line(Level::Info, "the pre-dump has " + std::to_string(run_.totals.bytes / kMiB) +
                            " MiB of GPUs, of which " + std::to_string(run_.totals.io_bytes / kMiB) +
                            " MiB were written and " + std::to_string(run_.totals.skipped_bytes / kMiB) +
                            " MiB left out; GPU queues were paused for " +
                            std::to_string(frozen_ns() / 1000) + " us of it");
  say_what_was_left_out();
  return {};
}

Result<void> PreDump::write_all(const std::function<Result<void>()>& next_share) {
  PreDumpMark mark{{}, frozen_ns(), run_.dump_id};
  int number = 0;
  for (DumpedFile* file : files_.all()) {
    DumpContents* const contents = file->contents();
    if (contents == nullptr) continue;  // another file's KFD process
    if (!contents->started()) SLUICE_TRY(schedule_.start({contents}, contents, std::nullopt, true));
    if (next_share) SLUICE_TRY(wait_for(*contents, next_share));
    file->set_id(number++);
    SLUICE_TRY(files_.finish(*file));
    mark.images.push_back(file->image_name());
  }
  SLUICE_TRY(check_stopped(run_.shared));
  if (mark.images.empty()) return {};  // unreached: a guard
  SLUICE_TRY(run_.parent.check_unchanged(run_.store));
  run_.images.add_metadata(kPreDumpMark);
  return run_.save(kPreDumpMark, pack_predump_mark(mark, run_.store.keys()));
}

Result<void> PreDump::wait_for(DumpContents& contents, const std::function<Result<void>()>& next_share) {
  while (!contents.ends_within(kLookNs)) {
    SLUICE_TRY(check_stopped(run_.shared));
    if (memory_.needs_share() && run_.shared.world.now_ns() >= next_share_ns_)
      SLUICE_TRY(take_share(next_share));
  }
  return {};
}

// Without it, the lanes go on.
Result<void> PreDump::take_share(const std::function<Result<void>()>& next_share) {
  const std::uint64_t began_ns = run_.shared.world.now_ns();
  const Result<void> taken = next_share();
  const std::uint64_t ended_ns = run_.shared.world.now_ns();
  next_share_ns_ = ended_ns + kRestOfStop * (ended_ns - began_ns);
  if (queues_stand()) return taken;
  if (!taken) {
    log_line(Level::Warning, formatted("the processes could not be stopped for more of their memory, so the "
                                       "next dump writes it: {} [SL-D75]",
                                       taken.error().what));
  }
  if (!taken || shares_ == kMostShares) memory_.end_shares();
  return {};
}

void PreDump::say_what_was_left_out() const {
  const BoKeeper::Counts counts = memory_.counts();
  if (counts.freed > 0) {
    log_line(Level::Info, std::to_string(counts.freed) +
                              " BOs were freed before they were copied: the dump has not to write them");
  }
  if (counts.skipped == 0) return;
  log_line(Level::Warning, formatted("{} BOs with {} MiB were not copied, because too little memory is free "
                                     "beside them or they could not be read; the next dump writes them "
                                     "[SL-D65]",
                                     counts.skipped, counts.skipped_bytes / kMiB));
}

void PreDump::cancel() {
  run_.shared.stopped = true;
  (void)sessions_.unpause_all();  // those refused earlier, while there is a tracer
  memory_.stop();
  files_.drop(false);
  run_.images.roll_back();
}

void PreDump::abandon() noexcept {
  run_.shared.stopped = true;
  sessions_.unpause_at_exit();
  // A running lane may create one more file.
  constexpr timespec kLook{0, 10'000'000};
  for (int looks = 0; run_.shared.running > 0 && looks < 1000; ++looks) (void)::nanosleep(&kLook, nullptr);
  run_.images.roll_back_from_signal();
}

}  // namespace sluice::plugin
