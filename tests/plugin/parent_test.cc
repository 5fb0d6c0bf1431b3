// SPDX-License-Identifier: MIT
// Dumps with a parent, by the shipped plugin: they write what has changed, and come back intact. A parent
// that nobody has asked for, or that is not what it was, is not used, or is named.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "parent_scene.h"
#include "pipeline/checksum/units.h"
#include "pipeline/layout.h"
#include "support/equal_sums.h"
#include "support/memory_copy.h"

namespace sluice::plugin_test {
namespace {

using lookalike::probe_plugin_directory;

INSTANTIATE_TEST_SUITE_P(Versions, ParentTest, ::testing::ValuesIn(kVersionsOfLongSuites), name_of_version);

TEST_P(ParentTest, AChainOfThreeWritesWhatHasChangedAndComesBackIntact) {
  start();
  ASSERT_NO_FATAL_FAILURE(dump_as("first"));
  ASSERT_NO_FATAL_FAILURE(restore_from("first"));
  expect_whole();
  ASSERT_NO_FATAL_FAILURE(dump_on("first", "second"));
  EXPECT_TRUE(is_delta("second")) << dump_log_;
  EXPECT_LT(bytes_on_disk("second"), bytes_on_disk("first") / 2) << dump_log_;
  ASSERT_NO_FATAL_FAILURE(restore_from("second"));
  expect_whole();
  ASSERT_NO_FATAL_FAILURE(dump_on("second", "third"));
  EXPECT_TRUE(is_delta("third")) << dump_log_;
  ASSERT_NO_FATAL_FAILURE(restore_from("third"));
  expect_whole();
}

// A job whose data somebody else has chosen: XXH3 without a secret gives both contents one sum.
TEST_P(ParentTest, ContentsMadeToHaveTheParentsSumAreWritten) {
  start({"--no-queues", "--gem-handles", "1", "--gem-bytes", "1M", "--svm-context"});
  const auto text = [](const test::Bytes& bytes) {
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  const auto made = test::contents_with_one_sum(kSumUnitBytes);
  const std::string one = text(made.first), other = text(made.second);
  const auto dump_running = [this](const std::string& name, const Strings& more) {
    Strings arguments = {"--leave-running"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    ASSERT_EQ(scene_.dump(version(), arguments), 0) << scene_.log();
    fs::rename(scene_.images(), place(name));
  };
  ASSERT_NO_FATAL_FAILURE(dump_running("before", {}));
  // Of a render file each BO has its own file, and so units at known places.
  const std::string pages = *images_in(place("before"), "amdgpu-drm-pages-").begin();
  const std::string file = read_file(place("before") / pages);
  std::size_t at = kHeaderBytes;
  while (at < kMiB - kSumUnitBytes && !replace_in_gpu_memory(file.substr(at, kSumUnitBytes), one))
    at += kSumUnitBytes;
  ASSERT_LT(at, kMiB - kSumUnitBytes) << "no unit is in one place";
  ASSERT_NO_FATAL_FAILURE(dump_running("first", {}));
  const auto has_at = [&](const std::string& name, const std::string& of, const std::string& unit) {
    return read_file(place(name) / of).compare(at, unit.size(), unit) == 0;
  };
  ASSERT_TRUE(has_at("first", pages, one));
  ASSERT_TRUE(replace_in_gpu_memory(one, other));
  ASSERT_NO_FATAL_FAILURE(dump_running("second", {"--prev-images-dir", "../first"}));
  const std::string left = "amdgpu-delta-drm-" + pages.substr(sizeof("amdgpu-drm-pages-") - 1);
  EXPECT_TRUE(has_at("second", left, other)) << "old memory was kept";
}

// With a stand-in for its versions: contents are opened at once, or so late that the host ignores the error.
// It makes no memory, so it cannot map any.
class UpstreamsPluginTest : public ParentTest {
 protected:
  // Whether the host gets as far as memory.
  bool opens_files_of(const std::string& name, const std::string& contents_are_opened) {
    Scene other(small_machine(), probe_plugin_directory(), place(name));
    other.variables["PROBE_UPSTREAM"] = contents_are_opened;
    (void)other.restore(version());
    return other.log().find("step restore_ext_file") != std::string::npos;
  }
  void make_chain(const Strings& job) {
    start(job);
    ASSERT_NO_FATAL_FAILURE(dump_as("first"));
    ASSERT_NO_FATAL_FAILURE(restore_from("first"));
    ASSERT_NO_FATAL_FAILURE(dump_on("first", "second"));
    ASSERT_TRUE(is_delta("second")) << dump_log_;
  }
};

INSTANTIATE_TEST_SUITE_P(Versions, UpstreamsPluginTest, ::testing::ValuesIn(kVersionsOfLongSuites),
                         name_of_version);

TEST_P(UpstreamsPluginTest, RefusesAChainBeforeThereIsAnything) {
  ASSERT_NO_FATAL_FAILURE(make_chain({}));
  for (const char* const opens : {"early", "late"}) {
    EXPECT_TRUE(opens_files_of("first", opens)) << opens;
    EXPECT_FALSE(opens_files_of("second", opens)) << opens;
  }
  // As version 0.2 named them: the process gets its memory, and later an error that the host ignores.
  for (const std::string kind : {"kfd-", "renderD-"}) {
    for (const std::string& name : images_in(place("second"), "amdgpu-delta-" + kind))
      fs::rename(place("second") / name, place("second") / ("amdgpu-" + name.substr(name.find(kind))));
  }
  EXPECT_FALSE(opens_files_of("second", "early"));
  EXPECT_TRUE(opens_files_of("second", "late"));
  // Ours still reads such a chain.
  ASSERT_NO_FATAL_FAILURE(restore_from("second"));
  expect_whole();
}

TEST_P(UpstreamsPluginTest, RefusesAChainOfRenderFilesAlone) {
  ASSERT_NO_FATAL_FAILURE(make_chain({"--render-only", "--gem-handles", "1,3", "--gem-bytes", "1M"}));
  EXPECT_TRUE(images_in(place("second"), "amdgpu-renderD-").empty());
  for (const char* const opens : {"early", "late"}) EXPECT_FALSE(opens_files_of("second", opens)) << opens;
}

TEST_P(ParentTest, AnImageUnderBothOfItsNamesIsRefusedAndADumpRemovesBoth) {
  start();
  ASSERT_NO_FATAL_FAILURE(dump_as("first"));
  ASSERT_NO_FATAL_FAILURE(restore_from("first"));
  ASSERT_NO_FATAL_FAILURE(dump_on("first", "second"));
  const std::string name = *images_in(place("first"), "amdgpu-kfd-").begin();
  fs::copy_file(place("first") / name, place("second") / name);
  ASSERT_NO_FATAL_FAILURE(expect_refused_at_once("second", "[SL-I95]"));
  ASSERT_NO_FATAL_FAILURE(restore_from("first"));
  fs::rename(place("second"), scene_.images());
  fs::remove(scene_.images() / "parent");
  ASSERT_NO_FATAL_FAILURE(dump_as("third"));
  EXPECT_TRUE(images_in(place("third"), "amdgpu-delta-").empty());
  ASSERT_NO_FATAL_FAILURE(restore_from("third"));
  expect_whole();
}

TEST_P(ParentTest, AMissingMemberIsNamedAndAnExchangedOneIsRefused) {
  start();
  ASSERT_NO_FATAL_FAILURE(dump_as("first"));
  ASSERT_NO_FATAL_FAILURE(restore_from("first"));
  ASSERT_NO_FATAL_FAILURE(dump_on("first", "second"));
  fs::rename(place("first"), place("elsewhere"));
  ASSERT_NO_FATAL_FAILURE(expect_refused_at_once("second", "open the directory that is the parent"));
  fs::rename(place("elsewhere"), place("first"));
  ASSERT_NO_FATAL_FAILURE(restore_from("second"));
  ASSERT_NO_FATAL_FAILURE(dump_as("first"));
  ASSERT_NO_FATAL_FAILURE(expect_refused_at_once("second", "[SL-I40]"));
}

TEST_P(ParentTest, AChangedByteOfTheParentReachesNoGpu) {
  start();
  ASSERT_NO_FATAL_FAILURE(dump_as("first"));
  ASSERT_NO_FATAL_FAILURE(restore_from("first"));
  ASSERT_NO_FATAL_FAILURE(dump_on("first", "second"));
  for (const std::string& name : images_in(place("first"), "amdgpu-pages-")) {
    if (fs::file_size(place("first") / name) >= 3 * kSumBlockBytes) overwrite_block(place("first") / name);
  }
  ASSERT_NO_FATAL_FAILURE(expect_refused("second", "is corrupt"));
  EXPECT_FALSE(gpu_memory_has(kFoundNowhereElse));
}

TEST_P(ParentTest, ALinkThatNobodyHasAskedForIsNotFollowed) {
  start();
  ASSERT_NO_FATAL_FAILURE(dump_as("first"));
  ASSERT_NO_FATAL_FAILURE(restore_from("first"));
  fs::create_directory(scene_.images());
  fs::create_directory_symlink("../first", scene_.images() / "parent");
  // Older than the host's process by more than a tick.
  timespec now{};
  timespec began{};
  (void)::clock_gettime(CLOCK_MONOTONIC, &began);
  do {
    (void)::sched_yield();
    (void)::clock_gettime(CLOCK_MONOTONIC, &now);
  } while ((now.tv_sec - began.tv_sec) * 1'000'000'000L + (now.tv_nsec - began.tv_nsec) < 50'000'000L);
  ASSERT_NO_FATAL_FAILURE(dump_as("second"));
  expect_full("second", "[SL-D09]");
  fs::remove(place("second") / "parent");
  ASSERT_NO_FATAL_FAILURE(restore_from("second"));
  expect_whole();
}

TEST_P(ParentTest, WhatCannotBeBuiltOnMakesAFullDumpAndIsSaid) {
  start();
  ASSERT_NO_FATAL_FAILURE(dump_as("first"));
  ASSERT_NO_FATAL_FAILURE(restore_from("first"));
  // Itself.
  ASSERT_NO_FATAL_FAILURE(dump_as("itself", {"--prev-images-dir", "../images"}));
  expect_full("itself", "the image directory itself");
  ASSERT_NO_FATAL_FAILURE(restore_from("itself"));
  // Planted: a directory into which others may write.
  ::chmod(place("first").c_str(), 0777);
  ASSERT_NO_FATAL_FAILURE(dump_on("first", "second"));
  expect_full("second", "that other users own, or may write into");
  ::chmod(place("first").c_str(), 0700);
  ASSERT_NO_FATAL_FAILURE(restore_from("second"));
  // Of no sums.
  scene_.variables["SLUICE_CHECKSUM"] = "off";
  ASSERT_NO_FATAL_FAILURE(dump_on("first", "third"));
  expect_full("third", "SLUICE_CHECKSUM=off");
  scene_.variables.erase("SLUICE_CHECKSUM");
  ASSERT_NO_FATAL_FAILURE(restore_from("third"));
  ASSERT_NO_FATAL_FAILURE(dump_on("third", "fourth"));
  expect_full("fourth", "[SL-D13]");
}

// The sidecar says where units are: without it nothing could be restored.
TEST_P(ParentTest, ComesBackWithoutVerificationToo) {
  start();
  ASSERT_NO_FATAL_FAILURE(dump_as("first"));
  ASSERT_NO_FATAL_FAILURE(restore_from("first"));
  ASSERT_NO_FATAL_FAILURE(dump_on("first", "second"));
  scene_.variables["SLUICE_CHECKSUM"] = "off";
  ASSERT_NO_FATAL_FAILURE(restore_from("second"));
  expect_whole();
}

// A dump that fails leaves nothing that looks complete, and its parent as it was.
TEST_P(ParentTest, AFailedDumpLeavesTheParentIntact) {
  start();
  ASSERT_NO_FATAL_FAILURE(dump_as("first"));
  ASSERT_NO_FATAL_FAILURE(restore_from("first"));
  EXPECT_NE(scene_.dump(version(), {"--prev-images-dir", "../first", "--fail-after", "cpu_pages"}), 0);
  expect_running();
  EXPECT_TRUE(images("amdgpu-").empty());
  fs::remove_all(scene_.images());
  ASSERT_NO_FATAL_FAILURE(dump_on("first", "second"));
  EXPECT_TRUE(is_delta("second"));
  ASSERT_NO_FATAL_FAILURE(restore_from("first"));
  expect_whole();
}

TEST_P(ParentTest, AnotherKeyMakesAFullDump) {
  const fs::path key = place("key");
  std::ofstream(key) << std::string(64, '7') << '\n';
  ASSERT_EQ(::chmod(key.c_str(), 0600), 0);
  start();
  ASSERT_NO_FATAL_FAILURE(dump_as("first"));
  ASSERT_NO_FATAL_FAILURE(restore_from("first"));
  scene_.variables["SLUICE_KEY_FILE"] = key.string();
  ASSERT_NO_FATAL_FAILURE(dump_on("first", "second"));
  expect_full("second", "[SL-D13]");
  ASSERT_NO_FATAL_FAILURE(restore_from("second"));
  ASSERT_NO_FATAL_FAILURE(dump_on("second", "third"));
  EXPECT_TRUE(is_delta("third")) << dump_log_;
  ASSERT_NO_FATAL_FAILURE(restore_from("third"));
  expect_whole();
}

}  // namespace
}  // namespace sluice::plugin_test
