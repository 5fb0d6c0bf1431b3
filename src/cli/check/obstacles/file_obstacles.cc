// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string_view>

#include "base/printable.h"
#include "base/units.h"
#include "cli/check/obstacles/dump_obstacles.h"
#include "proc/directory.h"

namespace sluice::cli {
namespace {

// The kernel's devices.txt.
constexpr unsigned kMemMajor = 1, kTtyMajor = 4, kTtyAuxMajor = 5, kMiscMajor = 10;
constexpr unsigned kPtmMajor = 128, kPtmMajors = 8, kPtsMajor = 136, kUsbSerialMajor = 188,
                   kSerialMajor = 204;
constexpr unsigned kTunMinor = 200, kAutofsMinor = 235, kPtmxMinor = 2, kCurrentTtyMinor = 0;
constexpr unsigned kLastConsole = 63;

constexpr std::size_t kFdinfoBytes = 65536;
constexpr std::size_t kLockBytes = 4 * kMiB;
constexpr std::uint64_t kFirstPidNamespace = 0xEFFFFFFC;  // PROC_PID_INIT_INO

// The terminals that CRIU's tty.c has drivers for.
bool is_terminal(dev_t number) {
  const unsigned minor_number = minor(number);
  switch (major(number)) {
    case kTtyMajor:
      return minor_number >= 1 && minor_number <= kLastConsole;
    case kTtyAuxMajor:
      return minor_number <= kPtmxMinor;
    case kUsbSerialMajor:
    case kSerialMajor:
    case kPtsMajor:
      return true;
    default:
      return major(number) >= kPtmMajor && major(number) < kPtmMajor + kPtmMajors;
  }
}

// Inodes with locks, from /proc/locks: "1: FLOCK  ADVISORY  WRITE 4711 fd:00:1234 0 EOF". Nothing: some are
// unknown, such as a lock whose owner has left a pid namespace.
std::optional<std::set<std::uint64_t>> locked_inodes(const DumpSurroundings& around) {
  if (namespaces_of(around.self)[kPidNs] != kFirstPidNamespace) return std::nullopt;
  const std::string text = proc_text(around.proc + "/locks", kLockBytes);
  if (text.size() >= kLockBytes) return std::nullopt;
  std::set<std::uint64_t> inodes;
  for (std::string_view rest = text; !rest.empty();) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    std::size_t colon = line.rfind(':');
    if (colon != std::string_view::npos)
      inodes.insert(std::strtoull(std::string(line.substr(colon + 1, 20)).c_str(), nullptr, 10));
  }
  return inodes;
}

// The files of a tree, one after the other.
class FileLook {
 public:
  FileLook(const DumpTree& tree, const DumpSurroundings& around, Obstacles& found)
      : tree_(tree), around_(around), found_(found), named_(tree, around), locked_(locked_inodes(around)) {
    for (const TaskFacts& task : tree.tasks)
      for (const std::uint64_t inode : task.namespaces) namespaces_.insert(inode);
    for (const std::uint64_t inode : namespaces_of(around.self)) namespaces_.insert(inode);
  }

  void look_at(const TaskFacts& task, const OpenDescriptor& descriptor) {
    const std::string& link = descriptor.link;
    if (link.starts_with("anon_inode:") || link.starts_with("pidfd:")) {
      look_at_anon_inode(task, descriptor);
    } else if (descriptor.file) {
      look_at_file(task, descriptor);
    } else if (!link.starts_with("socket:[") && !link.starts_with("pipe:[")) {
      look_at_unnamed(task, descriptor);
    }
  }

  // After all files: terminals whose other end is not in the tree.
  void look_at_terminals() {
    std::vector<const Slave*> alone;
    for (const auto& [index, slave] : slaves_) {
      if (masters_.count(index) == 0) alone.push_back(&slave);
    }
    if (alone.empty()) return;
    if (alone.size() > 1) {
      found_.add(obstacle::kTerminals, alone[0]->text + ", and " + alone[1]->text);
    } else {
      found_.add(obstacle::kTerminal, alone[0]->text);
    }
  }

 private:
  struct Slave {
    std::string text;
  };

  static std::string text_of(const TaskFacts& task, const OpenDescriptor& descriptor) {
    return descriptor_text(task, descriptor) + " is ";
  }
  std::string fdinfo(const TaskFacts& task, const OpenDescriptor& descriptor) const {
    return proc_text(task.directory + "/fdinfo/" + std::to_string(descriptor.fd), kFdinfoBytes);
  }

  void look_at_anon_inode(const TaskFacts& task, const OpenDescriptor& descriptor) {
    if (descriptor.link == "anon_inode:[pidfd]" || descriptor.link.starts_with("pidfd:")) {
      look_at_pidfd(task, descriptor);
    } else if (const auto refused = refused_anon_inode(descriptor.link, around_)) {
      found_.add(*refused->kind, text_of(task, descriptor) + refused->text, refused->text);
    }
  }

  void look_at_pidfd(const TaskFacts& task, const OpenDescriptor& descriptor) {
    const std::string text = text_of(task, descriptor) + "a pidfd";
    if (around_.criu_is_before(4, 1)) {
      found_.add(obstacle::kPidfd, text);
      return;
    }
    const std::string facts = fdinfo(task, descriptor);
    const auto flags = std::strtoul(std::string(line_of(facts, "flags:\t")).c_str(), nullptr, 8);
    const auto pid = proc::parse_number(line_of(facts, "Pid:\t"));  // nothing: -1, it has ended
    if ((flags & O_EXCL) != 0) {
      found_.add(obstacle::kAnonInode, text + " of a thread", "pidfd of a thread");
    } else if (pid && tree_.pids.count(*pid) == 0) {
      found_.add(obstacle::kPidfdOutside, text + " of process " + std::to_string(*pid));
    }
  }

  void look_at_file(const TaskFacts& task, const OpenDescriptor& descriptor) {
    const FileFacts& file = *descriptor.file;
    if (S_ISCHR(file.mode)) {
      look_at_character_device(task, descriptor, file);
    } else if (S_ISBLK(file.mode) || S_ISSOCK(file.mode)) {
      add_device(task, descriptor);
    } else if (descriptor.link.starts_with("/dmabuf:")) {
      return;  // the plugin's
    } else {
      look_at_named(task, descriptor, file);
    }
  }

  void look_at_named(const TaskFacts& task, const OpenDescriptor& descriptor, const FileFacts& file) {
    named_.look_at(task, text_of(task, descriptor), descriptor.link, file, found_);
    if (S_ISFIFO(file.mode) || (locked_ && locked_->count(file.inode) == 0)) return;
    if (line_of("\n" + fdinfo(task, descriptor), "lock:").empty()) return;
    found_.add(obstacle::kFileLock, text_of(task, descriptor) + printable(descriptor.link));
  }

  void look_at_character_device(const TaskFacts& task, const OpenDescriptor& descriptor,
                                const FileFacts& file) {
    const unsigned major_number = major(file.number);
    const bool is_tun = major_number == kMiscMajor && minor(file.number) == kTunMinor;
    if (std::find(around_.plugin_devices.begin(), around_.plugin_devices.end(), file.number) !=
        around_.plugin_devices.end())
      return;
    if (is_rdma(descriptor.link)) {
      add_device(task, descriptor);
      return;
    }
    if (major_number == kMemMajor || (major_number == kMiscMajor && minor(file.number) == kAutofsMinor)) {
      look_at_named(task, descriptor, file);
    } else if (is_terminal(file.number)) {
      look_at_terminal(task, descriptor, file);
    } else if (is_tun) {
      if (tree_.tasks.front().namespaces[kNetNs] == namespaces_of(around_.self)[kNetNs])
        found_.add(obstacle::kTun, text_of(task, descriptor) + printable(descriptor.link));
    } else {
      add_device(task, descriptor);
    }
  }

  void add_device(const TaskFacts& task, const OpenDescriptor& descriptor) {
    const ObstacleKind& kind = is_rdma(descriptor.link) ? obstacle::kRdma
                               : around_.other_plugins  ? obstacle::kDeviceOfOthers
                                                        : obstacle::kDevice;
    const std::string path = printable(descriptor.link);
    found_.add(kind, text_of(task, descriptor) + path, path);
  }

  void look_at_terminal(const TaskFacts& task, const OpenDescriptor& descriptor, const FileFacts& file) {
    const unsigned major_number = major(file.number);
    const std::string text = text_of(task, descriptor) + printable(descriptor.link);
    if (major_number == kTtyAuxMajor && minor(file.number) == kCurrentTtyMinor) {
      const bool beside =
          std::any_of(task.descriptors.begin(), task.descriptors.end(), [&task](const OpenDescriptor& other) {
            return other.file && S_ISCHR(other.file->mode) && other.file->number == task.terminal;
          });
      if (task.terminal != 0 && (!beside || task.foreground_group != task.session))
        found_.add(obstacle::kControllingTerminal, text);
      return;
    }
    if (major_number == kPtsMajor) {
      slaves_.try_emplace(minor(file.number), Slave{text});
    } else if (major_number == kTtyAuxMajor && minor(file.number) == kPtmxMinor) {
      if (const auto index = proc::parse_number(line_of(fdinfo(task, descriptor), "tty-index:\t")))
        masters_.insert(static_cast<unsigned>(*index));
    }
    // The terminal of a session whose leader is outside the tree.
    if (file.number == task.terminal && tree_.pids.count(task.session) == 0)
      found_.add(obstacle::kTerminal, text);
  }

  // "net:[4026531840]" is a namespace; nothing else without a path can be opened.
  void look_at_unnamed(const TaskFacts& task, const OpenDescriptor& descriptor) {
    const std::string& link = descriptor.link;
    const std::size_t at = link.find(":[");
    const bool is_namespace = at != std::string::npos &&
                              std::any_of(kNamespaces.begin(), kNamespaces.end(),
                                          [&](const char* kind) { return link.compare(0, at, kind) == 0; });
    if (!is_namespace) {
      found_.add(obstacle::kSpecialFile, text_of(task, descriptor) + printable(link), link);
    } else if (namespaces_.count(std::strtoull(&link[at + 2], nullptr, 10)) == 0) {
      found_.add(obstacle::kNamespaceFile, text_of(task, descriptor) + printable(link));
    }
  }

  const DumpTree& tree_;
  const DumpSurroundings& around_;
  Obstacles& found_;
  NamedFiles named_;
  std::optional<std::set<std::uint64_t>> locked_;  // nothing: each file has to be checked
  std::set<std::uint64_t> namespaces_;             // the tree's, and ours
  std::map<unsigned, Slave> slaves_;
  std::set<unsigned> masters_;
};

}  // namespace

bool is_rdma(const std::string& link) {
  return link.find("/infiniband/") != std::string::npos;
}

std::optional<AnonKind> refused_anon_inode(const std::string& link, const DumpSurroundings& around) {
  constexpr std::string_view kPrefix = "anon_inode:";
  constexpr std::array<std::string_view, 6> kTaken = {"[eventfd]",  "[eventpoll]", "inotify",
                                                      "[fanotify]", "[signalfd]",  "[timerfd]"};
  if (!link.starts_with(kPrefix)) return std::nullopt;
  const std::string_view name = std::string_view(link).substr(kPrefix.size());
  if (std::find(kTaken.begin(), kTaken.end(), name) != kTaken.end()) return std::nullopt;
  const std::string shown = printable(link);
  if (name == "[io_uring]") return AnonKind{&obstacle::kIoUring, "an io_uring (" + shown + ")"};
  if (name == "[perf_event]") return AnonKind{&obstacle::kPerfEvent, "a perf event (" + shown + ")"};
  if (name == "bpf-map") {
    if (around.criu_dumps_bpf_maps) return std::nullopt;
    return AnonKind{&obstacle::kBpf, "a BPF map (" + shown + ")"};
  }
  return AnonKind{&obstacle::kAnonInode, shown};
}

void find_file_obstacles(const DumpTree& tree, const DumpSurroundings& around, Obstacles& found) {
  FileLook look(tree, around, found);
  for (const TaskFacts& task : tree.tasks) {
    for (const OpenDescriptor& descriptor : task.descriptors) look.look_at(task, descriptor);
  }
  look.look_at_terminals();
}

}  // namespace sluice::cli
