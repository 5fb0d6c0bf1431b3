// SPDX-License-Identifier: MIT
#include "mqds.h"

#include <algorithm>
#include <sstream>
#include <string>

#include "process.h"

namespace sluice::vm_test {
namespace {

// Dwords of v9_mqd.
constexpr std::array<std::size_t, 8> kCuMasks = {23, 24, 26, 27, 39, 40, 41, 42};
constexpr std::size_t kPipePriority = 133, kPriority = 134;

QueueTraits traits_of(const std::vector<std::uint32_t>& mqd) {
  QueueTraits traits;
  for (std::size_t i = 0; i < kCuMasks.size(); ++i) traits.cu_masks[i] = mqd.at(kCuMasks[i]);
  traits.pipe_priority = mqd.at(kPipePriority);
  traits.priority = mqd.at(kPriority);
  return traits;
}

}  // namespace

// "Process PID ...:", for each queue "  Compute queue on device ID", then lines of eight words.
std::vector<QueueTraits> queue_traits(pid_t pid) {
  std::istringstream text(read_file("/sys/kernel/debug/kfd/mqds"));
  const std::string mine = "Process " + std::to_string(pid) + " ";
  std::vector<std::vector<std::uint32_t>> mqds;
  bool in_process = false, in_queue = false;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("Process ")) in_process = line.starts_with(mine);
    if (line.find(" on device ") != std::string::npos) {
      in_queue = in_process && line.starts_with("  Compute queue");
      if (in_queue) mqds.emplace_back();
      continue;
    }
    std::istringstream words(line);
    std::string place;
    if (!in_queue || !(words >> place) || !place.ends_with(':')) continue;
    for (std::uint32_t word = 0; words >> std::hex >> word;) mqds.back().push_back(word);
  }
  std::vector<QueueTraits> all;
  for (const auto& mqd : mqds) all.push_back(traits_of(mqd));
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace sluice::vm_test
