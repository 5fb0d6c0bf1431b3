// SPDX-License-Identifier: MIT
// Damage to any file of a chain of three, by seed: a restore of the last finds it before a damaged byte
// reaches memory, and names the checkpoint or the file; or every byte is right all the same. `sluice verify`
// agrees.
//
//   SLUICE_SEEDS, SLUICE_SEED    support/seeds.h
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/units.h"
#include "corruption/damage.h"
#include "corruption/judge.h"
#include "corruption/made_checkpoint.h"
#include "corruption/trial_restore.h"
#include "images/chain/chain.h"
#include "images/checkpoint.h"
#include "support/seeds.h"
#include "support/temp_dir.h"

namespace sluice::corruption_test {
namespace {

using test::Rng;

constexpr std::size_t kLength = 3;
constexpr std::uint64_t kCasesPerWorld = 50;
constexpr std::uint64_t kChunkBytes = 128 * kKiB;
constexpr unsigned kVerifiedPercent = 25;

std::string memory_directory() {
  return ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "";
}

struct Totals {
  std::uint64_t found = 0;
  std::array<std::uint64_t, kLength> cases{};  // by the member that was damaged
  std::array<std::uint64_t, kLength> found_in{};
};

// Three dumps, each on the one before. The last is restored.
class World {
 public:
  World(std::uint64_t seed, const LaneKit& kit) : kit_(kit), rng_(seed) {
    const WriteSizes sizes{kChunkBytes, 64 * kKiB << rng_.between(0, 1)};
    // Some have nothing that the parent has as well: such chains end early.
    do {
      made_.clear();
      dirs_.clear();
      copies_.clear();
      for (std::size_t i = 0; i < kLength; ++i) add(sizes);
    } while (deltas_in(1) == 0 || deltas_in(2) == 0);
  }

  void expect_clean() {
    const TrialRestore trial = restore();
    ASSERT_TRUE(trial.errors.empty()) << trial.errors[0].what;
    ASSERT_EQ(trial.became, &made_.back().known);
    const Verified verified = verify(dirs_.back()->fd(), kChunkBytes);
    ASSERT_TRUE(verified.problems.empty()) << verified.problems[0].file << ": " << verified.problems[0].what;
  }

  void run(std::uint64_t seed, Totals& totals) {
    Rng rng(~seed);
    const std::size_t member = rng.between(0, kLength - 1);
    const std::size_t older = member == 0 ? 1 : member - 1;
    const Victim victim{dirs_[member]->fd(), copies_[member], copies_[older], made_[member].known};
    const Damage damage = do_damage(victim, rng);
    SCOPED_TRACE("member " + std::to_string(member) + ": " + damage.kind +
                 (damage.places.empty() ? "" : ", " + damage.places[0].file));
    const TrialRestore trial = restore();
    if (rng.percent(kVerifiedPercent)) judge_verification(trial);
    for (const Place& place : damage.places) copies_[member].put_back(dirs_[member]->fd(), place.file);
    ASSERT_EQ(trial.wrong_bytes, 0U) << "damaged bytes reached memory";
    ++totals.cases[member];
    if (trial.errors.empty()) {
      ASSERT_NE(trial.became, nullptr) << "restored as what it never was";
      return;
    }
    ASSERT_FALSE(damage.harmless) << "a false alarm: " << trial.errors[0].what;
    ++totals.found;
    ++totals.found_in[member];
    for (const Error& error : trial.errors) ASSERT_TRUE(names(error, damage, member)) << error.what;
  }

 private:
  void add(const WriteSizes& sizes) {
    made_.push_back(made_.empty()
                        ? make_checkpoint(rng_)
                        : make_later(made_.back(), rng_, static_cast<unsigned>(rng_.between(0, 4))));
    dirs_.push_back(std::make_unique<test::TempDir>(memory_directory()));
    const test::TempDir& dir = *dirs_.back();
    std::unique_ptr<Ancestor> parent;
    if (dirs_.size() > 1) {
      ASSERT_EQ(::symlinkat(dirs_[dirs_.size() - 2]->path().c_str(), dir.fd(), kParentLink), 0);
      auto opened = Ancestor::open(dir.fd(), kParentLink, ImageKeys());
      ASSERT_TRUE(opened.ok()) << opened.error().what;
      parent = std::move(*opened);
    }
    const auto written = write_checkpoint(dir.fd(), made_.back(), sizes, kit_, *kit_.reactor, parent.get());
    ASSERT_TRUE(written.ok()) << written.error().what;
    copies_.emplace_back(dir.fd());
  }
  std::size_t deltas_in(std::size_t member) const {
    const auto& files = copies_[member].files();
    return static_cast<std::size_t>(std::count_if(files.begin(), files.end(), [](const auto& file) {
      return file.first.starts_with("amdgpu-delta-");
    }));
  }

  // A member that is another dump altogether is whole by itself.
  TrialRestore restore() {
    return trial_restore(dirs_.back()->fd(), {&made_[2].known, &made_[1].known, &made_[0].known}, kChunkBytes,
                         kit_, *kit_.reactor);
  }

  // The file, or, of an older checkpoint, at least which of them it is.
  static bool names(const Error& error, const Damage& damage, std::size_t member) {
    const std::string words = member == kLength - 1 ? "" : member == 1 ? "parent" : "parent/parent";
    const bool names_member = !words.empty() && error.what.find(words) != std::string::npos;
    // Which of the two is the wrong one, nobody can tell.
    const bool names_pair = error.what.find("[SL-I40]") != std::string::npos;
    return names_member || names_pair ||
           std::any_of(damage.places.begin(), damage.places.end(),
                       [&](const Place& place) { return error.what.find(place.file) != std::string::npos; });
  }

  void judge_verification(const TrialRestore& trial) const {
    const int dir_fd = dirs_.back()->fd();
    const auto checkpoint = read_checkpoint(DirectorySource(dir_fd));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().what;
    const bool found = !verify(dir_fd, kChunkBytes).problems.empty() || !checkpoint->faults().empty();
    const std::size_t images =
        checkpoint->kfd.size() + checkpoint->render.size() + checkpoint->dmabufs.size();
    if (images == made_.back().known.metadata.size() || !checkpoint->lost.empty()) {
      ASSERT_EQ(found, !trial.errors.empty()) << (trial.errors.empty() ? "" : trial.errors[0].what);
    }
  }

  const LaneKit& kit_;
  Rng rng_;
  std::vector<MadeCheckpoint> made_;  // the oldest first, as all of these
  std::vector<std::unique_ptr<test::TempDir>> dirs_;
  std::vector<DirectoryCopy> copies_;
};

TEST(ChainCorruption, OfAnyMemberIsFoundAndNamedOrHasNoEffect) {
  const LaneKit kit(kChunkBytes, 3);
  const test::Seeds seeds = test::seeds_of_test(test::usual(1'000, 100));
  Totals totals;
  std::unique_ptr<World> world;
  for (std::uint64_t seed = seeds.first; seed < seeds.first + seeds.count; ++seed) {
    if (!world || seed % kCasesPerWorld == 0) {
      world = std::make_unique<World>(seed / kCasesPerWorld, kit);
      ASSERT_NO_FATAL_FAILURE(world->expect_clean());
    }
    SCOPED_TRACE(test::replay_with(seed));
    world->run(seed, totals);
    if (HasFatalFailure()) return;
  }
  ASSERT_NO_FATAL_FAILURE(world->expect_clean());
  std::printf("shown: corruption of a chain: %llu cases, %llu found and named;",
              static_cast<unsigned long long>(seeds.count), static_cast<unsigned long long>(totals.found));
  for (std::size_t i = 0; i < kLength; ++i)
    std::printf(" member %zu: %llu of %llu", i + 1, static_cast<unsigned long long>(totals.found_in[i]),
                static_cast<unsigned long long>(totals.cases[i]));
  std::printf("\n");
  if (seeds.count < 100) return;
  EXPECT_GT(totals.found, seeds.count / 2) << "the damage does not reach the readers";
  for (std::size_t i = 0; i < kLength; ++i) EXPECT_GT(totals.found_in[i], 0U) << "of member " << i + 1;
}

}  // namespace
}  // namespace sluice::corruption_test
