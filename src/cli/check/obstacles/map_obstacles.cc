// SPDX-License-Identifier: MIT
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <map>
#include <string_view>

#include "base/printable.h"
#include "base/units.h"
#include "cli/check/obstacles/dump_obstacles.h"

namespace sluice::cli {
namespace {

constexpr std::size_t kMapsBytes = 32 * kMiB;  // for a process with the kernel's maximum of maps
const dev_t kZeroDevice = makedev(1, 5);

// A line of /proc/PID/maps: "7f00-7f10 rw-s 0000 08:01 123   /path".
struct Map {
  std::string_view range;
  dev_t device = 0;
  std::uint64_t inode = 0;
  std::string_view name;
};

std::optional<Map> parse_map(std::string_view line) {
  Map map;
  map.range = line.substr(0, line.find(' '));
  unsigned major_number = 0;
  unsigned minor_number = 0;
  int name_at = 0;
  const std::string text(line.substr(0, 128));
  if (std::sscanf(text.c_str(), "%*x-%*x %*s %*x %x:%x %" SCNu64 "%n", &major_number, &minor_number,
                  &map.inode, &name_at) != 3)
    return std::nullopt;
  map.device = makedev(major_number, minor_number);
  map.name = line.substr(static_cast<std::size_t>(name_at));
  map.name.remove_prefix(std::min(map.name.size(), map.name.find_first_not_of(' ')));
  return map;
}

class MapLook {
 public:
  MapLook(const DumpTree& tree, const DumpSurroundings& around, Obstacles& found)
      : around_(around),
        found_(found),
        named_(tree, around),
        own_ipc_(tree.tasks.front().namespaces[kIpcNs] == namespaces_of(around.self)[kIpcNs]) {}

  void look_at(const TaskFacts& task) {
    std::string text = proc_text(task.directory + "/maps", kMapsBytes);
    // A child that has only forked maps the same as its parent.
    const bool seen = text == last_ && task.namespaces[kMntNs] == last_mounts_;
    last_ = std::move(text);
    last_mounts_ = task.namespaces[kMntNs];
    if (!seen) look_at_lines(task, last_);
  }

 private:
  void look_at_lines(const TaskFacts& task, std::string_view text) {
    for (std::string_view rest = text; !rest.empty();) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(rest.size(), line.size() + 1));
      const auto map = parse_map(line);
      if (map && !map->name.empty()) look_at(task, *map);
    }
  }

  void look_at(const TaskFacts& task, const Map& map) {
    const std::string text = process_text(task) + " maps ";
    if (map.name.front() == '[') {
      look_at_kernel_map(text, map.name);
    } else if (map.name.starts_with("anon_inode:")) {
      if (const auto refused = refused_anon_inode(std::string(map.name), around_))
        found_.add(*refused->kind, text + refused->text, refused->text);
    } else if (map.name.starts_with("/dmabuf:")) {
      found_.add(obstacle::kDmaBufMap, text + "a dma-buf");
    } else if (map.name.starts_with('/') && !map.name.starts_with("/[aio]")) {
      look_at_file(task, text, map);
    }
  }

  void look_at_kernel_map(const std::string& text, std::string_view name) {
    if (name == "[uprobes]") {
      found_.add(around_.criu_is_before(4, 2) ? obstacle::kUprobes : obstacle::kUprobesLeftOut,
                 text + "a tracer's probes ([uprobes])");
    } else if (name == "[vvar_vclock]" && around_.criu_is_before(4, 1)) {
      found_.add(obstacle::kCriuKernel, text + "the kernel's clocks ([vvar_vclock])");
    }
  }

  // Each file of a mount namespace once, however many processes map it.
  void look_at_file(const TaskFacts& task, const std::string& text, const Map& map) {
    if (!looked_at_.emplace(task.namespaces[kMntNs], map.device, map.inode, std::string(map.name)).second)
      return;
    const std::string link(map.name);
    if (link.starts_with("/secretmem")) {
      found_.add(obstacle::kSecretMemory, text + "secret memory (memfd_secret)");
      return;
    }
    const auto file = file_facts(task.directory + "/map_files/" + short_range(map.range));
    if (!file) return;
    if (named_.is_shared_memory(*file)) {
      if (own_ipc_ && link.starts_with("/SYSV"))
        found_.add(obstacle::kSysvShm, text + "System V shared memory");
    } else if (S_ISREG(file->mode)) {
      named_.look_at(task, text, link, *file, found_);
    } else if (S_ISCHR(file->mode) && file->number != kZeroDevice &&
               std::find(around_.plugin_devices.begin(), around_.plugin_devices.end(), file->number) ==
                   around_.plugin_devices.end()) {
      const ObstacleKind& kind = is_rdma(link)           ? obstacle::kRdma
                                 : around_.other_plugins ? obstacle::kDeviceOfOthers
                                                         : obstacle::kDeviceMap;
      found_.add(kind, text + printable(link), printable(link));
    }
  }

  // Names in map_files have no leading zeros; those of /proc/PID/maps have at least eight digits.
  static std::string short_range(std::string_view range) {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    (void)std::sscanf(std::string(range).c_str(), "%" SCNx64 "-%" SCNx64, &begin, &end);
    std::array<char, 40> text{};
    (void)std::snprintf(text.data(), text.size(), "%" PRIx64 "-%" PRIx64, begin, end);
    return text.data();
  }

  const DumpSurroundings& around_;
  Obstacles& found_;
  NamedFiles named_;
  bool own_ipc_;
  std::string last_;  // the last maps examined
  std::uint64_t last_mounts_ = 0;
  std::set<std::tuple<std::uint64_t, dev_t, std::uint64_t, std::string>> looked_at_;
};

}  // namespace

void find_map_obstacles(const DumpTree& tree, const DumpSurroundings& around, Obstacles& found) {
  MapLook look(tree, around, found);
  for (const TaskFacts& task : tree.tasks) look.look_at(task);
}

}  // namespace sluice::cli
