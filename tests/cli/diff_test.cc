// SPDX-License-Identifier: MIT
// `sluice diff`: what has changed between two checkpoints, by BO.
#include "images_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/units.h"
#include "cli/text.h"
#include "images/files/files.h"
#include "images/metadata.h"
#include "support/flip_byte.h"

namespace sluice::cli_test {
namespace {

TEST_F(ImagesTest, DiffOfACopyIsEqual) {
  for (const std::string& directory : {plain(), shared()}) {
    const json object = object_of(sluice({"diff", "--json", directory, directory}));
    EXPECT_EQ(object["result"], "equal") << object;
    EXPECT_GT(object["equal"], 0);
    for (const json& set : object["sets"]) EXPECT_EQ(set["by_sums"], true);
  }
  EXPECT_THAT(sluice({"diff", plain(), plain()}).out, HasSubstr("it saves 100 %"));
}

// By sums and by contents the same byte is found in the same BO.
TEST_F(ImagesTest, DiffFindsWhatChanged) {
  const std::string directory = damaged_copy();
  remove_sums(directory);
  const std::string file = names(directory, "amdgpu-pages-")[0];
  test::flip_byte(directory + "/" + file, 2 * kMiB + 17);
  const Ended ended = sluice({"diff", "--json", plain(), directory});
  EXPECT_EQ(ended.status, kDone);
  const json object = object_of(ended);
  EXPECT_EQ(object["result"], "changed");
  EXPECT_GT(object["changed"], 0);
  EXPECT_LE(object["changed"], kMiB);
  std::size_t changed_bos = 0;
  for (const json& set : object["sets"]) {
    EXPECT_EQ(set["by_sums"], false);
    for (const json& bo : set["bos"]) changed_bos += bo["changed"] > 0 ? 1 : 0;
  }
  EXPECT_EQ(changed_bos, 1U);
  EXPECT_EQ(object["bytes"], total_size(plain(), "amdgpu-pages-") - 8 * object["sets"].size());
}

// Of other processes nothing is the same: all is new, and what the older one had is gone.
TEST_F(ImagesTest, DiffOfOtherProcessesIsAllNew) {
  const json object = object_of(sluice({"diff", "--json", plain(), shared()}));
  EXPECT_EQ(object["equal"], 0);
  std::uint64_t gone = 0;
  for (const json& set : object["sets"]) gone += set["gone_bytes"].get<std::uint64_t>();
  EXPECT_EQ(gone, total_size(plain(), "amdgpu-pages-") - 16);
}

TEST_F(ImagesTest, DiffAsTextSaysHowItWasComparedAndWhatIsGone) {
  EXPECT_THAT(sluice({"diff", plain(), plain()}).out, HasSubstr(" sums\n"));
  const std::string directory = damaged_copy();
  remove_sums(directory);
  change_kfd_image(directory, [](KfdImage& image) {
    vram_bo(image).addr += std::uint64_t{1} << 40;  // freed, and another in its place
  });
  const Ended ended = sluice({"diff", "--bos", plain(), directory});
  EXPECT_EQ(ended.status, kDone) << ended.err;
  EXPECT_THAT(ended.out, AllOf(HasSubstr(" contents\n"), HasSubstr("\nBOs\n"), HasSubstr("  new\n")));
  const json object = object_of(sluice({"diff", "--json", plain(), directory}));
  std::size_t bos = 0;
  for (const json& set : object["sets"]) {
    bos += set["bos"].size();
    if (set["gone_bytes"] == 0) continue;
    EXPECT_THAT(ended.out, HasSubstr("  " + cli::bytes_text(set["gone_bytes"]) + "  contents\n"));
  }
  const std::string list = ended.out.substr(ended.out.find("\nBOs\n"));
  EXPECT_EQ(std::count(list.begin(), list.end(), '\n'), static_cast<std::ptrdiff_t>(bos) + 5);
  // Nothing is left of the older one's in another's images.
  EXPECT_THAT(sluice({"diff", plain(), shared()}).out, HasSubstr(" MiB\n"));
}

TEST_F(ImagesTest, DiffWithoutContentsSavesNothing) {
  ASSERT_EQ(images_->dump("empty", {"--render-only"}), "");
  const std::string directory = images_->directory("empty").string();
  const Ended ended = sluice({"diff", directory, directory});
  EXPECT_EQ(ended.status, kDone) << ended.err;
  EXPECT_THAT(ended.out, EndsWith("\nA dump of what changed would write 0 B instead of 0 B\n"));
  EXPECT_THAT(sluice({"show", "--bos", directory}).out, Not(HasSubstr("\nBOs\n")));
}

TEST_F(ImagesTest, DiffNeedsTwoCheckpointsThatCanBeRead) {
  const lookalike::ScratchDirectory empty;
  const std::string nothing = empty.path().string();
  EXPECT_EQ(sluice({"diff", nothing, plain()}).status, kRefused);
  EXPECT_EQ(sluice({"diff", plain(), nothing}).status, kRefused);
  const std::string directory = damaged_copy();
  const std::string name = names(directory, std::string(kKfdPrefix)).at(0);
  std::filesystem::resize_file(directory + "/" + name, 20);
  for (const Strings& command : {Strings{"diff", plain(), directory}, Strings{"diff", directory, plain()}}) {
    const Ended ended = sluice(command);
    EXPECT_EQ(ended.status, kFailed);
    EXPECT_THAT(ended.err, AllOf(HasSubstr(directory + ": "), HasSubstr(name),
                                 HasSubstr("sluice verify tells what else")));
  }
}

TEST_F(ImagesTest, DiffOfDamagedImagesFails) {
  const std::string directory = damaged_copy();
  remove_sums(directory);
  std::filesystem::resize_file(directory + "/" + names(directory, "amdgpu-pages-")[0], 100);
  const Ended ended = sluice({"diff", plain(), directory});
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_THAT(ended.err, HasSubstr("has 100 bytes"));
  EXPECT_EQ(sluice({"diff", plain()}).status, kUsage);
}

}  // namespace
}  // namespace sluice::cli_test
