// SPDX-License-Identifier: MIT
// Power cuts: the shipped plugin dumps into a directory that has an older checkpoint, or none, and what it
// does to the disk is recorded. After every step the power fails in several ways: what the directory can have
// then is read as a restore does. It is the older checkpoint or the newer one, intact, or it is refused.
//
//   SLUICE_CUTS=n   ways that the power fails by chance, after each step and of each kind (8, under a
//                   sanitizer 2)
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "corruption/judge.h"
#include "corruption/trial_restore.h"
#include "crash_model.h"
#include "disk_recording.h"
#include "images/chain/chain.h"
#include "images/files/files.h"
#include "pipeline/checksum/checksum.h"
#include "plugin_test.h"
#include "support/memory_copy.h"
#include "support/rng.h"
#include "support/seeds.h"
#include "support/temp_dir.h"

namespace sluice::plugin_test {
namespace {

using corruption_test::KnownCheckpoint;
using corruption_test::LaneKit;
using corruption_test::TrialRestore;
using test::Rng;

constexpr std::uint64_t kChunkBytes = 4 * kMiB;

std::uint64_t seeds() {
  return test::number_from("SLUICE_CUTS", test::usual(8, 2));
}

struct Counts {
  std::uint64_t steps = 0;
  std::uint64_t states = 0;  // that differ
  std::uint64_t older = 0;
  std::uint64_t newer = 0;
  std::uint64_t refused = 0;
};

class PowerCutTest : public PluginTest {
 protected:
  PowerCutTest() : disk_(::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : ""), kit_(kChunkBytes, 2) {}

  // Processes of two seeds have the same BOs with other contents.
  void start_small(const char* seed) {
    Strings options = {"--vram",  "1M",  "--gtt",      "256K",   "--no-queues",
                       "--share", "gem", "--share-fd", "--seed", seed};
    options.insert(options.end(), more_options_.begin(), more_options_.end());
    const std::string ready = scene_.start_subject(options);
    ASSERT_TRUE(ready.starts_with("ready")) << ready;
  }

  // Dumps, recorded. The process runs on.
  std::vector<DiskEvent> record_dump(const Strings& more, int status) {
    return record_dump_of(scene_.images(), more, status);
  }
  // What it does in `directory`.
  std::vector<DiskEvent> record_dump_of(const std::filesystem::path& directory, const Strings& more,
                                        int status) {
    const Recording recording(directory, disk_.path() + "/record");
    Strings arguments = {"--leave-running"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    EXPECT_EQ(scene_.dump(version(), arguments), status) << scene_.log();
    return recording.events();
  }

  KnownCheckpoint known() const {
    const UniqueFd directory(::open(scene_.images().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return corruption_test::read_known(directory.get());
  }

  // `before`: what the directory had; `allowed`: what it may be, the newest first.
  void cut_after_each(const std::vector<DiskEvent>& events, DurableDirectory before,
                      const std::vector<const KnownCheckpoint*>& allowed, Counts& counts) {
    cut_after_each(events, std::move(before), seeds(), counts,
                   [&](const DirectoryState& state) { look_at(state, allowed, counts); });
  }
  // `look` gets each state that differs. `ways`: by chance, of each kind.
  template <class Look>
  void cut_after_each(const std::vector<DiskEvent>& events, DurableDirectory before, std::uint64_t ways,
                      Counts& counts, Look look) {
    CrashModel model(std::move(before));
    std::set<Sum128> seen;
    const auto look_once = [&](const DirectoryState& state) {
      if (!seen.insert(sum_of_state(state)).second) return;
      ++counts.states;
      look(state);
    };
    for (std::size_t step = 0; step <= events.size(); ++step) {
      SCOPED_TRACE("after step " + std::to_string(step) + " of " + std::to_string(events.size()) +
                   (step > 0 ? ", " + events[step - 1].name : ""));
      if (step > 0) model.apply(events[step - 1]);
      Rng rng(step);
      for (const auto loss :
           {CrashModel::Loss::Everything, CrashModel::Loss::Nothing, CrashModel::Loss::Data})
        ASSERT_NO_FATAL_FAILURE(look_once(model.crash(loss, rng)));
      for (std::uint64_t way = 0; way < ways; ++way) {
        for (const auto loss : {CrashModel::Loss::InOrder, CrashModel::Loss::AnyOrder})
          ASSERT_NO_FATAL_FAILURE(look_once(model.crash(loss, rng)));
      }
      ++counts.steps;
    }
    // The record is all that was done, and what has ended is durable.
    const DirectoryState there = state_of(scene_.images());
    Rng rng(0);
    EXPECT_TRUE(model.crash(CrashModel::Loss::Nothing, rng) == there);
    EXPECT_TRUE(model.crash(CrashModel::Loss::Everything, rng) == there);
  }

  // What the directory has now.
  static DirectoryState state_of(const std::filesystem::path& place) {
    DirectoryState there;
    const DurableDirectory directory = read_durable(place);
    for (const auto& [name, inode] : directory.names) there[name] = directory.inodes.at(inode);
    return there;
  }

  void look_at(const DirectoryState& state, const std::vector<const KnownCheckpoint*>& allowed,
               Counts& counts) {
    const test::TempDir directory(disk_.path());
    for (const auto& [name, bytes] : state) directory.write(name, bytes);
    if (!parent_.empty()) {
      ASSERT_EQ(::symlinkat(parent_.c_str(), directory.fd(), "parent"), 0);
    }
    const TrialRestore trial =
        corruption_test::trial_restore(directory.fd(), allowed, kChunkBytes, kit_, *kit_.reactor);
    ASSERT_EQ(trial.wrong_bytes, 0U) << "a mixture reaches memory\n" << describe(state);
    if (!trial.errors.empty()) {
      ++counts.refused;
      return;
    }
    ASSERT_NE(trial.became, nullptr) << "restored as what it never was\n" << describe(state);
    const auto problems = corruption_test::verify(directory.fd(), kChunkBytes).problems;
    ASSERT_TRUE(problems.empty()) << problems[0].what;
    ++(trial.became == allowed.front() ? counts.newer : counts.older);
  }

  static Sum128 sum_of_state(const DirectoryState& state) {
    test::Bytes all;
    for (const auto& [name, bytes] : state) {
      const auto name_bytes = std::as_bytes(std::span(name));
      all.insert(all.end(), name_bytes.begin(), name_bytes.end());
      const Sum128 sum = sum_of(bytes);
      const auto sum_bytes = std::as_bytes(std::span(sum));
      all.insert(all.end(), sum_bytes.begin(), sum_bytes.end());
    }
    return sum_of(all);
  }

  static std::string describe(const DirectoryState& state) {
    std::string text;
    for (const auto& [name, bytes] : state) text += "  " + name + ", " + std::to_string(bytes.size()) + "\n";
    return text;
  }

  void tell(const char* what, const Counts& counts) const {
    std::printf(
        "shown: power cut, criu %s, %s: %llu steps, %llu states, %llu the newer, %llu the older, %llu "
        "refused\n",
        GetParam().name, what, static_cast<unsigned long long>(counts.steps),
        static_cast<unsigned long long>(counts.states), static_cast<unsigned long long>(counts.newer),
        static_cast<unsigned long long>(counts.older), static_cast<unsigned long long>(counts.refused));
  }

  // A dump over an older one that stands in the directory.
  void dump_over(const char* what) {
    ASSERT_NO_FATAL_FAILURE(start_small("1"));
    ASSERT_EQ(scene_.dump(version(), {"--leave-running"}), 0) << scene_.log();
    const KnownCheckpoint older = known();
    DurableDirectory before = read_durable(scene_.images());
    ASSERT_NO_FATAL_FAILURE(start_small("2"));
    const std::vector<DiskEvent> events = record_dump({}, 0);
    const KnownCheckpoint newer = known();
    ASSERT_NO_FATAL_FAILURE(expect_other_contents(older, newer));
    Counts counts;
    ASSERT_NO_FATAL_FAILURE(cut_after_each(events, std::move(before), {&newer, &older}, counts));
    tell(what, counts);
    EXPECT_GT(counts.older, 0U) << "before the first step";
    EXPECT_GT(counts.newer, 0U) << "after the last one";
    EXPECT_GT(counts.refused, 10U) << "the power does not fail in between";
  }

  // Or a mixture could not be told.
  static void expect_other_contents(const KnownCheckpoint& older, const KnownCheckpoint& newer) {
    ASSERT_EQ(older.sets.size(), newer.sets.size());
    for (std::size_t i = 0; i < older.sets.size(); ++i) {
      EXPECT_EQ(test::sizes_of(older.sets[i].bos), test::sizes_of(newer.sets[i].bos));
      EXPECT_FALSE(older.sets[i].bos == newer.sets[i].bos) << older.sets[i].set.describe();
    }
  }

  test::TempDir disk_;
  LaneKit kit_;
  std::filesystem::path parent_;  // of the directory's checkpoint; empty: it has none
  Strings more_options_;          // of subjects
};

TEST_P(PowerCutTest, ADumpOverAnOlderOne) {
  dump_over("over an older dump");
}

TEST_P(PowerCutTest, ADumpIntoTheFilesOfAnOlderOne) {
  scene_.variables["SLUICE_REUSE"] = "on";
  dump_over("into an older dump's files");
}

TEST_P(PowerCutTest, ADumpWhoseFilesNeedEachOther) {
  scene_.variables["SLUICE_DEDUP"] = "on";
  more_options_ = {"--replicas", "--zero", "0"};
  ASSERT_NO_FATAL_FAILURE(dump_over("with replicas left out, over such a one"));
  auto partial = images_in(scene_.images(), "amdgpu-replica-");
  std::erase_if(partial, [](const std::string& name) { return is_metadata(name); });
  EXPECT_EQ(partial.size(), 1U);
}

class ParentPowerCutTest : public PowerCutTest {};

// Over an older dump that is complete by itself. The parent is read, and nothing else.
TEST_P(ParentPowerCutTest, ADumpOnAParent) {
  ASSERT_NO_FATAL_FAILURE(start_small("1"));
  ASSERT_EQ(scene_.dump(version(), {"--leave-running"}), 0) << scene_.log();
  parent_ = scene_.images().parent_path() / "first";
  std::filesystem::rename(scene_.images(), parent_);
  const DurableDirectory parent = read_durable(parent_);
  ASSERT_EQ(scene_.dump(version(), {"--leave-running"}), 0) << scene_.log();
  const KnownCheckpoint older = known();
  DurableDirectory before = read_durable(scene_.images());
  EXPECT_EQ(heard("poke 4711"), "ok poke 4711");
  const std::vector<DiskEvent> events = record_dump({"--prev-images-dir", "../first"}, 0);
  ASSERT_FALSE(images("amdgpu-delta-").empty()) << scene_.log();
  const KnownCheckpoint newer = known();
  Counts counts;
  ASSERT_NO_FATAL_FAILURE(cut_after_each(events, std::move(before), {&newer, &older}, counts));
  tell("on a parent", counts);
  EXPECT_GT(counts.older, 0U) << "before the first step";
  EXPECT_GT(counts.newer, 0U) << "after the last one";
  EXPECT_GT(counts.refused, 10U) << "the power does not fail in between";
  const DurableDirectory afterwards = read_durable(parent_);
  EXPECT_EQ(afterwards.names, parent.names);
  EXPECT_EQ(afterwards.inodes, parent.inodes);
}

// Both ancestors were dumped without syncs, and would be gone.
TEST_P(ParentPowerCutTest, ADumpOnAChainMakesAllOfItDurable) {
  ASSERT_NO_FATAL_FAILURE(start_small("1"));
  scene_.variables["SLUICE_SYNC"] = "off";
  const std::vector<std::filesystem::path> places = {scene_.images().parent_path() / "first",
                                                     scene_.images().parent_path() / "second"};
  std::vector<CrashModel> disks;
  for (const std::filesystem::path& place : places) {
    std::filesystem::create_directories(scene_.images());
    disks.emplace_back(DurableDirectory());
    const Strings on = disks.size() == 1 ? Strings() : Strings{"--prev-images-dir", "../first"};
    for (const DiskEvent& event : record_dump(on, 0)) disks.back().apply(event);
    std::filesystem::rename(scene_.images(), place);
    EXPECT_EQ(heard("poke 4711"), "ok poke 4711");
  }
  ASSERT_FALSE(images_in(places[1], "amdgpu-delta-").empty()) << scene_.log();
  scene_.variables.erase("SLUICE_SYNC");
  for (std::size_t i = 0; i < places.size(); ++i) {
    SCOPED_TRACE(places[i]);
    Rng rng(0);
    EXPECT_FALSE(disks[i].crash(CrashModel::Loss::Everything, rng) == state_of(places[i]));
    for (const DiskEvent& event : record_dump_of(places[i], {"--prev-images-dir", "../second"}, 0))
      disks[i].apply(event);
    ASSERT_FALSE(images("amdgpu-delta-").empty()) << scene_.log();
    EXPECT_TRUE(disks[i].crash(CrashModel::Loss::Everything, rng) == state_of(places[i]));
    std::filesystem::remove_all(scene_.images());
  }
}

class PreDumpPowerCutTest : public PowerCutTest {};

// Wherever it is cut: it is nobody's parent, or has all that it had at its end.
TEST_P(PreDumpPowerCutTest, APreDump) {
  ASSERT_NO_FATAL_FAILURE(start_small("1"));
  std::filesystem::create_directories(scene_.images());
  std::vector<DiskEvent> events;
  {
    const Recording recording(scene_.images(), disk_.path() + "/record");
    ASSERT_EQ(scene_.start_host(version(), "pre-dump", {}).wait(), 0) << scene_.log();
    events = recording.events();
  }
  const DirectoryState whole = state_of(scene_.images());
  ASSERT_TRUE(whole.contains("amdgpu-predump.img")) << scene_.log();
  Counts counts;
  const auto look = [&](const DirectoryState& state) {
    const test::TempDir directory(disk_.path());
    for (const auto& [name, bytes] : state) {
      directory.write(name, bytes);
      ASSERT_EQ(::fchmodat(directory.fd(), name.c_str(), 0600, 0), 0);
    }
    UniqueFd fd(::open(directory.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const auto parent = Ancestor::of(std::move(fd), "parent", {});
    ++(parent ? counts.newer : counts.refused);
    // A mark alone says that all is there.
    ASSERT_EQ(parent.ok(), state.contains("amdgpu-predump.img")) << describe(state);
    for (const auto& [name, bytes] : whole)
      ASSERT_TRUE(!parent || (state.contains(name) && state.at(name) == bytes)) << name;
  };
  ASSERT_NO_FATAL_FAILURE(cut_after_each(events, {}, 1 + seeds() / 4, counts, look));
  tell("pre-dump", counts);
  EXPECT_GT(counts.newer, 0U) << "after the last step";
  EXPECT_GT(counts.refused, 10U) << "the power does not fail in between";
}

TEST_P(PowerCutTest, AFirstDump) {
  ASSERT_NO_FATAL_FAILURE(start_small("1"));
  std::filesystem::create_directories(scene_.images());
  const std::vector<DiskEvent> events = record_dump({}, 0);
  const KnownCheckpoint newer = known();
  Counts counts;
  ASSERT_NO_FATAL_FAILURE(cut_after_each(events, {}, {&newer}, counts));
  tell("first dump", counts);
  EXPECT_GT(counts.newer, 0U);
}

// CRIU fails when the plugin is through: the images go again.
TEST_P(PowerCutTest, ADumpThatFailsLate) {
  ASSERT_NO_FATAL_FAILURE(start_small("1"));
  ASSERT_EQ(scene_.dump(version(), {"--leave-running"}), 0) << scene_.log();
  const KnownCheckpoint older = known();
  DurableDirectory before = read_durable(scene_.images());
  ASSERT_NO_FATAL_FAILURE(start_small("2"));
  const std::vector<DiskEvent> events = record_dump({"--fail-after", "inventory"}, 1);
  Counts counts;
  // What was there for a moment was complete, too; but nobody knows it any more.
  CrashModel at_the_end(before);
  std::optional<KnownCheckpoint> newer;
  for (const DiskEvent& event : events) {
    at_the_end.apply(event);
    if (event.op != DiskOp::DirectorySyncEnd) continue;
    Rng rng(0);
    const test::TempDir directory(disk_.path());
    for (const auto& [name, bytes] : at_the_end.crash(CrashModel::Loss::Nothing, rng))
      directory.write(name, bytes);
    KnownCheckpoint there = corruption_test::read_known(directory.fd());
    if (there.metadata.size() == older.metadata.size()) newer = std::move(there);
  }
  ASSERT_TRUE(newer.has_value());
  ASSERT_NO_FATAL_FAILURE(cut_after_each(events, std::move(before), {&*newer, &older}, counts));
  tell("a dump that fails late", counts);
  EXPECT_GT(counts.older, 0U) << "before the first step";
  EXPECT_GT(counts.newer, 0U) << "before it fails";
  EXPECT_GT(counts.refused, 10U) << "the power does not fail in between";
  EXPECT_TRUE(images("amdgpu-kfd-").empty());
}

INSTANTIATE_TEST_SUITE_P(Versions, PowerCutTest, ::testing::Values(kVersions[0], kVersions[3]),
                         name_of_version);
INSTANTIATE_TEST_SUITE_P(Versions, ParentPowerCutTest, ::testing::Values(kVersions[3]), name_of_version);
INSTANTIATE_TEST_SUITE_P(Versions, PreDumpPowerCutTest, ::testing::Values(kVersions[2]), name_of_version);

}  // namespace
}  // namespace sluice::plugin_test
