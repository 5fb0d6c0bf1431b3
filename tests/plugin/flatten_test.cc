// SPDX-License-Identifier: MIT
// `sluice flatten`, of what the shipped plugin has dumped: a checkpoint in the middle of a chain becomes
// complete by itself, and what is built on it stays intact without its parent. Wherever it is killed, or the
// power fails, either that is so, or the chain is as it was.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "corruption/judge.h"
#include "crash_model.h"
#include "disk_recording.h"
#include "flatten/flatten.h"
#include "images/checkpoint.h"
#include "images/files/image_source.h"
#include "images_in_memory.h"
#include "mounted_images.h"
#include "pipeline/lane_thread.h"
#include "plugin_test.h"
#include "support/seeds.h"
#include "support/temp_dir.h"

namespace sluice::plugin_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kDone = 0, kFailed = 1;

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The chain first ← second ← third, of a process that has worked in between; it runs on.
class FlattenTest : private ImagesInMemory, public SceneTest {
 protected:
  FlattenTest() : SceneTest(small_machine(), images_in_memory()) {}

  void make_chain(const Strings& more = {}) {
    Strings arguments = {"--vram",  "1M",  "--gtt",         "256K", "--svm-context",
                         "--share", "kfd", "--gem-handles", "1,3"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const std::string ready = scene_.start_subject(arguments);
    ASSERT_TRUE(ready.starts_with("ready")) << ready;
    ASSERT_NO_FATAL_FAILURE(dump_as("first", {}));
    ASSERT_EQ(heard("work"), "ok work");
    ASSERT_NO_FATAL_FAILURE(dump_as("second", {"--prev-images-dir", "../first"}));
    ASSERT_EQ(heard("work"), "ok work");
    ASSERT_NO_FATAL_FAILURE(dump_as("third", {"--prev-images-dir", "../second"}));
  }
  void dump_as(const std::string& name, const Strings& more) {
    Strings arguments = {"--leave-running"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    ASSERT_EQ(scene_.dump("4.2", arguments), 0) << scene_.log();
    fs::rename(scene_.images(), place(name));
    (void)scene_.log();
  }
  fs::path place(const std::string& name) const { return scene_.images().parent_path() / name; }

  // The command's end, with what it has said in `said_`.
  int sluice(const Strings& arguments) {
    Strings command = {SLUICE};
    command.insert(command.end(), arguments.begin(), arguments.end());
    Program program = scene_.start_program(command);
    said_.clear();
    for (std::string line; !(line = program.hear()).empty();) said_ += line + '\n';
    return program.wait();
  }
  int flatten(const std::string& name) { return sluice({"flatten", place(name).string()}); }
  void expect_verified(const std::string& name) {
    EXPECT_EQ(sluice({"verify", place(name).string()}), kDone) << name << ": " << said_;
    EXPECT_THAT(said_, HasSubstr("verified: all")) << name;
  }
  bool has_deltas(const std::string& name) const { return !images_in(place(name), "amdgpu-delta-").empty(); }

  std::string said_;
};

TEST_F(FlattenTest, InTheMiddleOfAChainTheParentMayGo) {
  ASSERT_NO_FATAL_FAILURE(make_chain());
  ASSERT_TRUE(has_deltas("second"));
  ASSERT_TRUE(has_deltas("third"));
  EXPECT_TRUE(images_in(place("second"), "amdgpu-kfd-").empty());
  EXPECT_EQ(flatten("second"), kDone) << said_;
  EXPECT_THAT(said_, HasSubstr("flat: "));
  EXPECT_FALSE(has_deltas("second"));
  EXPECT_EQ(images_in(place("second"), "amdgpu-kfd-"), images_in(place("first"), "amdgpu-kfd-"));
  EXPECT_EQ(images_in(place("second"), "amdgpu-renderD-"), images_in(place("first"), "amdgpu-renderD-"));
  EXPECT_TRUE(has_deltas("third"));
  expect_verified("second");
  expect_verified("third");
  fs::remove_all(place("first"));
  expect_verified("second");
  expect_verified("third");
  EXPECT_EQ(flatten("second"), kDone) << said_;
  EXPECT_THAT(said_, HasSubstr("it was complete by itself"));
  // And so it goes on, up to the last.
  EXPECT_EQ(flatten("third"), kDone) << said_;
  fs::remove_all(place("second"));
  expect_verified("third");
  ASSERT_EQ(::kill(scene_.subject_pid(), SIGKILL), 0);
  scene_.wait_until_subject_is_gone();
  overwrite_gpu_memory();
  fs::rename(place("third"), scene_.images());
  ASSERT_EQ(scene_.restore("4.2"), 0) << scene_.log();
  expect_whole();
}

TEST_F(FlattenTest, ALimitOfFileSizesIsAFailureAndNotItsEnd) {
  ASSERT_NO_FATAL_FAILURE(make_chain());
  const std::string under_limit = "ulimit -f 1; exec \"$0\" flatten --json \"$1\"";
  Program program = scene_.start_program({"/bin/sh", "-c", under_limit, SLUICE, place("second").string()});
  EXPECT_THAT(program.hear(), HasSubstr("\"unreadable\"")) << "nothing is damaged";
  EXPECT_EQ(program.wait(), kFailed);
  expect_verified("second");
  EXPECT_EQ(flatten("second"), kDone) << said_;
  fs::remove_all(place("first"));
  expect_verified("second");
}

TEST_F(FlattenTest, WhatIsDamagedInTheParentIsNamedAndNothingChanges) {
  ASSERT_NO_FATAL_FAILURE(make_chain({"--vram", "4M"}));
  for (const std::string& name : images_in(place("first"), "amdgpu-pages-")) {
    if (fs::file_size(place("first") / name) >= 3 * kSumBlockBytes) overwrite_block(place("first") / name);
  }
  const std::set<std::string> before = images_in(place("second"), "amdgpu-");
  EXPECT_EQ(sluice({"flatten", "--json", place("second").string()}), kFailed);
  EXPECT_THAT(said_, HasSubstr("is corrupt: "));
  EXPECT_THAT(said_, HasSubstr("parent/amdgpu-pages-"));
  EXPECT_EQ(images_in(place("second"), "amdgpu-"), before);
  fs::remove_all(place("first"));
  EXPECT_EQ(sluice({"flatten", "--json", place("second").string()}), kFailed);
  EXPECT_THAT(said_, HasSubstr("open the directory that is the parent"));
  EXPECT_EQ(images_in(place("second"), "amdgpu-"), before);
}

TEST_F(FlattenTest, WhereOthersMayWriteOrAnotherOneWorksItIsRefused) {
  ASSERT_NO_FATAL_FAILURE(make_chain());
  const UniqueFd lock(::open(place("second").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  EXPECT_EQ(sluice({"flatten", "--json", place("second").string()}), kFailed);
  EXPECT_THAT(said_, HasSubstr("SL-T47"));
  ASSERT_EQ(::flock(lock.get(), LOCK_UN), 0);
  ASSERT_EQ(::chmod(place("second").c_str(), 0777), 0);
  EXPECT_EQ(sluice({"flatten", "--json", place("second").string()}), kFailed);
  EXPECT_THAT(said_, HasSubstr("SL-T46"));
  EXPECT_TRUE(has_deltas("second"));
}

// A chain that was made where nothing can be shared, and was carried to where extents can be.
class FlattenByClonesTest : public MountedImages, public FlattenTest {
 protected:
  FlattenByClonesTest() : MountedImages({"xfs", {"mkfs.xfs", "-q", "-m", "reflink=1"}, 512 * kMiB}) {}
};

TEST_F(FlattenByClonesTest, WhatLiesAlikeIsSharedAndStaysWhenTheParentGoes) {
  if (!missing_.empty()) GTEST_SKIP() << missing_;
  ASSERT_NO_FATAL_FAILURE(make_chain({"--vram", "4M"}));
  for (const char* const name : {"first", "second", "third"}) {
    fs::copy(place(name), place_ / name, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    ASSERT_EQ(::chmod((place_ / name).c_str(), 0700), 0);
  }
  for (const char* const name : {"second", "third"}) {
    EXPECT_EQ(sluice({"flatten", "--json", (place_ / name).string()}), kDone) << said_;
    const auto told = nlohmann::json::parse(said_);
    EXPECT_GT(told["shared_bytes"], told["bytes"].get<std::uint64_t>() / 4) << said_;
    // By copies, where nothing is shared: the same.
    EXPECT_EQ(sluice({"flatten", "--json", place(name).string()}), kDone) << said_;
    EXPECT_EQ(nlohmann::json::parse(said_)["shared_bytes"], 0);
  }
  fs::remove_all(place_ / "first");
  fs::remove_all(place_ / "second");
  EXPECT_EQ(sluice({"verify", (place_ / "third").string()}), kDone) << said_;
  const std::set<std::string> files = images_in(place("third"), "amdgpu-");
  EXPECT_EQ(images_in(place_ / "third", "amdgpu-"), files);
  for (const std::string& file : files)
    EXPECT_TRUE(content_of(place_ / "third" / file) == content_of(place("third") / file)) << file;
}

// What a power cut may leave after each step, of which the kill is one.
class FlattenCutTest : public FlattenTest {
 protected:
  FlattenCutTest() : disk_(::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "") {}

  std::string fault_of(const std::string& name) const {
    const UniqueFd dir(::open(place(name).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const auto verified = corruption_test::verify(dir.get(), kMiB);
    if (!verified.problems.empty()) return verified.problems[0].file + ": " + verified.problems[0].what;
    return verified.bytes > 0 ? "" : "nothing is there";
  }
  Result<FlattenTotals> flatten_here(const std::string& name) const {
    const UniqueFd dir(::open(place(name).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const DirectorySource source(dir.get());
    SLUICE_TRY_ASSIGN(const Checkpoint checkpoint, read_checkpoint(source));
    FlattenTotals totals;
    SLUICE_TRY_ASSIGN(
        auto thread, LaneThread::start("flatten", [&]() -> Result<void> {
          SLUICE_TRY_ASSIGN(
              totals, sluice::flatten(source, checkpoint, {.chunk_bytes = kMiB, .staging_bytes = 2 * kMiB}));
          return {};
        }));
    SLUICE_TRY(thread.join());
    return totals;
  }

  void look_at(const DirectoryState& state) {
    std::string words;
    for (const auto& [name, bytes] : state) words += name + ' ' + hex(sum_of(bytes)) + '\n';
    if (!seen_.insert(words).second) return;
    for (const std::string& name : images_in(place("second"), "amdgpu-")) fs::remove(place("second") / name);
    for (const auto& [name, bytes] : state) {
      const fs::path path = place("second") / name;
      std::ofstream(path, std::ios::binary)
          .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
      ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
    }
    for (const char* const name : {"second", "third"}) ASSERT_EQ(fault_of(name), "") << name << '\n' << words;
    ++(has_deltas("second") ? chains_ : flat_);
    const auto again = flatten_here("second");
    ASSERT_TRUE(again.ok()) << again.error().what << '\n' << words;
    ASSERT_FALSE(has_deltas("second"));
    fs::rename(place("first"), place("gone"));
    for (const char* const name : {"second", "third"}) EXPECT_EQ(fault_of(name), "") << name << '\n' << words;
    fs::rename(place("gone"), place("first"));
    ASSERT_FALSE(HasFailure());
  }

  test::TempDir disk_;
  std::set<std::string> seen_;
  std::size_t chains_ = 0, flat_ = 0;
};

TEST_F(FlattenCutTest, WhereverItEndsBothAreIntactAndAnotherRunGoesOn) {
  ASSERT_NO_FATAL_FAILURE(make_chain({"--no-queues"}));
  CrashModel model(read_durable(place("second")));
  std::vector<DiskEvent> events;
  {
    const Recording recording(place("second"), disk_.path() + "/record");
    ASSERT_EQ(flatten("second"), kDone) << said_;
    events = recording.events();
  }
  ASSERT_GT(events.size(), 10U);
  const std::uint64_t seeds = test::number_from("SLUICE_CUTS", test::usual(2, 1));
  for (std::size_t step = 0; step <= events.size(); ++step) {
    SCOPED_TRACE("after step " + std::to_string(step) + " of " + std::to_string(events.size()) +
                 (step > 0 ? ", " + events[step - 1].name : ""));
    if (step > 0) model.apply(events[step - 1]);
    test::Rng rng(step);
    for (const auto loss : {CrashModel::Loss::Everything, CrashModel::Loss::Nothing, CrashModel::Loss::Data})
      ASSERT_NO_FATAL_FAILURE(look_at(model.crash(loss, rng)));
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      for (const auto loss : {CrashModel::Loss::InOrder, CrashModel::Loss::AnyOrder})
        ASSERT_NO_FATAL_FAILURE(look_at(model.crash(loss, rng)));
    }
  }
  std::printf("shown: power cut in sluice flatten: %zu steps, %zu states, %zu of them flat\n", events.size(),
              chains_ + flat_, flat_);
  EXPECT_GT(chains_, 10U);
  EXPECT_GT(flat_, 0U);
}

}  // namespace
}  // namespace sluice::plugin_test
