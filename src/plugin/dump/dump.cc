// SPDX-License-Identifier: MIT
#include "plugin/dump/dump.h"

#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "drm/target_file.h"
#include "images/files/files.h"
#include "images/files/key.h"
#include "images/metadata.h"
#include "kfd/device.h"
#include "plugin/contents/local_machine.h"
#include "plugin/dump/contents/parent.h"
#include "plugin/dump/files/render_maps.h"
#include "settings/settings.h"

namespace sluice::plugin {

namespace {

// If no plugin takes such a file, CRIU refuses it and reports only its number.
void name_unrestorable_file(int fd, int id) {
  std::array<char, 64> link{};
  const ssize_t length =
      ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), link.data(), link.size());
  if (length < 0) return;  // unreached: no test
  const auto words = kfd::describe_unrestorable_file({link.data(), static_cast<std::size_t>(length)});
  if (words.empty()) return;
  log_line(  // unreached: no test
      Level::Warning,
      formatted("file {} is {}, which cannot be restored; the process must close it [SL-D18]", id, words));
}

std::string words_of_signal(int number) {
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
  dumper->run_.config = settings::parse_config(settings::plugin_settings(lines), lines);
  log_lines(lines);
  dumper->run_.ready = dumper->prepare();
  // Whatever is dumped: CRIU would overwrite its own images there, too.
  if (dumper->run_.ready) SLUICE_TRY(dumper->run_.look_for_parent());
  return dumper;
}

Dumper::Dumper(dev_t kfd_device, ImageStore& store)
    : run_(store), signals_(run_.shared.stopped), tree_(kfd_device, run_.topology) {
  run_.kfd_device = kfd_device;
}

Result<void> Dumper::prepare() {
  SLUICE_TRY_ASSIGN(run_.topology, local_topology());
  SLUICE_TRY_ASSIGN(run_.dump_id, random_dump_id());
  run_.store.set_keys(ImageKeys(settings::read_key(run_.config)));
  SLUICE_TRY(run_.store.keys().usable());
  SLUICE_TRY_ASSIGN(run_.shared.sums, new_sum_method(run_.store.keys()));
  return {};
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
    return Error{EINTR, words_of_signal(*signal) + ": dump cancelled; the processes keep running [SL-D19]"};
  }
  return done;
}

// All tasks of the tree are stopped from here on, so their GPU contents may flow beside CRIU's own dump.
Result<void> Dumper::begin_all() {
  if (run_.kfd_device == 0 || !run_.config.parallel || phase_ != Phase::Waiting) return {};
  itimerval left{};
  (void)::getitimer(ITIMER_REAL, &left);
  if (timerisset(&left.it_value)) {  // kernels are waited for no longer than the host would wait
    const std::chrono::seconds most(left.it_value.tv_sec);
    run_.config.waves_timeout = std::min(run_.config.waves_timeout, most);
  }
  const HeldAlarm alarm;  // stopping queues takes time, and so do jobs that still run
  return with_signals_held([this] { return begin_tree(true); });
}

// Opens all files of the tree, once: only then it is known which of them share memory. In older hosts the
// first DUMP_EXT_FILE does this. `unread`: the host is sure to have read no memory of the tree yet. In
// DUMP_EXT_FILE that is so only in the process that it dumps first, whose memory it reads after its files.
Result<void> Dumper::begin_tree(bool unread) {
  if (phase_ != Phase::Waiting) return {};
  phase_ = Phase::OneByOne;
  SLUICE_TRY(add_files());
  if (!files_.empty()) {
    SLUICE_TRY(lock_directory());
    SLUICE_TRY(note_in_inventory());
  }
  SLUICE_TRY(files_.begin_all(unread || tree_.begins_with(files_.holders())));
  SLUICE_TRY(dmabufs_.find_memory(files_));
  if (files_.empty()) return {};
  SLUICE_TRY(note_in_inventory());
  SLUICE_TRY(tree_.check_kfd_maps());
  SLUICE_TRY_ASSIGN(const std::vector<pid_t> pids, tree_.processes());
  SLUICE_TRY(check_render_maps(run_.maps, run_.topology, pids));
  SLUICE_TRY(files_.settle());
  phase_ = Phase::AllKnown;
  return run_.config.parallel && !run_.store.one_way() ? start_contents(nullptr, std::nullopt)
                                                       : Result<void>();
}

Result<void> Dumper::add_files() {
  auto taken = tree_.take_files();
  if (!taken) {  // nothing has been touched, and DUMP_EXT_FILE brings every file
    log_line(Level::Warning, formatted("processes are dumped one after another, more slowly, because their "
                                       "files are not known in advance: {} [SL-D20]",
                                       taken.error().what));
    return {};
  }
  SLUICE_TRY(dmabufs_.list(tree_));
  // No KFD ioctl has been issued yet. Whatever can refuse the dump before that belongs here.
  for (TakenFile& file : *taken) SLUICE_TRY(files_.add(std::move(file)));
  return {};
}

Result<Answer> Dumper::accept_map(const struct stat& st) {
  if (run_.kfd_device == 0 || !S_ISCHR(st.st_mode) || !tree_.is_ours(st.st_rdev)) return Answer();
  SLUICE_TRY(with_signals_held([&] { return check_map_of(st.st_rdev); }));
  return Answer(0);
}

Result<void> Dumper::check_map_of(dev_t device) {
  if (device == run_.kfd_device) {
    SLUICE_TRY(tree_.check_kfd_maps());
  } else if (phase_ < Phase::AllKnown) {
    SLUICE_TRY(tree_.check_maps_without_files());
  }
  return note_in_inventory();
}

// Once per image: CRIU does not check for duplicates, and a duplicate makes every restore fail.
Result<void> Dumper::note_in_inventory() {
  return std::exchange(in_inventory_, true) ? Result<void>() : inventory_add_self();
}

Result<Answer> Dumper::dump_file(int fd, int id) {
  if (run_.kfd_device == 0) return Answer();
  bool ours = false;
  SLUICE_TRY(with_signals_held([&]() -> Result<void> {
    SLUICE_TRY_ASSIGN(ours, dump_if_ours(fd, id));
    return {};
  }));
  return ours ? Answer(0) : Answer();
}

Result<bool> Dumper::dump_if_ours(int fd, int id) {
  SLUICE_TRY_ASSIGN(const kfd::FileClass file, kfd::classify_fd(fd, run_.kfd_device));
  if (file.kind == kfd::FileKind::Kfd || (file.kind == kfd::FileKind::RenderNode && drm::is_amdgpu(fd))) {
    SLUICE_TRY(note_in_inventory());
    SLUICE_TRY(dump_device(fd, id, file));
    return true;
  }
  if (file.kind == kfd::FileKind::DmaBuf) return dump_dmabuf(fd, id);
  if (file.kind == kfd::FileKind::Other) name_unrestorable_file(fd, id);
  return false;
}

Result<void> Dumper::dump_device(int fd, int id, kfd::FileClass device) {
  SLUICE_TRY(begin_tree(false));
  SLUICE_TRY(check_index_can_be());
  SLUICE_TRY_ASSIGN(DumpedFile * file, files_.find(fd, device.kind));
  if (file == nullptr) {
    SLUICE_TRY(check_index_is_open(id));
    SLUICE_TRY_ASSIGN(TakenFile taken, tree_.take_file(fd, device));
    SLUICE_TRY_ASSIGN(file, files_.begin_late(std::move(taken)));
  }
  return dump_as(id, *file);
}

// A descriptor of memory that a file of the tree has. False: no file of ours knows it. Memory that only
// descriptors hold is saved with the first of them.
Result<bool> Dumper::dump_dmabuf(int fd, int id) {
  SLUICE_TRY(begin_tree(false));
  struct stat st {};
  if (::fstat(fd, &st) != 0) return make_error(errno, "fstat of a dma-buf");
  SLUICE_TRY_ASSIGN(const auto image, dmabufs_.describe(fd, st.st_ino, id, tree_));
  if (!image) return false;
  SLUICE_TRY(clear_directory());  // contents may not flow yet, and an old file may have this name
  run_.images.add_metadata(dmabuf_image_name(id));
  SLUICE_TRY(run_.save(dmabuf_image_name(id), pack_dmabuf_image(*image, run_.store.keys())));
  DumpedFile* const memory = dmabufs_.memory_of(st.st_ino);
  if (memory == nullptr || memory->id()) return true;
  if (is_memory_of_dmabuf(id))
    return Error{
        // unreached: no test
        EOVERFLOW,
        formatted("CRIU's file id {} is among those of dma-bufs; dump a tree with fewer open files [SL-D21]",
                  id)};
  SLUICE_TRY(check_index_can_be());
  SLUICE_TRY(dump_as(kFirstMemoryId + id, *memory));
  return true;
}

// One way, contents begin when CRIU names their file, and flow beside those of the next ones. The hook for
// the last file, known when all are, joins all.
Result<void> Dumper::dump_as(int id, DumpedFile& file) {
  if (file.contents() != nullptr) SLUICE_TRY(start_contents(file.contents(), id));
  file.set_id(id);
  if (!run_.store.one_way() || phase_ != Phase::AllKnown) return files_.finish(file);
  const std::vector<DumpedFile*> all = files_.all();
  const bool last = std::all_of(all.begin(), all.end(), [](const DumpedFile* one) { return one->id(); });
  if (!last) return {};
  phase_ = Phase::IndexSaved;
  return finish_with_index();
}

// With a key, a stream is not restored without its index.
Result<void> Dumper::check_index_can_be() const {
  if (!run_.store.one_way() || phase_ != Phase::OneByOne || !run_.store.keys().any()) return {};
  return Error{
      EINVAL,
      "a stream with a key needs an index of the tree's files, which are not known in advance; allow criu "
      "pidfd_getfd, or dump into a directory [SL-D22]"};
}

// One way, nothing may follow the index, which was sent with the last file seen in advance.
Result<void> Dumper::check_index_is_open(int id) const {
  if (phase_ != Phase::IndexSaved) return {};
  return Error{
      EINVAL,
      formatted(
          "file {}, of a GPU, is in flight in a UNIX socket; its receiver must receive it before a dump "
          "into a stream [SL-D23]",
          id)};
}

// Starts all files whose contents do not flow yet; `wanted` and `id`: see ContentSchedule.
Result<void> Dumper::start_contents(const DumpContents* wanted, std::optional<int> id) {
  std::vector<DumpContents*> waiting;
  for (DumpedFile* file : files_.all()) {
    if (file->contents() == nullptr) continue;
    SLUICE_TRY(file->take_contents());
    if (!file->contents()->started()) waiting.push_back(file->contents());
  }
  SLUICE_TRY(clear_directory());
  return schedule_.start(std::move(waiting), wanted, id, phase_ == Phase::AllKnown);
}

// A stream has no directory.
Result<void> Dumper::lock_directory() {
  const std::optional<int> directory = run_.store.directory();
  if (directory_ || !directory) return {};
  SLUICE_TRY_ASSIGN(directory_, DirectoryLock::take(*directory));
  return {};
}

// Before anything is written, but after everything that can refuse the dump in advance.
Result<void> Dumper::clear_directory() {
  SLUICE_TRY(check_stopped(run_.shared));
  if (run_.images.directory_is_clear() || run_.store.one_way()) return {};
  SLUICE_TRY(lock_directory());
  SLUICE_TRY(files_.look_at_vram());
  return run_.images.clear_directory(run_.config);
}

// Everything that CRIU has asked for and that a stream must not contain twice: the metadata, then the index.
Result<void> Dumper::finish_with_index() {
  std::vector<std::string> metadata;
  for (DumpedFile* file : files_.all()) {
    if (!file->id()) continue;  // unreached: a guard
    SLUICE_TRY(files_.finish(*file));
    metadata.push_back(file->image_name());
  }
  if (metadata.empty()) return {};  // unreached: a guard
  SLUICE_TRY(files_.finish_all());
  SLUICE_TRY_ASSIGN(const auto maps, tree_.maps());
  return run_.store.save_index({metadata, maps, run_.dump_id});
}

// When no more files come. Streams are joined by now, unless CRIU has not asked for one of the tree's files.
Result<void> Dumper::finish_tree() {
  const Phase before = std::exchange(phase_, Phase::Finished);
  if (before >= Phase::IndexSaved) return {};
  return before == Phase::AllKnown && run_.store.one_way() ? finish_with_index() : files_.finish_all();
}

// What the images need of their parent is still there.
Result<void> Dumper::check_parent() const {
  return files_.empty() ? Result<void>() : run_.parent.check_unchanged(run_.store);
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
  const Result<void> finished = ret >= 0 ? finish_tree() : Result<void>();
  const Result<void> has_parent = ret >= 0 ? check_parent() : Result<void>();
  Result<void> unpaused = sessions_.unpause_all();
  if (run_.frozen_from_ns != 0) run_.frozen_ns = run_.shared.world.now_ns() - run_.frozen_from_ns;
  undone_ = !has_parent;
  const bool good = ret >= 0 && has_parent;
  files_.drop(good);
  if (unpaused) signals_.set_nothing_to_undo();
  if (good) {
    run_.images.commit();
    if (unpaused) run_.write_stats();
  } else {
    run_.images.roll_back();
    if (ret < 0) tree_.name_unrestorable_maps();
  }
  SLUICE_TRY(has_parent);
  SLUICE_TRY(unpaused);
  return finished;
}

void Dumper::abandon() noexcept {
  run_.shared.stopped = true;
  sessions_.unpause_at_exit();
  run_.images.roll_back_from_signal();
}

}  // namespace sluice::plugin
