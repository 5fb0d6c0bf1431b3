// SPDX-License-Identifier: MIT
#include "plugin/contents/vram_watch.h"

#include <cerrno>
#include <string>

#include "base/format.h"

namespace sluice::plugin {

namespace {

constexpr unsigned kMinorShift = 32;

}  // namespace

Result<void> VramWatch::look(std::uint32_t render_minor, std::uint32_t losses) {
  const std::uint64_t gpu = std::uint64_t{render_minor} + 1;
  const std::uint64_t said = gpu << kMinorShift | losses;
  for (std::atomic<std::uint64_t>& seen : seen_) {
    std::uint64_t first = 0;
    if (seen.compare_exchange_strong(first, said) || first == said) return {};
    if (first >> kMinorShift != gpu) continue;
    return Error{
        EIO,
        formatted(
            "the GPU of renderD{} was reset and lost the VRAM of all its processes; use a checkpoint that "
            "was made before [SL-C17]",
            render_minor)};
  }
  return make_error(E2BIG, formatted("watch the VRAM of more than {} GPUs", kMostWatchedGpus));
}

std::vector<std::uint32_t> VramWatch::render_minors() const {
  std::vector<std::uint32_t> minors;
  for (const std::atomic<std::uint64_t>& seen : seen_) {
    const std::uint64_t first = seen;
    if (first == 0) break;
    minors.push_back(static_cast<std::uint32_t>((first >> kMinorShift) - 1));
  }
  return minors;
}

}  // namespace sluice::plugin
