// SPDX-License-Identifier: MIT
// Power cuts: the shipped plugin dumps into a directory that has an older checkpoint, or none, and what it
// does to the disk is recorded. After every step the power fails in several ways: what the directory can have
// then is read as a restore does. It is the older checkpoint or the newer one, whole, or it is refused.
//
//   SLUICE_CUTS=n   ways that the power fails by chance, after each step and of each kind (20, under
//                   a sanitizer 2)
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
#include "pipeline/checksum/checksum.h"
#include "plugin_test.h"
#include "support/memory_copy.h"
#include "support/rng.h"
#include "support/seeds.h"
#include "support/temp_dir.h"

namespace sluice::host_test {
namespace {

using corruption_test::KnownCheckpoint;
using corruption_test::LaneKit;
using corruption_test::TrialRestore;
using test::Rng;

constexpr std::uint64_t kChunkBytes = 4 * kMiB;

std::uint64_t seeds() {
  return test::number_from("SLUICE_CUTS", test::usual(20, 2));
}

// The environment of hosts that are recorded while it lives.
class Recording {
 public:
  Recording(const std::filesystem::path& directory, std::filesystem::path file) : file_(std::move(file)) {
    set("LD_PRELOAD", (program_directory() / "libdisk-recorder.so").string());
    set(kRecordDirectory, std::filesystem::canonical(directory).string());
    set(kRecordFile, file_.string());
  }
  ~Recording() {
    for (const char* const name : {"LD_PRELOAD", kRecordDirectory, kRecordFile}) (void)::unsetenv(name);
    std::error_code ignored;
    std::filesystem::remove(file_, ignored);
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  std::vector<DiskEvent> events() const { return read_disk_record(file_); }

 private:
  static void set(const char* name, const std::string& value) { (void)::setenv(name, value.c_str(), 1); }

  std::filesystem::path file_;
};

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
    const std::string ready = scene_.start_subject(
        {"--vram", "1M", "--gtt", "256K", "--no-queues", "--share", "gem", "--share-fd", "--seed", seed});
    ASSERT_TRUE(ready.starts_with("ready")) << ready;
  }

  // Dumps, recorded. The process runs on.
  std::vector<DiskEvent> record_dump(const Strings& more, int status) {
    const Recording recording(scene_.images(), disk_.path() + "/record");
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
    CrashModel model(std::move(before));
    std::set<Sum128> seen;
    for (std::size_t step = 0; step <= events.size(); ++step) {
      SCOPED_TRACE("after step " + std::to_string(step) + " of " + std::to_string(events.size()) +
                   (step > 0 ? ", " + events[step - 1].name : ""));
      if (step > 0) model.apply(events[step - 1]);
      Rng rng(step);
      for (const auto loss :
           {CrashModel::Loss::Everything, CrashModel::Loss::Nothing, CrashModel::Loss::Data})
        ASSERT_NO_FATAL_FAILURE(look_at(model.crash(loss, rng), allowed, seen, counts));
      for (std::uint64_t seed = 0; seed < seeds(); ++seed) {
        for (const auto loss : {CrashModel::Loss::InOrder, CrashModel::Loss::AnyOrder})
          ASSERT_NO_FATAL_FAILURE(look_at(model.crash(loss, rng), allowed, seen, counts));
      }
      ++counts.steps;
    }
    // The record is all that was done, and what has ended is durable.
    DirectoryState there;
    const DurableDirectory directory = read_durable(scene_.images());
    for (const auto& [name, inode] : directory.names) there[name] = directory.inodes.at(inode);
    Rng rng(0);
    EXPECT_TRUE(model.crash(CrashModel::Loss::Nothing, rng) == there);
    EXPECT_TRUE(model.crash(CrashModel::Loss::Everything, rng) == there);
  }

  void look_at(const DirectoryState& state, const std::vector<const KnownCheckpoint*>& allowed,
               std::set<Sum128>& seen, Counts& counts) {
    if (!seen.insert(sum_of_state(state)).second) return;
    const test::TempDir directory(disk_.path());
    for (const auto& [name, bytes] : state) directory.write(name, bytes);
    const TrialRestore trial =
        corruption_test::trial_restore(directory.fd(), allowed, kChunkBytes, kit_, *kit_.reactor);
    ++counts.states;
    ASSERT_EQ(trial.wrong_bytes, 0U) << "a mixture reaches memory\n" << words(state);
    if (!trial.errors.empty()) {
      ++counts.refused;
      return;
    }
    ASSERT_NE(trial.became, nullptr) << "restored as what it never was\n" << words(state);
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

  static std::string words(const DirectoryState& state) {
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
      EXPECT_FALSE(older.sets[i].bos == newer.sets[i].bos) << older.sets[i].set.words();
    }
  }

  test::TempDir disk_;
  LaneKit kit_;
};

TEST_P(PowerCutTest, ADumpOverAnOlderOne) {
  dump_over("over an older dump");
}

TEST_P(PowerCutTest, ADumpIntoTheFilesOfAnOlderOne) {
  scene_.variables["SLUICE_REUSE"] = "on";
  dump_over("into an older dump's files");
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
  // What stood for a moment was whole, too; but nobody knows it any more.
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

}  // namespace
}  // namespace sluice::host_test
