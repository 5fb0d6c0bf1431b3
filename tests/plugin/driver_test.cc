// SPDX-License-Identifier: MIT
// Drivers that keep other records of BOs than Linux 6.12 does: AMD's out-of-tree one, and one that nobody
// knows.
#include "plugin_test.h"

namespace sluice::host_test {
namespace {

constexpr std::uint32_t kAmdsRecords[] = {VAMDGPU_BO_RECORD_AMD_16, VAMDGPU_BO_RECORD_AMD_64};

vamdgpu::MachineOptions amds(std::uint32_t record_bytes, unsigned gpus = 2) {
  vamdgpu::MachineOptions options = small_machine(gpus);
  options.fabric = vamdgpu::Fabric::Pcie;  // so that GPUs of one machine are as those of another
  options.out_of_tree = "6.10.5";
  options.bo_record_bytes = record_bytes;
  return options;
}

vamdgpu::MachineOptions nobodys(unsigned gpus = 2) {
  return amds(VAMDGPU_BO_RECORD_NOBODYS, gpus);
}

class DriverTest : public PluginTest {
 protected:
  // A job of each driver of AMD's.
  template <class Body>
  void on_each_of_amds(const Strings& subject, Body body) {
    for (const std::uint32_t bytes : kAmdsRecords) {
      SCOPED_TRACE(bytes);
      scene_.move_to(amds(bytes));
      ASSERT_NO_FATAL_FAILURE(start(subject));
      ASSERT_NO_FATAL_FAILURE(body(bytes));
      EXPECT_EQ(heard("quit"), "ok quit");
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

TEST_P(DriverTest, AMDsRecordsComeBackWithSharedMemory) {
  on_each_of_amds({"--share", "kfd", "--kfd-import"}, [&](std::uint32_t) {
    EXPECT_EQ(heard("poke 4711"), "ok poke 4711");
    ASSERT_NO_FATAL_FAILURE(dump());
    ASSERT_NO_FATAL_FAILURE(restore_and_check());
    EXPECT_EQ(heard("peek"), "ok peek 4711");
    EXPECT_EQ(heard("poke 1"), "ok poke 1");
    EXPECT_EQ(heard("peek"), "ok peek 1");
  });
}

TEST_P(DriverTest, AMDsRecordsComeBackWhereMoreGpusAreVisible) {
  on_each_of_amds({}, [&](std::uint32_t bytes) {
    ASSERT_NO_FATAL_FAILURE(dump());
    scene_.move_to(amds(bytes, 3));
    restore_and_check();
  });
}

TEST_P(DriverTest, AnImageOfLinuxIsRefusedByAMDsDriverBeforeThereIsATask) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  for (const std::uint32_t bytes : kAmdsRecords) {
    scene_.move_to(amds(bytes));
    expect_refused("keeps 272 bytes per BO where this one keeps " + std::to_string(bytes));
    EXPECT_EQ(scene_.control().criu_calls(kRestoreOp), 0U);
  }
}

// The handle finds memory that still exists.
TEST_P(DriverTest, IpcHandlesAreWarnedOf) {
  for (const std::uint32_t bytes : kAmdsRecords) {
    vamdgpu::MachineOptions options = amds(bytes);
    options.ipc_handles = true;
    scene_.move_to(options);
    ASSERT_NO_FATAL_FAILURE(start());
    ASSERT_NO_FATAL_FAILURE(dump_with_warning("[SL-D81]"));
    ASSERT_NO_FATAL_FAILURE(restore_and_check());
    EXPECT_EQ(heard("quit"), "ok quit");
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

}  // namespace
}  // namespace sluice::host_test
