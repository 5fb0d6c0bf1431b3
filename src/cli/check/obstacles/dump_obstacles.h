// SPDX-License-Identifier: MIT
// Whether CRIU itself can dump a tree, as far as visible from outside, and with which options. By kind:
// files, maps, sockets, processes. Changes nothing. The only object of the processes that is opened is their
// network namespace, because the kernel lists sockets only to its members.
//
// Not covered: docs/reference/cli.md. One thread; find_socket_obstacles starts another, and ends it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "cli/check/obstacles/dump_tree.h"
#include "cli/check/obstacles/obstacles.h"

namespace sluice::cli {

// What decides, beside the tree.
struct DumpSurroundings {
  std::optional<CriuVersion> criu;    // nothing: unknown, treated as the newest
  bool criu_dumps_bpf_maps = false;   // built with libbpf
  bool other_plugins = false;         // in criu's plugin directory, beside ours
  std::vector<dev_t> plugin_devices;  // handled by our plugin
  std::string proc = "/proc";
  std::string self = "/proc/self";  // criu will run as this process does

  // False unless the version is known.
  bool criu_is_before(int major, int minor) const { return criu && *criu < CriuVersion{major, minor, 0}; }
};

// Descriptors, and the processes' directories.
void find_file_obstacles(const DumpTree& tree, const DumpSurroundings& around, Obstacles& found);
// Maps.
void find_map_obstacles(const DumpTree& tree, const DumpSurroundings& around, Obstacles& found);
// Sockets.
void find_socket_obstacles(const DumpTree& tree, const DumpSurroundings& around, Obstacles& found);
// Sessions, namespaces, limits, filters.
void find_process_obstacles(const DumpTree& tree, const DumpSurroundings& around, Obstacles& found);

// ---- what files and maps have in common

// An anonymous inode by its name, "anon_inode:[io_uring]": what it is, and why CRIU refuses it; nothing if
// CRIU accepts it, or more has to be checked.
struct AnonKind {
  const ObstacleKind* kind;
  std::string text;  // "an io_uring (anon_inode:[io_uring])"
};
std::optional<AnonKind> refused_anon_inode(const std::string& link, const DumpSurroundings& around);

// Whether a device belongs to RDMA, by the place of its node.
bool is_rdma(const std::string& link);

// Names of files as CRIU will look them up: by path in the mount namespace. Checks each file once.
class NamedFiles {
 public:
  explicit NamedFiles(const DumpTree& tree, const DumpSurroundings& around);
  // `text`: "descriptor 3 of process 12 is ". `link`: its path from the kernel.
  void look_at(const TaskFacts& task, const std::string& text, const std::string& link, const FileFacts& file,
               Obstacles& found);
  // Whether it is the kernel's own memory (memfd, /dev/zero shared, System V), which CRIU dumps as such.
  bool is_shared_memory(const FileFacts& file) const { return file.device == shared_memory_; }
  bool has_mount(const FileFacts& file) const;

 private:
  void look_at_name(const TaskFacts& task, const std::string& name, const std::string& link,
                    const FileFacts& file, Obstacles& found);

  const DumpTree& tree_;
  std::uint64_t own_mounts_ = 0;  // inode of our own namespace
  dev_t shared_memory_ = 0;
  std::map<std::uint64_t, std::string> roots_;  // per namespace: the prefix of paths in it
  std::set<std::uint64_t> mounts_;              // ids, of all namespaces of the tree
  bool all_mounts_told_ = true;                 // false in a chroot, where some are invisible
  std::set<std::tuple<std::uint64_t, dev_t, std::uint64_t, std::string>> looked_at_;
};

}  // namespace sluice::cli
