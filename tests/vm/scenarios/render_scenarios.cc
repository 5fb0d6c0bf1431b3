// SPDX-License-Identifier: MIT
// BOs that were allocated through render nodes: they come back under their handles, where the GPU and the CPU
// have mapped them, with their contents, on kernels that list them.
#include "scenario.h"

namespace sluice::vm_test {
namespace {

const Strings kHandlesWithGaps = {"--gem-handles", "1,3,70,4096"};

class RenderNodes : public Scenario {
 protected:
  // Machines whose kernel lists BOs, whatever kernel the guest has.
  static Strings listing(const Strings& more = {}) {
    Strings options = two_gpus();
    options.push_back("--list-handles");
    options.insert(options.end(), more.begin(), more.end());
    return options;
  }

  static Strings with_kfd(const Strings& more) {
    Strings options = {"--gpus", "2", "--vram", "4M", "--gtt", "1M", "--run-queues"};
    options.insert(options.end(), more.begin(), more.end());
    return options;
  }

  // Twice: the second dump is of a restored process.
  void expect_survives_twice() {
    for (int generation = 0; generation < 2; ++generation) ASSERT_NO_FATAL_FAILURE(expect_survives());
    EXPECT_EQ(subject_->quit(), 0);
  }

  void expect_refused(const std::string& because) {
    const CriuRun run = criu_->dump(subject_->pid(), images());
    ASSERT_TRUE(run.status.has_value());
    EXPECT_NE(run.status, 0);
    EXPECT_TRUE(run.said(because)) << "criu's log does not say: " << because;
    ASSERT_NO_FATAL_FAILURE(expect_whole());
    EXPECT_EQ(subject_->quit(), 0);
  }
};

TEST_F(RenderNodes, HandlesWithGapsComeBackByPlaceholders) {
  load(listing());
  ASSERT_NO_FATAL_FAILURE(start_subject(with_kfd(kHandlesWithGaps)));
  expect_survives_twice();
}

TEST_F(RenderNodes, HandlesWithGapsComeBackWhereTheKernelChangesThem) {
  load(listing({"--change-handle"}));
  ASSERT_NO_FATAL_FAILURE(start_subject(with_kfd(kHandlesWithGaps)));
  expect_survives_twice();
}

TEST_F(RenderNodes, TwoFilesOfOneGpuKeepTheirOwn) {
  load(listing());
  ASSERT_NO_FATAL_FAILURE(start_subject(with_kfd({"--second-render", "--gem-handles", "2,5"})));
  if (criu_traits().takes_map_fds) return expect_survives_twice();
  ASSERT_NO_FATAL_FAILURE(dump());
  const CriuRun run = criu_->restore(images());
  EXPECT_NE(run.status, 0);
  EXPECT_TRUE(run.said("maps renderD128 through several files"));
}

TEST_F(RenderNodes, AreAllThatAProcessHas) {
  load(listing());
  ASSERT_NO_FATAL_FAILURE(start_subject({"--render-only", "--gem-handles", "1,3,70"}));
  expect_survives_twice();
}

TEST_F(RenderNodes, ManyBosComeBack) {
  load(listing());
  ASSERT_NO_FATAL_FAILURE(start_subject(with_kfd({"--gem-handles", "count:100"})));
  expect_survives_twice();
}

TEST_F(RenderNodes, ComeBackOnOtherGpus) {
  load(listing({"--minors", "128,129", "--gpu-ids", "11111,22222"}));
  ASSERT_NO_FATAL_FAILURE(start_subject(with_kfd(kHandlesWithGaps)));
  ASSERT_NO_FATAL_FAILURE(dump());
  ASSERT_NO_FATAL_FAILURE(move_to(listing({"--minors", "140,135", "--gpu-ids", "333,444"})));
  ASSERT_NO_FATAL_FAILURE(restore());
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
}

TEST_F(RenderNodes, LeftRunningGoOn) {
  load(listing());
  ASSERT_NO_FATAL_FAILURE(start_subject(with_kfd(kHandlesWithGaps)));
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(criu_->dump(subject_->pid(), images(), {"--leave-running"}).good());
    ASSERT_NO_FATAL_FAILURE(expect_whole());
  }
  EXPECT_EQ(subject_->quit(), 0);
}

// A kernel that does not list them: those that the CPU maps do not get lost.
TEST_F(RenderNodes, OfAKernelThatDoesNotListBosAreRefusedByName) {
  load();
  if (control().config().list_handles != 0) GTEST_SKIP() << "this guest's kernel lists BOs";
  ASSERT_NO_FATAL_FAILURE(start_subject(with_kfd({"--gem-handles", "1"})));
  expect_refused("neither the KFD nor any of its render files lists");
}

TEST_F(RenderNodes, WithoutKfdOfAKernelThatDoesNotListBosAreRefusedByName) {
  load();
  if (control().config().list_handles != 0) GTEST_SKIP() << "this guest's kernel lists BOs";
  ASSERT_NO_FATAL_FAILURE(start_subject({"--render-only", "--gem-handles", "1"}));
  expect_refused("neither the KFD nor any of its render files lists");
}

}  // namespace
}  // namespace sluice::vm_test
