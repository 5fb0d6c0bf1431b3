// SPDX-License-Identifier: MIT
// Names on the virtual machine: the state directory, the places it replaces, and the walk over a path's
// components. See paths_resolve.h. What the machine is (its directory, KFD's char major, the GPUs that the
// device cgroup hides) is read once, at the first call or in this library's constructor, and never changes.
#include "paths_resolve.h"

#include <sched.h>
#include <stdlib.h>
#include <sys/sysmacros.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <initializer_list>

#include "raw.h"

namespace vamdgpu {
namespace paths {
namespace {

constexpr std::uint32_t kDrmMajor = 226;
constexpr char kNowhere[] = "/absent";  // nothing has that name in a state directory
constexpr std::uint32_t kFirstRenderMinor = 128;
constexpr std::uint32_t kHiddenLimit = 64;  // nodes and render minors (less 128) that fit the masks below

// Constant once `phase` says Active.
struct MachineFacts {
  char directory[kPathBytes];  // canonical
  std::size_t directory_length;
  char root[kPathBytes];  // directory + "/sysfs"
  std::size_t root_length;
  std::uint32_t kfd_major;
  std::uint64_t hidden_nodes;    // bit per topology node
  std::uint64_t hidden_renders;  // bit per render minor - 128
  std::uint64_t absent_renders;  // likewise; see read_hidden_list()
};

enum Phase { kUnknown, kReading, kInactive, kActive };

MachineFacts facts;
std::atomic<int> phase{kUnknown};

bool starts_with(const char* text, const char* prefix) {
  return std::strncmp(text, prefix, std::strlen(prefix)) == 0;
}

// Digits at `text`; false if there is none. *end is what follows them.
bool parse_number(const char* text, std::uint32_t* number, const char** end) {
  const char* digit = text;
  std::uint32_t value = 0;
  for (; *digit >= '0' && *digit <= '9' && value < 100000000; ++digit)
    value = value * 10 + static_cast<std::uint32_t>(*digit - '0');
  *number = value;
  *end = digit;
  return digit != text;
}

// The canonical name of what `path` leads to. False if it does not exist or has no name.
bool canonical(const char* path, char* out, std::size_t* length) {
  const int fd = raw::openat(AT_FDCWD, path, O_PATH | O_CLOEXEC, 0);
  if (fd < 0) return false;
  char link[32];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t got = raw::readlinkat(AT_FDCWD, link, out, kPathBytes - 1);
  raw::close(fd);
  if (got <= 0 || out[0] != '/') return false;
  out[got] = '\0';
  *length = static_cast<std::size_t>(got);
  return true;
}

// The start of a file below the state directory as text; empty if it cannot be read.
template <std::size_t size>
void read_text(const char* below, char (&text)[size]) {
  char path[kPathBytes + 64];
  std::snprintf(path, sizeof path, "%s%s", facts.directory, below);
  ssize_t got = 0;
  const int fd = raw::openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
  if (fd >= 0) {
    got = raw::read(fd, text, size - 1);
    raw::close(fd);
  }
  text[got > 0 ? got : 0] = '\0';
}

// A line of it is "node N" (of the topology), "render N" (a minor), or "absent N": a minor whose node no
// absolute path leads to, as if the process' root were a container's that has none. From a directory outside
// of the container it is found.
void read_hidden_list() {
  char text[4096];
  read_text("/hidden", text);
  for (const char* line = text; line != nullptr && *line != '\0';) {
    std::uint32_t number = 0;
    const char* end = line;
    if (starts_with(line, "node ") && parse_number(line + 5, &number, &end) && number < kHiddenLimit)
      facts.hidden_nodes |= std::uint64_t{1} << number;
    for (const char* kind : {"render ", "absent "}) {
      if (!starts_with(line, kind) || !parse_number(line + 7, &number, &end) || number < kFirstRenderMinor ||
          number - kFirstRenderMinor >= kHiddenLimit)
        continue;
      (*kind == 'r' ? facts.hidden_renders : facts.absent_renders) |= std::uint64_t{1}
                                                                      << (number - kFirstRenderMinor);
    }
    line = std::strchr(end, '\n');
    if (line != nullptr) ++line;
  }
}

int read_machine() {
  const char* named = ::getenv("VAMDGPU_DIR");
  if (named == nullptr || *named == '\0') return kInactive;
  if (!canonical(named, facts.directory, &facts.directory_length)) return kInactive;
  constexpr char kBelow[] = "/sysfs";
  if (facts.directory_length + sizeof kBelow > kPathBytes) return kInactive;
  std::memcpy(facts.root, facts.directory, facts.directory_length);
  std::memcpy(facts.root + facts.directory_length, kBelow, sizeof kBelow);
  facts.root_length = facts.directory_length + sizeof kBelow - 1;
  char text[32];
  const char* end = nullptr;
  read_text("/sysfs/sys/class/kfd/kfd/dev", text);
  if (!parse_number(text, &facts.kfd_major, &end)) return kInactive;
  read_hidden_list();
  return kActive;
}

bool active() {
  int now = phase.load(std::memory_order_acquire);
  while (now != kActive && now != kInactive) {
    if (environ == nullptr) return false;  // libc has not been set up yet; asked again later
    if (now == kUnknown && phase.compare_exchange_strong(now, kReading)) {
      const int saved = errno;
      phase.store(read_machine(), std::memory_order_release);
      errno = saved;
    } else {
      ::sched_yield();
    }
    now = phase.load(std::memory_order_acquire);
  }
  return now == kActive;
}

__attribute__((constructor)) void read_early() {
  active();
}

// A path being put together: absolute, one '/' between components, none at the end; "" is the root.
struct Walk {
  char text[kPathBytes];
  std::size_t length = 0;
  bool overflow = false;

  void clear() { set("", 0); }
  void set(const char* from, std::size_t size) {
    std::memcpy(text, from, size);
    text[size] = '\0';
    length = size;
  }
  void append(const char* component, std::size_t size) {
    if (length + 1 + size >= sizeof text) {
      overflow = true;
      return;
    }
    text[length] = '/';
    std::memcpy(text + length + 1, component, size);
    length += 1 + size;
    text[length] = '\0';
  }
  void pop() {
    while (length > 0 && text[length - 1] != '/') --length;
    if (length > 0) --length;
    text[length] = '\0';
  }
};

// STATE/sysfs + `name`; false if that is too long.
bool below_root(const char* name, std::size_t length, char* out) {
  if (facts.root_length + length >= kPathBytes) return false;
  std::memcpy(out, facts.root, facts.root_length);
  std::memcpy(out + facts.root_length, name, length);
  out[facts.root_length + length] = '\0';
  return true;
}

bool exists_below_root(const char* name, std::size_t length) {
  char path[kPathBytes];
  struct stat ignored;
  return below_root(name, length, path) && raw::fstatat(AT_FDCWD, path, &ignored, AT_SYMLINK_NOFOLLOW) == 0;
}

// What follows `place` in `path` if path is that place or below it, else null.
const char* after(const char* path, const char* place) {
  const std::size_t length = std::strlen(place);
  if (std::strncmp(path, place, length) != 0) return nullptr;
  return path[length] == '\0' || path[length] == '/' ? path + length : nullptr;
}

// "226:128" or KFD's "235:0", alone or as first component: true with what follows it.
bool is_device_number(const char* text, std::uint32_t* major, std::uint32_t* minor, const char** end) {
  if (!parse_number(text, major, end) || **end != ':') return false;
  if (!parse_number(*end + 1, minor, end)) return false;
  if (**end != '\0' && **end != '/') return false;
  return *major == kDrmMajor || (*major == facts.kfd_major && *minor == 0);
}

// Whether the machine has `path` (absolute, walked) instead of the host.
bool is_ours(const char* path) {
  if (starts_with(path, "/dev/")) {
    const char* end = nullptr;
    std::uint32_t major = 0;
    std::uint32_t minor = 0;
    return after(path, "/dev/kfd") != nullptr || after(path, "/dev/dri") != nullptr ||
           (starts_with(path, "/dev/char/") && is_device_number(path + 10, &major, &minor, &end));
  }
  if (after(path, "/run/sluice") != nullptr) return true;
  if (!starts_with(path, "/sys/")) return false;
  for (const char* place : {"/sys/class/kfd", "/sys/devices/virtual/kfd", "/sys/class/drm",
                            "/sys/module/amdgpu", "/sys/bus/pci/devices", "/sys/bus/pci/drivers/amdgpu"})
    if (after(path, place) != nullptr) return true;
  const char* end = nullptr;
  std::uint32_t major = 0;
  std::uint32_t minor = 0;
  if (starts_with(path, "/sys/dev/char/")) return is_device_number(path + 14, &major, &minor, &end);
  constexpr char kPciRoots[] = "/sys/devices/pci";
  if (!starts_with(path, kPciRoots)) return false;
  const char* component_end = std::strchr(path + sizeof kPciRoots - 1, '/');
  return exists_below_root(
      path, component_end == nullptr ? std::strlen(path) : static_cast<std::size_t>(component_end - path));
}

// ".." of a place of ours: out of where a symbolic link leads to, not of where it stands.
void leave(Walk* walk) {
  if (is_ours(walk->text)) {
    char path[kPathBytes];
    char real[kPathBytes];
    std::size_t length = 0;
    if (below_root(walk->text, walk->length, path) && canonical(path, real, &length)) {
      length = to_machine_name(real, length);
      walk->set(real, length);
    }
  }
  walk->pop();
}

void follow(const char* path, Walk* walk) {
  while (*path != '\0') {
    while (*path == '/') ++path;
    const std::size_t size = std::strcspn(path, "/");
    if (size == 2 && path[0] == '.' && path[1] == '.')
      leave(walk);
    else if (size != 0 && !(size == 1 && path[0] == '.'))
      walk->append(path, size);
    path += size;
  }
}

// /proc/PID/root in front of a path leads to the same machine.
void drop_proc_root(Walk* walk) {
  if (!starts_with(walk->text, "/proc/")) return;
  const char* slash = std::strchr(walk->text + 6, '/');
  if (slash == nullptr) return;
  const char* rest = after(slash, "/root");
  if (rest == nullptr) return;
  const std::size_t length = walk->length - static_cast<std::size_t>(rest - walk->text);
  std::memmove(walk->text, rest, length + 1);
  walk->length = length;
}

// /proc/.../fd/N, or /dev/fd/N and its like.
bool is_open_file(const char* path) {
  if (after(path, "/dev/stdin") != nullptr || after(path, "/dev/stdout") != nullptr ||
      after(path, "/dev/stderr") != nullptr)
    return true;
  if (!starts_with(path, "/proc/") && !starts_with(path, "/dev/fd/")) return false;
  const char* name = std::strrchr(path, '/');
  std::uint32_t number = 0;
  const char* end = nullptr;
  if (!parse_number(name + 1, &number, &end) || *end != '\0') return false;
  return name - path >= 3 && std::strncmp(name - 3, "/fd", 3) == 0;
}

// A file of a topology node that the device cgroup hides.
bool is_hidden_file(const char* path) {
  if (facts.hidden_nodes == 0) return false;
  constexpr char kNodes[] = "/topology/nodes/";
  const char* nodes = std::strstr(path, kNodes);
  std::uint32_t node = 0;
  const char* end = nullptr;
  if (nodes == nullptr || !parse_number(nodes + sizeof kNodes - 1, &node, &end) || *end != '/') return false;
  if (node >= kHiddenLimit || (facts.hidden_nodes >> node & 1) == 0) return false;
  const char* name = std::strrchr(path, '/') + 1;
  return std::strcmp(name, "gpu_id") == 0 || std::strcmp(name, "name") == 0 ||
         std::strcmp(name, "properties") == 0;
}

// Whether walked `path` names a device node; fills node, card_minor and refused.
bool is_device(const char* path, Last last, Target* target) {
  const char* end = nullptr;
  std::uint32_t major = 0;
  std::uint32_t minor = 0;
  if (last == Last::Follow && starts_with(path, "/dev/char/") &&
      is_device_number(path + 10, &major, &minor, &end) && *end == '\0') {
    if (major == facts.kfd_major)
      target->node = {NodeKind::Kfd, 0};
    else if (minor >= kFirstRenderMinor)
      target->node = {NodeKind::Render, minor};
    else
      target->card_minor = minor;
  } else if (std::strcmp(path, "/dev/kfd") == 0) {
    target->node = {NodeKind::Kfd, 0};
  } else if (starts_with(path, "/dev/dri/renderD") && parse_number(path + 16, &minor, &end) && *end == '\0') {
    target->node = {NodeKind::Render, minor};
  } else if (starts_with(path, "/dev/dri/card") && parse_number(path + 13, &minor, &end) && *end == '\0') {
    target->card_minor = minor;
  } else {
    return false;
  }
  target->refused = target->node.kind == NodeKind::Render && minor >= kFirstRenderMinor &&
                    minor - kFirstRenderMinor < kHiddenLimit &&
                    (facts.hidden_renders >> (minor - kFirstRenderMinor) & 1) != 0;
  return true;
}

// Whether a link that somebody has made lies where a device node was. What stands for a node is one to the
// null device, or the null device.
bool is_foreign_link(const char* path) {
  constexpr char kNull[] = "/dev/null";
  char text[sizeof kNull];
  const ssize_t length = raw::readlinkat(AT_FDCWD, path, text, sizeof text);
  return length >= 0 && (length != sizeof kNull - 1 || std::memcmp(text, kNull, sizeof kNull - 1) != 0);
}

// A cheap look at a path before anything is done: most paths end here.
bool absolute_may_matter(const char* path) {
  while (*path == '/') ++path;
  return starts_with(path, "sys") || starts_with(path, "dev") || starts_with(path, "proc") ||
         starts_with(path, "run/sluice") || *path == '.' || std::strstr(path, "/..") != nullptr;
}

bool relative_may_matter(const char* path) {
  for (const char* part : {"kfd", "dri", "drm", "render", "card", "pci", "amdgpu", "226:", ":0", "fd", ".."})
    if (std::strstr(path, part) != nullptr) return true;
  if (facts.hidden_nodes != 0)
    for (const char* part : {"gpu_id", "name", "properties"})
      if (std::strstr(path, part) != nullptr) return true;
  return path[std::strspn(path, "0123456789")] == '\0';
}

// Starts the walk where a relative path starts. False if that place has no name.
bool start_at(int directory, Walk* walk, bool* below_state) {
  char link[32] = "/proc/self/cwd";
  if (directory != AT_FDCWD) std::snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
  const ssize_t got = raw::readlinkat(AT_FDCWD, link, walk->text, kPathBytes - 1);
  if (got <= 0 || walk->text[0] != '/') return false;
  const std::size_t length = to_machine_name(walk->text, static_cast<std::size_t>(got));
  *below_state = length != static_cast<std::size_t>(got);
  walk->length = length == 1 && walk->text[0] == '/' ? 0 : length;
  walk->text[walk->length] = '\0';
  return true;
}

bool ends_as_directory(const char* path) {
  const std::size_t length = std::strlen(path);
  return path[length - 1] == '/' || (length >= 2 && std::strcmp(path + length - 2, "/.") == 0);
}

bool is_absent(const Node& node) {
  return node.kind == NodeKind::Render && node.minor >= kFirstRenderMinor &&
         node.minor - kFirstRenderMinor < kHiddenLimit &&
         (facts.absent_renders >> (node.minor - kFirstRenderMinor) & 1) != 0;
}

void resolve_walked(const char* path, bool below_state, Last last, Walk* walk, Target* target) {
  drop_proc_root(walk);
  if (is_open_file(walk->text)) {
    target->meaning = Meaning::OpenFile;
    return;
  }
  const bool ours = is_ours(walk->text);
  if (!ours && !below_state) return;
  const bool as_directory = ends_as_directory(path);
  if (ours && !as_directory && is_device(walk->text, last, target)) {
    char name[32];
    device_name(*target, name);
    if (!below_root(name, std::strlen(name), target->path)) return;
    if (*path == '/' && is_absent(target->node)) {
      target->meaning = Meaning::Virtual;
      (void)below_root(kNowhere, sizeof kNowhere - 1, target->path);
      return;
    }
    target->meaning = is_foreign_link(target->path) ? Meaning::Virtual : Meaning::Device;
    return;
  }
  if (as_directory) walk->append("", 0);
  if (walk->overflow) return;
  if (ours) {
    if (!below_root(walk->text, walk->length, target->path)) return;
  } else {
    std::memcpy(target->path, walk->text, walk->length + 1);  // out of the machine's tree, into the host's
    if (walk->length == 0) std::memcpy(target->path, "/", 2);
  }
  target->meaning = ours && is_hidden_file(walk->text) ? Meaning::Refused : Meaning::Virtual;
}

}  // namespace

void resolve(int directory, const char* path, Last last, Target* target) {
  if (path == nullptr || *path == '\0' || !active()) return;
  const bool absolute = *path == '/';
  if (!(absolute ? absolute_may_matter(path) : relative_may_matter(path))) return;
  const int saved = errno;
  Walk walk;
  walk.clear();
  bool below_state = false;
  if (absolute || start_at(directory, &walk, &below_state)) {
    follow(path, &walk);
    if (!walk.overflow) resolve_walked(path, below_state, last, &walk, target);
  }
  errno = saved;
}

Node node_of_device(dev_t device) {
  if (!active()) return {};
  if (major(device) == facts.kfd_major && minor(device) == 0) return {NodeKind::Kfd, 0};
  if (major(device) == kDrmMajor && minor(device) >= kFirstRenderMinor)
    return {NodeKind::Render, static_cast<std::uint32_t>(minor(device))};
  return {};
}

bool is_path_descriptor(int directory, const char* link, const struct stat& status, Target* target) {
  if (!active() || !(S_ISLNK(status.st_mode) || S_ISCHR(status.st_mode))) return false;
  const int saved = errno;
  char text[kPathBytes];
  const ssize_t got = raw::readlinkat(directory, link, text, kPathBytes - 1);
  errno = saved;
  if (got <= 0) return false;
  text[got] = '\0';
  const std::size_t length = to_machine_name(text, static_cast<std::size_t>(got));
  if (length == static_cast<std::size_t>(got)) return false;
  text[length] = '\0';
  if (!is_device(text, Last::NoFollow, target)) return false;
  target->meaning = Meaning::Device;
  return below_root(text, length, target->path);
}

dev_t device_of(const Target& target) {
  switch (target.node.kind) {
    case NodeKind::Kfd:
      return makedev(facts.kfd_major, 0);
    case NodeKind::Render:
      return makedev(kDrmMajor, target.node.minor);
    case NodeKind::None:
      break;
  }
  return makedev(kDrmMajor, target.card_minor);
}

void device_name(const Target& target, char* name) {
  constexpr std::size_t kRoom = 32;
  switch (target.node.kind) {
    case NodeKind::Kfd:
      std::snprintf(name, kRoom, "/dev/kfd");
      return;
    case NodeKind::Render:
      std::snprintf(name, kRoom, "/dev/dri/renderD%u", target.node.minor);
      return;
    case NodeKind::None:
      std::snprintf(name, kRoom, "/dev/dri/card%u", target.card_minor);
      return;
  }
}

std::size_t to_machine_name(char* text, std::size_t length) {
  if (!active() || length < facts.root_length || std::memcmp(text, facts.root, facts.root_length) != 0)
    return length;
  const std::size_t rest = length - facts.root_length;
  if (rest == 0) {
    text[0] = '/';
    return 1;
  }
  if (text[facts.root_length] != '/') return length;
  std::memmove(text, text + facts.root_length, rest);
  return rest;
}

}  // namespace paths

const char* state_dir() {
  return paths::active() ? paths::facts.directory : nullptr;
}

Node node_of_path(const char* path) {
  paths::Target target;
  paths::resolve(AT_FDCWD, path, paths::Last::Follow, &target);
  struct stat ignored;
  if (target.meaning != paths::Meaning::Device) return {};
  if (raw::fstatat(AT_FDCWD, target.path, &ignored, AT_SYMLINK_NOFOLLOW) != 0) return {};
  return target.node;
}

}  // namespace vamdgpu
