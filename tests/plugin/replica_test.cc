// SPDX-License-Identifier: MIT
// What several GPUs have is written once where extents can be shared, by the shipped plugin: every file is
// complete, and a restore reads it as any other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <string>

#include "clone_scene.h"
#include "images/files/files.h"
#include "images/metadata.h"

namespace sluice::plugin_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr unsigned kGpus = 4;
// Without queues and events, whose BOs differ.
const Strings kReplicas = {"--replicas", "--no-queues", "--no-events", "--zero", "0", "--vram", "12M"};

class ReplicaTest : public CloneScene {
 protected:
  explicit ReplicaTest(const Strings& subject = kReplicas) : CloneScene(small_machine(kGpus), subject) {}

  // A dump of the same memory that shares nothing has the same files.
  void expect_same_as_a_plain_dump(const std::string& name) {
    scene_.variables["SLUICE_DEDUP"] = "off";
    const std::uint64_t before = bytes_used();
    const std::string plain = "plain as " + name;
    ASSERT_NO_FATAL_FAILURE(dump_as(plain));
    plain_bytes_ = bytes_used() - before;
    EXPECT_THAT(log_, Not(HasSubstr("on other GPUs")));
    scene_.variables.erase("SLUICE_DEDUP");
    const auto files = images_in(place_ / plain, "amdgpu-pages-");
    EXPECT_EQ(files.size(), kGpus);
    for (const std::string& file : files)
      EXPECT_TRUE(content_of(place_ / plain / file) == content_of(place_ / name / file)) << file;
  }
  void restore_and_check(const std::string& name) {
    ASSERT_NO_FATAL_FAILURE(end_subject());
    ASSERT_NO_FATAL_FAILURE(restore_from(name));
    expect_whole();
  }

  std::uint64_t plain_bytes_ = 0;  // that the plain dump takes
};

INSTANTIATE_TEST_SUITE_P(On, ReplicaTest, ::testing::ValuesIn(kSharingKinds),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST_P(ReplicaTest, EqualContentsAreWrittenOnce) {
  const std::uint64_t before = bytes_used();
  ASSERT_NO_FATAL_FAILURE(dump_as("once"));
  const std::uint64_t of_once = bytes_used() - before;
  expect_complete("once");
  EXPECT_THAT(log_, HasSubstr("MiB are the same on other GPUs, and share their extents"));
  ASSERT_NO_FATAL_FAILURE(expect_same_as_a_plain_dump("once"));
  EXPECT_LT(of_once, plain_bytes_ / 3);
  ASSERT_NO_FATAL_FAILURE(restore_and_check("once"));
}

// Workers publish out of order, and a chunk has several BOs.
TEST_P(ReplicaTest, TheSameWithLargeChunks) {
  scene_.variables["SLUICE_CHUNK_SIZE"] = "4M";
  scene_.variables["SLUICE_STAGING_SIZE"] = "32M";
  ASSERT_NO_FATAL_FAILURE(dump_as("once"));
  EXPECT_THAT(log_, HasSubstr("on other GPUs"));
  ASSERT_NO_FATAL_FAILURE(expect_same_as_a_plain_dump("once"));
  ASSERT_NO_FATAL_FAILURE(restore_and_check("once"));
}

// The parent comes first; what has changed since is the same on all GPUs, and is written once.
TEST_P(ReplicaTest, ADumpOnAParentSharesWhatHasChangedToo) {
  ASSERT_NO_FATAL_FAILURE(dump_as("first"));
  ASSERT_EQ(heard("change-largest"), "ok change-largest");
  ASSERT_NO_FATAL_FAILURE(dump_on("first", "second"));
  expect_complete("second");
  EXPECT_THAT(log_, HasSubstr("are the same in the parent, and share its extents"));
  EXPECT_THAT(log_, HasSubstr("are the same on other GPUs, and share their extents"));
  ASSERT_NO_FATAL_FAILURE(expect_same_as_a_plain_dump("second"));
  fs::remove_all(place_ / "first");
  ASSERT_NO_FATAL_FAILURE(restore_and_check("second"));
}

// A restore reads the file that has them first. Its own one would do, too, if that is right.
TEST_P(ReplicaTest, ARestoreReadsThemOnce) {
  ASSERT_NO_FATAL_FAILURE(dump_as("once"));
  const UniqueFd images(::open((place_ / "once").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::string metadata = *images_in(place_ / "once", "amdgpu-kfd-").begin();
  const auto image = unpack_kfd_image(read_image(images.get(), metadata).value(), metadata, {});
  ASSERT_TRUE(image.ok()) << image.error().what;
  ASSERT_THAT(image->replica_files, SizeIs(1));
  for (const std::string& file : images_in(place_ / "once", "amdgpu-pages-")) {
    if (file == image->replica_files.front()) continue;
    const UniqueFd fd(::openat(images.get(), file.c_str(), O_WRONLY | O_CLOEXEC));
    ASSERT_EQ(::pwrite(fd.get(), "damage", 6, 6 * kMiB), 6);
  }
  ASSERT_NO_FATAL_FAILURE(restore_and_check("once"));
  ASSERT_NO_FATAL_FAILURE(end_subject());
  scene_.variables["SLUICE_DEDUP"] = "off";
  fs::rename(place_ / "once", scene_.images());
  EXPECT_NE(scene_.restore("4.2"), 0) << "each lane reads its own";
}

TEST_P(ReplicaTest, WithoutChecksumsNothingIsShared) {
  scene_.variables["SLUICE_CHECKSUM"] = "off";
  ASSERT_NO_FATAL_FAILURE(dump_as("plain"));
  EXPECT_THAT(log_, Not(HasSubstr("on other GPUs")));
  ASSERT_NO_FATAL_FAILURE(restore_and_check("plain"));
}

class OtherContentsTest : public ReplicaTest {
 protected:
  OtherContentsTest() : ReplicaTest({"--no-queues", "--no-events", "--zero", "0", "--vram", "12M"}) {}
};

INSTANTIATE_TEST_SUITE_P(On, OtherContentsTest, ::testing::ValuesIn(kSharingKinds),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST_P(OtherContentsTest, AreWrittenAsBefore) {
  ASSERT_NO_FATAL_FAILURE(dump_as("other"));
  EXPECT_THAT(log_, Not(HasSubstr("on other GPUs")));
  ASSERT_NO_FATAL_FAILURE(expect_same_as_a_plain_dump("other"));
  ASSERT_NO_FATAL_FAILURE(restore_and_check("other"));
}

}  // namespace
}  // namespace sluice::plugin_test
