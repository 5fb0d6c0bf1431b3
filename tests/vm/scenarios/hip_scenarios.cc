// SPDX-License-Identifier: MIT
// Jobs on HIP (tests/vm/client/hip_jobs.hip) that are dumped in the middle of a kernel: AMD's driver and its
// trap handler, AMD's runtime, code of AMD's compiler, real criu. The card executes the kernels
// (tests/card/shader) and lets them stand at the instruction that a job names, so that each dump meets waves.
//
// Starting HIP takes 20 seconds under emulation, most of them for what the runtime compiles. So it is started
// once, dumped while idle, and every scenario restores that. Not on Linux 7.2, whose restored queues cannot
// be stopped in a kernel (docs/user/limitations.md), and not with HIP 5.2 (Debian 12):
// its thunk maps a semaphore without a name, for which CRIU makes one that serves a single restore.
#include <algorithm>
#include <array>

#include "scenario.h"
#include "streamer.h"

namespace sluice::vm_test {
namespace {

namespace fs = std::filesystem;

enum class Way { Full, Chain, PreDump, OtherGpu, Stream, LeftRunning };

struct Job {
  const char* name;
  std::uint64_t stands_after;  // instructions of its waves, all together
  bool drawn = true;
};
// In the middle of each: a job has 8 waves, all of its kernels some thousand instructions or more. The last
// one starts a second process with HIP, which takes long.
constexpr std::array kJobs = {
    Job{"add", 70},         Job{"saxpy", 6000},      Job{"reduction", 900}, Job{"atomics", 1500},
    Job{"generator", 9000}, Job{"persistent", 3000}, Job{"streams", 5000},  Job{"scratch", 4000},
    Job{"managed", 40},     Job{"gemm", 1000},       Job{"scan", 1500},     Job{"graph", 4000},
    Job{"ipc", 900, false},
};
constexpr std::array kWays = {
    std::pair{Way::Full, "Full"},       std::pair{Way::Chain, "Chain"},
    std::pair{Way::PreDump, "PreDump"}, std::pair{Way::OtherGpu, "OtherGpu"},
    std::pair{Way::Stream, "Stream"},   std::pair{Way::LeftRunning, "LeftRunning"},
};

using Frozen = std::pair<Job, std::pair<Way, const char*>>;

std::string name_of(const testing::TestParamInfo<Frozen>& info) {
  return std::string(info.param.first.name) + "_" + info.param.second.second;
}

// One way for each job that is drawn, every way twice; and all the others.
std::vector<Frozen> frozen(bool drawn) {
  std::vector<Frozen> all;
  for (std::size_t job = 0; job < kJobs.size(); ++job) {
    for (std::size_t way = 0; way < kWays.size(); ++way) {
      const bool this_one = kJobs[job].drawn && job % kWays.size() == way;
      if (this_one == drawn) all.emplace_back(kJobs[job], kWays[way]);
    }
  }
  return all;
}

// Linux 7.2 does not save the control stack of waves (docs/internals/differences.md).
bool waves_are_lost() {
  return kernel_version() >= KernelVersion{7, 2};
}

class HipScenario : public Scenario {
 protected:
  void TearDown() override {
    if (machine().loaded()) machine().let_kernels_go();
    Scenario::TearDown();
  }

  void start_program() {
    load(kOneGpu);
    if (waves_are_lost() || kernel_version() < KernelVersion{6, 12}) return begin_program();
    ASSERT_NO_FATAL_FAILURE(dump_idle_program());
    subject_.emplace(kFifos);
    fs::copy(idle_ / "shm", "/dev/shm", fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    subject_->adopt(idle_pid_);
    ASSERT_TRUE(criu_->restore(idle_).good());
  }

  void expect_answer(const std::string& command) {
    EXPECT_EQ(subject_->ask(command), "ok " + command.substr(0, command.find(' ')));
  }

  // The kernels of `job` are begun, and stand.
  void stand_in(const Job& job) {
    machine().hold_kernels(job.stands_after);
    ASSERT_NO_FATAL_FAILURE(expect_answer("launch"));
    ASSERT_NO_FATAL_FAILURE(expect_to_stand());
  }
  // The same kernels, some instructions later.
  void stand_later() {
    machine().hold_kernels(10);
    ASSERT_NO_FATAL_FAILURE(expect_to_stand());
  }

  void dump_program(const Strings& more = {}) {
    const std::uint64_t saved = machine().counted("waves_saved");
    Strings options = {"--link-remap"};
    options.insert(options.end(), more.begin(), more.end());
    ASSERT_NO_FATAL_FAILURE(dump(options));
    EXPECT_GT(machine().counted("waves_saved"), saved) << "nothing was dumped in the middle of a kernel";
  }

  static constexpr Gpus kOneGpu{.number = 1, .vram_mib = 256};

 private:
  static constexpr const char* kFifos = "/run/hip-jobs";
  static inline fs::path idle_;
  static inline pid_t idle_pid_ = 0;

  void begin_program() {
    subject_.emplace(kFifos);
    Launch launch;
    launch.arguments = {(settings().programs / "hip-jobs").string(), kFifos};
    launch.output = "/dev/null";
    const std::string ready = subject_->start_program(launch);
    ASSERT_EQ(ready, "ready gpus=1");
  }

  void dump_idle_program() {
    if (!idle_.empty()) return;
    ASSERT_NO_FATAL_FAILURE(begin_program());
    const fs::path images = settings().images / "hip-jobs";
    fs::remove_all(images);
    fs::create_directories(images);
    idle_pid_ = subject_->pid();
    ASSERT_TRUE(criu_->dump(idle_pid_, images).good());
    ASSERT_TRUE(subject_->reap_dumped());
    fs::copy("/dev/shm", images / "shm", fs::copy_options::recursive);
    idle_ = images;
  }

  void expect_to_stand() {
    const std::uint64_t before = machine().counted("shader_holds");
    ASSERT_TRUE(eventually([&] { return machine().counted("shader_holds") > before; }))
        << "the job ended, or never began";
  }
};

class OfHip : public HipScenario, public testing::WithParamInterface<Frozen> {
 protected:
  const Job& job() const { return GetParam().first; }

  // What the runtime and this kernel do not let a job have.
  void prepare() {
    const std::string name = job().name;
    const std::string answer = subject_->ask("prepare " + name);
    const std::string call = name == "ipc" ? "hipIpc" : name == "managed" ? "hipMallocManaged" : "";
    if (!call.empty() && answer.starts_with("bad ") && answer.find(call) != std::string::npos)
      GTEST_SKIP() << "not on this kernel and runtime: " << answer;
    ASSERT_EQ(answer, "ok prepare");
  }

  void dump_as(Way way) {
    switch (way) {
      case Way::Full:
      case Way::OtherGpu:
        return dump_program();
      case Way::Chain:
        ASSERT_TRUE(
            criu_->dump(subject_->root(), images("first"), {"--track-mem", "--link-remap", "--leave-running"})
                .good());
        ASSERT_NO_FATAL_FAILURE(stand_later());
        return dump_program({"--track-mem", "--prev-images-dir", "../first"});
      case Way::PreDump:
        ASSERT_TRUE(criu_->pre_dump(subject_->root(), images("first"), {"--track-mem"}).good());
        ASSERT_NO_FATAL_FAILURE(stand_later());
        return dump_program({"--track-mem", "--prev-images-dir", "../first"});
      case Way::Stream:
        streamer_.emplace(images(), images("stream") / "image");
        ASSERT_EQ(streamer_->begin("capture"), "");
        ASSERT_NO_FATAL_FAILURE(dump_program({"--stream"}));
        EXPECT_TRUE(streamer_->ended());
        return;
      case Way::LeftRunning:
        ASSERT_TRUE(criu_->dump(subject_->root(), images(), {"--leave-running", "--link-remap"}).good());
        return;
    }
  }

  // A pre-dump takes what it can get; every dump is refused, and the job goes on.
  void expect_refused(Way way) {
    if (way == Way::PreDump) {
      ASSERT_TRUE(criu_->pre_dump(subject_->root(), images("first"), {"--track-mem"}).good());
    }
    const CriuRun run = criu_->dump(subject_->root(), images());
    EXPECT_FALSE(run.good());
    EXPECT_TRUE(run.plugin_said("[SL-D85]")) << run.log;
    machine().let_kernels_go();
  }

  void restore_as(Way way) {
    machine().let_kernels_go();
    if (way == Way::LeftRunning) return;
    if (way == Way::OtherGpu) {
      Gpus other = kOneGpu;
      other.machine = 1;
      ASSERT_NO_FATAL_FAILURE(move_to(other));
    }
    const std::uint64_t resumed = machine().counted("waves_resumed");
    if (way == Way::Stream) {
      ASSERT_EQ(streamer_->begin("serve"), "");
    }
    ASSERT_NO_FATAL_FAILURE(restore(way == Way::Stream ? Strings{"--stream"} : Strings{}));
    ASSERT_NO_FATAL_FAILURE(expect_answer("finish"));
    EXPECT_GT(machine().counted("waves_resumed"), resumed);
  }

  std::optional<Streamer> streamer_;
};

TEST_P(OfHip, FrozenInAKernelEndsRight) {
  ASSERT_NO_FATAL_FAILURE(start_program());
  ASSERT_NO_FATAL_FAILURE(prepare());
  if (IsSkipped()) return;
  ASSERT_NO_FATAL_FAILURE(stand_in(job()));
  const Way way = GetParam().second.first;
  if (waves_are_lost()) {
    ASSERT_NO_FATAL_FAILURE(expect_refused(way));
  } else {
    ASSERT_NO_FATAL_FAILURE(dump_as(way));
    ASSERT_NO_FATAL_FAILURE(restore_as(way));
  }
  if (way == Way::LeftRunning || waves_are_lost()) {
    ASSERT_NO_FATAL_FAILURE(expect_answer("finish"));
  }
  // And it goes on.
  for (const char* command : {"prepare reduction", "launch", "finish"}) {
    ASSERT_NO_FATAL_FAILURE(expect_answer(command));
  }
  EXPECT_EQ(subject_->quit(), 0);
}

using OfHipWaits = HipScenario;

// Where waves would be lost, the dump lets them end.
TEST_F(OfHipWaits, ForKernelsThatEndInTime) {
  if (!waves_are_lost()) GTEST_SKIP() << "this kernel saves waves";
  ASSERT_NO_FATAL_FAILURE(start_program());
  ASSERT_NO_FATAL_FAILURE(expect_answer("prepare generator"));
  ASSERT_NO_FATAL_FAILURE(stand_in({"generator", 9000}));
  criu_->environment["SLUICE_WAVES_TIMEOUT"] = std::to_string(kPatience.count());
  const std::uint64_t saved = machine().counted("waves_saved");
  const pid_t criu =
      vm_test::start(criu_->command("dump", images(), {"-t", std::to_string(subject_->root())}));
  EXPECT_TRUE(eventually([&] { return machine().counted("waves_saved") > saved; }))
      << "the dump met no waves";
  machine().let_kernels_go();
  ASSERT_EQ(wait_for(criu), 0) << criu_->last_run().log;
  ASSERT_TRUE(subject_->reap_dumped());
  ASSERT_NO_FATAL_FAILURE(restore());
  ASSERT_NO_FATAL_FAILURE(expect_answer("finish"));
  EXPECT_EQ(subject_->quit(), 0);
}

INSTANTIATE_TEST_SUITE_P(Drawn, OfHip, testing::ValuesIn(frozen(true)), name_of);
INSTANTIATE_TEST_SUITE_P(More, OfHip, testing::ValuesIn(frozen(false)), name_of);

}  // namespace
}  // namespace sluice::vm_test
