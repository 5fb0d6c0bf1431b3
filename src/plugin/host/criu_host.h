// SPDX-License-Identifier: MIT
// The CRIU process that has loaded the plugin, used through weak symbols: one binary for every host from
// 3.17.1 on.
//
// Source of every fact here: CRIU's criu/include/criu-plugin.h, plugin.c, files-reg.c and servicefd.h of
// v3.17.1 to v4.2 and of criu-dev. The plugin API is 0.2.0 in all of them, so hosts differ by the number of
// hooks they know. It follows from the size of their exported `cr_plugin_ctl`: {list_head head; list_head
// hook_chain[MAX]} = 16 + 16 * MAX bytes. Main thread only, except for log lines made elsewhere and handed
// over (see LogLines).
#pragma once

#include <sys/stat.h>
#include <sys/time.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/log.h"
#include "base/result.h"

namespace sluice::plugin {

// Hook numbers: never changed, only appended to.
enum Hook : unsigned {
  kHookDumpExtFile = 2,
  kHookRestoreExtFile = 3,
  kHookHandleDeviceVma = 7,
  kHookUpdateVmaMap = 8,
  kHookResumeDevicesLate = 9,
  kHookPauseDevices = 10,       // CRIU >= 4.0
  kHookCheckpointDevices = 11,  // CRIU >= 4.0
  kHookPostForking = 12,        // CRIU >= 4.2
  kHookRestoreInit = 13,        // after 4.2; not ours
  kHookDumpDevicesLate = 14,    // after 4.2
  kHookCount = 15,
};

// Layout of cr_plugin_desc_t with all hooks that we know; a host reads its own number of them.
struct PluginDescriptor {
  const char* name;
  int (*init)(int stage);
  void (*exit)(int stage, int ret);
  unsigned int version;
  unsigned int max_hooks;
  void* hooks[kHookCount];
};

inline constexpr unsigned kPluginApiVersion = 0x000200;  // 0.2.0

enum RunStage : int { kStageDump = 0, kStagePreDump = 1, kStageRestore = 2 };

// A hook's answer to CRIU: its return value, or nothing if the object is not ours (-ENOTSUP: CRIU asks the
// next plugin).
using Answer = std::optional<int>;

// Hooks this host knows: 10 (3.17 to 3.19), 12 (4.0, 4.1), 13 (4.2), 15 (newer). 10 if unknown.
unsigned host_hook_count();

// What a host's hook count means. With POST_FORKING, the fdstore works in init().
inline bool host_has_post_forking() {
  return host_hook_count() > kHookPostForking;
}
// RESTORE_EXT_FILE(id, bool*).
inline bool host_restore_takes_retry() {
  return host_hook_count() > kHookRestoreInit;
}
// Whether the host takes and closes the descriptor that UPDATE_VMA_MAP gives (3.19 and newer); else it dups
// ours. The hooks of 3.19 are those of 3.17; only cr_fchown() tells it apart.
bool host_takes_vma_fd();

// Stops the host's alarm during the object's life (alarm(2), criu/seize.c and cr-dump.c of v4.0 to v4.2). So
// this time does not count towards CRIU's --timeout. CRIU limits pausing and freezing by it to 10 seconds by
// default. When it has fired six times, a second apart, CRIU aborts without exit() of plugins, and stopped
// queues stay stopped. CHECKPOINT_DEVICES comes before the alarm is disarmed in 4.0, after it in 4.1 and
// newer. Without an alarm this does nothing. Main thread, inside a hook.
class HeldAlarm {
 public:
  HeldAlarm();
  ~HeldAlarm();  // the rest of the time runs on
  HeldAlarm(const HeldAlarm&) = delete;
  HeldAlarm& operator=(const HeldAlarm&) = delete;

 private:
  itimerval left_{};
};

// CRIU's own buffer is 8 KiB and is not checked for overflow.
inline constexpr std::size_t kLongestLine = 2048;

// Names the running hook, for its error lines. Main thread; one at a time.
class RunningHook {
 public:
  explicit RunningHook(const char* name);  // borrowed
  ~RunningHook();
  RunningHook(const RunningHook&) = delete;
  RunningHook& operator=(const RunningHook&) = delete;
};

// One line in CRIU's log: "amdgpu_plugin: TEXT", for errors "amdgpu_plugin: Error (HOOK): TEXT". Container
// runtimes show their users lines with "Error ", as in CRIU's own errors. Main thread inside a hook only,
// because CRIU formats into one static buffer. A line longer than kLongestLine is cut. Goes to stderr if the
// host has no log.
void log_line(Level level, std::string_view text);

// For a program that is no host: its lines begin with `name`, borrowed; lines less important than `last` are
// left out.
void log_without_host(const char* name, Level last);

// The same for a text of several lines.
void log_text(Level level, std::string_view text);

void log_lines(const LogLines& lines);

// The host's own /proc, a directory that the host owns (do not close). In a task it belongs to the task's pid
// namespace, and no container can have changed it. -1 if there is none.
int proc_fd();

// The image directory, an fd of the host (do not close). -1 if there is none.
int image_dir_fd();

// The number above all fds of the task being restored (virtual pid `pid`), or -1 if the host cannot tell.
int first_unused_fd(int pid);

// fds handed from the main process to restored tasks. REQUIRES: host_has_post_forking().
int fdstore_add(int fd);  // id, or -1
int fdstore_get(int id);  // new fd, or -1

// Whether the images are streamed (--stream, to or from an image streamer): then there is no directory to
// write to.
bool streaming();
// Whether the streamer has ended, or ends within that time. REQUIRES: streaming().
bool streamer_ends_within(int milliseconds);
// Our end of a pipe for the file of that name; the host asks its streamer. Any thread and any task; the host
// allows one call at a time, which blocks while the streamer is busy with another file. Returns -ENOENT if a
// restore's stream has no such file. Any other negative number means that the streamer has ended, which the
// host may log. REQUIRES: streaming(); `dump` as in the run.
int host_open_stream(const std::string& name, bool dump);

// Ends a dump in exit(), too late for an error: unlocks the network as the host does after an error, and ends
// its process with a failure. The kernel lets go of the tasks, whose own code and registers the host has
// given back (cr_dump_finish() in criu/cr-dump.c, v3.17.1 to criu-dev). Clients of RPC get no answer, which
// is a failure.
[[noreturn]] void end_host();

// The inventory of plugins that an image needs (CRIU >= 4.1; before that nothing happens and everything is
// enabled).
Result<void> inventory_add_self();  // at most once per dump; does nothing if the host has no inventory
bool inventory_says_not_needed();   // restore, in init(): true when the image was made without any GPU plugin

}  // namespace sluice::plugin
