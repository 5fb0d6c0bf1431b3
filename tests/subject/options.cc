// SPDX-License-Identifier: MIT
#include "subject/options.h"

#include <array>
#include <charconv>
#include <cstdio>
#include <string_view>

namespace sluice::subject {
namespace {

template <class Number>
bool parse_number(std::string_view text, Number* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc{} && end == text.data() + text.size();
}

bool parse_size(std::string_view text, std::uint64_t* bytes) {
  std::uint64_t unit = 1;
  if (text.ends_with('K')) unit = kKiB;
  if (text.ends_with('M')) unit = kMiB;
  if (text.ends_with('G')) unit = kGiB;
  if (unit != 1) text.remove_suffix(1);
  if (!parse_number(text, bytes) || *bytes > ~std::uint64_t{0} / unit) return false;
  *bytes *= unit;
  return true;
}

bool parse_sizes(std::string_view text, Options* options) {
  constexpr std::string_view kCount = "count:";
  if (text.starts_with(kCount)) {
    options->sizes = BoSizes::Count;
    return parse_number(text.substr(kCount.size()), &options->bo_count);
  }
  struct Name {
    std::string_view text;
    BoSizes sizes;
  };
  for (const Name& name : {Name{"mixed", BoSizes::Mixed}, Name{"small", BoSizes::Small},
                           Name{"many", BoSizes::Many}, Name{"huge", BoSizes::Huge}}) {
    if (name.text != text) continue;
    options->sizes = name.sizes;
    return true;
  }
  return false;
}

// "1,3,70", or "count:N" for 1 to N.
bool parse_handles(std::string_view text, std::vector<std::uint32_t>* handles) {
  constexpr std::string_view kCount = "count:";
  if (text.starts_with(kCount)) {
    std::uint32_t count = 0;
    if (!parse_number(text.substr(kCount.size()), &count)) return false;
    for (std::uint32_t handle = 1; handle <= count; ++handle) handles->push_back(handle);
    return true;
  }
  for (;;) {
    const std::size_t comma = text.find(',');
    std::uint32_t handle = 0;
    if (!parse_number(text.substr(0, comma), &handle)) return false;
    if (handle <= (handles->empty() ? 0 : handles->back())) return false;
    handles->push_back(handle);
    if (comma == std::string_view::npos) return true;
    text.remove_prefix(comma + 1);
  }
}

struct Flag {
  std::string_view name;
  bool Options::*member;
  bool value;
};
constexpr std::array kFlags = {
    Flag{"--no-events", &Options::events, false},
    Flag{"--no-queues", &Options::queues, false},
    Flag{"--no-userptr", &Options::userptrs, false},
    Flag{"--svm", &Options::svm, true},
    Flag{"--svm-context", &Options::svm_context, true},
    Flag{"--empty-context", &Options::empty_context, true},
    Flag{"--waiter", &Options::waiter, true},
    Flag{"--run-queues", &Options::run_queues, true},
    Flag{"--gws", &Options::gws, true},
    Flag{"--pm4", &Options::pm4, true},
    Flag{"--xnack", &Options::xnack, true},
    Flag{"--hsakmt-shm", &Options::hsakmt_shm, true},
    Flag{"--second-kfd", &Options::second_kfd, true},
    Flag{"--dup-kfd", &Options::dup_kfd, true},
    Flag{"--second-render", &Options::second_render, true},
    Flag{"--render-first", &Options::render_first, true},
    Flag{"--fork-child", &Options::fork_child, true},
    Flag{"--mapping-child", &Options::mapping_child, true},
    Flag{"--close-render-after-map", &Options::close_render, true},
    Flag{"--no-kfd-fd", &Options::close_kfd, true},
    Flag{"--map-dmabuf", &Options::map_dmabuf, true},
    Flag{"--dmabuf-fd", &Options::dmabuf_fd, true},
    Flag{"--inherited-kfd", &Options::inherited_kfd, true},
    Flag{"--borrowed-kfd", &Options::borrowed_kfd, true},
    Flag{"--share-fd", &Options::share_fd, true},
    Flag{"--share-fd-read-only", &Options::share_fd_read_only, true},
    Flag{"--share-alone", &Options::share_alone, true},
    Flag{"--kfd-import", &Options::kfd_import, true},
    Flag{"--kfd-import-unmapped", &Options::kfd_import_unmapped, true},
    Flag{"--gem-high", &Options::gem_high, true},
    Flag{"--render-only", &Options::render_only, true},
    Flag{"--plain", &Options::plain, true},
    Flag{"--replicas", &Options::replicas, true},
    Flag{"--kfd-only", &Options::kfd_only, true},
    Flag{"--lend-render", &Options::lend_render, true},
};

bool parse_flag(std::string_view name, Options* options) {
  for (const Flag& flag : kFlags) {
    if (flag.name != name) continue;
    options->*flag.member = flag.value;
    return true;
  }
  return false;
}

bool parse_value(std::string_view name, std::string_view value, Options* options) {
  if (name == "--gpus") return parse_number(value, &options->gpus);
  if (name == "--vram") return parse_size(value, &options->vram_bytes);
  if (name == "--gtt") return parse_size(value, &options->gtt_bytes);
  if (name == "--zero") return parse_number(value, &options->zero_percent);
  if (name == "--seed") return parse_number(value, &options->seed);
  if (name == "--priority") return parse_number(value, &options->priority);
  if (name == "--cu-mask") return parse_number(value, &options->cu_mask);
  if (name == "--render-from") return parse_number(value, &options->render_from);
  if (name == "--import-from") return parse_number(value, &options->import_from);
  if (name == "--import-ipc") {
    options->import_ipc = value;
    return true;
  }
  if (name == "--threaded-child") return parse_number(value, &options->threaded_child);
  if (name == "--share") {
    options->share = value == "kfd" ? Share::Kfd : value == "ipc" ? Share::Ipc : Share::Gem;
    return value == "kfd" || value == "gem" || value == "ipc";
  }
  if (name == "--odd-gem") {
    options->odd_gem = value == "always-valid" ? OddGem::AlwaysValid
                       : value == "encrypted"  ? OddGem::Encrypted
                                               : OddGem::Userptr;
    return options->odd_gem != OddGem::Userptr || value == "userptr";
  }
  if (name == "--gem-bytes") return parse_size(value, &options->gem_bytes);
  if (name == "--gem-handles") return parse_handles(value, &options->gem_handles);
  if (name == "--bos") return parse_sizes(value, options);
  if (name == "--one-bo") {
    options->sizes = BoSizes::One;
    return parse_size(value, &options->one_bo_bytes);
  }
  if (name == "--cache") return parse_size(value, &options->cache_bytes);
  if (name == "--cache-told") {
    options->cache_told = value;
    return true;
  }
  if (name == "--control") {
    options->control = value;
    return true;
  }
  return false;
}

bool fit_together(const Options& options) {
  // A queue tells by an event that it is through.
  return !options.run_queues || (options.events && options.queues);
}

void usage() {
  std::fputs(
      "usage: gpu-subject [OPTION]...\n"
      "Commands, line by line: check, work, change, change-largest, replace, queue-progress, "
      "queue-share PERCENT, svm-prefetch, peek, poke N, ipc-handle, quit. Sizes are bytes, with K, M or G.\n"
      "  --control DIR     commands from the FIFO DIR/in, answers to DIR/out, no standard input or output\n"
      "data:\n"
      "  --gpus N  --seed N  --zero PERCENT  --vram SIZE  --gtt SIZE       (sizes per GPU)\n"
      "  --bos mixed|small|many|huge|count:N  --one-bo SIZE\n"
      "  --no-events  --no-queues  --no-userptr  --replicas\n"
      "more in the process:\n"
      "  --svm  --svm-context  --empty-context  --waiter  --run-queues  --gws  --pm4  --hsakmt-shm  "
      "--threaded-child "
      "THREADS\n"
      "  --priority 0-15  --cu-mask N                        (of queues)  --xnack\n"
      "  --gem-handles H,H,...|count:N  --gem-bytes SIZE     (BOs of each render file)\n"
      "  --odd-gem always-valid|encrypted|userptr            (one that cannot be saved)\n"
      "  --share kfd|gem  --import-from PID  --share-fd  --kfd-import   (a BO shared by dma-buf)\n"
      "  --share-fd-read-only  --share-alone  --kfd-import-unmapped  --gem-high\n"
      "  --share ipc  --import-ipc HANDLE                    (a BO shared by AMD's IPC ioctls)\n"
      "  --cache SIZE --cache-told FIFO     (memory of each GPU that is given back on SIGUSR1; then the FIFO "
      "is told)\n"
      "files:\n"
      "  --second-kfd  --dup-kfd  --inherited-kfd  --borrowed-kfd  --no-kfd-fd  "
      "--second-render\n"
      "  --close-render-after-map  --render-first  --dmabuf-fd  --map-dmabuf  --fork-child  --mapping-child\n"
      "  --lend-render  --render-from PID\n"
      "instead of a ROCm-like process:\n"
      "  --render-only  --plain  --kfd-only\n",
      stderr);
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    if (parse_flag(argv[i], &options)) continue;
    if (i + 1 < argc && parse_value(argv[i], argv[i + 1], &options)) {
      ++i;
      continue;
    }
    std::fprintf(stderr, "gpu-subject: cannot use %s\n", argv[i]);
    usage();
    return std::nullopt;
  }
  if (!fit_together(options)) {
    std::fputs("gpu-subject: --run-queues needs events and queues\n", stderr);
    return std::nullopt;
  }
  return options;
}

}  // namespace sluice::subject
