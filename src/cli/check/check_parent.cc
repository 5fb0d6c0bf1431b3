// SPDX-License-Identifier: MIT
#include "cli/check/check_parent.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "cli/show/show_statistics.h"
#include "cli/text.h"
#include "images/chain/parent_chain.h"
#include "images/chain/predump_images.h"
#include "images/checkpoint.h"
#include "images/files/image_source.h"
#include "images/pages.h"
#include "pipeline/stage.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

// The parent's contents.
struct ParentContents {
  std::unique_ptr<const ParentChain> chain;
  std::set<KnownBuffer> buffers;  // of KFDs
  std::vector<std::uint64_t> bytes_of_gpus;
  std::optional<double> frozen_seconds;  // of its own dump, if its statistics tell

  std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const std::uint64_t of_gpu : bytes_of_gpus) sum += of_gpu;
    return sum;
  }
};

// The longest of all files: their queues were stopped at the same time.
std::optional<double> frozen_seconds_of(const ImageSource& source) {
  std::vector<Error> faults;
  double longest = 0;
  for (const Statistics& one : read_statistics(source, faults)) {
    const Json& content = one.content;
    if (!content.contains("frozen_seconds") || !content["frozen_seconds"].is_number()) continue;
    longest = std::max(longest, content["frozen_seconds"].get<double>());
  }
  return longest > 0 ? std::optional(longest) : std::nullopt;
}

Result<ParentContents> read_parent(const std::string& path, const ImageKeys& keys) {
  UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return make_error(errno, "open " + path);
  ParentContents parent;
  SLUICE_TRY_ASSIGN(auto ancestor, Ancestor::of(std::move(directory), "parent", keys));
  SLUICE_TRY_ASSIGN(parent.chain, ParentChain::of(std::move(ancestor), keys));
  DirectorySource source(parent.chain->parent().dir_fd());
  source.set_keys(keys);
  SLUICE_TRY_ASSIGN(const Checkpoint checkpoint, read_checkpoint_or_predump(source));
  for (const NumberedPages& pages : pages_of(checkpoint)) {
    std::uint64_t& bytes = parent.bytes_of_gpus.emplace_back(0);
    for (const PagesBo& bo : pages.set.bos) {
      bytes += bo.bytes;
      if (!pages.set.drm_minor) parent.buffers.emplace(static_cast<pid_t>(pages.set.pid), bo.va, bo.bytes);
    }
  }
  parent.frozen_seconds = frozen_seconds_of(source);
  return parent;
}

MappedBuffers mapped_buffers(const ParentQuestion& question, const std::set<KnownBuffer>& known) {
  std::set<dev_t> render_nodes;
  if (question.topology) {
    for (const kfd::Node& node : question.topology->nodes) {
      if (node.is_gpu()) render_nodes.insert(kfd::render_node_device(node.drm_render_minor));
    }
  }
  MappedBuffers all;
  for (const auto& [pid, inner_pid] : question.processes.tasks) {
    auto maps = proc::device_maps(pid);
    if (!maps) continue;  // it has ended
    std::erase_if(*maps, [&](const proc::DeviceMap& map) { return !render_nodes.contains(map.device); });
    all.add(compare_buffers(*maps, inner_pid, known));
  }
  return all;
}

// Frozen time is mostly less than a second.
std::string frozen_text(double seconds) {
  if (seconds >= 10) return duration_text(seconds);
  std::array<char, 32> text{};
  (void)std::snprintf(text.data(), text.size(), "%.2f s", seconds);
  return text.data();
}

// For the machine with the parent's GPUs. A dump skips what the parent has, as it skips zeros.
double seconds_of_dump(cli::Machine machine, const ParentContents& parent, std::uint64_t bytes,
                       double in_parent, const settings::Config& config) {
  cli::GpuGroup group = machine.gpus.front();
  group.count = std::clamp<std::uint64_t>(parent.bytes_of_gpus.size(), 1, cli::Machine::kMostGpus);
  group.bytes = std::clamp<std::uint64_t>(bytes / group.count, 1, cli::Machine::kMostBytes);
  group.zero = in_parent;
  machine.gpus = {group};
  return cli::forecast(machine, Direction::Dump, config.chunk_bytes).seconds;
}

Finding finding_of_link(const ParentQuestion& question) {
  if (!question.path.starts_with('/') || (question.criu && !(*question.criu < CriuVersion{4, 2, 0})))
    return {Weight::Good, "", "", ""};
  return {Weight::Warning, "parent",
          question.path + " is absolute, and a restore with this criu follows relative links only",
          "give --prev-images-dir the way from the new directory: ../NAME", "parent-absolute"};
}

void add_buffers(const MappedBuffers& buffers, ParentCheck& check) {
  if (buffers.known + buffers.others == 0) {
    check.findings.push_back(
        {Weight::Good, "changes",
         "no buffer is mapped in these processes, so which of them are new shows only in the dump", ""});
    return;
  }
  std::string text;
  if (buffers.others > 0)
    text = bytes_text(buffers.other_bytes) + " in " + count_text(buffers.others, "new buffer") +
           " will be written; ";
  check.findings.push_back(
      {Weight::Good, "changes",
       text + "of " + bytes_text(buffers.known_bytes) + " in " + count_text(buffers.known, "buffer") +
           " that the parent has, too, only what has changed: the dump finds out how much",
       ""});
}

void add_time(const ParentQuestion& question, const ParentContents& parent, std::uint64_t bytes,
              std::uint64_t new_bytes, ParentCheck& check) {
  std::string text;
  if (parent.frozen_seconds)
    text = "the parent's own dump paused the job for " + frozen_text(*parent.frozen_seconds);
  if (question.machine) {
    const double is_new =
        bytes > 0 ? std::min(1.0, static_cast<double>(new_bytes) / static_cast<double>(bytes)) : 0;
    const double least = seconds_of_dump(*question.machine, parent, bytes, 1 - is_new, question.config);
    const double most = seconds_of_dump(*question.machine, parent, bytes, 0, question.config);
    (*check.json)["frozen_seconds"] = {{"unchanged", least}, {"changed", most}};
    text += (text.empty() ? "" : "; ") + std::string("this one for ") + frozen_text(least) +
            " if nothing else has changed, up to " + frozen_text(most) +
            " if everything has, plus the driver's and CRIU's own work";
  }
  if (text.empty()) text = "not known: the parent has no statistics, and there is no --machine";
  check.findings.push_back({Weight::Good, "frozen", text, ""});
}

}  // namespace

void MappedBuffers::add(const MappedBuffers& more) {
  known += more.known;
  known_bytes += more.known_bytes;
  others += more.others;
  other_bytes += more.other_bytes;
}

MappedBuffers compare_buffers(std::span<const proc::DeviceMap> maps, pid_t inner_pid,
                              const std::set<KnownBuffer>& known) {
  MappedBuffers found;
  for (const proc::DeviceMap& map : maps) {
    const bool is_known = known.contains({inner_pid, map.address, map.bytes});
    ++(is_known ? found.known : found.others);
    (is_known ? found.known_bytes : found.other_bytes) += map.bytes;
  }
  return found;
}

ParentCheck check_parent(const ParentQuestion& question) {
  ParentCheck check;
  if (!question.config.checksum) {
    check.findings.push_back(
        {Weight::Warning, "parent",
         "SLUICE_CHECKSUM=off: what has changed is told by checksums, so a dump would write everything",
         "unset SLUICE_CHECKSUM", "parent-no-sums"});
    return check;
  }
  const auto parent = read_parent(question.path, question.keys);
  if (!parent) {
    check.findings.push_back(
        {Weight::Warning, "parent",
         question.path + " cannot be built on, so a dump would write everything: " + parent.error().what,
         "name a checkpoint that `sluice verify` finds whole", "parent-unusable"});
    return check;
  }
  const std::uint64_t parent_bytes = parent->bytes();
  const std::uint64_t bytes = std::max(question.processes.bytes.value_or(0), parent_bytes);
  const MappedBuffers buffers = mapped_buffers(question, parent->buffers);
  const std::uint64_t grown =
      question.processes.bytes.value_or(0) - std::min(question.processes.bytes.value_or(0), parent_bytes);
  const std::uint64_t new_bytes = std::max(buffers.other_bytes, grown);
  check.json =
      Json{{"gpu_bytes", parent_bytes},
           {"mapped_buffers_in_parent", buffers.known},
           {"mapped_buffers_not_in_parent", buffers.others},
           {"new_bytes", new_bytes},
           {"most_bytes", bytes},
           {"frozen_seconds_of_parent", parent->frozen_seconds ? Json(*parent->frozen_seconds) : Json()},
           {"frozen_seconds", Json()}};
  check.findings.push_back({Weight::Good, "parent",
                            question.path + " has " + bytes_text(parent_bytes) +
                                " of GPU memory; a dump writes what has changed since, at most " +
                                bytes_text(bytes),
                            ""});
  if (Finding link = finding_of_link(question); !link.subject.empty())
    check.findings.push_back(std::move(link));
  add_buffers(buffers, check);
  add_time(question, *parent, bytes, new_bytes, check);
  return check;
}

}  // namespace sluice::cli
