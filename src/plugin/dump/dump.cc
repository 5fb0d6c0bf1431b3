// SPDX-License-Identifier: MIT
#include "plugin/dump/dump.h"

#include <fcntl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>

#include "drm/target_file.h"
#include "images/files.h"
#include "images/key.h"
#include "images/kfd_image.h"
#include "images/metadata.h"
#include "kfd/device.h"
#include "kfd/not_saved.h"
#include "kfd/uapi.h"
#include "plugin/contents/machine.h"
#include "plugin/dump/dmabuf_memory.h"
#include "plugin/dump/render_maps.h"
#include "plugin/host/image_store.h"
#include "proc/mapped_files.h"
#include "proc/processes.h"
#include "settings/settings.h"

namespace sluice::plugin {

namespace {

bool share_any(const std::vector<pid_t>& left, const std::vector<pid_t>& right) {
  return std::find_first_of(left.begin(), left.end(), right.begin(), right.end()) != left.end();
}

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

// Once for each file: that it may have contexts and the like, and that these are lost.
void warn_of_contexts(int fd, const std::string& name) {
  std::string engines;
  for (const std::string& engine : drm::engines_used(fd)) engines += (engines.empty() ? "" : ", ") + engine;
  if (engines.empty()) return;
  log_line(Level::Warning, name + " has submitted work of its own (" + engines +
                               "): its contexts, syncobjs, BO lists and user queues are not saved; a "
                               "restored process that goes on using them gets errors");
}

// The kernel's checkpoint would leave these out and say nothing.
Result<void> check_saved_wholly(const kfd::KfdDevice& own, const std::vector<pid_t>& holders) {
  for (const pid_t pid : holders) {
    const std::string who = "process " + std::to_string(pid);
    SLUICE_TRY_ASSIGN(const bool contexts, kfd::has_secondary_contexts(pid));
    if (contexts) {
      return Error{EINVAL, who +
                               " has secondary KFD contexts (CREATE_PROCESS), which the kernel does not "
                               "checkpoint; it must close them"};
    }
    SLUICE_TRY_ASSIGN(const bool debugged, kfd::is_debugged(own, pid));
    if (debugged) {
      return Error{EINVAL, who +
                               " is debugged through the KFD (DBG_TRAP), and the kernel does not checkpoint "
                               "the state of that; detach the debugger"};
    }
  }
  return {};
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
  dumper->prepared_ = dumper->prepare();
  return dumper;
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

Result<Answer> Dumper::accept_map(const struct stat& st) {
  if (kfd_device_ == 0) return Answer();
  if (!S_ISCHR(st.st_mode) || !tree_.is_ours(st.st_rdev)) return Answer();
  if (stage_ == kStageDump) SLUICE_TRY(with_signals_held([&] { return check_map_of(st.st_rdev); }));
  return Answer(0);
}

Result<void> Dumper::check_map_of(dev_t device) {
  if (device == kfd_device_) {
    SLUICE_TRY(tree_.check_kfd_maps());
  } else if (!tree_known_) {
    SLUICE_TRY(tree_.check_maps_without_files());
  }
  return note_in_inventory();
}

// Once per image: CRIU does not look for doubles, and a double makes every restore fail.
Result<void> Dumper::note_in_inventory() {
  if (std::exchange(in_inventory_, true)) return {};
  return inventory_add_self();
}

Result<Answer> Dumper::dump_file(int fd, int id) {
  if (kfd_device_ == 0) return Answer();
  bool ours = false;
  SLUICE_TRY(with_signals_held([&]() -> Result<void> {
    SLUICE_TRY_ASSIGN(ours, dump_if_ours(fd, id));
    return {};
  }));
  return ours ? Answer(0) : Answer();
}

Result<bool> Dumper::dump_if_ours(int fd, int id) {
  SLUICE_TRY_ASSIGN(const kfd::FileClass file, kfd::classify_fd(fd, kfd_device_));
  if (file.kind == kfd::FileKind::Kfd) {
    SLUICE_TRY(note_in_inventory());
    SLUICE_TRY(dump_kfd(fd, id));
    return true;
  }
  if (file.kind == kfd::FileKind::RenderNode && drm::is_amdgpu(fd)) {
    SLUICE_TRY(note_in_inventory());
    SLUICE_TRY(dump_render(fd, id, file.render_minor));
    return true;
  }
  if (file.kind == kfd::FileKind::DmaBuf) return dump_dmabuf(fd, id);
  if (file.kind == kfd::FileKind::Other) name_unrestorable_file(fd, id);
  return false;
}

// All tasks of the tree stand still from here on: what they have in the GPUs may flow, beside CRIU's own
// dump.
Result<void> Dumper::begin_all() {
  if (kfd_device_ == 0 || stage_ != kStageDump || !run_.config.parallel || tree_begun_) return {};
  const HeldAlarm alarm;  // queues that are being stopped and jobs that go on take their time
  return with_signals_held([this] { return begin_tree(); });
}

// All open files of the tree, once: only then is it known which of them have the same memory. In an older
// host the first DUMP_EXT_FILE is where this happens.
Result<void> Dumper::begin_tree() {
  if (std::exchange(tree_begun_, true)) return {};
  SLUICE_TRY(open_files());
  if (!kfd_files_.empty() || !render_files_.empty()) SLUICE_TRY(note_in_inventory());
  for (KfdFile& file : kfd_files_) {
    SLUICE_TRY(check_stopped());
    SLUICE_TRY(begin(file));
  }
  for (const RenderFile& file : render_files_) {
    SLUICE_TRY(check_stopped());
    SLUICE_TRY(begin(*file.dump));
  }
  SLUICE_TRY(find_memory_of_dmabufs());
  if (kfd_files_.empty() && render_files_.empty()) return {};
  SLUICE_TRY(note_in_inventory());
  SLUICE_TRY(tree_.check_kfd_maps());
  SLUICE_TRY_ASSIGN(const std::vector<pid_t> pids, tree_.processes());
  SLUICE_TRY(check_render_maps(run_.maps, run_.topology, pids));
  SLUICE_TRY(run_.shared_bos.settle());
  for (const KfdFile& file : kfd_files_) SLUICE_TRY(note_gpus(file));
  tree_known_ = true;
  return run_.config.parallel && !streaming() ? start_contents(nullptr, std::nullopt) : Result<void>();
}

// A signal has come: no more queues are stopped, which are about to run again.
Result<void> Dumper::check_stopped() const {
  return run_.shared.stopped ? Error{ECANCELED, "the dump was stopped"} : Result<void>();
}

// Every open file of /dev/kfd and of render nodes in the tree, once, before any of them is begun: what an
// older dump has left paused must run again first, and whoever maps a render node may map any file's BOs.
Result<void> Dumper::open_files() {
  auto taken = tree_.take_files();
  if (!taken) {  // nothing has been touched, and DUMP_EXT_FILE brings every file
    log_line(Level::Warning, "processes are dumped one after another: " + taken.error().what);
    return {};
  }
  SLUICE_TRY_ASSIGN(const std::vector<pid_t> pids, tree_.processes());
  SLUICE_TRY_ASSIGN(dmabufs_, kfd::open_dmabufs(pids));
  for (const kfd::OpenDmaBuf& dmabuf : dmabufs_) run_.shared_bos.add_descriptor(dmabuf.inode);
  for (TakenFile& file : *taken) {
    if (file.device.kind == kfd::FileKind::Kfd) {
      SLUICE_TRY(add_kfd(std::move(file.own), std::move(file.holders)));
    } else {
      SLUICE_TRY(add_render(std::move(file.own), std::move(file.holders), file.device.render_minor));
    }
  }
  return {};
}

Result<void> Dumper::add_kfd(UniqueFd own, std::vector<pid_t> holders) {
  KfdFile file;
  file.name = holders.empty() ? "a process of the tree" : "process " + std::to_string(holders.front());
  file.session = &sessions_.open_session(std::move(own), file.name);
  file.holders = std::move(holders);
  // Afterwards a file may be of a process that this dump has paused; PROCESS_INFO does it for all others.
  if (sessions_.paused_count() == 0) SLUICE_TRY(file.session->end_older_pause());
  kfd_files_.push_back(std::move(file));
  return {};
}

Result<void> Dumper::add_render(UniqueFd own, std::vector<pid_t> holders, std::uint32_t minor) {
  SLUICE_TRY(prepared_);
  const kfd::Node* node = run_.topology.find_render_minor(minor);
  if (node == nullptr)
    return Error{ENODEV, "renderD" + std::to_string(minor) + " belongs to no GPU of the topology in sysfs"};
  SLUICE_TRY_ASSIGN(std::unique_ptr<RenderDump> dump,
                    RenderDump::list(std::move(own), std::move(holders), *node, run_));
  if (!dump->lists_bos() && !std::exchange(unlisted_said_, true)) {
    log_line(
        Level::Info,
        "this kernel does not list the BOs of render nodes: those allocated there are not saved; one that "
        "is mapped by the CPU fails the dump");
  }
  warn_of_contexts(dump->fd(), dump->name());
  render_files_.push_back({std::move(dump), std::nullopt});
  return render_files_.back().dump->look_at_vram();
}

// With a key nobody restores a stream without it.
Result<void> Dumper::check_index_can_be() const {
  if (!streaming() || tree_known_ || !has_image_key()) return {};
  return Error{
      EINVAL,
      "a stream that is made with a key has an index, which tells of all files of the tree: they cannot "
      "be seen in advance (pidfd_getfd)"};
}

// Of a stream: nothing comes behind its index, which went out with the last file that was seen in advance.
Result<void> Dumper::check_index_is_open(int id) const {
  if (!index_saved_) return {};
  return Error{EINVAL, "file " + std::to_string(id) +
                           ", of a GPU, is no process' own, but on its way through a socket: a stream cannot "
                           "take it any more; whoever it was sent to must receive it before"};
}

Result<void> Dumper::dump_kfd(int fd, int id) {
  SLUICE_TRY(begin_tree());
  SLUICE_TRY(check_index_can_be());
  SLUICE_TRY_ASSIGN(KfdFile * file, find_kfd(fd));
  if (file == nullptr) {
    SLUICE_TRY(check_index_is_open(id));
    SLUICE_TRY_ASSIGN(TakenFile taken, tree_.take_file(fd, {kfd::FileKind::Kfd}));
    SLUICE_TRY(add_kfd(std::move(taken.own), std::move(taken.holders)));
    file = &kfd_files_.back();
    SLUICE_TRY(begin(*file));
    SLUICE_TRY(check_render_maps(run_.maps, run_.topology, file->holders));
    SLUICE_TRY(run_.shared_bos.settle());
    SLUICE_TRY(note_gpus(*file));
  }
  if (file->process) SLUICE_TRY(start_contents(&file->process->contents(), id));
  file->id = id;
  return streams_flow_on() ? finish_streams_behind_the_last() : finish_file(*file);
}

Result<void> Dumper::finish_file(KfdFile& file) {
  if (std::exchange(file.finished, true)) return {};
  if (file.alias_of) return write_alias(file);
  SLUICE_TRY(file.process->finish(*file.id));
  for (const RenderFile& render : render_files_) {
    if (render.finished) SLUICE_TRY(write(*render.dump));
  }
  return {};
}

Result<void> Dumper::finish_file(RenderFile& file) {
  if (std::exchange(file.finished, true)) return {};
  SLUICE_TRY(file.dump->finish(*file.id));
  return write(*file.dump);
}

// Once, when all that tell of it have: with a key, an earlier one would be as good as the later.
Result<void> Dumper::write(RenderDump& render) {
  return awaits_kfd(render) ? Result<void>() : render.write();
}

// Whether a process that holds the file has a /dev/kfd, too, which is not in the images yet.
bool Dumper::awaits_kfd(const RenderDump& render) const {
  return std::any_of(kfd_files_.begin(), kfd_files_.end(), [&](const KfdFile& file) {
    return !file.finished && !file.alias_of && share_any(render.holders(), file.holders);
  });
}

// Contents of streams begin when CRIU says what a file is called, and flow beside those of the next ones: the
// hook for the last file, which is known where all are, joins all.
bool Dumper::streams_flow_on() const {
  return streaming() && tree_known_;
}

Result<void> Dumper::finish_streams_behind_the_last() {
  const auto has_id = [](const auto& file) { return file.id.has_value(); };
  const bool last = std::all_of(kfd_files_.begin(), kfd_files_.end(), has_id) &&
                    std::all_of(render_files_.begin(), render_files_.end(), has_id);
  return last ? finish_streams() : Result<void>();
}

// All that CRIU has asked for, and what stands in no stream twice: the metadata, and last of all the index.
Result<void> Dumper::finish_streams() {
  if (!streams_flow_on() || std::exchange(index_saved_, true)) return {};
  std::vector<std::string> metadata;
  for (KfdFile& file : kfd_files_) {
    if (!file.id) continue;
    SLUICE_TRY(finish_file(file));
    metadata.push_back(kfd_image_name(*file.id));
  }
  for (RenderFile& file : render_files_) {
    if (!file.id) continue;
    SLUICE_TRY(finish_file(file));
    metadata.push_back(render_image_name(*file.id));
  }
  if (metadata.empty()) return {};
  SLUICE_TRY(finish_images());
  SLUICE_TRY_ASSIGN(const auto maps, tree_.maps());
  return save_index({metadata, maps, run_.dump_id});
}

// When CRIU asks for nothing more. Who waits for a /dev/kfd that it has not asked for waits in vain.
Result<void> Dumper::finish_images() {
  for (const RenderFile& render : render_files_) {
    if (render.finished) SLUICE_TRY(render.dump->write());
  }
  return run_.shared_bos.check_saved();
}

// The file that is the same open file as `fd`, where it was not finished; else null.
Result<Dumper::KfdFile*> Dumper::find_kfd(int fd) {
  const pid_t self = getpid();
  for (KfdFile& file : kfd_files_) {
    if (file.id) continue;
    SLUICE_TRY_ASSIGN(const bool same, kfd::same_open_file({self, fd}, {self, file.session->fd()}));
    if (same) return &file;
  }
  return nullptr;
}

Result<Dumper::RenderFile*> Dumper::find_render(int fd) {
  const pid_t self = getpid();
  for (RenderFile& file : render_files_) {
    if (file.id) continue;
    SLUICE_TRY_ASSIGN(const bool same, kfd::same_open_file({self, fd}, {self, file.dump->fd()}));
    if (same) return &file;
  }
  return nullptr;
}

// Stops the queues of the file's KFD process and asks its state, or finds that another file's dump has.
Result<void> Dumper::begin(KfdFile& file) {
  SLUICE_TRY(prepared_);
  SLUICE_TRY_ASSIGN(const kfd::KfdDevice device, kfd::KfdDevice::open(kfd_device_));  // the version gate
  run_.kfd_minor_version = device.version().minor;
  SLUICE_TRY_ASSIGN(file.alias_of, find_alias(file));
  if (file.alias_of) return {};
  if (file.holders.empty()) {
    return Error{EINVAL,
                 "a file of /dev/kfd is no process' own, but on its way through a socket, and would be "
                 "restored in whoever it was sent to: that one must receive it before"};
  }
  SLUICE_TRY(check_saved_wholly(device, file.holders));
  SLUICE_TRY_ASSIGN(file.process, ProcessDump::begin(*file.session, file.holders, run_));
  return {};
}

// Of all files whose contents do not flow yet, or of one, CRIU's id of which is known. Those that flow at
// once and use one GPU share its staging memory; for which there is no room flow when others have ended, at
// the latest when CRIU asks for them.
Result<void> Dumper::start_contents(const DumpContents* wanted, std::optional<int> id) {
  for (const KfdFile& file : kfd_files_) {
    if (file.process) SLUICE_TRY(file.process->take_contents());
  }
  for (const RenderFile& file : render_files_) {
    if (file.dump->begun()) file.dump->take_contents();
  }
  std::vector<DumpContents*> waiting;
  for (const KfdFile& file : kfd_files_) {
    if (file.process && !file.process->contents().started()) waiting.push_back(&file.process->contents());
  }
  for (const RenderFile& file : render_files_) {
    if (file.dump->begun() && !file.dump->contents().started()) waiting.push_back(&file.dump->contents());
  }
  const auto drop_others = [&] {
    std::erase_if(waiting, [wanted](const DumpContents* one) { return wanted != nullptr && one != wanted; });
  };
  const bool all_flow = streams_flow_on() || (tree_known_ && run_.config.parallel && !streaming());
  if (!all_flow) drop_others();
  SLUICE_TRY(clear_directory());
  if (waiting.empty()) return {};
  if (!all_flow || !std::exchange(staging_shared_, true)) share_staging(waiting);
  if (streaming()) drop_others();
  for (DumpContents* contents : waiting) {
    if (contents != wanted && !contents->has_room()) continue;
    SLUICE_TRY(check_stopped());
    SLUICE_TRY(contents->start(streaming() ? id : std::nullopt));
  }
  return {};
}

void Dumper::share_staging(const std::vector<DumpContents*>& waiting) {
  std::map<std::uint32_t, unsigned> lanes_by_minor;
  for (DumpContents* contents : waiting) {
    for (const GpuContents& gpu : contents->waiting()) ++lanes_by_minor[gpu.render_minor];
  }
  std::size_t lanes = 0;
  for (const auto& [minor, of_gpu] : lanes_by_minor)
    lanes += std::min<std::size_t>(of_gpu, run_.config.lanes_at_once());
  run_.shared.lanes = std::max<std::size_t>(lanes, 1);
  for (DumpContents* contents : waiting) {
    for (GpuContents& gpu : contents->waiting()) gpu.sharers = lanes_by_minor[gpu.render_minor];
  }
}

Result<void> Dumper::write_alias(const KfdFile& file) {
  const std::optional<int> main = kfd_files_[*file.alias_of].id;
  if (!main) {
    return Error{EINVAL, "file " + std::to_string(*file.id) +
                             " of /dev/kfd comes before the one through which its process was dumped"};
  }
  kfd::KfdImage alias;
  alias.alias_of = static_cast<std::uint32_t>(*main);
  alias.dump_id = run_.dump_id;
  alias.id = static_cast<std::uint32_t>(*file.id);
  run_.images.add_metadata(kfd_image_name(*file.id));
  return write_metadata(kfd_image_name(*file.id), pack_kfd_image(alias));
}

// Of a file that has no contents of its own.
Result<void> Dumper::write_metadata(const std::string& name, std::span<const std::uint8_t> payload) {
  SLUICE_TRY(save_image(name, payload, run_.config.sync));
  return run_.config.sync ? sync_images() : Result<void>();
}

// A KFD process is the unit, not the file: a process that opens /dev/kfd twice has one, and a second
// PROCESS_INFO would stop its queues for ever. The file through which the KFD process of `fd` was dumped, or
// null when it runs. What could not be restored is refused: in a restored task every file of /dev/kfd that it
// opens itself belongs to one KFD process, its own.
Result<std::optional<std::size_t>> Dumper::find_alias(const KfdFile& wanted) const {
  const auto refusal = [&] {
    return Error{EINVAL,
                 "of the files of /dev/kfd that " + wanted.name +
                     " holds, one was inherited through a fork; that is not supported yet where there "
                     "are several"};
  };
  std::optional<std::size_t> same;
  bool runs = true;
  for (std::size_t i = 0; i < kfd_files_.size(); ++i) {
    const KfdFile& file = kfd_files_[i];
    if (!file.process) continue;
    SLUICE_TRY_ASSIGN(const bool is_same, file.session->same_process(wanted.session->fd()));
    if (is_same) runs = false;
    if (!share_any(wanted.holders, file.holders)) continue;  // processes that are alike have the same counts
    if (!is_same || wanted.holders.size() != 1 || file.holders.size() != 1) return refusal();
    same = i;
  }
  if (!same && !runs) return refusal();
  return same;
}

Result<void> Dumper::dump_render(int fd, int id, std::uint32_t minor) {
  SLUICE_TRY(begin_tree());
  SLUICE_TRY(check_index_can_be());
  SLUICE_TRY_ASSIGN(RenderFile * file, find_render(fd));
  if (file == nullptr) {
    SLUICE_TRY(check_index_is_open(id));
    SLUICE_TRY_ASSIGN(TakenFile taken, tree_.take_file(fd, {kfd::FileKind::RenderNode, minor}));
    SLUICE_TRY(add_render(std::move(taken.own), std::move(taken.holders), minor));
    file = &render_files_.back();
    if (file->dump->has_bos()) {  // what runs meanwhile, and who else has them, is not known
      return Error{EINVAL,
                   file->dump->name() +
                       " has BOs of its own, which can only be dumped where all files of the tree can be "
                       "seen in advance (pidfd_getfd)"};
    }
    SLUICE_TRY(begin(*file->dump));
    for (const auto& [gpu, kfd_holders] : gpus_) SLUICE_TRY(file->dump->settle(gpu, kfd_holders));
    SLUICE_TRY_ASSIGN(const bool any_kfd, have_kfd(file->dump->holders()));
    if (!any_kfd) SLUICE_TRY(check_render_maps({}, run_.topology, file->dump->holders()));
  }
  SLUICE_TRY(start_contents(&file->dump->contents(), id));
  file->id = id;
  return streams_flow_on() ? finish_streams_behind_the_last() : finish_file(*file);
}

// A descriptor of memory that a file of the tree has. False: nothing of ours knows it.
Result<bool> Dumper::dump_dmabuf(int fd, int id) {
  SLUICE_TRY(begin_tree());
  struct stat st {};
  if (::fstat(fd, &st) != 0) return make_error(errno, "fstat of a dma-buf");
  const SharedBos::Number number = run_.shared_bos.number_of(st.st_ino);
  if (number.shared == 0) {
    const auto reason = dmabufs_not_restored_.find(st.st_ino);
    log_line(Level::Warning,
             "file " + std::to_string(id) +
                 " is a dma-buf of memory that no /dev/kfd or render node of the tree has: " +
                 (reason != dmabufs_not_restored_.end() ? reason->second.what
                                                        : "it was not seen among the files of the tree"));
    return false;
  }
  if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR) {
    return Error{EINVAL, "file " + std::to_string(id) +
                             " is a dma-buf that may only be read, and would come back as one that may be "
                             "written; the process must close it"};
  }
  SLUICE_TRY_ASSIGN(const std::vector<pid_t> holders, tree_.holders_of_dmabuf(fd, st.st_ino));
  const DmaBufImage image{number.handle, number.shared, kfd::restoring_process(holders).innermost,
                          run_.dump_id, static_cast<std::uint32_t>(id)};
  run_.shared_bos.note_saved(number.shared, true);
  SLUICE_TRY(clear_directory());  // nothing may have begun to flow yet, and the name be an old file's
  run_.images.add_metadata(dmabuf_image_name(id));
  SLUICE_TRY(write_metadata(dmabuf_image_name(id), pack_dmabuf_image(image)));
  SLUICE_TRY(dump_memory_of(st.st_ino, id));
  return true;
}

// Where descriptors alone have it: with the first of them.
Result<void> Dumper::dump_memory_of(ino_t dmabuf, int id) {
  const auto file = std::find_if(render_files_.begin(), render_files_.end(),
                                 [&](const RenderFile& one) { return one.dmabuf == dmabuf && !one.id; });
  if (file == render_files_.end()) return {};
  if (is_memory_of_dmabuf(id)) return Error{EOVERFLOW, "CRIU's file ids have come to " + std::to_string(id)};
  SLUICE_TRY(check_index_can_be());
  SLUICE_TRY(start_contents(&file->dump->contents(), kFirstMemoryId + id));
  file->id = kFirstMemoryId + id;
  return streams_flow_on() ? finish_streams_behind_the_last() : finish_file(*file);
}

// Of dma-bufs by which no file of the tree was found to have what is behind them. What cannot be found out is
// said when CRIU asks for the descriptor, which then refuses it.
Result<void> Dumper::find_memory_of_dmabufs() {
  const bool all = std::all_of(dmabufs_.begin(), dmabufs_.end(), [this](const kfd::OpenDmaBuf& dmabuf) {
    return run_.shared_bos.has_holder(dmabuf.inode);
  });
  if (all || !prepared_) return {};
  const auto kfd = kfd::KfdDevice::open(kfd_device_);
  for (const kfd::OpenDmaBuf& dmabuf : dmabufs_) {
    if (run_.shared_bos.has_holder(dmabuf.inode)) continue;
    SLUICE_TRY(check_stopped());
    auto alone =
        kfd ? memory_of_dmabuf(dmabuf, *kfd, run_) : Result<std::unique_ptr<RenderDump>>(kfd.error());
    if (!alone) {
      dmabufs_not_restored_.emplace(dmabuf.inode, std::move(alone).error());
    } else if (*alone) {
      SLUICE_TRY(begin(**alone));
      render_files_.push_back({std::move(*alone), std::nullopt, false, dmabuf.inode});
    }
  }
  return {};
}

Result<void> Dumper::begin(RenderDump& render) {
  SLUICE_TRY(prepared_);
  SLUICE_TRY_ASSIGN(const bool any_kfd, have_kfd(render.holders()));
  return render.begin(any_kfd);
}

Result<bool> Dumper::have_kfd(const std::vector<pid_t>& processes) const {
  for (const pid_t pid : processes) {
    SLUICE_TRY_ASSIGN(const std::vector<int> descriptors, kfd::device_descriptors(pid, kfd_device_));
    if (!descriptors.empty()) return true;
  }
  return false;
}

// When it is settled which BOs are shared: what the file's process tells of render files, those that are
// known, and, where files come one by one, later ones.
Result<void> Dumper::note_gpus(const KfdFile& file) {
  if (!file.process) return {};
  for (const ProcessGpu& gpu : file.process->gpus()) {
    for (const RenderFile& render : render_files_) SLUICE_TRY(render.dump->settle(gpu, file.holders));
    gpus_.push_back({gpu, file.holders});
  }
  return {};
}

// Once, when no file comes any more.
Result<void> Dumper::finish_tree() {
  if (std::exchange(tree_finished_, true)) return {};
  return streams_flow_on() ? finish_streams() : finish_images();
}

// Streams are joined by now, unless CRIU has not asked for a file that the tree has.
Result<void> Dumper::finish_late() {
  return with_signals_held([this] { return finish_tree(); });
}

// Contents that still flow are in no image, so nobody waits for them before the queues run: a disk may hang.
Result<void> Dumper::unpause_and_drop(bool say) {
  Result<void> unpaused = sessions_.unpause_all();
  drop_files(say);
  return unpaused;
}

void Dumper::drop_files(bool say) {
  for (const KfdFile& file : kfd_files_) {
    if (say && file.process && !file.id)
      log_line(Level::Warning,
               file.name + ": CRIU did not ask for its /dev/kfd; its GPU memory is in no image");
  }
  for (const RenderFile& file : render_files_) {
    if (say && file.dump->begun() && !file.id)
      log_line(Level::Warning, file.dump->name() + ": CRIU did not ask for it; its BOs are in no image");
  }
  kfd_files_.clear();
  render_files_.clear();
}

Result<void> Dumper::finish(int ret) {
  if (ret >= 0) signals_.set_too_late();
  const HeldSignals::InHook hook(signals_);
  Result<void> finished = ret >= 0 ? finish_tree() : Result<void>();
  Result<void> unpaused = unpause_and_drop(ret >= 0);
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

// Before anything is written, and not before all that could refuse the dump in advance has not.
Result<void> Dumper::clear_directory() {
  SLUICE_TRY(check_stopped());
  if (run_.images.directory_is_clear() || streaming()) return {};
  for (const RenderFile& file : render_files_) SLUICE_TRY(file.dump->look_at_vram());
  return run_.images.clear_directory(run_.config);
}

}  // namespace sluice::plugin
