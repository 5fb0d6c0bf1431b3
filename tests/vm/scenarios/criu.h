// SPDX-License-Identifier: MIT
// The criu binary of the guest: run to its end, or to a point at which it is to be killed.
//
// Thread-bound: a stopped criu is traced by the thread that started it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "process.h"

namespace sluice::vm_test {

// AMDKFD_IOC_CRIU_OP, where its argument keeps the operation, and the operations (linux/kfd_ioctl.h).
inline constexpr std::uint32_t kCriuOp = 0xC0384B22, kOffsetOfOp = 48;
inline constexpr std::uint32_t kProcessInfo = 0, kCheckpoint = 1, kUnpause = 2, kRestore = 3, kResume = 4;

// One run that has ended.
struct CriuRun {
  std::optional<int> status;  // nothing: it hung and was killed
  std::string log;

  bool good() const { return status == 0; }
  // Whether the log has it.
  bool said(std::string_view text) const { return log.find(text) != std::string::npos; }
  // Lines of the plugin, and whether one of them has it.
  Strings plugin_lines() const;
  bool plugin_said(std::string_view text) const;
};

class Criu {
 public:
  // Logs go to `logs`, numbered.
  explicit Criu(std::filesystem::path logs) : logs_(std::move(logs)) {}

  // Directory of plugins to load. A scenario's own: the shipped plugin and, where it asks, others.
  void use_plugins(std::filesystem::path directory) { plugins_ = std::move(directory); }
  // For the runs that follow.
  std::map<std::string, std::string> environment;
  // Runs in criu's process before criu, in the runs that follow.
  std::function<void()> prepare;

  CriuRun dump(pid_t pid, const std::filesystem::path& images, const Strings& more = {});
  CriuRun pre_dump(pid_t pid, const std::filesystem::path& images, const Strings& more = {});
  // The restored processes are detached, and this program's children.
  CriuRun restore(const std::filesystem::path& images, const Strings& more = {});

  // The command line of a run, and where it logs: for StoppedCriu.
  Launch command(const std::string& action, const std::filesystem::path& images, const Strings& more);
  const std::filesystem::path& last_log() const { return last_log_; }
  // The last run, that of a StoppedCriu which has ended: what it logged.
  CriuRun last_run() const { return {std::nullopt, read_file(last_log_)}; }
  const std::filesystem::path& logs() const { return logs_; }

 private:
  CriuRun finish(const Launch& launch);

  std::filesystem::path logs_;
  std::filesystem::path plugins_;
  std::filesystem::path last_log_;
  unsigned runs_ = 0;
};

// A system call of criu's main thread, as it is entered or left.
struct SystemCall {
  bool entering = false;
  std::uint64_t number = 0;
  std::uint64_t arguments[6] = {};
  std::int64_t result = 0;  // when left
  // Text at an address of criu, at most `bytes` and up to the first NUL.
  std::function<std::string(std::uint64_t address, std::size_t bytes)> text;
};

// A criu that runs until a system call that the test names, and is then stopped.
class StoppedCriu {
 public:
  // Starts it, stopped before its first instruction.
  explicit StoppedCriu(const Launch& launch);
  ~StoppedCriu();  // kills
  StoppedCriu(const StoppedCriu&) = delete;
  StoppedCriu& operator=(const StoppedCriu&) = delete;

  // Lets it run until `here` says true. False when it ended before that.
  bool run_until(const std::function<bool(const SystemCall&)>& here);
  void kill();
  // It runs on, untraced; the caller's to kill and reap.
  pid_t let_go();

 private:
  pid_t pid_ = 0;
  SystemCall call_;
};

// For Criu::prepare: as in a container whose seccomp profile allows no pidfd_getfd.
void take_no_descriptors();

// ---- points to stop at
// CRIU's log says that it calls this hook next.
std::function<bool(const SystemCall&)> before_hook(unsigned hook);
// A CRIU_OP of the KFD, entered or left.
std::function<bool(const SystemCall&)> criu_op(std::uint32_t op, bool entering);
// A file of this name (a part of it) is opened, or renamed.
std::function<bool(const SystemCall&)> opening(const std::string& name);
std::function<bool(const SystemCall&)> renaming_to(const std::string& name);

}  // namespace sluice::vm_test
