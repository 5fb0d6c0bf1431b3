// SPDX-License-Identifier: MIT
// The host's command line, and the places where a test may hold it or make it fail.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <vector>

namespace sluice::lookalike {

struct Options {
  std::string command;      // dump, pre-dump, restore
  std::vector<pid_t> pids;  // dump: the tasks of the tree, the root first
  std::vector<pid_t>
      outside;            // dump: frozen and traced with the tree, but not of it, as with --freeze-cgroup
  std::string in_flight;  // dump: a device of which a descriptor is in a socket's queue, and no task's
  std::string images;
  std::string parent;  // dump: what the link `parent` in `images` says; empty: none is made
  std::string libdir;
  std::string log;      // file, empty: standard error
  std::string pidfile;  // restore: gets the restored processes' ids, a line each
  unsigned log_level = 4;
  long timeout_ms = 10'000;  // dump: for pausing and freezing; 0: as long as that takes
  // restore: the hook is told of it, too, as of helpers that CRIU 3.17.1 has waited for; 0: there is none
  pid_t helper = 0;
  bool leave_running = false;
  bool stream = false;   // images go to, or come from, an image streamer
  bool detach = false;   // restore: do not wait for the restored process
  bool cgroupd = false;  // restore: there is a child that is no task (CRIU >= 3.18, for sets of cgroups)
  bool resumed_elsewhere = false;  // restore: another plugin, loaded before, answers RESUME_DEVICES_LATE
  std::string fail_after;          // step
  std::string hold;                // step
  int control_fd = -1;             // where a held host says "STEP\n" and waits for one byte
};

// Called at every step, in order. pre-dump: init, pause, seized, vmas of each task, cpu_pages, inventory.
// dump: init, pause, seized, checkpoint, vmas, dump_ext_file, cpu_pages, late, inventory, before_exit,
// after_exit. restore: init, forked, post_forking, [child:] premapped, restore_ext_file, update_vma_map,
// restored, [main:] seized, first_resumed, resume, detached, after_exit. Returns -1 where the operation must
// fail, else 0.
int step(const Options& options, const char* name);

// setns(CLONE_NEWNS) into the namespace we are in, which CRIU does while plugin threads may live: the kernel
// refuses it (EINVAL) to a process whose threads share its file system information. A refusal is a violation.
// Skipped where it needs a privilege we lack.
void check_setns();

// What a process has before any plugin is loaded.
struct Before {
  std::vector<int> fds;
  std::set<std::string> maps;  // maps_of_note()
};
Before look_before();

// Behind the plugins' exit(): threads, and descriptors and maps that were not there `before`, are violations.
void check_left_over(const Before& before);

int dump(const Options& options);
int pre_dump(const Options& options);

}  // namespace sluice::lookalike
