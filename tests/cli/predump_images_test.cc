// SPDX-License-Identifier: MIT
// What the commands say of a pre-dump: it is one, and no broken checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/units.h"
#include "images_test.h"
#include "support/flip_byte.h"

namespace sluice::cli_test {
namespace {

class PreDumpImagesTest : public ImagesTest {
 protected:
  static void SetUpTestSuite() {
    ImagesTest::SetUpTestSuite();
    lookalike::Program subject = start_subject(
        images_->machine(),
        {"--vram", "4M", "--gtt", "1M", "--zero", "20", "--svm-context", "--gem-handles", "1,3"});
    ASSERT_EQ(images_->run_host("before", {"pre-dump", "--pid", std::to_string(subject.pid())}), "");
    subject.kill();
  }
  static std::string before() { return images_->directory("before").string(); }
  static std::string changed_copy() { return images_->copy("before", test_name()).string(); }
};

TEST_F(PreDumpImagesTest, ShowTellsWhatItHolds) {
  const Ended ended = sluice({"show", before()});
  EXPECT_EQ(ended.status, kDone) << ended.err;
  EXPECT_THAT(ended.out, AllOf(HasSubstr("\na pre-dump: "), HasSubstr("1 process, 2 GPUs"),
                               HasSubstr("amdgpu-predump-kfd-"), HasSubstr("amdgpu-predump-renderD-"),
                               HasSubstr("with checksums")));
  const json object = object_of(sluice({"show", "--json", "--bos", before()}));
  EXPECT_EQ(object["result"], "shown");
  EXPECT_EQ(object["predump"], true);
  EXPECT_EQ(object["bytes"], total_size(before(), "amdgpu-predump-pages-") +
                                 total_size(before(), "amdgpu-predump-drm-pages-"));
  for (const json& bo : object["bos"]) EXPECT_THAT(bo["image"], HasSubstr("amdgpu-predump-"));
  EXPECT_EQ(object_of(sluice({"show", "--json", plain()}))["predump"], false);
}

TEST_F(PreDumpImagesTest, ShowReadsItsStatistics) {
  const Ended ended = sluice({"show", "--stats", before()});
  EXPECT_EQ(ended.status, kDone) << ended.err;
  EXPECT_THAT(ended.out, AllOf(HasSubstr("predump-0"), HasSubstr(": the queues were paused for ")));
  EXPECT_FALSE(object_of(sluice({"show", "--json", "--stats", before()}))["stats"].empty());
}

TEST_F(PreDumpImagesTest, VerifyComparesItsSums) {
  const json whole = object_of(sluice({"verify", "--json", before()}));
  EXPECT_EQ(whole["result"], "verified") << whole;
  EXPECT_EQ(whole["predump"], true);
  EXPECT_GT(whole["blocks"], 0);
  const Ended text = sluice({"verify", before()});
  EXPECT_EQ(text.status, kDone);
  EXPECT_THAT(text.out, AllOf(HasSubstr("\na pre-dump: "), HasSubstr("verified: all ")));

  const std::string directory = changed_copy();
  const std::string pages = names(directory, "amdgpu-predump-pages-").at(0);
  test::flip_byte(directory + "/" + pages, 2 * kMiB);
  const json damaged = object_of(sluice({"verify", "--json", directory}));
  EXPECT_EQ(damaged["result"], "damaged");
  EXPECT_EQ(damaged["problems"].at(0)["kind"], "bad-block");
  EXPECT_EQ(damaged["problems"].at(0)["file"], pages);
  EXPECT_EQ(damaged["remedy"], "make another one");
  EXPECT_THAT(sluice({"verify", directory}).out, HasSubstr("no dump can be built on it"));
  std::filesystem::remove(directory + "/" + pages);
  EXPECT_EQ(object_of(sluice({"verify", "--json", directory}))["result"], "incomplete");
}

TEST_F(PreDumpImagesTest, ItsImagesAreThoseOfItsMark) {
  const std::string directory = changed_copy();
  const std::string image = names(directory, "amdgpu-predump-kfd-").at(0);
  std::filesystem::remove(directory + "/" + image);
  for (const char* command : {"show", "verify"}) {
    const Ended ended = sluice({command, "--json", directory});
    EXPECT_EQ(ended.status, kFailed) << command;
    EXPECT_EQ(object_of(ended)["result"], "incomplete") << ended.out;
    EXPECT_THAT(ended.out, HasSubstr(image));
  }
  test::flip_byte(directory + "/amdgpu-predump.img", 12);
  EXPECT_EQ(object_of(sluice({"verify", "--json", directory}))["result"], "damaged");
}

TEST_F(PreDumpImagesTest, NothingIsRestoredFromItOrFlattened) {
  for (const char* command : {"map", "flatten"}) {
    const Ended ended = sluice({command, before()}, &images_->machine());
    EXPECT_EQ(ended.status, kRefused) << command;
    EXPECT_THAT(ended.err, AllOf(HasSubstr("pre-dump"), HasSubstr("[SL-T61]"), Not(HasSubstr("missing"))));
    const json object = object_of(sluice({command, "--json", before()}, &images_->machine()));
    EXPECT_EQ(object["result"], "refused");
    EXPECT_FALSE(object.contains("cause")) << object;
  }
}

TEST_F(PreDumpImagesTest, DiffComparesItWithWhatCameLater) {
  const json object = object_of(sluice({"diff", "--json", before(), changed_copy()}));
  EXPECT_EQ(object["result"], "equal") << object;
  EXPECT_GT(object["equal"], 0);
}

// It runs still, or was ended.
TEST_F(PreDumpImagesTest, AnUnfinishedOneIsCalledThat) {
  const std::string directory = changed_copy();
  std::filesystem::remove(directory + "/amdgpu-predump.img");
  for (const Strings& command : {Strings{"show"}, Strings{"show", "--stats"}, Strings{"verify"},
                                 Strings{"map"}, Strings{"flatten"}, Strings{"diff", plain()}}) {
    Strings arguments = command;
    arguments.push_back(directory);
    const Ended ended = sluice(arguments, &images_->machine());
    EXPECT_EQ(ended.status, kFailed) << command[0];
    EXPECT_THAT(ended.err,
                AllOf(HasSubstr("[SL-T60]"), HasSubstr("pre-dump"), HasSubstr("make another one")));
    arguments.insert(arguments.begin() + 1, "--json");
    EXPECT_EQ(object_of(sluice(arguments, &images_->machine()))["cause"], "missing") << command[0];
  }
}

// Engines put one into an archive, too.
TEST_F(PreDumpImagesTest, AnArchiveOfItIsOne) {
  const lookalike::ScratchDirectory scratch;
  const std::string archive = (scratch.path() / "before.tar.gz").string();
  ASSERT_EQ(std::system(("tar -C " + before() + " -czf " + archive + " .").c_str()), 0);
  const json object = object_of(sluice({"verify", "--json", archive}));
  EXPECT_EQ(object["result"], "verified") << object;
  EXPECT_EQ(object["predump"], true);
  EXPECT_THAT(sluice({"map", archive}, &images_->machine()).err, HasSubstr("[SL-T61]"));
}

TEST_F(PreDumpImagesTest, CheckTellsWhatItHasForADump) {
  const json object = object_of(sluice(
      {"check", "--json", "--pid", std::to_string(::getpid()), "--parent", before()}, &images_->machine()));
  std::uint64_t contents = 0;
  for (const char* prefix : {"amdgpu-predump-pages-", "amdgpu-predump-drm-pages-"})
    contents += total_size(before(), prefix) - 8 * names(before(), prefix).size();  // their lengths
  EXPECT_EQ(object["parent"]["gpu_bytes"], contents) << object;
}

}  // namespace
}  // namespace sluice::cli_test
