// SPDX-License-Identifier: MIT
// A restore that fails: the reason is said, the task never runs, nothing is left, and the same images restore
// once the cause is gone.
#include <cerrno>

#include "answered_ioctl.h"
#include "scenario.h"
#include "support/flip_byte.h"

namespace sluice::vm_test {
namespace {

class RestoreThatFails : public Scenario {
 protected:
  void SetUp() override {
    Scenario::SetUp();
    load();
    ASSERT_NO_FATAL_FAILURE(start_subject({"--gpus", "2", "--vram", "8M", "--gtt", "1M", "--run-queues"}));
    ASSERT_NO_FATAL_FAILURE(dump());
    // Waits in the FIFO: a task that runs for a moment answers it.
    subject_->say("check");
  }

  void expect_never_ran(const std::string& because) {
    const CriuRun run = criu_->restore(images());
    ASSERT_TRUE(run.status.has_value()) << "criu restore hangs";
    EXPECT_NE(run.status, 0);
    EXPECT_TRUE(run.plugin_said(because)) << "the plugin does not say: " << because;
    EXPECT_TRUE(eventually([&] { return !is_alive(dumped_pid_) && living_children().empty(); }, Seconds(20)))
        << "the task lives";
    EXPECT_FALSE(subject_->has_spoken()) << "the task ran";
  }

  // By a criu one of whose ioctls is answered here.
  void expect_never_ran(const AnsweredIoctl& answered, const std::string& because) {
    criu_->prepare = [&answered] { answered.watch_this_process(); };
    expect_never_ran(because);
    criu_->prepare = {};
  }

  // Once the cause is gone, the question that waited all the time is answered.
  void expect_restores_now() {
    ASSERT_NO_FATAL_FAILURE(restore());
    const std::string answer = subject_->hear();
    EXPECT_EQ(answer.rfind("ok check", 0), 0U) << answer;
    ASSERT_NO_FATAL_FAILURE(expect_whole());
    EXPECT_EQ(subject_->quit(), 0);
  }

  std::string pages_file() const {
    for (const auto& entry : std::filesystem::directory_iterator(images())) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("amdgpu-pages-")) return name;
    }
    return {};
  }
};

TEST_F(RestoreThatFails, CorruptBlockIsNamed) {
  const std::string name = pages_file();
  ASSERT_FALSE(name.empty());
  const std::uint64_t middle = std::filesystem::file_size(images() / name) / 2;
  test::flip_byte(images() / name, middle);
  expect_never_ran(name);
  test::flip_byte(images() / name, middle);
  expect_restores_now();
}

TEST_F(RestoreThatFails, KfdRefusesTheRestore) {
  expect_never_ran(refused_criu_op(kRestore, ENOMEM), "Error (RESTORE_EXT_FILE): RESTORE");
  expect_restores_now();
}

TEST_F(RestoreThatFails, KfdRefusesToResume) {
  expect_never_ran(refused_criu_op(kResume, EINVAL), "RESUME of process");
  expect_restores_now();
}

TEST_F(RestoreThatFails, CopyEngineReportsAnError) {
  expect_never_ran(failed_fence(EIO), "copy chunk ");
  expect_restores_now();
}

TEST_F(RestoreThatFails, PagesFileIsMissing) {
  const std::string name = pages_file();
  std::filesystem::rename(images() / name, images("aside") / name);
  expect_never_ran(name);
  std::filesystem::rename(images("aside") / name, images() / name);
  expect_restores_now();
}

}  // namespace
}  // namespace sluice::vm_test
