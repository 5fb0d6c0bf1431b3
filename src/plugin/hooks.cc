// SPDX-License-Identifier: MIT
// The C boundary: what CRIU calls. Nothing is thrown or aborts from here into CRIU; every hook returns -errno
// after one log line. -ENOTSUP means "not mine, ask the next plugin" to CRIU and is never let through from
// below.
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
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "plugin/dump/dump.h"
#include "plugin/host/criu_host.h"
#include "plugin/host/write_signals.h"
#include "plugin/restore/restore.h"

namespace sluice::plugin {

namespace {

// Tells the file from others of this name: `sluice check` looks for it.
[[gnu::used]] constexpr char kIdentity[] = "sluice amdgpu_plugin " SLUICE_VERSION;

// One of them exists between init() and exit(); owned.
Dumper* dumper = nullptr;
Restorer* restorer = nullptr;
// From init() on, and after the restorer's end, too: what its finish() says needs a remedy.
bool restoring = false;

// CRIU may end without calling exit(): its handler of SIGCHLD calls exit(3) when a task of a dump dies, on
// top of whichever of our hooks was running. What that hook uses, waits for or has locked stays as it is, and
// the end of the process frees it; but the queues of the other tasks run. Not in a process that CRIU has
// forked.
struct QueuesAtTheEnd {
  pid_t maker = 0;
  ~QueuesAtTheEnd() {
    if (dumper != nullptr && getpid() == maker) dumper->abandon();
  }
} queues_at_the_end;

// The end of the dumper, whatever its finish() ends with: what that has left stopped runs before CRIU lets go
// of the processes, and no later moment is sure to come before it.
struct DumperEnd {
  ~DumperEnd() { const std::unique_ptr<Dumper> ended(std::exchange(dumper, nullptr)); }
};

// For the time of a hook SIGXFSZ and SIGPIPE are errors of the write. While a dump has queues stopped they
// stay that between hooks: CRIU writes its own images there, and a signal that ends it would leave the queues
// stopped. Children that CRIU starts meanwhile inherit what is blocked. Main thread.
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

// What the user can do about an error that does not say so itself; empty where only the text can tell.
const char* remedy(int err, Topic topic) {
  const bool of_images = topic == Topic::Images;
  if (topic == Topic::Said) return "";
  switch (err) {
    case ENOSPC:
    case EDQUOT:
      return of_images ? "; free space where the image directory is" : "; free space there";
    case EFBIG:
      if (is_limited(RLIMIT_FSIZE)) return "; raise the limit of file sizes (ulimit -f)";
      return of_images ? "; this file system takes no file of that size, use another image directory" : "";
    case EROFS:
      return of_images ? "; the image directory must be writable" : "";
    case EISDIR:
    case ENOTDIR:
    case ELOOP:
      return of_images ? "; move it out of the image directory" : "";
    case ESTALE:
      return of_images ? "; the file system of the image directory has to be mounted anew" : "";
    case ENOMEM:
      if (is_limited(RLIMIT_AS)) return "; raise the limit of address space (ulimit -v)";
      if (is_limited(RLIMIT_DATA)) return "; raise the limit of data (ulimit -d)";
      return "; free memory, or lower SLUICE_STAGING_SIZE";
    case EMFILE:
      return "; raise the limit of open files (ulimit -n)";
    case ENFILE:
      return "; raise the machine's limit of open files (sysctl fs.file-max)";
    case EAGAIN:
      return topic == Topic::Threads ? "; raise the limit of processes (ulimit -u, or pids.max of the cgroup)"
                                     : "; try again";
    case EACCES:
    case EPERM:
      return of_images
                 ? "; criu may not do that there: see owner and mode, SELinux or AppArmor, an NFS server's "
                   "root_squash"
                 : "; run criu as root or with CAP_CHECKPOINT_RESTORE, in the initial user namespace";
    case EPIPE:
    case ECONNRESET:
      return streaming() ? "; the image streamer has ended: see what it has said, and what reads from it or "
                           "writes to it"
                         : "";
    case EBADMSG:  // a dump reads no image
      return restoring ? "; the image is damaged or incomplete, restore from another checkpoint" : "";
    case EIO:
      return "; the kernel log may say more about the disk or the GPU";
    case ETIMEDOUT:
      return "; look for a GPU reset in the kernel log";
    default:
      return "";
  }
}

// Without an allocation: memory may be what is lacking.
int report(const char* hook, int err, const char* text, Topic topic = Topic::Unknown) {
  std::array<char, kLongestLine> line;
  const int length = std::snprintf(line.data(), line.size(), "%s: %s%s", hook, text, remedy(err, topic));
  log_line(Level::Error, {line.data(), std::min<std::size_t>(std::max(length, 0), line.size() - 1)});
  // EOPNOTSUPP is the same number as ENOTSUP: from below it is a failure, not "ask the next plugin".
  return err == ENOTSUP || err <= 0 ? -EIO : -err;
}

// Runs a hook's body. A body answers with its return value, with nothing when the object is not ours, or with
// an error.
template <class Body>
int guarded(const char* hook, Body body) noexcept {
  const WritesFailInOrder signals;
  try {
    Result<Answer> result = body();
    if (!result) {
      const Error& error = result.error();
      return report(hook, error.err, error.what.c_str(), error.topic);
    }
    return result->value_or(-ENOTSUP);
  } catch (const std::bad_alloc&) {
    return report(hook, ENOMEM, "out of memory");
  } catch (const std::exception& e) {
    return report(hook, EIO, e.what());
  } catch (...) {
    return report(hook, EIO, "unexpected exception");
  }
}

int on_init(int stage) {
  return guarded("init", [&]() -> Result<Answer> {
    restoring = stage == kStageRestore;
    if (restoring) {
      SLUICE_TRY_ASSIGN(std::unique_ptr<Restorer> made, Restorer::make());
      restorer = made.release();
    } else {
      SLUICE_TRY_ASSIGN(std::unique_ptr<Dumper> made, Dumper::make(static_cast<RunStage>(stage)));
      dumper = made.release();
      queues_at_the_end.maker = getpid();
    }
    return Answer(0);
  });
}

void on_exit(int stage, int ret) {
  (void)guarded("exit", [&]() -> Result<Answer> {
    if (stage == kStageDump && dumper != nullptr) {
      const DumperEnd end;
      SLUICE_TRY(dumper->finish(ret));
    } else if (stage == kStageRestore && restorer != nullptr) {
      const std::unique_ptr<Restorer> finishing(std::exchange(restorer, nullptr));
      SLUICE_TRY(finishing->finish(ret));
    }
    return Answer(0);
  });
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
    return dumper != nullptr ? dumper->accept_map(*st) : Answer();
  });
}

int on_pause_devices(int pid) {
  return guarded("PAUSE_DEVICES", [&]() -> Result<Answer> {
    if (dumper != nullptr) dumper->note_task(pid);
    return Answer();  // other plugins are asked, too
  });
}

int on_checkpoint_devices(int pid) {
  return guarded("CHECKPOINT_DEVICES", [&]() -> Result<Answer> {
    (void)pid;  // one for each task: the first stands for all
    if (dumper != nullptr) SLUICE_TRY(dumper->begin_all());
    return Answer();  // other plugins are asked, too: a task may have GPUs of theirs
  });
}

int on_dump_devices_late(int pid) {
  return guarded("DUMP_DEVICES_LATE", [&]() -> Result<Answer> {
    (void)pid;
    // Nothing (-ENOTSUP) also when all went well: an answer of 0 would hide a later failure from CRIU's own
    // result.
    if (dumper != nullptr) SLUICE_TRY(dumper->finish_late());
    return Answer();
  });
}

// Hosts with 13 hooks and fewer call this with one argument: `retry_needed` is then garbage and must not be
// touched.
int on_restore_ext_file(int id, bool* retry_needed) {
  if (host_restore_takes_retry()) *retry_needed = false;
  return guarded("RESTORE_EXT_FILE", [&]() -> Result<Answer> {
    if (restorer == nullptr) return Answer();
    return restorer->restore_file(id);
  });
}

int on_update_vma_map(const char* path, const std::uint64_t address, const std::uint64_t old_offset,
                      std::uint64_t* new_offset, int* fd) {
  const int answer = guarded("UPDATE_VMA_MAP", [&]() -> Result<Answer> {
    if (restorer == nullptr) return Answer();
    return restorer->update_map(path, address, old_offset, *new_offset, *fd);
  });
  if (answer >= 0 || answer == -ENOTSUP) return answer;
  // CRIU goes on, and would map what is at the old offset now.
  *new_offset = kNoMmapOffset;
  return 1;
}

int on_post_forking() {
  return guarded("POST_FORKING", [&]() -> Result<Answer> {
    if (restorer != nullptr) restorer->start_server();
    return Answer();  // other plugins have their own threads to start
  });
}

int on_restore_init() {
  return -ENOTSUP;
}  // everything was done in init()

int on_resume_devices_late(int pid) {
  return guarded("RESUME_DEVICES_LATE", [&]() -> Result<Answer> {
    if (restorer == nullptr) return Answer();
    return restorer->resume(pid);
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

// Runs inside the host's dlopen, before it looks at the descriptor: a host refuses a plugin with more hooks
// than its own.
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
  CR_PLUGIN_DESC.hooks[kHookRestoreInit] = hook(on_restore_init);
  CR_PLUGIN_DESC.hooks[kHookDumpDevicesLate] = hook(on_dump_devices_late);
}

}  // namespace
}  // namespace sluice::plugin
