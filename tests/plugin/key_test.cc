// SPDX-License-Identifier: MIT
// The operator's key with the shipped plugin: a checkpoint that was made with it comes back intact, and one
// that somebody else has made or changed is refused before anything runs.
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "lookalike/test_streamer.h"
#include "plugin_test.h"
#include "support/flip_byte.h"
#include "support/refuse_system_call.h"
#ifdef SEAM_LIBRARY
#include "seam_plan.h"
#endif

namespace sluice::plugin_test {
namespace {

using lookalike::capture_directory;
using lookalike::capture_to;
using lookalike::extract_image;
using lookalike::serve_from;
using lookalike::Streamer;

class KeyTest : public PluginTest {
 protected:
  void SetUp() override {
    make_key("mine", '7');
    make_key("others", '9');
  }

  std::string key_file(const std::string& name) const { return (directory_.path() / name).string(); }
  void make_key(const std::string& name, char digit) {
    std::ofstream(key_file(name)) << std::string(64, digit) << '\n';
    ASSERT_EQ(::chmod(key_file(name).c_str(), 0600), 0);
  }
  void use_key(const std::string& name) { scene_.variables["SLUICE_KEY_FILE"] = key_file(name); }
  void use_none() { scene_.variables.erase("SLUICE_KEY_FILE"); }

  void expect_refused(const std::string& why) {
    scene_.control().clear_trace();
    (void)scene_.log();
    EXPECT_EQ(scene_.restore(version()), 1);
    const std::string log = scene_.log();
    EXPECT_NE(log.find(why), std::string::npos) << "not said: " << why << "\n" << log;
    expect_not_resumed();
  }
  void dump_to_stream(const std::string& image) {
    Streamer streamer(scene_.images(), "capture", capture_to(image));
    ASSERT_TRUE(streamer.ready());
    ASSERT_EQ(scene_.start_host(version(), "dump", {"--stream"}).wait(), 0) << scene_.log();
    ASSERT_EQ(streamer.wait(), 0);
    scene_.wait_until_subject_is_gone();
    (void)scene_.log();
  }
  int restore_stream(const std::string& image) {
    Streamer streamer(scene_.images(), "serve", serve_from(image));
    EXPECT_TRUE(streamer.ready());
    const int status = scene_.restore(version(), {"--stream"});
    streamer.kill();
    return status;
  }
  // Of a directory, so that the next dump may go into it.
  void keep_images_as(const std::string& name) {
    std::filesystem::copy(scene_.images(), directory_.path() / name,
                          std::filesystem::copy_options::recursive);
  }
  void take_image(const std::string& from, const std::string& name) {
    std::filesystem::copy_file(directory_.path() / from / name, scene_.images() / name,
                               std::filesystem::copy_options::overwrite_existing);
  }

  ScratchDirectory directory_;
};

// In one of them the task fills its memory, in the other the content server does.
INSTANTIATE_TEST_SUITE_P(Hosts, KeyTest, ::testing::Values(kVersions[0], kVersions[2]), name_of_version);

TEST_P(KeyTest, WhatWasMadeWithTheKeyComesBackIntact) {
  use_key("mine");
  ASSERT_NO_FATAL_FAILURE(start({"--gpus", "2", "--zero", "50"}));
  ASSERT_NO_FATAL_FAILURE(dump());
  restore_and_check();
}

TEST_P(KeyTest, MemoryThatIsSharedToo) {
  use_key("mine");
  ASSERT_NO_FATAL_FAILURE(start({"--share", "kfd", "--share-fd", "--gem-handles", "1,3"}));
  ASSERT_NO_FATAL_FAILURE(dump());
  restore_and_check();
}

TEST_P(KeyTest, AStreamThatWasMadeWithTheKeyComesBackIntactAndWithNoOther) {
  use_key("mine");
  ASSERT_NO_FATAL_FAILURE(start());
  const std::string image = (directory_.path() / "image").string();
  ASSERT_NO_FATAL_FAILURE(dump_to_stream(image));
  use_key("others");
  EXPECT_NE(restore_stream(image), 0);
  EXPECT_NE(scene_.log().find("[SL-I09]"), std::string::npos);
  use_key("mine");
  ASSERT_EQ(restore_stream(image), 0) << scene_.log();
  expect_whole();
}

// Files that cannot be compared are as unknown as files that cannot be taken.
TEST_P(KeyTest, AStreamOfFilesThatCannotBeComparedIsNotMade) {
  use_key("mine");
  ASSERT_NO_FATAL_FAILURE(start({"--dup-kfd"}));
  Streamer streamer(scene_.images(), "capture", capture_to((directory_.path() / "image").string()));
  ASSERT_TRUE(streamer.ready());
  int status = -1;
  std::thread([&] {
    if (test::refuse_system_call(SYS_kcmp, EPERM))
      status = scene_.start_host(version(), "dump", {"--stream"}).wait();
  }).join();
  EXPECT_EQ(status, 1);
  const std::string log = scene_.log();
  EXPECT_NE(log.find("[SL-D20]"), std::string::npos) << log;
  expect_running();
}

#ifdef SEAM_LIBRARY
// A dump without the key's sums, or with none, is not what was asked for.
TEST_P(KeyTest, WithoutTheLibraryThatMakesItsSumsADumpFailsAndNamesIt) {
  ASSERT_NO_FATAL_FAILURE(start());
  use_key("mine");
  SeamPlan plan(scene_);
  const auto dump_on = [this] { return scene_.start_host(version(), "dump", {"--leave-running"}).wait(); };
  plan->disarm();
  ASSERT_EQ(dump_on(), 0) << scene_.log();
  std::size_t places = 0;
  unsigned named = 0;  // of the places that load something, that which loads this library
  for (const Failure& failure : plan->failures(seam::kError, Turns::FirstAndMiddle, &places)) {
    if (failure.call != "dlopen") continue;
    (void)scene_.log();
    plan->arm(failure);
    const int status = dump_on();
    const std::string log = scene_.log();
    if (log.find("libcrypto") == std::string::npos) continue;
    ++named;
    EXPECT_EQ(status, 1) << log;
    expect_running();
  }
  EXPECT_EQ(named, 1U);
}
#endif

// Each task would take its images for those of the dump, and each could be given another's.
TEST_P(KeyTest, AStreamThatDoesNotTellWhatThereIsIsRefused) {
  use_key("mine");
  ASSERT_NO_FATAL_FAILURE(start());
  const std::string image = (directory_.path() / "image").string();
  ASSERT_NO_FATAL_FAILURE(dump_to_stream(image));
  const std::filesystem::path files = directory_.path() / "extracted";
  ASSERT_EQ(extract_image(image, files), 0);
  ASSERT_TRUE(std::filesystem::remove(files / "amdgpu-sluice-index.img"));
  ASSERT_TRUE(capture_directory(files, image));
  scene_.control().clear_trace();
  EXPECT_EQ(restore_stream(image), 1);
  const std::string log = scene_.log();
  EXPECT_NE(log.find("[SL-R35]"), std::string::npos) << log;
  expect_not_resumed();
}

// What is restored first would go by what it was told of the others: nothing.
TEST_P(KeyTest, AnImageThatWasHiddenAtFirstIsRefused) {
  use_key("mine");
  ASSERT_NO_FATAL_FAILURE(start({"--render-first"}));
  ASSERT_NO_FATAL_FAILURE(dump());
  std::filesystem::path hidden;
  for (const auto& entry : std::filesystem::directory_iterator(scene_.images())) {
    if (entry.path().filename().string().starts_with("amdgpu-kfd-")) hidden = entry.path();
  }
  const std::filesystem::path elsewhere = directory_.path() / "hidden";
  std::filesystem::rename(hidden, elsewhere);
  scene_.control().clear_trace();
  Program host = scene_.start_host(version(), "restore", {"--hold", "init"});
  ASSERT_EQ(host.hear_control(), "init") << scene_.log();
  std::filesystem::rename(elsewhere, hidden);
  host.release_control();
  EXPECT_EQ(host.wait(), 1);
  const std::string log = scene_.log();
  EXPECT_NE(log.find(hidden.filename().string() + " was not there when the restore began"), std::string::npos)
      << log;
  expect_not_resumed();
}

TEST_P(KeyTest, WhatSomebodyElseHasMadeIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  use_key("mine");
  expect_refused("[SL-I07]");
  use_none();
  restore_and_check();
}

TEST_P(KeyTest, WithAnotherKeyOrNoneItIsRefused) {
  use_key("mine");
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  use_key("others");
  expect_refused("[SL-I09]");
  use_none();
  expect_refused("[SL-I06]");
  use_key("mine");
  restore_and_check();
}

TEST_P(KeyTest, ABlockThatWasChangedIsRefused) {
  use_key("mine");
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  const std::string name = *images("amdgpu-pages-").begin();
  test::flip_byte(scene_.images() / name, 70000);
  expect_refused("has another HMAC-SHA-256-128");
  test::flip_byte(scene_.images() / name, 70000);
  restore_and_check();
}

// Whoever can write the directory can make sums as any dump without a key does.
TEST_P(KeyTest, SumsThatWereMadeAnewAreRefused) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(scene_.dump(version(), {"--leave-running"}), 0) << scene_.log();
  keep_images_as("unkeyed");
  use_key("mine");
  ASSERT_NO_FATAL_FAILURE(dump());
  keep_images_as("keyed");
  for (const char* prefix : {"amdgpu-sums-", "amdgpu-kfd-"}) {
    SCOPED_TRACE(prefix);
    const std::string name = *images(prefix).begin();
    take_image("unkeyed", name);
    expect_refused(name + " was made without a key");
    take_image("keyed", name);
  }
  const std::string sums = *images("amdgpu-sums-").begin();
  std::filesystem::remove(scene_.images() / sums);
  expect_refused(sums + " is missing");
  take_image("keyed", sums);
  restore_and_check();
}

// A dump without it would look as safe as one with it.
TEST_P(KeyTest, AKeyThatCannotBeReadFailsTheDump) {
  ASSERT_NO_FATAL_FAILURE(start());
  use_key("missing");
  EXPECT_EQ(scene_.dump(version()), 1);
  EXPECT_NE(scene_.log().find("SLUICE_KEY_FILE: open " + key_file("missing")), std::string::npos);
  ASSERT_NO_FATAL_FAILURE(expect_running());
  use_key("mine");
  ASSERT_EQ(::chmod(key_file("mine").c_str(), 0640), 0);
  EXPECT_EQ(scene_.dump(version()), 1);
  EXPECT_NE(scene_.log().find("[SL-S08]"), std::string::npos);
  ASSERT_NO_FATAL_FAILURE(expect_running());
  ASSERT_EQ(::chmod(key_file("mine").c_str(), 0600), 0);
  scene_.variables["SLUICE_CHECKSUM"] = "off";
  EXPECT_EQ(scene_.dump(version()), 1);
  EXPECT_NE(scene_.log().find("[SL-S12]"), std::string::npos);
  ASSERT_NO_FATAL_FAILURE(expect_running());
  EXPECT_TRUE(images("amdgpu-").empty());
}

TEST_P(KeyTest, AKeyThatCannotBeReadFailsTheRestore) {
  use_key("mine");
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  use_key("missing");
  expect_refused("SLUICE_KEY_FILE: open " + key_file("missing"));
  use_key("mine");
  restore_and_check();
}

}  // namespace
}  // namespace sluice::plugin_test
