// SPDX-License-Identifier: MIT
// What goes wrong. A dump that fails anywhere leaves the process running with its queues, and no image that
// looks complete. A restore that fails anywhere resumes nothing, says why, and leaves nothing.
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "plugin_test.h"
#include "support/flip_byte.h"

namespace sluice::plugin_test {
namespace {

constexpr std::uint32_t kGetVersionNr = 0x01;
constexpr std::uint32_t kDebugTrapNr = 0x26;

class FailureTest : public PluginTest {
 protected:
  void expect_failed_dump() {
    EXPECT_TRUE(images("amdgpu-kfd-").empty()) << "an image looks complete";
    expect_running();
  }

  void expect_refused(const std::string& why) {
    scene_.control().clear_trace();
    EXPECT_EQ(scene_.restore(version()), 1);
    const std::string log = scene_.log();
    EXPECT_NE(log.find(why), std::string::npos) << "not said: " << why << "\n" << log;
    expect_not_resumed();
  }

  // Lines of the last host's log that speak of `what`.
  std::size_t lines_with(const std::string& what) {
    std::istringstream log(scene_.log());
    std::size_t found = 0;
    for (std::string line; std::getline(log, line);) found += line.find(what) != std::string::npos ? 1U : 0U;
    return found;
  }

  vamdgpu::Fault criu_fault(std::uint32_t op, int error) const {
    return {.device = vamdgpu::On::Kfd, .nr = kCriuNr, .op = static_cast<int>(op), .error = error};
  }
};

TEST_P(FailureTest, AHostThatFailsInTheMiddleOfADump) {
  for (const char* step : {"vmas", "dump_ext_file", "cpu_pages", "late", "inventory"}) {
    SCOPED_TRACE(step);
    ASSERT_NO_FATAL_FAILURE(start());
    EXPECT_EQ(scene_.dump(version(), {"--fail-after", step}), 1);
    ASSERT_NO_FATAL_FAILURE(expect_failed_dump());
    EXPECT_EQ(heard("quit"), "ok quit");
  }
}

TEST_P(FailureTest, ADumpAfterAFailedOneSucceeds) {
  ASSERT_NO_FATAL_FAILURE(start());
  EXPECT_EQ(scene_.dump(version(), {"--fail-after", "cpu_pages"}), 1);
  ASSERT_NO_FATAL_FAILURE(dump());
  restore_and_check();
}

// Nothing of this one has been written, and CRIU has written nothing either where it names the tree in
// advance.
TEST_P(FailureTest, ADumpThatIsRefusedInAdvanceLeavesAnOlderCheckpoint) {
  if (hooks() < 12) GTEST_SKIP() << "CRIU's own images go before this host tells of any file";
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(scene_.dump(version(), {"--leave-running"}), 0) << scene_.log();
  const std::set<std::string> before = images("amdgpu-");
  scene_.control().inject(criu_fault(kCheckpoint, EINVAL));
  EXPECT_EQ(scene_.dump(version()), 1);
  scene_.control().clear_faults();
  EXPECT_EQ(images("amdgpu-"), before);
  ASSERT_NO_FATAL_FAILURE(expect_running());
  EXPECT_EQ(heard("quit"), "ok quit");
  (void)scene_.log();
  ASSERT_EQ(scene_.restore(version()), 0) << scene_.log();
  EXPECT_TRUE(heard("check").starts_with("ok check")) << last_;
}

// The kernel gives a restored SDMA queue its old number, which the dumped process still has.
TEST_P(FailureTest, ARestoreWhileTheDumpedProcessRunsIsToldWhatIsInTheWay) {
  ASSERT_NO_FATAL_FAILURE(start({"--svm-context"}));  // two save areas of BOs are more than the machine has
  ASSERT_EQ(scene_.dump(version(), {"--leave-running"}), 0) << scene_.log();
  (void)scene_.log();
  EXPECT_EQ(scene_.restore(version()), 1);
  const std::string log = scene_.log();
  EXPECT_NE(log.find("another process has an SDMA queue"), std::string::npos) << log;
  EXPECT_NE(log.find("end the dumped process"), std::string::npos) << log;
  ASSERT_NO_FATAL_FAILURE(expect_running());
  EXPECT_EQ(heard("quit"), "ok quit");
  (void)scene_.log();
  ASSERT_EQ(scene_.restore(version()), 0) << scene_.log();
  EXPECT_TRUE(heard("check").starts_with("ok check")) << last_;
}

// Whenever the GPU says so: no image has what came after the reset. Before anything flows, the plugin's part
// of an older checkpoint stays.
TEST_P(FailureTest, AGpuThatLosesItsVramFailsTheDump) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(scene_.dump(version(), {"--leave-running"}), 0) << scene_.log();
  const std::set<std::string> before = images("amdgpu-");
  unsigned failed = 0;
  for (bool fails = true; fails; ++failed) {
    SCOPED_TRACE(failed);
    (void)scene_.log();
    // At the first question nobody knows how often it has been before.
    scene_.control().lose_vram(0, 1 + failed);
    const int status = scene_.dump(version(), {"--leave-running"});
    const std::string log = scene_.log();
    fails = status != 0;
    EXPECT_EQ(fails, log.find("the GPU of renderD128 was reset") != std::string::npos) << log;
    EXPECT_EQ(images("amdgpu-"), failed == 0 || !fails ? before : std::set<std::string>());
    ASSERT_NO_FATAL_FAILURE(expect_running());
  }
  EXPECT_EQ(failed, 4U) << "before the first contents, at a lane's start, at its end; then all is well";
}

// The same: nothing runs that has what came after the reset.
TEST_P(FailureTest, AGpuThatLosesItsVramFailsTheRestore) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  unsigned failed = 0;
  for (bool fails = true; fails; ++failed) {
    SCOPED_TRACE(failed);
    scene_.control().lose_vram(0, 1 + failed);
    const int status = scene_.restore(version());
    const std::string log = scene_.log();
    fails = status != 0;
    EXPECT_EQ(fails, log.find("the GPU of renderD128 was reset") != std::string::npos) << log;
    if (fails) {
      ASSERT_NO_FATAL_FAILURE(expect_not_resumed());
    }
  }
  EXPECT_EQ(failed, 3U) << "at a lane's end, when all have ended; then all is well";
  expect_whole();
}

TEST_P(FailureTest, EachCriuIoctlOfADump) {
  for (const std::uint32_t op : {kProcessInfo, kCheckpoint}) {
    SCOPED_TRACE(op);
    ASSERT_NO_FATAL_FAILURE(start());
    scene_.control().inject(criu_fault(op, EBUSY));
    EXPECT_EQ(scene_.dump(version()), 1);
    scene_.control().clear_faults();
    ASSERT_NO_FATAL_FAILURE(expect_failed_dump());
    EXPECT_EQ(heard("quit"), "ok quit");
  }
}

// What the boundary says of an error is the same in all hosts: one is enough.
class RemedyTest : public FailureTest {};

// Of a GPU. And to criu none of them is "ask another plugin".
TEST_P(RemedyTest, AnErrorIsToldWithWhatCanBeDone) {
  const std::pair<int, const char*> remedies[] = {
      {EPERM, "run criu as root"},    {EMFILE, "RLIMIT_NOFILE is "},
      {ENFILE, "sysctl fs.file-max"}, {ENOMEM, "free memory"},
      {EAGAIN, "; try again"},        {EIO, "[SL-H19]"},
      {ETIMEDOUT, "[SL-H20]"},        {EOPNOTSUPP, "cannot checkpoint queues of this GPU"}};
  ASSERT_NO_FATAL_FAILURE(start({"--vram", "1M"}));
  for (const auto& [error, remedy] : remedies) {
    SCOPED_TRACE(error);
    scene_.control().inject(criu_fault(kCheckpoint, error));
    EXPECT_EQ(scene_.dump(version()), 1);
    EXPECT_EQ(lines_with(remedy), 1U);
    ASSERT_NO_FATAL_FAILURE(expect_failed_dump());
  }
}

// The same errnos mean something else where files, threads or a stream are meant. One that says itself what
// to do is told with nothing more.
TEST_P(RemedyTest, AnErrorOfAGpuIsNotToldWithARemedyForSomethingElse) {
  const std::set<std::string> of_others = {"image directory", "ulimit", "image streamer",
                                           "another checkpoint"};
  ASSERT_NO_FATAL_FAILURE(start({"--vram", "1M"}));
  for (const int error :
       {EROFS, ESTALE, EFBIG, ENOSPC, EDQUOT, EPIPE, ECONNRESET, EBADMSG, EAGAIN, EMFILE, EACCES, EBADF}) {
    SCOPED_TRACE(error);
    scene_.control().inject(criu_fault(kCheckpoint, error));
    EXPECT_EQ(scene_.dump(version()), 1);
    const std::string log = scene_.log();
    EXPECT_NE(log.find("CHECKPOINT of process "), std::string::npos) << log;
    for (const std::string& remedy : of_others) {
      if (error == EMFILE && remedy == "ulimit") continue;  // of descriptors for BOs
      EXPECT_EQ(log.find(remedy), std::string::npos) << log;
    }
    ASSERT_NO_FATAL_FAILURE(expect_failed_dump());
  }
}

// Root may read them all: without that, the owner's mode counts.
TEST_P(RemedyTest, AnImageThatMayNotBeReadIsNotDamaged) {
  constexpr const char* kSetpriv = "/usr/bin/setpriv";
  if (::geteuid() != 0 || !std::filesystem::exists(kSetpriv)) GTEST_SKIP() << "root and setpriv are wanted";
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  scene_.run_by = {kSetpriv, "--bounding-set", "-dac_override,-dac_read_search"};
  for (const std::string prefix :
       {"amdgpu-kfd-", "amdgpu-pages-", "amdgpu-sums-", "amdgpu-renderD-", "mm-"}) {
    const std::string name = *images(prefix).begin();
    SCOPED_TRACE(name);
    std::filesystem::permissions(scene_.images() / name, std::filesystem::perms::none);
    EXPECT_EQ(scene_.restore(version()), 1);
    const std::string log = scene_.log();
    EXPECT_NE(log.find("open " + name + ": Permission denied"), std::string::npos) << log;
    EXPECT_NE(log.find("; criu lacks permission: check owner and mode"), std::string::npos) << log;
    EXPECT_EQ(log.find("damaged"), std::string::npos) << log;
    EXPECT_EQ(log.find("another checkpoint"), std::string::npos) << log;
    EXPECT_EQ(log.find("run criu as root"), std::string::npos) << log;
    ASSERT_NO_FATAL_FAILURE(expect_not_resumed());
    std::filesystem::permissions(scene_.images() / name, std::filesystem::perms::owner_read);
  }
  restore_and_check();
}

// What this machine's sysfs says is in no image.
TEST_P(RemedyTest, ATopologyThatIsNotUnderstoodIsNoDamagedImage) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  const std::filesystem::path gpu_id =
      scene_.machine().directory() / "sysfs/sys/devices/virtual/kfd/kfd/topology/nodes/1/gpu_id";
  ASSERT_TRUE(std::filesystem::remove(gpu_id));
  std::ofstream(gpu_id) << "nonsense";
  EXPECT_EQ(scene_.restore(version()), 1);
  const std::string log = scene_.log();
  EXPECT_NE(log.find("/gpu_id is 'nonsense'"), std::string::npos) << log;
  EXPECT_EQ(log.find("another checkpoint"), std::string::npos) << log;
  expect_not_resumed();
}

TEST_P(RemedyTest, WhatIsInTheWayOfAnImageIsToBeMoved) {
  ASSERT_NO_FATAL_FAILURE(start());
  std::filesystem::create_directories(scene_.images() / "amdgpu-kfd-1.img");
  EXPECT_EQ(scene_.dump(version()), 1);
  EXPECT_EQ(lines_with("remove stale amdgpu-kfd-1.img: Is a directory; move it out of the image directory"),
            1U);
  std::filesystem::remove(scene_.images() / "amdgpu-kfd-1.img");
  expect_failed_dump();
}

// Which of them the restored process would get back through which is not told apart yet.
TEST_P(FailureTest, AnInheritedFileBesideAnotherOfOneKfdProcessIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start({"--second-kfd", "--fork-child"}));
  const std::string parent = std::to_string(scene_.subject_pid());
  const std::string child = read_file("/proc/" + parent + "/task/" + parent + "/children");
  EXPECT_EQ(scene_.dump(version(), {"--pid", child}), 1);
  EXPECT_EQ(lines_with("[SL-D35]"), 1U);
  expect_failed_dump();
}

// The KFD state would come back in the process that borrowed the file.
TEST_P(FailureTest, AFileThatAProcessOfAHigherPidHasOpenedIsRefused) {
  ASSERT_TRUE(scene_.start_subject({"--plain", "--borrowed-kfd"}).starts_with("ready"));
  const std::string parent = std::to_string(scene_.subject_pid());
  const std::string child = read_file("/proc/" + parent + "/task/" + parent + "/children");
  EXPECT_EQ(scene_.dump(version(), {"--pid", child}), 1);
  const std::string log = scene_.log();
  EXPECT_NE(log.find("[SL-D38]"), std::string::npos) << log;
  EXPECT_TRUE(images("amdgpu-").empty());
  EXPECT_TRUE(heard("check").starts_with("ok check")) << last_;
}

// The kernel lists its secondary contexts, which its checkpoint leaves out.
TEST_P(FailureTest, AProcessWithSecondaryContextsIsRefusedByName) {
  ASSERT_NO_FATAL_FAILURE(start());
  const std::filesystem::path listed = scene_.machine().directory() /
                                       "sysfs/sys/devices/virtual/kfd/kfd/proc" /
                                       std::to_string(scene_.subject_pid()) / "context_1";
  std::filesystem::create_directories(listed);
  EXPECT_EQ(scene_.dump(version()), 1);
  EXPECT_NE(scene_.log().find("has secondary KFD contexts"), std::string::npos);
  expect_failed_dump();
}

// The KFD says that it has no event for a debugger: so there is one.
TEST_P(FailureTest, ADebuggedProcessIsRefusedByName) {
  ASSERT_NO_FATAL_FAILURE(start());
  scene_.control().inject({.device = vamdgpu::On::Kfd, .nr = kDebugTrapNr, .error = EAGAIN});
  EXPECT_EQ(scene_.dump(version()), 1);
  EXPECT_NE(scene_.log().find("is debugged through the KFD"), std::string::npos);
  expect_failed_dump();
}

TEST_P(FailureTest, AFenceThatFailsFailsTheDump) {
  ASSERT_NO_FATAL_FAILURE(start());
  scene_.control().fail_fence(1, 0, EIO);
  EXPECT_EQ(scene_.dump(version()), 1);
  scene_.control().clear_faults();
  expect_failed_dump();
}

TEST_P(FailureTest, AFenceThatFailsFailsTheRestore) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  scene_.control().fail_fence(0, 0, EIO);
  EXPECT_EQ(scene_.restore(version()), 1) << scene_.log();
  scene_.control().clear_faults();
  expect_not_resumed();
}

TEST_P(FailureTest, EachCriuIoctlOfARestore) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  scene_.control().inject(criu_fault(kRestoreOp, EINVAL));
  EXPECT_EQ(scene_.restore(version()), 1) << scene_.log();
  scene_.control().clear_faults();
  expect_not_resumed();
  // A failed RESUME kills the task: CRIU ignores the hook's answer.
  scene_.control().inject(criu_fault(kResume, EINVAL));
  EXPECT_EQ(scene_.restore(version()), 1) << scene_.log();
  scene_.control().clear_faults();
  EXPECT_TRUE(scene_.control().processes().empty());
  EXPECT_EQ(scene_.control().counts(), vamdgpu::Counts());
}

TEST_P(FailureTest, ATaskThatFailsAfterItsContentsWereHandedOver) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  for (const char* step : {"restore_ext_file", "update_vma_map", "restored", "post_forking", "seized"}) {
    SCOPED_TRACE(step);
    EXPECT_EQ(scene_.restore(version(), {"--fail-after", step}), 1) << scene_.log();
    expect_not_resumed();
  }
  restore_and_check();
}

// Tasks are waited for, which were killed; nobody has killed that one.
TEST_P(FailureTest, AChildOfTheHostThatIsNoTaskIsNotWaitedFor) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  EXPECT_EQ(scene_.restore(version(), {"--cgroupd", "--fail-after", "post_forking"}), 1);
  EXPECT_EQ(lines_with("has not ended yet"), 0U);
  expect_not_resumed();
  ASSERT_EQ(scene_.restore(version(), {"--cgroupd"}), 0) << scene_.log();
  expect_whole();
}

// The number of a helper that was waited for may be anybody's.
TEST_P(FailureTest, AProcessThatHasTheNumberOfAHelperIsNotKilled) {
  Program bystander({"/bin/cat"}, {});
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  for (const std::uint32_t calls_before : {0U, 1U}) {  // it fails for the helper, or for a task
    vamdgpu::Fault fault = criu_fault(kResume, EINVAL);
    fault.skip = calls_before;
    scene_.control().inject(fault);
    EXPECT_EQ(scene_.restore(version(), {"--helper", std::to_string(bystander.pid())}), 1);
    scene_.control().clear_faults();
    EXPECT_EQ(scene_.control().counts(), vamdgpu::Counts());
    EXPECT_EQ(bystander.ask("still there"), "still there");
  }
}

// CRIU asks no plugin after one that has answered, and lets the tasks run.
TEST_P(FailureTest, TasksThatRunWithoutHavingBeenResumedAreKilledAloud) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  Program host = scene_.start_host(version(), "restore", {"--resumed-elsewhere"});
  EXPECT_EQ(host.wait(), 0) << scene_.log();
  ASSERT_EQ(lines_with("[SL-R29]"), 1U);
  scene_.wait_until_subject_is_gone();
  ASSERT_EQ(scene_.restore(version()), 0) << scene_.log();
  expect_whole();
}

TEST_P(FailureTest, ACorruptedBlockIsNamedAndNothingIsResumed) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  const std::set<std::string> pages = images("amdgpu-pages-1-");
  ASSERT_EQ(pages.size(), 2U);
  const auto size = std::filesystem::file_size(scene_.images() / *pages.rbegin());
  // First payload byte, somewhere in the middle, last byte; a hole, too, may hold what it should not.
  for (const std::uint64_t offset : {std::uint64_t{8}, size / 2 + 13, size - 1}) {
    SCOPED_TRACE(offset);
    test::flip_byte(scene_.images() / *pages.rbegin(), offset);
    expect_refused(*pages.rbegin());
    test::flip_byte(scene_.images() / *pages.rbegin(), offset);
  }
  restore_and_check();
}

// Neither is it copied first and compared then.
TEST_P(FailureTest, ADamagedBlockDoesNotReachTheGpu) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  const std::string name = *images("amdgpu-pages-1-").rbegin();
  ASSERT_NO_FATAL_FAILURE(overwrite_block(scene_.images() / name));
  ASSERT_NO_FATAL_FAILURE(overwrite_gpu_memory());
  expect_refused(name);
  EXPECT_FALSE(gpu_memory_has(kFoundNowhereElse));
  // It would be seen.
  scene_.variables["SLUICE_CHECKSUM"] = "off";
  ASSERT_EQ(scene_.restore(version()), 0) << scene_.log();
  EXPECT_TRUE(gpu_memory_has(kFoundNowhereElse));
}

TEST_P(FailureTest, AFailureIsToldOnce) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  const std::string name = *images("amdgpu-pages-1-").begin();
  test::flip_byte(scene_.images() / name, 8);
  (void)scene_.log();
  EXPECT_EQ(scene_.restore(version()), 1);
  EXPECT_EQ(lines_with("[SL-C06]"), 1U);
}

// Then extra threads hash, in addition to those of the lanes.
TEST_P(FailureTest, ACorruptBlockIsFoundWithManyProcessorsToo) {
  scene_.variables["VAMDGPU_CPUS"] = "16";
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  ASSERT_NO_FATAL_FAILURE(restore_and_check());
  ASSERT_NO_FATAL_FAILURE(dump());
  const std::string name = *images("amdgpu-pages-1-").begin();
  test::flip_byte(scene_.images() / name, kMiB + 8);
  expect_refused(name);
}

TEST_P(FailureTest, ATruncatedPagesFileIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  const std::string name = *images("amdgpu-pages-1-").begin();
  const auto size = std::filesystem::file_size(scene_.images() / name);
  std::filesystem::resize_file(scene_.images() / name, size - 4096);
  expect_refused(name);
}

TEST_P(FailureTest, AMissingPagesFileIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  const std::string name = *images("amdgpu-pages-1-").begin();
  std::filesystem::remove(scene_.images() / name);
  expect_refused(name);
}

TEST_P(FailureTest, ACorruptedMetadataImageIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  const auto size = std::filesystem::file_size(scene_.images() / "amdgpu-kfd-1.img");
  std::filesystem::resize_file(scene_.images() / "amdgpu-kfd-1.img", size / 2);
  expect_refused("amdgpu-kfd-1.img");
}

TEST_P(FailureTest, ACorruptedSidecarIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  const std::string name = *images("amdgpu-sums-1-").begin();
  const auto size = std::filesystem::file_size(scene_.images() / name);
  test::flip_byte(scene_.images() / name, size - 20);
  expect_refused(name);
}

TEST_P(FailureTest, ADumpWithoutChecksumsRestoresWithAWarning) {
  scene_.variables["SLUICE_CHECKSUM"] = "off";
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  scene_.variables.clear();
  EXPECT_TRUE(images("amdgpu-sums-").empty());
  ASSERT_EQ(scene_.restore(version()), 0) << scene_.log();
  EXPECT_NE(scene_.log().find("amdgpu-sums-"), std::string::npos);
  expect_whole();
}

// Beside an older dump's pages nothing else would tell.
TEST_P(FailureTest, LostChecksumsAreRefusedUnlessTheUserWantsNone) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  for (const std::string& name : images("amdgpu-sums-")) std::filesystem::remove(scene_.images() / name);
  expect_refused("amdgpu-sums-");
  scene_.variables["SLUICE_CHECKSUM"] = "off";
  ASSERT_EQ(scene_.restore(version()), 0) << scene_.log();
  expect_whole();
}

// Whatever is wrong with this machine's KFD. Images of the oldest host do not tell that no plugin is needed.
TEST_P(FailureTest, AProcessWithoutAGpuIsRestoredThoughTheKfdCannotBeUsed) {
  ASSERT_NO_FATAL_FAILURE(start({"--plain"}));
  ASSERT_NO_FATAL_FAILURE(dump_with("3.17.1"));
  EXPECT_TRUE(images("amdgpu-").empty());
  scene_.control().inject({.device = vamdgpu::On::Kfd, .nr = kGetVersionNr, .error = EPERM, .times = 0});
  ASSERT_EQ(scene_.restore(version()), 0) << scene_.log();
  EXPECT_EQ(lines_with("amdgpu_plugin: "), 0U);
  EXPECT_TRUE(heard("check").starts_with("ok check")) << last_;
  EXPECT_EQ(heard("quit"), "ok quit");
}

TEST_P(FailureTest, FewerGpusAreRefusedBeforeAnythingIsCreated) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  scene_.move_to(small_machine(1));
  EXPECT_EQ(scene_.restore(version()), 1);
  EXPECT_EQ(scene_.control().criu_calls(kRestoreOp), 0U);
  expect_not_resumed();
}

TEST_P(FailureTest, AnotherKernelsPrivateDataIsRefusedBeforeAnythingIsCreated) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  vamdgpu::MachineOptions older = small_machine();
  older.bo_record_bytes = 80;
  scene_.move_to(older);
  EXPECT_EQ(scene_.restore(version()), 1);
  expect_not_resumed();
}

// KFD 1.12 to 1.16 have records of either size: the kernel is asked.
TEST_P(FailureTest, AKernelWhoseVersionDoesNotTellTheSizeOfItsRecordsIsAsked) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  vamdgpu::MachineOptions between = small_machine();
  between.kfd_minor_version = 14;
  for (const std::uint32_t bytes : {80U, 272U}) {
    SCOPED_TRACE(bytes);
    between.bo_record_bytes = bytes;
    scene_.move_to(between);
    if (bytes == 272) {
      restore_and_check();
    } else {
      expect_refused("keeps 272 bytes per BO where this one keeps 80");
      EXPECT_EQ(scene_.control().criu_calls(kRestoreOp), 0U);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Newest, RemedyTest, ::testing::Values(kVersions[3]), name_of_version);
INSTANTIATE_TEST_SUITE_P(Versions, FailureTest, ::testing::ValuesIn(kVersionsOfLongSuites), name_of_version);

}  // namespace
}  // namespace sluice::plugin_test
