// SPDX-License-Identifier: MIT
// The CRIU process the plugin is loaded into, seen through weak symbols: one binary for every host
// from 3.17.1 on.
//
// Source of every fact here: CRIU's criu/include/criu-plugin.h, plugin.c, files-reg.c and servicefd.h of
// v3.17.1 to v4.2 and of criu-dev. The plugin API says 0.2.0 in all of them, so hosts are told apart by how
// many hooks they know, which is the size of their exported `cr_plugin_ctl`: {list_head head; list_head
// hook_chain[MAX]} = 16 + 16 * MAX bytes. Main-thread only, but for log lines made elsewhere and handed over
// (see LogLines).
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
  kHookRestoreInit = 13,        // after 4.2
  kHookDumpDevicesLate = 14,    // after 4.2
  kHookCount = 15,
};

// Layout of cr_plugin_desc_t with as many hooks as we know; a host reads the first max_hooks of them.
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

// What a hook has to say to CRIU: its return value, or nothing when the object is not ours (-ENOTSUP: CRIU
// then asks the next plugin).
using Answer = std::optional<int>;

// Hooks this host knows: 10 (3.17 to 3.19), 12 (4.0, 4.1), 13 (4.2), 15 (newer). 10 where it cannot be told.
unsigned host_hook_count();

// What a host's hook count means.
inline bool host_has_post_forking() {
  return host_hook_count() > kHookPostForking;
}  // and fdstore works in init()
inline bool host_has_dump_devices_late() {
  return host_hook_count() > kHookDumpDevicesLate;
}
inline bool host_restore_takes_retry() {
  return host_hook_count() > kHookRestoreInit;
}  // RESTORE_EXT_FILE(id, bool*)
// Whether the host takes the descriptor that UPDATE_VMA_MAP gives, and closes it; else it dups ours. 3.19 and
// newer take it. 3.19 has the hooks of 3.17, and what it has not in common with these is cr_fchown().
bool host_takes_vma_fd();

// Holds the host's alarm while it lives, so that the time does not count for which CRIU gives up (alarm(2),
// criu/seize.c and cr-dump.c of v4.0 to v4.2). CRIU bounds by it how long pausing and freezing take:
// --timeout, 10 seconds. When it has fired six times, a second apart, CRIU aborts without exit() of plugins,
// and nobody is left who may let stopped queues run. 4.0 calls CHECKPOINT_DEVICES before it turns it off; 4.1
// and newer after that. Nothing happens where none runs. Main thread, inside a hook.
class HeldAlarm {
 public:
  HeldAlarm();
  ~HeldAlarm();  // what was left of it runs on
  HeldAlarm(const HeldAlarm&) = delete;
  HeldAlarm& operator=(const HeldAlarm&) = delete;

 private:
  itimerval left_{};
};

// CRIU's own buffer is 8 KiB, and not checked on the way out.
inline constexpr std::size_t kLongestLine = 2048;

// One line in CRIU's log, prefixed "amdgpu_plugin: ", and before that, where it is an error, as CRIU's own
// errors are: container runtimes show these to their users. Main thread inside a hook only: CRIU formats into
// one static buffer. What is longer than kLongestLine is cut. To stderr where the host has no log.
void log_line(Level level, std::string_view text);

// The same for a text of several lines.
void log_text(Level level, std::string_view text);

void log_lines(const LogLines& lines);

// The host's own /proc, a directory that it keeps (do not close): in a task one of the task's pid namespace,
// which no container has had its hands on. -1 where there is none.
int proc_fd();

// The image directory, an fd of the host (do not close). -1 where there is none.
int image_dir_fd();

// The number from which on no fd of the task being restored (virtual pid `pid`) lives, or -1 when the host
// cannot say.
int first_unused_fd(int pid);

// fds handed from the main process to restored tasks. REQUIRES: host_has_post_forking().
int fdstore_add(int fd);  // id, or -1
int fdstore_get(int id);  // new fd, or -1

// Whether the images are streamed (--stream, to or from an image streamer): then there is no directory to
// write into.
bool streaming();
// Whether the streamer is gone, or goes before that time is over. REQUIRES: streaming().
bool streamer_ends_within(int milliseconds);
// Our end of a pipe for the file of that name: the host asks its streamer. In any thread and any task, one at
// a time, which the host sees to: blocks while the streamer is busy with another file. -ENOENT: restore, no
// such file; any other negative number: no streamer any more, of which the host may tell its log. REQUIRES:
// streaming(); `dump` as in the run.
int host_open_stream(const std::string& name, bool dump);

// Inventory of plugins that an image needs (CRIU >= 4.1; elsewhere nothing happens and everything is
// enabled).
Result<void> inventory_add_self();  // at most once per dump; nothing where the host keeps no such list
bool inventory_says_not_needed();   // restore, in init(): true when the image was made without any GPU plugin

}  // namespace sluice::plugin
