// SPDX-License-Identifier: MIT
// BOs that were allocated through render nodes: they come back under their handles, where the GPU and the CPU
// have mapped them, with their contents, on kernels that list them.
#include <sys/stat.h>

#include <fstream>

#include "scenario.h"

namespace sluice::vm_test {
namespace {

const Strings kHandlesWithGaps = {"--gem-handles", "1,3,70,4096"};

Strings with_kfd(const Strings& more) {
  Strings options = {"--gpus", "2", "--vram", "4M", "--gtt", "1M", "--run-queues"};
  options.insert(options.end(), more.begin(), more.end());
  return options;
}

class RenderNodes : public Scenario {
 protected:
  void SetUp() override {
    Scenario::SetUp();
    load();
    if (!kernel_lists_handles()) GTEST_SKIP() << "this guest's kernel lists no BOs";
  }

  // Twice: the second dump is of a restored process.
  void expect_survives_twice() {
    for (int generation = 0; generation < 2; ++generation) ASSERT_NO_FATAL_FAILURE(expect_survives());
    EXPECT_EQ(subject_->quit(), 0);
  }

  // Of two processes the one that imports has the lower pid, and is restored first.
  void expect_two_have_the_same_memory(const Strings& options_of_importer) {
    GuestSubject importer(scratch() / "importer"), exporter(scratch() / "exporter");
    const std::string program = (settings().programs / "gpu-subject").string();
    const auto line = [&](const GuestSubject& task, const Strings& more) {
      std::string text = program + " --control " + task.directory().string();
      for (const std::string& option : with_common_options(with_kfd(more))) text += " " + option;
      return text;
    };
    Launch launch;
    // The importer waits until it is told the exporter's pid.
    launch.arguments = {"sh", "-c",
                        "(read pid < " + (scratch() / "go").string() + "; exec " +
                            line(importer, options_of_importer) + " $pid) & " +
                            line(exporter, {"--seed", "1", "--share", "kfd", "--share-fd"}) + " & wait"};
    launch.own_session = true;
    ASSERT_EQ(::mkfifo((scratch() / "go").c_str(), 0600), 0);
    const pid_t root = vm_test::start(launch);
    ASSERT_EQ(exporter.meet().rfind("ready", 0), 0U);
    std::ofstream(scratch() / "go") << exporter.pid() << std::endl;
    const std::string ready = importer.meet();
    ASSERT_EQ(ready.rfind("ready", 0), 0U) << ready;
    EXPECT_LT(importer.pid(), exporter.pid());
    EXPECT_EQ(importer.ask("poke 4711"), "ok poke 4711");
    ASSERT_TRUE(criu_->dump(root, images()).good());
    EXPECT_TRUE(wait_for(root).has_value());
    EXPECT_TRUE(eventually([] { return living_children().empty(); })) << "a dumped process still runs";
    ASSERT_TRUE(criu_->restore(images()).good());
    for (GuestSubject* task : {&importer, &exporter}) {
      EXPECT_EQ(task->ask("peek"), "ok peek 4711");
      EXPECT_EQ(task->ask("check").rfind("ok check", 0), 0U);
    }
    EXPECT_EQ(exporter.ask("poke 815"), "ok poke 815");
    EXPECT_EQ(importer.ask("peek"), "ok peek 815");
    for (GuestSubject* task : {&importer, &exporter}) {
      EXPECT_EQ(task->ask("quit"), "ok quit");
      task->forget();
    }
    EXPECT_EQ(wait_for(root), 0);
  }
};

TEST_F(RenderNodes, HandlesWithGapsComeBackByPlaceholders) {
  ASSERT_NO_FATAL_FAILURE(start_subject(with_kfd(kHandlesWithGaps)));
  expect_survives_twice();
}

TEST_F(RenderNodes, TwoFilesOfOneGpuKeepTheirOwn) {
  ASSERT_NO_FATAL_FAILURE(start_subject(with_kfd({"--second-render", "--gem-handles", "2,5"})));
  if (criu_traits().takes_map_fds) return expect_survives_twice();
  ASSERT_NO_FATAL_FAILURE(dump());
  const CriuRun run = criu_->restore(images());
  EXPECT_NE(run.status, 0);
  EXPECT_TRUE(run.said("maps renderD128 through several files"));
}

TEST_F(RenderNodes, AreAllThatAProcessHas) {
  ASSERT_NO_FATAL_FAILURE(start_subject({"--render-only", "--gem-handles", "1,3,70"}));
  expect_survives_twice();
}

TEST_F(RenderNodes, ManyBosComeBack) {
  ASSERT_NO_FATAL_FAILURE(start_subject(with_kfd({"--gem-handles", "count:100"})));
  expect_survives_twice();
}

TEST_F(RenderNodes, ComeBackOnOtherGpus) {
  ASSERT_NO_FATAL_FAILURE(start_subject(with_kfd(kHandlesWithGaps)));
  ASSERT_NO_FATAL_FAILURE(dump());
  ASSERT_NO_FATAL_FAILURE(move_to({.machine = 1}));
  ASSERT_NO_FATAL_FAILURE(restore());
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
}

TEST_F(RenderNodes, LeftRunningGoOn) {
  ASSERT_NO_FATAL_FAILURE(start_subject(with_kfd(kHandlesWithGaps)));
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(criu_->dump(subject_->pid(), images(), {"--leave-running"}).good());
    ASSERT_NO_FATAL_FAILURE(expect_whole());
  }
  EXPECT_EQ(subject_->quit(), 0);
}

// ---- shared by dma-buf

TEST_F(RenderNodes, BosOfTheKfdAreSharedWithRenderFilesOfTwoGpus) {
  ASSERT_NO_FATAL_FAILURE(start_subject(with_kfd({"--share", "kfd", "--gem-handles", "1,3"})));
  expect_survives_twice();
}

TEST_F(RenderNodes, AnOpenDmaBufComesBack) {
  ASSERT_NO_FATAL_FAILURE(start_subject(with_kfd({"--share", "kfd", "--share-fd"})));
  EXPECT_EQ(subject_->ask("poke 4711"), "ok poke 4711");
  ASSERT_NO_FATAL_FAILURE(expect_survives());
  EXPECT_EQ(subject_->ask("peek"), "ok peek 4711");
  ASSERT_NO_FATAL_FAILURE(expect_survives());
  EXPECT_EQ(subject_->quit(), 0);
}

TEST_F(RenderNodes, BosOfARenderFileAreSharedWithOthers) {
  ASSERT_NO_FATAL_FAILURE(
      start_subject({"--render-only", "--second-render", "--share", "gem", "--share-fd"}));
  expect_survives_twice();
}

TEST_F(RenderNodes, TwoProcessesHaveTheSameMemoryAgain) {
  expect_two_have_the_same_memory({"--seed", "2", "--import-from"});
}

// ---- imported into the KFD

TEST_F(RenderNodes, MemoryIsImportedIntoTheKfdOfTheSameProcess) {
  ASSERT_NO_FATAL_FAILURE(start_subject(with_kfd({"--share", "kfd", "--kfd-import"})));
  expect_survives_twice();
}

TEST_F(RenderNodes, MemoryOfARenderFileIsImportedIntoTheKfd) {
  ASSERT_NO_FATAL_FAILURE(start_subject(with_kfd({"--share", "gem", "--kfd-import"})));
  expect_survives_twice();
}

TEST_F(RenderNodes, MemoryIsImportedIntoTheKfdOfAnotherProcess) {
  expect_two_have_the_same_memory({"--seed", "2", "--kfd-import", "--import-from"});
}

// A kernel that does not list them: those that the CPU maps do not get lost.
class UnlistedBos : public Scenario {
 protected:
  void SetUp() override {
    Scenario::SetUp();
    load();
    if (kernel_lists_handles()) GTEST_SKIP() << "this guest's kernel lists BOs";
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

TEST_F(UnlistedBos, AreRefusedByName) {
  ASSERT_NO_FATAL_FAILURE(start_subject(with_kfd({"--gem-handles", "1"})));
  expect_refused("[SL-D54]");
}

TEST_F(UnlistedBos, WithoutKfdAreRefusedByName) {
  ASSERT_NO_FATAL_FAILURE(start_subject({"--render-only", "--gem-handles", "1"}));
  expect_refused("[SL-D54]");
}

}  // namespace
}  // namespace sluice::vm_test
