// SPDX-License-Identifier: MIT
// Parsing of the options that say what machine to make. See machine_options.h.
#include "machine_options.h"

#include <getopt.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <iterator>
#include <limits>
#include <string_view>

namespace vamdgpu {
namespace {

enum Option {
  kOwn = 256,  // every one of the program's; the index tells which
  kGpus,
  kPreset,
  kVram,
  kGtt,
  kCpuNodes,
  kLinks,
  kMinorBase,
  kMinors,
  kGpuIds,
  kNodeOrder,
  kLinux,
  kOutOfTree,
  kChangeHandle,
  kListHandles
};

template <typename Number>
bool parse_number(std::string_view text, Number* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

// "1,0,2"
template <typename Number>
bool parse_list(std::string_view text, std::vector<Number>* numbers) {
  numbers->clear();
  while (true) {
    const std::size_t comma = text.find(',');
    Number number = 0;
    if (!parse_number(text.substr(0, comma), &number)) return false;
    numbers->push_back(number);
    if (comma == std::string_view::npos) return true;
    text.remove_prefix(comma + 1);
  }
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
  if (!parse_number(text, bytes) || *bytes > std::numeric_limits<std::uint64_t>::max() >> shift) return false;
  *bytes <<= shift;
  return true;
}

bool parse_preset(std::string_view text, Preset* preset) {
  const auto found = preset_by_name(text);
  if (found.has_value()) *preset = *found;
  return found.has_value();
}

bool parse_links(std::string_view text, Fabric* fabric) {
  *fabric = text == "pcie" ? Fabric::Pcie : Fabric::Xgmi;
  return text == "pcie" || text == "xgmi";
}

bool parse_linux(std::string_view text, std::uint32_t* kfd_minor_version) {
  if (text == "6.1") {
    *kfd_minor_version = kKfdLinux61;
  } else if (text == "6.12") {
    *kfd_minor_version = kKfdLinux612;
  } else if (text == "7.2") {
    *kfd_minor_version = kKfdLinux72;
  } else {
    return false;
  }
  return true;
}

constexpr option kMachineOptions[] = {{"gpus", required_argument, nullptr, kGpus},
                                      {"preset", required_argument, nullptr, kPreset},
                                      {"vram", required_argument, nullptr, kVram},
                                      {"gtt", required_argument, nullptr, kGtt},
                                      {"cpu-nodes", required_argument, nullptr, kCpuNodes},
                                      {"links", required_argument, nullptr, kLinks},
                                      {"minor-base", required_argument, nullptr, kMinorBase},
                                      {"minors", required_argument, nullptr, kMinors},
                                      {"gpu-ids", required_argument, nullptr, kGpuIds},
                                      {"node-order", required_argument, nullptr, kNodeOrder},
                                      {"linux", required_argument, nullptr, kLinux},
                                      {"out-of-tree", required_argument, nullptr, kOutOfTree},
                                      {"change-handle", no_argument, nullptr, kChangeHandle},
                                      {"list-handles", no_argument, nullptr, kListHandles}};

bool take_machine_option(int which, const char* argument, MachineOptions* machine) {
  switch (which) {
    case kGpus:
      return parse_number(argument, &machine->gpus);
    case kPreset:
      return parse_preset(argument, &machine->preset);
    case kVram:
      return parse_size(argument, &machine->vram_bytes);
    case kGtt:
      return parse_size(argument, &machine->gtt_bytes);
    case kCpuNodes:
      return parse_number(argument, &machine->cpu_nodes);
    case kLinks:
      return parse_links(argument, &machine->fabric);
    case kMinorBase:
      return parse_number(argument, &machine->minor_base);
    case kMinors:
      return parse_list(argument, &machine->minors);
    case kGpuIds:
      return parse_list(argument, &machine->gpu_ids);
    case kNodeOrder:
      return parse_list(argument, &machine->node_order);
    case kLinux:
      return parse_linux(argument, &machine->kfd_minor_version);
    case kOutOfTree:
      machine->out_of_tree = argument;
      return std::any_of(std::begin(kOutOfTreeDrivers), std::end(kOutOfTreeDrivers),
                         [&](const OutOfTreeDriver& driver) { return driver.version == argument; });
    case kChangeHandle:
      machine->change_handle = true;
      return true;
    case kListHandles:
      machine->list_handles = true;
      return true;
    default:
      return false;
  }
}

}  // namespace

const char* const kMachineOptionsHelp =
    "  --gpus N           number of GPUs, 1 to 16 (2)\n"
    "  --preset NAME      the card: mi210 or mi300x (mi210)\n"
    "  --vram SIZE        memory of each GPU, a multiple of 4096 bytes; K, M, G, T (256M)\n"
    "  --gtt SIZE         system memory that each GPU can reach through BOs (256M)\n"
    "  --cpu-nodes K      number of CPU (NUMA) nodes, the GPUs spread over them (1)\n"
    "  --links xgmi|pcie  how the GPUs are joined (xgmi)\n"
    "  --minor-base N     minor of the first render node, 128 to 191 (128)\n"
    "  --minors N,N...    minors of the render nodes, by GPU\n"
    "  --gpu-ids N,N...   KFD's ids, by GPU, 1 to 65535 (a hash)\n"
    "  --node-order I,I...  GPUs (from 0) in the order of their topology nodes (0,1,2...)\n"
    "  --change-handle    the DRM driver has DRM_IOCTL_GEM_CHANGE_HANDLE\n"
    "  --list-handles     the DRM driver lists BOs, as that of Linux 7.2 does\n"
    "  --linux RELEASE    whose driver it resembles: 6.1, 6.12 or 7.2\n"
    "  --out-of-tree VERSION  AMD's own driver instead: 6.0.5 (KFD 1.11) or 6.14.14 (KFD 1.18)";

int parse_options(int argc, char** argv, const std::vector<OwnOption>& own, MachineOptions* machine) {
  std::vector<option> table(std::begin(kMachineOptions), std::end(kMachineOptions));
  for (const OwnOption& each : own) {
    table.push_back({each.name, each.has_argument ? required_argument : no_argument, nullptr, kOwn});
  }
  table.push_back({nullptr, 0, nullptr, 0});
  int which = 0;
  int index = 0;
  while ((which = ::getopt_long(argc, argv, "+", table.data(), &index)) != -1) {
    if (which == '?') return 0;  // getopt_long has said what is wrong
    if (which == kOwn) {
      own[static_cast<std::size_t>(index) - std::size(kMachineOptions)].take(optarg != nullptr ? optarg : "");
    } else if (!take_machine_option(which, optarg, machine)) {
      std::fprintf(stderr, "%s: --%s cannot be %s\n", ::program_invocation_short_name,
                   table[static_cast<std::size_t>(index)].name, optarg);
      return 0;
    }
  }
  return optind;
}

}  // namespace vamdgpu
