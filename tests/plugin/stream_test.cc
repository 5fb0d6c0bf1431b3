// SPDX-License-Identifier: MIT
// --stream with the shipped plugin, in four hosts: what goes through a streamer, and through whatever its
// user puts after it, comes back intact. What is damaged or dies on the way is told, and nothing runs that
// must not.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lookalike/task_tree.h"
#include "lookalike/test_streamer.h"
#include "plugin_test.h"
#include "support/flip_byte.h"

namespace sluice::plugin_test {
namespace {

using lookalike::capture_directory;
using lookalike::capture_to;
using lookalike::extract_image;
using lookalike::serve_from;
using lookalike::Streamer;
using lookalike::TaskTree;

class StreamTest : public PluginTest {
 protected:
  std::string image() const { return (directory_.path() / "image").string(); }

  int dump_streamed(const std::string& command, const Strings& more = {}) {
    Streamer streamer(scene_.images(), "capture", command);
    EXPECT_TRUE(streamer.ready());
    Strings arguments = {"--stream"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const int status = scene_.start_host(version(), "dump", arguments).wait();
    EXPECT_EQ(streamer.wait(), 0);
    return status;
  }
  int restore_streamed(const std::string& command) {
    Streamer streamer(scene_.images(), "serve", command);
    if (!streamer.ready()) return -1;
    const int status = scene_.restore(version(), {"--stream"});
    streamer.kill();
    return status;
  }
  void start_small(const Strings& more) {
    Strings arguments = {"--vram", "4M", "--gtt", "1M", "--svm-context"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const std::string ready = scene_.start_subject(arguments);
    ASSERT_TRUE(ready.starts_with("ready")) << ready;
  }
  void dump_and_restore(const std::string& capture, const std::string& serve) {
    ASSERT_EQ(dump_streamed(capture), 0) << scene_.log();
    scene_.wait_until_subject_is_gone();
    ASSERT_EQ(restore_streamed(serve), 0) << scene_.log();
    expect_whole();
  }
  void dump_and_restore() { dump_and_restore(capture_to(image()), serve_from(image())); }
  // Four processes that share two GPUs, through one streamer.
  void dump_tree(TaskTree& tasks) {
    for (unsigned i = 1; i <= 4; ++i) {
      const std::string ready = tasks.add(
          {"--gpus", "2", "--vram", "4M", "--gtt", "1M", "--svm-context", "--seed", std::to_string(i)});
      ASSERT_TRUE(ready.starts_with("ready")) << ready;
    }
    Streamer streamer(scene_.images(), "capture", capture_to(image()));
    ASSERT_TRUE(streamer.ready());
    Program host =
        scene_.start_host(version(), "dump", tasks.with_pids({"--stream", "--hold", "dump_ext_file"}));
    for (std::size_t i = 1; i <= tasks.size(); ++i) {
      ASSERT_EQ(host.hear_control(), "dump_ext_file") << scene_.log();
      if (i + 1 == tasks.size()) {
        EXPECT_EQ(scene_.log().find("dump GPU"), std::string::npos)
            << "the hook for the last file joins all, no other";
      }
      host.release_control();
    }
    ASSERT_EQ(host.wait(), 0) << scene_.log();
    ASSERT_EQ(streamer.wait(), 0);
    tasks.wait_until_dumped();
  }
  // Nothing of ours is on the local disk.
  void expect_no_local_images() {
    for (const auto& entry : std::filesystem::directory_iterator(scene_.images()))
      EXPECT_TRUE(entry.is_socket()) << entry.path();
  }
  // The streamed image's files, in a directory.
  std::filesystem::path extracted() {
    std::filesystem::path place = directory_.path() / "extracted";
    EXPECT_EQ(extract_image(image(), place), 0);
    return place;
  }

  ScratchDirectory directory_;
};

INSTANTIATE_TEST_SUITE_P(Hosts, StreamTest, ::testing::ValuesIn(kVersionsOfLongSuites), name_of_version);

TEST_P(StreamTest, OneGpuComesBackIntact) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump_and_restore());
  expect_no_local_images();
  EXPECT_EQ(heard("quit"), "ok quit");
}

TEST_P(StreamTest, TwoGpusAndZerosComeBackIntact) {
  ASSERT_NO_FATAL_FAILURE(start({"--gpus", "2", "--zero", "50"}));
  dump_and_restore();
}

TEST_P(StreamTest, WithoutParallelWorkItIsTheSame) {
  scene_.variables["SLUICE_PARALLEL"] = "off";
  ASSERT_NO_FATAL_FAILURE(start({"--gpus", "2"}));
  dump_and_restore();
}

// The index has the maps of GPUs. Before 4.0 CRIU does not say who is of the tree.
TEST_P(StreamTest, MapsOfOtherDevicesOutsideTheTreeDoNotMatter) {
  ASSERT_NO_FATAL_FAILURE(start());
  const UniqueFd zero(::open("/dev/zero", O_RDWR | O_CLOEXEC));
  void* const map = ::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, zero.get(), 0);
  ASSERT_NE(map, MAP_FAILED);
  const pid_t other = ::fork();
  if (other == 0) {
    for (;;) ::pause();
  }
  const int dumped = dump_streamed(capture_to(image()), {"--outside", std::to_string(other)});
  ::kill(other, SIGKILL);
  EXPECT_EQ(::waitpid(other, nullptr, 0), other);
  EXPECT_EQ(::munmap(map, 4096), 0);
  ASSERT_EQ(dumped, 0) << scene_.log();
  scene_.wait_until_subject_is_gone();
  ASSERT_EQ(restore_streamed(serve_from(image())), 0) << scene_.log();
  expect_whole();
}

// There is no directory that a dump could find it in.
TEST_P(StreamTest, APreDumpTouchesNothing) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(dump_streamed(capture_to(image()), {"--leave-running"}), 0) << scene_.log();
  scene_.control().clear_trace();
  Streamer streamer(scene_.images(), "serve", serve_from(image()));
  ASSERT_TRUE(streamer.ready());
  // What CRIU itself would write then is nobody's matter.
  EXPECT_EQ(scene_.start_host(version(), "pre-dump", {"--stream", "--fail-after", "cpu_pages"}).wait(), 1);
  streamer.kill();
  EXPECT_TRUE(images("amdgpu-").empty());
  EXPECT_EQ(scene_.control().criu_calls(kProcessInfo), 0U);
  expect_whole();
}

TEST_P(StreamTest, ThroughLz4) {
  ASSERT_NO_FATAL_FAILURE(start());
  dump_and_restore("$STREAMER | lz4 -q > " + image(), "lz4 -dc " + image() + " | $STREAMER");
}

TEST_P(StreamTest, ThroughZstd) {
  ASSERT_NO_FATAL_FAILURE(start());
  dump_and_restore("$STREAMER | zstd -q > " + image(), "zstd -dc " + image() + " | $STREAMER");
}

// Pages, and what they are verified by, are those of a dump to files.
TEST_P(StreamTest, WhatIsExtractedIsWhatADumpToFilesWrites) {
  ASSERT_NO_FATAL_FAILURE(start({"--gpus", "2", "--zero", "50", "--gem-handles", "1,3"}));
  ASSERT_EQ(scene_.dump(version(), {"--leave-running"}), 0) << scene_.log();
  ASSERT_EQ(dump_streamed(capture_to(image()), {"--leave-running"}), 0) << scene_.log();
  const std::filesystem::path place = extracted();
  EXPECT_EQ(images("amdgpu-pages-").size(), 2U);
  EXPECT_EQ(images("amdgpu-drm-pages-").size(), 4U);
  for (const std::string prefix : {"amdgpu-pages-", "amdgpu-drm-pages-"}) {
    for (const std::string& name : images(prefix))
      EXPECT_EQ(read_file(place / name), read_file(scene_.images() / name)) << name;
  }
  for (const std::string prefix : {"amdgpu-kfd-", "amdgpu-sums-", "amdgpu-renderD-"}) {
    for (const std::string& name : images(prefix)) EXPECT_TRUE(std::filesystem::exists(place / name)) << name;
  }
  expect_running();
}

TEST_P(StreamTest, WhatIsExtractedIsRestoredFromFiles) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(dump_streamed(capture_to(image())), 0) << scene_.log();
  scene_.wait_until_subject_is_gone();
  const std::filesystem::path place = extracted();
  for (const auto& entry : std::filesystem::directory_iterator(place))
    std::filesystem::copy(entry.path(), scene_.images());
  restore_and_check();
}

// A consumer that stalls holds the dump up, and no more. All the pipes on the way together hold less
// than the contents, so the dump cannot be through when the last of them is full.
TEST_P(StreamTest, AConsumerThatStallsHoldsTheDumpUp) {
  ASSERT_NO_FATAL_FAILURE(start());
  const std::string fifo = (directory_.path() / "fifo").string();
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const UniqueFd reader(::open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  Streamer streamer(scene_.images(), "capture", "$STREAMER > " + fifo);
  ASSERT_TRUE(streamer.ready());
  Program host = scene_.start_host(version(), "dump", {"--stream"});
  const int almost_full = ::fcntl(reader.get(), F_GETPIPE_SZ) / 2;
  for (int waiting = 0; waiting < almost_full; (void)::ioctl(reader.get(), FIONREAD, &waiting))
    (void)::sched_yield();
  Program consumer({"/bin/cp", fifo, image()}, {});
  EXPECT_EQ(host.wait(), 0) << scene_.log();
  EXPECT_EQ(streamer.wait(), 0);
  EXPECT_EQ(consumer.wait(), 0);
  scene_.wait_until_subject_is_gone();
  ASSERT_EQ(restore_streamed(serve_from(image())), 0) << scene_.log();
  expect_whole();
}

TEST_P(StreamTest, AConsumerThatDiesFailsTheDumpAndTheProcessGoesOn) {
  ASSERT_NO_FATAL_FAILURE(start());
  Streamer streamer(scene_.images(), "capture", capture_to(image()));
  ASSERT_TRUE(streamer.ready());
  Program host = scene_.start_host(version(), "dump", {"--stream", "--hold", "vmas"});
  ASSERT_EQ(host.hear_control(), "vmas") << scene_.log();
  streamer.kill();
  host.release_control();
  EXPECT_NE(host.wait(), 0);
  const std::string log = scene_.log();
  EXPECT_NE(log.find("the image streamer has ended"), std::string::npos) << log;
  expect_running();
}

// Behind the streamer, in the middle of the contents.
TEST_P(StreamTest, AProgramThatTakesNoMoreFailsTheDumpAndTheProcessGoesOn) {
  ASSERT_NO_FATAL_FAILURE(start());
  Streamer streamer(scene_.images(), "capture", "$STREAMER | head -c 5000000 > " + image());
  ASSERT_TRUE(streamer.ready());
  EXPECT_EQ(scene_.dump(version(), {"--stream"}), 1);
  const std::string log = scene_.log();
  EXPECT_NE(log.find("the image streamer has ended"), std::string::npos) << log;
  EXPECT_EQ(std::filesystem::file_size(image()), 5000000U);
  expect_running();
  EXPECT_NE(restore_streamed(serve_from(image())), 0);
}

// The image is as good as it was, and nobody is told otherwise.
TEST_P(StreamTest, AStreamerThatDiesWhileItServesIsNamed) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(dump_streamed(capture_to(image())), 0) << scene_.log();
  scene_.wait_until_subject_is_gone();
  for (const unsigned gpu : {0U, 1U}) scene_.control().set_engine_rate(gpu, 16 * kMiB);
  Streamer streamer(scene_.images(), "serve", serve_from(image()));
  ASSERT_TRUE(streamer.ready());
  Program host = scene_.start_host(version(), "restore", {"--stream"});
  while (!scene_.has_logged("restore: ")) (void)::sched_yield();
  streamer.kill();
  EXPECT_EQ(host.wait(), 1);
  const std::string log = scene_.log();
  EXPECT_NE(log.find("the image streamer has"), std::string::npos) << log;
  EXPECT_EQ(log.find("restore from another checkpoint"), std::string::npos) << log;
  expect_not_resumed();
}

TEST_P(StreamTest, ADamagedBlockIsFoundBeforeAnythingRuns) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(dump_streamed(capture_to(image())), 0) << scene_.log();
  scene_.wait_until_subject_is_gone();
  // The VRAM is by far the largest part of the image.
  test::flip_byte(image(), std::filesystem::file_size(image()) / 2);
  EXPECT_NE(restore_streamed(serve_from(image())), 0);
  const std::string log = scene_.log();
  EXPECT_NE(log.find("[SL-C06]"), std::string::npos) << log;
  expect_not_resumed();
}

TEST_P(StreamTest, ADamagedBlockDoesNotReachTheGpu) {
  ASSERT_NO_FATAL_FAILURE(start_small({}));
  ASSERT_EQ(dump_streamed(capture_to(image())), 0) << scene_.log();
  scene_.wait_until_subject_is_gone();
  const std::filesystem::path place = extracted();
  const std::string pages = *images_in(place, "amdgpu-pages-1-").rbegin();
  ASSERT_NO_FATAL_FAILURE(overwrite_block(place / pages));
  ASSERT_TRUE(capture_directory(place, image()));
  ASSERT_NO_FATAL_FAILURE(overwrite_gpu_memory());
  EXPECT_NE(restore_streamed(serve_from(image())), 0);
  EXPECT_NE(scene_.log().find(pages), std::string::npos);
  expect_not_resumed();
  EXPECT_FALSE(gpu_memory_has(kFoundNowhereElse));
  // It would be seen.
  scene_.variables["SLUICE_CHECKSUM"] = "off";
  ASSERT_EQ(restore_streamed(serve_from(image())), 0) << scene_.log();
  EXPECT_TRUE(gpu_memory_has(kFoundNowhereElse));
}

// The recipes set it: GPU memory is private.
TEST_P(StreamTest, ExtractedFilesHaveWhatTheUmaskLeaves) {
  if (version() != "4.2") GTEST_SKIP() << "the streamer makes them, whatever the host";
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(dump_streamed(capture_to(image())), 0) << scene_.log();
  for (const mode_t mask : {mode_t{022}, mode_t{077}}) {
    SCOPED_TRACE(mask);
    const mode_t before = ::umask(mask);
    const std::filesystem::path place = directory_.path() / ("extracted-" + std::to_string(mask));
    EXPECT_EQ(extract_image(image(), place), 0);
    (void)::umask(before);
    std::size_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(place)) {
      struct stat status {};
      ASSERT_EQ(::stat(entry.path().c_str(), &status), 0);
      EXPECT_EQ(status.st_mode & 0777U, 0666U & ~mask) << entry.path();
      ++files;
    }
    EXPECT_GT(files, 0U);
  }
}

// Their BOs lie in a file each.
TEST_P(StreamTest, BosOfRenderNodesComeBackIntact) {
  ASSERT_NO_FATAL_FAILURE(start_small({"--gem-handles", "1,3,70"}));
  dump_and_restore();
}

TEST_P(StreamTest, MapsThroughSeveralFilesOfOneGpuComeBack) {
  ASSERT_NO_FATAL_FAILURE(start_small({"--second-render", "--gem-handles", "2,5"}));
  if (hooks() >= 12) return dump_and_restore();
  ASSERT_EQ(dump_streamed(capture_to(image())), 0) << scene_.log();
  scene_.wait_until_subject_is_gone();
  EXPECT_NE(restore_streamed(serve_from(image())), 0);
  EXPECT_NE(scene_.log().find("through several files"), std::string::npos);
}

// One memory before, one memory after; a stream that cannot be listed tells of it in time all the same.
TEST_P(StreamTest, SharedMemoryIsOneAgain) {
  ASSERT_NO_FATAL_FAILURE(start_small({"--share", "kfd", "--share-fd", "--gem-handles", "1,3"}));
  EXPECT_EQ(heard("poke 4711"), "ok poke 4711");
  ASSERT_NO_FATAL_FAILURE(dump_and_restore());
  EXPECT_EQ(heard("peek"), "ok peek 4711");
  EXPECT_EQ(heard("poke 1"), "ok poke 1");
  EXPECT_EQ(heard("peek"), "ok peek 1");
}

// It would be in no image, and nobody would know before the restore.
TEST_P(StreamTest, MemoryThatADescriptorAloneHasComesBack) {
  ASSERT_NO_FATAL_FAILURE(start_small({"--dmabuf-fd"}));
  ASSERT_NO_FATAL_FAILURE(dump_and_restore());
  EXPECT_EQ(heard("quit"), "ok quit");
}

TEST_P(StreamTest, AFileAfterTheIndexIsRefused) {
  for (const char* device : {"/dev/dri/renderD128", "/dev/kfd"}) {
    SCOPED_TRACE(device);
    ASSERT_NO_FATAL_FAILURE(start_small({}));
    EXPECT_NE(dump_streamed(capture_to(image()), {"--in-flight", device}), 0);
    const std::string log = scene_.log();
    EXPECT_NE(log.find("[SL-D23]"), std::string::npos) << log;
    ASSERT_NO_FATAL_FAILURE(expect_running());
    EXPECT_EQ(heard("quit"), "ok quit");
  }
}

TEST_P(StreamTest, AnImageWithoutSumsIsRestoredUnverified) {
  scene_.variables["SLUICE_CHECKSUM"] = "off";
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(dump_streamed(capture_to(image())), 0) << scene_.log();
  scene_.wait_until_subject_is_gone();
  scene_.variables.clear();
  ASSERT_EQ(restore_streamed(serve_from(image())), 0) << scene_.log();
  EXPECT_NE(scene_.log().find("restored unverified"), std::string::npos);
  expect_whole();
}

TEST_P(StreamTest, ATreeComesBackIntact) {
  TaskTree tasks(scene_);
  ASSERT_NO_FATAL_FAILURE(dump_tree(tasks));
  Streamer streamer(scene_.images(), "serve", serve_from(image()));
  ASSERT_TRUE(streamer.ready());
  ASSERT_EQ(scene_.start_host(version(), "restore", {"--stream"}).wait(), 0) << scene_.log();
  ASSERT_TRUE(tasks.meet_restored());
  EXPECT_EQ(tasks.what_is_not_whole(), "");
  EXPECT_EQ(tasks.who_does_not_quit(), "");
}

// The streamer ends of it. Of that a host would tell its log in the lane's thread, so nobody asks it for
// more.
TEST_P(StreamTest, ADamagedBlockOfOneProcessEndsTheStreamForAll) {
  if (hooks() < 13) GTEST_SKIP() << "each task restores itself here";
  TaskTree tasks(scene_);
  ASSERT_NO_FATAL_FAILURE(dump_tree(tasks));
  std::string pages;
  for (const auto& entry : std::filesystem::directory_iterator(extracted())) {
    if (entry.path().filename().string().starts_with("amdgpu-pages-")) pages = read_file(entry.path());
  }
  const std::string part = pages.substr(pages.size() / 2, 64);
  ASSERT_NE(part, std::string(64, '\0'));
  const std::size_t place = read_file(image()).find(part);
  ASSERT_NE(place, std::string::npos);
  test::flip_byte(image(), place);
  EXPECT_EQ(restore_streamed(serve_from(image())), 1);
  EXPECT_NE(scene_.log().find("is corrupt"), std::string::npos) << scene_.log();
  EXPECT_EQ(scene_.log().find("in a thread:"), std::string::npos) << scene_.log();
}

}  // namespace
}  // namespace sluice::plugin_test
