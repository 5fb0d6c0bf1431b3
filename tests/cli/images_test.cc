// SPDX-License-Identifier: MIT
// The commands that look at images: show, verify, map, on images that the plugin made, whole and damaged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <set>

#include "made_images.h"
#include "support/flip_byte.h"
#include "sysfs_tree.h"

namespace sluice::cli_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// "plain": one process with a KFD, dumped and restored once. "shared": its memory is in render files, too.
class ImagesTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    images_ = new MadeImages;
    ASSERT_EQ(images_->dump("plain", {}), "");
    ASSERT_EQ(images_->restore("plain"), "");
    ASSERT_EQ(images_->dump("shared", {"--svm-context", "--share", "kfd", "--gem-handles", "1,3"}), "");
  }
  static void TearDownTestSuite() { delete images_; }

  // Each test has a copy of its own to damage.
  std::string damaged_copy() const {
    return images_->copy("plain", ::testing::UnitTest::GetInstance()->current_test_info()->name()).string();
  }
  static std::string plain() { return images_->directory("plain").string(); }
  static std::string shared() { return images_->directory("shared").string(); }

  static std::vector<std::string> names(const std::string& directory, const std::string& prefix) {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      if (const std::string name = entry.path().filename().string(); name.starts_with(prefix))
        found.insert(name);
    }
    return {found.begin(), found.end()};
  }
  static std::uint64_t total_size(const std::string& directory, const std::string& prefix) {
    std::uint64_t sum = 0;
    for (const std::string& name : names(directory, prefix))
      sum += std::filesystem::file_size(std::filesystem::path(directory) / name);
    return sum;
  }

  static MadeImages* images_;
};
MadeImages* ImagesTest::images_ = nullptr;

TEST_F(ImagesTest, ShowTellsWhatIsThere) {
  const Ended ended = sluice({"show", plain()});
  EXPECT_EQ(ended.status, kDone) << ended.err;
  EXPECT_EQ(ended.err, "");
  for (const char* part : {"1 process, 2 GPUs", "with checksums", "made by sluice", "gfx90a", "renderD128",
                           "amdgpu-kfd-", "amdgpu-pages-", "XGMI"})
    EXPECT_THAT(ended.out, HasSubstr(part));
  EXPECT_THAT(ended.out, Not(HasSubstr("\x1b")));  // no colour in a pipe
}

TEST_F(ImagesTest, ShowAsJsonAddsUp) {
  const Ended ended = sluice({"show", "--json", "--bos", plain()});
  ASSERT_EQ(ended.status, kDone);
  const json shown = object_of(ended);
  EXPECT_EQ(shown["gpus"].size(), 2U);
  EXPECT_EQ(shown["processes"].size(), 1U);
  EXPECT_EQ(shown["processes"][0]["bo_record_bytes"], 272);
  EXPECT_EQ(shown["bytes"], total_size(plain(), "amdgpu-pages-"));
  EXPECT_GT(shown["zero_bytes"], 0);
  EXPECT_LT(shown["zero_bytes"], shown["bytes"]);
  EXPECT_EQ(shown["faults"], json::array());
  std::uint64_t contents = 0;
  std::uint64_t bos = 0;
  for (const json& bo : shown["bos"]) {
    ++bos;
    if (bo["kind"] == "VRAM" || bo["kind"] == "GTT") contents += bo["bytes"].get<std::uint64_t>();
  }
  EXPECT_EQ(contents + 8 * shown["files"].size(), shown["bytes"]);
  std::uint64_t of_kinds = 0;
  for (const json& kind : shown["memory"]) of_kinds += kind["bos"].get<std::uint64_t>();
  EXPECT_EQ(bos, of_kinds);
}

TEST_F(ImagesTest, ShowTellsWhoSharesMemory) {
  const json shown = object_of(sluice({"show", "--json", shared()}));
  ASSERT_GE(shown["shared"].size(), 1U);
  EXPECT_THAT(shown["shared"][0]["made_by"].get<std::string>(), HasSubstr("process"));
  EXPECT_GE(shown["shared"][0]["also"].size(), 1U);
  EXPECT_THAT(sluice({"show", shared()}).out, HasSubstr("Shared memory"));
}

// The KFD has the memory twice: once as its own, once imported.
TEST_F(ImagesTest, ShowTellsWhatAKfdImports) {
  ASSERT_EQ(images_->dump("imported", {"--svm-context", "--share", "kfd", "--kfd-import"}), "");
  const json shown = object_of(sluice({"show", "--json", "--bos", images_->directory("imported").string()}));
  std::vector<std::string> imported;  // how they are called
  for (const json& bo : shown["bos"]) {
    if (bo["imported"].get<bool>() && bo["image"].get<std::string>().starts_with("amdgpu-kfd-"))
      imported.push_back(" BO " + std::to_string(bo["bo"].get<int>()));
  }
  ASSERT_EQ(imported.size(), 1U) << shown["bos"];
  ASSERT_EQ(shown["shared"].size(), 1U);
  EXPECT_THAT(shown["shared"][0]["made_by"].get<std::string>(),
              AllOf(HasSubstr("process "), Not(EndsWith(imported[0]))));
  EXPECT_THAT(shown["shared"][0]["also"].get<std::vector<std::string>>(), Contains(EndsWith(imported[0])));
}

TEST_F(ImagesTest, ShowHasTheStatisticsOfDumpAndRestore) {
  const Ended ended = sluice({"show", "--stats", plain()});
  EXPECT_EQ(ended.status, kDone);
  EXPECT_THAT(ended.out, HasSubstr("dump-"));
  EXPECT_THAT(ended.out, HasSubstr("restore-"));
  EXPECT_THAT(ended.out, HasSubstr("verified"));
  const json shown = object_of(sluice({"show", "--stats", "--json", plain()}));
  EXPECT_EQ(shown["stats"].size(), 2U);
  EXPECT_EQ(shown["stats"][0]["statistics"]["gpus"].size(), 2U);
}

TEST_F(ImagesTest, ShowNamesDamagedStatistics) {
  const std::string directory = damaged_copy();
  std::ofstream(directory + "/sluice-stats-dump-1.json") << "{\"gpus\": 7";
  const Ended ended = sluice({"show", "--stats", directory});
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_THAT(ended.err, HasSubstr("sluice-stats-dump-1.json cannot be read"));
}

// Root looks at what somebody else has written.
TEST_F(ImagesTest, HostileStatisticsNeitherCommandTheTerminalNorCrash) {
  const std::string directory = damaged_copy();
  std::ofstream(directory + "/sluice-stats-dump-1.json")
      << R"({"gpus": [{"slowest_stage": "\u001b[2J\nmade up", "bytes": 1e300}], "deep": )"
      << std::string(1'000'000, '[') << std::string(1'000'000, ']') << "}";
  const Ended ended = sluice({"show", "--stats", directory});
  EXPECT_EQ(ended.status, kDone) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("?[2J?made up"));
  EXPECT_THAT(ended.out, HasSubstr(" 0 B "));
  EXPECT_EQ(sluice({"show", "--stats", "--json", directory}).status, kDone);
}

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

TEST_F(ImagesTest, VerifyFindsWholeImagesWhole) {
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
  EXPECT_THAT(text.out, HasSubstr("bad block: " + files[0] + " [0, 1048576): GPU 0x"));
  EXPECT_THAT(text.out, HasSubstr("bad block: " + files[0] + " [2097152, 3145728): GPU 0x"));
  EXPECT_THAT(text.out, HasSubstr("bad block: " + files[1] + " [3145728, 4194304): GPU 0x"));
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

TEST_F(ImagesTest, NoProgressWhereNobodyWatchesIt) {
  EXPECT_EQ(sluice({"verify", plain()}, nullptr, {"TERM=xterm"}).err, "");
  EXPECT_EQ(run_on_terminal({SLUICE, "verify", plain()}, {}, {.kind = "dumb"}).err, "");
  EXPECT_EQ(run_on_terminal({SLUICE, "verify", "--json", plain()}, {}, {}).err, "");
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
  EXPECT_EQ(object["problems"][1]["kind"], "bad-file");
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
  EXPECT_THAT(ended.out, HasSubstr(files[1] + " has 100000 bytes"));
  const Ended shown = sluice({"show", directory});
  EXPECT_EQ(shown.status, kFailed);
  EXPECT_THAT(shown.err, HasSubstr(files[1] + " has 100000 bytes"));
}

TEST_F(ImagesTest, WithoutSumsNothingIsCalledVerified) {
  const std::string directory = damaged_copy();
  for (const std::string& name : names(directory, "amdgpu-sums-"))
    std::filesystem::remove(directory + "/" + name);
  const Ended ended = sluice({"verify", directory});
  EXPECT_EQ(ended.status, kRefused);
  EXPECT_THAT(ended.out, HasSubstr("NOT VERIFIED"));
  EXPECT_EQ(object_of(sluice({"verify", "--json", directory}))["result"], "unverifiable");
}

TEST_F(ImagesTest, ADamagedSidecarIsTold) {
  const std::string directory = damaged_copy();
  std::filesystem::resize_file(directory + "/" + names(directory, "amdgpu-sums-")[0], 50);
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

TEST_F(ImagesTest, MapFindsTheMachineItself) {
  const Ended ended = sluice({"map", plain()}, &images_->machine());
  EXPECT_EQ(ended.status, kDone) << ended.out << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("every GPU is the one it was"));
  const json object = object_of(sluice({"map", "--json", plain()}, &images_->machine()));
  EXPECT_EQ(object["result"], "fits");
  EXPECT_EQ(object["mappings"][0]["gpus"].size(), 2U);
  EXPECT_EQ(object["mappings"][0]["identity"], true);
}

TEST_F(ImagesTest, MapNamesThePropertyAndTheSwitch) {
  const host_test::ScratchDirectory sysfs;
  vamdgpu::MachineOptions other = small_machine();
  other.vram_bytes = 16 * kMiB;
  vamdgpu::write_topology(sysfs.path(), vamdgpu::describe(other).tree.topology);
  const Strings command = {"map", plain(), "--sysfs", sysfs.path().string()};
  const Ended ended = sluice(command);
  EXPECT_EQ(ended.status, kRefused) << ended.out << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("vram_size 25165824 -> 16777216 (KFD_VRAM_SIZE_CHECK=0 allows this)"));
  Strings as_json = command;
  as_json.emplace_back("--json");
  const json object = object_of(sluice(as_json));
  EXPECT_EQ(object["result"], "refused");
  EXPECT_EQ(object["mappings"][0]["candidates"].size(), 4U);
  EXPECT_EQ(object["mappings"][0]["candidates"][0]["mismatches"][0]["switch"], "KFD_VRAM_SIZE_CHECK");
  EXPECT_EQ(sluice(command, nullptr, {"KFD_VRAM_SIZE_CHECK=0"}).status, kDone);
}

TEST_F(ImagesTest, MapWithoutATopologySaysWhatToDo) {
  const host_test::ScratchDirectory nothing;
  const Ended ended = sluice({"map", plain(), "--sysfs", nothing.path().string()});
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_THAT(ended.err, HasSubstr("cp -rL"));
}

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
  for (const std::string& name : names(directory, "amdgpu-sums-"))
    std::filesystem::remove(directory + "/" + name);
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

TEST_F(ImagesTest, DiffOfDamagedImagesFails) {
  const std::string directory = damaged_copy();
  for (const std::string& name : names(directory, "amdgpu-sums-"))
    std::filesystem::remove(directory + "/" + name);
  std::filesystem::resize_file(directory + "/" + names(directory, "amdgpu-pages-")[0], 100);
  const Ended ended = sluice({"diff", plain(), directory});
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_THAT(ended.err, HasSubstr("has 100 bytes"));
  EXPECT_EQ(sluice({"diff", plain()}).status, kUsage);
}

TEST_F(ImagesTest, DirectoriesWithoutImagesAreRefused) {
  const host_test::ScratchDirectory empty;
  for (const char* command : {"show", "verify", "map"}) {
    const Ended ended = sluice({command, empty.path().string()});
    EXPECT_EQ(ended.status, kRefused) << command;
    EXPECT_THAT(ended.err, HasSubstr("has no images of GPU processes")) << command;
    EXPECT_EQ(object_of(sluice({command, "--json", empty.path().string()}))["result"], "refused");
    EXPECT_EQ(sluice({command, "/does/not/exist"}).status, kFailed) << command;
  }
}

}  // namespace
}  // namespace sluice::cli_test
