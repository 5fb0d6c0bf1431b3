// SPDX-License-Identifier: MIT
// Jobs in containers of Podman, with each runtime: checkpointed, carried away as an archive, restored, as
// docs/user/podman.md says; and what of it can fail.
#include <signal.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>

#include "answered_ioctl.h"
#include "oci_container.h"
#include "podman_fixture.h"

namespace sluice::vm_test {
namespace {

namespace fs = std::filesystem;

// ---- archives

class PodmanArchive : public PodmanScenario {};

// The guide, line by line: the job has one of two GPUs. crun without systemd restores before the device
// cgroup is in force, so its job sees both afterwards; its memory is on its own.
TEST_P(PodmanArchive, RestoresAJobThatHasOneOfTwoGpus) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_job(devices({kFirstGpu})));
  ASSERT_NO_FATAL_FAILURE(move_into(data("job.tar")));
  EXPECT_EQ(sluice({"verify", data("job.tar")}), 0);
  ASSERT_NO_FATAL_FAILURE(restore_from(data("job.tar")));
  expect_gpus(hides_other_gpus_at_once(GetParam()) ? 1 : 2);
  expect_memory_on(machine().gpu_ids().front());
  EXPECT_TRUE(job_->quit());
}

// ---- another machine

class PodmanOnOtherGpus : public PodmanScenario {
 protected:
  // What the guide says for a job that is to move.
  static Strings bind_mounts() {
    struct stat kfd {};
    if (::stat("/dev/kfd", &kfd) != 0) throw std::runtime_error("no /dev/kfd");
    return {"--volume",
            "/dev/kfd:/dev/kfd:dev",
            "--volume",
            "/dev/dri:/dev/dri:dev",
            "--device-cgroup-rule",
            "c 226:* rw",
            "--device-cgroup-rule",
            "c " + std::to_string(gnu_dev_major(kfd.st_rdev)) + ":0 rw"};
  }
};

TEST_P(PodmanOnOtherGpus, AJobWithBindMountsComesBack) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_job(bind_mounts()));
  ASSERT_NO_FATAL_FAILURE(move_into(data("job.tar")));
  ASSERT_NO_FATAL_FAILURE(move_to({.machine = 1}));
  ASSERT_NO_FATAL_FAILURE(restore_from(data("job.tar")));
  expect_gpus(2);
  EXPECT_TRUE(job_->quit());
}

// ---- options

class PodmanOptions : public PodmanScenario {};

// The job has all GPUs, and goes on after the first archive. Each compression; a name of its own.
TEST_P(PodmanOptions, CompressedArchivesComeBackAlsoUnderANewName) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_job(devices({kFirstGpu, kSecondGpu})));
  ASSERT_NO_FATAL_FAILURE(expect_good(job_->checkpoint({"--export", data("job.tar.zst")}, true)));
  ASSERT_NO_FATAL_FAILURE(expect_job_whole());
  ASSERT_NO_FATAL_FAILURE(
      expect_good(job_->checkpoint({"--export", data("job.tar.gz"), "--compress", "gzip"})));
  ASSERT_TRUE(job_->remove());
  ASSERT_NO_FATAL_FAILURE(restore_from(data("job.tar.gz")));
  expect_gpus(2);
  ASSERT_TRUE(job_->remove());
  job_->rename("other");
  ASSERT_NO_FATAL_FAILURE(expect_good(job_->restore({"--import", data("job.tar.zst"), "--name", "other"})));
  ASSERT_NO_FATAL_FAILURE(expect_job_whole());
  EXPECT_TRUE(job_->quit());
}

// Podman makes the archive last. The container is stopped by then, and its images are in its own folder.
TEST_P(PodmanOptions, AnArchiveThatCannotBeMadeDoesNotCostTheJob) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_job(devices({kFirstGpu, kSecondGpu})));
  const CriuRun run = job_->checkpoint({"--export", data("missing") / "job.tar", "--compress", "none"});
  ASSERT_NO_FATAL_FAILURE(expect_failed(run));
  ASSERT_FALSE(job_->subject().alive());
  ASSERT_NO_FATAL_FAILURE(expect_good(job_->restore({"job"})));
  ASSERT_NO_FATAL_FAILURE(expect_job_whole());
  EXPECT_TRUE(job_->quit());
}

// The container keeps the numbers of its devices.
TEST_P(PodmanOptions, AJobWithDevicesIsRefusedWhereTheirNumbersAreOther) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_job(devices({kFirstGpu})));
  ASSERT_NO_FATAL_FAILURE(move_into(data("job.tar")));
  ASSERT_NO_FATAL_FAILURE(move_to({.machine = 1}));
  job_->subject().say("check");
  ASSERT_NO_FATAL_FAILURE(expect_failed(job_->restore({"--import", data("job.tar")})));
  EXPECT_FALSE(job_->subject().has_spoken()) << "the job ran";
}

// ---- what fails

class PodmanFailure : public PodmanScenario {
 protected:
  void SetUp() override {
    PodmanScenario::SetUp();
    if (IsSkipped()) return;
    load();
    // A criu that is watched (answered_ioctl.h) may not suspend the job's own seccomp filter.
    Strings options = devices({kFirstGpu, kSecondGpu});
    options.insert(options.end(), {"--security-opt", "seccomp=unconfined"});
    ASSERT_NO_FATAL_FAILURE(start_job(options));
  }

  // Nothing of the job runs: a question that waits for it is not answered.
  void expect_refused(const fs::path& archive, const std::string& because) {
    job_->subject().say("check");
    const CriuRun run = job_->restore({"--import", archive.string()});
    ASSERT_NO_FATAL_FAILURE(expect_failed(run));
    EXPECT_TRUE(run.said(because)) << "nobody says: " << because;
    EXPECT_FALSE(job_->subject().has_spoken()) << "the job ran";
    EXPECT_TRUE(job_->remove());
  }
};

TEST_P(PodmanFailure, OfADumpLeavesTheJobRunning) {
  {
    const AnsweredIoctl refusal = refused_criu_op(kCheckpoint, EIO);
    podman_->prepare = [&] { refusal.watch_this_process(); };
    const CriuRun run = job_->checkpoint({"--export", data("job.tar"), "--compress", "none"});
    ASSERT_NO_FATAL_FAILURE(expect_failed(run));
    EXPECT_TRUE(run.plugin_said("CHECKPOINT of process"));
  }
  podman_->prepare = {};
  ASSERT_NO_FATAL_FAILURE(expect_job_whole());
  EXPECT_FALSE(fs::exists(data("job.tar")));
  EXPECT_TRUE(job_->quit());
}

std::vector<pid_t> running(const std::string& name) {
  std::vector<pid_t> pids;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid > 0 && read_file(entry.path() / "comm") == name + "\n") pids.push_back(pid);
  }
  return pids;
}

TEST_P(PodmanFailure, OfACriuThatIsKilledIsMadeGoodByUnpause) {
  machine().hold_copies(0);
  const pid_t podman = start(podman_->command(
      {"container", "checkpoint", "--export", data("job.tar"), "--compress", "none", "job"}));
  EXPECT_TRUE(eventually([&] { return machine().holds_a_copy(0); })) << "no copy was started";
  const std::vector<pid_t> criu = running("criu");
  EXPECT_FALSE(criu.empty());
  for (const pid_t pid : criu) (void)::kill(pid, SIGKILL);
  machine().let_copies_end();
  EXPECT_NE(wait_for(podman), 0);
  std::string answer = job_->subject().ask("queue-progress");
  EXPECT_EQ(answer.rfind("ok queue-progress stands", 0), 0U) << answer;
  EXPECT_EQ(sluice({"unpause", std::to_string(job_->pid())}), 0);
  ASSERT_NO_FATAL_FAILURE(expect_job_whole());
  EXPECT_TRUE(job_->quit());
}

// One byte of GPU memory in the middle of the file that has it.
void damage(const fs::path& archive) {
  std::string text = read_file(archive);
  const std::size_t name = text.find("checkpoint/amdgpu-pages-");
  ASSERT_NE(name, std::string::npos);
  const std::size_t size = std::stoull(text.substr(name + 124, 12), nullptr, 8);  // of its tar header
  const std::size_t middle = name + 512 + size / 2;
  ASSERT_LT(middle, text.size());
  std::fstream file(archive, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(middle));
  file.put(static_cast<char>(text[middle] ^ 1));
}

TEST_P(PodmanFailure, OfADamagedArchiveNamesTheBlock) {
  const fs::path whole = data("job.tar"), bad = data("bad.tar"), cut = data("cut.tar");
  ASSERT_NO_FATAL_FAILURE(move_into(whole));
  fs::copy_file(whole, bad);
  ASSERT_NO_FATAL_FAILURE(damage(bad));
  EXPECT_NE(sluice({"verify", bad}), 0);
  ASSERT_NO_FATAL_FAILURE(expect_refused(bad, "is corrupt"));
  fs::copy_file(whole, cut);
  fs::resize_file(cut, fs::file_size(whole) / 2);
  ASSERT_NO_FATAL_FAILURE(expect_refused(cut, "unexpected EOF"));
  // The questions that waited all the time are answered now.
  ASSERT_NO_FATAL_FAILURE(expect_good(job_->restore({"--import", whole})));
  for (int question = 0; question < 2; ++question) {
    const std::string answer = job_->subject().hear();
    EXPECT_EQ(answer.rfind("ok check", 0), 0U) << answer;
  }
  ASSERT_NO_FATAL_FAILURE(expect_job_whole());
  EXPECT_TRUE(job_->quit());
}

INSTANTIATE_TEST_SUITE_P(By, PodmanArchive, testing::Values("runc"), runtime_of);
INSTANTIATE_TEST_SUITE_P(OfEngines, PodmanArchive, testing::Values("crun"), runtime_of);
INSTANTIATE_TEST_SUITE_P(OfEngines, PodmanOnOtherGpus, testing::Values("runc", "crun"), runtime_of);
INSTANTIATE_TEST_SUITE_P(OfEngines, PodmanOptions, testing::Values("runc"), runtime_of);
INSTANTIATE_TEST_SUITE_P(MoreOfEngines, PodmanOptions, testing::Values("crun"), runtime_of);
INSTANTIATE_TEST_SUITE_P(OfEngines, PodmanFailure, testing::Values("runc", "crun"), runtime_of);

}  // namespace
}  // namespace sluice::vm_test
