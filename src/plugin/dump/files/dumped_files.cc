// SPDX-License-Identifier: MIT
#include "plugin/dump/files/dumped_files.h"

#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/format.h"
#include "drm/target_file.h"
#include "plugin/dump/files/queue_losses.h"
#include "plugin/dump/files/render_maps.h"
#include "plugin/host/criu_host.h"
#include "proc/processes.h"

namespace sluice::plugin {

namespace {

// Once per file: it may have contexts and the like, which are lost.
void warn_of_contexts(int fd, const std::string& name) {
  std::string engines;
  for (const std::string& engine : drm::engines_used(fd)) engines += (engines.empty() ? "" : ", ") + engine;
  if (engines.empty()) return;
  log_line(
      Level::Warning,
      formatted("{} has submitted work of its own ({}), but its contexts, syncobjs, BO lists and user queues "
                "are not saved; a restored process that still uses them gets errors [SL-D29]",
                name, engines));
}

template <class Files>
Result<DumpedFile*> find_among(const Files& files, int fd) {
  const pid_t self = getpid();
  for (const auto& file : files) {
    if (file->id()) continue;
    SLUICE_TRY_ASSIGN(const bool same, proc::same_open_file({self, fd}, {self, file->fd()}));
    if (same) return static_cast<DumpedFile*>(file.get());
  }
  return static_cast<DumpedFile*>(nullptr);
}

}  // namespace

std::vector<DumpedFile*> DumpedFiles::all() const {
  std::vector<DumpedFile*> files;
  for (const auto& file : kfd_) files.push_back(file.get());
  for (const auto& file : render_) files.push_back(file.get());
  return files;
}

std::set<pid_t> DumpedFiles::holders() const {
  std::set<pid_t> holders;
  for (const DumpedFile* file : all()) holders.insert(file->holders().begin(), file->holders().end());
  return holders;
}

Result<DumpedFile*> DumpedFiles::find(int fd, kfd::FileKind kind) const {
  return kind == kfd::FileKind::Kfd ? find_among(kfd_, fd) : find_among(render_, fd);
}

Result<void> DumpedFiles::add(TakenFile taken) {
  return taken.device.kind == kfd::FileKind::Kfd ? add_kfd(std::move(taken)) : add_render(std::move(taken));
}

Result<void> DumpedFiles::add_kfd(TakenFile taken) {
  SLUICE_TRY_ASSIGN(std::unique_ptr<KfdFile> file,
                    KfdFile::open(std::move(taken.own), std::move(taken.holders), kfd_, sessions_, run_));
  kfd_.push_back(std::move(file));
  return {};
}

Result<void> DumpedFiles::add_render(TakenFile taken) {
  SLUICE_TRY(run_.ready);
  const std::uint32_t minor = taken.device.render_minor;
  const kfd::Node* node = run_.topology.find_render_minor(minor);
  if (node == nullptr)  // unreached: no test
    return Error{
        ENODEV,
        formatted("renderD{} belongs to no GPU of the topology in sysfs; give criu the host's /sys [SL-D30]",
                  minor)};
  SLUICE_TRY_ASSIGN(std::unique_ptr<RenderDump> dump,
                    RenderDump::list(std::move(taken.own), std::move(taken.holders), *node, run_));
  if (!dump->lists_bos() && !std::exchange(unlisted_said_, true)) {
    log_line(Level::Info,
             "this kernel does not list the BOs of render nodes, so BOs allocated there are not saved; a BO "
             "that the CPU "
             "maps makes the dump fail");
  }
  if (!run_.is_again) warn_of_contexts(dump->fd(), dump->name());
  render_.push_back(std::move(dump));
  return render_.back()->look_at_vram();
}

Result<void> DumpedFiles::begin_all(bool unread) {
  for (const auto& file : kfd_) {
    SLUICE_TRY(check_stopped(run_.shared));
    SLUICE_TRY(file->begin());
  }
  SLUICE_TRY(settle_losses(kfd_, unread, sessions_, run_));
  for (const auto& file : kfd_) SLUICE_TRY(file->list());
  for (const auto& file : render_) {
    SLUICE_TRY(check_stopped(run_.shared));
    SLUICE_TRY(file->begin());
  }
  return {};
}

Result<DumpedFile*> DumpedFiles::add_memory(std::unique_ptr<RenderDump> memory) {
  SLUICE_TRY(memory->begin());
  render_.push_back(std::move(memory));
  return static_cast<DumpedFile*>(render_.back().get());
}

Result<void> DumpedFiles::settle() {
  SLUICE_TRY(run_.shared_bos.settle());
  for (DumpedFile* file : all()) file->take_shares();
  for (const auto& file : kfd_) SLUICE_TRY(tell_of(*file));
  return {};
}

// Tells the known render files and, where files come one by one, later ones.
Result<void> DumpedFiles::tell_of(const KfdFile& file) {
  for (const ProcessGpu& gpu : file.gpus()) {
    for (const auto& render : render_) SLUICE_TRY(render->settle(gpu, file.holders()));
    gpus_.push_back({gpu, file.holders()});
  }
  return {};
}

Result<DumpedFile*> DumpedFiles::begin_late(TakenFile taken) {
  const bool is_kfd = taken.device.kind == kfd::FileKind::Kfd;
  SLUICE_TRY(add(std::move(taken)));
  return is_kfd ? begin_late_kfd() : begin_late_render();
}

Result<DumpedFile*> DumpedFiles::begin_late_kfd() {
  KfdFile& file = *kfd_.back();
  SLUICE_TRY(file.begin());
  SLUICE_TRY(check_losses(file, false, run_));
  SLUICE_TRY(file.list());
  SLUICE_TRY(check_render_maps(run_.maps, run_.topology, file.holders()));
  SLUICE_TRY(run_.shared_bos.settle());
  file.take_shares();
  SLUICE_TRY(tell_of(file));
  return static_cast<DumpedFile*>(&file);
}

Result<DumpedFile*> DumpedFiles::begin_late_render() {
  RenderDump& file = *render_.back();
  if (file.has_bos()) {  // unknown what runs meanwhile, and which other files share them
    return Error{EINVAL, file.name() +
                             " has BOs of its own, and the tree's files are not known in advance; allow criu "
                             "pidfd_getfd [SL-D31]"};
  }
  SLUICE_TRY(file.begin());
  for (const auto& [gpu, kfd_holders] : gpus_) SLUICE_TRY(file.settle(gpu, kfd_holders));
  if (!file.any_kfd()) SLUICE_TRY(check_render_maps({}, run_.topology, file.holders()));
  return static_cast<DumpedFile*>(&file);
}

Result<void> DumpedFiles::look_at_vram() const {
  for (const auto& file : render_) SLUICE_TRY(file->look_at_vram());
  return {};
}

Result<void> DumpedFiles::finish(DumpedFile& file) {
  if (file.finished()) return {};  // unreached: a guard
  SLUICE_TRY(file.finish());
  const std::vector<DumpedFile*> known = all();
  if (std::all_of(known.begin(), known.end(), [](const DumpedFile* one) { return one->id(); }))
    SLUICE_TRY(run_.parent.check_unchanged(run_.store));
  if (!awaits_kfd(file)) SLUICE_TRY(file.write());
  const bool is_kfd =
      std::any_of(kfd_.begin(), kfd_.end(), [&](const auto& one) { return one.get() == &file; });
  for (const auto& render : render_) {
    if (is_kfd && render->finished() && !awaits_kfd(*render)) SLUICE_TRY(render->write());
  }
  return {};
}

// Whether a process that holds the file has a /dev/kfd that is not in the images yet.
bool DumpedFiles::awaits_kfd(const DumpedFile& file) const {
  return std::any_of(kfd_.begin(), kfd_.end(), [&](const auto& kfd) {
    return !kfd->finished() && !kfd->is_alias() && share_any(file.holders(), kfd->holders());
  });
}

Result<void> DumpedFiles::finish_all() {
  for (const auto& render : render_) {
    if (render->finished()) SLUICE_TRY(render->write());
  }
  return run_.shared_bos.check_saved();
}

void DumpedFiles::drop(bool say) {
  for (DumpedFile* file : all()) {
    if (say && file->contents() != nullptr && !file->id()) file->warn_of_loss();
  }
  kfd_.clear();
  render_.clear();
}

}  // namespace sluice::plugin
