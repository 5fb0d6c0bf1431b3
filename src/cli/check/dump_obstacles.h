// SPDX-License-Identifier: MIT
// Whether CRIU itself can dump a tree, as far as it is seen from outside, and with which options. By kind of
// thing: files, maps, sockets, processes. Looks only: no descriptor, device or namespace of the processes is
// opened but that of their network, whose sockets the kernel tells to who is in it.
//
// What is not seen: docs/cli.md. One thread; find_socket_obstacles starts another, and ends it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "cli/check/dump_tree.h"
#include "cli/check/obstacles.h"

namespace sluice::cli {

// What decides, beside the tree.
struct DumpSurroundings {
  std::optional<CriuVersion> criu;    // nothing: not known, taken for the newest
  bool criu_dumps_bpf_maps = false;   // built with libbpf
  bool other_plugins = false;         // beside ours where criu looks for plugins
  std::vector<dev_t> plugin_devices;  // those that our plugin takes
  std::string proc = "/proc";
  std::string self = "/proc/self";  // criu will run as this process does

  // False only where the version is known.
  bool criu_is_before(int major, int minor) const { return criu && *criu < CriuVersion{major, minor, 0}; }
};

// Descriptors, and where processes are in the file system.
void find_file_obstacles(const DumpTree& tree, const DumpSurroundings& around, Obstacles& found);
// Maps.
void find_map_obstacles(const DumpTree& tree, const DumpSurroundings& around, Obstacles& found);
// Sockets.
void find_socket_obstacles(const DumpTree& tree, const DumpSurroundings& around, Obstacles& found);
// Sessions, namespaces, limits, filters.
void find_process_obstacles(const DumpTree& tree, const DumpSurroundings& around, Obstacles& found);

// ---- what files and maps have in common

// An anonymous inode by its name, "anon_inode:[io_uring]": what it is, and why CRIU refuses it; nothing where
// it takes it, or has to be asked more.
struct AnonKind {
  const ObstacleKind* kind;
  std::string text;  // "an io_uring (anon_inode:[io_uring])"
};
std::optional<AnonKind> refused_anon_inode(const std::string& link, const DumpSurroundings& around);

// Whether a device is one of RDMA, by where its node is.
bool is_rdma(const std::string& link);

// Names of files as CRIU will look for them again: by path in the namespace of mounts. Asks for each file
// once.
class NamedFiles {
 public:
  explicit NamedFiles(const DumpTree& tree, const DumpSurroundings& around);
  // `text`: "descriptor 3 of process 12 is ". `link`: its path, as the kernel tells it.
  void look_at(const TaskFacts& task, const std::string& text, const std::string& link, const FileFacts& file,
               Obstacles& found);
  // Whether it is memory of the kernel's own (memfd, /dev/zero shared, System V), which CRIU dumps as such.
  bool is_shared_memory(const FileFacts& file) const { return file.device == shared_memory_; }
  bool has_mount(const FileFacts& file) const;

 private:
  void look_at_name(const TaskFacts& task, const std::string& name, const std::string& link,
                    const FileFacts& file, Obstacles& found);

  const DumpTree& tree_;
  std::uint64_t own_mounts_ = 0;  // inode of our own namespace
  dev_t shared_memory_ = 0;
  std::map<std::uint64_t, std::string> roots_;  // of each namespace: what stands before a path in it
  std::set<std::uint64_t> mounts_;              // ids, of all namespaces of the tree
  bool all_mounts_told_ = true;                 // false in a chroot, where some cannot be seen
  std::set<std::tuple<std::uint64_t, dev_t, std::uint64_t, std::string>> looked_at_;
};

}  // namespace sluice::cli
