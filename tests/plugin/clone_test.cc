// SPDX-License-Identifier: MIT
// Dumps with a parent where extents can be shared, by the shipped plugin: each is complete by itself, as a
// full dump is, and takes room for what has changed. On file systems that are made for the test.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "clone_scene.h"
#ifdef SEAM_LIBRARY
#include "seam_plan.h"
#endif

namespace sluice::plugin_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

using CloneTest = CloneScene;

INSTANTIATE_TEST_SUITE_P(On, CloneTest, ::testing::ValuesIn(kSharingKinds),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST_P(CloneTest, EachOfThreeIsCompleteAndTakesRoomForWhatHasChanged) {
  const std::uint64_t before = bytes_used();
  ASSERT_NO_FATAL_FAILURE(dump_as("first"));
  const std::uint64_t of_first = bytes_used() - before;
  for (const auto& [parent, name] : {std::pair("first", "second"), std::pair("second", "third")}) {
    ASSERT_NO_FATAL_FAILURE(work());
    const std::uint64_t earlier = bytes_used();
    ASSERT_NO_FATAL_FAILURE(dump_on(parent, name));
    expect_complete(name);
    EXPECT_THAT(log_, HasSubstr("share its extents"));
    EXPECT_LT(bytes_used() - earlier, of_first / 2) << name;
    // A full dump of the same memory has the same files. It stays: XFS frees a removed file's blocks later,
    // when bytes_used() counts what the next dump takes.
    const std::string full = std::string("full as the ") + name;
    ASSERT_NO_FATAL_FAILURE(dump_as(full));
    for (const std::string& file : images_in(place_ / full, "amdgpu-pages-"))
      EXPECT_TRUE(content_of(place_ / full / file) == content_of(place_ / name / file))
          << name << ' ' << file;
  }
  fs::remove_all(place_ / "first");
  fs::remove_all(place_ / "second");
  ASSERT_NO_FATAL_FAILURE(end_subject());
  ASSERT_NO_FATAL_FAILURE(restore_from("third"));
  expect_whole();
}

// The job runs while a pre-dump is written. That shares extents with an older checkpoint, and the dump with
// it.
TEST_P(CloneTest, APreDumpAndTheDumpOnItAreComplete) {
  ASSERT_NO_FATAL_FAILURE(dump_as("first"));
  ASSERT_NO_FATAL_FAILURE(work());
  ASSERT_EQ(scene_.start_host("4.2", "pre-dump", {"--prev-images-dir", "../first"}).wait(), 0)
      << scene_.log();
  fs::rename(scene_.images(), place_ / "before");
  (void)scene_.log();
  EXPECT_THAT(images_in(place_ / "before", "amdgpu-predump-delta-"), ::testing::IsEmpty());
  EXPECT_THAT(images_in(place_ / "before", "amdgpu-predump-pages-"), Not(::testing::IsEmpty()));
  ASSERT_NO_FATAL_FAILURE(work());
  ASSERT_NO_FATAL_FAILURE(dump_on("before", "second"));
  expect_complete("second");
  EXPECT_THAT(log_, HasSubstr("share its extents"));
  fs::remove_all(place_ / "first");
  fs::remove_all(place_ / "before");
  ASSERT_NO_FATAL_FAILURE(end_subject());
  ASSERT_NO_FATAL_FAILURE(restore_from("second"));
  expect_whole();
}

// Attributes of a file can forbid what its file system can do.
TEST_P(CloneTest, AFileThatCannotBeSharedIsFoundByAskingForIt) {
  ASSERT_NO_FATAL_FAILURE(dump_as("first"));
  for (const std::string& file : images_in(place_ / "first", "amdgpu-pages-")) {
    // Copied without sharing, to where its data are not copied on write.
    const fs::path path = place_ / "first" / file;
    const std::string bytes = content_of(path);
    fs::remove(path);
    const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    int flags = 0;
    if (::ioctl(fd.get(), FS_IOC_GETFLAGS, &flags) != 0 || (flags |= FS_NOCOW_FL, false) ||
        ::ioctl(fd.get(), FS_IOC_SETFLAGS, &flags) != 0)
      GTEST_SKIP() << "no such attribute here";
    ASSERT_EQ(::pwrite(fd.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }
  ASSERT_NO_FATAL_FAILURE(dump_on("first", "second"));
  EXPECT_THAT(images_in(place_ / "second", "amdgpu-delta-"), Not(::testing::IsEmpty()));
  EXPECT_THAT(log_,
              HasSubstr("extents cannot be shared with the parent: clone a block of parent/amdgpu-pages-"));
  ASSERT_NO_FATAL_FAILURE(end_subject());
  ASSERT_NO_FATAL_FAILURE(restore_from("second"));
  expect_whole();
}

// A parent that was never made durable.
TEST_P(CloneTest, AParentThatIsNotSyncedIsCloned) {
  scene_.variables["SLUICE_SYNC"] = "off";
  scene_.variables["SLUICE_IO_MODE"] = "buffered";
  ASSERT_NO_FATAL_FAILURE(dump_as("first"));
  scene_.variables.erase("SLUICE_SYNC");
  ASSERT_NO_FATAL_FAILURE(dump_on("first", "second"));
  expect_complete("second");
  fs::remove_all(place_ / "first");
  ASSERT_NO_FATAL_FAILURE(end_subject());
  ASSERT_NO_FATAL_FAILURE(restore_from("second"));
  expect_whole();
}

// A clone has what the disk has of the parent, and the sums are of the memory: what is rotten there is found.
TEST_P(CloneTest, RotOfTheParentIsFoundInTheClone) {
  ASSERT_NO_FATAL_FAILURE(dump_as("first"));
  for (const std::string& file : images_in(place_ / "first", "amdgpu-pages-")) {
    if (fs::file_size(place_ / "first" / file) >= 3 * kSumBlockBytes)
      overwrite_block(place_ / "first" / file);
  }
  ASSERT_NO_FATAL_FAILURE(dump_on("first", "second"));
  expect_complete("second");
  ASSERT_NO_FATAL_FAILURE(end_subject());
  scene_.control().clear_trace();
  fs::rename(place_ / "second", scene_.images());
  EXPECT_EQ(scene_.restore("4.2"), 1);
  EXPECT_THAT(scene_.log(), HasSubstr("is corrupt"));
  expect_not_resumed();
}

TEST_P(CloneTest, AFailedDumpLeavesTheParentAsItIs) {
  ASSERT_NO_FATAL_FAILURE(dump_as("first"));
  const std::string first =
      content_of(place_ / "first" / *images_in(place_ / "first", "amdgpu-pages-").begin());
  EXPECT_NE(scene_.dump("4.2", {"--prev-images-dir", "../first", "--fail-after", "cpu_pages"}), 0);
  EXPECT_TRUE(images("amdgpu-").empty());
  expect_running();
  EXPECT_TRUE(first == content_of(place_ / "first" / *images_in(place_ / "first", "amdgpu-pages-").begin()));
}

#ifdef SEAM_LIBRARY
// A share of the plugin's calls fails, each in a dump of its own: SLUICE_FAULT_SHARE and the others of
// failure_points.h.
TEST_P(CloneTest, WhicheverCallFailsTheDumpIsCompleteOrUndoneAndTheParentAsItWas) {
  ASSERT_NO_FATAL_FAILURE(dump_as("first"));
  ASSERT_NO_FATAL_FAILURE(work());
  const auto contents = [this](const std::string& name) {
    std::map<std::string, std::string> all;
    for (const std::string& file : images_in(place_ / name, "amdgpu-pages-"))
      all[file] = content_of(place_ / name / file);
    return all;
  };
  const auto first = contents("first");
  SeamPlan plan(scene_);
  plan->disarm();
  ASSERT_NO_FATAL_FAILURE(dump_on("first", "second"));
  expect_complete("second");
  const auto second = contents("second");
  std::size_t places = 0, whole = 0, chains = 0;
  const std::vector<Failure> failures =
      share_of(plan->failures(seam::kError | seam::kShort, Turns::FirstAndMiddle, &places), 6);
  for (const Failure& failure : failures) {
    SCOPED_TRACE(failure.name() + ' ' + failure.call + failure.way);
    plan->arm(failure);
    const int status = scene_.dump("4.2", {"--leave-running", "--prev-images-dir", "../first"});
    log_ = scene_.log();
    ASSERT_NO_FATAL_FAILURE(expect_queues_run(scene_.subject_pid()));
    if (status != 0) {
      EXPECT_TRUE(images("amdgpu-").empty()) << log_;
    } else if (fs::rename(scene_.images(), place_ / "trial");
               images_in(place_ / "trial", "amdgpu-delta-").empty()) {
      ++whole;
      EXPECT_TRUE(contents("trial") == second) << log_;
    } else {
      ++chains;
    }
    fs::remove_all(place_ / "trial");
    fs::remove_all(scene_.images());
    EXPECT_TRUE(contents("first") == first);
  }
  std::printf("shown: extents shared on %s, %zu calls fail, of %zu places: %zu dumps whole, %zu chains\n",
              GetParam().name, failures.size(), places, whole, chains);
}
#endif

}  // namespace
}  // namespace sluice::plugin_test
