// SPDX-License-Identifier: MIT
// Not allowed, not there and damaged: whoever looks at images is told which, and what he can do about it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "images_test.h"
#include "support/flip_byte.h"

namespace sluice::cli_test {
namespace {

using ::testing::AnyOf;
using ::testing::IsEmpty;

constexpr const char* kAsRoot = "images are readable by their owner only: try again as root";

void as_anybody() {
  if (::geteuid() == 0) give_up_capabilities({CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH});
}

// Nothing in it is called damaged, and nobody is sent away from a checkpoint that may be intact.
testing::Matcher<std::string> accuses_nobody() {
  return AllOf(Not(HasSubstr("damaged")), Not(HasSubstr("DAMAGED")), Not(HasSubstr("another checkpoint")),
               Not(HasSubstr("with checksums")));
}

std::vector<Strings> commands_on(const std::string& directory) {
  return {{"show", directory}, {"verify", directory}, {"map", directory}, {"diff", directory, directory}};
}

Strings as_json(Strings command) {
  command.insert(command.begin() + 1, "--json");
  return command;
}

TEST_F(ImagesTest, ImagesThatMayNotBeReadAreNotDamaged) {
  const std::string directory = damaged_copy();
  for (const std::string& name : names(directory, ""))
    ASSERT_EQ(::chmod((directory + "/" + name).c_str(), 0), 0);
  for (const Strings& command : commands_on(directory)) {
    const Ended ended = sluice(command, nullptr, {}, as_anybody);
    EXPECT_EQ(ended.status, kFailed) << command[0];
    EXPECT_THAT(
        ended.out + ended.err,
        AllOf(HasSubstr("open " + names(directory, std::string(kKfdPrefix)).at(0) + ": Permission denied"),
              HasSubstr(kAsRoot), accuses_nobody()))
        << command[0];
    json object = object_of(sluice(as_json(command), nullptr, {}, as_anybody));
    if (command[0] == "verify") {
      EXPECT_EQ(object["result"], "unreadable");
      for (const json& problem : object["problems"]) EXPECT_EQ(problem["kind"], "not-allowed");
    } else {
      EXPECT_EQ(object["result"], "failed") << command[0];
      EXPECT_EQ(object["cause"], "not-allowed") << command[0];
      EXPECT_EQ(object["remedy"], kAsRoot) << command[0];
    }
  }
}

// A disk, a mount or a system that refuses says nothing of the images.
TEST_F(ImagesTest, WhatTheSystemRefusesIsNotDamaged) {
  for (const int error : {EIO, ENFILE, EMFILE, ENOMEM, ESTALE}) {
    const auto refuse = [error] {
      refuse_system_call(SYS_openat, error,
                         {{.argument = 2, .bits = O_NOFOLLOW}});  // images, and nothing else
    };
    for (const Strings& command : commands_on(plain())) {
      const Ended ended = sluice(command, nullptr, {}, refuse);
      EXPECT_EQ(ended.status, kFailed) << command[0] << ' ' << strerrorname_np(error);
      EXPECT_THAT(ended.out + ended.err, AllOf(HasSubstr(strerrordesc_np(error)), HasSubstr("again"),
                                               Not(HasSubstr(kAsRoot)), accuses_nobody()))
          << command[0];
      json object = object_of(sluice(as_json(command), nullptr, {}, refuse));
      EXPECT_EQ(command[0] == "verify" ? object["result"] : object["cause"], "unreadable") << object;
    }
  }
}

// Sums that may not be read: their contents can, and nothing is known of them.
TEST_F(ImagesTest, SumsThatMayNotBeReadAreNotDamaged) {
  const std::string directory = damaged_copy();
  const std::string sums = names(directory, "amdgpu-sums-").at(0);
  ASSERT_EQ(::chmod((directory + "/" + sums).c_str(), 0), 0);
  for (const char* command : {"show", "verify"}) {
    const Ended ended = sluice({command, directory}, nullptr, {}, as_anybody);
    EXPECT_EQ(ended.status, kFailed);
    EXPECT_THAT(ended.out + ended.err, AllOf(HasSubstr("open " + sums + ": Permission denied"),
                                             HasSubstr(kAsRoot), accuses_nobody()));
    EXPECT_EQ(object_of(sluice({command, "--json", directory}, nullptr, {}, as_anybody))["result"],
              "unreadable");
  }
  const json shown = object_of(sluice({"show", "--json", directory}, nullptr, {}, as_anybody));
  EXPECT_TRUE(shown["files"][0]["sums"].is_null() || shown["files"][1]["sums"].is_null());
  const Ended compared = sluice({"diff", directory, directory}, nullptr, {}, as_anybody);
  EXPECT_EQ(compared.status, kFailed);
  EXPECT_THAT(compared.err, AllOf(HasSubstr(kAsRoot), accuses_nobody()));
}

// Each file is told by itself, and the others are looked at all the same.
TEST_F(ImagesTest, ContentsThatMayNotBeReadKeepNobodyFromTheRest) {
  const std::string directory = images_->copy("shared", "shared-secret").string();
  const auto files = names(directory, "amdgpu-drm-pages-");
  ASSERT_GE(files.size(), 2U);
  ASSERT_EQ(::chmod((directory + "/" + files[0]).c_str(), 0), 0);
  const auto problems = [&] {
    return object_of(sluice({"verify", "--json", directory}, nullptr, {}, as_anybody));
  };
  const json unread = problems();
  EXPECT_EQ(unread["result"], "unreadable");
  ASSERT_EQ(unread["problems"].size(), 1U) << unread;
  EXPECT_EQ(unread["problems"][0]["kind"], "not-allowed");
  EXPECT_EQ(unread["problems"][0]["file"], files[0]);

  // What is known to be worse is said first.
  std::filesystem::remove(directory + "/" + files[1]);
  const json incomplete = problems();
  EXPECT_EQ(incomplete["result"], "incomplete") << incomplete;
  test::flip_byte(directory + "/" + names(directory, "amdgpu-pages-").at(0), 100);
  const json damaged = problems();
  EXPECT_EQ(damaged["result"], "damaged");
  ASSERT_EQ(damaged["problems"].size(), 3U) << damaged;
}

TEST_F(ImagesTest, StatisticsThatMayNotBeReadAreToldSo) {
  const std::string directory = damaged_copy();
  for (const std::string& name : names(directory, "sluice-stats-"))
    ASSERT_EQ(::chmod((directory + "/" + name).c_str(), 0), 0);
  const Ended ended = sluice({"show", "--stats", directory}, nullptr, {}, as_anybody);
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_EQ(ended.out, "");
  EXPECT_THAT(ended.err, AllOf(HasSubstr(": Permission denied"), HasSubstr(kAsRoot)));
  EXPECT_EQ(object_of(sluice({"show", "--stats", "--json", directory}, nullptr, {}, as_anybody))["result"],
            "unreadable");
}

// Root is not told to become root.
TEST_F(ImagesTest, RootThatMayNotReadIsToldWhereElseToTry) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be refused as root";
  const Ended ended = sluice({"show", plain()}, nullptr, {}, [] {
    refuse_system_call(SYS_openat, EACCES, {{.argument = 2, .bits = O_NOFOLLOW}});
  });
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_THAT(ended.err,
              AllOf(HasSubstr("root may not read this here"), Not(HasSubstr("try again as root"))));
}

TEST_F(ImagesTest, DamageIsCalledDamage) {
  const std::string directory = damaged_copy();
  std::filesystem::resize_file(directory + "/" + names(directory, std::string(kKfdPrefix)).at(0), 20);
  for (const char* command : {"show", "map"}) {
    const Ended ended = sluice({command, directory});
    EXPECT_EQ(ended.status, kFailed);
    EXPECT_THAT(ended.err, HasSubstr("use another checkpoint"));
    json object = object_of(sluice({command, "--json", directory}));
    EXPECT_EQ(std::string(command) == "show" ? object["result"] : object["cause"], "damaged");
  }
}

// What is named is not what has the images: the remedy knows what is there.
TEST_F(ImagesTest, TheRemedyFitsWhatWasNamed) {
  const lookalike::ScratchDirectory scratch;
  const std::string image = plain() + "/" + names(plain(), std::string(kKfdPrefix)).at(0);
  const std::string text = (scratch.path() / "text").string();
  std::ofstream(text) << "nothing";
  const std::string cpu_only = (scratch.path() / "cpu-only").string();
  std::filesystem::create_directory(cpu_only);
  std::ofstream(cpu_only + "/inventory.img") << "of CRIU";
  const std::string fifo = (scratch.path() / "fifo").string();
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const std::string loop = (scratch.path() / "loop").string();
  std::filesystem::create_symlink("loop", loop);
  struct Case {
    std::string path;
    int status;
    std::string says;
  };
  for (const Case& one : {Case{image, kRefused, "name the directory that has all of them: " + plain()},
                          Case{text, kRefused, "[SL-T42]"}, Case{cpu_only, kRefused, "used no GPU"},
                          Case{fifo, kRefused, "an archive is read twice"},
                          Case{"/does/not/exist", kFailed, "No such file or directory"},
                          Case{image + "/more", kFailed, "a part of this path is a file"},
                          Case{loop, kFailed, "leads back to itself"}}) {
    for (const char* command : {"show", "verify", "map"}) {
      const Ended ended = sluice({command, one.path});
      EXPECT_EQ(ended.status, one.status) << command << ' ' << one.path;
      EXPECT_THAT(ended.err, HasSubstr(one.says)) << command << ' ' << one.path;
      EXPECT_THAT(ended.err, accuses_nobody());
      EXPECT_EQ(ended.out, "");
    }
  }
}

TEST_F(ImagesTest, ImagesOneBelowWhatIsNamedAreFound) {
  const lookalike::ScratchDirectory scratch;
  std::filesystem::create_directories(scratch.path() / "artifacts");
  std::filesystem::copy(plain(), scratch.path() / "checkpoint");
  const std::string above = scratch.path().string();
  EXPECT_THAT(sluice({"verify", above}).out, HasSubstr("verified: all"));
  EXPECT_EQ(sluice({"map", above}, &images_->machine()).status, kDone);
  EXPECT_THAT(sluice({"diff", above, plain()}).out, HasSubstr("it saves 100 %"));
  EXPECT_EQ(object_of(sluice({"show", "--json", above}))["images"], above + "/checkpoint");

  // Which of two is meant, only the user knows. No link leads out of what he has named.
  std::filesystem::copy(plain(), scratch.path() / "second");
  const Ended ended = sluice({"show", above});
  EXPECT_EQ(ended.status, kRefused);
  EXPECT_THAT(ended.err, HasSubstr(": checkpoint, second [SL-T25]"));
  const lookalike::ScratchDirectory linked;
  std::filesystem::create_directory_symlink(plain(), linked.path() / "checkpoint");
  EXPECT_EQ(sluice({"show", linked.path().string()}).status, kRefused);

  // A folder that nobody may look into is not a folder without images.
  const lookalike::ScratchDirectory closed;
  std::filesystem::create_directory(closed.path() / "checkpoint");
  ASSERT_EQ(::chmod((closed.path() / "checkpoint").c_str(), 0), 0);
  const Ended secret = sluice({"show", closed.path().string()}, nullptr, {}, as_anybody);
  EXPECT_EQ(secret.status, kFailed);
  EXPECT_THAT(secret.err, AllOf(HasSubstr("open checkpoint: Permission denied"), HasSubstr(kAsRoot)));
}

}  // namespace
}  // namespace sluice::cli_test
