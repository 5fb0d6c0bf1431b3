// SPDX-License-Identifier: MIT
// `sluice verify`: intact images verify, and each damage is named, with its place.
#include "images_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "cli/text.h"
#include "support/flip_byte.h"
#include "support/upstream_images.h"

namespace sluice::cli_test {
namespace {

TEST_F(ImagesTest, VerifyFindsIntactImagesIntact) {
  for (const std::string& directory : {plain(), shared()}) {
    const Ended ended = sluice({"verify", directory});
    EXPECT_EQ(ended.status, kDone) << ended.out << ended.err;
    EXPECT_THAT(ended.out, HasSubstr("verified: all"));
    const json object = object_of(sluice({"verify", "--json", directory}));
    EXPECT_EQ(object["result"], "verified");
    EXPECT_EQ(object["bytes"],
              total_size(directory, "amdgpu-pages-") + total_size(directory, "amdgpu-drm-pages-"));
    EXPECT_EQ(object["bad_blocks"], 0);
  }
}

// Several bad blocks in several files: all are told, with their places.
TEST_F(ImagesTest, VerifyNamesEveryBadBlockAndGoesOn) {
  const std::string directory = damaged_copy();
  const auto files = names(directory, "amdgpu-pages-");
  ASSERT_EQ(files.size(), 2U);
  test::flip_byte(directory + "/" + files[0], 3);
  test::flip_byte(directory + "/" + files[0], 2 * kMiB + 17);
  test::flip_byte(directory + "/" + files[1], 3 * kMiB);
  const Ended text = sluice({"verify", directory});
  EXPECT_EQ(text.status, kFailed);
  EXPECT_THAT(text.out, HasSubstr("bad block: " + files[0] + " [0, 8): GPU 0x"));
  EXPECT_THAT(text.out, HasSubstr("bad block: " + files[0] + " [2097152, "));
  EXPECT_THAT(text.out, HasSubstr("bad block: " + files[1] + " [3145728, "));
  EXPECT_THAT(text.out, HasSubstr("3 bad blocks"));
  const Ended ended = sluice({"verify", "--json", directory});
  EXPECT_EQ(ended.status, kFailed);
  const json object = object_of(ended);
  EXPECT_EQ(object["result"], "damaged");
  EXPECT_EQ(object["bad_blocks"], 3);
  ASSERT_EQ(object["problems"].size(), 3U);
  EXPECT_EQ(object["problems"][1]["kind"], "bad-block");
  EXPECT_EQ(object["problems"][1]["file"], files[0]);
  EXPECT_EQ(object["problems"][1]["file_offset"], 2 * kMiB);
  EXPECT_TRUE(object["problems"][1]["bo"].is_number());
}

// Where there are more processors than files are read at once, the others hash.
TEST_F(ImagesTest, VerifyFindsTheSameWithManyProcessors) {
  const std::vector<std::string> many = {"VAMDGPU_CPUS=16"};
  const Ended whole = sluice({"verify", plain()}, &images_->machine(), many);
  EXPECT_EQ(whole.status, kDone) << whole.out << whole.err;
  const std::string directory = damaged_copy();
  const auto files = names(directory, "amdgpu-pages-");
  test::flip_byte(directory + "/" + files.at(1), 3 * kMiB);
  const Ended damaged = sluice({"verify", directory}, &images_->machine(), many);
  EXPECT_EQ(damaged.status, kFailed);
  EXPECT_THAT(damaged.out,
              AllOf(HasSubstr("bad block: " + files[1] + " [3145728, "), HasSubstr("1 bad block")));
}

// A key in a file that is its owner's alone.
std::string make_key(const std::filesystem::path& path, char digit) {
  std::ofstream(path) << std::string(64, digit) << '\n';
  std::filesystem::permissions(path, std::filesystem::perms::owner_read);
  return path.string();
}

TEST_F(ImagesTest, VerifyWithTheKeySaysWhoMadeThem) {
  const lookalike::ScratchDirectory keys;
  const std::string mine = make_key(keys.path() / "mine", '7');
  const std::string others = make_key(keys.path() / "others", '9');
  ASSERT_EQ(images_->dump("keyed", {}, {"SLUICE_KEY_FILE=" + mine}), "");
  const std::string directory = images_->directory("keyed").string();
  const auto verify = [&](const std::string& key) {
    return sluice({"verify", directory}, nullptr, {"SLUICE_KEY_FILE=" + key});
  };
  const Ended whole = verify(mine);
  EXPECT_EQ(whole.status, kDone) << whole.out << whole.err;
  EXPECT_THAT(whole.out, HasSubstr("blocks are as they were written, with the key\n"));
  const Ended foreign = verify(others);
  EXPECT_EQ(foreign.status, kFailed) << foreign.out;
  EXPECT_THAT(foreign.out + foreign.err, HasSubstr("[SL-I09]"));
  const Ended without = verify("none");
  EXPECT_EQ(without.status, kFailed) << without.out;
  EXPECT_THAT(without.out + without.err, HasSubstr("[SL-I06]"));
}

// Whole as they are: nothing says who made them, and nothing that they are damaged.
TEST_F(ImagesTest, WhatWasMadeWithoutTheKeyIsNotVerifiedAndNotDamaged) {
  const lookalike::ScratchDirectory keys;
  const Strings setting = {"SLUICE_KEY_FILE=" + make_key(keys.path() / "mine", '7')};
  const std::string upstreams = images_->copy("plain", "upstreams").string();
  ASSERT_TRUE(test::make_upstreams(upstreams, test::UpstreamForm::Released).ok());
  for (const std::string& directory : {plain(), shared(), upstreams}) {
    const Ended ended = sluice({"verify", directory}, nullptr, setting);
    EXPECT_EQ(ended.status, kRefused) << ended.out;
    EXPECT_THAT(ended.out, AllOf(HasSubstr("NOT VERIFIED: "), HasSubstr("[SL-I07]"),
                                 Not(HasSubstr("DAMAGED")), Not(HasSubstr("another checkpoint"))));
    const json object = object_of(sluice({"verify", "--json", directory}, nullptr, setting));
    EXPECT_EQ(object["result"], "unverifiable");
    EXPECT_THAT(object["remedy"].get<std::string>(), HasSubstr("SLUICE_KEY_FILE=none"));
    for (const json& problem : object["problems"]) EXPECT_EQ(problem["kind"], "unsigned") << problem;
    for (const char* command : {"show", "map", "flatten"}) {
      const Ended other = sluice({command, "--json", directory}, &images_->machine(), setting);
      EXPECT_EQ(other.status, kFailed) << command;
      EXPECT_EQ(object_of(other)["cause"], "unsigned") << other.out;
      EXPECT_THAT(object_of(other)["remedy"].get<std::string>(), HasSubstr("SLUICE_KEY_FILE=none"));
    }
  }
}

TEST_F(ImagesTest, DamageIsDamageWithAKey) {
  const lookalike::ScratchDirectory keys;
  const Strings setting = {"SLUICE_KEY_FILE=" + make_key(keys.path() / "mine", '7')};
  const auto result = [&](const std::string& directory) {
    return object_of(sluice({"verify", "--json", directory}, nullptr, setting))["result"];
  };
  // Without the key, and changed.
  const std::string unkeyed = damaged_copy();
  const std::string image = unkeyed + "/" + names(unkeyed, std::string(kKfdPrefix))[0];
  test::flip_byte(image, std::filesystem::file_size(image) / 2);
  EXPECT_EQ(result(unkeyed), "damaged");
  // One image, or the sums, made without the key, among others that were made with it.
  ASSERT_EQ(images_->dump("signed", {"--svm-context", "--share", "kfd"}, setting), "");
  for (const std::string& prefix : {std::string(kRenderPrefix), std::string("amdgpu-sums-")}) {
    const std::string mixed = images_->copy("signed", "mixed-" + prefix).string();
    EXPECT_EQ(result(mixed), "verified");
    const std::string name = mixed + "/" + names(mixed, prefix)[0];
    test::flip_byte(name, std::filesystem::file_size(name) - 19);  // where the digest says what it is
    EXPECT_EQ(result(mixed), "damaged") << prefix;
  }
}

TEST_F(ImagesTest, NothingIsVerifiedWithAKeyThatCannotBeHad) {
  const lookalike::ScratchDirectory keys;
  const std::string key = make_key(keys.path() / "key", '7');
  std::filesystem::permissions(key, std::filesystem::perms::others_read, std::filesystem::perm_options::add);
  const Ended open = sluice({"verify", plain()}, nullptr, {"SLUICE_KEY_FILE=" + key});
  EXPECT_EQ(open.status, kFailed) << open.out;
  EXPECT_THAT(open.err, HasSubstr("SLUICE_KEY_FILE: "));
  EXPECT_EQ(open.out, "");
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give up what lets it read everything";
  std::filesystem::permissions(key, std::filesystem::perms::none);
  const Ended secret = sluice({"verify", plain()}, nullptr, {"SLUICE_KEY_FILE=" + key}, [] {
    give_up_capabilities({CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH});
  });
  EXPECT_EQ(secret.status, kFailed) << secret.out;
  EXPECT_THAT(secret.err, HasSubstr("only the key's owner can read it: try again as root"));
}

// What stands on a terminal's line after all this, and how wide it was at most.
struct Screen {
  std::string line;
  std::size_t widest = 0;
};
Screen screen_after(std::string_view text) {
  constexpr std::string_view kErase = "\x1b[K";
  Screen screen;
  for (std::size_t at = 0; !text.empty(); text.remove_prefix(1)) {
    if (text.front() == '\r') {
      at = 0;
    } else if (text.starts_with(kErase)) {
      screen.line.resize(at);
      text.remove_prefix(kErase.size() - 1);
    } else {
      screen.line.resize(std::max(screen.line.size(), at + 1));
      screen.line[at++] = text.front();
      screen.widest = std::max(screen.widest, at);
    }
  }
  return screen;
}

TEST_F(ImagesTest, VerifyShowsItsProgressOnATerminalAndLeavesNothingThere) {
  const Ended ended = run_on_terminal({SLUICE, "verify", plain()}, {}, {});
  EXPECT_EQ(ended.status, kDone);
  EXPECT_THAT(ended.out, AllOf(HasSubstr("verified: all"), Not(HasSubstr("\r"))));
  EXPECT_THAT(ended.err, AllOf(HasSubstr("] "), HasSubstr(" % of "), Not(HasSubstr("\n"))));
  const Screen screen = screen_after(ended.err);
  EXPECT_EQ(screen.line, "");
  EXPECT_LT(screen.widest, 80U);
}

TEST_F(ImagesTest, ProgressFitsANarrowTerminal) {
  const Ended ended = run_on_terminal({SLUICE, "verify", plain()}, {}, {.columns = 12});
  EXPECT_EQ(ended.status, kDone);
  EXPECT_THAT(ended.err, HasSubstr(" %"));
  EXPECT_LT(screen_after(ended.err).widest, 12U);
}

TEST_F(ImagesTest, ATerminalThatDoesNotTellItsWidthHas80Columns) {
  const Ended ended = run_on_terminal({SLUICE, "verify", plain()}, {}, {.columns = 0});
  EXPECT_EQ(screen_after(ended.err).line, "");
  EXPECT_GT(screen_after(ended.err).widest, 12U);
  EXPECT_LT(screen_after(ended.err).widest, 80U);
}

TEST_F(ImagesTest, NoProgressWhereNobodyWatchesIt) {
  EXPECT_EQ(sluice({"verify", plain()}, nullptr, {"TERM=xterm"}).err, "");
  for (const char* kind : {"dumb", ""})
    EXPECT_EQ(run_on_terminal({SLUICE, "verify", plain()}, {}, {.kind = kind}).err, "");
  EXPECT_EQ(run_on_terminal({SLUICE, "verify", "--json", plain()}, {}, {}).err, "");
}

// Past their first MiB files cannot be read: all of that is told, and what comes before it is looked at.
TEST_F(ImagesTest, VerifyGoesOnAfterWhatCannotBeRead) {
  const auto bad_disk = [] {
    constexpr std::uint32_t kBehindOneMiB = ~(static_cast<std::uint32_t>(kMiB) - 1);
    refuse_system_call(SYS_io_uring_setup, EPERM);
    refuse_system_call(SYS_pread64, EIO, {{.argument = 3, .bits = kBehindOneMiB}});
  };
  const Ended ended = sluice({"verify", plain()}, nullptr, {}, bad_disk);
  EXPECT_EQ(ended.status, kFailed);
  std::istringstream lines(ended.out);
  std::size_t unreadable = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("read amdgpu-pages-")) ++unreadable;
    if (line.ends_with("):")) {
      ASSERT_TRUE(std::getline(lines, line));
      EXPECT_THAT(line, HasSubstr(" Input/output error: GPU 0x"));
    }
  }
  EXPECT_GE(unreadable, 2U);
  EXPECT_THAT(ended.out, AllOf(HasSubstr("UNREADABLE: " + std::to_string(unreadable) + " files or ranges "),
                               HasSubstr("see the kernel's log (dmesg)"), Not(HasSubstr("DAMAGED")),
                               Not(HasSubstr("another checkpoint"))));
  EXPECT_THAT(ended.err, AllOf(HasSubstr("sluice verify: GPU 0x"), HasSubstr("io_uring")));

  const json object = json::parse(sluice({"verify", "--json", plain()}, nullptr, {}, bad_disk).out);
  EXPECT_EQ(object["result"], "unreadable");
  EXPECT_EQ(object["bad_blocks"], 0);
  std::set<std::string> files;
  for (const json& problem : object["problems"]) {
    EXPECT_EQ(problem["kind"], "unreadable");
    EXPECT_GT(problem["length"], 0);
    files.insert(problem["file"]);
  }
  EXPECT_EQ(files.size(), 2U);
}

TEST_F(ImagesTest, VerifySaysWhatCameThroughThePageCache) {
  const auto no_direct_io = [] {
    refuse_system_call(SYS_fcntl, EINVAL,
                       {{.argument = 1, .bits = F_SETFL}, {.argument = 2, .bits = O_DIRECT}});
  };
  const Ended ended = sluice({"verify", plain()}, nullptr, {}, no_direct_io);
  EXPECT_EQ(ended.status, kDone) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr(", partly through the page cache\n"));
  EXPECT_EQ(object_of(sluice({"verify", "--json", plain()}, nullptr, {}, no_direct_io))["direct_io"], false);
}

TEST_F(ImagesTest, VerifyWithoutThreadsFails) {
  const Ended ended = sluice({"verify", plain()}, nullptr, {"ASAN_OPTIONS=detect_leaks=0"}, [] {
    for (const int number : {SYS_clone, SYS_clone3}) refuse_system_call(number, EAGAIN);
  });
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_EQ(ended.out, "");
  EXPECT_THAT(ended.err, AllOf(StartsWith("sluice verify: "), HasSubstr("Resource temporarily unavailable")));
}

TEST_F(ImagesTest, VerifyPrintsBadBlocksInARowAsOneLine) {
  const std::string directory = damaged_copy();
  const std::string file = names(directory, "amdgpu-pages-").front();
  for (const std::uint64_t block : {32, 33, 34})
    test::flip_byte(directory + "/" + file, block * 64 * 1024 + 100);
  const Ended ended = sluice({"verify", directory});
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_THAT(ended.out, HasSubstr("3 bad blocks: " + file + " [2097"));
  EXPECT_THAT(ended.out, Not(HasSubstr("more: --json")));
  EXPECT_EQ(object_of(sluice({"verify", "--json", directory}))["problems"].size(), 3U);
}

TEST_F(ImagesTest, VerifyPrintsAHundredProblemsAndCountsTheRest) {
  ASSERT_EQ(images_->dump("many", {"--render-only", "--gem-handles", "count:60"}), "");
  const std::string directory = images_->directory("many").string();
  const auto files = names(directory, "amdgpu-drm-pages-");
  ASSERT_EQ(files.size(), 120U);
  for (const std::string& name : files) std::filesystem::remove(directory + "/" + name);
  const Ended ended = sluice({"verify", directory});
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_THAT(ended.out, HasSubstr("\n... and 20 more: --json lists up to 16384\n"));
  EXPECT_THAT(ended.out, HasSubstr("INCOMPLETE: 120 files are missing; "));
  EXPECT_EQ(std::count(ended.out.begin(), ended.out.end(), '\n'), 100 + 3);  // nothing was read
  EXPECT_EQ(object_of(sluice({"verify", "--json", directory}))["problems"].size(), 120U);
}

TEST_F(ImagesTest, VerifyClearsItsProgressBeforeAProblem) {
  const std::string directory = damaged_copy();
  test::flip_byte(directory + "/" + names(directory, "amdgpu-pages-")[0], 3);
  const Ended ended = run_on_terminal({SLUICE, "verify", directory}, {}, {});
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_EQ(screen_after(ended.err).line, "");
}

TEST_F(ImagesTest, VerifyFindsDamageInRenderFiles) {
  const std::string directory = images_->copy("shared", "shared-damaged").string();
  const auto files = names(directory, "amdgpu-drm-pages-");
  ASSERT_GE(files.size(), 2U);
  test::flip_byte(directory + "/" + files[0], 100);
  std::filesystem::remove(directory + "/" + files[1]);
  const json object = object_of(sluice({"verify", "--json", directory}));
  ASSERT_EQ(object["problems"].size(), 2U) << object;
  EXPECT_EQ(object["problems"][0]["kind"], "bad-block");
  EXPECT_EQ(object["problems"][1]["kind"], "missing");
  EXPECT_EQ(object["result"], "damaged");
  EXPECT_THAT(object["problems"][0]["of"].get<std::string>(), HasSubstr("renderD"));
}

TEST_F(ImagesTest, MissingAndCutFilesAreTold) {
  const std::string directory = damaged_copy();
  const auto files = names(directory, "amdgpu-pages-");
  std::filesystem::remove(directory + "/" + files[0]);
  std::filesystem::resize_file(directory + "/" + files[1], 100'000);
  const Ended ended = sluice({"verify", directory});
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_THAT(ended.out, HasSubstr(files[0] + ": No such file"));
  EXPECT_THAT(ended.out, AllOf(HasSubstr(files[1] + " "), HasSubstr("[SL-I04]")));
  const Ended shown = sluice({"show", directory});
  EXPECT_EQ(shown.status, kFailed);
  EXPECT_THAT(shown.err, AllOf(HasSubstr(files[1] + " "), HasSubstr("[SL-I04]")));
}

TEST_F(ImagesTest, WithoutSumsNothingIsCalledVerified) {
  const std::string directory = damaged_copy();
  remove_sums(directory);
  const Ended ended = sluice({"verify", directory});
  EXPECT_EQ(ended.status, kRefused);
  EXPECT_THAT(ended.out, HasSubstr("NOT VERIFIED"));
  EXPECT_EQ(object_of(sluice({"verify", "--json", directory}))["result"], "unverifiable");
}

TEST_F(ImagesTest, ADamagedSidecarIsTold) {
  const std::string directory = damaged_copy();
  const std::string name = names(directory, "amdgpu-sums-")[0];
  std::filesystem::resize_file(directory + "/" + name, 50);
  const Ended shown = sluice({"show", directory});
  EXPECT_EQ(shown.status, kFailed);
  EXPECT_THAT(shown.err, HasSubstr(name));
  const json object = object_of(sluice({"verify", "--json", directory}));
  EXPECT_EQ(object["result"], "damaged");
  EXPECT_EQ(object["problems"][0]["kind"], "bad-sums");
}

TEST_F(ImagesTest, DamagedMetadataIsTold) {
  const std::string directory = damaged_copy();
  const std::string name = names(directory, "amdgpu-kfd-")[0];
  std::filesystem::resize_file(directory + "/" + name, 20);
  for (const char* command : {"show", "verify", "map"}) {
    const Ended ended = sluice({command, directory});
    EXPECT_EQ(ended.status, kFailed) << command;
    EXPECT_THAT(ended.out + ended.err, HasSubstr(name)) << command;
  }
}

}  // namespace
}  // namespace sluice::cli_test
