// SPDX-License-Identifier: MIT
// gpu-subject: builds a GPU process, says "ready bos=N bytes=N zero=N gpus=N" on standard output, and obeys
// commands from standard input (subject.h). It sits in read(2) between commands, which is where it is dumped.
#include <getopt.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "subject.h"

namespace {

using sluice::subject::BoSizes;

bool parse_size(std::string_view text, std::uint64_t* bytes) {
  char* end = nullptr;
  const std::string copy(text);
  const std::uint64_t number = std::strtoull(copy.c_str(), &end, 10);
  const std::string_view suffix(end);
  const std::uint64_t unit = suffix == "K"    ? sluice::kKiB
                             : suffix == "M"  ? sluice::kMiB
                             : suffix == "G"  ? sluice::kGiB
                             : suffix.empty() ? 1
                                              : 0;
  *bytes = number * unit;
  return end != copy.c_str() && unit != 0;
}

bool parse_sizes(std::string_view text, BoSizes* sizes) {
  if (text == "mixed")
    *sizes = BoSizes::Mixed;
  else if (text == "small")
    *sizes = BoSizes::Small;
  else if (text == "many")
    *sizes = BoSizes::Many;
  else if (text == "huge")
    *sizes = BoSizes::Huge;
  else
    return false;
  return true;
}

int usage() {
  std::fputs(
      "usage: gpu-subject [--gpus N] [--vram SIZE] [--gtt SIZE] [--zero PERCENT] [--seed N]\n"
      "                   [--bos mixed|small|many|huge] [--second-kfd] [--dup-kfd] [--no-events] "
      "[--no-queues]\n"
      "Sizes are bytes per GPU, with K, M or G. Commands on standard input: check, work, quit.\n",
      stderr);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  sluice::subject::Options options;
  const option table[] = {{"gpus", required_argument, nullptr, 'g'},
                          {"vram", required_argument, nullptr, 'v'},
                          {"gtt", required_argument, nullptr, 't'},
                          {"zero", required_argument, nullptr, 'z'},
                          {"seed", required_argument, nullptr, 's'},
                          {"bos", required_argument, nullptr, 'b'},
                          {"second-kfd", no_argument, nullptr, '2'},
                          {"dup-kfd", no_argument, nullptr, 'd'},
                          {"no-events", no_argument, nullptr, 'e'},
                          {"no-queues", no_argument, nullptr, 'q'},
                          {nullptr, 0, nullptr, 0}};
  for (int choice = 0; (choice = ::getopt_long(argc, argv, "", table, nullptr)) != -1;) {
    bool good = true;
    switch (choice) {
      case 'g':
        options.gpus = static_cast<std::uint32_t>(std::strtoul(optarg, nullptr, 10));
        break;
      case 'v':
        good = parse_size(optarg, &options.vram_bytes);
        break;
      case 't':
        good = parse_size(optarg, &options.gtt_bytes);
        break;
      case 'z':
        options.zero_percent = static_cast<std::uint32_t>(std::strtoul(optarg, nullptr, 10));
        break;
      case 's':
        options.seed = std::strtoull(optarg, nullptr, 10);
        break;
      case 'b':
        good = parse_sizes(optarg, &options.sizes);
        break;
      case '2':
        options.second_kfd = true;
        break;
      case 'd':
        options.dup_kfd = true;
        break;
      case 'e':
        options.events = false;
        break;
      case 'q':
        options.queues = false;
        break;
      default:
        good = false;
    }
    if (!good) return usage();
  }
  auto arena = sluice::subject::create_arena();
  if (!arena) {
    sluice::subject::say("bad " + arena.error().what);
    return 1;
  }
  if (auto started = sluice::subject::subject_start(**arena, options); !started) {
    sluice::subject::say("bad " + started.error().what);
    return 1;
  }
  const sluice::subject::Totals totals = sluice::subject::totals_of(**arena);
  sluice::subject::say("ready bos=" + std::to_string(totals.bos) + " bytes=" + std::to_string(totals.bytes) +
                       " zero=" + std::to_string(totals.zero_bytes) +
                       " gpus=" + std::to_string((*arena)->num_gpus));
  return sluice::subject::subject_continue(**arena);
}
