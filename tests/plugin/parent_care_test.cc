// SPDX-License-Identifier: MIT
// A dump never builds on what is not there, never removes what its parent needs, and fails while the job
// lives when its parent has changed. What exits with success can be restored.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "future_link.h"
#include "parent_scene.h"

namespace sluice::plugin_test {
namespace {

class ParentCareTest : public ParentTest {
 protected:
  // The subject runs on.
  void dump_beside(const std::string& name, const Strings& more = {}) {
    Strings arguments = {"--leave-running"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    ASSERT_EQ(scene_.dump(version(), arguments), 0) << scene_.log();
    dump_log_ = scene_.log();
    fs::rename(scene_.images(), place(name));
  }
  void dump_beside_on(const std::string& parent, const std::string& name) {
    ASSERT_NO_FATAL_FAILURE(dump_beside(name, {"--prev-images-dir", "../" + parent}));
  }
  // The scene's directory is that one, by another name.
  void into(const std::string& name) { fs::create_directory_symlink(name, scene_.images()); }
  fs::path pages_of(const std::string& name) {
    return place(name) / *images_in(place(name), "amdgpu-pages-").begin();
  }
  // What is done to the directory "P", which is the parent's copy, while a dump on it is held at `step`.
  int dump_while(const std::string& step, const std::function<void()>& change, const Strings& more = {}) {
    fs::remove_all(place("P"));
    fs::copy(place("first"), place("P"));
    Strings arguments = {"--leave-running", "--prev-images-dir", "../P", "--hold", step};
    arguments.insert(arguments.end(), more.begin(), more.end());
    Program host = scene_.start_host(version(), "dump", arguments);
    EXPECT_EQ(host.hear_control(), step) << scene_.log();
    change();
    host.release_control();
    const int status = host.wait();
    dump_log_ = scene_.log();
    return status;
  }
};

INSTANTIATE_TEST_SUITE_P(Versions, ParentCareTest, ::testing::ValuesIn(kVersionsOfLongSuites),
                         name_of_version);

TEST_P(ParentCareTest, AParentWithIncompleteContentsIsNoParent) {
  start();
  ASSERT_NO_FATAL_FAILURE(dump_beside("first"));
  const std::pair<const char*, std::function<void(const fs::path&)>> kDamage[] = {
      {"[SL-I91]", [](const fs::path& pages) { fs::remove(pages); }},
      {"[SL-I04]", [](const fs::path& pages) { fs::resize_file(pages, kMiB); }},
      {"[SL-I30]",
       [](const fs::path& pages) {
         const fs::path elsewhere = pages.parent_path() / "elsewhere";
         fs::rename(pages, elsewhere);
         fs::create_symlink(elsewhere, pages);
       }},
      {"[SL-I90]",
       [](const fs::path& pages) {
         for (const char* metadata : {"amdgpu-kfd-", "amdgpu-renderD-"}) {
           for (const std::string& name : images_in(pages.parent_path(), metadata))
             fs::remove(pages.parent_path() / name);
         }
       }},
  };
  ASSERT_NO_FATAL_FAILURE(dump_beside("whole"));
  for (const auto& [why, damage] : kDamage) {
    SCOPED_TRACE(why);
    fs::remove_all(place("first"));
    fs::copy(place("whole"), place("first"));
    damage(pages_of("first"));
    fs::remove_all(place("second"));
    ASSERT_NO_FATAL_FAILURE(dump_beside_on("first", "second"));
    expect_full("second", why);
    EXPECT_NE(dump_log_.find("[SL-D13]"), std::string::npos) << dump_log_;
  }
  // The same further up.
  ASSERT_NO_FATAL_FAILURE(dump_beside_on("whole", "third"));
  ASSERT_TRUE(is_delta("third"));
  fs::remove(pages_of("whole"));
  ASSERT_NO_FATAL_FAILURE(dump_as("fourth", {"--prev-images-dir", "../third"}));
  expect_full("fourth", "parent/parent/amdgpu-pages-");
  ASSERT_NO_FATAL_FAILURE(restore_from("fourth"));
  expect_whole();
}

// Two directories in turn.
TEST_P(ParentCareTest, AMemberThatNeedsTheImageDirectoryIsMadeCompleteBefore) {
  start();
  ASSERT_NO_FATAL_FAILURE(dump_beside("first"));
  ASSERT_NO_FATAL_FAILURE(dump_beside_on("first", "second"));
  ASSERT_NO_FATAL_FAILURE(dump_beside_on("second", "third"));
  ASSERT_NO_FATAL_FAILURE(into("first"));
  ASSERT_EQ(scene_.dump(version(), {"--prev-images-dir", "../third"}), 0) << scene_.log();
  scene_.wait_until_subject_is_gone();
  dump_log_ = scene_.log();
  EXPECT_NE(dump_log_.find("[SL-D94]"), std::string::npos) << dump_log_;
  fs::remove(scene_.images());
  EXPECT_TRUE(is_delta("first")) << dump_log_;
  EXPECT_FALSE(is_delta("second"));
  EXPECT_TRUE(is_delta("third"));
  ASSERT_NO_FATAL_FAILURE(restore_from("first"));
  expect_whole();
  EXPECT_EQ(heard("quit"), "ok quit");
  fs::remove_all(place("first"));
  ASSERT_NO_FATAL_FAILURE(restore_from("third"));
  expect_whole();
}

TEST_P(ParentCareTest, WhatAPreDumpNeedsIsNotRemoved) {
  start({"--no-queues"});
  ASSERT_NO_FATAL_FAILURE(dump_beside("first"));
  ASSERT_EQ(scene_.start_host(version(), "pre-dump", {"--prev-images-dir", "../first"}).wait(), 0)
      << scene_.log();
  fs::rename(scene_.images(), place("second"));
  ASSERT_NO_FATAL_FAILURE(dump_beside_on("second", "third"));
  const auto first = bytes_of("first");
  ASSERT_NO_FATAL_FAILURE(into("first"));
  for (const char* command : {"dump", "pre-dump"}) {
    SCOPED_TRACE(command);
    EXPECT_EQ(scene_.start_host(version(), command, {"--prev-images-dir", "../third"}).wait(), 1);
    EXPECT_NE(scene_.log().find("[SL-D93]"), std::string::npos);
    fs::remove(place("first") / "parent");  // the host's
    EXPECT_EQ(bytes_of("first"), first);
    expect_running();
  }
  fs::remove(scene_.images());
  ASSERT_NO_FATAL_FAILURE(dump_as("fourth", {"--prev-images-dir", "../third"}));
  EXPECT_TRUE(is_delta("fourth"));
  ASSERT_NO_FATAL_FAILURE(restore_from("fourth"));
  expect_whole();
}

// A complete parent needs no directory. CRIU's own images in it may.
TEST_P(ParentCareTest, AParentThatIsCompleteNeedsWhatItsLinksLeadToForCriuAlone) {
  start();
  ASSERT_NO_FATAL_FAILURE(dump_beside("first"));
  ASSERT_NO_FATAL_FAILURE(dump_beside("second"));
  fs::create_directory_symlink("../first", place("second") / "parent");
  std::ofstream(place("second") / "inventory.img") << "CRIU's";
  ASSERT_NO_FATAL_FAILURE(into("first"));
  EXPECT_EQ(scene_.dump(version(), {"--prev-images-dir", "../second"}), 1);
  EXPECT_NE(scene_.log().find("[SL-D93]"), std::string::npos);
  fs::remove(place("second") / "inventory.img");
  fs::remove(place("first") / "parent");  // the host's
  ASSERT_EQ(scene_.dump(version(), {"--leave-running", "--prev-images-dir", "../second"}), 0) << scene_.log();
  EXPECT_TRUE(is_delta("first"));
}

TEST_P(ParentCareTest, AParentThatChangesFailsTheDumpWhileTheJobLives) {
  start();
  ASSERT_NO_FATAL_FAILURE(dump_beside("first"));
  ASSERT_NO_FATAL_FAILURE(dump_beside("other"));
  const std::pair<const char*, std::function<void()>> kChanges[] = {
      {"removed", [this] { fs::remove_all(place("P")); }},
      {"renamed", [this] { fs::rename(place("P"), place("Q")); }},
      {"exchanged",
       [this] {
         fs::rename(place("P"), place("Q"));
         fs::copy(place("other"), place("P"));
       }},
      {"replaced",
       [this] {
         fs::copy(pages_of("P"), place("P") / "new");
         fs::rename(place("P") / "new", pages_of("P"));
       }},
  };
  for (const char* step : {"seized", "cpu_pages"}) {
    for (const auto& [how, change] : kChanges) {
      SCOPED_TRACE(std::string(how) + " at " + step);
      EXPECT_EQ(dump_while(step, change), 1);
      EXPECT_NE(dump_log_.find("[SL-I92]"), std::string::npos) << dump_log_;
      EXPECT_TRUE(images("amdgpu-").empty());
      ASSERT_NO_FATAL_FAILURE(expect_queues_run(scene_.subject_pid()));
      fs::remove_all(scene_.images());
      fs::remove_all(place("Q"));
    }
  }
  expect_running();
}

TEST_P(ParentCareTest, HardLinksToAParentAreNoChange) {
  start();
  ASSERT_NO_FATAL_FAILURE(dump_beside("first"));
  fs::create_directory(place("backup"));
  EXPECT_EQ(dump_while("seized",
                       [this] {
                         for (const auto& [name, bytes] : bytes_of("P"))
                           fs::create_hard_link(place("P") / name, place("backup") / name);
                       }),
            0)
      << dump_log_;
  fs::rename(scene_.images(), place("second"));
  EXPECT_TRUE(is_delta("second")) << dump_log_;
}

TEST_P(ParentCareTest, APreDumpWhoseParentGoesLeavesNothing) {
  start({"--no-queues"});
  ASSERT_NO_FATAL_FAILURE(dump_beside("first"));
  Program host =
      scene_.start_host(version(), "pre-dump", {"--prev-images-dir", "../first", "--hold", "cpu_pages"});
  ASSERT_EQ(host.hear_control(), "cpu_pages") << scene_.log();
  fs::rename(place("first"), place("elsewhere"));
  host.release_control();
  EXPECT_EQ(host.wait(), 0);
  EXPECT_NE(scene_.log().find("[SL-I92]"), std::string::npos);
  EXPECT_TRUE(images("amdgpu-").empty());
}

// No host has an error for it there: it ends, and lets go of the job.
TEST_P(ParentCareTest, AfterTheLastFileTheHostEndsWithAFailureAndUnlocksTheNetwork) {
  start();
  ASSERT_NO_FATAL_FAILURE(dump_beside("first"));
  fs::copy(place("first"), place("P"));
  Program host = scene_.start_host(version(), "dump", {"--prev-images-dir", "../P", "--hold", "before_exit"});
  ASSERT_EQ(host.hear_control(), "before_exit") << scene_.log();
  fs::remove_all(place("P"));
  host.release_control();
  EXPECT_EQ(host.wait(), 1);
  const std::string log = scene_.log();
  EXPECT_NE(log.find("[SL-I92]"), std::string::npos) << log;
  EXPECT_NE(log.find("Unlock network"), std::string::npos) << log;
  EXPECT_TRUE(images("amdgpu-").empty());
  expect_running();
}

TEST_P(ParentCareTest, ALinkOfTheFutureIsNotFollowed) {
  start();
  ASSERT_NO_FATAL_FAILURE(dump_beside("first"));
  const std::string preload = "LD_PRELOAD=";
  for (const std::string& variable : scene_.machine().environment()) {
    if (!variable.starts_with(preload)) continue;
    const std::string library = (program_directory() / "libfuture-link.so").string();
    scene_.run_by = {"/usr/bin/env", preload + library + ":" + variable.substr(preload.size())};
  }
  scene_.variables[kLinkAheadVariable] = "3600";
  ASSERT_NO_FATAL_FAILURE(dump_beside_on("first", "second"));
  EXPECT_NE(dump_log_.find("[SL-D90]"), std::string::npos) << dump_log_;
  scene_.variables.erase(kLinkAheadVariable);
  ASSERT_NO_FATAL_FAILURE(dump_beside_on("first", "third"));
  EXPECT_TRUE(is_delta("third"));
  EXPECT_FALSE(is_delta("second"));
}

TEST_P(ParentCareTest, ALinkThatWillNotLastIsNamed) {
  start();
  ASSERT_NO_FATAL_FAILURE(dump_beside("first"));
  fs::create_directory_symlink("first", place("latest"));
  const std::pair<std::string, const char*> kLinks[] = {
      {place("first").string(), "[SL-D91]"}, {"../latest", "[SL-D92]"}, {"../first", nullptr}};
  for (const auto& [link, warning] : kLinks) {
    fs::remove_all(place("second"));
    ASSERT_NO_FATAL_FAILURE(dump_beside("second", {"--prev-images-dir", link}));
    EXPECT_TRUE(is_delta("second")) << dump_log_;
    for (const char* each : {"[SL-D91]", "[SL-D92]"})
      EXPECT_EQ(dump_log_.find(each) != std::string::npos, warning != nullptr && warning == std::string(each))
          << link << dump_log_;
  }
}

}  // namespace
}  // namespace sluice::plugin_test
