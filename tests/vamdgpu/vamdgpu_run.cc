// SPDX-License-Identifier: MIT
// vamdgpu-run: makes a virtual machine with AMD GPUs, runs one command on it, removes the machine and exits
// with the command's status. One thread; signals are taken by sigwaitinfo, so the machine is removed on
// SIGINT, SIGTERM and SIGHUP too, after the command has ended.
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "machine_directory.h"
#include "machine_options.h"

namespace {

constexpr int kUsageError = 2;
constexpr int kMachineError = 125;

constexpr const char* kHelp =
    "usage: vamdgpu-run [OPTION...] -- COMMAND [ARGUMENT...]\n"
    "\n"
    "Runs COMMAND on a virtual machine with AMD GPUs: /dev/kfd, /dev/dri/renderD*, the GPUs' sysfs and "
    "their\n"
    "memory are simulated by a preloaded library; everything else is this machine. Needs no GPU, no kernel\n"
    "module and no privilege. The virtual machine is gone when COMMAND has ended. VRAM and GTT are taken "
    "from\n"
    "the file system of its directory (/dev/shm) at the start.\n"
    "\n"
    "%s (7.2)\n"
    "  --dir DIR          keep the machine's state in DIR; a machine that DIR already holds is used as it "
    "is\n"
    "                     (then the options above say nothing) and left there\n"
    "  --keep             do not remove the machine afterwards; prints where it is\n"
    "  --help             this text\n"
    "\n"
    "Exit status: COMMAND's own, 128+N when signal N ended it, 127 when it was not found, 126 when it could "
    "not\n"
    "be run; 2 for a wrong option, 125 when the machine could not be made.\n";

struct Request {
  vamdgpu::MachineOptions options;
  std::string directory;
  bool keep = false;
  bool help = false;
  std::vector<std::string> command;
};

// False, after a line on stderr, when the arguments make no request.
bool parse(int argc, char** argv, Request* request) {
  const int rest =
      vamdgpu::parse_options(argc, argv,
                             {{"dir", true, [&](const char* directory) { request->directory = directory; }},
                              {"keep", false, [&](const char*) { request->keep = true; }},
                              {"help", false, [&](const char*) { request->help = true; }}},
                             &request->options);
  if (rest == 0) return false;
  request->command.assign(argv + rest, argv + argc);
  const bool complete = request->help || !request->command.empty();
  if (!complete) std::fprintf(stderr, "vamdgpu-run: no command; see --help\n");
  return complete;
}

// Waits for the command, passing on what asks this process to end. A signal from the terminal reaches the
// whole foreground group, the command included, and is not passed on a second time.
int wait_for(pid_t pid, const sigset_t& signals) {
  while (true) {
    siginfo_t info{};
    const int signal = ::sigwaitinfo(&signals, &info);
    if (signal < 0) continue;
    if (signal != SIGCHLD) {
      if (info.si_code != SI_KERNEL) ::kill(pid, signal);
      continue;
    }
    int status = 0;
    if (::waitpid(pid, &status, WNOHANG) == pid) return vamdgpu::shell_status(status);
  }
}

int run(const Request& request) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&signals, signal);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);

  const bool attach = !request.directory.empty() && vamdgpu::Machine::exists(request.directory);
  vamdgpu::Machine machine = attach ? vamdgpu::Machine::attach(request.directory)
                                    : vamdgpu::Machine::create(request.options, request.directory);
  if (request.keep) {
    machine.keep();
    std::fprintf(stderr, "vamdgpu-run: machine in %s\n", machine.directory().c_str());
  }
  return wait_for(machine.start(request.command), signals);
}

}  // namespace

int main(int argc, char** argv) {
  Request request;
  if (!parse(argc, argv, &request)) return kUsageError;
  if (request.help) {
    std::printf(kHelp, vamdgpu::kMachineOptionsHelp);
    return 0;
  }
  try {
    return run(request);
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "vamdgpu-run: %s\n", error.what());
    return kUsageError;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "vamdgpu-run: %s\n", error.what());
    return kMachineError;
  }
}
