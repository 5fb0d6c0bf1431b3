// SPDX-License-Identifier: MIT
// The C boundary: the functions that CRIU calls. Nothing throws or aborts from here into CRIU; every failing
// hook returns -errno after one log line. To CRIU -ENOTSUP means "not mine, ask the next plugin", so no inner
// error passes as that number.
//
// The only exported symbol is CR_PLUGIN_DESC. All hooks run in the thread that loaded the plugin, or in a
// task forked from it.
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include "kfd/device.h"
#include "plugin/dump/dumper.h"
#include "plugin/host/criu_host.h"
#include "plugin/host/image_store.h"
#include "plugin/host/write_signals.h"
#include "plugin/predump/host_predump.h"
#include "plugin/restore/basis/restore_basis.h"
#include "plugin/restore/restore_main.h"
#include "plugin/restore/task/restore_task.h"
#include "plugin/restore/task/task_images.h"

namespace sluice::plugin {

namespace {

// Identifies the file as ours among others of the same name: `sluice check` looks for it.
[[gnu::used]] constexpr char kIdentity[] = "sluice amdgpu_plugin " SLUICE_VERSION;

// A restore as seen by this process: `main` belongs to CRIU's main process, `task` to a task forked from it.
struct Restore {
  explicit Restore(std::unique_ptr<const RestoreBasis> made) : basis(std::move(made)) {}

  std::unique_ptr<const RestoreBasis> basis;  // borrowed by the others
  RestoreMain main{*basis};
  RestoreTask task{*basis, main.server()};
};

// From the last init() until the process has ended, because that end may come on top of a hook, or while
// lanes use it. Owned.
ImageStore* store = nullptr;
// One of them exists between init() and exit(), for a pre-dump until the process ends; owned.
Dumper* dumper = nullptr;
HostPreDump* predump = nullptr;
Restore* restore = nullptr;
// From init() on, also after the restore's end: the error of its finish() needs a remedy.
bool restoring = false;

// CRIU may end without calling exit() of plugins. When a task of a dump dies, its SIGCHLD handler calls
// exit(3) on top of any of our hooks. Whatever that hook uses, waits for or has locked stays as it is, and
// the process' end frees it. But the other tasks' queues must run. Not in a process that CRIU has forked.
struct QueuesAtTheEnd {
  pid_t maker = 0;
  ~QueuesAtTheEnd() {
    if (dumper != nullptr && getpid() == maker) dumper->abandon();
  }
} queues_at_the_end;

// Ends the dumper, whatever its finish() returns. Queues that are still stopped must run before CRIU releases
// the processes, and this is the last sure moment for that.
struct DumperEnd {
  ~DumperEnd() { const std::unique_ptr<Dumper> ended(std::exchange(dumper, nullptr)); }
};

// During a hook SIGXFSZ and SIGPIPE are errors of the write. While a dump has queues stopped, also between
// hooks. CRIU then writes its own images, and a signal that ends it would leave the queues stopped. Children
// that CRIU starts meanwhile inherit the blocked signals. Main thread.
class WritesFailInOrder {
 public:
  WritesFailInOrder() {
    if (!signals) signals.emplace();
  }
  ~WritesFailInOrder() {
    if (dumper == nullptr || !dumper->has_stopped_queues()) signals.reset();
  }
  WritesFailInOrder(const WritesFailInOrder&) = delete;
  WritesFailInOrder& operator=(const WritesFailInOrder&) = delete;

 private:
  static inline std::optional<WriteSignals> signals;
};

bool is_limited(__rlimit_resource resource) {
  rlimit limit{};
  return getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

// A remedy, with an id, for an error without its own; only the id if the text alone can tell.
const char* remedy(int err, Topic topic) {
  const bool of_images = topic == Topic::Images;
  switch (err) {
    case ENOSPC:
    case EDQUOT:
      return of_images ? "; free space in the file system of the image directory [SL-H02]"
                       : "; free space there [SL-H03]";
    case EFBIG:
      if (is_limited(RLIMIT_FSIZE)) return "; raise the limit of file sizes (ulimit -f) [SL-H04]";
      if (of_images)
        // unreached: no test
        return "; this file system cannot hold such a large file: use another image directory [SL-H05]";
      break;
    case EROFS:
      if (of_images) return "; make the image directory writable, or use another [SL-H06]";
      break;
    case EISDIR:
    case ENOTDIR:
    case ELOOP:
      if (of_images) return "; move it out of the image directory [SL-H07]";
      break;  // unreached: a guard
    case ESTALE:
      // unreached: no test
      if (of_images) return "; mount the file system of the image directory again [SL-H08]";
      break;
    case ENOMEM:
      if (is_limited(RLIMIT_AS)) return "; raise the limit of address space (ulimit -v) [SL-H09]";
      if (is_limited(RLIMIT_DATA)) return "; raise the limit of data (ulimit -d) [SL-H10]";
      return "; free memory, or lower SLUICE_STAGING_SIZE [SL-H11]";
    case EMFILE:
      return "; raise the limit of open files (ulimit -n) [SL-H12]";
    case ENFILE:
      return "; raise the machine's limit of open files (sysctl fs.file-max) [SL-H13]";
    case EAGAIN:
      return topic == Topic::Threads
                 ? "; raise the limit of processes (ulimit -u, or pids.max of the cgroup) [SL-H14]"
                 : "; try again [SL-H15]";
    case EACCES:
    case EPERM:
      return of_images
                 ? "; criu lacks permission: check owner and mode, SELinux or AppArmor, and an NFS server's "
                   "root_squash [SL-H16]"
                 : "; run criu as root or with CAP_CHECKPOINT_RESTORE, in the initial user namespace "
                   "[SL-H17]";
    case EPIPE:
    case ECONNRESET:
      if (store != nullptr && *store->remedy_of_lost_end() != '\0') return store->remedy_of_lost_end();
      break;
    case EBADMSG:  // a dump reads no image
      if (restoring) return "; the image is damaged or incomplete: restore from another checkpoint [SL-H18]";
      break;
    case EIO:
      return "; see the kernel's log, which may say more about the disk or the GPU [SL-H19]";
    case ETIMEDOUT:
      return "; look for a reset of the GPU in the kernel's log [SL-H20]";
    default:
      break;
  }
  return " [SL-H21]";
}

constexpr const char* kOwnFault = "; report this as a bug of sluice [SL-H22]";

// Logs `text` and, unless it ends with an id, `remedy`. If too long, the end is kept. Allocates nothing,
// because memory may have run out.
int report(int err, std::string_view text, std::string_view remedy) {
  const std::string_view end = has_id(text) ? text.substr(id_begin(text)) : remedy;
  text = text.substr(0, std::min(id_begin(text), kLongestLine - end.size()));
  std::array<char, kLongestLine> line;
  char* const rest = std::copy(text.begin(), text.end(), line.data());
  char* const last = std::copy(end.begin(), end.end(), rest);
  log_line(Level::Error, {line.data(), static_cast<std::size_t>(last - line.data())});
  // EOPNOTSUPP has ENOTSUP's number: as an inner error it is a failure, not "ask the next plugin".
  return err == ENOTSUP || err <= 0 ? -EIO : -err;
}

// Runs a hook's body. The body returns the hook's return value, nothing if the object is not ours, or an
// error.
template <class Body>
int guarded(const char* hook, Body body) noexcept {
  const RunningHook running(hook);
  const WritesFailInOrder signals;
  try {
    Result<Answer> result = body();
    if (!result) {
      const Error& error = result.error();
      return report(error.err, error.what, remedy(error.err, error.topic));
    }
    return result->value_or(-ENOTSUP);
  } catch (const std::bad_alloc&) {
    return report(ENOMEM, "out of memory", remedy(ENOMEM, Topic::Unknown));
  } catch (const std::exception& e) {
    return report(EIO, e.what(), kOwnFault);
  } catch (...) {
    return report(EIO, "unexpected exception", kOwnFault);
  }
}

// After a pre-dump, successful or not, CRIU ends its process instead of calling exit() of plugins. Not in a
// process that CRIU has forked.
void on_process_end(int status, void* /*unused*/) {
  if (predump == nullptr || getpid() != queues_at_the_end.maker) return;
  // On top of whatever the process was doing: nothing is unwound.
  if (status != 0) return static_cast<void>(predump->finish(status));
  (void)guarded("the end of the pre-dump", [&]() -> Result<Answer> {
    const std::unique_ptr<HostPreDump> ended(std::exchange(predump, nullptr));
    SLUICE_TRY(ended->finish(status));
    return Answer(0);
  });
}

Result<void> begin_predump() {
  SLUICE_TRY_ASSIGN(std::unique_ptr<HostPreDump> made, HostPreDump::make());
  predump = made.release();
  queues_at_the_end.maker = getpid();
  if (::on_exit(on_process_end, nullptr) == 0) return {};
  return make_error(ENOMEM, "be told of the end of the process");
}

// Only where images may need a GPU, and there are GPUs.
Result<void> begin_restore() {
  if (inventory_says_not_needed()) return {};
  const auto kfd_device = kfd::kfd_device_number();
  if (!kfd_device) return {};
  SLUICE_TRY_ASSIGN(std::unique_ptr<const RestoreBasis> basis, RestoreBasis::make(*store, *kfd_device));
  restore = new Restore(std::move(basis));
  return {};
}

int on_init(int stage) {
  return guarded("init", [&]() -> Result<Answer> {
    restoring = stage == kStageRestore;
    const std::unique_ptr<ImageStore> former(std::exchange(store, ImageStore::of_host().release()));
    if (restoring) {
      SLUICE_TRY(begin_restore());
    } else if (stage == kStagePreDump) {
      SLUICE_TRY(begin_predump());
    } else {
      SLUICE_TRY_ASSIGN(std::unique_ptr<Dumper> made, Dumper::make(*store));
      dumper = made.release();
      queues_at_the_end.maker = getpid();
    }
    return Answer(0);
  });
}

void on_exit(int stage, int ret) {
  bool undone = false;
  (void)guarded("exit", [&]() -> Result<Answer> {
    if (stage == kStageDump && dumper != nullptr) {
      const DumperEnd end;
      const Result<void> finished = dumper->finish(ret);
      undone = dumper->is_undone();
      SLUICE_TRY(finished);
    } else if (stage == kStageRestore && restore != nullptr) {
      const std::unique_ptr<Restore> finishing(std::exchange(restore, nullptr));
      SLUICE_TRY(finishing->main.finish(ret));
    }
    return Answer(0);
  });
  // CRIU ignores what happens here, and would now kill the processes, which are in no image.
  if (undone) end_host();
}

int on_dump_ext_file(int fd, int id) {
  return guarded("DUMP_EXT_FILE", [&]() -> Result<Answer> {
    if (dumper == nullptr) return Answer();
    return dumper->dump_file(fd, id);
  });
}

int on_handle_device_vma(int fd, const struct stat* st) {
  return guarded("HANDLE_DEVICE_VMA", [&]() -> Result<Answer> {
    (void)fd;
    if (predump != nullptr) return predump->accept_map(*st);
    return dumper != nullptr ? dumper->accept_map(*st) : Answer();
  });
}

int on_pause_devices(int pid) {
  return guarded("PAUSE_DEVICES", [&]() -> Result<Answer> {
    if (dumper != nullptr) dumper->note_task(pid);
    if (predump != nullptr) predump->note_task(pid);
    return Answer();  // other plugins are asked, too
  });
}

int on_checkpoint_devices(int pid) {
  return guarded("CHECKPOINT_DEVICES", [&]() -> Result<Answer> {
    (void)pid;  // called for each task: the first call covers all
    if (dumper != nullptr) SLUICE_TRY(dumper->begin_all());
    return Answer();  // other plugins are asked, too: a task may use their GPUs
  });
}

int on_dump_devices_late(int pid) {
  return guarded("DUMP_DEVICES_LATE", [&]() -> Result<Answer> {
    (void)pid;
    // Nothing (-ENOTSUP) on success, too: an answer of 0 would hide a later failure from CRIU's own result.
    if (dumper != nullptr) SLUICE_TRY(dumper->finish_late());
    return Answer();
  });
}

// Hosts with at most 13 hooks call this with one argument: `retry_needed` is then garbage and must not be
// used.
int on_restore_ext_file(int id, bool* retry_needed) {
  if (host_restore_takes_retry()) *retry_needed = false;
  return guarded("RESTORE_EXT_FILE", [&]() -> Result<Answer> {
    if (restore != nullptr) return restore->task.restore_file(id);
    return store != nullptr ? restore_without_kfd(*store, id) : Answer();  // no store: before init()
  });
}

int on_update_vma_map(const char* path, const std::uint64_t address, const std::uint64_t old_offset,
                      std::uint64_t* new_offset, int* fd) {
  const int answer = guarded("UPDATE_VMA_MAP", [&]() -> Result<Answer> {
    if (restore == nullptr) return Answer();
    return restore->task.update_map(path, address, old_offset, *new_offset, *fd);
  });
  if (answer >= 0 || answer == -ENOTSUP) return answer;
  // CRIU goes on, and would otherwise map whatever is at the old offset now.
  *new_offset = kNoMmapOffset;
  return 1;
}

int on_post_forking() {
  return guarded("POST_FORKING", [&]() -> Result<Answer> {
    if (restore != nullptr) restore->main.start_server();
    return Answer();  // other plugins have their own threads to start
  });
}

int on_resume_devices_late(int pid) {
  return guarded("RESUME_DEVICES_LATE", [&]() -> Result<Answer> {
    if (restore == nullptr) return Answer();
    return restore->main.resume(pid);
  });
}

template <class Function>
void* hook(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

}  // namespace sluice::plugin

extern "C" {
// NOLINTBEGIN(readability-identifier-naming): CRIU's name
extern sluice::plugin::PluginDescriptor CR_PLUGIN_DESC;
[[gnu::visibility("default")]] sluice::plugin::PluginDescriptor CR_PLUGIN_DESC = {
    .name = "amdgpu_plugin",
    .init = sluice::plugin::on_init,
    .exit = sluice::plugin::on_exit,
    .version = sluice::plugin::kPluginApiVersion,
    .max_hooks = 0,
    .hooks = {},
};
// NOLINTEND(readability-identifier-naming)
}

namespace sluice::plugin {
namespace {

// Runs inside the host's dlopen, before it reads the descriptor: a host refuses a plugin with more hooks than
// it knows.
[[gnu::constructor]] void fill_descriptor() {
  CR_PLUGIN_DESC.max_hooks = std::min<unsigned>(kHookCount, host_hook_count());
  CR_PLUGIN_DESC.hooks[kHookDumpExtFile] = hook(on_dump_ext_file);
  CR_PLUGIN_DESC.hooks[kHookRestoreExtFile] = hook(on_restore_ext_file);
  CR_PLUGIN_DESC.hooks[kHookHandleDeviceVma] = hook(on_handle_device_vma);
  CR_PLUGIN_DESC.hooks[kHookUpdateVmaMap] = hook(on_update_vma_map);
  CR_PLUGIN_DESC.hooks[kHookResumeDevicesLate] = hook(on_resume_devices_late);
  CR_PLUGIN_DESC.hooks[kHookPauseDevices] = hook(on_pause_devices);
  CR_PLUGIN_DESC.hooks[kHookCheckpointDevices] = hook(on_checkpoint_devices);
  CR_PLUGIN_DESC.hooks[kHookPostForking] = hook(on_post_forking);
  CR_PLUGIN_DESC.hooks[kHookDumpDevicesLate] = hook(on_dump_devices_late);
}

}  // namespace
}  // namespace sluice::plugin
