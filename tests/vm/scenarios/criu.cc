// SPDX-License-Identifier: MIT
#include "criu.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <sstream>
#include <system_error>
#include <utility>

#include "support/refuse_system_call.h"

namespace sluice::vm_test {
namespace {

std::string text_of(pid_t pid, std::uint64_t address, std::size_t bytes) {
  std::string text(bytes, '\0');
  const iovec here{text.data(), text.size()};
  const iovec there{reinterpret_cast<void*>(address), bytes};
  ssize_t got = ::process_vm_readv(pid, &here, 1, &there, 1, 0);
  // What is asked for may reach into a page that is not there.
  if (got < 0 && bytes > 4096 - address % 4096) {
    const iovec shorter{there.iov_base, 4096 - address % 4096};
    got = ::process_vm_readv(pid, &here, 1, &shorter, 1, 0);
  }
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text.substr(0, text.find('\0'));
}

}  // namespace

Strings CriuRun::plugin_lines() const {
  Strings lines;
  std::istringstream text(log);
  for (std::string line; std::getline(text, line);) {
    if (line.find("amdgpu_plugin: ") != std::string::npos) lines.push_back(line);
  }
  return lines;
}

bool CriuRun::plugin_said(std::string_view text) const {
  const Strings lines = plugin_lines();
  return std::any_of(lines.begin(), lines.end(),
                     [text](const std::string& line) { return line.find(text) != std::string::npos; });
}

Launch Criu::command(const std::string& action, const std::filesystem::path& images, const Strings& more) {
  std::filesystem::create_directories(images);
  std::filesystem::create_directories(logs_);
  last_log_ = logs_ / (std::to_string(++runs_) + "-" + action + ".log");
  Launch launch;
  launch.arguments = {"criu", action, "-D", images.string(), "-o", last_log_.string(), "-v4"};
  if (!plugins_.empty()) launch.arguments.insert(launch.arguments.end(), {"-L", plugins_.string()});
  launch.arguments.insert(launch.arguments.end(), more.begin(), more.end());
  launch.environment = environment;
  launch.prepare = prepare;
  launch.output = last_log_.string() + ".stderr";
  return launch;
}

CriuRun Criu::dump(pid_t pid, const std::filesystem::path& images, const Strings& more) {
  Launch launch = command("dump", images, more);
  launch.arguments.insert(launch.arguments.end(), {"-t", std::to_string(pid)});
  return finish(launch);
}

CriuRun Criu::pre_dump(pid_t pid, const std::filesystem::path& images, const Strings& more) {
  Launch launch = command("pre-dump", images, more);
  launch.arguments.insert(launch.arguments.end(), {"-t", std::to_string(pid)});
  return finish(launch);
}

CriuRun Criu::restore(const std::filesystem::path& images, const Strings& more) {
  (void)living_children();  // what has ended gives up its pid
  Launch launch = command("restore", images, more);
  launch.arguments.push_back("-d");
  return finish(launch);
}

CriuRun Criu::finish(const Launch& launch) {
  CriuRun done;
  done.status = run(launch);
  done.log = read_file(last_log_);
  return done;
}

StoppedCriu::StoppedCriu(const Launch& launch) {
  Launch traced = launch;
  traced.prepare = [] {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(125);
    (void)::raise(SIGSTOP);
  };
  pid_ = start(traced);
  int status = 0;
  if (::waitpid(pid_, &status, 0) != pid_ || !WIFSTOPPED(status) ||
      ::ptrace(PTRACE_SETOPTIONS, pid_, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) != 0) {
    throw std::system_error(errno, std::generic_category(), "ptrace of criu");
  }
}

StoppedCriu::~StoppedCriu() {
  kill();
}

bool StoppedCriu::run_until(const std::function<bool(const SystemCall&)>& here) {
  long deliver = 0;
  for (;;) {
    if (::ptrace(PTRACE_SYSCALL, pid_, nullptr, deliver) != 0) return false;
    int status = 0;
    if (::waitpid(pid_, &status, 0) != pid_) return false;
    if (!WIFSTOPPED(status)) {
      pid_ = 0;
      return false;
    }
    const int signal = WSTOPSIG(status);
    deliver = signal == SIGTRAP || signal == SIGSTOP || signal == (SIGTRAP | 0x80) ? 0 : signal;
    if (signal != (SIGTRAP | 0x80)) continue;
    __ptrace_syscall_info info{};
    if (::ptrace(PTRACE_GET_SYSCALL_INFO, pid_, sizeof info, &info) <= 0) continue;
    // A call that is left has its number and arguments from when it was entered.
    if (info.op == PTRACE_SYSCALL_INFO_ENTRY) {
      call_ = SystemCall{};
      call_.entering = true;
      call_.number = info.entry.nr;
      for (int i = 0; i < 6; ++i) call_.arguments[i] = info.entry.args[i];
      call_.text = [pid = pid_](std::uint64_t address, std::size_t bytes) {
        return text_of(pid, address, bytes);
      };
    } else if (info.op == PTRACE_SYSCALL_INFO_EXIT) {
      call_.entering = false;
      call_.result = info.exit.rval;
    }
    if (call_.text && here(call_)) return true;
  }
}

void StoppedCriu::kill() {
  if (pid_ > 0) kill_and_reap(pid_);
  pid_ = 0;
}

pid_t StoppedCriu::let_go() {
  if (::ptrace(PTRACE_DETACH, pid_, nullptr, nullptr) != 0)
    throw std::system_error(errno, std::generic_category(), "detach from criu");
  return std::exchange(pid_, 0);
}

void take_no_descriptors() {
  if (!test::refuse_system_call(SYS_pidfd_getfd, EPERM)) ::_exit(125);
}

std::function<bool(const SystemCall&)> before_hook(unsigned hook) {
  return [text = "plugin: `amdgpu_plugin' hook " + std::to_string(hook) + " "](const SystemCall& call) {
    return !call.entering && call.number == SYS_write &&
           call.text(call.arguments[1], 128).find(text) != std::string::npos;
  };
}

std::function<bool(const SystemCall&)> criu_op(std::uint32_t op, bool entering) {
  return [op, entering](const SystemCall& call) {
    if (call.entering != entering || call.number != SYS_ioctl || (call.arguments[1] & 0xffffffff) != kCriuOp)
      return false;
    // One byte: operations are small numbers, and NUL ends a text.
    const std::string text = call.text(call.arguments[2] + kOffsetOfOp, 1);
    return (text.empty() ? 0U : static_cast<unsigned char>(text[0])) == op;
  };
}

std::function<bool(const SystemCall&)> opening(const std::string& name) {
  return [name](const SystemCall& call) {
    return call.entering && call.number == SYS_openat &&
           call.text(call.arguments[1], 256).find(name) != std::string::npos;
  };
}

std::function<bool(const SystemCall&)> renaming_to(const std::string& name) {
  return [name](const SystemCall& call) {
    if (!call.entering || (call.number != SYS_renameat && call.number != SYS_renameat2)) return false;
    return call.text(call.arguments[3], 256).find(name) != std::string::npos;
  };
}

}  // namespace sluice::vm_test
