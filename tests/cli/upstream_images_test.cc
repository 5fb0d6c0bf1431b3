// SPDX-License-Identifier: MIT
// The commands that look at images, on those of upstream's plugins.
#include "support/upstream_images.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "images_test.h"

namespace sluice::cli_test {
namespace {

using nlohmann::json;
using test::UpstreamForm;
using ::testing::HasSubstr;
using ::testing::Not;

class UpstreamImagesTest : public ImagesTest, public ::testing::WithParamInterface<UpstreamForm> {
 protected:
  void SetUp() override {
    std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
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
  EXPECT_THAT(ended.out, HasSubstr("every GPU is the one it was"));
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

INSTANTIATE_TEST_SUITE_P(Forms, UpstreamImagesTest,
                         ::testing::Values(UpstreamForm::Released, UpstreamForm::Dev),
                         [](const auto& tested) {
                           return tested.param == UpstreamForm::Released ? "Released" : "CriuDev";
                         });

}  // namespace
}  // namespace sluice::cli_test
