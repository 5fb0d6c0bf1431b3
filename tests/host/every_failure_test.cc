// SPDX-License-Identifier: MIT
// Every failure once: each call that the shipped plugin makes of something that can fail (tests/fault/seam)
// fails once, is short once, and is once the last thing that its process does. Whatever happens, a dump
// either leaves a checkpoint that restores, or the process running with its queues and no image that looks
// complete; a restore either brings back a whole process, or leaves none.
//
// By default a share of the failures, drawn by seed: SLUICE_FAULT_SHARE (how many of each test, or "all"),
// SLUICE_FAULT_SEED. SLUICE_FAULT_POINT, as a test that fails tells it, is one and the same failure again.
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "fault/seam/plan.h"
#include "plugin_test.h"
#include "support/rng.h"
#include "support/seeds.h"

namespace sluice::host_test {
namespace {

namespace fs = std::filesystem;
using seam::Kind;
using seam::Plan;

constexpr int kFailed = 1, kLeftOvers = 3, kKilled = 128 + SIGKILL;  // of a host
constexpr std::uint64_t kShare = 24, kShareOfFences = 4;

struct Failure {
  Kind kind = seam::kPass;
  std::uint64_t place = 0;
  std::uint32_t turn = 0;
  std::string call;
  std::string way;  // to the call, for addr2line

  std::string name() const {
    const char* const word = kind == seam::kError ? "error" : kind == seam::kShort ? "short" : "kill";
    std::ostringstream text;
    text << word << ' ' << std::hex << place << ' ' << std::dec << turn;
    return text.str();
  }
};

// What becomes of a job that a GPU was given.
struct LostJob {
  std::uint32_t gpu = 0;
  std::uint64_t number = 0;  // of its fence, from 1
  bool hangs = false;        // or fails

  std::string name() const {
    return std::string(hangs ? "hang " : "fence ") + std::to_string(gpu) + " " + std::to_string(number);
  }
};

// Context save areas are no BOs, so that little has to flow.
constexpr std::uint64_t kPoolBytes = 12 * kMiB;
vamdgpu::MachineOptions tiny_machine() {
  vamdgpu::MachineOptions options = small_machine();
  options.vram_bytes = kPoolBytes;
  options.gtt_bytes = kPoolBytes;
  return options;
}

// The plugin's files in a directory, by what changes when somebody writes one; but for the statistics of
// restores, which each of them writes anew.
using Listing = std::map<std::string, std::pair<std::uintmax_t, fs::file_time_type>>;

Listing listing(const fs::path& directory) {
  Listing found;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    const bool restores = name.starts_with("sluice-stats-restore-") && name.ends_with(".json");
    if ((name.starts_with("amdgpu-") || name.starts_with("sluice-")) && !restores)
      found[name] = {entry.file_size(), entry.last_write_time()};
  }
  return found;
}

bool has_metadata(const Listing& files) {
  return std::any_of(files.begin(), files.end(), [](const auto& file) {
    return file.first.starts_with("amdgpu-kfd-") && file.first.ends_with(".img");
  });
}

bool is_of_durability(const std::string& call) {
  const std::set<std::string_view> calls = {"fsync", "fdatasync", "io_uring fsync", "io_uring write",
                                            "renameat"};
  return calls.contains(call);
}

class EveryFailureTest : public PluginTest {
 protected:
  static void SetUpTestSuite() { (void)::setenv("LD_PRELOAD", SEAM_LIBRARY, 1); }

  EveryFailureTest() : PluginTest(tiny_machine()), earlier_(scratch_.path() / "earlier") {
    const fs::path file = scratch_.path() / "plan";
    plan_ = seam::map_plan(file.c_str(), true);
    scene_.variables[seam::kPlanVariable] = file.string();
    scene_.variables["SLUICE_CHUNK_SIZE"] = "1M";  // the least: several for each GPU
  }
  ~EveryFailureTest() override {
    if (plan_ != nullptr) (void)::munmap(plan_, sizeof(Plan));
  }

  void SetUp() override {
    ASSERT_NE(plan_, nullptr);
    ASSERT_NO_FATAL_FAILURE(start({"--vram", "1M", "--gtt", "1M", "--svm-context"}));
    ASSERT_EQ(scene_.dump(version(), {"--images", earlier_.string()}), 0) << scene_.log();
    scene_.wait_until_subject_is_gone();
    earlier_files_ = listing(earlier_);
    // Where a run writes: as the earlier one, to begin with.
    fs::copy(earlier_, scene_.images());
  }

  void TearDown() override {
    EXPECT_EQ(listing(earlier_), earlier_files_) << "another directory was touched";
    const std::size_t harmless =
        std::accumulate(harmless_.begin(), harmless_.end(), std::size_t{0},
                        [](std::size_t sum, const auto& call) { return sum + call.second; });
    std::printf(
        "shown: every failure once, %s: %zu points at %zu places: error %zu, short %zu, kill %zu, job failed "
        "%zu, "
        "job "
        "hung %zu; harmless %zu, let go %zu, not reached %zu\n",
        ::testing::UnitTest::GetInstance()->current_test_info()->name(),
        errors_ + shorts_ + kills_ + fences_ + hangs_, places_, errors_, shorts_, kills_, fences_, hangs_,
        harmless, let_go_, missed_);
    for (const auto& [call, times] : harmless_) std::printf("  harmless: %s %zu\n", call.c_str(), times);
  }

  void arm(const Failure& failure, bool hurried = false) {
    std::memset(static_cast<void*>(plan_), 0, sizeof(Plan));
    plan_->kind = failure.kind;
    plan_->place = failure.place;
    plan_->turn = failure.turn;
    plan_->hurried = hurried;
  }
  void disarm() { arm({}); }

  // What the last host may fail of: each kind at each place, in a loop at the first and at the middle turn.
  std::vector<Failure> failures() {
    EXPECT_FALSE(plan_->full);
    std::vector<Failure> all;
    for (const seam::Place& place : plan_->places) {
      if (place.id == 0) continue;
      ++places_;
      std::ostringstream way;
      for (const std::uint32_t frame : place.way) {
        if (frame != 0) way << std::hex << " 0x" << frame;
      }
      for (const std::uint32_t turn : std::set<std::uint32_t>{1, place.turns / 2 + 1}) {
        for (const Kind kind : {seam::kError, seam::kShort, seam::kKill}) {
          if ((place.kinds & kind) != 0 && turn <= place.turns)
            all.push_back({kind, place.id, turn, place.call.data(), way.str()});
        }
      }
    }
    std::sort(all.begin(), all.end(), [](const Failure& a, const Failure& b) { return a.name() < b.name(); });
    return all;
  }

  // What is to be done in this run.
  template <class Any>
  static std::vector<Any> share_of(std::vector<Any> all, std::uint64_t share) {
    if (const char* one = std::getenv("SLUICE_FAULT_POINT"); one != nullptr) {
      std::erase_if(all, [one](const Any& failure) { return failure.name() != one; });
      return all;
    }
    if (const char* wanted = std::getenv("SLUICE_FAULT_SHARE"); wanted != nullptr) {
      if (std::strcmp(wanted, "all") == 0) return all;
      share = std::strtoull(wanted, nullptr, 10);
    }
    test::Rng rng(test::number_from("SLUICE_FAULT_SEED", 1));
    std::vector<Any> drawn;
    while (drawn.size() < share && !all.empty()) {
      std::swap(all.back(), all[rng.between(0, all.size() - 1)]);
      drawn.push_back(std::move(all.back()));
      all.pop_back();
    }
    return drawn;
  }

  void count(const Failure& failure, int status) {
    if (!plan_->fired) ++missed_;
    if (plan_->fired && status == 0) ++harmless_[failure.call];
    ++(failure.kind == seam::kError ? errors_ : failure.kind == seam::kShort ? shorts_ : kills_);
    EXPECT_TRUE(plan_->fired || status == 0) << "nothing failed";
  }

  std::vector<std::uint64_t> fences_made() {
    return {scene_.control().fences_made(0), scene_.control().fences_made(1)};
  }
  // Who is killed cannot remove what he was writing; the next dump into the directory does.
  void remove_unfinished_statistics() {
    for (const std::string& name : images("sluice-stats-restore-")) {
      if (name.ends_with(".json.tmp")) fs::remove(scene_.images() / name);
    }
  }

  // Each job of a run that began with `before`, in both ways.
  std::vector<LostJob> lost_jobs(const std::vector<std::uint64_t>& before) {
    std::vector<LostJob> all;
    for (std::uint32_t gpu = 0; gpu < before.size(); ++gpu) {
      for (std::uint64_t number = 1; before[gpu] + number <= fences_made()[gpu]; ++number) {
        for (const bool hangs : {false, true}) all.push_back({gpu, number, hangs});
      }
    }
    return all;
  }
  void lose(const LostJob& job) {
    arm({}, job.hangs);
    const std::uint64_t number = fences_made()[job.gpu] + job.number;
    if (job.hangs) {
      scene_.control().hang_fence(job.gpu, number);
    } else {
      scene_.control().fail_fence(job.gpu, number, EIO);
    }
    ++(job.hangs ? hangs_ : fences_);
  }
  // What a job that never ends may still reach is kept on purpose until the host's process ends: the render
  // file, dma-bufs and fences. A host that finds nothing else left has failed as it shall.
  int but_for_what_hangs(int status, const LostJob& job) const {
    if (!job.hangs || status != kLeftOvers) return status;
    std::istringstream lines(log_);
    for (std::string line; std::getline(lines, line);) {
      const auto speaks_of = [&line](const char* what) { return line.find(what) != std::string::npos; };
      if (speaks_of("violation:") && !speaks_of("(/dev/dri/renderD") && !speaks_of("(/dmabuf:)") &&
          !speaks_of("(anon_inode:sync_file)"))
        return status;
    }
    return kFailed;
  }
  void lose_no_more() {
    scene_.control().clear_faults();
    scene_.control().release_hung_fences();
  }

  int sluice(const Strings& arguments) {
    Strings command = {SLUICE};
    command.insert(command.end(), arguments.begin(), arguments.end());
    Program program = scene_.start_program(command);
    while (!program.hear().empty()) {
    }
    return program.wait();
  }

  // The subject is there, as it was at the earlier dump.
  void restore_earlier() {
    disarm();
    ASSERT_EQ(scene_.restore(version(), {"--images", earlier_.string()}), 0) << scene_.log();
    (void)scene_.log();
  }

  void end_subject() {
    scene_.subject().close_input();
    scene_.wait_until_subject_is_gone();
  }

  void put_earlier_into_images() {
    fs::remove_all(scene_.images());
    fs::copy(earlier_, scene_.images());
  }

  // After a dump with `status` into a directory that had held `before`. A dump that has succeeded has to be
  // one that restores; the process runs on in either case.
  void judge_dump(int status, const Listing& before) {
    const Listing after = listing(scene_.images());
    if (status == 0) {
      for (const auto& [name, ignored] : after)
        EXPECT_TRUE(earlier_files_.contains(name)) << name << " is left";
      scene_.wait_until_subject_is_gone();
      disarm();
      overwrite_gpu_memory();
      ASSERT_EQ(scene_.restore(version()), 0) << scene_.log();
      expect_whole();
      return;
    }
    const bool killed = status == kKilled && plan_->kind == seam::kKill;
    if (killed) {
      EXPECT_EQ(sluice({"unpause", std::to_string(scene_.subject_pid())}), 0);
    } else {
      EXPECT_EQ(status, kFailed);
    }
    expect_running();
    if (after == before) return;  // an earlier checkpoint is as it was
    if (!killed) {
      for (const auto& [name, file] : after)
        EXPECT_TRUE(before.contains(name) && before.at(name) == file) << name << " is left";
    } else if (has_metadata(after)) {  // it was killed behind its last file
      EXPECT_EQ(sluice({"verify", scene_.images().string()}), 0) << "an image looks complete";
      return;
    }
    EXPECT_FALSE(has_metadata(after)) << "an image looks complete";
    disarm();
    EXPECT_EQ(scene_.start_host(version(), "restore", {}).wait(), kFailed) << "a mixture is restored";
  }

  // After a restore with `status`: all of the process, or nothing.
  void judge_restore(int status, Program host) {
    if (status == 0) {
      scene_.adopt(std::move(host));
      expect_whole();
      end_subject();
      return;
    }
    EXPECT_TRUE(status == kFailed || (status == kKilled && plan_->kind == seam::kKill)) << status;
    const std::string answer = host.ask("check");
    if (status == kKilled && before_hold()) {
      let_go_ += answer.empty() ? 0U : 1U;
    } else if (status == kKilled && !answer.empty()) {
      EXPECT_TRUE(answer.starts_with("ok check")) << answer;
      EXPECT_EQ(host.ask("work"), "ok work");
    } else {
      EXPECT_EQ(answer, "") << "a task runs on";
    }
    host.close_input();
    while (!host.hear().empty()) {
    }
    // The kernel closes the files of what is dead in its own time.
    const auto files = [this] {
      const vamdgpu::Counts counts = scene_.control().counts();
      return counts.kfd_files + counts.render_files + counts.processes;
    };
    while (files() > 0) (void)::sched_yield();
    EXPECT_EQ(scene_.control().counts(), vamdgpu::Counts());
  }

  // The one time at which a host that dies lets tasks run that are not whole: they stand still, and the
  // plugin has not laid hold of them yet (docs/architecture.md, "CRIU killed").
  bool before_hold() const {
    if (log_.find("tasks run when they are let go") == std::string::npos) return false;
    return std::none_of(plan_->places.begin(), plan_->places.end(), [this](const seam::Place& place) {
      const std::uint32_t died_at_it = place.id == plan_->place ? 1 : 0;
      return std::string_view(place.call.data()) == "ptrace" && place.turns > died_at_it;
    });
  }

  // What GPUs keep of one restore shall not pass for the contents that another has brought.
  void overwrite_gpu_memory() {
    const std::vector<char> bytes(kPoolBytes, '\x5a');
    for (const auto& entry : fs::directory_iterator(scene_.machine().directory())) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("vram-") && !name.starts_with("gtt-")) continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
      ASSERT_TRUE(file.good());
    }
  }

  std::pair<int, Program> restore_with_pipes() {
    Program host = scene_.start_host(version(), "restore", {});
    const int status = host.wait();
    return {status, std::move(host)};
  }

  static int problems() {
    return ::testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count();
  }

  // Where the run was judged wrong: says which it was, and what the host has said. True then.
  bool tell(const std::string& name, const std::string& where, int status, int problems_before) {
    if (problems() == problems_before) return false;
    ADD_FAILURE() << "SLUICE_FAULT_POINT='" << name << "': " << where << ", status " << status << "\n"
                  << log_;
    return true;
  }

  // The next run has a subject, whatever became of that of the last.
  void begin_again() {
    (void)::kill(scene_.subject_pid(), SIGKILL);
    scene_.wait_until_subject_is_gone();
    ASSERT_NO_FATAL_FAILURE(restore_earlier());
  }

  ScratchDirectory scratch_;
  fs::path earlier_;  // a checkpoint that nobody is to touch
  Listing earlier_files_;
  Plan* plan_ = nullptr;
  std::string log_;
  std::map<std::string, std::size_t> harmless_;  // by call: it failed, and the host went on
  std::size_t fences_ = 0, hangs_ = 0, places_ = 0, errors_ = 0, shorts_ = 0, kills_ = 0, let_go_ = 0,
              missed_ = 0;
};

TEST_P(EveryFailureTest, Dump) {
  ASSERT_NO_FATAL_FAILURE(restore_earlier());
  disarm();
  ASSERT_EQ(scene_.dump(version()), 0) << scene_.log();
  scene_.wait_until_subject_is_gone();
  const std::vector<Failure> all = failures();
  ASSERT_NO_FATAL_FAILURE(restore_earlier());
  for (const Failure& failure : share_of(all, kShare)) {
    // Half of them over an earlier checkpoint, the others over what the one before has left.
    if ((errors_ + kills_ + shorts_) % 2 == 0) put_earlier_into_images();
    const Listing before = listing(scene_.images());
    const int problems_before = problems();
    (void)scene_.log();
    arm(failure);
    const int status = scene_.dump(version());
    log_ = scene_.log();
    count(failure, status);
    // Nobody could tell from the images that they are not on the disk.
    const bool of_statistics = log_.find("the statistics are lost") != std::string::npos;
    if (failure.kind == seam::kError && plan_->fired && is_of_durability(failure.call) && !of_statistics) {
      EXPECT_NE(status, 0);
    }
    judge_dump(status, before);
    if (tell(failure.name(), failure.call + failure.way, status, problems_before)) {
      ASSERT_NO_FATAL_FAILURE(begin_again());
    }
  }
}

TEST_P(EveryFailureTest, Restore) {
  disarm();
  {
    auto [status, host] = restore_with_pipes();
    ASSERT_EQ(status, 0) << scene_.log();
    judge_restore(status, std::move(host));
  }
  const std::vector<Failure> all = failures();
  const Listing images = listing(scene_.images());
  for (const Failure& failure : share_of(all, kShare)) {
    const int problems_before = problems();
    arm(failure);
    overwrite_gpu_memory();
    (void)scene_.log();
    auto [status, host] = restore_with_pipes();
    log_ = scene_.log();
    count(failure, status);
    judge_restore(status, std::move(host));
    if (failure.kind == seam::kKill) remove_unfinished_statistics();
    EXPECT_EQ(listing(scene_.images()), images);
    (void)tell(failure.name(), failure.call + failure.way, status, problems_before);
  }
  ASSERT_NO_FATAL_FAILURE(restore_earlier());
  expect_whole();
}

TEST_P(EveryFailureTest, JobsOfADump) {
  ASSERT_NO_FATAL_FAILURE(restore_earlier());
  const std::vector<std::uint64_t> made = fences_made();
  ASSERT_EQ(scene_.dump(version()), 0) << scene_.log();
  scene_.wait_until_subject_is_gone();
  const std::vector<LostJob> all = lost_jobs(made);
  ASSERT_NO_FATAL_FAILURE(restore_earlier());
  for (const LostJob& job : share_of(all, kShareOfFences)) {
    const Listing before = listing(scene_.images());
    const int problems_before = problems();
    (void)scene_.log();
    lose(job);
    const int ended = scene_.dump(version());
    log_ = scene_.log();
    const int status = but_for_what_hangs(ended, job);
    EXPECT_EQ(status, kFailed);
    lose_no_more();
    judge_dump(status, before);
    if (tell(job.name(), {}, status, problems_before)) {
      ASSERT_NO_FATAL_FAILURE(begin_again());
    }
  }
}

TEST_P(EveryFailureTest, JobsOfARestore) {
  disarm();
  const std::vector<std::uint64_t> made = fences_made();
  {
    auto [status, host] = restore_with_pipes();
    ASSERT_EQ(status, 0) << scene_.log();
    judge_restore(status, std::move(host));
  }
  for (const LostJob& job : share_of(lost_jobs(made), kShareOfFences)) {
    const int problems_before = problems();
    (void)scene_.log();
    lose(job);
    auto [ended, host] = restore_with_pipes();
    log_ = scene_.log();
    const int status = but_for_what_hangs(ended, job);
    EXPECT_EQ(status, kFailed);
    lose_no_more();
    judge_restore(status, std::move(host));
    (void)tell(job.name(), {}, status, problems_before);
  }
  ASSERT_NO_FATAL_FAILURE(restore_earlier());
  expect_whole();
}

INSTANTIATE_TEST_SUITE_P(Versions, EveryFailureTest,
                         ::testing::Values(Version{"3.17.1", 10}, Version{"4.2", 13}), name_of_version);

}  // namespace
}  // namespace sluice::host_test
