// SPDX-License-Identifier: MIT
// Memory that several files have by dma-buf, in four hosts: dumped once, made once, and the same memory
// for everyone afterwards.
#include <sys/syscall.h>
#include <unistd.h>

#include <tuple>

#include "lookalike/task_tree.h"
#include "plugin_test.h"

namespace sluice::plugin_test {
namespace {

using lookalike::TaskTree;

class ShareTest : public PluginTest {
 protected:
  static Strings with_kfd(const Strings& more) {
    Strings arguments = {"--vram", "2M", "--gtt", "1M", "--svm-context"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  void start_one(const Strings& arguments) {
    const std::string ready = scene_.start_subject(arguments);
    ASSERT_TRUE(ready.starts_with("ready")) << ready;
    ASSERT_TRUE(heard("check").starts_with("ok check")) << last_;
  }

  // The BOs that a process has imported into its KFD: handle, place, size and the GPUs that have it mapped.
  using Import = std::tuple<std::uint32_t, std::uint64_t, std::uint64_t, std::uint32_t>;
  std::vector<Import> imports_of(pid_t pid) {
    std::vector<Import> imports;
    const auto process = scene_.control().process(pid);
    if (!process) return imports;
    for (const vamdgpu::BoInfo& bo : process->bos) {
      if (bo.imported) imports.emplace_back(bo.kfd_handle, bo.va, bo.size, bo.mapped_gpus);
    }
    return imports;
  }

  // Twice, because the second dump is of a restored process. What is written through one is seen by all.
  void dump_and_restore_twice() {
    come_back_twice();
    EXPECT_EQ(heard("quit"), "ok quit");
  }
  void come_back_twice() {
    for (const char* value : {"4711", "815"}) {
      EXPECT_EQ(heard(std::string("poke ") + value), std::string("ok poke ") + value);
      ASSERT_NO_FATAL_FAILURE(dump());
      ASSERT_NO_FATAL_FAILURE(restore_and_check());
      EXPECT_EQ(heard("peek"), std::string("ok peek ") + value);
      EXPECT_EQ(heard("poke 1"), "ok poke 1");
      EXPECT_EQ(heard("peek"), "ok peek 1");
    }
  }
  // What GPUs keep of it is gone.
  void come_back_whole() {
    ASSERT_NO_FATAL_FAILURE(dump());
    overwrite_gpu_memory();
    ASSERT_NO_FATAL_FAILURE(restore_and_check());
  }
  // A descriptor of our own for the dma-buf that the process has.
  static UniqueFd take_dmabuf(pid_t pid) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
      std::error_code gone;
      if (std::filesystem::read_symlink(entry.path(), gone).string().find("/bufs/") == std::string::npos)
        continue;
      const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0U)));
      return UniqueFd(static_cast<int>(
          ::syscall(SYS_pidfd_getfd, process.get(), std::stoi(entry.path().filename()), 0U)));
    }
    return UniqueFd();
  }
  // The one of the KFD, which the GPUs of the mask have mapped.
  void import_comes_back(const Strings& options, std::uint32_t mapped) {
    ASSERT_NO_FATAL_FAILURE(start_one(with_kfd(options)));
    const std::vector<Import> before = imports_of(scene_.subject_pid());
    ASSERT_EQ(before.size(), 1U);
    EXPECT_EQ(std::get<3>(before.front()), mapped);
    come_back_twice();
    EXPECT_EQ(imports_of(scene_.subject_pid()), before);
    EXPECT_EQ(heard("quit"), "ok quit");
  }
};

TEST_P(ShareTest, ABoOfTheKfdIsImportedIntoRenderFilesOfTwoGpus) {
  ASSERT_NO_FATAL_FAILURE(start_one(with_kfd({"--share", "kfd", "--gem-handles", "1,3"})));
  dump_and_restore_twice();
}

TEST_P(ShareTest, ADescriptorOfTheDmaBufComesBack) {
  ASSERT_NO_FATAL_FAILURE(start_one(with_kfd({"--share", "kfd", "--share-fd"})));
  dump_and_restore_twice();
}

// No render file has it.
TEST_P(ShareTest, ADescriptorOfTheKfdsOwnDmaBufComesBack) {
  ASSERT_NO_FATAL_FAILURE(start_one(with_kfd({"--share", "kfd", "--share-fd", "--share-alone"})));
  dump_and_restore_twice();
}

// The process that made the memory has closed it.
TEST_P(ShareTest, MemoryThatADescriptorAloneHasComesBack) {
  ASSERT_NO_FATAL_FAILURE(start_one(with_kfd({"--dmabuf-fd", "--gem-handles", "1,3"})));
  for (int generation = 0; generation < 2; ++generation) ASSERT_NO_FATAL_FAILURE(come_back_whole());
  EXPECT_EQ(heard("quit"), "ok quit");
}

TEST_P(ShareTest, MemoryThatADescriptorAloneHasComesBackWhereTheKernelListsNoBos) {
  vamdgpu::MachineOptions options = small_machine();
  options.list_handles = false;
  scene_.move_to(options);
  scene_.variables["SLUICE_PARALLEL"] = "off";
  ASSERT_NO_FATAL_FAILURE(start_one(with_kfd({"--dmabuf-fd"})));
  come_back_whole();
}

TEST_P(ShareTest, MemoryThatADescriptorAloneHasComesBackWithoutAFileOfAGpu) {
  ASSERT_NO_FATAL_FAILURE(start_one({"--render-only", "--dmabuf-fd", "--close-render-after-map"}));
  come_back_whole();
}

// As from a container that has the other GPU only.
TEST_P(ShareTest, MemoryOfAGpuThatCriuDoesNotSeeIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start_one({"--render-only", "--dmabuf-fd", "--close-render-after-map"}));
  const std::filesystem::path hidden = scene_.machine().directory() / "hidden";
  std::ofstream(hidden) << "node 1\nrender 128\n";
  EXPECT_EQ(scene_.dump(version()), 1);
  const std::string log = scene_.log();
  EXPECT_NE(log.find("[SL-D26]"), std::string::npos) << log;
  std::ofstream(hidden, std::ios::trunc).flush();
  EXPECT_TRUE(heard("check").starts_with("ok check")) << last_;
}

TEST_P(ShareTest, MemoryThatADescriptorAloneHasIsNotDumpedWithoutTheKey) {
  scene_.variables["SLUICE_KEY_FILE"] = "/nowhere/key";
  ASSERT_NO_FATAL_FAILURE(start_one({"--render-only", "--dmabuf-fd", "--close-render-after-map"}));
  EXPECT_EQ(scene_.dump(version()), 1);
  EXPECT_TRUE(images("amdgpu-").empty());
  EXPECT_TRUE(heard("check").starts_with("ok check")) << last_;
}

// One that a file has, too, and one that nothing else has.
TEST_P(ShareTest, DescriptorsOfTwoDmaBufsComeBack) {
  ASSERT_NO_FATAL_FAILURE(start_one(with_kfd({"--share", "kfd", "--share-fd", "--dmabuf-fd"})));
  come_back_whole();
}

// It would be two memories afterwards.
TEST_P(ShareTest, MemoryThatAnotherProcessHasADescriptorOfIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start_one(with_kfd({"--dmabuf-fd"})));
  const UniqueFd ours = take_dmabuf(scene_.subject_pid());
  ASSERT_TRUE(ours);
  EXPECT_EQ(scene_.dump(version()), 1);
  const std::string log = scene_.log();
  EXPECT_NE(log.find("a process that is not dumped has it, too [SL-D28] [SL-D24]"), std::string::npos) << log;
  expect_running();
}

// And so it is where the process, and not its child, is dumped.
TEST_P(ShareTest, MemoryThatAChildHasADescriptorOfIsRefusedWithoutIt) {
  ASSERT_NO_FATAL_FAILURE(start_one(with_kfd({"--dmabuf-fd", "--fork-child"})));
  const std::string parent = std::to_string(scene_.subject_pid());
  std::string child;
  std::ifstream("/proc/" + parent + "/task/" + parent + "/children") >> child;
  const std::string_view refusal = "a process that is not dumped has it, too";
  EXPECT_EQ(scene_.dump(version()), 1);
  EXPECT_NE(scene_.log().find(refusal), std::string::npos);
  (void)scene_.dump(version(), {"--pid", child});
  EXPECT_EQ(scene_.log().find(refusal), std::string::npos);
}

TEST_P(ShareTest, ABoOfARenderFileIsImportedIntoOthers) {
  ASSERT_NO_FATAL_FAILURE(start_one({"--render-only", "--second-render", "--share", "gem", "--share-fd"}));
  dump_and_restore_twice();
}

TEST_P(ShareTest, ImportsKeepTheirHandlesWhereTheKernelChangesThem) {
  vamdgpu::MachineOptions options = small_machine();
  options.change_handle = true;
  scene_.move_to(options);
  ASSERT_NO_FATAL_FAILURE(start_one(with_kfd({"--share", "kfd", "--gem-handles", "1,5,9"})));
  dump_and_restore_twice();
}

// Of its own memory, at another address; with a hole below its handle, and mapped by both GPUs.
TEST_P(ShareTest, AnImportOfTheKfdComesBack) {
  import_comes_back({"--share", "kfd", "--kfd-import", "--share-fd"}, 3);
}

TEST_P(ShareTest, ABoOfARenderFileIsImportedIntoTheKfd) {
  import_comes_back({"--share", "gem", "--kfd-import"}, 3);
}

// The KFD has it at the same address, and not mapped: it is the render file's map that is there.
TEST_P(ShareTest, AMapOfARenderFileWhereTheKfdHasAnImportComesBack) {
  import_comes_back({"--share", "gem", "--kfd-import-unmapped"}, 0);
}

// It would come back as one that may be written.
TEST_P(ShareTest, ADescriptorThatMayOnlyBeReadIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start_one(with_kfd({"--share", "kfd", "--share-fd-read-only"})));
  EXPECT_EQ(scene_.dump(version()), 1);
  const std::string log = scene_.log();
  EXPECT_NE(log.find("[SL-D25]"), std::string::npos) << log;
  expect_running();
}

// Its contents are in one image only.
TEST_P(ShareTest, IsDumpedOnce) {
  ASSERT_NO_FATAL_FAILURE(start_one(with_kfd({"--share", "kfd"})));
  ASSERT_NO_FATAL_FAILURE(dump());
  EXPECT_TRUE(images("amdgpu-drm-pages-").empty());
  restore_and_check();
}

// Two processes; the one that imports comes first in the tree, and so is asked for its files first.
class ShareTreeTest : public ShareTest {
 protected:
  void SetUp() override {
    start({"--share", "kfd", "--share-fd", "--seed", "1"});
    start({"--import-from", std::to_string(exporter().pid()), "--seed", "2"});
  }
  void start(const Strings& more) {
    const std::string ready = tasks_.add(with_kfd(more), TaskTree::Place::kFirst);
    ASSERT_TRUE(ready.starts_with("ready")) << ready;
  }

  FifoSubject& importer() { return tasks_.front(); }
  FifoSubject& exporter() { return tasks_.back(); }

  void dump_tree() {
    ASSERT_EQ(scene_.dump(version(), tasks_.with_pids()), 0) << scene_.log();
    tasks_.wait_until_dumped();
  }
  void restore_tree() {
    ASSERT_EQ(scene_.start_host(version(), "restore", {}).wait(), 0) << scene_.log();
    ASSERT_TRUE(tasks_.meet_restored());
  }

  TaskTree tasks_{scene_};
};

TEST_P(ShareTreeTest, TwoProcessesHaveTheSameMemoryAgain) {
  EXPECT_EQ(importer().ask("poke 4711"), "ok poke 4711");
  ASSERT_NO_FATAL_FAILURE(dump_tree());
  ASSERT_NO_FATAL_FAILURE(restore_tree());
  for (FifoSubject& task : tasks_) {
    EXPECT_EQ(task.ask("peek"), "ok peek 4711");
    EXPECT_TRUE(task.ask("check").starts_with("ok check"));
  }
  EXPECT_EQ(exporter().ask("poke 815"), "ok poke 815");
  EXPECT_EQ(importer().ask("peek"), "ok peek 815");
  EXPECT_EQ(tasks_.who_does_not_quit(), "");
}

// The importer has it in its KFD, too, as a process that another one has sent a handle.
class KfdImportTreeTest : public ShareTreeTest {
 protected:
  void SetUp() override {
    start({"--share", "kfd", "--share-fd", "--seed", "1"});
    start({"--import-from", std::to_string(exporter().pid()), "--kfd-import", "--seed", "2"});
  }
};

TEST_P(KfdImportTreeTest, TwoKfdProcessesHaveTheSameMemoryAgain) {
  const std::vector<Import> before = imports_of(importer().pid());
  ASSERT_EQ(before.size(), 1U);
  for (const char* value : {"4711", "815"}) {
    EXPECT_EQ(importer().ask(std::string("poke ") + value), std::string("ok poke ") + value);
    ASSERT_NO_FATAL_FAILURE(dump_tree());
    ASSERT_NO_FATAL_FAILURE(restore_tree());
    for (FifoSubject& task : tasks_) {
      EXPECT_EQ(task.ask("peek"), std::string("ok peek ") + value);
      EXPECT_TRUE(task.ask("check").starts_with("ok check"));
    }
    EXPECT_EQ(exporter().ask("poke 1"), "ok poke 1");
    EXPECT_EQ(importer().ask("peek"), "ok peek 1");
    EXPECT_EQ(imports_of(importer().pid()), before);
  }
  EXPECT_EQ(tasks_.who_does_not_quit(), "");
}

// CRIU freezes a cgroup, and with it who shares the memory, but is not of the tree: started there by somebody
// else. What is dumped has to come back without him.
TEST_P(KfdImportTreeTest, WhoIsFrozenWithTheTreeIsNotOfIt) {
  EXPECT_EQ(importer().ask("poke 4711"), "ok poke 4711");
  const auto before = scene_.control().process(exporter().pid());
  ASSERT_TRUE(before.has_value());
  Strings arguments = {"--pid", std::to_string(importer().pid()), "--outside",
                       std::to_string(exporter().pid())};
  ASSERT_EQ(scene_.dump(version(), arguments), 0) << scene_.log();
  const std::string log = scene_.log();
  const auto after = scene_.control().process(exporter().pid());
  ASSERT_TRUE(after.has_value());
  EXPECT_TRUE(after->queues_run());
  EXPECT_TRUE(exporter().ask("check").starts_with("ok check"));
  const int restored = scene_.start_host(version(), "restore", {}).wait();
  if (hooks() < 12) {  // CRIU does not say who is of the tree before it is too late
    EXPECT_NE(log.find("[SL-D17]"), std::string::npos) << log;
    EXPECT_NE(restored, 0);
    return;
  }
  EXPECT_EQ(after->unpauses, before->unpauses) << "its queues were stopped";
  ASSERT_EQ(restored, 0) << scene_.log();
  pid_t pid = 0;
  std::ifstream(scene_.pid_file()) >> pid;
  importer().become(pid);
  EXPECT_EQ(importer().ask("peek"), "ok peek 4711");
  EXPECT_EQ(importer().ask("poke 815"), "ok poke 815");
  EXPECT_EQ(exporter().ask("peek"), "ok peek 4711");
  EXPECT_EQ(tasks_.what_is_not_whole(), "");
  EXPECT_EQ(tasks_.who_does_not_quit(), "");
}

// The rest of the tree waits for what it makes.
TEST_P(ShareTreeTest, WhenTheExporterFailsNobodyWaitsForEver) {
  ASSERT_NO_FATAL_FAILURE(dump_tree());
  scene_.control().inject(
      {.nr = kCriuNr, .op = static_cast<int>(kRestoreOp), .error = ENOMEM, .skip = 1, .times = 0});
  EXPECT_NE(scene_.start_host(version(), "restore", {}).wait(), 0);
  scene_.control().clear_faults();
  tasks_.wait_until_gpus_are_free();
  ASSERT_NO_FATAL_FAILURE(restore_tree());
  EXPECT_EQ(tasks_.wrong_answers({"check"}), "");
}

// Whose GPUs it does not share the names of: the KFD calls them otherwise in every process.
class RenderOnlyAlongsideKfdTest : public ShareTreeTest {
 protected:
  void SetUp() override {
    start({"--seed", "1"});
    const std::string ready = tasks_.add(
        {"--render-only", "--gpus", "2", "--gem-handles", "1,3", "--seed", "2"}, TaskTree::Place::kFirst);
    ASSERT_TRUE(ready.starts_with("ready")) << ready;
  }
};

TEST_P(RenderOnlyAlongsideKfdTest, BothComeBack) {
  for (int generation = 0; generation < 2; ++generation) {
    ASSERT_NO_FATAL_FAILURE(dump_tree());
    ASSERT_NO_FATAL_FAILURE(restore_tree());
    EXPECT_EQ(tasks_.what_is_not_whole(), "");
  }
  EXPECT_EQ(tasks_.who_does_not_quit(), "");
}

INSTANTIATE_TEST_SUITE_P(Hosts, RenderOnlyAlongsideKfdTest, ::testing::ValuesIn(kVersionsOfLongSuites),
                         name_of_version);
INSTANTIATE_TEST_SUITE_P(Hosts, ShareTest, ::testing::ValuesIn(kVersionsOfLongSuites), name_of_version);
INSTANTIATE_TEST_SUITE_P(Hosts, KfdImportTreeTest, ::testing::ValuesIn(kVersionsOfLongSuites),
                         name_of_version);
INSTANTIATE_TEST_SUITE_P(Hosts, ShareTreeTest, ::testing::ValuesIn(kVersionsOfLongSuites), name_of_version);

}  // namespace
}  // namespace sluice::plugin_test
