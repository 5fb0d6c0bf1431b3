// SPDX-License-Identifier: MIT
// Damaged image directories, by seed, given to the shipped plugin. What the trial restore of tests/corruption
// refuses it refuses, too: it names the damage, resumes nothing and keeps nothing. All else it restores
// intact. The same where an image streamer gives it the files.
//
//   SLUICE_DAMAGE_SEEDS=n   cases for each version of the host (two of each kind of damage, one in streams)
//   SLUICE_DAMAGE_SEED=n    this case alone
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "corruption/damage.h"
#include "corruption/judge.h"
#include "corruption/trial_restore.h"
#include "lookalike/test_streamer.h"
#include "pipeline/checksum/checksum.h"
#include "plugin_test.h"
#include "support/seeds.h"

namespace sluice::plugin_test {
namespace {

using corruption_test::Damage;
using corruption_test::DirectoryCopy;
using corruption_test::KnownCheckpoint;
using corruption_test::LaneKit;
using corruption_test::TrialRestore;
using lookalike::capture_directory;
using lookalike::capture_to;
using lookalike::extract_image;
using lookalike::serve_from;
using lookalike::Streamer;
using test::Rng;

constexpr std::uint64_t kChunkBytes = 4 * kMiB;

class DamageTest : public PluginTest {
 protected:
  DamageTest() : kit_(kChunkBytes, 2) {}

  // Where images are damaged, and the host's exit status of what makes and takes them.
  virtual std::filesystem::path place() { return scene_.images(); }
  virtual int dump_to_place() { return scene_.dump(version(), {"--leave-running"}); }
  virtual int restore_from_place() { return scene_.restore(version()); }
  // What should come of it, damaged as it is.
  virtual TrialRestore try_restore(const Damage& /*damage*/) {
    return corruption_test::trial_restore(directory_.get(), {&known_, &older_known_}, kChunkBytes, kit_,
                                          *kit_.reactor);
  }

  // Two dumps, one over the other, of two processes with the same BOs.
  void make_images() {
    for (const char* const seed : {"1", "2"}) {
      const std::string ready = scene_.start_subject(
          {"--vram", "1M", "--gtt", "256K", "--no-queues", "--share", "gem", "--share-fd", "--seed", seed});
      ASSERT_TRUE(ready.starts_with("ready")) << ready;
      ASSERT_EQ(dump_to_place(), 0) << scene_.log();
      older_ = std::move(now_);
      older_known_ = std::move(known_);
      directory_.reset(::open(place().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      now_.emplace(directory_.get());
      known_ = corruption_test::read_known(directory_.get());
    }
    EXPECT_EQ(heard("quit"), "ok quit");
    scene_.wait_until_subject_is_gone();
    (void)scene_.log();
  }

  void run_all(const char* what, std::uint64_t usual) {
    ASSERT_NO_FATAL_FAILURE(make_images());
    const char* const replay = std::getenv("SLUICE_DAMAGE_SEED");
    const std::uint64_t first = replay != nullptr ? test::number_from("SLUICE_DAMAGE_SEED", 0) : 0;
    const std::uint64_t count = replay != nullptr ? 1 : test::number_from("SLUICE_DAMAGE_SEEDS", usual);
    for (std::uint64_t seed = first; seed < first + count; ++seed) {
      SCOPED_TRACE("replay with SLUICE_DAMAGE_SEED=" + std::to_string(seed));
      run(seed);
      if (HasFailure()) return;
    }
    std::printf(
        "shown: %s, criu %s: %llu cases of %zu kinds, %llu refused and named, %llu restored whole, "
        "%llu as the older dump\n",
        what, GetParam().name, static_cast<unsigned long long>(count), happened_.size(),
        static_cast<unsigned long long>(refused_), static_cast<unsigned long long>(restored_),
        static_cast<unsigned long long>(became_older_));
    if (count < kinds().size()) return;
    EXPECT_EQ(happened_.size(), kinds().size()) << "a kind of damage never came";
  }

  void run(std::uint64_t seed) {
    Rng rng(seed);
    const Damage damage =
        corruption_test::do_damage({directory_.get(), *now_, *older_, known_}, seed % kinds().size(), rng);
    if (!damage.places.empty()) happened_.insert(damage.kind);
    SCOPED_TRACE(damage.kind + (damage.places.empty() ? std::string() : ", " + damage.places[0].file));
    scene_.control().clear_trace();
    const int status = restore_from_place();
    const std::string log = scene_.log();
    const TrialRestore trial = try_restore(damage);
    for (const corruption_test::Place& each : damage.places) now_->put_back(directory_.get(), each.file);
    ASSERT_EQ(trial.wrong_bytes, 0U) << "damaged bytes reach memory";
    if (trial.errors.empty()) {
      ASSERT_NE(trial.became, nullptr) << "restored as what it never was";
      ASSERT_EQ(status, 0) << log;
      // All of the older dump's images with CRIU's newer ones: only CRIU could know that these differ. Its
      // process compares with what the newer one had, and finds the older contents.
      if (trial.became == &known_) {
        ++restored_;
        EXPECT_TRUE(heard("check").starts_with("ok check")) << last_;
      } else {
        ++became_older_;
        EXPECT_FALSE(heard("check").starts_with("ok check")) << last_;
      }
      EXPECT_EQ(heard("quit"), "ok quit");
      scene_.wait_until_subject_is_gone();
    } else {
      ++refused_;
      ASSERT_EQ(status, 1) << "restored in spite of: " << trial.errors[0].what;
      expect_not_resumed();
      // That a file's only image is missing nobody knows: the file could be another plugin's.
      EXPECT_TRUE(trial.errors[0].what.starts_with("no plugin takes") || names(log, damage)) << log;
    }
  }

  static const std::vector<std::string>& kinds() {
    static const std::vector<std::string> all = corruption_test::damage_kinds();
    return all;
  }

  // A line does.
  bool names(const std::string& log, const Damage& damage) const {
    std::istringstream lines(log);
    for (std::string line; std::getline(lines, line);) {
      if (corruption_test::names_damage(Error{EBADMSG, line}, damage.places, known_, kSumBlockBytes))
        return true;
    }
    return false;
  }

  LaneKit kit_;
  UniqueFd directory_;
  std::optional<DirectoryCopy> older_, now_;
  KnownCheckpoint older_known_, known_;
  std::set<std::string> happened_;  // kinds of damage
  std::uint64_t refused_ = 0, restored_ = 0, became_older_ = 0;
};

class StreamDamageTest : public DamageTest {
 protected:
  std::filesystem::path place() override { return scratch_.path() / "extracted"; }

  int dump_to_place() override {
    Streamer streamer(scene_.images(), "capture", capture_to(image()));
    EXPECT_TRUE(streamer.ready());
    const int status = scene_.dump(version(), {"--stream", "--leave-running"});
    EXPECT_EQ(streamer.wait(), 0);
    EXPECT_EQ(extract_image(image(), place()), 0);
    return status;
  }

  int restore_from_place() override {
    EXPECT_TRUE(capture_directory(place(), image()));
    Streamer streamer(scene_.images(), "serve", serve_from(image()));
    EXPECT_TRUE(streamer.ready());
    const int status = scene_.restore(version(), {"--stream"});
    streamer.kill();
    return status;
  }

  TrialRestore try_restore(const Damage& damage) override {
    // A directory is listed. A stream is asked for what its index names.
    for (const corruption_test::Place& each : damage.places) {
      if (!now_->files().contains(each.file) && !older_->files().contains(each.file))
        now_->put_back(directory_.get(), each.file);
    }
    TrialRestore trial = DamageTest::try_restore(damage);
    if (const int err = what_is_wrong_with_the_index(trial.became); err != 0) {
      trial.errors.push_back(Error{err, kIndex});
      trial.became = nullptr;
    }
    return trial;
  }

 private:
  static constexpr const char* kIndex = "amdgpu-sluice-index.img";

  std::filesystem::path image() const { return scratch_.path() / "image"; }

  // 0: it is that of the dump whose images are restored, or of either where none is.
  int what_is_wrong_with_the_index(const KnownCheckpoint* became) const {
    const DirectoryCopy is(directory_.get());
    const auto index = is.files().find(kIndex);
    if (index == is.files().end()) return ENOENT;
    const auto& bytes = index->second.bytes;
    const bool is_nows = bytes == now_->files().at(kIndex).bytes;
    const bool is_olders = bytes == older_->files().at(kIndex).bytes;
    return (is_nows && became != &older_known_) || (is_olders && became != &known_) ? 0 : EBADMSG;
  }

  ScratchDirectory scratch_;
};

// Three dumps of one process, each on the one before. One of them is damaged, and the last restored.
class ChainDamageTest : public PluginTest {
 protected:
  struct Member {
    std::filesystem::path place;
    UniqueFd directory;
    std::optional<DirectoryCopy> files;
    KnownCheckpoint known;
  };

  void make_chain() {
    const std::string ready = scene_.start_subject(
        {"--vram", "1M", "--gtt", "256K", "--no-queues", "--share", "gem", "--share-fd"});
    ASSERT_TRUE(ready.starts_with("ready")) << ready;
    Strings more = {"--leave-running"};
    for (std::size_t i = 0; i < members_.size(); ++i) {
      Member& member = members_[i];
      ASSERT_EQ(scene_.dump(version(), more), 0) << scene_.log();
      EXPECT_EQ(images("amdgpu-delta-").empty(), i == 0);
      member.place = scene_.images().parent_path() / ("member-" + std::to_string(i));
      std::filesystem::rename(scene_.images(), member.place);
      member.directory.reset(::open(member.place.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      member.files.emplace(member.directory.get());
      member.known = corruption_test::read_known(member.directory.get());
      more = {"--leave-running", "--prev-images-dir", "../" + member.place.filename().string()};
      if (i + 1 < members_.size()) {
        EXPECT_EQ(heard("poke " + std::to_string(i)), "ok poke " + std::to_string(i));
      }
    }
    EXPECT_EQ(heard("quit"), "ok quit");
    scene_.wait_until_subject_is_gone();
    (void)scene_.log();
  }

  void run(std::size_t kind) {
    Rng rng(kind);
    const std::size_t number = rng.between(0, members_.size() - 1);
    Member& member = members_[number];
    const Member& other = members_[number == 0 ? 1 : number - 1];
    const Damage damage = corruption_test::do_damage(
        {member.directory.get(), *member.files, *other.files, member.known}, kind, rng);
    SCOPED_TRACE("member " + std::to_string(number) + ": " + damage.kind +
                 (damage.places.empty() ? std::string() : ", " + damage.places[0].file));
    scene_.control().clear_trace();
    overwrite_gpu_memory();
    const int status = scene_.restore(version(), {"--images", members_.back().place.string()});
    const std::string log = scene_.log();
    const TrialRestore trial = corruption_test::trial_restore(
        members_.back().directory.get(), {&members_[2].known, &members_[1].known, &members_[0].known},
        kChunkBytes, kit_, *kit_.reactor);
    for (const corruption_test::Place& each : damage.places)
      member.files->put_back(member.directory.get(), each.file);
    ASSERT_EQ(trial.wrong_bytes, 0U) << "damaged bytes reach memory";
    if (!trial.errors.empty()) {
      ++refused_;
      EXPECT_EQ(status, 1) << "restored in spite of: " << trial.errors[0].what;
      return expect_not_resumed();
    }
    ++restored_;
    ASSERT_EQ(status, 0) << log;
    EXPECT_EQ(trial.became, &members_.back().known);
    EXPECT_TRUE(heard("check").starts_with("ok check")) << last_;
    EXPECT_EQ(heard("quit"), "ok quit");
    scene_.wait_until_subject_is_gone();
  }

  LaneKit kit_{kChunkBytes, 2};
  std::array<Member, 3> members_;
  std::uint64_t refused_ = 0, restored_ = 0;
};

// What links lead to is another dump then, or the last one is not what its process was: only CRIU knows.
bool leaves_another_dump(const std::string& kind) {
  return kind == "mixed dumps" || kind == "one file of an older dump";
}

TEST_P(ChainDamageTest, OfAnyMemberIsRefusedOrHasNoEffect) {
  ASSERT_NO_FATAL_FAILURE(make_chain());
  const std::vector<std::string> kinds = corruption_test::damage_kinds();
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    if (leaves_another_dump(kinds[kind])) continue;
    run(kind);
    if (HasFailure()) return;
  }
  std::printf("shown: damage to a chain before the plugin, criu %s: %llu refused, %llu restored whole\n",
              GetParam().name, static_cast<unsigned long long>(refused_),
              static_cast<unsigned long long>(restored_));
  EXPECT_GT(refused_, kinds.size() / 3);
}

TEST_P(DamageTest, IsRefusedAndNamedOrHasNoEffect) {
  run_all("damage before the plugin", 2 * kinds().size());
}
TEST_P(StreamDamageTest, IsRefusedAndNamedOrHasNoEffect) {
  run_all("damage in streams before the plugin", kinds().size());
}

INSTANTIATE_TEST_SUITE_P(Versions, DamageTest, ::testing::ValuesIn(kVersionsOfLongSuites), name_of_version);
INSTANTIATE_TEST_SUITE_P(Versions, ChainDamageTest, ::testing::Values(kVersions[0], kVersions[2]),
                         name_of_version);
INSTANTIATE_TEST_SUITE_P(Versions, StreamDamageTest, ::testing::ValuesIn(kVersionsOfLongSuites),
                         name_of_version);

}  // namespace
}  // namespace sluice::plugin_test
