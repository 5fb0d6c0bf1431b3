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
    : basis_(store, kfd_device, {.job_runs = true}),
      shared_(vram_, store),
      tree_(kfd_device, basis_.topology),
      many_shares_(shares == Shares::Many),
      images_(store),
      carrier_(basis_, shared_, images_) {}

PreDump::~PreDump() {
  sessions_.unpause_at_exit();
  if (!finished_) cancel();
}

Result<void> PreDump::read_machine() {
  SLUICE_TRY_ASSIGN(basis_.topology, local_topology());
  memory_.set_machine(basis_.topology, basis_.kfd_device);
  return {};
}

Result<void> PreDump::prepare(const settings::Config& config) {
  basis_.config = config;
  basis_.config.reuse_files = false;
  if (!config.checksum) {
    return Error{
        EINVAL,
        "SLUICE_CHECKSUM=off, but only checksums tell what changed after a pre-dump; set it on [SL-S16]"};
  }
  return basis_.prepare();
}

// The tracer is gone after this call: whatever happens, the queues run again in it.
Result<DumpPlan> PreDump::survey_and_plan(const DumpBasis& basis, const TargetTree& tree) {
  TreeFiles open;
  SLUICE_TRY_ASSIGN(open.files, tree.take_files());
  Survey survey;
  const Result<void> surveyed = caught([&]() -> Result<void> {
    SLUICE_TRY_ASSIGN(survey, survey_tree(std::move(open), tree, basis, {}, {sessions_, shared_}));
    return {};
  });
  SLUICE_TRY(sessions_.unpause_all());
  if (survey.stopped_from_ns != 0) frozen_ns_ += shared_.world.now_ns() - survey.stopped_from_ns;
  SLUICE_TRY(surveyed);
  ++shares_;
  return plan_dump(std::move(survey), basis.policy);
}

Result<void> PreDump::begin() {
  SLUICE_TRY_ASSIGN(DumpPlan plan, survey_and_plan(basis_, tree_));
  auto lanes = std::exchange(plan.lanes, {});
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    for (LaneContents& lane : lanes[i]) keep(lane, plan.files[i]);
  }
  carrier_.load(plan.files, std::move(lanes));
  commit_.emplace(basis_, carrier_, images_, std::move(plan));
  SLUICE_TRY(check_stopped(shared_));
  SLUICE_TRY(memory_.start());
  SLUICE_TRY(images_.clear_directory(basis_.config));
  return carrier_.start(std::nullopt);
}

void PreDump::keep(LaneContents& lane, const PlannedFile& file) {
  std::vector<UniqueFd> dmabufs(lane.dmabufs.size());
  std::swap(dmabufs, lane.dmabufs);
  const kfd::Node* const gpu = basis_.topology.find_render_minor(lane.render_minor);
  const bool is_apu = gpu == nullptr || gpu->cpu_cores_count > 0 || gpu->vram_size == 0;
  auto keeper =
      std::make_shared<BoKeeper>(lane.pages, std::move(dmabufs), lane.render_minor, is_apu, many_shares_);
  memory_.add(keeper);
  lanes_.push_back({file.holders, keeper});
  lane.giver = std::move(keeper);
}

// The files are surveyed as before. Only their dma-bufs are used.
Result<void> PreDump::begin_share(const std::vector<pid_t>& pids) {
  DumpBasis basis(basis_.store, basis_.kfd_device, {.job_runs = true, .is_again = true});
  basis.config = basis_.config;
  basis.topology = basis_.topology;
  TargetTree tree(basis.kfd_device, basis.topology);
  for (const pid_t pid : pids) tree.add(pid);
  auto surveyed = survey_and_plan(basis, tree);
  if (!surveyed && queues_stand()) (void)sessions_.unpause_all();  // while the processes are traced
  SLUICE_TRY_ASSIGN(DumpPlan plan, std::move(surveyed));
  std::vector<Lane> lanes = lanes_;
  for (std::size_t i = 0; i < plan.files.size(); ++i) {
    for (LaneContents& lane : plan.lanes[i]) {
      const auto same = std::find_if(lanes.begin(), lanes.end(), [&](const Lane& one) {
        return one.holders == plan.files[i].holders && one.bos->owner() == lane.pages;
      });
      if (same == lanes.end()) continue;  // the next dump writes it
      same->bos->offer(lane.pages, std::move(lane.dmabufs));
      lanes.erase(same);
    }
  }
  memory_.choose();
  return {};
}

Result<void> PreDump::finish(const std::function<Result<void>()>& next_share) {
  Result<void> written = write_all(next_share);
  memory_.stop();
  if (!written) {
    cancel();
    return written;
  }
  images_.remove_old_pages();
  carrier_.write_stats(frozen_ns_);
  finished_ = true;
  log_line(Level::Info, "the pre-dump has " + std::to_string(totals().bytes / kMiB) +
                            " MiB of GPUs, of which " + std::to_string(totals().io_bytes / kMiB) +
                            " MiB were written and " + std::to_string(totals().skipped_bytes / kMiB) +
                            " MiB left out; GPU queues were paused for " +
                            std::to_string(frozen_ns() / 1000) + " us of it");
  say_what_was_left_out();
  return {};
}

Result<void> PreDump::write_all(const std::function<Result<void>()>& next_share) {
  PreDumpMark mark{{}, frozen_ns(), basis_.dump_id};
  int number = 0;
  for (std::size_t file = 0; file < commit_->plan().files.size(); ++file) {
    if (commit_->plan().files[file].is_alias()) continue;
    if (!carrier_.is_started(file)) SLUICE_TRY(carrier_.start(file));
    if (next_share) SLUICE_TRY(wait_for(file, next_share));
    commit_->name(file, number++);
    SLUICE_TRY(commit_->finish(file));
    mark.images.push_back(commit_->image_name(file));
  }
  SLUICE_TRY(check_stopped(shared_));
  if (mark.images.empty()) return {};  // unreached: a guard
  SLUICE_TRY(basis_.parent.check_unchanged(basis_.store));
  images_.add_metadata(kPreDumpMark);
  return basis_.save(kPreDumpMark, pack_predump_mark(mark, basis_.store.keys()));
}

Result<void> PreDump::wait_for(std::size_t file, const std::function<Result<void>()>& next_share) {
  while (!carrier_.ends_within(file, kLookNs)) {
    SLUICE_TRY(check_stopped(shared_));
    if (memory_.needs_share() && shared_.world.now_ns() >= next_share_ns_) SLUICE_TRY(take_share(next_share));
  }
  return {};
}

// Without it, the lanes go on.
Result<void> PreDump::take_share(const std::function<Result<void>()>& next_share) {
  const std::uint64_t began_ns = shared_.world.now_ns();
  const Result<void> taken = next_share();
  const std::uint64_t ended_ns = shared_.world.now_ns();
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
  shared_.stopped = true;
  (void)sessions_.unpause_all();  // those refused earlier, while there is a tracer
  memory_.stop();
  carrier_.drop();
  images_.roll_back();
}

void PreDump::abandon() noexcept {
  shared_.stopped = true;
  sessions_.unpause_at_exit();
  // A running lane may create one more file.
  constexpr timespec kLook{0, 10'000'000};
  for (int looks = 0; shared_.running > 0 && looks < 1000; ++looks) (void)::nanosleep(&kLook, nullptr);
  images_.roll_back_from_signal();
}

}  // namespace sluice::plugin
