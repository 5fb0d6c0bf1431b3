// SPDX-License-Identifier: MIT
// What a restore learns from all images before there are tasks, and what it does with those that cannot be
// read.
#include "plugin/restore/restore_survey.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "images/files/files.h"
#include "kfd/uapi.h"
#include "support/temp_dir.h"

namespace sluice::plugin {
namespace {

constexpr std::uint32_t kPid = 17;
constexpr DumpId kDump{1, 2, 3};

class RestoreSurveyTest : public ::testing::Test {
 protected:
  // Of a process that saw `gpus` GPUs, with one BO on the first.
  static kfd::KfdImage image_of(std::uint32_t id, std::uint32_t gpus) {
    kfd::KfdImage image;
    image.pid = kPid;
    image.id = id;
    image.dump_id = kDump;
    for (std::uint32_t i = 0; i < gpus; ++i)
      image.topology.nodes.push_back({.node_id = i + 1, .gpu_id = i + 16, .drm_render_minor = 128 + i});
    image.bos = {{{0x1000, 4096, 0x100000000, 16, kfd::kAllocVram}}};
    return image;
  }
  static RenderImage render_image_of(std::uint32_t id) {
    RenderImage image;
    image.id = id;
    image.dump_id = kDump;
    image.gpu_id = 16;
    image.minor = 128;
    image.bos.push_back({{1, 4096, 4096, 4, 0, {}, {}}, 0x100000000});
    return image;
  }
  void write(const RenderImage& image) {
    ASSERT_TRUE(write_image(dir_.fd(), render_image_name(static_cast<int>(image.id)),
                            pack_render_image(image, store_->keys()), false)
                    .ok());
  }
  void write(const kfd::KfdImage& image) {
    ASSERT_TRUE(write_image(dir_.fd(), kfd_image_name(static_cast<int>(*image.id)),
                            pack_kfd_image(image, store_->keys()), false)
                    .ok());
  }
  // Larger than any image.
  void write_huge(const std::string& name) {
    dir_.write(name, test::Bytes(1));
    ASSERT_EQ(::truncate((dir_.path() + "/" + name).c_str(), static_cast<off_t>(kLargestImageBytes + 1)), 0);
  }
  void use_a_key() { store_->set_keys(ImageKeys(std::optional<ImageKey>(ImageKey{7}))); }
  RestoreSurvey survey() {
    auto survey = RestoreSurvey::read(*store_);
    EXPECT_TRUE(survey.ok()) << survey.error().what;
    return std::move(survey).value();
  }

  const test::TempDir dir_;
  const std::unique_ptr<ImageStore> store_ = ImageStore::of_directory([this] { return dir_.fd(); });
};

TEST_F(RestoreSurveyTest, OfTheTopologiesTheWidestIsFirstAndEachIsOnce) {
  for (const std::uint32_t id : {1U, 2U, 3U, 4U}) write(image_of(id, id < 3 ? 1 : 6 - id));
  const RestoreSurvey found = survey();
  ASSERT_EQ(found.topologies().size(), 3U);
  EXPECT_EQ(found.topologies().front().gpu_count(), 3U);
}

TEST_F(RestoreSurveyTest, AnAliasIsNoProcess) {
  write(image_of(1, 1));
  kfd::KfdImage alias = image_of(2, 1);
  alias.bos.clear();
  alias.alias_of = 1;
  write(alias);
  const RestoreSurvey found = survey();
  EXPECT_EQ(found.kfd_pids(), (std::map<int, std::uint32_t>{{1, kPid}}));
  EXPECT_EQ(found.all_lanes(), 1U);
}

// Only sums say which dump is the parent.
TEST_F(RestoreSurveyTest, BesideDeltasSumsThatTheDumpDidNotWriteAreNotMissed) {
  dir_.write(delta_image_name(1, 16), test::Bytes(8));
  write(image_of(1, 1));
  RenderImage empty = render_image_of(2);
  empty.bos.clear();
  write(empty);
  write(render_image_of(4));
  EXPECT_EQ(survey().parent_dump_id(), DumpId{});
  kfd::KfdImage summed = image_of(3, 1);
  summed.has_sums = true;
  write(summed);
  EXPECT_EQ(RestoreSurvey::read(*store_).error().err, EBADMSG);
}

TEST_F(RestoreSurveyTest, BesideDeltasSumsOfARenderFileThatWereLostAreMissed) {
  dir_.write(delta_image_name(1, 16), test::Bytes(8));
  RenderImage summed = render_image_of(3);
  summed.has_sums = true;
  write(summed);
  EXPECT_EQ(RestoreSurvey::read(*store_).error().err, EBADMSG);
}

TEST_F(RestoreSurveyTest, AnImageUnderBothOfItsNamesIsRefused) {
  write(image_of(1, 1));
  dir_.write(chain_name(kfd_image_name(1)), test::Bytes(8));
  const auto read = RestoreSurvey::read(*store_);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().err, EBADMSG);
  EXPECT_NE(read.error().what.find("[SL-I95]"), std::string::npos) << read.error().what;
}

TEST_F(RestoreSurveyTest, BesideDeltasBosThatNoFileHoldsAreRefused) {
  dir_.write(delta_image_name(1, 16), test::Bytes(8));
  kfd::KfdImage image = image_of(1, 1);
  image.bos.clear();
  for (std::uint64_t i = 0; i < 3; ++i)
    image.bos.push_back({{0x1000, std::uint64_t{1} << 62, i << 32, 16, kfd::kAllocVram}});
  write(image);
  EXPECT_EQ(RestoreSurvey::read(*store_).error().err, EOVERFLOW);
}

// As images of upstream's plugin may.
TEST_F(RestoreSurveyTest, ImagesThatShowOneMemoryTwiceAreRefused) {
  kfd::KfdImage first = image_of(1, 1), second = image_of(2, 1);
  RenderImage render = render_image_of(3);
  first.dump_id = second.dump_id = render.dump_id = std::nullopt;
  write(first);
  RestoreSurvey one = survey();
  EXPECT_TRUE(one.add(kfd_image_name(1), first).ok());
  EXPECT_EQ(one.add(kfd_image_name(2), second).error().err, ENOSYS);
  RestoreSurvey other = survey();
  EXPECT_EQ(other.add(render_image_name(3), render).error().err, ENOSYS);
  write(second);
  EXPECT_EQ(RestoreSurvey::read(*store_).error().err, ENOSYS);
}

// CRIU may never ask for them.
TEST_F(RestoreSurveyTest, ImagesThatCannotBeReadAreNoErrorBeforeATaskWantsThem) {
  ASSERT_NO_FATAL_FAILURE(write_huge(kfd_image_name(1)));
  ASSERT_NO_FATAL_FAILURE(write_huge(kfd_image_name(2)));
  ASSERT_EQ(::mkdir((dir_.path() + "/" + kfd_image_name(3)).c_str(), 0700), 0);
  dir_.write(kfd_image_name(4), test::Bytes(3));
  for (const bool with_key : {false, true}) {
    if (with_key) use_a_key();
    RestoreSurvey found = survey();
    ASSERT_TRUE(found.unread().has_value());
    EXPECT_EQ(found.unread()->err, EFBIG);
    EXPECT_NE(found.unread()->what.find(kfd_image_name(1)), std::string::npos) << "the first is told";
    const auto added = found.add(kfd_image_name(1), image_of(1, 1));
    EXPECT_EQ(added ? 0 : added.error().err, with_key ? EFBIG : 0);
  }
}

TEST_F(RestoreSurveyTest, DamagedImagesAreReadByNobody) {
  ASSERT_EQ(::mkdir((dir_.path() + "/" + kfd_image_name(3)).c_str(), 0700), 0);
  dir_.write(kfd_image_name(4), test::Bytes(3));
  EXPECT_FALSE(survey().unread().has_value());
}

TEST_F(RestoreSurveyTest, WithAKeyNoImageMayComeLater) {
  use_a_key();
  write(image_of(1, 1));
  RestoreSurvey found = survey();
  EXPECT_TRUE(found.add(kfd_image_name(1), image_of(1, 1)).ok());
  EXPECT_EQ(found.add(kfd_image_name(2), image_of(2, 1)).error().err, EKEYREJECTED);
  EXPECT_EQ(found.add(render_image_name(3), render_image_of(3)).error().err, EKEYREJECTED);
  EXPECT_EQ(found.add(dmabuf_image_name(4), DmaBufImage{}).error().err, EKEYREJECTED);
}

}  // namespace
}  // namespace sluice::plugin
