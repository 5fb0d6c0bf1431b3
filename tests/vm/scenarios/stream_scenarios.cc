// SPDX-License-Identifier: MIT
// criu --stream, real criu on its own kernel, into a file and out of it. A tree: tree_scenarios.cc.
#include "scenario.h"
#include "streamer.h"

namespace sluice::vm_test {
namespace {

// So that contents take seconds, however fast the guest is.
constexpr std::uint64_t kSlowStreamBytesPerSecond = 4 << 20;

class Streamed : public Scenario {
 protected:
  void SetUp() override {
    Scenario::SetUp();
    streamer_.emplace(images(), scratch() / "image");
    load();
  }
  void TearDown() override {
    streamer_.reset();
    Scenario::TearDown();
  }

  void dump_streamed(const Strings& more = {}) {
    ASSERT_EQ(streamer_->begin("capture"), "");
    Strings options = {"--stream"};
    options.insert(options.end(), more.begin(), more.end());
    ASSERT_NO_FATAL_FAILURE(dump(options));
    EXPECT_TRUE(streamer_->ended());
  }
  void restore_streamed() {
    ASSERT_EQ(streamer_->begin("serve"), "");
    ASSERT_NO_FATAL_FAILURE(restore({"--stream"}));
    // An older criu keeps what the plugin gave it to map through.
    if (criu_traits().takes_map_fds && subject_->alive()) {
      EXPECT_EQ(possessions_of(subject_->pid()), possessions_) << "the restore added something, or lost it";
    }
  }
  void expect_comes_back() {
    ASSERT_NO_FATAL_FAILURE(restore_streamed());
    ASSERT_NO_FATAL_FAILURE(expect_queues_run());
    ASSERT_NO_FATAL_FAILURE(expect_whole());
  }

  std::optional<Streamer> streamer_;
};

TEST_F(Streamed, EverythingComesBackWhole) {
  ASSERT_NO_FATAL_FAILURE(start_subject(everything()));
  ASSERT_NO_FATAL_FAILURE(dump_streamed({"--link-remap"}));
  ASSERT_NO_FATAL_FAILURE(expect_comes_back());
  EXPECT_EQ(subject_->quit(), 0);
}

TEST_F(Streamed, OneGpuComesBackTwice) {
  ASSERT_NO_FATAL_FAILURE(start_subject({"--gpus", "1", "--vram", "16M", "--gtt", "1M", "--run-queues"}));
  for (int generation = 0; generation < 2; ++generation) {
    ASSERT_NO_FATAL_FAILURE(dump_streamed());
    ASSERT_NO_FATAL_FAILURE(expect_comes_back());
  }
  EXPECT_EQ(subject_->quit(), 0);
}

// What the index says of maps is all that is known of them before the task maps.
TEST_F(Streamed, MapsWhoseRenderFileWasClosedComeBack) {
  ASSERT_NO_FATAL_FAILURE(start_subject(
      {"--gpus", "2", "--vram", "4M", "--gtt", "1M", "--run-queues", "--close-render-after-map"}));
  ASSERT_NO_FATAL_FAILURE(dump_streamed());
  ASSERT_NO_FATAL_FAILURE(expect_comes_back());
  EXPECT_EQ(subject_->quit(), 0);
}

TEST_F(Streamed, AStreamerThatDiesFailsTheDumpAndTheProcessGoesOn) {
  ASSERT_NO_FATAL_FAILURE(start_subject({"--gpus", "2", "--vram", "16M", "--gtt", "1M", "--run-queues"}));
  ASSERT_EQ(streamer_->begin("capture"), "");
  for (const unsigned gpu : {0U, 1U}) machine().set_engine_rate(gpu, kSlowStreamBytesPerSecond);
  const std::uint64_t fences = machine().copies_begun(0);
  const pid_t criu =
      vm_test::start(criu_->command("dump", images(), {"--stream", "-t", std::to_string(subject_->pid())}));
  EXPECT_TRUE(eventually([&] { return machine().copies_begun(0) > fences; })) << "no contents flow";
  streamer_->kill();
  const auto status = wait_for(criu);
  ASSERT_TRUE(status.has_value()) << "criu dump hangs";
  EXPECT_NE(status, 0);
  for (const unsigned gpu : {0U, 1U}) machine().set_engine_rate(gpu, 0);
  EXPECT_NE(read_file(criu_->last_log()).find("the image streamer has ended"), std::string::npos);
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
}

}  // namespace
}  // namespace sluice::vm_test
