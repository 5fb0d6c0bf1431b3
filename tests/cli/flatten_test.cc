// SPDX-License-Identifier: MIT
// `sluice flatten` of what has no parent, and where it cannot do its work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstdlib>
#include <string>

#include "images_test.h"

namespace sluice::cli_test {
namespace {

TEST_F(ImagesTest, FlattenLeavesACompleteCheckpointAsItIs) {
  const Ended ended = sluice({"flatten", plain()});
  EXPECT_EQ(ended.status, kDone) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("nothing was to be done"));
  const json object = object_of(sluice({"flatten", "--json", plain()}));
  EXPECT_EQ(object["result"], "flat");
  EXPECT_EQ(object["files"], 0);
}

TEST_F(ImagesTest, FlattenNeedsTheImagesThemselves) {
  const lookalike::ScratchDirectory empty;
  EXPECT_EQ(sluice({"flatten", empty.path().string()}).status, kRefused);
  EXPECT_EQ(sluice({"flatten", (empty.path() / "none").string()}).status, kFailed);
  const std::string archive = (empty.path() / "archive.tar").string();
  ASSERT_EQ(std::system(("tar -C " + plain() + " -cf " + archive + " .").c_str()), 0);
  const Ended ended = sluice({"flatten", archive});
  EXPECT_EQ(ended.status, kRefused);
  EXPECT_THAT(ended.err, HasSubstr("[SL-T55]"));
  EXPECT_EQ(object_of(sluice({"flatten", "--json", archive}))["result"], "refused");
}

// Some file systems know no locks.
TEST_F(ImagesTest, FlattenNeedsNoLocks) {
  for (const int error : {ENOLCK, EOPNOTSUPP}) {
    const Ended ended =
        sluice({"flatten", plain()}, nullptr, {}, [=] { refuse_system_call(SYS_flock, error); });
    EXPECT_EQ(ended.status, kDone) << ended.err;
  }
}

// A file system that copies on write may need space to remove a file.
TEST_F(ImagesTest, FlattenWhereThereIsNoSpaceSaysHowItGoesOn) {
  std::string remedy;
  for (const int error : {ENOSPC, EDQUOT, EIO}) {
    const Ended ended =
        sluice({"flatten", "--json", plain()}, nullptr, {}, [=] { refuse_system_call(SYS_unlinkat, error); });
    EXPECT_EQ(ended.status, kFailed);
    const std::string is = object_of(ended)["remedy"];
    if (error == ENOSPC) remedy = is;
    EXPECT_EQ(is == remedy, error != EIO) << is;
  }
}

TEST_F(ImagesTest, FlattenWithoutThreadsFails) {
  const Ended ended = sluice({"flatten", plain()}, nullptr, {"ASAN_OPTIONS=detect_leaks=0"}, [] {
    for (const int number : {SYS_clone, SYS_clone3}) refuse_system_call(number, EAGAIN);
  });
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_EQ(ended.out, "");
  EXPECT_THAT(ended.err, HasSubstr("Resource temporarily unavailable"));
}

}  // namespace
}  // namespace sluice::cli_test
