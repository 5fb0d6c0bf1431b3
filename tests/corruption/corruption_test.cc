// SPDX-License-Identifier: MIT
// Damaged image directories and lying disks, by seed: each case is found before a damaged byte reaches
// memory, and named; or it changes nothing of what is restored. Restores and `sluice verify` agree.
// Directories that are whole raise no alarm.
//
//   SLUICE_SEEDS, SLUICE_SEED    support/seeds.h
//   SLUICE_CLEAN_GB=n            GB of clean traffic (4; under a sanitizer 1)
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/units.h"
#include "corruption/damage.h"
#include "corruption/judge.h"
#include "corruption/lying_reactor.h"
#include "corruption/made_checkpoint.h"
#include "corruption/trial_restore.h"
#include "images/files/files.h"
#include "pipeline/checksum/checksum.h"
#include "pipeline/pipeline.h"
#include "pipeline/store/file_set.h"
#include "support/lane.h"
#include "support/refuse_system_call.h"
#include "support/seeds.h"
#include "support/temp_dir.h"

namespace sluice::corruption_test {
namespace {

using test::BoList;
using test::Bytes;
using test::Rng;

constexpr std::uint64_t kCasesPerWorld = 50;
constexpr std::uint64_t kMostChunkBytes = 128 * kKiB;
constexpr std::uint32_t kSlots = 3;
constexpr unsigned kVerifiedPercent = 25;  // it takes longer than the restore

std::string memory_directory() {
  return ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "";
}

struct Totals {
  std::uint64_t cases = 0;
  std::uint64_t found = 0;
  std::uint64_t named = 0;
  std::uint64_t verified = 0;  // by `sluice verify`, too
  std::uint64_t false_alarms = 0;
  std::uint64_t clean_bytes = 0;
  struct Kind {
    std::uint64_t cases = 0;
    std::uint64_t without_effect = 0;
  };
  std::map<std::string, Kind> kinds;
  std::map<std::string, std::uint64_t> why_without_effect;
};

// Two dumps of one process tree, one after the other, and the directory of the later one.
class World {
 public:
  World(std::uint64_t seed, const LaneKit& kit)
      : kit_(kit),
        rng_(seed),
        sizes_{kMostChunkBytes, 4 * kKiB << rng_.between(0, 5)},
        chunk_bytes_(64 * kKiB << rng_.between(0, 1)),
        earlier_(make_checkpoint(rng_)),
        later_(rng_.percent(90) ? make_later(earlier_, rng_, static_cast<unsigned>(rng_.between(5, 60)))
                                : make_checkpoint(rng_)),
        directory_(memory_directory()) {
    const test::TempDir old(memory_directory());
    write(old.fd(), earlier_, *kit_.reactor);
    older_.emplace(old.fd());
    LyingReactor writes(*kit_.reactor, kFirstWriteLie, UINT64_MAX, *older_, 0);
    write(directory_.fd(), later_, writes);
    writes_ = writes.seen();
    now_.emplace(directory_.fd());
    LyingReactor reads(*kit_.reactor, Lie::ReadShort, UINT64_MAX, *older_, 0);
    (void)restore(directory_.fd(), reads);
    reads_ = reads.seen();
  }

  // Nothing is wrong with it, and nobody says so.
  void expect_clean(Totals& totals) {
    const TrialRestore trial = restore(directory_.fd(), *kit_.reactor);
    const Verified verified = verify(directory_.fd(), chunk_bytes_);
    totals.clean_bytes += trial.bytes + verified.bytes;
    totals.false_alarms += trial.errors.size() + verified.problems.size();
    ASSERT_TRUE(trial.errors.empty()) << trial.errors[0].what;
    ASSERT_EQ(trial.became, &later_.known);
    ASSERT_TRUE(verified.problems.empty()) << verified.problems[0].file << ": " << verified.problems[0].what;
  }

  void run(std::uint64_t seed, Totals& totals) {
    Rng rng(~seed);
    const std::uint64_t manner = rng.between(0, 9);
    if (manner < 7) {
      damaged_directory(rng, totals);
    } else if (manner < 9) {
      lying_restore(rng, totals);
    } else {
      lying_dump(rng, totals);
    }
  }

 private:
  void write(int dir_fd, const MadeCheckpoint& made, Reactor& reactor) {
    const auto written = write_checkpoint(dir_fd, made, sizes_, kit_, reactor);
    ASSERT_TRUE(written.ok()) << written.error().what;
  }
  TrialRestore restore(int dir_fd, Reactor& reactor) {
    return trial_restore(dir_fd, {&later_.known, &earlier_.known}, chunk_bytes_, kit_, reactor);
  }

  void damaged_directory(Rng& rng, Totals& totals) {
    const Damage damage = do_damage({directory_.fd(), *now_, *older_, later_.known}, rng);
    judge(damage, restore(directory_.fd(), *kit_.reactor), totals);
    if (rng.percent(kVerifiedPercent)) judge_verification(damage, directory_.fd(), totals);
    if (!refused_) {
      ASSERT_NO_FATAL_FAILURE(explain(damage, totals));
    }
    for (const Place& place : damage.places) now_->put_back(directory_.fd(), place.file);
  }

  // The directory is whole.
  void lying_restore(Rng& rng, Totals& totals) {
    const auto lie = static_cast<Lie>(rng.between(0, static_cast<std::uint64_t>(kFirstWriteLie) - 1));
    LyingReactor reactor(*kit_.reactor, lie, rng.between(0, reads_ - 1), *older_, rng.next());
    const TrialRestore trial = restore(directory_.fd(), reactor);
    judge({kLies[static_cast<std::size_t>(lie)], reactor.told(), is_short(lie)}, trial, totals);
    if (!refused_) ++totals.why_without_effect["what was read was the same"];
  }

  // What is written is damaged, in a directory of its own.
  void lying_dump(Rng& rng, Totals& totals) {
    const auto lie =
        static_cast<Lie>(rng.between(static_cast<std::uint64_t>(kFirstWriteLie), kLies.size() - 1));
    LyingReactor reactor(*kit_.reactor, lie, rng.between(0, writes_ - 1), *older_, rng.next());
    const test::TempDir fresh(memory_directory());
    ASSERT_NO_FATAL_FAILURE(write(fresh.fd(), later_, reactor));
    const Damage damage{kLies[static_cast<std::size_t>(lie)], reactor.told(), is_short(lie)};
    judge(damage, restore(fresh.fd(), *kit_.reactor), totals);
    if (rng.percent(kVerifiedPercent)) judge_verification(damage, fresh.fd(), totals);
    if (!refused_) ++totals.why_without_effect["what was written was the same"];
  }

  void judge(const Damage& damage, const TrialRestore& trial, Totals& totals) {
    ++totals.cases;
    Totals::Kind& kind = totals.kinds[damage.kind];
    ++kind.cases;
    SCOPED_TRACE(describe(damage));
    ASSERT_EQ(trial.wrong_bytes, 0U) << "damaged bytes reached memory";
    refused_ = !trial.errors.empty();
    ASSERT_FALSE(damage.harmless && refused_) << "a false alarm: " << trial.errors[0].what;
    if (!refused_) {
      ASSERT_NE(trial.became, nullptr) << "restored as what it never was";
      ++kind.without_effect;
      return;
    }
    ++totals.found;
    for (const Error& error : trial.errors)
      ASSERT_TRUE(names_damage(error, damage.places, later_.known, sizes_.block_bytes)) << error.what;
    ++totals.named;
  }

  // Why damage in files that nobody found need not be found.
  void explain(const Damage& damage, Totals& totals) {
    const DirectoryCopy found(directory_.fd());
    std::string why = "no byte changed";
    for (const DirectoryCopy* dump : {&*now_, &*older_}) {
      if (dump == &*older_) why = "all files are the older dump's";
      bool explained = true;
      for (const auto& [name, file] : dump->files()) {
        const auto left = found.files().find(name);
        if (left != found.files().end() && left->second.bytes == file.bytes) continue;
        if (name == pages_without_contents()) {
          why = "in a file that holds no BO";
        } else {
          explained = false;
        }
      }
      if (!explained) continue;
      ++totals.why_without_effect[why];
      return;
    }
    FAIL() << describe(damage) << ": files changed, and nobody has found it";
  }

  // Of damage in files: verify finds what a restore does, and every block.
  void judge_verification(const Damage& damage, int dir_fd, Totals& totals) {
    ++totals.verified;
    SCOPED_TRACE(describe(damage));
    const auto checkpoint = read_checkpoint(DirectorySource(dir_fd));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().what;
    const Verified verified = verify(dir_fd, chunk_bytes_);
    for (const VerifyProblem& problem : verified.problems) {
      ASSERT_TRUE(names_damage(problem, damage.places, later_.known, sizes_.block_bytes))
          << problem.file << " at " << problem.file_offset << ": " << problem.what;
    }
    const bool found = !verified.problems.empty() || !checkpoint->faults().empty();
    const std::size_t images =
        checkpoint->kfd.size() + checkpoint->render.size() + checkpoint->dmabufs.size();
    if (images == later_.known.metadata.size() || !checkpoint->lost.empty()) {
      ASSERT_EQ(found, refused_);
    } else {  // nothing tells of it: only CRIU knows
      ASSERT_TRUE(refused_);
    }
  }

  static std::string describe(const Damage& damage) {
    std::string text = damage.kind;
    for (const Place& place : damage.places)
      text += ", " + place.file + " [" + std::to_string(place.begin) + ", " + std::to_string(place.end) + ")";
    return text;
  }

  const LaneKit& kit_;
  Rng rng_;
  WriteSizes sizes_;
  std::uint64_t chunk_bytes_;  // of who reads
  MadeCheckpoint earlier_;
  MadeCheckpoint later_;
  test::TempDir directory_;
  std::optional<DirectoryCopy> older_;
  std::optional<DirectoryCopy> now_;
  std::uint64_t reads_ = 0;  // of pages files in a restore
  std::uint64_t writes_ = 0;
  bool refused_ = false;
};

TEST(Corruption, IsFoundAndNamedOrHasNoEffect) {
  const LaneKit kit(kMostChunkBytes, kSlots);
  const test::Seeds seeds = test::seeds_of_test(test::usual(5'000, 500));
  Totals totals;
  std::optional<World> world;
  for (std::uint64_t seed = seeds.first; seed < seeds.first + seeds.count; ++seed) {
    if (!world || seed % kCasesPerWorld == 0) {
      if (world) world->expect_clean(totals);
      world.emplace(seed / kCasesPerWorld, kit);
      world->expect_clean(totals);
    }
    SCOPED_TRACE(test::replay_with(seed));
    world->run(seed, totals);
    if (HasFatalFailure()) return;
  }
  world->expect_clean(totals);

  std::uint64_t without_effect = 0;
  for (const auto& [name, kind] : totals.kinds) {
    without_effect += kind.without_effect;
    std::printf("  %-26s %6llu cases, %6llu without effect\n", name.c_str(),
                static_cast<unsigned long long>(kind.cases),
                static_cast<unsigned long long>(kind.without_effect));
  }
  for (const auto& [why, cases] : totals.why_without_effect)
    std::printf("  without effect, %s: %llu\n", why.c_str(), static_cast<unsigned long long>(cases));
  std::printf(
      "shown: corruption: %llu cases, %llu found, %llu named, %llu without effect, %llu false alarms, "
      "clean traffic %llu bytes; %llu cases verified, too\n",
      static_cast<unsigned long long>(totals.cases), static_cast<unsigned long long>(totals.found),
      static_cast<unsigned long long>(totals.named), static_cast<unsigned long long>(without_effect),
      static_cast<unsigned long long>(totals.false_alarms),
      static_cast<unsigned long long>(totals.clean_bytes), static_cast<unsigned long long>(totals.verified));
  EXPECT_EQ(totals.cases, seeds.count);
  EXPECT_EQ(totals.found + without_effect, totals.cases);
  EXPECT_EQ(totals.named, totals.found);
  if (seeds.count < 2000) return;
  EXPECT_EQ(totals.kinds.size(), damage_kinds().size() + kLies.size()) << "a kind of damage never came";
  EXPECT_GT(totals.found, totals.cases / 2) << "the damage does not reach the readers";
}

// A GPU that takes everything and keeps nothing.
class Ghost final : public Stage {
 public:
  explicit Ghost(Reactor& reactor) : reactor_(reactor) {}
  const char* name() const override { return "copy"; }
  Result<Submit> submit(Slot& slot) override {
    reactor_.post(slot.op(), 0);
    return Submit::Started;
  }
  Result<Progress> advance(Slot& /*slot*/, Op& /*op*/, std::int32_t /*result*/) override {
    return Progress::Done;
  }

 private:
  Reactor& reactor_;
};

// The restore's lane as it ships, in its own sizes, over and over: no alarm.
TEST(Corruption, CleanTrafficRaisesNoAlarm) {
  constexpr std::uint64_t kChunk = 4 * kMiB;
  constexpr std::uint64_t kGb = 1'000'000'000;
  const std::uint64_t wanted = test::number_from("SLUICE_CLEAN_GB", test::usual(4, 1)) * kGb;
  Rng rng(1);
  BoList bos{Bytes(60 * kMiB), Bytes(3 * kMiB), Bytes(4096), Bytes(80 * kMiB + 4096)};
  for (Bytes& bo : bos) rng.fill(bo);
  std::fill_n(bos[0].begin() + 5 * kMiB, 20 * kMiB, std::byte{0});
  const Bytes file = test::serial_file(bos);
  const test::TempDir dir(memory_directory());
  const std::string name = pages_image_name(1, 0x5759);
  dir.write(name, file);
  SumTable table = test::serial_sums(bos, kSumBlockBytes);
  const std::vector<std::uint64_t> sizes{bos[0].size(), bos[1].size(), bos[2].size(), bos[3].size()};
  const ImageLayout layout = std::move(ImageLayout::make(sizes, kChunk)).value();
  const LaneKit kit(kChunk, 4);
  std::uint64_t bytes = 0;
  std::uint64_t alarms = 0;
  while (bytes < wanted) {
    const auto source =
        std::move(FileSetSource::open(dir.fd(), {name}, layout, *kit.reactor, FileOptions{})).value();
    ChecksumStage checksum(Direction::Restore, layout, *kit.reactor, {&table, 1}, ChecksumOptions{}, nullptr);
    Ghost ghost(*kit.reactor);
    const std::array<Stage*, 3> route{source.get(), &checksum, &ghost};
    std::vector<Slot> slots = slots_of(kit.arena);
    Pipeline pipeline(layout, slots, route, *kit.reactor);
    const auto stats = pipeline.run();
    alarms += stats.ok() ? 0U : 1U;
    ASSERT_TRUE(stats.ok()) << stats.error().what;
    bytes += stats->bytes;
  }
  std::printf("shown: clean traffic: %llu bytes, %llu false alarms\n", static_cast<unsigned long long>(bytes),
              static_cast<unsigned long long>(alarms));
}

// Bytes of this process that no fork has: of arenas and rings.
std::uint64_t bytes_not_inherited() {
  std::ifstream smaps("/proc/self/smaps");
  std::uint64_t all = 0;
  unsigned long size_kb = 0;
  for (std::string line; std::getline(smaps, line);) {
    (void)std::sscanf(line.c_str(), "Size: %lu kB", &size_kb);
    if (line.starts_with("VmFlags:") && (line + " ").find(" dc ") != std::string::npos) all += size_kb * kKiB;
  }
  return all;
}

// Where nobody can say what has become of a read, the memory that it was for is nobody else's ever after.
TEST(BrokenRing, LeavesTheArenaOfAVerificationMapped) {
  if (const std::string why = test::unavailable(test::ReactorKind::Uring); !why.empty()) GTEST_SKIP() << why;
  Rng rng(31);
  const test::TempDir dir(memory_directory());
  const LaneKit kit(kMostChunkBytes, kSlots);
  const auto written =
      write_checkpoint(dir.fd(), make_checkpoint(rng), {kMostChunkBytes, 4 * kKiB}, kit, *kit.reactor);
  ASSERT_TRUE(written.ok()) << written.error().what;
  const std::uint64_t before = bytes_not_inherited();
  Verified verified;
  std::thread([&] {
    ASSERT_TRUE(test::refuse_system_call(SYS_io_uring_enter, EIO));
    verified = verify(dir.fd(), kMostChunkBytes);
  }).join();
  ASSERT_FALSE(verified.problems.empty());
  EXPECT_NE(verified.problems[0].what.find("io_uring_enter"), std::string::npos) << verified.problems[0].what;
  EXPECT_GE(bytes_not_inherited(), before + kFewestSlots * kMostChunkBytes);
}

}  // namespace
}  // namespace sluice::corruption_test
