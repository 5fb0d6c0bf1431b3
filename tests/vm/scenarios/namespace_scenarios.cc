// SPDX-License-Identifier: MIT
// Containers: mount, pid and network namespaces, only some of the GPUs visible, and user namespaces, where
// the kernel refuses to create KFD state.
#include <sched.h>

#include <set>

#include "container.h"
#include "minors.h"
#include "scenario.h"

namespace sluice::vm_test {
namespace {

constexpr const char* kControlInside = "/control";

class Namespaces : public Scenario {
 protected:
  void start_inside(const Container& container, const Launch& launch, const Strings& options) {
    subject_.emplace(container.root() / "control", kControlInside);
    const Strings all = with_common_options(options);
    const std::string ready = subject_->start(all, launch);
    ASSERT_EQ(ready.rfind("ready", 0), 0U) << "the subject said: " << ready;
  }

  void restore_inside(Container& container, const Strings& more = {}) {
    Strings options = container.before_restore();
    options.insert(options.end(), more.begin(), more.end());
    restore_elsewhere(options);
  }

  // The restored process has a new pid here.
  void restore_elsewhere(Strings options) {
    const std::filesystem::path pid_file = scratch() / "pid";
    std::filesystem::remove(pid_file);  // of an earlier restore: criu writes no file that is there
    options.insert(options.end(), {"--pidfile", pid_file.string()});
    ASSERT_NO_FATAL_FAILURE(restore(options));
    subject_->adopt(std::atoi(read_file(pid_file).c_str()));
    ASSERT_TRUE(subject_->alive());
  }

  static Strings small_subject(const std::string& gpus = "2") {
    return {"--gpus", gpus, "--vram", "4M", "--gtt", "1M", "--run-queues"};
  }

  // One of two GPUs: the other has no node in the container, and the device cgroup hides it from KFD and
  // sysfs.
  void expect_comes_back_without(unsigned gpu) {
    const DeviceCgroup box(scratch() / "devices", {device_rule(gpu)});
    Container container(images("root"), {render_minors(2).at(1 - gpu)});
    const Launch launch = container.launch(CLONE_NEWPID, [&] { box.enter(); });
    ASSERT_NO_FATAL_FAILURE(start_inside(container, launch, small_subject("0")));
    const auto process = machine().process(subject_->pid());
    ASSERT_TRUE(process.has_value());
    EXPECT_EQ(process->gpu_ids, std::set<std::uint32_t>{machine().gpu_ids().at(1 - gpu)})
        << "the other GPU is visible";
    ASSERT_NO_FATAL_FAILURE(dump());
    ASSERT_NO_FATAL_FAILURE(restore_inside(container));
    ASSERT_NO_FATAL_FAILURE(expect_queues_run());
    ASSERT_NO_FATAL_FAILURE(expect_whole());
    EXPECT_EQ(subject_->quit(), 0);
    subject_.reset();
  }
};

TEST_F(Namespaces, MountAndPidNamespace) {
  load();
  Container container(images("root"), render_minors(2));
  ASSERT_NO_FATAL_FAILURE(start_inside(container, container.launch(CLONE_NEWPID), small_subject()));
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  ASSERT_NO_FATAL_FAILURE(dump());
  ASSERT_NO_FATAL_FAILURE(restore_inside(container));
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
}

// Tasks do not see the images' directories, nor those of the parents, where criu sees them.
TEST_F(Namespaces, ChainOfParentsThatTheTasksDoNotSee) {
  load();
  Container container(images("root"), render_minors(2));
  ASSERT_NO_FATAL_FAILURE(start_inside(container, container.launch(CLONE_NEWPID), small_subject()));
  ASSERT_NO_FATAL_FAILURE(dump_chain());
  ASSERT_NO_FATAL_FAILURE(restore_inside(container));
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
}

// As `unshare --pid --fork` leaves it: /proc is that of the namespace outside.
TEST_F(Namespaces, PidNamespaceWithoutAProcOfItsOwn) {
  load();
  Launch launch;
  launch.namespaces = CLONE_NEWPID;
  ASSERT_NO_FATAL_FAILURE(start_subject(small_subject(), launch));
  ASSERT_NO_FATAL_FAILURE(dump());
  ASSERT_NO_FATAL_FAILURE(restore_elsewhere({}));
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
}

// Their numbers are the lowest of those that are free while GPU memory is restored, by threads, too.
TEST_F(Namespaces, ThreadsOfATaskAreRestoredWhileAnotherRestoresItsGpuMemory) {
  load();
  Container container(images("root"), render_minors(2));
  Strings options = small_subject();
  options.insert(options.end(), {"--threaded-child", "32"});
  ASSERT_NO_FATAL_FAILURE(start_inside(container, container.launch(CLONE_NEWPID), options));
  ASSERT_NO_FATAL_FAILURE(dump());
  constexpr std::uint64_t kSlowBytesPerSecond = 4 << 20;  // seconds
  for (const unsigned gpu : {0U, 1U}) machine().set_engine_rate(gpu, kSlowBytesPerSecond);
  ASSERT_NO_FATAL_FAILURE(restore_inside(container));
  for (const unsigned gpu : {0U, 1U}) machine().set_engine_rate(gpu, 0);
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
}

TEST_F(Namespaces, CgroupNamespace) {
  load();
  Container container(images("root"), render_minors(2));
  const std::filesystem::path cgroups = "/sys/fs/cgroup", box = cgroups / "box";
  std::filesystem::create_directory(box);
  write_file(box / "cgroup.procs", "0");  // its root is where this process is when it is made
  start_inside(container, container.launch(CLONE_NEWPID | CLONE_NEWCGROUP), small_subject());
  write_file(cgroups / "cgroup.procs", "0");
  if (HasFatalFailure()) return;
  const auto cgroup = [&] { return read_file("/proc/" + std::to_string(subject_->pid()) + "/cgroup"); };
  const auto own_namespace = [&] {
    return std::filesystem::read_symlink("/proc/" + std::to_string(subject_->pid()) + "/ns/cgroup") !=
           std::filesystem::read_symlink("/proc/self/ns/cgroup");
  };
  ASSERT_NE(cgroup().find("0::/box\n"), std::string::npos) << cgroup();
  ASSERT_TRUE(own_namespace());
  ASSERT_NO_FATAL_FAILURE(dump());
  ASSERT_NO_FATAL_FAILURE(restore_inside(container));
  EXPECT_NE(cgroup().find("0::/box\n"), std::string::npos) << cgroup();
  EXPECT_TRUE(own_namespace());
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
  std::filesystem::remove(box);
}

TEST_F(Namespaces, NetworkNamespace) {
  load();
  Container container(images("root"), render_minors(2));
  ASSERT_NO_FATAL_FAILURE(
      start_inside(container, container.launch(CLONE_NEWPID | CLONE_NEWNET), small_subject()));
  const Strings lock = {"--network-lock", criu_traits().network_lock};
  ASSERT_NO_FATAL_FAILURE(dump(lock));
  ASSERT_NO_FATAL_FAILURE(restore_inside(container, lock));
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
}

TEST_F(Namespaces, OnlyOneOfTwoGpusIsVisible) {
  load();
  expect_comes_back_without(1);
}

class HiddenPartitions : public Namespaces, public testing::WithParamInterface<unsigned> {};

// The first is its card's own render node, the second is not.
TEST_P(HiddenPartitions, LeaveTheOtherOfTheirCard) {
  if (!Card::have_dies()) GTEST_SKIP() << "these cards have one die";
  load({.number = 1, .each = Gpus::Each::Dies});
  expect_comes_back_without(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Of, HiddenPartitions, testing::Values(0U, 1U));

// As a runtime leaves it that restores before it sets its device rules: KFD wants to hear of the other GPU,
// too, of which the container has no node.
TEST_F(Namespaces, WhatSeesMoreGpusThanItsDevHasNodesOfIsRestoredOnItsOwn) {
  load();
  const DeviceCgroup box(scratch() / "devices", {device_rule(1)});
  Container container(images("root"), render_minors(1));
  const Launch launch = container.launch(CLONE_NEWPID, [&] { box.enter(); });
  ASSERT_NO_FATAL_FAILURE(start_inside(container, launch, small_subject("0")));
  ASSERT_NO_FATAL_FAILURE(dump());
  box.allow({device_rule(1)});
  ASSERT_NO_FATAL_FAILURE(restore_inside(container));
  EXPECT_TRUE(criu_->last_run().plugin_said("the container had 1 GPU at the dump and sees 2 GPUs now"));
  const auto process = machine().process(subject_->pid());
  ASSERT_TRUE(process.has_value());
  EXPECT_EQ(process->gpu_ids.size(), 2U);
  EXPECT_EQ(process->gpus_with_vram(), std::set{machine().gpu_ids().front()});
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
  subject_.reset();
}

// The same with the nodes of both: what the container was given is nowhere to be seen.
TEST_F(Namespaces, OfWhatSeesMoreGpusAndHasNodesOfAllItIsSaidThatItsOwnAreNotKnown) {
  load();
  const DeviceCgroup box(scratch() / "devices", {device_rule(1)});
  Container container(images("root"), render_minors(2));
  const Launch launch = container.launch(CLONE_NEWPID, [&] { box.enter(); });
  ASSERT_NO_FATAL_FAILURE(start_inside(container, launch, small_subject("0")));
  ASSERT_NO_FATAL_FAILURE(dump());
  const char* const said = "[SL-R20]";
  ASSERT_NO_FATAL_FAILURE(restore_inside(container));
  EXPECT_FALSE(criu_->last_run().plugin_said(said)) << "of a container that sees as many as it had";
  ASSERT_NO_FATAL_FAILURE(dump());
  box.allow({device_rule(1)});
  ASSERT_NO_FATAL_FAILURE(restore_inside(container));
  EXPECT_TRUE(criu_->last_run().plugin_said(said));
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
  subject_.reset();
}

// A container of a user who is root inside only. Its network namespace is its own, or it could not mount
// /sys.
class UserNamespace : public Namespaces {
 protected:
  void SetUp() override {
    Namespaces::SetUp();
    load();
    container_.emplace(images("root"), render_minors(2));
  }
  void TearDown() override {
    subject_.reset();
    container_.reset();
    Namespaces::TearDown();
  }
  void start_in_user_namespace(const Strings& options) {
    start_inside(*container_, container_->launch(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET), options);
  }
  Strings lock() const { return {"--network-lock", criu_traits().network_lock}; }

  std::optional<Container> container_;
};

TEST_F(UserNamespace, DumpWorksAndTheProcessRunsOn) {
  ASSERT_NO_FATAL_FAILURE(start_in_user_namespace(small_subject()));
  Strings options = lock();
  options.emplace_back("--leave-running");
  ASSERT_TRUE(criu_->dump(subject_->pid(), images(), options).good());
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
}

TEST_F(UserNamespace, RestoreOfKfdStateIsRefusedBeforeAnythingIsCreated) {
  ASSERT_NO_FATAL_FAILURE(start_in_user_namespace(small_subject()));
  ASSERT_NO_FATAL_FAILURE(dump(lock()));
  Strings options = container_->before_restore();
  for (const std::string& option : lock()) options.push_back(option);
  const CriuRun run = criu_->restore(images(), options);
  ASSERT_TRUE(run.status.has_value());
  EXPECT_NE(run.status, 0);
  EXPECT_TRUE(run.said("[SL-R23]")) << "the reason is not said";
  EXPECT_EQ(machine().criu_calls(kRestore), 0U) << "RESTORE was tried";
}

TEST_F(UserNamespace, ProcessWithRenderNodesOnlyIsRestored) {
  ASSERT_NO_FATAL_FAILURE(start_in_user_namespace({"--gpus", "2", "--render-only"}));
  ASSERT_NO_FATAL_FAILURE(dump(lock()));
  ASSERT_NO_FATAL_FAILURE(restore_inside(*container_, lock()));
  const std::string answer = subject_->ask("check");
  EXPECT_EQ(answer.rfind("ok check", 0), 0U) << answer;
  EXPECT_EQ(subject_->quit(), 0);
}

TEST_F(Namespaces, ProcessWithRenderNodesOnlyIsRestoredOutsideOfAnyToo) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject({"--gpus", "2", "--render-only"}));
  ASSERT_NO_FATAL_FAILURE(dump());
  ASSERT_NO_FATAL_FAILURE(restore());
  const std::string answer = subject_->ask("check");
  EXPECT_EQ(answer.rfind("ok check", 0), 0U) << answer;
  EXPECT_EQ(subject_->quit(), 0);
}

}  // namespace
}  // namespace sluice::vm_test
