// SPDX-License-Identifier: MIT
// A dump that fails, and a criu that is killed in the middle of one. The process runs on, and nothing looks
// like a complete image. Its queues run, after `sluice unpause` where criu could not see to it.
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/quota.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "answered_ioctl.h"
#include "scenario.h"

namespace sluice::vm_test {
namespace {

// Hooks (criu-plugin.h).
constexpr unsigned kDumpExtFile = 2, kHandleDeviceVma = 7;

Strings working_subject() {
  return {"--gpus", "2", "--vram", "8M", "--gtt", "1M", "--run-queues", "--svm"};
}

class DumpThatFails : public Scenario {
 protected:
  // A dump by a criu one of whose ioctls is answered here.
  CriuRun dump_with(const AnsweredIoctl& answered) {
    criu_->prepare = [&answered] { answered.watch_this_process(); };
    CriuRun run = criu_->dump(subject_->pid(), images());
    criu_->prepare = {};
    return run;
  }

  // The process is what it was before, and a dump still works.
  void expect_unharmed() {
    ASSERT_TRUE(subject_->alive());
    ASSERT_NO_FATAL_FAILURE(expect_queues_run());
    ASSERT_NO_FATAL_FAILURE(expect_whole());
  }

  void expect_failed(const CriuRun& run, const std::string& because) {
    ASSERT_TRUE(run.status.has_value());
    EXPECT_NE(run.status, 0);
    EXPECT_TRUE(run.plugin_said(because)) << "the plugin does not say: " << because;
  }

  // Whether the process has blocked the signal.
  static bool holds(pid_t pid, int signal) {
    const std::string status = read_file("/proc/" + std::to_string(pid) + "/status");
    const std::size_t blocked = status.find("SigBlk:\t");
    return blocked != std::string::npos &&
           (std::stoull(status.substr(blocked + 8, 16), nullptr, 16) >> (signal - 1) & 1) != 0;
  }

  void expect_next_dump_works() {
    criu_->environment.clear();
    ASSERT_TRUE(criu_->dump(subject_->pid(), images("next")).good());
    ASSERT_TRUE(subject_->reap_dumped());
    ASSERT_TRUE(criu_->restore(images("next")).good());
    ASSERT_NO_FATAL_FAILURE(expect_whole());
    EXPECT_EQ(subject_->quit(), 0);
  }

  // The task still lives while a restore is tried: its pid is taken, which alone would refuse it. So the
  // image is tried when the process is gone, last of all.
  void end_and_expect_no_complete_image() {
    EXPECT_EQ(subject_->quit(), 0);
    expect_no_complete_image(images());
  }
};

TEST_F(DumpThatFails, KfdRefusesToStopTheQueues) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(working_subject()));
  ASSERT_NO_FATAL_FAILURE(
      expect_failed(dump_with(refused_criu_op(kProcessInfo, EIO)), "PROCESS_INFO of process"));
  ASSERT_NO_FATAL_FAILURE(expect_unharmed());
  end_and_expect_no_complete_image();
}

TEST_F(DumpThatFails, KfdRefusesTheCheckpoint) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(working_subject()));
  ASSERT_NO_FATAL_FAILURE(
      expect_failed(dump_with(refused_criu_op(kCheckpoint, ENOMEM)), "CHECKPOINT of process"));
  ASSERT_NO_FATAL_FAILURE(expect_unharmed());
  end_and_expect_no_complete_image();
}

TEST_F(DumpThatFails, CopyEngineReportsAnError) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(working_subject()));
  ASSERT_NO_FATAL_FAILURE(expect_failed(dump_with(failed_fence(EIO)), "Error (DUMP_EXT_FILE): copy chunk "));
  ASSERT_NO_FATAL_FAILURE(expect_unharmed());
  ASSERT_NO_FATAL_FAILURE(expect_next_dump_works());
  expect_no_complete_image(images());
}

TEST_F(DumpThatFails, DiskIsFull) {
  load();
  // One after another, so that it is the plugin and not CRIU that meets it.
  criu_->environment["SLUICE_PARALLEL"] = "off";
  ASSERT_NO_FATAL_FAILURE(start_subject(working_subject()));
  const std::filesystem::path disk = images("full");
  ASSERT_EQ(::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=2M"), 0);
  const CriuRun run = criu_->dump(subject_->pid(), disk / "images");
  const auto unmount = [&] { EXPECT_EQ(::umount(disk.c_str()), 0); };
  expect_failed(run, "No space left on device");
  expect_unharmed();
  EXPECT_EQ(subject_->quit(), 0);
  expect_no_complete_image(disk / "images");
  unmount();
}

// Root's quota on the disk of the images (/mnt), which holds for a root without CAP_SYS_RESOURCE, as
// containers have it. It goes with the object. Throws std::system_error.
class Quota {
 public:
  // What root has there now, and `more` bytes.
  explicit Quota(std::uint64_t more) {
    dqblk now{};
    control(Q_GETQUOTA, &now);
    set((now.dqb_curspace + more) / kBlock);
  }
  ~Quota() {
    try {
      set(0);  // none
    } catch (const std::system_error& e) {
      ADD_FAILURE() << e.what();
    }
  }
  Quota(const Quota&) = delete;
  Quota& operator=(const Quota&) = delete;

 private:
  static constexpr std::uint64_t kBlock = 1024;  // quotactl(2): its limits are in these

  static void set(std::uint64_t blocks) {
    dqblk quota{};
    quota.dqb_bhardlimit = blocks;
    quota.dqb_valid = QIF_BLIMITS;
    control(Q_SETQUOTA, &quota);
  }
  static void control(int command, dqblk* quota) {
    if (::quotactl(QCMD(command, USRQUOTA), "/dev/vdb", 0, reinterpret_cast<caddr_t>(quota)) != 0)
      throw std::system_error(errno, std::generic_category(), "quotactl of /dev/vdb");
  }
};

TEST_F(DumpThatFails, QuotaOfTheDiskIsUsedUp) {
  load();
  criu_->environment["SLUICE_PARALLEL"] = "off";  // as above
  criu_->prepare = [] {
    if (::prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE, 0, 0, 0) != 0) ::_exit(125);
  };
  ASSERT_NO_FATAL_FAILURE(start_subject(working_subject()));
  {
    const std::filesystem::path place = images();
    const Quota quota(2 << 20);
    ASSERT_NO_FATAL_FAILURE(
        expect_failed(criu_->dump(subject_->pid(), place), "Disk quota exceeded; free space"));
  }
  ASSERT_NO_FATAL_FAILURE(expect_unharmed());
  criu_->prepare = {};
  ASSERT_NO_FATAL_FAILURE(expect_next_dump_works());
  expect_no_complete_image(images());
}

// Which criu would be ended by (SIGXFSZ), in the middle.
TEST_F(DumpThatFails, AnImageIsLargerThanAFileMayBe) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(working_subject()));
  criu_->prepare = [] {
    const rlimit limit{rlim_t{4} << 20, rlim_t{4} << 20};  // less than a GPU's VRAM, more than criu's log
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(126);
  };
  ASSERT_NO_FATAL_FAILURE(expect_failed(criu_->dump(subject_->pid(), images()),
                                        "File too large; raise the limit of file sizes (ulimit -f)"));
  ASSERT_NO_FATAL_FAILURE(expect_unharmed());
  expect_no_complete_image(images());
  criu_->prepare = {};
  ASSERT_NO_FATAL_FAILURE(expect_next_dump_works());
}

TEST_F(DumpThatFails, CriuItselfFailsAfterTheGpusWereDumped) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(working_subject()));
  // A post-dump script that says no: criu then lets the process run on.
  const std::filesystem::path script = scratch() / "refuse.sh";
  write_file(script, "#!/bin/sh\n[ \"$CRTOOLS_SCRIPT_ACTION\" != post-dump ]\n");
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  const CriuRun run = criu_->dump(subject_->pid(), images(), {"--action-script", script.string()});
  ASSERT_TRUE(run.status.has_value());
  EXPECT_NE(run.status, 0);
  ASSERT_NO_FATAL_FAILURE(expect_unharmed());
  EXPECT_EQ(subject_->quit(), 0);
}

// After the last hook whose error CRIU heeds, where the host has none later.
TEST_F(DumpThatFails, ItsParentGoesInTheLastMoment) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(working_subject()));
  const std::filesystem::path parent = images("parent");
  ASSERT_TRUE(criu_->dump(subject_->pid(), parent, {"--track-mem", "--leave-running"}).good());
  StoppedCriu stopped(criu_->command(
      "dump", images(),
      {"-t", std::to_string(subject_->pid()), "--track-mem", "--prev-images-dir", "../parent"}));
  ASSERT_TRUE(stopped.run_until(renaming_to("amdgpu-delta-kfd-")));
  std::filesystem::remove_all(parent);
  const std::optional<int> status = wait_for(stopped.let_go());
  ASSERT_TRUE(status.has_value());
  EXPECT_NE(status, 0);
  ASSERT_NO_FATAL_FAILURE(expect_unharmed());
  ASSERT_NO_FATAL_FAILURE(expect_next_dump_works());
  expect_no_complete_image(images());
}

// Which would end criu in the middle, and nobody else may start the queues again. So the plugin holds it
// until they run.
TEST_F(DumpThatFails, SomebodyEndsCriuWithSigterm) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(working_subject()));
  machine().hold_copies(0);
  StoppedCriu stopped(criu_->command("dump", images(), {"-t", std::to_string(subject_->pid())}));
  ASSERT_TRUE(stopped.run_until(before_hook(kDumpExtFile)));
  const pid_t criu = stopped.let_go();
  while (is_alive(criu) && !holds(criu, SIGTERM)) (void)::sched_yield();
  ASSERT_EQ(::kill(criu, SIGTERM), 0);
  EXPECT_TRUE(eventually([&] { return criu_->last_run().plugin_said("[SL-D19]"); }));
  // AMD's driver lets nobody go whose copy is still in the engine.
  machine().let_copies_end();
  EXPECT_EQ(wait_for(criu), 128 + SIGTERM);
  ASSERT_NO_FATAL_FAILURE(expect_unharmed());
  ASSERT_NO_FATAL_FAILURE(expect_next_dump_works());
  expect_no_complete_image(images());
}

// ---- criu killed

struct StopPoint {
  const char* name;
  std::vector<std::function<bool(const SystemCall&)>> way;  // there: one after the other
  bool frozen;                                              // all tasks stood still, and ...
  bool queues_stand;                                        // ... every host's plugin had stopped the queues
  bool image_complete;                                      // everything was written by then
};

void PrintTo(const StopPoint& point, std::ostream* out) {
  *out << point.name;
}

class KilledCriu : public DumpThatFails {
 protected:
  // The kernel sets a process free before its dead tracer can be reaped; the parasite in it ends by itself.
  void expect_let_go() {
    const std::string status = read_file("/proc/" + std::to_string(subject_->pid()) + "/status");
    ASSERT_NE(status.find("TracerPid:\t0\n"), std::string::npos) << status;
  }

  void expect_unpause_helps(bool queues_stand) {
    ASSERT_NO_FATAL_FAILURE(expect_let_go());
    const std::string answer = subject_->ask("queue-progress");
    EXPECT_EQ(answer.rfind(queues_stand ? "ok queue-progress stands" : "ok queue-progress runs", 0), 0U)
        << answer;
    if (!queues_stand) return;
    Launch tool;
    tool.arguments = {(settings().programs / "sluice").string(), "unpause", std::to_string(subject_->pid())};
    tool.output = "/dev/console";
    EXPECT_EQ(run(tool), 0);
  }
};

class KilledAtAPoint : public KilledCriu, public testing::WithParamInterface<StopPoint> {};

TEST_P(KilledAtAPoint, LeavesAProcessThatUnpauseMakesWholeAgain) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(working_subject()));
  {
    StoppedCriu criu(criu_->command("dump", images(), {"-t", std::to_string(subject_->pid())}));
    for (const auto& step : GetParam().way)
      ASSERT_TRUE(criu.run_until(step)) << "criu ended before that point";
  }  // killed
  // Where the host says that all tasks are frozen the plugin stops the queues at once.
  ASSERT_NO_FATAL_FAILURE(expect_unpause_helps(GetParam().queues_stand ||
                                               (GetParam().frozen && criu_traits().begins_when_frozen)));
  ASSERT_NO_FATAL_FAILURE(expect_unharmed());
  EXPECT_EQ(subject_->quit(), 0);
  if (!GetParam().image_complete) expect_no_complete_image(images());
}

INSTANTIATE_TEST_SUITE_P(
    DuringDump, KilledAtAPoint,
    testing::Values(StopPoint{"InInit", {opening("/etc/criu/sluice.conf")}, false, false, false},
                    StopPoint{"AtDeviceMap", {before_hook(kHandleDeviceVma)}, true, false, false},
                    StopPoint{"AtFile", {before_hook(kDumpExtFile)}, true, false, false},
                    StopPoint{"AfterQueuesStopped", {criu_op(kProcessInfo, false)}, true, true, false},
                    StopPoint{"AfterCheckpoint", {criu_op(kCheckpoint, false)}, true, true, false},
                    StopPoint{"BeforeMetadataHasItsName", {renaming_to("amdgpu-kfd-")}, true, true, false},
                    StopPoint{
                        "InExit", {criu_op(kCheckpoint, false), criu_op(kUnpause, true)}, true, true, true}),
    [](const testing::TestParamInfo<StopPoint>& point) { return std::string(point.param.name); });

// A process without /dev/kfd, whose BOs are those of its render files: their metadata comes last, too.
TEST_F(KilledCriu, BeforeARenderFilesMetadataHasItsNameLeavesNoCompleteImage) {
  load();
  if (!kernel_lists_handles()) GTEST_SKIP() << "this guest's kernel lists no BOs";
  ASSERT_NO_FATAL_FAILURE(start_subject({"--gpus", "2", "--render-only", "--gem-handles", "1,3,70"}));
  {
    StoppedCriu criu(criu_->command("dump", images(), {"-t", std::to_string(subject_->pid())}));
    ASSERT_TRUE(criu.run_until(renaming_to("amdgpu-renderD-"))) << "criu ended before that point";
  }  // killed
  ASSERT_NO_FATAL_FAILURE(expect_let_go());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
  expect_no_complete_image(images());
}

// Nobody has unpaused the process: the next dump finds that, and its own unpause makes the queues run.
TEST_F(KilledCriu, IsMadeUpForByTheNextDump) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(working_subject()));
  {
    StoppedCriu criu(criu_->command("dump", images(), {"-t", std::to_string(subject_->pid())}));
    ASSERT_TRUE(criu.run_until(criu_op(kCheckpoint, false)));
  }  // killed
  ASSERT_NO_FATAL_FAILURE(expect_let_go());
  const std::string answer = subject_->ask("check");
  ASSERT_EQ(answer.rfind("ok check", 0), 0U) << answer;
  ASSERT_TRUE(criu_->dump(subject_->pid(), images("second"), {"--leave-running"}).good());
  ASSERT_NO_FATAL_FAILURE(expect_unharmed());
  ASSERT_NO_FATAL_FAILURE(expect_next_dump_works());
}

// The copy is in the GPU when criu dies. Not before its first hook of a file, because newer hosts let the GPU
// copy while they put system calls into the task. A task whose tracer dies in the middle of that dies of it,
// whatever the plugin does.
TEST_F(KilledCriu, WhileTheGpuCopiesLeavesAProcessThatUnpauseMakesWholeAgain) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(working_subject()));
  machine().hold_copies(0);
  StoppedCriu stopped(criu_->command("dump", images(), {"-t", std::to_string(subject_->pid())}));
  ASSERT_TRUE(stopped.run_until(before_hook(kDumpExtFile)));
  const pid_t criu = stopped.let_go();
  EXPECT_TRUE(eventually([&] { return machine().holds_a_copy(0); })) << "no copy was started";
  ASSERT_EQ(::kill(criu, SIGKILL), 0);
  machine().let_copies_end();  // as above
  (void)wait_for(criu);
  ASSERT_NO_FATAL_FAILURE(expect_unpause_helps(true));
  ASSERT_NO_FATAL_FAILURE(expect_unharmed());
  EXPECT_EQ(subject_->quit(), 0);
  expect_no_complete_image(images());
}

}  // namespace
}  // namespace sluice::vm_test
