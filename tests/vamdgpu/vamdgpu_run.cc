// SPDX-License-Identifier: MIT
// vamdgpu-run: makes a virtual machine with AMD GPUs, runs one command on it, removes the machine and exits
// with the command's status. One thread; signals are taken by sigwaitinfo, so the machine is removed on
// SIGINT, SIGTERM and SIGHUP too, after the command has ended.
#include <getopt.h>
#include <sys/wait.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "machine.h"

namespace {

constexpr int kUsageError = 2;
constexpr int kMachineError = 125;

constexpr const char* kHelp =
    "usage: vamdgpu-run [OPTION...] -- COMMAND [ARGUMENT...]\n"
    "\n"
    "Runs COMMAND on a virtual machine with AMD GPUs: /dev/kfd, /dev/dri/renderD*, the GPUs' sysfs and "
    "their\n"
    "memory are simulated by a preloaded library; everything else is this machine. Needs no GPU, no kernel\n"
    "module and no privilege. The virtual machine is gone when COMMAND has ended.\n"
    "\n"
    "  --gpus N           number of GPUs, 1 to 16 (2)\n"
    "  --preset NAME      the card: mi210 or mi300x (mi210)\n"
    "  --vram SIZE        memory of each GPU, a multiple of 4096 bytes; K, M, G, T (256M)\n"
    "  --gtt SIZE         system memory each GPU can reach through BOs (256M); like VRAM it is taken from "
    "the\n"
    "                     file system of the machine's directory (/dev/shm) at the start\n"
    "  --cpu-nodes K      number of CPU (NUMA) nodes, the GPUs spread over them (1)\n"
    "  --links xgmi|pcie  how the GPUs are joined (xgmi)\n"
    "  --minor-base N     minor of the first render node, 128 to 191 (128)\n"
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

bool parse_number(std::string_view text, unsigned* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

bool parse_size(std::string_view text, std::uint64_t* bytes) {
  unsigned shift = 0;
  if (!text.empty()) {
    const std::size_t suffix = std::string_view("KMGT").find(text.back());
    if (suffix != std::string_view::npos) {
      shift = 10 * static_cast<unsigned>(suffix + 1);
      text.remove_suffix(1);
    }
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *bytes);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  if (*bytes > std::numeric_limits<std::uint64_t>::max() >> shift) return false;
  *bytes <<= shift;
  return true;
}

bool parse_preset(std::string_view text, vamdgpu::Preset* preset) {
  const auto found = vamdgpu::preset_by_name(text);
  if (found.has_value()) *preset = *found;
  return found.has_value();
}

bool parse_links(std::string_view text, vamdgpu::Fabric* fabric) {
  *fabric = text == "pcie" ? vamdgpu::Fabric::Pcie : vamdgpu::Fabric::Xgmi;
  return text == "pcie" || text == "xgmi";
}

// False, after a line on stderr, when the arguments make no request.
bool parse(int argc, char** argv, Request* request) {
  enum Option { kGpus = 256, kPreset, kVram, kGtt, kCpuNodes, kLinks, kMinorBase, kDir, kKeep, kHelpOption };
  const option options[] = {{"gpus", required_argument, nullptr, kGpus},
                            {"preset", required_argument, nullptr, kPreset},
                            {"vram", required_argument, nullptr, kVram},
                            {"gtt", required_argument, nullptr, kGtt},
                            {"cpu-nodes", required_argument, nullptr, kCpuNodes},
                            {"links", required_argument, nullptr, kLinks},
                            {"minor-base", required_argument, nullptr, kMinorBase},
                            {"dir", required_argument, nullptr, kDir},
                            {"keep", no_argument, nullptr, kKeep},
                            {"help", no_argument, nullptr, kHelpOption},
                            {nullptr, 0, nullptr, 0}};
  vamdgpu::MachineOptions& machine = request->options;
  int which = 0;
  int index = 0;
  while ((which = ::getopt_long(argc, argv, "+", options, &index)) != -1) {
    bool good = true;
    switch (which) {
      case kGpus:
        good = parse_number(optarg, &machine.gpus);
        break;
      case kPreset:
        good = parse_preset(optarg, &machine.preset);
        break;
      case kVram:
        good = parse_size(optarg, &machine.vram_bytes);
        break;
      case kGtt:
        good = parse_size(optarg, &machine.gtt_bytes);
        break;
      case kCpuNodes:
        good = parse_number(optarg, &machine.cpu_nodes);
        break;
      case kLinks:
        good = parse_links(optarg, &machine.fabric);
        break;
      case kMinorBase:
        good = parse_number(optarg, &machine.minor_base);
        break;
      case kDir:
        request->directory = optarg;
        break;
      case kKeep:
        request->keep = true;
        break;
      case kHelpOption:
        request->help = true;
        return true;
      default:
        return false;  // getopt_long has said what is wrong
    }
    if (!good) {
      std::fprintf(stderr, "vamdgpu-run: --%s cannot be %s\n", options[index].name, optarg);
      return false;
    }
  }
  request->command.assign(argv + optind, argv + argc);
  if (request->command.empty()) std::fprintf(stderr, "vamdgpu-run: no command; see --help\n");
  return !request->command.empty();
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
    std::fputs(kHelp, stdout);
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
