// SPDX-License-Identifier: MIT
// A tree of processes as /proc shows it, read once: descriptors, sessions, namespaces, limits. Nothing of the
// processes is opened. Descriptors are examined by readlink(2) and statx(2) through /proc/PID/fd, which open
// no device and wait for no file server. Functions without state.
//
// A process or a file that disappears meanwhile is left out; what cannot be read is empty.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice::cli {

// A file's properties from statx.
struct FileFacts {
  mode_t mode = 0;
  dev_t device = 0;  // of its file system
  std::uint64_t inode = 0;
  dev_t number = 0;  // if it is a device file
  std::uint64_t links = 0;
  std::uint64_t bytes_on_disk = 0;
  std::optional<std::uint64_t> mount;  // its mount's id, from Linux 5.8 on
};
// Follows a final symbolic link, like those in /proc/PID/fd and map_files. Errors: statx's.
Result<FileFacts> file_facts(const std::string& path, bool follow = true);

struct OpenDescriptor {
  int fd = -1;
  std::string link;               // a path, "socket:[17]", "anon_inode:[io_uring]", ...
  std::optional<FileFacts> file;  // if it has a path
};

// Kinds of namespaces, in the order of TaskFacts::namespaces.
inline constexpr std::array<const char*, 9> kNamespaces = {
    "pid", "ipc", "uts", "user", "cgroup", "time", "net", "mnt", "time_for_children"};
enum NamespaceKind : std::size_t {
  kPidNs,
  kIpcNs,
  kUtsNs,
  kUserNs,
  kCgroupNs,
  kTimeNs,
  kNetNs,
  kMntNs,
  kTimeForChildrenNs
};
using Namespaces = std::array<std::uint64_t, kNamespaces.size()>;  // inodes; 0: not told
Namespaces namespaces_of(const std::string& process);              // "/proc/self", "/proc/17"

struct TaskFacts {
  pid_t pid = 0;
  std::string directory;  // "/proc/17"
  char state = 0;
  unsigned threads = 0;
  pid_t tracer = 0;  // 0: none
  // In its own pid namespace; 0: unknown or, for the session, outside of it.
  pid_t inner_pid = 0;
  std::optional<pid_t> inner_session;
  pid_t session = 0;                                 // in the reader's
  pid_t foreground_group = 0;                        // of its terminal
  dev_t terminal = 0;                                // 0: none
  int seccomp = 0;                                   // 0: none, 1: strict, 2: a filter
  std::uint64_t address_space = 0;                   // bytes in use
  std::optional<std::uint64_t> address_space_limit;  // nothing: unlimited
  std::optional<std::uint64_t> descriptor_limit;
  Namespaces namespaces{};
  std::vector<OpenDescriptor> descriptors;  // ascending
};

struct DumpTree {
  std::vector<TaskFacts> tasks;  // the first process first
  std::size_t descriptors = 0;
  bool cut = false;  // there are more descriptors than were allowed: the rest is missing
  std::set<pid_t> pids;
  std::string proc;
};
inline constexpr std::size_t kMostDescriptors = 65536;

// Errors: those of listing descriptors (EACCES: not allowed), and statx's for a file named like a device.
Result<DumpTree> read_dump_tree(const std::vector<pid_t>& pids, const std::string& proc,
                                std::size_t most_descriptors = kMostDescriptors);

// The rest of the line that begins with `key`; empty without one.
std::string_view line_of(std::string_view text, std::string_view key);
// The text of a file of /proc, at most `most` bytes; empty if it cannot be read.
std::string proc_text(const std::string& path, std::size_t most);

// "descriptor 4 of process 12 is ": the begin of a finding.
std::string descriptor_text(const TaskFacts& task, const OpenDescriptor& descriptor);
std::string process_text(const TaskFacts& task);

}  // namespace sluice::cli
