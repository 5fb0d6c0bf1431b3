// SPDX-License-Identifier: MIT
#include "cli/check/obstacles/dump_tree.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <sstream>

#include "base/unique_fd.h"
#include "proc/directory.h"

namespace sluice::cli {
namespace {

constexpr std::size_t kStatusBytes = 16384;
constexpr std::size_t kLinkBytes = 4096 + 16;  // a path, and " (deleted)"

bool gone(int err) {
  return err == ENOENT || err == ESRCH;
}

std::optional<std::string> read_link(const std::string& path) {
  std::array<char, kLinkBytes> text{};
  const ssize_t length = ::readlink(path.c_str(), text.data(), text.size());
  if (length < 0) return std::nullopt;
  return std::string(text.data(), static_cast<std::size_t>(length));
}

// The last number in "NSpid:\t4711\t12\t1".
std::optional<pid_t> innermost(std::string_view numbers) {
  while (!numbers.empty() && (numbers.back() == '\t' || numbers.back() == ' ')) numbers.remove_suffix(1);
  const std::size_t at = numbers.find_last_of("\t ");
  return proc::parse_number(numbers.substr(at == std::string_view::npos ? 0 : at + 1));
}

void read_status(TaskFacts& task) {
  const std::string text = proc_text(task.directory + "/status", kStatusBytes);
  const std::string_view state = line_of(text, "State:\t");
  if (!state.empty()) task.state = state.front();
  task.threads = static_cast<unsigned>(proc::parse_number(line_of(text, "Threads:\t")).value_or(0));
  task.tracer = proc::parse_number(line_of(text, "TracerPid:\t")).value_or(0);
  task.inner_pid = innermost(line_of(text, "NSpid:\t")).value_or(0);
  task.inner_session = innermost(line_of(text, "NSsid:\t"));
  task.seccomp = proc::parse_number(line_of(text, "Seccomp:\t")).value_or(0);
}

// /proc/PID/stat after the name, which may contain anything: state ppid pgrp session tty_nr tpgid.
void read_stat(TaskFacts& task) {
  const std::string text = proc_text(task.directory + "/stat", kStatusBytes);
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return;
  std::istringstream fields(text.substr(name_end + 1));
  char state = 0;
  pid_t parent = 0;
  pid_t group = 0;
  unsigned terminal = 0;
  fields >> state >> parent >> group >> task.session >> terminal >> task.foreground_group;
  // new_encode_dev of the kernel (include/linux/kdev_t.h).
  if (fields && terminal != 0)
    task.terminal = makedev((terminal & 0xfff00U) >> 8U, (terminal & 0xffU) | ((terminal >> 12U) & 0xfff00U));
}

// "Max open files            1024                 4096                 files": the first number.
std::optional<std::uint64_t> soft_limit(std::string_view text, std::string_view name) {
  std::string_view rest = line_of(text, name);
  rest.remove_prefix(std::min(rest.size(), rest.find_first_not_of(' ')));
  if (rest.empty() || rest.front() < '0' || rest.front() > '9') return std::nullopt;
  return std::strtoull(std::string(rest.substr(0, rest.find(' '))).c_str(), nullptr, 10);
}

void read_limits(TaskFacts& task) {
  const std::string text = proc_text(task.directory + "/limits", kStatusBytes);
  task.descriptor_limit = soft_limit(text, "Max open files");
  task.address_space_limit = soft_limit(text, "Max address space");
  if (!task.address_space_limit) return;
  const std::string pages = proc_text(task.directory + "/statm", kStatusBytes);
  task.address_space =
      std::strtoull(pages.c_str(), nullptr, 10) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

// One process' descriptors, at most `room`. Errors as for read_dump_tree.
Result<std::vector<OpenDescriptor>> read_descriptors(const TaskFacts& task, std::size_t room) {
  const std::string directory = task.directory + "/fd";
  auto numbers = proc::numbered_entries(directory);
  if (!numbers) return std::move(numbers).error();
  std::vector<OpenDescriptor> found;
  found.reserve(std::min(numbers->size(), room));
  for (const int fd : *numbers) {
    if (found.size() == room) break;
    const std::string name = directory + "/" + std::to_string(fd);
    std::optional<std::string> link = read_link(name);
    if (!link) continue;
    OpenDescriptor descriptor{fd, std::move(*link), std::nullopt};
    if (descriptor.link.starts_with('/')) {
      auto file = file_facts(name);
      if (file) {
        descriptor.file = *file;
      } else if (gone(file.error().err)) {
        continue;
      } else if (descriptor.link.starts_with("/dev/")) {
        return make_error(file.error().err, "stat of descriptor " + std::to_string(fd) + " of process " +
                                                std::to_string(task.pid));
      }
    }
    found.push_back(std::move(descriptor));
  }
  return found;
}

}  // namespace

std::string proc_text(const std::string& path, std::size_t most) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  std::string text;
  while (fd && text.size() < most) {
    const std::size_t before = text.size();
    const std::size_t part = std::min<std::size_t>(most - before, std::max<std::size_t>(4096, before));
    text.resize(before + part);
    const ssize_t got = TEMP_FAILURE_RETRY(::read(fd.get(), &text[before], part));
    text.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got <= 0) break;
  }
  return text;
}

std::string_view line_of(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (line.starts_with(key)) return line.substr(key.size());
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
  return {};
}

Result<FileFacts> file_facts(const std::string& path, bool follow) {
  struct statx facts {};
  const int flags = AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT | (follow ? 0 : AT_SYMLINK_NOFOLLOW);
  if (::statx(AT_FDCWD, path.c_str(), flags, STATX_BASIC_STATS | STATX_MNT_ID, &facts) != 0)
    return make_error(errno, path);
  constexpr std::uint64_t kBlock = 512;  // unit of stx_blocks
  FileFacts file;
  file.mode = facts.stx_mode;
  file.device = makedev(facts.stx_dev_major, facts.stx_dev_minor);
  file.inode = facts.stx_ino;
  file.number = makedev(facts.stx_rdev_major, facts.stx_rdev_minor);
  file.links = facts.stx_nlink;
  file.bytes_on_disk = facts.stx_blocks * kBlock;
  if ((facts.stx_mask & STATX_MNT_ID) != 0) file.mount = facts.stx_mnt_id;
  return file;
}

Namespaces namespaces_of(const std::string& process) {
  Namespaces found{};
  for (std::size_t i = 0; i < kNamespaces.size(); ++i) {
    const auto link = read_link(process + "/ns/" + kNamespaces[i]);  // "pid:[4026531836]"
    const std::size_t at = link ? link->find('[') : std::string::npos;
    if (at != std::string::npos) found[i] = std::strtoull(link->c_str() + at + 1, nullptr, 10);
  }
  return found;
}

Result<DumpTree> read_dump_tree(const std::vector<pid_t>& pids, const std::string& proc,
                                std::size_t most_descriptors) {
  DumpTree tree;
  tree.proc = proc;
  for (const pid_t pid : pids) {
    TaskFacts task;
    task.pid = pid;
    task.directory = proc + "/" + std::to_string(pid);
    read_status(task);
    read_stat(task);
    read_limits(task);
    task.namespaces = namespaces_of(task.directory);
    auto descriptors = read_descriptors(task, most_descriptors - tree.descriptors);
    if (!descriptors && !gone(descriptors.error().err)) return std::move(descriptors).error();
    if (descriptors) task.descriptors = std::move(*descriptors);
    tree.descriptors += task.descriptors.size();
    tree.pids.insert(pid);
    tree.tasks.push_back(std::move(task));
    if (tree.descriptors == most_descriptors) tree.cut = true;
  }
  return tree;
}

std::string process_text(const TaskFacts& task) {
  return "process " + std::to_string(task.pid);
}

std::string descriptor_text(const TaskFacts& task, const OpenDescriptor& descriptor) {
  return "descriptor " + std::to_string(descriptor.fd) + " of " + process_text(task);
}

}  // namespace sluice::cli
