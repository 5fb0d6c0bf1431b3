// SPDX-License-Identifier: MIT
// Lanes that run side by side and share what they have alike: whatever is equal, and whoever lags or fails,
// each file is the one that a serial writer makes, or there is none.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/units.h"
#include "pipeline/checksum/content_match.h"
#include "pipeline/extents/extent_cloner.h"
#include "pipeline/lane.h"
#include "pipeline/replica/replica_gate.h"
#include "pipeline/store/file_set.h"
#include "support/clone_emulator.h"
#include "support/lane.h"
#include "support/memory_copy.h"
#include "support/rng.h"
#include "support/serial_writer.h"
#include "support/temp_dir.h"

namespace sluice {
namespace {

using test::BoList;
using test::Bytes;
using test::ReactorKind;
using test::Rng;

constexpr std::uint64_t kSeeds = 60;

// One GPU's memory.
struct Gpu {
  BoList bos;
  std::vector<std::optional<std::uint32_t>> origins;  // by BO: which of the model's it is
  std::uint32_t depth = 2;
  unsigned workers = 0;
  std::uint64_t fails_at = UINT64_MAX;  // chunks done
};

// Copies of one model, which differ here and there: in contents, by BOs of their own, by BOs they lack.
std::vector<Gpu> some_gpus(Rng& rng) {
  BoList model(static_cast<std::size_t>(rng.between(1, 5)));
  for (Bytes& bo : model) {
    bo.resize(static_cast<std::size_t>(rng.percent(70) ? 4096 * rng.between(1, 700) : rng.between(0, 9000)));
    rng.fill(bo);
    if (rng.percent(30)) std::fill_n(bo.begin(), bo.size() / 2, std::byte{0});
  }
  std::vector<Gpu> gpus(static_cast<std::size_t>(rng.between(2, 5)));
  for (Gpu& gpu : gpus) {
    for (std::uint32_t i = 0; i < model.size(); ++i) {
      if (rng.percent(8)) {
        rng.fill(gpu.bos.emplace_back(static_cast<std::size_t>(4096 * rng.between(1, 40))));
        gpu.origins.emplace_back();
      }
      if (rng.percent(6)) continue;
      Bytes bo = model[i];
      if (rng.percent(30) && !bo.empty()) {
        const auto begin = static_cast<std::size_t>(rng.between(0, bo.size() - 1));
        rng.fill(std::span(bo).subspan(begin, std::min<std::size_t>(bo.size() - begin, 150'000)));
      }
      gpu.bos.push_back(std::move(bo));
      gpu.origins.emplace_back(i);
    }
    gpu.depth = static_cast<std::uint32_t>(rng.between(1, 5));
    gpu.workers = rng.percent(40) ? 2 : 0;
  }
  return gpus;
}

std::vector<std::uint32_t> corresponding(const Gpu& follower, const Gpu& leader) {
  std::vector<std::uint32_t> bos;
  for (const auto& origin : follower.origins) {
    const auto at =
        origin ? std::find(leader.origins.begin(), leader.origins.end(), origin) : leader.origins.end();
    bos.push_back(at == leader.origins.end() ? Leader::kNoBo
                                             : static_cast<std::uint32_t>(at - leader.origins.begin()));
  }
  return bos;
}

std::string name_of(std::size_t number) {
  return "gpu" + std::to_string(number);
}

// What is done with what a leader has: its extents are shared, or it is left out.
enum class How : std::uint8_t { Share, LeaveOut };

// All lanes of a dump.
class Dump {
 public:
  Dump(const test::TempDir& dir, std::vector<Gpu>& gpus, ReactorKind kind, std::uint64_t chunk_bytes,
       How how = How::Share)
      : dir_(dir), gpus_(gpus), kind_(kind), how_(how) {
    for (const Gpu& gpu : gpus_) {
      layouts_.push_back(std::move(ImageLayout::make(test::sizes_of(gpu.bos), chunk_bytes)).value());
      tables_.push_back(std::make_shared<KnownFiles::Tables>(
          unit_tables(layouts_.back(), std::min(chunk_bytes, kSumBlockBytes))));
    }
    for (std::size_t i = 0; i < gpus_.size(); ++i)
      lanes_.push_back(std::make_shared<LeaderLane>(layouts_[i], tables_[i], name_of(i), LaneWorld::real()));
    results_.resize(gpus_.size());
    replica_bytes_.resize(gpus_.size());
    runs_.resize(gpus_.size());
  }

  void run() {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < gpus_.size(); ++i)
      threads.emplace_back([this, i] {
        results_[i] = carry(i);
        if (!results_[i]) lanes_[i]->end(std::nullopt);
      });
    for (std::thread& thread : threads) thread.join();
  }

  const Result<void>& result(std::size_t gpu) const { return results_[gpu]; }
  std::uint64_t replica_bytes(std::size_t gpu) const { return replica_bytes_[gpu]; }
  const SumTable& sums(std::size_t gpu) const { return tables_[gpu]->front(); }
  const ImageLayout& layout(std::size_t gpu) const { return layouts_[gpu]; }
  const KnownRuns& runs(std::size_t gpu) const { return runs_[gpu]; }
  test::CloneEmulator emulator;

 private:
  Result<void> carry(std::size_t number) {
    Gpu& gpu = gpus_[number];
    const ImageLayout& layout = layouts_[number];
    std::vector<Leader> leaders;
    for (std::size_t other = number; other-- > 0;)
      leaders.push_back({lanes_[other], corresponding(gpu, gpus_[other])});
    ContentMatch match(layout, *tables_[number], std::vector<KnownBo>(gpu.bos.size()),
                       how_ == How::Share ? 4096 : 0, std::move(leaders));
    test::TestWorld world(kind_);
    const auto lane = test::make_lane(layout, gpu.depth, world);
    SLUICE_TRY_ASSIGN(
        const auto cloner,
        ExtentCloner::start(
            {.runs = [&match](std::uint32_t file) { return match.clones(file); },
             .ready = [&match] { return match.wait_for_leaders([] { return false; }); },
             .sums = {&layout, *tables_[number]},
             .call = [this](int from_fd, std::uint64_t from, std::uint64_t bytes, int to_fd,
                            std::uint64_t to) { return emulator(from_fd, from, bytes, to_fd, to); }},
            *lane));
    SLUICE_TRY_ASSIGN(const auto gate, ReplicaGate::make(match, lane->reactor()));
    FileSetSink sink(dir_.fd(), {name_of(number)}, layout, lane->reactor(),
                     {.holes = true, .sync = false, .cloner = how_ == How::Share ? cloner.get() : nullptr});
    test::MemoryCopy copy(Direction::Dump, layout, lane->reactor(), gpu.bos);
    SLUICE_TRY_ASSIGN(const auto checksum,
                      make_checksum(*lane, Direction::Dump, *tables_[number],
                                    {.match = &match, .leads = lanes_[number].get()}, nullptr, gpu.workers));
    std::uint64_t done = 0;
    SLUICE_TRY_ASSIGN(const auto stats, lane->run(
                                            Route{gate.get(), &copy, checksum.get(), &sink},
                                            [&done](std::uint64_t so_far, std::uint64_t) { done = so_far; },
                                            [&] { return done >= gpu.fails_at; }));
    (void)stats;
    UniqueFd file(::openat(dir_.fd(), (name_of(number) + ".tmp").c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) return make_error(errno, "open the file");
    SLUICE_TRY(match.wait_for_leaders([] { return false; }));
    runs_[number] = match.runs(0).replicas;
    const UnitIndex units(layout, tables_[number]->front().block_bytes);
    lanes_[number]->end(LeaderLane::Complete{std::move(file), {}, RunIndex(layout, units, 0, runs_[number])});
    replica_bytes_[number] = match.replica_bytes();
    return sink.commit();
  }

  const test::TempDir& dir_;
  std::vector<Gpu>& gpus_;
  const ReactorKind kind_;
  const How how_;
  std::vector<ImageLayout> layouts_;
  std::vector<std::shared_ptr<KnownFiles::Tables>> tables_;
  std::vector<std::shared_ptr<LeaderLane>> lanes_;
  std::vector<Result<void>> results_;
  std::vector<std::uint64_t> replica_bytes_;
  std::vector<KnownRuns> runs_;
};

void expect_right(const test::TempDir& dir, const std::vector<Gpu>& gpus, const Dump& dump, std::size_t gpu) {
  const Bytes expected = test::serial_file(gpus[gpu].bos);
  ASSERT_TRUE(dir.read(name_of(gpu)) == expected) << "GPU " << gpu;
  ASSERT_EQ(dump.sums(gpu).sums, test::serial_sums(gpus[gpu].bos, dump.sums(gpu).block_bytes).sums);
}

TEST(Replicas, EachFileIsTheOneThatASerialWriterMakes) {
  const test::TempDir dir;
  std::uint64_t shared = 0;
  for (std::uint64_t seed = 0; seed < kSeeds && !testing::Test::HasFatalFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    std::vector<Gpu> gpus = some_gpus(rng);
    Dump dump(dir, gpus, ReactorKind::Threads, 64 * kKiB << rng.between(0, 5));
    dump.run();
    std::uint64_t replicas = 0;
    for (std::size_t i = 0; i < gpus.size(); ++i) {
      ASSERT_TRUE(dump.result(i).ok()) << dump.result(i).error().what;
      ASSERT_NO_FATAL_FAILURE(expect_right(dir, gpus, dump, i));
      replicas += dump.replica_bytes(i);
    }
    EXPECT_EQ(replicas, dump.emulator.bytes()) << "what is not written is cloned";
    shared += replicas;
  }
  EXPECT_GT(shared, 40 * kMiB);
}

// A run leads to a unit that its file has itself: what all files have together is what a serial writer makes.
TEST(Replicas, LeftOutTheyAreFoundInOneStep) {
  const test::TempDir dir;
  std::uint64_t left_out = 0;
  for (std::uint64_t seed = 0; seed < kSeeds && !testing::Test::HasFatalFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    std::vector<Gpu> gpus = some_gpus(rng);
    Dump dump(dir, gpus, ReactorKind::Threads, 64 * kKiB << rng.between(0, 5), How::LeaveOut);
    dump.run();
    EXPECT_EQ(dump.emulator.calls(), 0U);
    for (std::size_t i = 0; i < gpus.size(); ++i) {
      ASSERT_TRUE(dump.result(i).ok()) << dump.result(i).error().what;
      Bytes bytes = dir.read(name_of(i));
      const KnownRuns& runs = dump.runs(i);
      const ImageLayout& layout = dump.layout(i);
      std::uint64_t at = 0;  // in the run's file
      std::size_t run = 0;
      each_unit(layout, UnitIndex(layout, dump.sums(i).block_bytes), 0, [&](const SumRange& range) {
        while (run < runs.runs.size() && range.index >= runs.runs[run].first_unit + runs.runs[run].units)
          ++run;
        if (run == runs.runs.size() || range.index < runs.runs[run].first_unit) return;
        if (range.index == runs.runs[run].first_unit) at = runs.runs[run].offset;
        const Bytes other = dir.read(runs.files[runs.runs[run].file]);
        ASSERT_NE(runs.files[runs.runs[run].file], name_of(i));
        const std::uint64_t length = range.end - range.begin;
        ASSERT_LE(at + length, other.size());
        std::copy_n(other.begin() + static_cast<std::ptrdiff_t>(at), length,
                    bytes.begin() + static_cast<std::ptrdiff_t>(range.begin));
        at += length;
        left_out += length;
      });
      ASSERT_TRUE(bytes == test::serial_file(gpus[i].bos)) << "GPU " << i;
    }
  }
  EXPECT_GT(left_out, 40 * kMiB);
}

// Whoever has shared nothing with a lane that fails is complete; the others fail, too, and leave nothing.
TEST(Replicas, ALaneThatFailsTakesThoseAlongThatNeedIt) {
  const test::TempDir dir;
  std::size_t complete = 0, failed = 0;
  for (std::uint64_t seed = 0; seed < kSeeds && !testing::Test::HasFatalFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    std::vector<Gpu> gpus = some_gpus(rng);
    gpus[rng.between(0, gpus.size() - 1)].fails_at = rng.between(0, 6);
    Dump dump(dir, gpus, ReactorKind::Threads, 128 * kKiB);
    dump.run();
    for (std::size_t i = 0; i < gpus.size(); ++i) {
      if (dump.result(i).ok()) {
        ++complete;
        ASSERT_NO_FATAL_FAILURE(expect_right(dir, gpus, dump, i));
        ASSERT_EQ(::unlinkat(dir.fd(), name_of(i).c_str(), 0), 0);
      } else {
        ++failed;
        EXPECT_EQ(dump.result(i).error().err, ECANCELED) << dump.result(i).error().what;
      }
    }
    ASSERT_TRUE(dir.names().empty());
  }
  EXPECT_GT(complete, kSeeds);
  EXPECT_GT(failed, kSeeds / 4);
}

// Equal GPUs: all is written once, except the first and the last part of each file.
TEST(Replicas, OfEqualGpusOneIsWritten) {
  const test::TempDir dir;
  Rng rng(1);
  std::vector<Gpu> gpus(4);
  rng.fill(gpus[0].bos.emplace_back(6 * kMiB));
  rng.fill(gpus[0].bos.emplace_back(2 * kMiB));
  gpus[0].origins = {0, 1};
  for (std::size_t i = 1; i < gpus.size(); ++i) gpus[i] = gpus[0];
  for (const ReactorKind kind : {ReactorKind::Threads, ReactorKind::Uring}) {
    if (!test::unavailable(kind).empty()) continue;
    Dump dump(dir, gpus, kind, kMiB);
    dump.run();
    for (std::size_t i = 0; i < gpus.size(); ++i) {
      ASSERT_TRUE(dump.result(i).ok()) << dump.result(i).error().what;
      ASSERT_NO_FATAL_FAILURE(expect_right(dir, gpus, dump, i));
      EXPECT_EQ(dump.replica_bytes(i), i == 0 ? 0 : 8 * kMiB - kZeroUnitBytes) << i;
    }
  }
}

// Asked once, before anything is written.
TEST(Replicas, WhetherNewFilesShareExtentsIsTried) {
  const test::TempDir dir;
  test::CloneEmulator emulator;
  const CloneCall shares = [&](int from_fd, std::uint64_t from, std::uint64_t bytes, int to_fd,
                               std::uint64_t to) { return emulator(from_fd, from, bytes, to_fd, to); };
  EXPECT_TRUE(std::has_single_bit(shareable_block_bytes(dir.fd(), shares)));
  EXPECT_EQ(emulator.calls(), 1U);
  EXPECT_EQ(shareable_block_bytes(dir.fd(), [](auto...) { return EOPNOTSUPP; }), 0U);
  EXPECT_EQ(shareable_block_bytes(-1, shares), 0U);
  EXPECT_TRUE(dir.names().empty());
}

}  // namespace
}  // namespace sluice
