// SPDX-License-Identifier: MIT
// How long a dump takes of which a part is written, in virtual time: a link that carries every chunk and a
// disk that gets what has changed. Both need the same time alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <utility>
#include <vector>

#include "base/units.h"
#include "pipeline/chunk_walk.h"
#include "pipeline/pipeline.h"
#include "sim/sim_reactor.h"

namespace sluice::sim {
namespace {

constexpr std::uint64_t kChunk = 64 * kKiB;
constexpr std::uint64_t kChunks = 4096;
constexpr std::uint64_t kLinkNs = 1000;          // of each chunk
constexpr std::uint64_t kDiskNs = 20 * kLinkNs;  // of one that has changed
constexpr std::uint32_t kSlots = 16;

// Serves its chunks one after the other; those of no time at once.
class Device final : public Stage {
 public:
  using Time = std::function<std::uint64_t(const Chunk&)>;
  Device(const char* name, SimReactor& reactor, Time time)
      : name_(name), reactor_(reactor), time_(std::move(time)) {}

  const char* name() const override { return name_; }
  Result<Submit> submit(Slot& slot) override {
    const std::uint64_t ns = time_(slot.chunk);
    if (ns > 0) free_at_ns_ = std::max(free_at_ns_, reactor_.now_ns()) + ns;
    reactor_.after(slot.op(), ns > 0 ? free_at_ns_ - reactor_.now_ns() : 0, 0);
    return Submit::Started;
  }
  Result<Progress> advance(Slot& /*slot*/, Op& /*op*/, std::int32_t /*result*/) override {
    return Progress::Done;
  }

 private:
  const char* name_;
  SimReactor& reactor_;
  Time time_;
  std::uint64_t free_at_ns_ = 0;
};

// In every `period` chunks the first twentieth has changed. Returns the time over that of the link or of the
// disk alone, whichever is longer.
double time_of(std::uint64_t period, std::uint32_t cursors) {
  const ImageLayout layout =
      std::move(ImageLayout::make(std::array{kChunks * kChunk - kHeaderBytes}, kChunk)).value();
  std::vector<std::byte> buffer(kChunk);
  std::vector<Slot> slots(kSlots);
  for (Slot& slot : slots) slot.buffer = buffer;
  SimReactor reactor(test::Rng(1), 1, Faults{});
  Device link("link", reactor, [](const Chunk&) { return kLinkNs; });
  std::uint64_t written = 0;
  Device disk("disk", reactor, [period, &written](const Chunk& chunk) {
    if (chunk.index % period >= period / 20) return std::uint64_t{0};
    ++written;
    return kDiskNs;
  });
  const std::array<Stage*, 2> route{&link, &disk};
  Pipeline pipeline(layout, slots, route, reactor, cursors);
  const Result<PipelineStats> stats = pipeline.run();
  EXPECT_TRUE(stats.ok());
  const std::uint64_t alone_ns = std::max(kLinkNs * kChunks, written * kDiskNs);
  return static_cast<double>(stats->elapsed_ns) / static_cast<double>(alone_ns);
}

// Otherwise the link waits for the disk at each run, and the disk for the link until the next. Some periods
// have whole parts of cursors in them: equal layers of a model.
TEST(Walk, LinkAndDiskWorkAtTheSameTimeWhereverTheChangesAre) {
  const std::uint32_t cursors = cursors_for_changes(kChunks);
  for (const std::uint64_t period : {20, 64, 100, 128, 160, 256, 320, 500, 512, 1000, 1024, 2048, 4096})
    EXPECT_LE(time_of(period, cursors), 1.15) << "every " << period << " chunks";
  EXPECT_GT(time_of(1000, 1), 1.5) << "what cursors are for";
}

}  // namespace
}  // namespace sluice::sim
