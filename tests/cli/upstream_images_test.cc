// SPDX-License-Identifier: MIT
// The commands that look at images, on those of upstream's plugins.
#include "support/upstream_images.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/unique_fd.h"
#include "images/files/files.h"
#include "images/metadata.h"
#include "images_test.h"
#include "kfd/uapi.h"

namespace sluice::cli_test {
namespace {

using test::UpstreamForm;

class UpstreamImagesTest : public ImagesTest, public ::testing::WithParamInterface<UpstreamForm> {
 protected:
  void SetUp() override {
    std::string name = test_name();
    std::replace(name.begin(), name.end(), '/', '_');
    directory_ = images_->copy("plain", name).string();
    const Result<void> turned = test::make_upstreams(directory_, GetParam());
    ASSERT_TRUE(turned.ok()) << turned.error().what;
  }

  std::string directory_;
};

TEST_P(UpstreamImagesTest, ShowTellsWhatTheySay) {
  const Ended ended = sluice({"show", directory_});
  EXPECT_EQ(ended.status, kDone) << ended.out << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("made by CRIU's own plugin, or one that does not say"));
  const json theirs = object_of(sluice({"show", "--json", "--bos", directory_}));
  const json ours = object_of(sluice({"show", "--json", "--bos", plain()}));
  ASSERT_EQ(theirs["processes"].size(), 1U) << theirs;
  EXPECT_EQ(theirs["processes"][0]["memory"], ours["processes"][0]["memory"]);
  EXPECT_EQ(theirs["gpus"].size(), ours["gpus"].size());
  ASSERT_EQ(theirs["render_files"].size(), ours["render_files"].size());
  for (std::size_t i = 0; i < theirs["render_files"].size(); ++i) {
    const json& file = theirs["render_files"][i];
    EXPECT_EQ(file["gpu_id"], ours["render_files"][i]["gpu_id"]);
    if (GetParam() == UpstreamForm::Released) {
      EXPECT_TRUE(file["render_minor"].is_null()) << file;
    } else {
      EXPECT_EQ(file["render_minor"], ours["render_files"][i]["render_minor"]);
    }
  }
  for (const json& file : theirs["files"]) EXPECT_EQ(file["sums"], false) << file;
}

TEST_P(UpstreamImagesTest, MapFindsTheirGpus) {
  const Ended ended = sluice({"map", directory_}, &images_->machine());
  EXPECT_EQ(ended.status, kDone) << ended.out << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("every GPU is the same"));
}

TEST_P(UpstreamImagesTest, VerifyHasNothingToGoBy) {
  const Ended ended = sluice({"verify", directory_});
  EXPECT_EQ(ended.status, kRefused) << ended.out << ended.err;
  EXPECT_THAT(ended.out + ended.err, HasSubstr("no checksums"));
  EXPECT_THAT(ended.out + ended.err, Not(HasSubstr("damaged")));
}

TEST_P(UpstreamImagesTest, DiffComparesThemByContents) {
  for (const std::string& other : {directory_, plain()}) {
    const Ended ended = sluice({"diff", "--json", other, directory_});
    EXPECT_EQ(ended.status, kDone) << ended.out << ended.err;
    const json object = object_of(ended);
    EXPECT_EQ(object["result"], "equal") << object;
    EXPECT_GT(object["equal"], 0);
    for (const json& set : object["sets"]) EXPECT_EQ(set["by_sums"], false) << set;
  }
}

// Whole images that only their own plugin restores: nobody is told to give the checkpoint up.
TEST_P(UpstreamImagesTest, MemoryThatTwoEntriesShareIsNoDamage) {
  const UniqueFd folder(::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::string name = list_kfd_images(folder.get())->at(0);
  KfdImage image = *unpack_kfd_image(*read_image(folder.get(), name), name, {});
  const auto with_contents = [](const BoEntry& bo) { return kfd::has_contents(bo.alloc_flags); };
  const auto first = std::find_if(image.bos.begin(), image.bos.end(), with_contents);
  ASSERT_NE(first, image.bos.end());
  const auto second = std::find_if(first + 1, image.bos.end(), [&](const BoEntry& bo) {
    return with_contents(bo) && bo.gpu_id == first->gpu_id;
  });
  ASSERT_NE(second, image.bos.end());
  second->offset = first->offset;
  ASSERT_TRUE(write_image(folder.get(), name, test::upstream_kfd_image(image, GetParam()), false).ok());
  for (const char* command : {"show", "map", "verify"}) {
    const Ended ended = sluice({command, directory_}, &images_->machine());
    EXPECT_EQ(ended.status, kFailed) << command;
    EXPECT_THAT(ended.out + ended.err, HasSubstr("[SL-I22]")) << command;
    EXPECT_THAT(ended.out + ended.err, Not(HasSubstr("another checkpoint"))) << command;
    EXPECT_THAT(ended.out + ended.err, Not(::testing::ContainsRegex("[Dd]amaged|DAMAGED"))) << command;
    const json object = object_of(sluice({command, "--json", directory_}, &images_->machine()));
    EXPECT_EQ(object[object.contains("cause") ? "cause" : "result"], "unsupported") << object;
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, UpstreamImagesTest,
                         ::testing::Values(UpstreamForm::Released, UpstreamForm::Dev),
                         [](const auto& tested) {
                           return tested.param == UpstreamForm::Released ? "Released" : "CriuDev";
                         });

}  // namespace
}  // namespace sluice::cli_test
