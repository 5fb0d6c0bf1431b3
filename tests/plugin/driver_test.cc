// SPDX-License-Identifier: MIT
// Drivers that keep other records of BOs than Linux 6.12 does: AMD's out-of-tree one in two versions, which
// also lets processes share memory by IPC handles, and one that nobody knows.
#include "lookalike/task_tree.h"
#include "plugin_test.h"

namespace sluice::plugin_test {
namespace {

using lookalike::TaskTree;
using Amds = vamdgpu::OutOfTreeDriver;
constexpr const Amds& kOldest = vamdgpu::kOutOfTreeDrivers[0];  // KFD 1.11: exports no dma-bufs
constexpr const Amds& kNewest = vamdgpu::kOutOfTreeDrivers[1];  // KFD 1.18

vamdgpu::MachineOptions amds(const Amds& driver, unsigned gpus = 2) {
  vamdgpu::MachineOptions options = small_machine(gpus);
  options.fabric = vamdgpu::Fabric::Pcie;  // so that GPUs of one machine are as those of another
  options.out_of_tree = driver.version;
  return options;
}

vamdgpu::MachineOptions nobodys(unsigned gpus = 2) {
  vamdgpu::MachineOptions options = amds(kNewest, gpus);
  options.bo_record_bytes = VAMDGPU_BO_RECORD_NOBODYS;
  options.list_handles = true;
  return options;
}

class DriverTest : public PluginTest {
 protected:
  template <class Body>
  void on_each_of_amds(Body body) {
    for (const Amds& driver : vamdgpu::kOutOfTreeDrivers) {
      SCOPED_TRACE(driver.version);
      scene_.move_to(amds(driver));
      ASSERT_NO_FATAL_FAILURE(body(driver));
    }
  }

  void expect_said(const std::string& what) {
    const std::string log = scene_.log();
    EXPECT_NE(log.find(what), std::string::npos) << "not said: " << what << "\n" << log;
  }

  // Dumps; the log has the warning `id`.
  void dump_with_warning(const std::string& id) {
    ASSERT_EQ(scene_.dump(version()), 0) << scene_.log();
    expect_said(id);
    scene_.wait_until_subject_is_gone();
  }

  void expect_refused(const std::string& why) {
    scene_.control().clear_trace();
    EXPECT_EQ(scene_.restore(version()), 1);
    expect_said(why);
    expect_not_resumed();
  }
};

TEST_P(DriverTest, JobsOfAMDsDriverComeBack) {
  on_each_of_amds([&](const Amds&) {
    ASSERT_NO_FATAL_FAILURE(start({"--svm"}));
    ASSERT_NO_FATAL_FAILURE(dump());
    ASSERT_NO_FATAL_FAILURE(restore_and_check());
    EXPECT_EQ(heard("quit"), "ok quit");
  });
}

// The driver gives an import the flags of the memory's allocation.
TEST_P(DriverTest, MemoryThatAMDsDriverSharesByDmaBufComesBackAsOne) {
  vamdgpu::MachineOptions options = amds(kNewest);
  options.list_handles = true;
  scene_.move_to(options);
  ASSERT_NO_FATAL_FAILURE(start({"--share", "kfd", "--kfd-import"}));
  EXPECT_EQ(heard("poke 4711"), "ok poke 4711");
  ASSERT_NO_FATAL_FAILURE(dump());
  ASSERT_NO_FATAL_FAILURE(restore_and_check());
  EXPECT_EQ(heard("peek"), "ok peek 4711");
  EXPECT_EQ(heard("poke 1"), "ok poke 1");
  EXPECT_EQ(heard("peek"), "ok peek 1");
}

TEST_P(DriverTest, AMDsRecordsComeBackWhereMoreGpusAreVisible) {
  on_each_of_amds([&](const Amds& driver) {
    ASSERT_NO_FATAL_FAILURE(start());
    ASSERT_NO_FATAL_FAILURE(dump());
    scene_.move_to(amds(driver, 3));
    ASSERT_NO_FATAL_FAILURE(restore_and_check());
    EXPECT_EQ(heard("quit"), "ok quit");
  });
}

// At such a process's end the driver may crash the kernel.
TEST_P(DriverTest, AProcessThatMovedAndStillSeesItsOldGpuIsWarnedOf) {
  on_each_of_amds([&](const Amds&) {
    ASSERT_NO_FATAL_FAILURE(start());
    ASSERT_NO_FATAL_FAILURE(dump());
    scene_.variables["SLUICE_GPU_MAP"] = "renderD128=renderD129,renderD129=renderD128";
    ASSERT_EQ(scene_.restore(version()), 0);
    scene_.variables.erase("SLUICE_GPU_MAP");
    expect_said("[SL-R47]");
    EXPECT_EQ(heard("quit"), "ok quit");
  });
}

TEST_P(DriverTest, AnImageOfAnotherDriverIsRefusedBeforeThereIsATask) {
  vamdgpu::MachineOptions linux_61 = amds(kOldest);
  linux_61.out_of_tree.clear();
  linux_61.kfd_minor_version = vamdgpu::kKfdLinux61;
  vamdgpu::MachineOptions linux_612 = linux_61;
  linux_612.kfd_minor_version = vamdgpu::kKfdLinux612;
  const std::pair<vamdgpu::MachineOptions, std::string> drivers[] = {
      {linux_61, "80"}, {amds(kOldest), "104"}, {linux_612, "272"}, {amds(kNewest), "296"}};
  for (const auto& [dumped_on, had] : drivers) {
    scene_.move_to(dumped_on);
    ASSERT_NO_FATAL_FAILURE(start());
    ASSERT_NO_FATAL_FAILURE(dump());
    for (const auto& [restored_on, has] : drivers) {
      if (has == had) continue;
      scene_.move_to(restored_on);
      expect_refused("keeps " + had + " bytes per BO where this one keeps " + has);
      EXPECT_EQ(scene_.control().criu_calls(kRestoreOp), 0U);
    }
  }
}

TEST_P(DriverTest, RecordsThatNobodyKnowsComeBackAndTheDumpSaysWhere) {
  scene_.move_to(nobodys());
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump_with_warning("[SL-D80]"));
  scene_.move_to(nobodys(3));
  expect_refused("restore where 3 GPUs are visible, and not 2");
  EXPECT_EQ(scene_.control().criu_calls(kRestoreOp), 0U);
  scene_.move_to(nobodys());
  restore_and_check();
}

TEST_P(DriverTest, SharedMemoryAmongRecordsThatNobodyKnowsIsRefusedAtTheDump) {
  scene_.move_to(nobodys());
  ASSERT_NO_FATAL_FAILURE(start({"--share", "kfd", "--kfd-import"}));
  EXPECT_EQ(scene_.dump(version()), 1);
  expect_said("[SL-G45]");
  expect_running();
}

// The restore goes on as if both were the same.
TEST_P(DriverTest, ADriverThatDoesNotAnswerIsNotCompared) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  scene_.control().inject({.device = vamdgpu::On::Kfd, .nr = kCriuNr, .op = kProcessInfo, .error = EACCES});
  ASSERT_EQ(scene_.restore(version()), 0) << scene_.log();
  expect_said("[SL-R32]");
  expect_whole();
}

INSTANTIATE_TEST_SUITE_P(Versions, DriverTest, ::testing::Values(kVersions[0], kVersions[2]),
                         name_of_version);

// A process that shares memory by an IPC handle, and one that has imported it.
class IpcTest : public DriverTest {
 protected:
  static Strings job(const Strings& more) {
    Strings arguments = {"--gpus", "1", "--vram", "1M", "--gtt", "1M", "--no-queues"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  template <class Subject>
  static std::string handle_of(Subject& subject) {
    const std::string answer = subject.ask("ipc-handle"), before = "ok ipc-handle ";
    EXPECT_TRUE(answer.starts_with(before)) << answer;
    return answer.substr(std::min(before.size(), answer.size()));
  }

  // Of a dump that was refused.
  void expect_nothing_written() { EXPECT_TRUE(images("amdgpu-").empty()); }
};

TEST_P(IpcTest, ExporterAndImporterComeBackWithOneMemoryAndItsHandle) {
  for (const TaskTree::Place importer_is : {TaskTree::Place::kLast, TaskTree::Place::kFirst}) {
    on_each_of_amds([&](const Amds&) {
      TaskTree tasks(scene_);
      ASSERT_TRUE(tasks.add(job({"--share", "ipc", "--seed", "3"})).starts_with("ready"));
      FifoSubject& exporter = tasks.front();
      const std::string handle = handle_of(exporter);
      const std::string ready = tasks.add(job({"--import-ipc", handle}), importer_is);
      ASSERT_TRUE(ready.starts_with("ready")) << ready;
      FifoSubject& importer = importer_is == TaskTree::Place::kFirst ? tasks.front() : tasks.back();
      ASSERT_EQ(importer.ask("peek"), "ok peek 3");

      for (const std::string value : {"4711", "815"}) {  // a dump of what was restored, too
        ASSERT_EQ(importer.ask("poke " + value), "ok poke " + value);
        ASSERT_EQ(scene_.dump(version(), tasks.with_pids()), 0) << scene_.log();
        expect_said("[SL-D81]");
        tasks.wait_until_dumped();
        ASSERT_NO_FATAL_FAILURE(overwrite_gpu_memory());
        ASSERT_EQ(scene_.start_host(version(), "restore", {}).wait(), 0) << scene_.log();
        ASSERT_TRUE(tasks.meet_restored());
        EXPECT_EQ(exporter.ask("peek"), "ok peek " + value);
        EXPECT_EQ(importer.ask("peek"), "ok peek " + value);
        EXPECT_EQ(exporter.ask("poke 5"), "ok poke 5");
        EXPECT_EQ(importer.ask("peek"), "ok peek 5") << "two memories";
        EXPECT_EQ(handle_of(exporter), handle);
      }
      EXPECT_EQ(tasks.what_is_not_whole(), "");

      const ScratchDirectory later;
      FifoSubject third(later.path() / "third");
      ASSERT_TRUE(third.start(scene_, job({"--import-ipc", handle})).starts_with("ready"));
      EXPECT_EQ(third.ask("peek"), "ok peek 5") << "the handle finds other memory";
      EXPECT_EQ(third.ask("quit"), "ok quit");
      EXPECT_EQ(third.wait(), 0);
      EXPECT_EQ(tasks.who_does_not_quit(), "");
    });
  }
}

TEST_P(IpcTest, MemoryOfAnExporterOutsideIsRefusedBeforeAnythingIsWritten) {
  on_each_of_amds([&](const Amds&) {
    const ScratchDirectory outside;
    FifoSubject exporter(outside.path() / "exporter");
    ASSERT_TRUE(exporter.start(scene_, job({"--share", "ipc", "--seed", "3"})).starts_with("ready"));
    ASSERT_TRUE(scene_.start_subject(job({"--import-ipc", handle_of(exporter)})).starts_with("ready"));
    EXPECT_EQ(scene_.dump(version()), 1);
    expect_said("[SL-D99]");
    expect_nothing_written();
    ASSERT_NO_FATAL_FAILURE(expect_running());
    EXPECT_EQ(heard("peek"), "ok peek 3");
    EXPECT_EQ(heard("quit"), "ok quit");
    EXPECT_EQ(exporter.ask("quit"), "ok quit");
    EXPECT_EQ(exporter.wait(), 0);
  });
}

// RESTORE would take the memory, and write the dump's contents into it.
TEST_P(IpcTest, MemoryThatAnImporterOutsideStillHasEndsTheRestoreBeforeThereIsATask) {
  on_each_of_amds([&](const Amds&) {
    TaskTree tasks(scene_);
    ASSERT_TRUE(tasks.add(job({"--share", "ipc", "--seed", "3"})).starts_with("ready"));
    FifoSubject& exporter = tasks.front();
    const ScratchDirectory outside;
    FifoSubject importer(outside.path() / "importer");
    ASSERT_TRUE(importer.start(scene_, job({"--import-ipc", handle_of(exporter)})).starts_with("ready"));
    ASSERT_EQ(scene_.dump(version(), tasks.with_pids()), 0) << scene_.log();
    expect_said("[SL-D81]");
    (void)exporter.wait();
    ASSERT_EQ(importer.ask("poke 99"), "ok poke 99");

    EXPECT_EQ(scene_.start_host(version(), "restore", {}).wait(), 1);
    expect_said("[SL-R46]");
    EXPECT_EQ(scene_.control().criu_calls(kRestoreOp), 0U);
    EXPECT_EQ(importer.ask("peek"), "ok peek 99");

    EXPECT_EQ(importer.ask("quit"), "ok quit");
    EXPECT_EQ(importer.wait(), 0);
    ASSERT_EQ(scene_.start_host(version(), "restore", {}).wait(), 0) << scene_.log();
    ASSERT_TRUE(tasks.meet_restored());
    EXPECT_EQ(exporter.ask("peek"), "ok peek 3");
    EXPECT_EQ(tasks.what_is_not_whole(), "");
    EXPECT_EQ(tasks.who_does_not_quit(), "");
  });
}

TEST_P(IpcTest, AnExporterThatRunsOnEndsTheRestoreOfItsDump) {
  on_each_of_amds([&](const Amds&) {
    ASSERT_TRUE(scene_.start_subject(job({"--share", "ipc", "--seed", "3"})).starts_with("ready"));
    ASSERT_EQ(scene_.dump(version(), {"--leave-running"}), 0) << scene_.log();
    ASSERT_EQ(heard("poke 99"), "ok poke 99");
    ASSERT_EQ(scene_.start_host(version(), "restore", {}).wait(), 1);
    expect_said("[SL-R46]");
    EXPECT_EQ(heard("peek"), "ok peek 99");
    EXPECT_EQ(heard("quit"), "ok quit");
  });
}

INSTANTIATE_TEST_SUITE_P(Versions, IpcTest, ::testing::Values(kVersions[0], kVersions[2]), name_of_version);

}  // namespace
}  // namespace sluice::plugin_test
