// SPDX-License-Identifier: MIT
// The engine's own cost: chunks that nobody fills or keeps, with the checksum off and on, and the checksum
// compared with bare checksums.
#include <fcntl.h>
#include <sys/eventfd.h>

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/timed_stage.h"
#include "front/dma_copy.h"
#include "lane/lane_run.h"
#include "pipeline/arena.h"
#include "pipeline/checksum/checksum.h"
#include "pipeline/lane_thread.h"
#include "scenario/pairs.h"
#include "scenario/scenario.h"

namespace sluice::bench {
namespace {

// One Op of the ring per chunk, which the kernel ends at once.
class RingStage final : public Stage {
 public:
  using Start = void (*)(Reactor& reactor, Slot& slot, int fd);
  RingStage(const char* name, Reactor& reactor, UniqueFd fd, Start start)
      : name_(name), reactor_(reactor), fd_(std::move(fd)), start_(start) {}

  const char* name() const override { return name_; }
  Result<Submit> submit(Slot& slot) override {
    start_(reactor_, slot, fd_.get());
    return Submit::Started;
  }
  Result<Progress> advance(Slot& /*slot*/, Op& /*op*/, std::int32_t result) override {
    if (result < 0) return make_error(-result, name_);
    return Progress::Done;
  }

 private:
  const char* name_;
  Reactor& reactor_;
  UniqueFd fd_;
  Start start_;
};

// A GPU whose fences have already signalled.
class SignalledEngine final : public CopyEngine {
 public:
  explicit SignalledEngine(Contents contents) : CopyEngine(std::move(contents)) {}

  const char* name() const override { return "signalled"; }
  Result<std::unique_ptr<Stage>> make_stage(Direction /*direction*/, const ImageLayout& /*layout*/,
                                            StagingArena& /*arena*/, std::span<Slot> /*slots*/,
                                            Reactor& reactor) override {
    UniqueFd fence(::eventfd(1, EFD_CLOEXEC));
    if (!fence) return make_error(errno, "eventfd");
    return std::unique_ptr<Stage>(
        std::make_unique<RingStage>("copy", reactor, std::move(fence), [](Reactor& ring, Slot& slot, int fd) {
          ring.poll_readable(slot.op(), fd, std::chrono::minutes(10));
        }));
  }
  Result<void> scribble() override { return {}; }
  Result<bool> intact() override { return true; }
};

Result<std::unique_ptr<Stage>> make_null_store(const ImageLayout& /*layout*/, Reactor& reactor) {
  SLUICE_TRY_ASSIGN(std::unique_ptr<Stage> stage, TimedStage::make("store", 0, reactor));
  return stage;
}

Result<std::unique_ptr<Stage>> make_null_file(const ImageLayout& /*layout*/, Reactor& reactor) {
  UniqueFd file(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  if (!file) return make_error(errno, "/dev/null");
  return std::unique_ptr<Stage>(
      std::make_unique<RingStage>("store", reactor, std::move(file), [](Reactor& ring, Slot& slot, int fd) {
        ring.write(slot.op(), fd, slot.buffer.first(slot.chunk.length), slot.chunk.file_offset);
      }));
}

LanePlan plan_of(CopyEngine& engine, MakeStore make_store, bool checksum) {
  LanePlan plan;
  plan.engine = &engine;
  plan.checksum = checksum;
  plan.make_store = std::move(make_store);
  return plan;
}

// From the first chunk's admission to the last one's end: buffers and ring are made before.
Result<Sample> run_pipeline(const LanePlan& plan) {
  SLUICE_TRY_ASSIGN(const RunResult run, run_lanes({&plan, 1}));
  const PipelineStats& stats = run.lanes.front().stats;
  if (stats.bytes != run.sample.bytes) return Error{EIO, "the lane's bytes do not add up"};
  Sample sample = run.sample;
  sample.seconds = static_cast<double>(stats.elapsed_ns) / 1e9;
  return sample;
}

Result<Case> cost_case(const BenchOptions& options, std::string name, std::string note, CopyEngine& engine,
                       const MakeStore& make_store) {
  options.tell(name);
  std::vector<double> costs;
  for (unsigned i = 0; i < options.by_scale(1u, 5u, 9u); ++i) {
    SLUICE_TRY_ASSIGN(const Sample sample, run_pipeline(plan_of(engine, make_store, false)));
    costs.push_back(sample.seconds / static_cast<double>(div_ceil(sample.bytes, kChunkBytes)) * 1e6);
  }
  return Case{std::move(name), std::move(note), {figure("per chunk", "us", costs)}};
}

// Receives unneeded sums.
thread_local volatile std::uint8_t unneeded = 0;

void sum_blocks(std::span<const std::byte> buffer) {
  for (std::uint64_t at = 0; at < buffer.size(); at += kSumBlockBytes)
    unneeded = unneeded ^ sum_of(buffer.subspan(at, kSumBlockBytes))[0];
}

// Sums of all buffers in turn, repeatedly.
Sample sum_only(const StagingArena& arena, std::uint64_t bytes) {
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint64_t at = 0; at < bytes; at += kChunkBytes)
    sum_blocks(arena.buffer(static_cast<std::uint32_t>(at / kChunkBytes % kSlots)));
  Sample sample;
  sample.bytes = bytes;
  sample.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return sample;
}

// As many threads as a lane and its copy engine have; each copies its part of `from` into its part of the
// ring and sums the copy.
Result<Sample> copy_and_sum(std::span<const std::byte> from, StagingArena& ring, std::uint32_t thread_count) {
  const std::uint32_t slots = ring.slots() / thread_count;
  const std::uint64_t bytes = align_down(from.size() / thread_count, kChunkBytes);
  const auto begin = std::chrono::steady_clock::now();
  {
    std::vector<LaneThread> threads;
    for (std::uint32_t part = 0; part < thread_count; ++part) {
      SLUICE_TRY_ASSIGN(LaneThread thread, LaneThread::start("copy-and-sum", [=, &ring]() -> Result<void> {
                          for (std::uint64_t at = 0; at < bytes; at += kChunkBytes) {
                            const auto slot = static_cast<std::uint32_t>(at / kChunkBytes % slots);
                            const std::span<std::byte> buffer = ring.buffer(part * slots + slot);
                            vamdgpu::dma_copy(buffer.data(), &from[part * bytes + at], kChunkBytes);
                            sum_blocks(buffer);
                          }
                          return {};
                        }));
      threads.push_back(std::move(thread));
    }
    for (LaneThread& thread : threads) SLUICE_TRY(thread.join());
  }
  Sample sample;
  sample.bytes = bytes * thread_count;
  sample.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return sample;
}

std::vector<Figure> rates(const Pairs& pairs) {
  return {ratio("ratio", pairs.our_gbps(), pairs.raw_gbps()), figure("ours", "GB/s", pairs.our_gbps()),
          figure("raw", "GB/s", pairs.raw_gbps())};
}

Result<Case> checksum_case(const BenchOptions& options) {
  const std::uint64_t bytes = options.by_scale(32 * kMiB, 4 * kGiB, 16 * kGiB);
  options.tell("checksum");
  SLUICE_TRY_ASSIGN(const std::unique_ptr<CopyEngine> engine, make_ghost_engine({{bytes - kHeaderBytes}}, 0));
  SLUICE_TRY_ASSIGN(const StagingArena arena, StagingArena::make(kChunkBytes, kSlots, -1));
  fill(arena.bytes(), Contents{{arena.bytes().size()}});
  const LanePlan plan = plan_of(*engine, make_null_store, true);
  SLUICE_TRY_ASSIGN(const Pairs pairs,
                    run_pairs(
                        options.by_scale(1u, 5u, 9u), [] {}, [&] { return run_pipeline(plan); },
                        [&]() -> Result<Sample> { return sum_only(arena, bytes); }));
  return Case{"checksum", "raw: sums of as many buffers of the same size in turn, by one thread",
              rates(pairs)};
}

Result<Case> secret_case(const BenchOptions& options) {
  const std::uint64_t bytes = options.by_scale(32 * kMiB, 4 * kGiB, 16 * kGiB);
  SLUICE_TRY_ASSIGN(const std::unique_ptr<CopyEngine> engine, make_ghost_engine({{bytes - kHeaderBytes}}, 0));
  LanePlan plan = plan_of(*engine, make_null_store, true);
  SumTable sums;
  plan.sums = &sums;
  SumSecret secret;
  for (std::size_t i = 0; i < secret.bytes.size(); ++i)
    secret.bytes[i] = static_cast<std::uint8_t>(i * 101 + i / 7);
  return on_off_case(options, "checksum, secret on / off", "what it costs that sums have a secret",
                     [&](bool on) -> Result<Sample> {
                       sums.method = on ? SumMethod(secret) : SumMethod();
                       return run_pipeline(plan);
                     });
}

Result<Case> memcpy_case(const BenchOptions& options, std::uint32_t threads) {
  const std::uint64_t bytes = options.by_scale(16 * kMiB, kGiB, 4 * kGiB);
  Case each{threads == 1 ? "memcpy and checksum, one thread" : "memcpy and checksum",
            threads == 1 ? "raw: one thread copies and sums; ours has the thread that copies besides"
                         : "raw: two threads, as ours has, each copying and summing one half",
            {}};
  options.tell(each.name);
  SLUICE_TRY_ASSIGN(const std::unique_ptr<CopyEngine> engine, make_memcpy_engine({{bytes - kHeaderBytes}}));
  SLUICE_TRY_ASSIGN(StagingArena ring, StagingArena::make(kChunkBytes, kSlots, -1));
  LanePlan plan = plan_of(*engine, make_null_store, true);
  SumTable first;
  const auto dump = [&]() -> Result<Sample> {
    SumTable sums;
    plan.sums = &sums;
    SLUICE_TRY_ASSIGN(const Sample sample, run_pipeline(plan));
    if (first.sums.empty()) first = sums;
    if (sums.sums != first.sums) return Error{EBADMSG, "the sums of two dumps of the same bytes differ"};
    return sample;
  };
  SLUICE_TRY_ASSIGN(const Pairs pairs, run_pairs(
                                           options.by_scale(1u, 5u, 9u), [] {}, dump,
                                           [&] { return copy_and_sum(engine->memory(), ring, threads); }));
  each.figures = rates(pairs);
  return each;
}

}  // namespace

Result<Report> run_engine(const BenchOptions& options) {
  Report report{"engine", "the engine's own time, per chunk of 4 MiB and beside bare loops", {}};
  const std::uint64_t bytes = options.by_scale(200u, 20'000u, 200'000u) * kChunkBytes;
  SLUICE_TRY_ASSIGN(const std::unique_ptr<CopyEngine> ghost, make_ghost_engine({{bytes - kHeaderBytes}}, 0));
  SignalledEngine signalled({{bytes - kHeaderBytes}});
  const std::vector<std::pair<const char*, std::function<Result<Case>()>>> cases = {
      {"no checksum",
       [&] {
         return cost_case(options, "no checksum", "copy and store end at once, without a system call", *ghost,
                          make_null_store);
       }},
      {"no checksum, through the ring",
       [&] {
         return cost_case(options, "no checksum, through the ring",
                          "the ring polls a signalled fence and writes to /dev/null, for every chunk",
                          signalled, make_null_file);
       }},
      {"checksum", [&] { return checksum_case(options); }},
      {"checksum, secret on / off", [&] { return secret_case(options); }},
      {"memcpy and checksum", [&] { return memcpy_case(options, 2); }},
      {"memcpy and checksum, one thread", [&] { return memcpy_case(options, 1); }},
  };
  for (const auto& [name, run] : cases) {
    if (!options.wants(name)) continue;
    SLUICE_TRY_ASSIGN(Case each, run());
    report.cases.push_back(std::move(each));
  }
  return report;
}

}  // namespace sluice::bench
