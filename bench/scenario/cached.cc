// SPDX-License-Identifier: MIT
// Restore beside a plain buffered read of the same file, with all, half or none of it in the page cache. A
// restore that ignores a warm cache is slower than the simplest program.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <vector>

#include "lane/lane_run.h"
#include "measure/page_cache.h"
#include "measure/process.h"
#include "pipeline/arena.h"
#include "scenario/pairs.h"
#include "scenario/place.h"
#include "scenario/scenario.h"
#include "scenario/shape.h"

namespace sluice::bench {
namespace {

using Clock = std::chrono::steady_clock;

// The simple way: block after block into a ring of buffers, without using the data.
Result<Sample> read_plainly(const std::filesystem::path& path, const StagingArena& ring) {
  Sample sample;
  const double cpu = process_cpu_seconds();
  const auto begin = Clock::now();
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return make_error(errno, path);
  for (std::uint32_t block = 0;; block = (block + 1) % kSlots) {
    const ssize_t got =
        ::pread(fd.get(), ring.buffer(block).data(), kChunkBytes, static_cast<off_t>(sample.bytes));
    if (got < 0) return make_error(errno, path);
    if (got == 0) break;
    sample.bytes += static_cast<std::uint64_t>(got);
  }
  sample.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  sample.cpu_seconds = process_cpu_seconds() - cpu;
  return sample;
}

struct State {
  const char* name;
  double share;  // of the file, from its begin, that is cached
};
constexpr std::array<State, 3> kStates = {{{"all warm", 1}, {"half warm", 0.5}, {"cold", 0}}};

}  // namespace

Result<Report> run_cached(const BenchOptions& options) {
  const std::uint64_t bytes = options.by_scale(16 * kMiB, kGiB, 2 * kGiB);
  const unsigned count = options.by_scale(1u, 5u, 9u);
  SLUICE_TRY_ASSIGN(const Place place, Place::make(options.directory));
  SLUICE_TRY_ASSIGN(const std::unique_ptr<CopyEngine> engine, make_memcpy_engine({{bytes}}));
  SLUICE_TRY_ASSIGN(const StagingArena ring, StagingArena::make(kChunkBytes, kSlots, -1));
  SumTable sums;
  LanePlan plan = pages_plan(*engine, place, &sums);
  SLUICE_TRY(run_lanes({&plan, 1}));
  const std::filesystem::path path = place.file(kPagesName);
  const std::uint64_t file_bytes = std::filesystem::file_size(path);

  Report report{"cached", "verified restore, beside a loop of buffered reads of the same file", {}};
  for (const State& state : kStates) {
    if (!options.wants(state.name)) continue;
    options.tell(state.name);
    std::vector<double> cached;
    // Prepares the cache; either way of reading changes it.
    const auto with_cache = [&](const Run& run) -> Run {
      return [&, run]() -> Result<Sample> {
        SLUICE_TRY(drop_cached(path));
        SLUICE_TRY(read_in(path, static_cast<std::uint64_t>(static_cast<double>(file_bytes) * state.share)));
        SLUICE_TRY_ASSIGN(const double share, cached_share(path));
        cached.push_back(share * 100);
        return run();
      };
    };
    SLUICE_TRY_ASSIGN(const Pairs pairs, run_pairs(
                                             count, [] { touch_free_memory(kTouchBytes); },
                                             with_cache([&] { return checked_restore(plan, 0); }),
                                             with_cache([&] { return read_plainly(path, ring); })));
    Case each{state.name, "ours verifies every block", pairs.figures()};
    for (Figure& figure : each.figures) {
      if (figure.name == "raw") figure.name = "buffered";
      if (figure.name == "raw cpu") figure.name = "buffered cpu";
    }
    each.figures.push_back(figure("cached", "%", cached));
    report.cases.push_back(std::move(each));
  }
  return report;
}

}  // namespace sluice::bench
