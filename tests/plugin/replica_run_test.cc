// SPDX-License-Identifier: MIT
// What several GPUs have is written once where extents cannot be shared, if the user says so: files that name
// each other, by the shipped plugin. They come back intact, alone and in a chain; commands know them; damage
// of one file is found for each GPU that needs it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "images/files/files.h"
#include "lookalike/task_tree.h"
#include "parent_scene.h"

namespace sluice::plugin_test {
namespace {

using lookalike::TaskTree;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr unsigned kGpus = 3;
const Strings kReplicas = {"--replicas", "--no-queues", "--no-events", "--zero", "0", "--vram", "8M"};
class ReplicaRunTest : public ParentTest {
 protected:
  ReplicaRunTest() : ParentTest(small_machine(kGpus)) { scene_.variables["SLUICE_DEDUP"] = "on"; }

  std::set<std::string> pages_in(const std::string& name, const std::string& prefix) const {
    std::set<std::string> names = images_in(place(name), prefix);
    std::erase_if(names, [](const std::string& each) { return is_metadata(each); });
    return names;
  }
  std::uint64_t disk_bytes_of(const std::string& name, const std::set<std::string>& files) const {
    std::uint64_t bytes = 0;
    for (const std::string& file : files) {
      struct stat status {};
      EXPECT_EQ(::stat((place(name) / file).c_str(), &status), 0);
      bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
    }
    return bytes;
  }
  // All but one of the KFD's files leave what that has.
  void expect_once(const std::string& name) {
    const auto whole = images_in(place(name), "amdgpu-pages-");
    const auto replicas = pages_in(name, "amdgpu-replica-");
    EXPECT_THAT(whole, SizeIs(1));
    EXPECT_THAT(replicas, SizeIs(kGpus - 1)) << dump_log_;
    EXPECT_LT(disk_bytes_of(name, replicas), disk_bytes_of(name, whole) / 2) << dump_log_;
  }
  // The command's end; what it has said is in `said_`.
  int sluice(const Strings& arguments) {
    Strings command = {(program_directory() / "../../src/cli/sluice").string()};
    command.insert(command.end(), arguments.begin(), arguments.end());
    Program program = scene_.start_program(command);
    said_.clear();
    for (std::string line; !(line = program.hear()).empty();) said_ += line + '\n';
    return program.wait();
  }
  void expect_verified(const std::string& name) {
    EXPECT_EQ(sluice({"verify", place(name).string()}), 0) << name << ": " << said_;
  }
  void damage(const std::string& name, const std::string& file, off_t offset) {
    const UniqueFd fd(::open((place(name) / file).c_str(), O_WRONLY | O_CLOEXEC));
    ASSERT_EQ(::pwrite(fd.get(), "damage", 6, offset), 6);
  }

  std::string said_;
};

INSTANTIATE_TEST_SUITE_P(Versions, ReplicaRunTest, ::testing::ValuesIn(kVersionsOfLongSuites),
                         name_of_version);

TEST_P(ReplicaRunTest, EqualContentsAreInOneFileAndComeBack) {
  start(kReplicas);
  ASSERT_NO_FATAL_FAILURE(dump_as("once"));
  ASSERT_NO_FATAL_FAILURE(expect_once("once"));
  EXPECT_THAT(images_in(place("once"), "amdgpu-kfd-"), IsEmpty()) << "upstream would open it";
  expect_verified("once");
  EXPECT_EQ(sluice({"show", "--json", place("once").string()}), 0) << said_;
  EXPECT_THAT(said_, HasSubstr("\"has_replicas\":true"));
  ASSERT_NO_FATAL_FAILURE(restore_from("once"));
  expect_whole();
}

// Sums say where contents are, even if nothing is compared. Files may have any mode, as those of any
// checkpoint that was copied.
TEST_P(ReplicaRunTest, ARestoreThatVerifiesNothingFindsThemToo) {
  start(kReplicas);
  ASSERT_NO_FATAL_FAILURE(dump_as("once"));
  for (const auto& file : fs::directory_iterator(place("once"))) {
    if (file.is_regular_file()) {
      ASSERT_EQ(::chmod(file.path().c_str(), 0644), 0);
    }
  }
  scene_.variables["SLUICE_CHECKSUM"] = "off";
  ASSERT_NO_FATAL_FAILURE(restore_from("once"));
  expect_whole();
}

// The parent comes first; what is new on all GPUs is in one file of the child.
TEST_P(ReplicaRunTest, AChainComesBack) {
  start(kReplicas);
  ASSERT_NO_FATAL_FAILURE(dump_as("first"));
  ASSERT_NO_FATAL_FAILURE(restore_from("first"));
  expect_whole();
  ASSERT_EQ(heard("change-largest"), "ok change-largest");
  ASSERT_NO_FATAL_FAILURE(dump_on("first", "second"));
  EXPECT_THAT(dump_log_, HasSubstr("are the same in the parent"));
  EXPECT_THAT(dump_log_, HasSubstr("are the same on other GPUs"));
  EXPECT_THAT(deltas("second"), SizeIs(kGpus));
  EXPECT_THAT(images_in(place("second"), "amdgpu-delta-kfd-"), Not(IsEmpty()));
  expect_verified("second");
  ASSERT_NO_FATAL_FAILURE(restore_from("second"));
  expect_whole();
  ASSERT_NO_FATAL_FAILURE(dump_on("second", "third"));
  expect_verified("third");
  EXPECT_EQ(sluice({"flatten", place("second").string()}), 0) << said_;
  fs::remove_all(place("first"));
  expect_verified("third");
  ASSERT_NO_FATAL_FAILURE(restore_from("third"));
  expect_whole();
}

TEST_P(ReplicaRunTest, FlatteningMakesEveryFileComplete) {
  start(kReplicas);
  ASSERT_NO_FATAL_FAILURE(dump_as("once"));
  EXPECT_EQ(sluice({"flatten", place("once").string()}), 0) << said_;
  EXPECT_THAT(images_in(place("once"), "amdgpu-pages-"), SizeIs(kGpus));
  EXPECT_THAT(images_in(place("once"), "amdgpu-replica-"), IsEmpty());
  EXPECT_THAT(images_in(place("once"), "amdgpu-kfd-"), SizeIs(1));
  expect_verified("once");
  EXPECT_EQ(sluice({"flatten", place("once").string()}), 0) << said_;
  ASSERT_NO_FATAL_FAILURE(restore_from("once"));
  expect_whole();
}

TEST_P(ReplicaRunTest, DamageOfTheOneFileIsNamedForEachGpu) {
  start(kReplicas);
  ASSERT_NO_FATAL_FAILURE(dump_as("once"));
  damage("once", *images_in(place("once"), "amdgpu-pages-").begin(), 5 * kMiB);
  EXPECT_EQ(sluice({"verify", place("once").string()}), 1) << said_;
  for (const std::string& file : pages_in("once", "amdgpu-")) {
    const std::size_t gpu_at = file.rfind('-') + 1;
    if (file.starts_with("amdgpu-pages-") || file.starts_with("amdgpu-replica-")) {
      EXPECT_THAT(said_, HasSubstr("GPU 0x" + file.substr(gpu_at, file.rfind('.') - gpu_at)));
    }
  }
  expect_refused("once", "is corrupt");
}

TEST_P(ReplicaRunTest, WithoutTheOneFileNothingComesBack) {
  start(kReplicas);
  ASSERT_NO_FATAL_FAILURE(dump_as("once"));
  fs::remove(place("once") / *images_in(place("once"), "amdgpu-pages-").begin());
  EXPECT_EQ(sluice({"verify", place("once").string()}), 1) << said_;
  expect_refused("once", "No such file");
}

// The same job once more on the same GPUs, as a second process.
TEST_P(ReplicaRunTest, ProcessesShareContentsToo) {
  TaskTree tasks(scene_);
  for (int i = 0; i < 2; ++i)
    ASSERT_TRUE(tasks
                    .add({"--gpus", "1", "--vram", "4M", "--gtt", "1M", "--no-queues", "--no-events",
                          "--zero", "0", "--seed", "3"})
                    .starts_with("ready"));
  ASSERT_EQ(scene_.dump(version(), tasks.with_pids()), 0) << scene_.log();
  tasks.wait_until_dumped();
  auto replicas = images_in(scene_.images(), "amdgpu-replica-");
  std::erase_if(replicas, [](const std::string& name) { return is_metadata(name); });
  EXPECT_THAT(replicas, SizeIs(1)) << scene_.log();
  ASSERT_NO_FATAL_FAILURE(overwrite_gpu_memory());
  ASSERT_EQ(scene_.start_host(version(), "restore", {}).wait(), 0) << scene_.log();
  ASSERT_TRUE(tasks.meet_restored());
  EXPECT_EQ(tasks.what_is_not_whole(), "");
}

class OtherContentsRunTest : public ReplicaRunTest {};

INSTANTIATE_TEST_SUITE_P(Versions, OtherContentsRunTest, ::testing::ValuesIn(kVersionsOfLongSuites),
                         name_of_version);

// The names are those of partial files even so: they are chosen before anything is known.
TEST_P(OtherContentsRunTest, AreCompleteInEachFile) {
  start({"--no-queues", "--no-events", "--zero", "0", "--vram", "8M"});
  ASSERT_NO_FATAL_FAILURE(dump_as("other"));
  EXPECT_THAT(images_in(place("other"), "amdgpu-pages-"), SizeIs(kGpus));
  EXPECT_THAT(images_in(place("other"), "amdgpu-replica-kfd-"), SizeIs(1));
  expect_verified("other");
  ASSERT_NO_FATAL_FAILURE(restore_from("other"));
  expect_whole();
}

}  // namespace
}  // namespace sluice::plugin_test
