// SPDX-License-Identifier: MIT
// Which images a restore reads before there are tasks, what it does with those that cannot be read, and which
// a task takes later.
#include "plugin/restore/task/task_images.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "images/files/files.h"
#include "kfd/uapi.h"
#include "support/temp_dir.h"

namespace sluice::plugin {
namespace {

constexpr std::uint32_t kPid = 17;
constexpr DumpId kDump{1, 2, 3};

class RestoreImagesTest : public ::testing::Test {
 protected:
  // Of a process that saw `gpus` GPUs, with one BO on the first.
  static KfdImage image_of(std::uint32_t id, std::uint32_t gpus) {
    KfdImage image;
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
  void write(const KfdImage& image) {
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
  // 0: they can be planned.
  int error_of_planning() const {
    auto found = find_images(*store_);
    if (!found) return found.error().err;
    const auto plan = plan_restore(std::move(*found));
    return plan ? 0 : plan.error().err;
  }
  RestorePlan plan() const {
    auto found = find_images(*store_);
    EXPECT_TRUE(found.ok()) << (found ? "" : found.error().what);
    auto plan = plan_restore(std::move(found).value());
    EXPECT_TRUE(plan.ok()) << (plan ? "" : plan.error().what);
    return std::move(plan).value();
  }

  const test::TempDir dir_;
  const std::unique_ptr<ImageStore> store_ = ImageStore::of_directory([this] { return dir_.fd(); });
};

// Only sums say which dump is the parent.
TEST_F(RestoreImagesTest, BesideDeltasSumsThatTheDumpDidNotWriteAreNotMissed) {
  dir_.write(pages_image_name(1, 16, Lacks::Parents), test::Bytes(8));
  write(image_of(1, 1));
  RenderImage empty = render_image_of(2);
  empty.bos.clear();
  write(empty);
  write(render_image_of(4));
  EXPECT_EQ(plan().found.needs.parent, DumpId{});
  KfdImage summed = image_of(3, 1);
  summed.has_sums = true;
  write(summed);
  EXPECT_EQ(error_of_planning(), EBADMSG);
}

TEST_F(RestoreImagesTest, BesideDeltasSumsOfARenderFileThatWereLostAreMissed) {
  dir_.write(pages_image_name(1, 16, Lacks::Parents), test::Bytes(8));
  RenderImage summed = render_image_of(3);
  summed.has_sums = true;
  write(summed);
  EXPECT_EQ(error_of_planning(), EBADMSG);
}

TEST_F(RestoreImagesTest, AnImageUnderBothOfItsNamesIsRefused) {
  write(image_of(1, 1));
  dir_.write(partial_name(kfd_image_name(1), Lacks::Parents), test::Bytes(8));
  const auto read = find_images(*store_);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().err, EBADMSG);
  EXPECT_NE(read.error().what.find("[SL-I95]"), std::string::npos) << read.error().what;
}

TEST_F(RestoreImagesTest, BesideDeltasBosThatNoFileHoldsAreRefused) {
  dir_.write(pages_image_name(1, 16, Lacks::Parents), test::Bytes(8));
  KfdImage image = image_of(1, 1);
  image.bos.clear();
  for (std::uint64_t i = 0; i < 3; ++i)
    image.bos.push_back({{0x1000, std::uint64_t{1} << 62, i << 32, 16, kfd::kAllocVram}});
  write(image);
  EXPECT_EQ(error_of_planning(), EOVERFLOW);
}

// CRIU may never ask for them.
TEST_F(RestoreImagesTest, ImagesThatCannotBeReadAreNoErrorBeforeATaskWantsThem) {
  ASSERT_NO_FATAL_FAILURE(write_huge(kfd_image_name(1)));
  ASSERT_NO_FATAL_FAILURE(write_huge(kfd_image_name(2)));
  ASSERT_EQ(::mkdir((dir_.path() + "/" + kfd_image_name(3)).c_str(), 0700), 0);
  dir_.write(kfd_image_name(4), test::Bytes(3));
  const RestorePlan made = plan();
  const auto& unread = made.found.checkpoint.unread;
  ASSERT_TRUE(unread.has_value());
  EXPECT_EQ(unread->err, EFBIG);
  EXPECT_NE(unread->what.find(kfd_image_name(1)), std::string::npos) << "the first is told";
  TaskImages images(*store_, made);
  EXPECT_EQ(images.any(2).error().err, EFBIG);
  EXPECT_EQ(images.any(4).error().err, EBADMSG);
}

TEST_F(RestoreImagesTest, DamagedImagesAreReadByNobody) {
  ASSERT_EQ(::mkdir((dir_.path() + "/" + kfd_image_name(3)).c_str(), 0700), 0);
  dir_.write(kfd_image_name(4), test::Bytes(3));
  EXPECT_FALSE(plan().found.checkpoint.unread.has_value());
}

TEST_F(RestoreImagesTest, AnImageThatWasFoundStaysAsItWas) {
  write(image_of(1, 1));
  const RestorePlan made = plan();
  dir_.write(kfd_image_name(1), test::Bytes(3));
  TaskImages images(*store_, made);
  const auto image = images.any(1);
  ASSERT_TRUE(image.ok()) << image.error().what;
  ASSERT_TRUE(image->has_value());
  EXPECT_EQ(std::get<KfdImage>(**image).bos.size(), 1U);
}

TEST_F(RestoreImagesTest, AFileWithoutAnImageIsNotOurs) {
  write(image_of(1, 1));
  const RestorePlan made = plan();
  TaskImages images(*store_, made);
  const auto image = images.any(2);
  ASSERT_TRUE(image.ok()) << image.error().what;
  EXPECT_FALSE(image->has_value());
}

TEST_F(RestoreImagesTest, AnImageThatComesLaterMustBeOfTheSameDump) {
  write(image_of(1, 1));
  const RestorePlan made = plan();
  TaskImages images(*store_, made);
  write(image_of(2, 1));
  EXPECT_TRUE(images.any(2)->has_value());
  KfdImage other = image_of(3, 1);
  other.dump_id = DumpId{4};
  write(other);
  EXPECT_EQ(images.any(3).error().err, EBADMSG);
}

// As images of upstream's plugin may.
TEST_F(RestoreImagesTest, AnImageThatComesLaterMustShowNoMemoryTwice) {
  KfdImage first = image_of(1, 1);
  RenderImage render = render_image_of(3);
  first.dump_id = render.dump_id = std::nullopt;
  write(first);
  const RestorePlan made = plan();
  TaskImages images(*store_, made);
  write(render);
  EXPECT_EQ(images.any(3).error().err, ENOSYS);
  EXPECT_EQ(error_of_planning(), ENOSYS);
}

TEST_F(RestoreImagesTest, WithAKeyNoImageMayComeLater) {
  use_a_key();
  write(image_of(1, 1));
  const RestorePlan made = plan();
  TaskImages images(*store_, made);
  EXPECT_TRUE(images.any(1)->has_value());
  write(image_of(2, 1));
  write(render_image_of(3));
  EXPECT_EQ(images.any(2).error().err, EKEYREJECTED);
  EXPECT_EQ(images.any(3).error().err, EKEYREJECTED);
}

TEST_F(RestoreImagesTest, WithAKeyWhatCouldNotBeReadIsTheReason) {
  use_a_key();
  ASSERT_NO_FATAL_FAILURE(write_huge(kfd_image_name(1)));
  const RestorePlan made = plan();
  TaskImages images(*store_, made);
  write(image_of(2, 1));
  EXPECT_EQ(images.any(2).error().err, EFBIG);
}

TEST_F(RestoreImagesTest, WithoutAKfdAFileOfOursIsRefused) {
  write(image_of(1, 1));
  write(render_image_of(2));
  ASSERT_TRUE(write_image(dir_.fd(), partial_name(kfd_image_name(3), Lacks::Parents),
                          std::vector<std::uint8_t>(3), false)
                  .ok());
  for (const int id : {1, 2, 3}) EXPECT_EQ(restore_without_kfd(*store_, id).error().err, ENODEV) << id;
  const auto other = restore_without_kfd(*store_, 4);
  ASSERT_TRUE(other.ok());
  EXPECT_FALSE(other->has_value());
}

}  // namespace
}  // namespace sluice::plugin
