// SPDX-License-Identifier: MIT
// What all commands that look at images answer where there are none, or none that they can read.
#include "images_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "images/files.h"
#include "pipeline/units.h"

namespace sluice::cli_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

TEST_F(ImagesTest, WhatIsNoRegularFileIsToldAndNotWaitedFor) {
  const std::string directory = damaged_copy();
  for (const char* prefix : {"amdgpu-pages-", "amdgpu-kfd-"}) {
    const std::string name = names(directory, prefix)[0];
    const std::string file = directory + "/" + name;
    std::filesystem::rename(file, directory + "/elsewhere");
    for (const bool fifo : {false, true}) {
      if (fifo) {
        ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
      } else {
        std::filesystem::create_symlink("elsewhere", file);
      }
      for (const char* command : {"show", "verify"}) {
        const Ended ended = sluice({command, directory});
        EXPECT_EQ(ended.status, kFailed) << command;
        EXPECT_THAT(ended.out + ended.err, HasSubstr(name + " is not a regular file")) << command;
      }
      std::filesystem::remove(file);
    }
    std::filesystem::rename(directory + "/elsewhere", file);
  }
}

TEST_F(ImagesTest, DirectoriesWithoutImagesAreRefused) {
  const host_test::ScratchDirectory empty;
  for (const char* command : {"show", "verify", "map"}) {
    const Ended ended = sluice({command, empty.path().string()});
    EXPECT_EQ(ended.status, kRefused) << command;
    EXPECT_THAT(ended.err, HasSubstr("has no images of GPU processes")) << command;
    EXPECT_EQ(object_of(sluice({command, "--json", empty.path().string()}))["result"], "refused");
    EXPECT_EQ(sluice({command, "/does/not/exist"}).status, kFailed) << command;
    EXPECT_EQ(object_of(sluice({command, "--json", "/does/not/exist"}))["result"], "failed") << command;
  }
}

TEST_F(ImagesTest, ImagesOfSomebodyElseAreForRoot) {
  const std::string directory = damaged_copy();
  ASSERT_EQ(::chmod(directory.c_str(), 0), 0);
  const Ended ended = sluice({"show", directory}, nullptr, {}, [] {
    if (::geteuid() == 0) give_up_capabilities({CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH});
  });
  ASSERT_EQ(::chmod(directory.c_str(), 0700), 0);
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_THAT(ended.err, HasSubstr("images are readable by their owner only: try again as root"));
}

// An image that says it is long is not believed before there is room for it.
TEST_F(ImagesTest, WhatDoesNotFitIntoMemoryIsAFailure) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs the address space";
#endif
  const std::string directory = damaged_copy();
  std::filesystem::resize_file(directory + "/" + names(directory, std::string(kKfdPrefix)).at(0), 1 << 30);
  const Ended ended = sluice({"show", directory}, nullptr, {}, [] {
    const rlimit limit = {512 * kMiB, 512 * kMiB};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) ::_exit(126);
  });
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_EQ(ended.err, "sluice: std::bad_alloc\n");
}

}  // namespace
}  // namespace sluice::cli_test
