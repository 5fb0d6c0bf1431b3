// SPDX-License-Identifier: MIT
#include "plugin/dump/dumper.h"

#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "drm/target_file.h"
#include "images/files/files.h"
#include "kfd/device.h"
#include "plugin/contents/local_machine.h"
#include "plugin/dump/plan/dump_plan.h"
#include "plugin/dump/plan/replicas.h"
#include "plugin/dump/survey/survey.h"
#include "settings/settings.h"

namespace sluice::plugin {

namespace {

// If no plugin takes such a file, CRIU refuses it and reports only its number.
void name_unrestorable_file(int fd, int id) {
  std::array<char, 64> link{};
  const ssize_t length =
      ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), link.data(), link.size());
  const auto words =
      kfd::describe_unrestorable_file({link.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0))});
  if (words.empty()) return;
  log_line(  // unreached: no test
      Level::Warning,
      formatted("file {} is {}, which cannot be restored; the process must close it [SL-D18]", id, words));
}

std::set<pid_t> holders_of(const std::vector<TakenFile>& files) {
  std::set<pid_t> holders;
  for (const TakenFile& file : files) holders.insert(file.holders.begin(), file.holders.end());
  return holders;
}

std::string describe_signal(int number) {
  const char* const name = sigabbrev_np(number);  // null for a real-time signal
  const std::string words = name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(number);
  return number == SIGXCPU ? words + ", from the limit of CPU time (ulimit -t)" : words;
}

}  // namespace

Result<std::unique_ptr<Dumper>> Dumper::make(ImageStore& store) {
  const auto kfd_device = kfd::kfd_device_number();
  std::unique_ptr<Dumper> dumper(new Dumper(kfd_device ? *kfd_device : 0, store));
  if (!kfd_device) return dumper;  // no KFD: no file is ours, and nothing is logged
  LogLines lines;
  dumper->basis_.config = settings::parse_config(settings::plugin_settings(lines), lines);
  log_lines(lines);
  dumper->ready_ = dumper->prepare();
  // Whatever is dumped: CRIU would overwrite its own images there, too.
  if (dumper->ready_) SLUICE_TRY(dumper->basis_.look_for_parent());
  return dumper;
}

Dumper::Dumper(dev_t kfd_device, ImageStore& store)
    : basis_(store, kfd_device, {}),
      shared_(vram_, store),
      signals_(shared_.stopped),
      tree_(kfd_device, basis_.topology),
      images_(store),
      carrier_(basis_, shared_, images_) {}

Result<void> Dumper::prepare() {
  SLUICE_TRY_ASSIGN(basis_.topology, local_topology());
  return basis_.prepare();
}

Dumper::~Dumper() {
  sessions_.unpause_at_exit();  // before waiting for contents that still flow
}

// A step that CRIU waits for. A signal that would end CRIU meanwhile ends the dump.
template <class Step>
Result<void> Dumper::with_signals_held(const Step& step) {
  Result<void> done;
  {
    const HeldSignals::InHook hook(signals_);
    done = step();
  }
  if (const auto signal = signals_.caught()) {
    return Error{EINTR, describe_signal(*signal) + ": dump cancelled; the processes keep running [SL-D19]"};
  }
  return done;
}

// All tasks of the tree are stopped from here on, so their GPU contents may flow during CRIU's own dump.
Result<void> Dumper::begin_all() {
  if (basis_.kfd_device == 0 || !basis_.config.parallel || begun_) return {};
  KernelWait wait{.unread = true, .most = basis_.config.waves_timeout};
  itimerval left{};
  (void)::getitimer(ITIMER_REAL, &left);
  // Kernels are waited for no longer than the host would wait.
  if (timerisset(&left.it_value)) wait.most = std::min(wait.most, std::chrono::seconds(left.it_value.tv_sec));
  const HeldAlarm alarm;  // stopping queues takes time, and so do jobs that still run
  return with_signals_held([&] { return begin_tree(wait); });
}

// Takes all files of the tree, once: only then it is known which of them share memory. In older hosts the
// first DUMP_EXT_FILE does this.
Result<void> Dumper::begin_tree(KernelWait wait) {
  if (std::exchange(begun_, true)) return {};
  auto open = tree_.take();
  if (!open) {  // nothing has been touched, and the tree may have no file of a GPU
    known_ = Error{open.error().err, formatted("the files of the tree cannot be taken: {}; allow criu "
                                               "pidfd_getfd and kcmp [SL-D20]",
                                               open.error().what)};
    return {};
  }
  if (open->files.empty() && !ready_) return {};
  SLUICE_TRY(ready_);
  return plan_and_start(std::move(*open), wait);
}

Result<void> Dumper::plan_and_start(TreeFiles open, KernelWait wait) {
  if (!open.files.empty()) {
    SLUICE_TRY(lock_directory());
    SLUICE_TRY(note_in_inventory());
  }
  // In DUMP_EXT_FILE the host has read no memory only if it dumps this process first, files before memory.
  wait.unread = wait.unread || tree_.begins_with(holders_of(open.files));
  SLUICE_TRY_ASSIGN(Survey survey, survey_tree(std::move(open), tree_, basis_, wait, {sessions_, shared_}));
  stopped_from_ns_ = survey.stopped_from_ns;
  const bool any = !survey.files.empty();
  if (any) {
    SLUICE_TRY(note_in_inventory());
    SLUICE_TRY(tree_.check_kfd_maps());
  }
  SLUICE_TRY_ASSIGN(DumpPlan plan, plan_dump(std::move(survey), basis_.policy));
  if (basis_.shares_replicas) plan_replicas(plan.lanes);
  carrier_.load(plan.files, std::exchange(plan.lanes, {}));
  commit_.emplace(basis_, carrier_, images_, std::move(plan));
  if (!any || !basis_.config.parallel || basis_.store.one_way()) return {};
  SLUICE_TRY(clear_directory());
  return carrier_.start(std::nullopt);
}

Result<Answer> Dumper::accept_map(const struct stat& st) {
  if (basis_.kfd_device == 0 || !S_ISCHR(st.st_mode) || !tree_.is_ours(st.st_rdev)) return Answer();
  SLUICE_TRY(with_signals_held([&] { return check_map_of(st.st_rdev); }));
  return Answer(0);
}

Result<void> Dumper::check_map_of(dev_t device) {
  if (device == basis_.kfd_device) {
    SLUICE_TRY(tree_.check_kfd_maps());
  } else if (!has_files()) {
    SLUICE_TRY(tree_.check_maps_without_files());
  }
  return note_in_inventory();
}

// Once per image: CRIU does not check for duplicates, and a duplicate makes every restore fail.
Result<void> Dumper::note_in_inventory() {
  return std::exchange(in_inventory_, true) ? Result<void>() : inventory_add_self();
}

Result<Answer> Dumper::dump_file(int fd, int id) {
  if (basis_.kfd_device == 0) return Answer();
  bool ours = false;
  SLUICE_TRY(with_signals_held([&]() -> Result<void> {
    SLUICE_TRY_ASSIGN(ours, dump_if_ours(fd, id));
    return {};
  }));
  return ours ? Answer(0) : Answer();
}

Result<bool> Dumper::dump_if_ours(int fd, int id) {
  SLUICE_TRY_ASSIGN(const kfd::FileClass file, kfd::classify_fd(fd, basis_.kfd_device));
  const bool is_kfd = file.kind == kfd::FileKind::Kfd;
  if (is_kfd || (file.kind == kfd::FileKind::RenderNode && drm::is_amdgpu(fd))) {
    SLUICE_TRY(note_in_inventory());
    SLUICE_TRY(dump_device(fd, id, is_kfd));
    return true;
  }
  if (file.kind == kfd::FileKind::DmaBuf) return dump_dmabuf(fd, id);
  if (file.kind == kfd::FileKind::Other) name_unrestorable_file(fd, id);
  return false;
}

Result<void> Dumper::dump_device(int fd, int id, bool is_kfd) {
  SLUICE_TRY(begin_tree({.most = basis_.config.waves_timeout}));
  SLUICE_TRY(known_);
  SLUICE_TRY(ready_);
  std::optional<std::size_t> file;
  if (commit_) {
    SLUICE_TRY_ASSIGN(file, commit_->find(fd, is_kfd));
  }
  if (!file) {
    return Error{EINVAL, formatted("file {}, of a GPU, is in flight in a UNIX socket; its receiver must "
                                   "receive it before the dump [SL-D23]",
                                   id)};
  }
  return dump_as(id, *file);
}

// A descriptor of memory that a file of the tree has. False: no file of ours knows it. Memory that only
// descriptors hold is saved with the first of them.
Result<bool> Dumper::dump_dmabuf(int fd, int id) {
  SLUICE_TRY(begin_tree({.most = basis_.config.waves_timeout}));
  if (!commit_) return false;
  SLUICE_TRY_ASSIGN(const ino_t inode, kfd::inode_of_dmabuf(fd));
  SLUICE_TRY_ASSIGN(const SharedMemory* const memory, commit_->memory_of_dmabuf(fd, inode, id));
  if (memory == nullptr) return false;
  SLUICE_TRY_ASSIGN(const std::vector<pid_t> holders, tree_.holders_of_dmabuf(fd, inode));
  SLUICE_TRY(clear_directory());  // contents may not flow yet, and an old file may have the image's name
  SLUICE_TRY(commit_->save_dmabuf(*memory, id, holders));
  const auto orphan = commit_->plan().orphans.find(inode);
  if (orphan == commit_->plan().orphans.end() || commit_->is_named(orphan->second)) return true;
  if (is_memory_of_dmabuf(id))
    return Error{
        // unreached: no test
        EOVERFLOW,
        formatted("CRIU's file id {} is among those of dma-bufs; dump a tree with fewer open files [SL-D21]",
                  id)};
  SLUICE_TRY(dump_as(kFirstMemoryId + id, orphan->second));
  return true;
}

// One way, contents begin when CRIU names their file, and flow together with those of the next ones. The hook
// for the last file joins all.
Result<void> Dumper::dump_as(int id, std::size_t file) {
  if (!commit_->plan().files[file].is_alias()) {
    SLUICE_TRY(clear_directory());
    SLUICE_TRY(carrier_.start(file, id));
  }
  commit_->name(file, id);
  if (!basis_.store.one_way()) return commit_->finish(file);
  return commit_->all_named() ? finish_tree() : Result<void>();
}

// A stream has no directory.
Result<void> Dumper::lock_directory() {
  const std::optional<int> directory = basis_.store.directory();
  if (directory_ || !directory) return {};
  SLUICE_TRY_ASSIGN(directory_, DirectoryLock::take(*directory));
  return {};
}

// Before anything is written, but after everything that can refuse the dump in advance.
Result<void> Dumper::clear_directory() {
  SLUICE_TRY(check_stopped(shared_));
  if (images_.directory_is_clear() || basis_.store.one_way()) return {};
  SLUICE_TRY(lock_directory());
  SLUICE_TRY(commit_->look_at_vram(vram_));
  return images_.clear_directory(basis_.config);
}

// When no more files come. Streams are joined by now, unless CRIU has not asked for one of the tree's files.
Result<void> Dumper::finish_tree() {
  if (std::exchange(ended_, true) || !commit_) return {};
  if (!basis_.store.one_way()) return commit_->check_saved();
  SLUICE_TRY_ASSIGN(auto maps, tree_.maps());
  return commit_->finish_with_index(std::move(maps));
}

// What the images need of their parent is still there.
Result<void> Dumper::check_parent() const {
  return has_files() ? basis_.parent.check_unchanged(basis_.store) : Result<void>();
}

// The last moment in which an error keeps the job alive.
Result<void> Dumper::finish_late() {
  return with_signals_held([this]() -> Result<void> {
    SLUICE_TRY(finish_tree());
    return check_parent();
  });
}

// Contents that still flow are in no image, so the queues do not wait for them: a disk may hang.
Result<void> Dumper::finish(int ret) {
  if (ret >= 0) signals_.set_too_late();
  const HeldSignals::InHook hook(signals_);
  Result<void> finished = ret >= 0 ? finish_tree() : Result<void>();
  const Result<void> has_parent = ret >= 0 ? check_parent() : Result<void>();
  Result<void> unpaused = sessions_.unpause_all();
  const std::uint64_t frozen_ns = stopped_from_ns_ != 0 ? shared_.world.now_ns() - stopped_from_ns_ : 0;
  undone_ = !has_parent;
  const bool good = ret >= 0 && has_parent;
  if (good && commit_) commit_->warn_of_losses();
  carrier_.drop();
  if (unpaused) signals_.set_nothing_to_undo();
  if (good) {
    images_.remove_old_pages();
    if (unpaused) carrier_.write_stats(frozen_ns);
  } else {
    images_.roll_back();
    if (ret < 0) tree_.name_unrestorable_maps();
  }
  SLUICE_TRY(has_parent);
  SLUICE_TRY(unpaused);
  return finished;
}

void Dumper::abandon() noexcept {
  shared_.stopped = true;
  sessions_.unpause_at_exit();
  images_.roll_back_from_signal();
}

}  // namespace sluice::plugin
