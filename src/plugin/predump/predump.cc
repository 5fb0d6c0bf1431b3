// SPDX-License-Identifier: MIT
#include "plugin/predump/predump.h"

#include <time.h>

#include <memory>
#include <string>
#include <utility>

#include "base/caught.h"
#include "base/format.h"
#include "base/units.h"
#include "images/files.h"
#include "images/key.h"
#include "plugin/contents/local_machine.h"
#include "plugin/host/criu_host.h"

namespace sluice::plugin {

PreDump::PreDump(ImageStore& store, dev_t kfd_device) : run_(store), tree_(kfd_device, run_.topology) {
  run_.kfd_device = kfd_device;
  run_.is_predump = true;
}

PreDump::~PreDump() {
  sessions_.unpause_at_exit();
  if (!finished_) cancel();
}

Result<void> PreDump::read_machine() {
  SLUICE_TRY_ASSIGN(run_.topology, local_topology());
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
  return run_.look_for_parent();
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
  return start();
}

Result<void> PreDump::start() {
  std::vector<DumpContents*> waiting;
  for (DumpedFile* file : files_.all()) {
    file->take_shares();
    if (file->contents() == nullptr) continue;
    SLUICE_TRY(file->take_contents());
    for (LaneContents& lane : file->contents()->waiting()) keep(lane);
    waiting.push_back(file->contents());
  }
  SLUICE_TRY(check_stopped(run_.shared));
  SLUICE_TRY(vram_.start());
  SLUICE_TRY(run_.images.clear_directory(run_.config));
  return schedule_.start(std::move(waiting), nullptr, std::nullopt, true);
}

void PreDump::keep(LaneContents& lane) {
  lane.pages.predump = true;
  std::vector<UniqueFd> dmabufs(lane.dmabufs.size());
  std::swap(dmabufs, lane.dmabufs);
  auto keeper = std::make_shared<BoKeeper>(std::move(dmabufs), lane.render_minor);
  vram_.add(keeper);
  lane.giver = std::move(keeper);
}

Result<void> PreDump::finish() {
  Result<void> written = write_all();
  vram_.stop();
  if (!written) {
    cancel();
    return written;
  }
  run_.images.commit();
  run_.write_stats();
  finished_ = true;
  log_line(Level::Info, "the pre-dump has " + std::to_string(run_.totals.bytes / kMiB) +
                            " MiB of GPUs, of which " + std::to_string(run_.totals.io_bytes / kMiB) +
                            " MiB were written; GPU queues stood still for " +
                            std::to_string(frozen_ns() / 1000) + " us of it");
  say_what_was_left_out();
  return {};
}

Result<void> PreDump::write_all() {
  PreDumpMark mark{{}, frozen_ns(), run_.dump_id};
  int number = 0;
  for (DumpedFile* file : files_.all()) {
    DumpContents* const contents = file->contents();
    if (contents == nullptr) continue;  // another file's KFD process
    if (!contents->started()) SLUICE_TRY(schedule_.start({contents}, contents, std::nullopt, true));
    file->set_id(number++);
    SLUICE_TRY(files_.finish(*file));
    mark.images.push_back(file->image_name());
  }
  SLUICE_TRY(check_stopped(run_.shared));
  if (mark.images.empty()) return {};  // unreached: a guard
  run_.images.add_metadata(kPreDumpMark);
  return run_.save(kPreDumpMark, pack_predump_mark(mark, run_.store.keys()));
}

void PreDump::say_what_was_left_out() const {
  const BoKeeper::Counts counts = vram_.counts();
  if (counts.freed > 0) {
    log_line(Level::Info, std::to_string(counts.freed) +
                              " BOs were freed before they were copied: the dump has not to write them");
  }
  if (counts.given_up == 0) return;
  log_line(Level::Warning, formatted("{} BOs were not copied, because VRAM was nearly full or they could not "
                                     "be read; the next dump writes them [SL-D65]",
                                     counts.given_up));
}

void PreDump::cancel() {
  run_.shared.stopped = true;
  (void)sessions_.unpause_all();  // those refused earlier, while there is a tracer
  vram_.stop();
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
