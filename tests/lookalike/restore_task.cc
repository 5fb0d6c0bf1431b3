// SPDX-License-Identifier: MIT
// Restore, the task's side: what CRIU's forked child does until it is the program again.
//
// After the last hook everything the plugin left behind is a bug that a real restore dies of, because the
// restorer unmaps the whole address space under it: threads, rings, maps of rings, descriptors. All of that
// is looked for here.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "lookalike/images.h"
#include "lookalike/log.h"
#include "lookalike/plugins.h"
#include "lookalike/restore.h"
#include "lookalike/service_fds.h"
#include "lookalike/stream.h"
#include "lookalike/task.h"
#include "lookalike/version.h"
#include "subject/subject.h"

namespace sluice::lookalike {
namespace {

// Descriptors that are still to be restored, for find_unused_fd_pid().
std::set<int> g_unrestored;

bool standing_fd(const Options& options, int fd) {
  return fd <= STDERR_FILENO || is_service(fd) || fd == options.control_fd || front_fd(fd);
}

// Moves a restored file to its place: the number must be free.
int move_to(int fd, int number) {
  if (fd == number) return 0;
  const int placed = ::fcntl(fd, F_DUPFD, number);
  if (placed != number) {
    log_line(kError, "Error: fd %d already in use\n", number);
    return -1;
  }
  ::close(fd);
  return 0;
}

int restore_fifo(const FdEntry& entry) {
  const int fd = ::open(entry.fifo.c_str(), O_RDWR);
  if (fd < 0) {
    log_line(kError, "Error: can't open %s: %s\n", entry.fifo.c_str(), std::strerror(errno));
    return -1;
  }
  return move_to(fd, entry.number);
}

int restore_files(const std::vector<FdEntry>& entries) {
  std::vector<FdEntry> owners, copies;  // the lowest descriptor of each file, and the others
  std::set<int> ids;
  for (const FdEntry& entry : entries) {
    if (!entry.fifo.empty()) {
      if (restore_fifo(entry) != 0) return -1;
      continue;
    }
    (ids.insert(entry.id).second ? owners : copies).push_back(entry);
    g_unrestored.insert(entry.number);
  }
  const auto placed = [](const FdEntry& entry) {
    (void)::fcntl(entry.number, F_SETFD, entry.cloexec ? FD_CLOEXEC : 0);
    g_unrestored.erase(entry.number);
  };
  // Files that ask for it are tried again after all others; a round without progress is a deadlock.
  while (!owners.empty()) {
    std::vector<FdEntry> again;
    for (const FdEntry& entry : owners) {
      bool retry = true;  // uninitialised in CRIU
      const int fd = run_restore_ext_file(entry.id, &retry);
      if (kHostVersion.retry && retry) {
        again.push_back(entry);
        continue;
      }
      if (fd < 0) {
        log_line(kError, "Error: Unable to restore 0x%x\n", static_cast<unsigned>(entry.id));
        return -1;
      }
      if (move_to(fd, entry.number) != 0) return -1;
      placed(entry);
    }
    if (again.size() == owners.size()) {
      log_line(kError, "Error: no progress with %zu files\n", again.size());
      return -1;
    }
    owners = std::move(again);
  }
  for (const FdEntry& entry : copies) {
    const auto owner = std::find_if(entries.begin(), entries.end(),
                                    [&](const FdEntry& other) { return other.id == entry.id; });
    const int copy = ::dup(owner->number);
    if (copy < 0 || move_to(copy, entry.number) != 0) return -1;
    placed(entry);
  }
  return 0;
}

struct Mapping {
  VmaEntry vma;
  int fd = -1;
};

// UPDATE_VMA_MAP for every VMA. CRIU shares a descriptor among VMAs of one file after another, by the file's
// id, but gives each map of a device an id of its own (criu/file-ids.c, fd_id_generate_special): each is
// mapped through what the plugin gives for it, else through a new open of the path.
int open_vmas(const std::vector<VmaEntry>& vmas, std::vector<Mapping>* mappings,
              std::set<int>* left_by_plugin) {
  for (const VmaEntry& vma : vmas) {
    Mapping mapping{vma, -1};
    std::uint64_t new_pgoff = 0;
    int plugin_fd = -1;
    const int result = run_update_vma_map(vma.path.c_str(), vma.start, vma.pgoff, &new_pgoff, &plugin_fd);
    if (result == 1) {
      log_line(kInfo, "New mmap 0x%llx:0x%llx->0x%llx fd %d\n", static_cast<unsigned long long>(vma.start),
               static_cast<unsigned long long>(vma.pgoff), static_cast<unsigned long long>(new_pgoff),
               plugin_fd);
      mapping.vma.pgoff = new_pgoff;
    }
    if (plugin_fd >= 0 && kHostVersion.dups_vma_fd) {
      mapping.fd = ::dup(plugin_fd);
      left_by_plugin->insert(plugin_fd);
    } else {
      mapping.fd = plugin_fd >= 0 ? plugin_fd : ::open(vma.path.c_str(), vma.flags);
    }
    if (mapping.fd < 0) {
      log_line(kError, "Error: can't open %s: %s\n", vma.path.c_str(), std::strerror(errno));
      return -1;
    }
    mappings->push_back(mapping);
  }
  return 0;
}

// Nothing of the plugin's may live on in the task.
void check_leftovers(const Options& options, const std::vector<FdEntry>& entries,
                     const std::vector<Mapping>& mappings, const std::set<int>& left_by_plugin,
                     const std::set<std::string>& maps_before) {
  for (const int thread : extra_threads()) violation("thread %d lives in the restored task", thread);
  std::set<int> expected;
  for (const FdEntry& entry : entries) expected.insert(entry.number);
  const int highest = expected.empty() ? STDERR_FILENO : *expected.rbegin();
  for (const Mapping& mapping : mappings) expected.insert(mapping.fd);
  std::set<std::string> common;
  for (const int fd : proc_numbers(0, "fd")) {
    if (standing_fd(options, fd) || expected.contains(fd)) continue;
    if (left_by_plugin.contains(fd) && kHostVersion.dups_vma_fd) {
      log_line(kInfo, "the plugin's descriptor %d stays: this host duplicated it\n", fd);
      continue;
    }
    // A host that duplicates what it gets does so after its last hook: the device files that the plugin maps
    // through may stay, out of the way of the task's own numbers.
    if (kind_of(fd) == FileKind::Device && fd > highest && kHostVersion.dups_vma_fd) {
      log_line(kInfo, "the plugin's descriptor %d (%s) stays\n", fd, link_of(fd).c_str());
      continue;
    }
    // The virtual devices' maps are no devices' in /proc/PID/map_files, so a stream does not tell of them,
    // nor which is the last: a file that all maps of a GPU are made through stays.
    if (kind_of(fd) == FileKind::Device && fd > highest && streams() && common.insert(link_of(fd)).second) {
      log_line(kInfo, "the plugin's descriptor %d stays: images are streamed\n", fd);
      continue;
    }
    violation("descriptor %d (%s) is left in the restored task", fd, link_of(fd).c_str());
  }
  for (const std::string& map : maps_of_note()) {
    if (!maps_before.contains(map)) violation("a map is left in the restored task: %s", map.c_str());
  }
}

// The task's own table of its device maps stands for /proc/PID/maps (subject_arena.h), which would tell the
// new offset and, on another machine, the new path.
void note_map(const Mapping& mapping) {
  subject::Arena& arena = *subject::arena_at_its_place();
  for (std::uint32_t i = 0; i < arena.num_maps; ++i) {
    subject::MapRecord& map = arena.maps[i];
    if (map.address != mapping.vma.start) continue;
    map.offset = mapping.vma.pgoff;
    (void)std::snprintf(map.path.data(), map.path.size(), "%s", link_of(mapping.fd).c_str());
  }
}

// What CRIU's restorer does: all VMAs at their places, in address order.
int map_everything(std::vector<Mapping>& mappings) {
  for (Mapping& mapping : mappings) {
    const VmaEntry& vma = mapping.vma;
    void* at = ::mmap(reinterpret_cast<void*>(vma.start), vma.bytes, vma.prot, MAP_SHARED | MAP_FIXED,
                      mapping.fd, static_cast<off_t>(vma.pgoff));
    if (at == MAP_FAILED) {
      log_line(kError, "Error: Can't restore 0x%llx mapping of %s at offset 0x%llx: %s\n",
               static_cast<unsigned long long>(vma.start), vma.path.c_str(),
               static_cast<unsigned long long>(vma.pgoff), std::strerror(errno));
      return -1;
    }
    note_map(mapping);
    if (::close(mapping.fd) != 0) {
      log_line(kError, "Error: the descriptor of %s was closed already\n", vma.path.c_str());
      return -1;
    }
  }
  return 0;
}

int restore_everything(const Options& options, unsigned number) {
  const int images = service(kImageFd);
  for (const int fd : proc_numbers(0, "fd")) {
    if (!standing_fd(options, fd)) ::close(fd);
  }
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  void* memory = read_pages(images, number, &address, &bytes);
  std::vector<FdEntry> fds;
  std::vector<VmaEntry> vmas;
  if (memory == nullptr || read_fds(images, number, &fds) != 0 || read_vmas(images, number, &vmas) != 0)
    return -1;
  relocate_services(fds.empty() ? STDERR_FILENO : fds.back().number);
  if (step(options, "premapped") != 0) return -1;
  const unsigned violations_before = violations();
  const std::set<std::string> maps_before = maps_of_note();
  if (restore_files(fds) != 0 || step(options, "restore_ext_file") != 0) return -1;
  std::vector<Mapping> mappings;
  std::set<int> left_by_plugin;
  if (open_vmas(vmas, &mappings, &left_by_plugin) != 0 || step(options, "update_vma_map") != 0) return -1;
  check_leftovers(options, fds, mappings, left_by_plugin, maps_before);
  if (violations() != violations_before) return -1;
  if (::mremap(memory, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, reinterpret_cast<void*>(address)) ==
      MAP_FAILED) {
    log_line(kError, "Error: can't move the memory to its place: %s\n", std::strerror(errno));
    return -1;
  }
  if (map_everything(mappings) != 0) return -1;
  return step(options, "restored");
}

// Any child that ends aborts the restore.
void child_of_task_ended(int) {
  ::_exit(1);
}

}  // namespace

int first_free_task_fd() {
  int number = g_unrestored.empty() ? STDERR_FILENO + 1 : *g_unrestored.rbegin() + 1;
  while (::fcntl(number, F_GETFD) >= 0) ++number;
  return number;
}

void restore_task(const Options& options, pid_t main, unsigned number, RestoreShared& shared) {
  struct sigaction action {};
  action.sa_handler = child_of_task_ended;
  (void)::sigaction(SIGCHLD, &action, nullptr);
  if (restore_everything(options, number) != 0) ::_exit(1);

  shared.task = kTaskRestored;
  futex_wake(shared.task);
  // CRIU's tasks wait on when it is dead. These end, so that one that does not is stuck in the plugin.
  while (!futex_wait_a_moment(shared.go, 0)) {
    if (::getppid() != main) ::_exit(1);
  }

  action.sa_handler = SIG_DFL;
  (void)::sigaction(SIGCHLD, &action, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  (void)::sigprocmask(SIG_SETMASK, &none, nullptr);
  shared.task = kTaskFree;
  futex_wake(shared.task);
  for (int type = 1; type <= kHostVersion.last_service_fd; ++type) close_service(type);
  if (options.control_fd >= 0) ::close(options.control_fd);
  subject::Arena* arena = subject::arena_at_its_place();
  ::_exit(arena->magic == subject::kArenaMagic ? subject::subject_continue(*arena) : 1);
}

}  // namespace sluice::lookalike
