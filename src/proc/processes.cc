// SPDX-License-Identifier: MIT
#include "proc/processes.h"

#include <linux/kcmp.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>

#include "proc/directory.h"
#include "proc/task_status.h"

namespace sluice::proc {
namespace {

bool process_gone(int err) {
  return err == ENOENT || err == ESRCH;
}

// Nothing if the task has ended, or is hidden from us (hidepid): then it is none of ours.
Result<std::optional<TaskStatus>> status_of(const std::string& directory) {
  auto status = read_task_status(directory);
  if (status) return std::optional(std::move(*status));
  if (no_such_task(status.error()) || status.error().err == EPERM || status.error().err == EACCES)
    return std::optional<TaskStatus>();
  return std::move(status).error();
}

std::string describe(FileHolder holder) {
  return "descriptor " + std::to_string(holder.fd) + " of process " + std::to_string(holder.pid);
}

// The numbers in /proc/PID/fd; none if the process is gone.
Result<std::vector<int>> descriptors_in(const std::string& directory) {
  auto entries = numbered_entries(directory);
  if (!entries && process_gone(entries.error().err)) return std::vector<int>();
  return entries;
}

// What an open file is. Nothing if it was closed meanwhile, or cannot be examined and is no device, such as a
// file of a server that is gone. A device that cannot be examined is an error: it may be one that we look
// for.
Result<std::optional<struct stat>> stat_descriptor(const std::string& directory, FileHolder holder) {
  const std::string name = directory + "/" + std::to_string(holder.fd);
  struct stat st {};
  if (::stat(name.c_str(), &st) == 0) return std::optional(st);
  const int err = errno;
  constexpr std::string_view kDevices = "/dev/";
  std::array<char, kDevices.size()> link{};
  const ssize_t length = ::readlink(name.c_str(), link.data(), link.size());
  if (process_gone(err) || (length < 0 && process_gone(errno))) return std::optional<struct stat>();
  if (length >= 0 && std::string_view(link.data(), static_cast<std::size_t>(length)) != kDevices)
    return std::optional<struct stat>();
  return make_error(err, "stat of " + describe(holder));
}

// The fields of /proc/PID/stat after the name, which may contain anything (proc(5)).
enum StatField : std::size_t { kStatState = 0, kStatFlags = 6, kStatThreads = 17, kStatExitCode = 49 };
std::optional<std::array<std::string, kStatExitCode + 1>> read_stat(const std::string& directory) {
  std::ifstream stat(directory + "/stat");
  std::string text;
  std::getline(stat, text);
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::array<std::string, kStatExitCode + 1> found;
  for (std::string& field : found) fields >> field;
  if (!fields) return std::nullopt;
  return found;
}

}  // namespace

Result<std::vector<pid_t>> traced_processes(const char* proc) {
  return processes_traced_by(::gettid(), proc);
}

Result<std::vector<pid_t>> processes_traced_by(pid_t tracer, const char* proc) {
  SLUICE_TRY_ASSIGN(const std::vector<int> pids, numbered_entries(proc));
  std::vector<pid_t> traced;
  for (const int pid : pids) {
    SLUICE_TRY_ASSIGN(const std::optional<TaskStatus> status,
                      status_of(std::string(proc) + "/" + std::to_string(pid)));
    if (status && status->tracer == tracer) traced.push_back(pid);
  }
  return traced;
}

Result<std::vector<pid_t>> descendants(pid_t ancestor, const char* proc) {
  SLUICE_TRY_ASSIGN(const std::vector<int> pids, numbered_entries(proc));
  std::multimap<pid_t, pid_t> children;
  for (const int pid : pids) {
    SLUICE_TRY_ASSIGN(const std::optional<TaskStatus> status,
                      status_of(std::string(proc) + "/" + std::to_string(pid)));
    if (status) children.emplace(status->parent, pid);
  }
  std::vector<pid_t> found;
  for (std::vector<pid_t> parents{ancestor}; !parents.empty();) {
    const auto [begin, end] = children.equal_range(parents.back());
    parents.pop_back();
    for (auto child = begin; child != end; ++child) {
      found.push_back(child->second);
      parents.push_back(child->second);
    }
  }
  return found;
}

// A list of threads ends early if the thread it has reached dies meanwhile: the kernel counts those left.
bool has_ended(pid_t pid, const char* proc) {
  const std::string directory = std::string(proc) + "/" + std::to_string(pid);
  const std::string threads = directory + "/task";
  const auto tids = numbered_entries(threads);
  if (!tids) return process_gone(tids.error().err);
  const bool all = std::all_of(tids->begin(), tids->end(), [&](int tid) {
    const auto status = read_task_status(threads + "/" + std::to_string(tid));
    return status ? status->state == 'Z' || status->state == 'X' : no_such_task(status.error());
  });
  const auto stat = read_stat(directory);
  return all && (!stat || std::strtoul((*stat)[kStatThreads].c_str(), nullptr, 10) <= tids->size());
}

bool is_ending(pid_t pid, const char* proc) {
  const std::string directory = std::string(proc) + "/" + std::to_string(pid);
  // Pending for the whole process: the signal stays there to the end, while threads remove their own.
  constexpr std::string_view kPending = "ShdPnd:\t";
  std::ifstream status(directory + "/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with(kPending)) continue;
    const auto pending = std::strtoull(line.c_str() + kPending.size(), nullptr, 16);
    if ((pending >> (SIGKILL - 1) & 1) != 0) return true;
  }
  // A process that exits by itself is sent no more signals. Before PF_EXITING it may wait, also for a ring's
  // I/O; then its exit code tells (seen on Linux 6.18). A stopped process' exit code means something else.
  constexpr unsigned long kExiting = 0x4;  // PF_EXITING, include/linux/sched.h
  const auto stat = read_stat(directory);
  if (!stat) return true;
  if ((std::strtoul((*stat)[kStatFlags].c_str(), nullptr, 10) & kExiting) != 0) return true;
  return (*stat)[kStatExitCode] != "0" && (*stat)[kStatState] != "t" && (*stat)[kStatState] != "T";
}

std::optional<pid_t> innermost_pid(pid_t pid, const char* proc) {
  std::ifstream status(std::string(proc) + "/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    // "NSpid:\t4711\t12\t1": outermost first.
    if (line.starts_with("NSpid:\t")) return parse_number(line.substr(line.rfind('\t') + 1));
  }
  return std::nullopt;
}

Result<std::vector<DeviceDescriptor>> device_descriptors(pid_t pid, std::span<const dev_t> devices,
                                                         const char* proc) {
  const std::string directory = std::string(proc) + "/" + std::to_string(pid) + "/fd";
  SLUICE_TRY_ASSIGN(const std::vector<int> descriptors, descriptors_in(directory));
  std::vector<DeviceDescriptor> found;
  for (const int fd : descriptors) {
    SLUICE_TRY_ASSIGN(const std::optional<struct stat> st, stat_descriptor(directory, {pid, fd}));
    if (!st || !S_ISCHR(st->st_mode)) continue;
    if (std::find(devices.begin(), devices.end(), st->st_rdev) != devices.end())
      found.push_back({fd, st->st_rdev});
  }
  return found;
}

Result<std::vector<int>> device_descriptors(pid_t pid, dev_t device, const char* proc) {
  SLUICE_TRY_ASSIGN(const std::vector<DeviceDescriptor> descriptors,
                    device_descriptors(pid, std::span(&device, 1), proc));
  std::vector<int> found;
  found.reserve(descriptors.size());
  for (const DeviceDescriptor& descriptor : descriptors) found.push_back(descriptor.fd);
  return found;
}

Result<std::vector<DmaBufDescriptor>> dmabuf_descriptors(pid_t pid, const char* proc) {
  constexpr std::string_view kDmaBufName = "/dmabuf";
  const std::string directory = std::string(proc) + "/" + std::to_string(pid) + "/fd";
  SLUICE_TRY_ASSIGN(const std::vector<int> descriptors, descriptors_in(directory));
  std::vector<DmaBufDescriptor> found;
  for (const int fd : descriptors) {
    const std::string name = directory + "/" + std::to_string(fd);
    std::array<char, kDmaBufName.size()> link{};
    const ssize_t length = ::readlink(name.c_str(), link.data(), link.size());
    if (length < 0 && !process_gone(errno)) return make_error(errno, "readlink of " + describe({pid, fd}));
    if (length < 0 || std::string_view(link.data(), static_cast<std::size_t>(length)) != kDmaBufName)
      continue;
    struct stat st {};
    if (::stat(name.c_str(), &st) == 0) {
      found.push_back({fd, st.st_ino});
    } else if (!process_gone(errno)) {
      return make_error(errno, "stat of " + describe({pid, fd}));
    }
  }
  return found;
}

RestoringProcess restoring_process(const std::vector<pid_t>& holders) {
  RestoringProcess lowest{holders.empty() ? 0 : holders.front(), std::nullopt};
  for (const pid_t holder : holders) {
    const auto pid = innermost_pid(holder);
    if (!pid) return {holders.front(), std::nullopt};
    if (!lowest.innermost || static_cast<std::uint32_t>(*pid) < *lowest.innermost)
      lowest = {holder, static_cast<std::uint32_t>(*pid)};
  }
  return lowest;
}

Result<bool> same_open_file(FileHolder a, FileHolder b) {
  if (a == b) return true;  // unreached: a guard
  const long order = ::syscall(SYS_kcmp, a.pid, b.pid, KCMP_FILE, static_cast<unsigned long>(a.fd),
                               static_cast<unsigned long>(b.fd));
  if (order >= 0) return order == 0;
  return make_error(errno, "kcmp of " + describe(a) + " and " + describe(b));
}

Result<std::vector<OpenFile>> open_device_files(const std::vector<pid_t>& pids,
                                                std::span<const dev_t> devices, const char* proc) {
  std::vector<OpenFile> files;
  for (const pid_t pid : pids) {
    SLUICE_TRY_ASSIGN(const std::vector<DeviceDescriptor> descriptors,
                      device_descriptors(pid, devices, proc));
    for (const DeviceDescriptor& descriptor : descriptors) {
      const FileHolder holder{pid, descriptor.fd};
      OpenFile* known = nullptr;
      for (OpenFile& file : files) {
        if (file.device != descriptor.device) continue;
        SLUICE_TRY_ASSIGN(const bool same, same_open_file(file.holders.front(), holder));
        if (same) {
          known = &file;
          break;
        }
      }
      if (known != nullptr) {
        known->holders.push_back(holder);
      } else {
        files.push_back({descriptor.device, {holder}});
      }
    }
  }
  return files;
}

std::vector<pid_t> processes_of(const std::vector<FileHolder>& holders) {
  std::vector<pid_t> pids;
  pids.reserve(holders.size());
  for (const FileHolder& holder : holders) pids.push_back(holder.pid);
  pids.erase(std::unique(pids.begin(), pids.end()), pids.end());
  return pids;
}

Result<UniqueFd> take_descriptor(FileHolder holder) {
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, holder.pid, 0U)));
  if (!pidfd) return make_error(errno, "pidfd_open of process " + std::to_string(holder.pid));
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_getfd, pidfd.get(), holder.fd, 0U)));
  if (!fd) return make_error(errno, "pidfd_getfd of " + describe(holder));
  return fd;
}

Result<UniqueFd> take_file(const OpenFile& listed) {
  const FileHolder& holder = listed.holders.front();
  SLUICE_TRY_ASSIGN(UniqueFd fd, take_descriptor(holder));
  struct stat st {};
  if (fstat(fd.get(), &st) != 0) return make_error(errno, "fstat of " + describe(holder));
  if (!S_ISCHR(st.st_mode) || st.st_rdev != listed.device)
    return Error{ESTALE, describe(holder) +
                             " changed while it was examined; stop every process that shares the tree's "
                             "descriptors, or dump it, too [SL-D01]"};
  return fd;
}

}  // namespace sluice::proc
