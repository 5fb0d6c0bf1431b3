// SPDX-License-Identifier: MIT
#include "plugin/dump/dump.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "drm/target_file.h"
#include "images/files.h"
#include "images/key.h"
#include "images/metadata.h"
#include "kfd/device.h"
#include "plugin/contents/machine.h"
#include "plugin/dump/render_maps.h"
#include "plugin/host/image_store.h"
#include "settings/settings.h"

namespace sluice::plugin {

namespace {

// CRIU refuses such a file by its number alone, when no plugin takes it.
void name_unrestorable_file(int fd, int id) {
  std::array<char, 64> link{};
  const ssize_t length =
      ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), link.data(), link.size());
  if (length < 0) return;
  const auto words = kfd::describe_unrestorable_file({link.data(), static_cast<std::size_t>(length)});
  if (words.empty()) return;
  log_line(Level::Warning, "file " + std::to_string(id) + " is " + std::string(words) +
                               ", which cannot be brought back; the process must close it");
}

std::string words_of_signal(int number) {
  const char* const name = sigabbrev_np(number);  // none of a real-time signal
  const std::string words = name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(number);
  return number == SIGXCPU ? words + ", of the limit of CPU time (ulimit -t)," : words;
}

}  // namespace

Result<std::unique_ptr<Dumper>> Dumper::make(RunStage stage) {
  const auto kfd_device = kfd::kfd_device_number();
  std::unique_ptr<Dumper> dumper(new Dumper(stage, kfd_device ? *kfd_device : 0));
  if (!kfd_device) return dumper;  // no KFD: nothing is ours, and nothing is said
  LogLines lines;
  dumper->run_.config = parse_config(plugin_settings(lines), lines);
  log_lines(lines);
  dumper->run_.ready = dumper->prepare();
  return dumper;
}

Dumper::Dumper(RunStage stage, dev_t kfd_device)
    : stage_(stage), signals_(run_.shared.stopped), tree_(kfd_device, run_.topology) {
  run_.kfd_device = kfd_device;
}

Result<void> Dumper::prepare() {
  SLUICE_TRY_ASSIGN(run_.topology, local_topology());
  SLUICE_TRY_ASSIGN(run_.dump_id, random_dump_id());
  use_image_key(read_key(run_.config));
  return image_key_is_usable();
}

Dumper::~Dumper() {
  sessions_.unpause_at_exit();  // before contents that still flow are waited for
}

// What CRIU waits for. A signal that would end it meanwhile ends the dump.
template <class Step>
Result<void> Dumper::with_signals_held(const Step& step) {
  Result<void> done;
  {
    const HeldSignals::InHook hook(signals_);
    done = step();
  }
  if (const auto signal = signals_.caught()) {
    return Error{EINTR, words_of_signal(*signal) +
                            " has come: the dump ends here and is undone, and the processes run on"};
  }
  return done;
}

// All tasks of the tree stand still from here on: what they have in the GPUs may flow, beside CRIU's own
// dump.
Result<void> Dumper::begin_all() {
  const bool may_begin = stage_ == kStageDump && run_.config.parallel && phase_ == Phase::Waiting;
  if (run_.kfd_device == 0 || !may_begin) return {};
  const HeldAlarm alarm;  // queues that are being stopped and jobs that go on take their time
  return with_signals_held([this] { return begin_tree(); });
}

// All open files of the tree, once: only then is it known which of them have the same memory. In an older
// host the first DUMP_EXT_FILE is where this happens.
Result<void> Dumper::begin_tree() {
  if (phase_ != Phase::Waiting) return {};
  phase_ = Phase::OneByOne;
  SLUICE_TRY(add_files());
  if (!files_.empty()) SLUICE_TRY(note_in_inventory());
  SLUICE_TRY(files_.begin_all());
  SLUICE_TRY(dmabufs_.find_memory(files_));
  if (files_.empty()) return {};
  SLUICE_TRY(note_in_inventory());
  SLUICE_TRY(tree_.check_kfd_maps());
  SLUICE_TRY_ASSIGN(const std::vector<pid_t> pids, tree_.processes());
  SLUICE_TRY(check_render_maps(run_.maps, run_.topology, pids));
  SLUICE_TRY(run_.shared_bos.settle());
  SLUICE_TRY(files_.settle());
  phase_ = Phase::AllKnown;
  return run_.config.parallel && !streaming() ? start_contents(nullptr, std::nullopt) : Result<void>();
}

Result<void> Dumper::add_files() {
  auto taken = tree_.take_files();
  if (!taken) {  // nothing has been touched, and DUMP_EXT_FILE brings every file
    log_line(Level::Warning, "processes are dumped one after another: " + taken.error().what);
    return {};
  }
  SLUICE_TRY(dmabufs_.list(tree_));
  // The KFD has been asked nothing yet. What can refuse the dump before it is belongs here.
  for (TakenFile& file : *taken) SLUICE_TRY(files_.add(std::move(file)));
  return {};
}

Result<Answer> Dumper::accept_map(const struct stat& st) {
  if (run_.kfd_device == 0 || !S_ISCHR(st.st_mode) || !tree_.is_ours(st.st_rdev)) return Answer();
  if (stage_ == kStageDump) SLUICE_TRY(with_signals_held([&] { return check_map_of(st.st_rdev); }));
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

// Once per image: CRIU does not look for doubles, and a double makes every restore fail.
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
  SLUICE_TRY(begin_tree());
  SLUICE_TRY(check_index_can_be());
  SLUICE_TRY_ASSIGN(DumpedFile * file, files_.find(fd, device.kind));
  if (file == nullptr) {
    SLUICE_TRY(check_index_is_open(id));
    SLUICE_TRY_ASSIGN(TakenFile taken, tree_.take_file(fd, device));
    SLUICE_TRY_ASSIGN(file, files_.begin_late(std::move(taken)));
  }
  return dump_as(id, *file);
}

// A descriptor of memory that a file of the tree has. False: nothing of ours knows it. What descriptors alone
// have goes with the first of them.
Result<bool> Dumper::dump_dmabuf(int fd, int id) {
  SLUICE_TRY(begin_tree());
  struct stat st {};
  if (::fstat(fd, &st) != 0) return make_error(errno, "fstat of a dma-buf");
  SLUICE_TRY_ASSIGN(const auto image, dmabufs_.describe(fd, st.st_ino, id, tree_));
  if (!image) return false;
  SLUICE_TRY(clear_directory());  // nothing may have begun to flow yet, and the name be an old file's
  run_.images.add_metadata(dmabuf_image_name(id));
  SLUICE_TRY(run_.save(dmabuf_image_name(id), pack_dmabuf_image(*image)));
  DumpedFile* const memory = dmabufs_.memory_of(st.st_ino);
  if (memory == nullptr || memory->id()) return true;
  if (is_memory_of_dmabuf(id)) return Error{EOVERFLOW, "CRIU's file ids have come to " + std::to_string(id)};
  SLUICE_TRY(check_index_can_be());
  SLUICE_TRY(dump_as(kFirstMemoryId + id, *memory));
  return true;
}

// Contents of streams begin when CRIU says what a file is called, and flow beside those of the next ones: the
// hook for the last file, which is known where all are, joins all.
Result<void> Dumper::dump_as(int id, DumpedFile& file) {
  if (file.contents() != nullptr) SLUICE_TRY(start_contents(file.contents(), id));
  file.set_id(id);
  if (!streaming() || phase_ != Phase::AllKnown) return files_.finish(file);
  const std::vector<DumpedFile*> all = files_.all();
  const bool last = std::all_of(all.begin(), all.end(), [](const DumpedFile* one) { return one->id(); });
  if (!last) return {};
  phase_ = Phase::IndexSaved;
  return finish_streams();
}

// With a key nobody restores a stream without it.
Result<void> Dumper::check_index_can_be() const {
  if (!streaming() || phase_ != Phase::OneByOne || !has_image_key()) return {};
  return Error{
      EINVAL,
      "a stream that is made with a key has an index, which tells of all files of the tree: they cannot "
      "be seen in advance (pidfd_getfd)"};
}

// Of a stream: nothing comes behind its index, which went out with the last file that was seen in advance.
Result<void> Dumper::check_index_is_open(int id) const {
  if (phase_ != Phase::IndexSaved) return {};
  return Error{EINVAL, "file " + std::to_string(id) +
                           ", of a GPU, is no process' own, but on its way through a socket: a stream cannot "
                           "take it any more; whoever it was sent to must receive it before"};
}

// Of all files whose contents do not flow yet; `wanted` and `id` as ContentSchedule wants them.
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

// Before anything is written, and not before all that could refuse the dump in advance has not.
Result<void> Dumper::clear_directory() {
  SLUICE_TRY(check_stopped(run_.shared));
  if (run_.images.directory_is_clear() || streaming()) return {};
  SLUICE_TRY(files_.look_at_vram());
  return run_.images.clear_directory(run_.config);
}

// All that CRIU has asked for, and what stands in no stream twice: the metadata, and last of all the index.
Result<void> Dumper::finish_streams() {
  std::vector<std::string> metadata;
  for (DumpedFile* file : files_.all()) {
    if (!file->id()) continue;
    SLUICE_TRY(files_.finish(*file));
    metadata.push_back(file->image_name());
  }
  if (metadata.empty()) return {};
  SLUICE_TRY(files_.finish_all());
  SLUICE_TRY_ASSIGN(const auto maps, tree_.maps());
  return save_index({metadata, maps, run_.dump_id});
}

// When no file comes any more. Streams are joined by now, unless CRIU has not asked for a file that the tree
// has.
Result<void> Dumper::finish_tree() {
  const Phase before = std::exchange(phase_, Phase::Finished);
  if (before >= Phase::IndexSaved) return {};
  return before == Phase::AllKnown && streaming() ? finish_streams() : files_.finish_all();
}

Result<void> Dumper::finish_late() {
  return with_signals_held([this] { return finish_tree(); });
}

// Contents that still flow are in no image, so nobody waits for them before the queues run: a disk may hang.
Result<void> Dumper::finish(int ret) {
  if (ret >= 0) signals_.set_too_late();
  const HeldSignals::InHook hook(signals_);
  Result<void> finished = ret >= 0 ? finish_tree() : Result<void>();
  Result<void> unpaused = sessions_.unpause_all();
  files_.drop(ret >= 0);
  if (unpaused) signals_.set_nothing_to_undo();
  if (ret >= 0) {
    run_.images.commit();
  } else {
    run_.images.roll_back();
    tree_.name_unrestorable_maps();
  }
  SLUICE_TRY(unpaused);
  return finished;
}

void Dumper::abandon() noexcept {
  run_.shared.stopped = true;
  sessions_.unpause_at_exit();
  run_.images.roll_back_from_signal();
}

}  // namespace sluice::plugin
