// SPDX-License-Identifier: MIT
// Every failure once. Each call of the shipped plugin that can fail (tests/fault/seam) fails once, is short
// once, and is once the last thing that its process does. SIGTERM comes just before it, and it hangs until
// SIGTERM comes. The jobs are one process, a tree of two, and one that streams. Whatever happens, a dump
// either leaves a checkpoint that restores, or the processes running with their queues and no image that
// looks complete. A restore either brings back all processes intact, or leaves none.
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "corruption/judge.h"
#include "failure_points.h"
#include "images/checkpoint.h"
#include "lookalike/task_tree.h"
#include "lookalike/test_streamer.h"
#include "plugin/host/criu_host.h"
#include "plugin_test.h"
#include "thunk_memory.h"
#include "times_taken.h"

namespace sluice::plugin_test {
namespace {

using lookalike::capture_to;
using lookalike::extract_image;
using lookalike::serve_from;
using lookalike::Streamer;
using lookalike::TaskTree;

namespace fs = std::filesystem;

constexpr int kFailed = 1, kLeftOvers = 3, kKilled = 128 + SIGKILL, kEnded = 128 + SIGTERM;  // of a host
constexpr std::uint32_t kFailures = seam::kError | seam::kShort | seam::kKill;
constexpr std::uint64_t kShare = 6, kShareOfHangs = 2, kShareOfFences = 2;

// What is checkpointed, and where to.
struct Shape {
  const char* name;
  unsigned tasks;
  bool streamed;
  const char* processors;  // that hosts are told of; nullptr: the real ones
  Strings more;            // of the tasks
  bool has_parent = false;
  bool has_replicas = false;
};
const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {
      {"process", 1, false, nullptr, {}},
      {"tree", 2, false, nullptr, {}},
      // More processors than lanes: threads of their own hash.
      {"stream", 1, true, "16", {}},
      // One memory shared by a BO of the KFD, GEM BOs of two GPUs, another BO of the KFD, and a descriptor.
      {"shared", 1, false, "16", {"--share", "kfd", "--share-fd", "--kfd-import", "--gem-handles", "1,3"}},
      // Dumps write what an earlier one has not.
      {"parent", 1, false, nullptr, {}, true},
      // One file has what two GPUs have.
      {"replicas", 1, false, nullptr, {"--replicas", "--zero", "0", "--vram", "4M"}, false, true},
  };
  return all;
}

struct Run {
  Version version;
  Shape shape;
};

void PrintTo(const Run& run, std::ostream* out) {
  *out << run.version.name << ", " << run.shape.name;
}

std::string name_of_run(const ::testing::TestParamInfo<Run>& tested) {
  std::string name = std::string(tested.param.shape.name) + "_" + tested.param.version.name;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

// Context save areas are no BOs, so that little has to flow.
constexpr std::uint64_t kPoolBytesPerTask = 12 * kMiB;
vamdgpu::MachineOptions tiny_machine(unsigned tasks) {
  vamdgpu::MachineOptions options = small_machine();
  options.vram_bytes = tasks * kPoolBytesPerTask;
  options.gtt_bytes = tasks * kPoolBytesPerTask;
  return options;
}

// The plugin's files in a directory, and what a streamer has captured, by what changes when somebody writes
// one. Without the statistics of restores, which each restore writes anew.
using Listing = std::map<std::string, std::pair<std::uintmax_t, fs::file_time_type>>;

constexpr const char* kCaptured = "captured";

Listing listing(const fs::path& directory) {
  Listing found;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    const bool restores = name.starts_with("sluice-stats-restore-") && name.ends_with(".json");
    if ((name.starts_with("amdgpu-") || name.starts_with("sluice-") || name == kCaptured) && !restores)
      found[name] = {entry.file_size(), entry.last_write_time()};
  }
  return found;
}

bool is_metadata(const std::string& name) {
  return name.find("-kfd-") != name.npos && name.starts_with("amdgpu-") && name.ends_with(".img");
}
bool has_metadata(const Listing& files) {
  return std::any_of(files.begin(), files.end(), [](const auto& file) { return is_metadata(file.first); });
}

// Nobody could tell from the images that they are not on the disk, or that they have no id.
bool is_unseen_in_images(const std::string& call) {
  const std::set<std::string_view> calls = {"fsync",          "fdatasync", "io_uring fsync",
                                            "io_uring write", "renameat",  "getrandom"};
  return calls.contains(call);
}

// Where the plugin's hooks begin in its file.
class HookPlaces {
 public:
  HookPlaces() {
    void* const library = ::dlopen(SLUICE_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    const auto* const plugin =
        library == nullptr ? nullptr
                           : static_cast<plugin::PluginDescriptor*>(::dlsym(library, "CR_PLUGIN_DESC"));
    Dl_info info{};
    if (plugin == nullptr || ::dladdr(plugin, &info) == 0)
      throw std::runtime_error(SLUICE_PLUGIN " cannot be looked at");
    for (unsigned hook = 0; hook < plugin::kHookCount; ++hook) {
      if (plugin->hooks[hook] == nullptr) continue;
      const auto place = reinterpret_cast<std::uintptr_t>(plugin->hooks[hook]);
      hooks_[place - reinterpret_cast<std::uintptr_t>(info.dli_fbase)] = hook;
    }
    (void)::dlclose(library);
  }
  // The last one that begins before; kHookCount where none does.
  unsigned hook_at(std::uintptr_t place) const {
    const auto after = hooks_.upper_bound(place);
    return after == hooks_.begin() ? plugin::kHookCount : std::prev(after)->second;
  }

 private:
  std::map<std::uintptr_t, unsigned> hooks_;
};

class EveryFailureTest : public SceneTest, public ::testing::WithParamInterface<Run> {
 protected:
  static void SetUpTestSuite() {
    private_shm_ = make_private_shm();
    if (!private_shm_)
      std::printf(
          "shown: every failure once: /dev/shm cannot be made private here: nothing of libhsakmt's memory\n");
    (void)::setenv("LD_PRELOAD", SEAM_LIBRARY, 1);
  }

  // A kind of which few were tried may have been missed.
  static void TearDownTestSuite() {
    constexpr std::size_t kEnough = 3;
    for (const auto& [kind, count] : all_tried_) {
      if (count >= kEnough) {
        EXPECT_GT(all_fired_[kind], 0U) << "of seam::Kind " << kind << ", and " << count << " were tried";
      }
    }
  }

  EveryFailureTest()
      : SceneTest(tiny_machine(GetParam().shape.tasks)),
        earlier_(scratch_.path() / "earlier"),
        place_(scratch_.path() / "images"),
        plan_(scratch_.path() / "plan") {
    scene_.variables[seam::kPlanVariable] = (scratch_.path() / "plan").string();
    if (const char* told = GetParam().shape.processors; told != nullptr)
      scene_.variables["VAMDGPU_CPUS"] = told;
    if (GetParam().shape.has_replicas) scene_.variables["SLUICE_DEDUP"] = "on";
  }

  void SetUp() override {
    if (private_shm_) thunk_memory_.emplace();
    for (unsigned task = 1; task <= GetParam().shape.tasks; ++task) {
      Strings arguments = {"--vram", "1M", "--gtt", "1M", "--svm-context", "--seed", std::to_string(task)};
      const Strings& more = GetParam().shape.more;
      arguments.insert(arguments.end(), more.begin(), more.end());
      const std::string ready = tasks_.add(arguments);
      ASSERT_TRUE(ready.starts_with("ready")) << ready;
    }
    fs::create_directory(earlier_);
    ASSERT_EQ(dump(earlier_), 0) << scene_.log();
    if (GetParam().shape.has_replicas) {
      ASSERT_FALSE(images_in(earlier_, "amdgpu-replica-").empty()) << scene_.log();
    }
    tasks_.wait_until_dumped();
    earlier_files_ = listing(earlier_);
    // Where a run writes: as the earlier one, to begin with.
    fs::copy(earlier_, place_);
    if (!has_parent()) return;
    ASSERT_NO_FATAL_FAILURE(restore_earlier());
    ASSERT_EQ(dump(place_), 0) << scene_.log();
    tasks_.wait_until_dumped();
    ASSERT_FALSE(images_in(place_, "amdgpu-delta-").empty()) << scene_.log();
  }

  void TearDown() override {
    EXPECT_EQ(listing(earlier_), earlier_files_) << "another directory was touched";
    // How threads take turns decides how often a run comes to some places: 20 of 3085 points were missed.
    EXPECT_LE(missed_, 2 + tried_ / 20) << "of " << tried_ << ": what is armed does not happen";
    if (places_ == 0 && fences_ + hangs_ == 0) return;
    const std::size_t harmless =
        std::accumulate(harmless_.begin(), harmless_.end(), std::size_t{0},
                        [](std::size_t sum, const auto& call) { return sum + call.second; });
    std::printf(
        "shown: every failure once, %s: %zu points at %zu places: error %zu, short %zu, kill %zu, signal "
        "%zu, hang %zu, job failed %zu, job hung %zu; harmless %zu, let go %zu, not reached %zu\n",
        ::testing::UnitTest::GetInstance()->current_test_info()->name(), points(), places_, errors_, shorts_,
        kills_, signals_, stuck_, fences_, hangs_, harmless, let_go_, missed_);
    if (queues_ran_after_.count() > 0) {
      std::printf("shown: every failure once, %s: SIGTERM while a lane hangs, queues run after %s\n",
                  ::testing::UnitTest::GetInstance()->current_test_info()->name(),
                  queues_ran_after_.text().c_str());
    }
    for (const auto& [call, times] : harmless_) std::printf("  harmless: %s %zu\n", call.c_str(), times);
    if (!one_is_wanted()) return;
    if (tried_ + fences_ + hangs_ == 0)
      GTEST_SKIP() << "no such failure in this test: SLUICE_FAULT_POINT may be another's, or another build's";
    if (missed_ > 0) GTEST_SKIP() << "this run did not come to the point: another may";
  }

  std::string version() const { return GetParam().version.name; }
  bool streamed() const { return GetParam().shape.streamed; }
  bool has_parent() const { return GetParam().shape.has_parent; }
  std::size_t points() const { return errors_ + shorts_ + kills_ + signals_ + stuck_ + fences_ + hangs_; }
  // The plugin goes through its loops in the same way in every host: where all failures are wanted, one of
  // them is enough for those deep in loops.
  Turns turns() const {
    const bool many = one_is_wanted() || (all_are_wanted() && version() == "4.2");
    return many ? Turns::Many : Turns::FirstAndMiddle;
  }

  // ---- a dump, a restore

  // The host's exit status.
  int dump(const fs::path& place) {
    if (has_parent() && place != earlier_) {
      fs::remove(place / "parent");  // an older run's is no request
      return run_dump(tasks_.with_pids({"--images", place.string(), "--prev-images-dir", "../earlier"}));
    }
    if (!streamed()) return run_dump(tasks_.with_pids({"--images", place.string()}));
    Streamer streamer(scene_.images(), "capture", capture_to(place / kCaptured));
    EXPECT_TRUE(streamer.ready());
    const int status = run_dump(tasks_.with_pids({"--stream"}));
    (void)streamer.wait();
    return status;
  }
  int run_dump(const Strings& arguments) {
    Program host = scene_.start_host(version(), "dump", arguments);
    return plan_.kind() == seam::kHang ? end_dump_that_hangs(host) : host.wait();
  }

  // The host's exit status, or kFailed where the streamer refuses the image. After 0 the tasks are there.
  int restore(const fs::path& place) {
    const int status = streamed() ? restore_streamed(place) : restore_files(place);
    if (status == 0) {
      EXPECT_TRUE(tasks_.meet_restored());
    }
    return status;
  }
  int restore_files(const fs::path& place) { return run_restore({"--images", place.string()}); }
  int restore_streamed(const fs::path& place) {
    Streamer streamer(scene_.images(), "serve", serve_from(place / kCaptured));
    if (!streamer.ready()) return kFailed;
    const int status = run_restore({"--stream"});
    streamer.kill();
    return status;
  }
  // Libhsakmt's memory has to be made each time.
  int run_restore(const Strings& arguments) {
    if (private_shm_) ThunkMemory::remove();
    restorer_ = scene_.start_host(version(), "restore", arguments);
    return plan_.kind() == seam::kHang ? end_restore_that_hangs() : restorer_.wait();
  }

  // ---- a host in which a call hangs; its exit status

  // The thread that hangs in a lane has had SIGTERM sent: until there is a second one, the host lets the
  // queues run and waits for the lane. In the main thread it has not, and nothing but the second one ends it.
  int end_dump_that_hangs(Program& host) {
    while (!host.has_ended() && !waits_for_what_hangs(host)) (void)::sched_yield();
    if (plan_.signalled() && queues_run())
      queues_ran_after_.add(std::chrono::steady_clock::now() - *plan_.signalled());
    bool taken = true;
    scene_.control().between_calls([&] {  // nobody dies in a call of the driver
      if (plan_.hangs_in_main() && !send(host, SIGTERM)) {
        ADD_FAILURE() << "nobody takes SIGTERM";
        (void)::kill(host.pid(), SIGKILL);
      }
      while (taken && !host.has_ended()) taken = send(host, SIGTERM);
    });
    return host.wait();
  }
  bool waits_for_what_hangs(const Program& host) {
    if (plan_.hung_process() == 0 || plan_.hangs_in_main()) return plan_.hangs_in_main();
    return plan_.signalled() && !host.has_pending(SIGTERM) && queues_run();
  }
  bool queues_run() {
    return std::all_of(tasks_.begin(), tasks_.end(), [this](const FifoSubject& task) {
      const auto process = scene_.control().process(task.pid());
      return process && !process->queues_paused && process->queues_run();
    });
  }
  // Returns when it has acted, or the plugin's thread for that has taken it. False: there is no such thread
  // while it is held.
  static bool send(const Program& host, int signal) {
    (void)::kill(host.pid(), signal);
    while (!host.has_ended() && host.has_pending(signal)) {
      if (host.blocks(signal) && !host.has_thread("sluice-signals")) return false;
      (void)::sched_yield();
    }
    return true;
  }

  // CRIU blocks SIGTERM from the first fork on; SIGKILL ends it then. Of the task in which the call hangs
  // nobody knows: who has killed CRIU has to kill it.
  int end_restore_that_hangs() {
    while (!restorer_.has_ended() && plan_.hung_process() == 0) (void)::sched_yield();
    scene_.control().between_calls([&] {
      if (plan_.hung_process() == 0) return;
      (void)::kill(restorer_.pid(), restorer_.blocks(SIGTERM) ? SIGKILL : SIGTERM);
      while (!restorer_.has_ended()) (void)::sched_yield();
      if (plan_.hung_process() != restorer_.pid()) kill_and_see_dead(plan_.hung_process());
    });
    return restorer_.wait();
  }
  static void kill_and_see_dead(pid_t pid) {
    const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    pollfd end{process.get(), POLLIN, 0};
    if (!process || ::kill(pid, SIGKILL) != 0) return;
    while (::poll(&end, 1, -1) < 0) {
    }
  }

  // The tasks are there, as they were at the earlier dump.
  void restore_earlier() {
    plan_.disarm();
    ASSERT_EQ(restore(earlier_), 0) << scene_.log();
    (void)scene_.log();
  }

  // None is left, and what was said to them is not heard by the next.
  void end_tasks() {
    for (const pid_t pid : scene_.control().processes()) (void)::kill(pid, SIGKILL);
    tasks_.wait_until_dumped();
    for (FifoSubject& task : tasks_) task.forget();
  }

  void put_earlier_into_place() {
    fs::remove_all(place_);
    fs::copy(earlier_, place_);
  }

  // Those of a dump that goes well. The tasks run on after it.
  void find_failures_of_a_dump(std::uint32_t kinds, std::vector<Failure>& all) {
    ASSERT_NO_FATAL_FAILURE(restore_earlier());
    plan_.disarm();
    ASSERT_EQ(dump(place_), 0) << scene_.log();
    tasks_.wait_until_dumped();
    all = plan_.failures(kinds, turns(), &places_);
    ASSERT_NO_FATAL_FAILURE(restore_earlier());
  }

  void fail_dumps(const std::vector<Failure>& failures) {
    for (const Failure& failure : failures) {
      // Half of them over an earlier checkpoint, the others over what the one before has left.
      if (tried_ % 2 == 0) put_earlier_into_place();
      const Listing before = listing(place_);
      const int problems_before = problems();
      (void)scene_.log();
      plan_.arm(failure);
      const int status = dump(place_);
      log_ = scene_.log();
      judge_log();
      count(failure, status);
      if (failure.kind == seam::kSignal && plan_.fired()) {
        // In exit() of a dump that has succeeded it comes too late.
        const bool whole = log_.find("Dumping finished successfully") != std::string::npos;
        EXPECT_EQ(status, whole ? 0 : kEnded);
      }
      if (failure.kind == seam::kHang && plan_.fired()) {
        EXPECT_EQ(status, kEnded);
      }
      // Nobody could tell from the images that they are not on the disk.
      const bool of_statistics = log_.find("[SL-C16]") != std::string::npos;
      // Nor does it matter of a parent on which the dump does not build.
      const bool of_parent = log_.find("[SL-D13]") != std::string::npos;
      if (failure.kind == seam::kError && plan_.fired() && is_unseen_in_images(failure.call) &&
          !of_statistics && !of_parent) {
        EXPECT_NE(status, 0);
      }
      judge_dump(status, before);
      if (failure.kind == seam::kHang && status != 0) judge_next_dump();
      if (tell(failure.name(), failure.call + failure.way, status, problems_before)) {
        ASSERT_NO_FATAL_FAILURE(begin_again());
      }
    }
  }

  // Those of a restore that goes well.
  void find_failures_of_a_restore(std::uint32_t kinds, std::vector<Failure>& all) {
    plan_.disarm();
    const int well = restore(place_);
    ASSERT_EQ(well, 0) << scene_.log();
    judge_restore(well);
    all = plan_.failures(kinds, turns(), &places_);
  }

  void fail_restores(const std::vector<Failure>& failures) {
    const Listing images = listing(place_);
    for (const Failure& failure : failures) {
      const int problems_before = problems();
      plan_.arm(failure);
      overwrite_gpu_memory();
      (void)scene_.log();
      const int status = restore(place_);
      log_ = scene_.log();
      judge_log();
      count(failure, status);
      if (failure.kind == seam::kHang && plan_.fired()) {
        EXPECT_NE(status, 0);
      }
      // What cannot be opened or read is not damaged; what cannot be parsed is.
      if (failure.kind == seam::kError && failure.call != "protobuf_c_message_unpack") {
        EXPECT_EQ(log_.find("another checkpoint"), std::string::npos);
      }
      judge_restore(status);
      if ((failure.kind & (seam::kKill | seam::kHang)) != 0 || host_killed_the_others())
        remove_unfinished_statistics();
      judge_shm();
      EXPECT_EQ(listing(place_), images);
      (void)tell(failure.name(), failure.call + failure.way, status, problems_before);
    }
    ASSERT_NO_FATAL_FAILURE(restore_earlier());
    EXPECT_EQ(tasks_.what_is_not_whole(), "");
  }

  int sluice(const Strings& arguments) {
    Strings command = {SLUICE};
    command.insert(command.end(), arguments.begin(), arguments.end());
    Program program = scene_.start_program(command);
    while (!program.hear().empty()) {
    }
    return program.wait();
  }

  // ---- the judges

  // Every error of the plugin can be looked up, whatever fails. Not the rows of a table of GPUs.
  void judge_log() const {
    std::istringstream lines(log_);
    for (std::string line; std::getline(lines, line);) {
      const std::size_t error = line.find("amdgpu_plugin: Error (");
      if (error == line.npos || line.find("):   GPU ", error) != line.npos) continue;
      EXPECT_TRUE(has_id(line)) << line;
    }
  }

  // After a dump with `status` into a directory that had held `before`. A dump that has succeeded has to be
  // one that restores; the processes run on in either case.
  void judge_dump(int status, const Listing& before) {
    if (status == 0) return judge_checkpoint();
    const bool hung = status == kEnded && plan_.kind() == seam::kHang;
    const bool killed = hung || (status == kKilled && plan_.kind() == seam::kKill);
    const bool ended = status == kEnded && plan_.kind() == seam::kSignal;
    if (!killed && !ended) {
      EXPECT_EQ(status, kFailed);
    }
    const bool could_let_queues_run = !killed || (hung && !plan_.hangs_in_main());
    for (const FifoSubject& task : tasks_) {
      if (!could_let_queues_run) {
        EXPECT_EQ(sluice({"unpause", std::to_string(task.pid())}), 0);
      }
      expect_queues_run(task.pid());
    }
    EXPECT_EQ(tasks_.what_is_not_whole(), "");
    plan_.disarm();
    if (streamed()) return judge_captured(killed || ended);
    const Listing after = listing(place_);
    if (after == before) return;                     // an earlier checkpoint is as it was
    if ((killed || ended) && has_metadata(after)) {  // it had come to its last file
      // Or not to the last of a tree, whose images tell that some are not there.
      const UniqueFd place(::open(place_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      const bool lacks_some = !read_checkpoint(DirectorySource(place.get())).value().lost.empty();
      EXPECT_TRUE(corruption_test::verify(place.get(), kMiB).problems.empty());
      EXPECT_EQ(sluice({"verify", place_.string()}), lacks_some ? 1 : 0) << "an image looks complete";
      return;
    }
    if (!killed) {
      for (const auto& [name, file] : after)
        EXPECT_TRUE(before.contains(name) && before.at(name) == file) << name << " is left";
    }
    // Of the earlier checkpoint a file may have refused to go, by name.
    for (const auto& [name, ignored] : after) {
      if (is_metadata(name)) {
        EXPECT_NE(log_.find("remove stale " + name), std::string::npos)
            << name << ": an image looks complete";
      }
    }
    if (has_metadata(after)) {
      EXPECT_NE(sluice({"verify", place_.string()}), 0) << "an image looks complete";
    }
    EXPECT_EQ(restore_files(place_), kFailed) << "a mixture is restored";
  }

  // Behind one that was ended and could tidy nothing up.
  void judge_next_dump() {
    plan_.disarm();
    ASSERT_EQ(dump(place_), 0) << scene_.log();
    judge_checkpoint();
  }

  void judge_checkpoint() {
    for (const auto& [file, ignored] : listing(place_)) {
      std::string name = file;
      const bool is_named_otherwise = has_parent() && name.starts_with("amdgpu-delta-");
      const bool is_contents = name.find("-kfd-") == name.npos && name.find("-renderD-") == name.npos;
      if (is_named_otherwise) name.replace(7, 6, is_contents ? "pages-" : "");
      EXPECT_TRUE(earlier_files_.contains(name)) << name << " is left";
    }
    tasks_.wait_until_dumped();
    plan_.disarm();
    overwrite_gpu_memory();
    ASSERT_EQ(restore(place_), 0) << scene_.log();
    EXPECT_EQ(tasks_.what_is_not_whole(), "");
  }

  // A stream cannot be taken back. What a failed dump has left of it is not restored, or it verifies
  // because the host was killed after its last file.
  void judge_captured(bool killed) {
    const fs::path files = scratch_.path() / "extracted";
    fs::remove_all(files);
    (void)extract_image(place_ / kCaptured, files);
    if (killed && has_metadata(listing(files)) && sluice({"verify", files.string()}) == 0) return;
    EXPECT_EQ(restore_streamed(place_), kFailed) << "what looks complete is not";
  }

  // Libhsakmt's memory has no other name at any time, whoever is killed.
  void judge_shm() const {
    if (!private_shm_) return;
    for (const auto& entry : fs::directory_iterator("/dev/shm")) {
      const std::string name = entry.path().filename().string();
      if (name == "hsakmt_shared_mem" || name == "sem.hsakmt_semaphore") continue;
      EXPECT_EQ(name.find("hsakmt"), std::string::npos) << name << " is left in /dev/shm";
    }
  }

  // After a restore with `status`: all of the processes, or nothing.
  void judge_restore(int status) {
    if (status == 0) {
      EXPECT_EQ(tasks_.what_is_not_whole(), "");
      return end_tasks();
    }
    const bool hung = (status == kKilled || status == kEnded) && plan_.kind() == seam::kHang;
    const bool killed = hung || (status == kKilled && plan_.kind() == seam::kKill);
    EXPECT_TRUE(status == kFailed || killed) << status;
    const std::size_t running = tasks_that_run();
    if (killed && before_hold()) {
      let_go_ += running > 0 ? 1U : 0U;
    } else if (running > 0) {
      EXPECT_TRUE(killed) << "a task runs on";
      // But for the time between two of the calls that let them go.
      EXPECT_TRUE(running == tasks_.size() || plan_.call() == "ptrace") << running << " run";
      for (FifoSubject& task : tasks_) EXPECT_TRUE(!task.has_spoken() || task.hear().starts_with("ok check"));
      if (running == tasks_.size()) {
        EXPECT_TRUE(tasks_.meet(scene_.control().processes()));
        EXPECT_EQ(tasks_.wrong_answers({"work"}), "");
      }
    }
    end_tasks();
  }
  // After a restore that failed, when the others are dead. They have answered "check" then, and nobody has
  // heard it.
  std::size_t tasks_that_run() {
    tasks_.say("check");
    while (!restorer_.output_has_ended()) {
      const std::size_t running = scene_.control().processes().size();
      if (running > 0 && tasks_.spoken() == running) return running;
      (void)::sched_yield();
    }
    return 0;
  }

  // The one moment at which a host that dies lets incomplete tasks run: they are stopped, and the plugin has
  // not laid hold of each of them yet (docs/internals/restore.md, "CRIU killed"). Where another thread than
  // the main one hangs, the main one may be anywhere before it looks at the content server's socket.
  bool before_hold() const {
    const bool beside = plan_.kind() == seam::kHang && !plan_.hangs_in_main();
    return log_.find("tasks run when they are let go") != std::string::npos &&
           (plan_.turns_at("ptrace") < tasks_.size() || (beside && plan_.turns_at("poll") == 0));
  }

  // ---- the failures

  void count(const Failure& failure, int status) {
    ++tried_;
    ++all_tried_[failure.kind];
    EXPECT_FALSE(plan_.unlisted()) << "the seam does not know what the plugin asks the kernel for";
    if (!plan_.fired()) {
      ++missed_;
      EXPECT_EQ(status, 0) << "nothing failed";
      return;
    }
    ++all_fired_[failure.kind];
    if (status == 0) ++harmless_[failure.call];
    ++(failure.kind == seam::kError   ? errors_
       : failure.kind == seam::kShort ? shorts_
       : failure.kind == seam::kKill  ? kills_
       : failure.kind == seam::kHang  ? stuck_
                                      : signals_);
  }

  std::vector<std::uint64_t> fences_made() {
    return {scene_.control().fences_made(0), scene_.control().fences_made(1)};
  }
  // As CRIU does, wherever they are, when one task could not be restored.
  bool host_killed_the_others() const {
    return GetParam().shape.tasks > 1 && log_.find("was not restored") != std::string::npos;
  }
  // Who is killed cannot remove what he was writing; the next dump into the directory does.
  void remove_unfinished_statistics() {
    for (const auto& entry : fs::directory_iterator(place_)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("sluice-stats-restore-") && name.ends_with(".json.tmp")) fs::remove(entry.path());
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
    plan_.disarm();
    const std::uint64_t number = fences_made()[job.gpu] + job.number;
    if (job.hangs) {
      scene_.variables["SLUICE_FENCE_TIMEOUT"] = "1";
      scene_.control().hang_fence(job.gpu, number);
    } else {
      scene_.control().fail_fence(job.gpu, number, EIO);
    }
    ++(job.hangs ? hangs_ : fences_);
  }
  // What a job that never ends may still reach is kept on purpose until the host's process ends: the render
  // file, dma-bufs and fences, and staging memory. A host that finds nothing else left has failed as it
  // shall.
  int but_for_what_hangs(int status, const LostJob& job) const {
    if (!job.hangs || status != kLeftOvers) return status;
    std::istringstream lines(log_);
    for (std::string line; std::getline(lines, line);) {
      const auto speaks_of = [&line](const char* what) { return line.find(what) != std::string::npos; };
      if (speaks_of("violation:") && !speaks_of("(/dev/dri/renderD") && !speaks_of("(/dmabuf:)") &&
          !speaks_of("(anon_inode:sync_file)") && !speaks_of(" rw-p "))
        return status;
    }
    return kFailed;
  }
  void lose_no_more() {
    scene_.variables.erase("SLUICE_FENCE_TIMEOUT");
    scene_.control().clear_faults();
    scene_.control().release_hung_fences();
  }

  // ---- what a plugin opens, makes, renames and removes

  void note_what_is_opened() {
    fs::remove(opened_);
    scene_.variables[seam::kOpenedVariable] = opened_.string();
  }
  std::set<std::string> opened() const {
    std::set<std::string> lines;
    std::ifstream file(opened_);
    for (std::string line; std::getline(file, line);) lines.insert(line);
    return lines;
  }
  // Files without a name in which a dump tries whether extents can be shared (O_TMPFILE).
  static bool is_unnamed(const std::string& path, const std::string& directory) {
    return path == directory + ".";
  }
  // Written, or removed, is nothing but paths like `outside` and, in the image directory, names like
  // `inside`.
  void expect_listed(const std::set<std::string>& lines, const char* outside, const char* inside) {
    const std::string directory = (streamed() ? scene_.images() : place_).string() + "/";
    const std::regex paths(outside);
    const std::regex names(inside);
    for (const std::string& line : lines) {
      const std::string path = line.substr(2);
      const bool is_inside = path.starts_with(directory);
      const bool is_parents = has_parent() && (path + "/").starts_with(earlier_.string() + "/");
      const bool is_read =
          is_inside || is_parents || path + "/" == directory || (path + "/").starts_with("/proc/") ||
          path.starts_with("/sys/") || path.starts_with("/dev/") || path.starts_with("/run/sluice") ||
          path == "/etc/criu/sluice.conf" || path == (shipped_plugin_directory() / "sluice.conf").string();
      const bool is_written =
          is_inside ? std::regex_match(path.substr(directory.size()), names) || is_unnamed(path, directory)
                    : std::regex_match(path, paths);
      EXPECT_TRUE(line[0] == 'w' ? is_written : is_read) << line;
    }
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

  // The next run has its tasks, whatever became of those of the last.
  void begin_again() {
    end_tasks();
    ASSERT_NO_FATAL_FAILURE(restore_earlier());
  }

  static inline bool private_shm_ = false;
  static inline std::map<seam::Kind, std::size_t> all_tried_, all_fired_;  // in all tests of this program

  ScratchDirectory scratch_;
  std::optional<ThunkMemory> thunk_memory_;
  fs::path earlier_;  // a checkpoint that nobody is to touch
  Listing earlier_files_;
  fs::path place_;  // where a run writes to, or reads from
  const fs::path opened_ = scratch_.path() / "opened";
  FailurePlan plan_;
  TaskTree tasks_{scene_};
  Program restorer_;
  std::string log_;
  TimesTaken queues_ran_after_;
  std::map<std::string, std::size_t> harmless_;  // by call: it failed, and the host went on
  std::size_t fences_ = 0, hangs_ = 0, places_ = 0, errors_ = 0, shorts_ = 0, kills_ = 0, signals_ = 0,
              stuck_ = 0, let_go_ = 0, tried_ = 0, missed_ = 0;
};

TEST_P(EveryFailureTest, Dump) {
  std::vector<Failure> all;
  ASSERT_NO_FATAL_FAILURE(find_failures_of_a_dump(kFailures, all));
  EXPECT_FALSE(all.empty());
  fail_dumps(share_of(all, kShare));
}

// The hooks hold it back: no queue is left stopped.
TEST_P(EveryFailureTest, SignalsOfADump) {
  std::vector<Failure> all;
  ASSERT_NO_FATAL_FAILURE(find_failures_of_a_dump(seam::kSignal, all));
  EXPECT_FALSE(all.empty());
  fail_dumps(share_of(all, kShare));
}

// Who waits for ever is ended, and takes nothing with him.
TEST_P(EveryFailureTest, HangsOfADump) {
  std::vector<Failure> all;
  ASSERT_NO_FATAL_FAILURE(find_failures_of_a_dump(seam::kHang, all));
  EXPECT_FALSE(all.empty());
  fail_dumps(share_of(all, kShareOfHangs));
}

// What tells the images of one dump from those of another is never left out, whatever the share.
TEST_P(EveryFailureTest, IdsOfDumps) {
  std::vector<Failure> all;
  ASSERT_NO_FATAL_FAILURE(find_failures_of_a_dump(seam::kError, all));
  std::erase_if(all, [](const Failure& failure) { return failure.call != "getrandom"; });
  EXPECT_FALSE(all.empty());
  fail_dumps(share_of(all, all.size()));
}

TEST_P(EveryFailureTest, Restore) {
  std::vector<Failure> all;
  ASSERT_NO_FATAL_FAILURE(find_failures_of_a_restore(kFailures, all));
  EXPECT_FALSE(all.empty());
  fail_restores(share_of(all, kShare));
}

TEST_P(EveryFailureTest, HangsOfARestore) {
  std::vector<Failure> all;
  ASSERT_NO_FATAL_FAILURE(find_failures_of_a_restore(seam::kHang, all));
  EXPECT_FALSE(all.empty());
  fail_restores(share_of(all, kShareOfHangs));
}

// CRIU takes no notice of what this hook answers, and would go on with maps of something else: each error in
// it is tried, whatever the share.
TEST_P(EveryFailureTest, UpdatesOfMaps) {
  const HookPlaces hooks;
  std::vector<Failure> all;
  ASSERT_NO_FATAL_FAILURE(find_failures_of_a_restore(kFailures, all));
  std::erase_if(all, [&](const Failure& failure) {
    return failure.kind != seam::kError || hooks.hook_at(failure.outermost) != plugin::kHookUpdateVmaMap;
  });
  EXPECT_FALSE(all.empty());
  fail_restores(share_of(all, all.size()));
}

// Root restores images that other users made: docs/user/security.md lists what it touches.
TEST_P(EveryFailureTest, ARestoreOpensAndWritesWhatIsListedAndNothingElse) {
  note_what_is_opened();
  plan_.disarm();
  const int well = restore(place_);
  ASSERT_EQ(well, 0) << scene_.log();
  judge_restore(well);
  const std::set<std::string> lines = opened();
  EXPECT_TRUE(lines.contains("w /dev/kfd")) << "nothing was noted";
  const std::string memory = "w /dev/shm/hsakmt_shared_mem";
  const auto first = lines.lower_bound(memory);
  EXPECT_EQ(first != lines.end() && first->starts_with(memory), private_shm_);
  expect_listed(lines,
                "/dev/kfd|/dev/dri/renderD[0-9]+|/dev/shm/"
                "(hsakmt_shared_mem|sem\\.hsakmt_semaphore|\\.)|"  // ".": what has no name yet
                "(/.*/sysfs)?/run/sluice/vram",                    // the virtual machine's
                "sluice-stats-restore-[0-9]+\\.json(\\.tmp)?");
}

// The same for whoever can put something into the directory beforehand.
TEST_P(EveryFailureTest, ADumpOpensAndWritesWhatIsListedAndNothingElse) {
  const Strings others = {"pages-1000.img", "amdgpu-notes", "sluice-notes", "notes-amdgpu-kfd-1.img"};
  for (const char* const reuse : {"0", "1"}) {
    SCOPED_TRACE(std::string("SLUICE_REUSE=") + reuse);
    ASSERT_NO_FATAL_FAILURE(restore_earlier());
    put_earlier_into_place();
    for (const std::string& name : others) std::ofstream(place_ / name) << name;
    note_what_is_opened();
    scene_.variables["SLUICE_REUSE"] = reuse;
    ASSERT_EQ(dump(place_), 0) << scene_.log();
    scene_.variables.erase(seam::kOpenedVariable);
    tasks_.wait_until_dumped();
    const std::set<std::string> lines = opened();
    EXPECT_TRUE(lines.contains("w /dev/kfd")) << "nothing was noted";
    if (!streamed()) {
      const std::string old = "w " + place_.string() + "/amdgpu-pages-old";
      const auto first = lines.lower_bound(old);
      EXPECT_EQ(first != lines.end() && first->starts_with(old),
                *reuse == '1' && !has_parent() && !GetParam().shape.has_replicas);
    }
    expect_listed(lines, "/dev/kfd|/dev/dri/renderD[0-9]+",
                  "amdgpu-.*\\.img(\\.tmp)?|sluice-(stats|trace)-.*");
    for (const std::string& name : others) {
      std::string text;
      std::getline(std::ifstream(place_ / name), text);
      EXPECT_EQ(text, name);
    }
  }
  ASSERT_NO_FATAL_FAILURE(restore_earlier());
}

TEST_P(EveryFailureTest, JobsOfADump) {
  ASSERT_NO_FATAL_FAILURE(restore_earlier());
  const std::vector<std::uint64_t> made = fences_made();
  ASSERT_EQ(dump(place_), 0) << scene_.log();
  tasks_.wait_until_dumped();
  const std::vector<LostJob> all = lost_jobs(made);
  EXPECT_FALSE(all.empty());
  ASSERT_NO_FATAL_FAILURE(restore_earlier());
  for (const LostJob& job : share_of(all, kShareOfFences)) {
    const Listing before = listing(place_);
    const int problems_before = problems();
    (void)scene_.log();
    lose(job);
    const int ended = dump(place_);
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
  plan_.disarm();
  const std::vector<std::uint64_t> made = fences_made();
  const int well = restore(place_);
  ASSERT_EQ(well, 0) << scene_.log();
  judge_restore(well);
  const std::vector<LostJob> all = lost_jobs(made);
  EXPECT_FALSE(all.empty());
  for (const LostJob& job : share_of(all, kShareOfFences)) {
    const int problems_before = problems();
    (void)scene_.log();
    lose(job);
    const int ended = restore(place_);
    log_ = scene_.log();
    const int status = but_for_what_hangs(ended, job);
    EXPECT_EQ(status, kFailed);
    lose_no_more();
    judge_restore(status);
    (void)tell(job.name(), {}, status, problems_before);
  }
  ASSERT_NO_FATAL_FAILURE(restore_earlier());
  EXPECT_EQ(tasks_.what_is_not_whole(), "");
}

// A pre-dump, whatever befalls it: the tasks run on, and the dump that follows comes back intact, whether it
// has a parent or not.
class EveryFailureOfAPreDump : public EveryFailureTest {
 protected:
  static constexpr std::uint64_t kShareOfEachKind = 2;

  // The host's exit status.
  int predump() {
    Program host =
        scene_.start_host(version(), "pre-dump", tasks_.with_pids({"--images", predumped_.string()}));
    if (plan_.kind() == seam::kHang) end_one_that_hangs(host);
    return host.wait();
  }
  // Signals are held only while the queues may stand.
  void end_one_that_hangs(Program& host) {
    while (!host.has_ended() && plan_.hung_process() == 0) (void)::sched_yield();
    scene_.control().between_calls([&] {  // nobody dies in a call of the driver
      while (!host.has_ended()) {
        if (!send(host, SIGTERM)) (void)::kill(host.pid(), SIGKILL);
      }
    });
  }
  // Those of one that goes well.
  void find_failures(std::uint32_t kinds, std::vector<Failure>& all) {
    plan_.disarm();
    fs::remove_all(predumped_);
    ASSERT_EQ(predump(), 0) << scene_.log();
    ASSERT_TRUE(fs::exists(mark_)) << scene_.log();
    all = plan_.failures(kinds, turns(), &places_);
  }

  void fail_predumps(const std::vector<Failure>& failures) {
    for (const Failure& failure : failures) {
      // Half of them over what the one before has left.
      if (tried_ % 2 == 0) fs::remove_all(predumped_);
      const int problems_before = problems();
      (void)scene_.log();
      plan_.arm(failure);
      const int status = predump();
      log_ = scene_.log();
      judge_log();
      count(failure, status);
      const bool ended = failure.kind != seam::kError && failure.kind != seam::kShort;
      judge_predump(status, ended && plan_.fired());
      if (tell(failure.name(), failure.call + failure.way, status, problems_before)) {
        ASSERT_NO_FATAL_FAILURE(begin_again());
      }
    }
  }

  void judge_predump(int status, bool was_ended) {
    if (!was_ended) {
      EXPECT_TRUE(status == 0 || status == kFailed) << status;
      const bool said = log_.find("[SL-") != std::string::npos;
      EXPECT_TRUE(fs::exists(mark_) || said) << "nothing tells that it is no parent";
      if (!fs::exists(mark_)) {
        EXPECT_TRUE(images_in(predumped_, "amdgpu-predump").empty()) << "left behind";
      }
    }
    for (const FifoSubject& task : tasks_) {
      if (was_ended) {
        EXPECT_EQ(sluice({"unpause", std::to_string(task.pid())}), 0);
      }
      expect_queues_run(task.pid());
    }
    EXPECT_EQ(tasks_.what_is_not_whole(), "");
    judge_dump_on_it();
  }
  void judge_dump_on_it() {
    plan_.disarm();
    fs::remove_all(place_);
    fs::create_directory(predumped_);
    fs::create_directory(place_);
    ASSERT_EQ(run_dump(tasks_.with_pids({"--images", place_.string(), "--prev-images-dir", "../before"})), 0)
        << scene_.log();
    if (fs::exists(mark_)) {
      EXPECT_FALSE(images_in(place_, "amdgpu-delta-").empty()) << scene_.log();
    }
    tasks_.wait_until_dumped();
    overwrite_gpu_memory();
    ASSERT_EQ(restore(place_), 0) << scene_.log();
    EXPECT_EQ(tasks_.what_is_not_whole(), "");
  }

  const fs::path predumped_ = place_.parent_path() / "before";
  const fs::path mark_ = predumped_ / "amdgpu-predump.img";
};

TEST_P(EveryFailureOfAPreDump, LeavesTheTasksAndTheNextDumpIntact) {
  ASSERT_NO_FATAL_FAILURE(restore_earlier());
  for (const std::uint32_t kind : {seam::kError, seam::kShort, seam::kKill, seam::kSignal, seam::kHang}) {
    std::vector<Failure> all;
    ASSERT_NO_FATAL_FAILURE(find_failures(kind, all));
    EXPECT_FALSE(all.empty());
    fail_predumps(share_of(all, kShareOfEachKind));
  }
}

// Where the queues stand, and a tracer is there for nothing but this call.
TEST_P(EveryFailureOfAPreDump, ErrorsInItsHookLeaveNoQueueStopped) {
  ASSERT_NO_FATAL_FAILURE(restore_earlier());
  const HookPlaces hooks;
  std::vector<Failure> all;
  ASSERT_NO_FATAL_FAILURE(find_failures(seam::kError, all));
  std::erase_if(all, [&](const Failure& failure) {
    return hooks.hook_at(failure.outermost) != plugin::kHookHandleDeviceVma;
  });
  EXPECT_FALSE(all.empty());
  fail_predumps(share_of(all, kShareOfEachKind));
}

TEST_P(EveryFailureOfAPreDump, JobsThatFailOrHangAreLeftToTheDump) {
  ASSERT_NO_FATAL_FAILURE(restore_earlier());
  const std::vector<std::uint64_t> made = fences_made();
  ASSERT_EQ(predump(), 0) << scene_.log();
  const std::vector<LostJob> all = lost_jobs(made);
  EXPECT_FALSE(all.empty());
  for (const LostJob& job : share_of(all, kShareOfFences)) {
    const int problems_before = problems();
    (void)scene_.log();
    fs::remove_all(predumped_);
    lose(job);
    const int status = predump();
    log_ = scene_.log();
    EXPECT_EQ(status, 0);
    lose_no_more();
    EXPECT_TRUE(fs::exists(mark_)) << "one job loses all";
    EXPECT_NE(log_.find(job.hangs ? "[SL-D64]" : "[SL-D65]"), std::string::npos);
    judge_predump(status, false);
    if (tell(job.name(), {}, status, problems_before)) {
      ASSERT_NO_FATAL_FAILURE(begin_again());
    }
  }
}

// Each version with half of the shapes, and each shape with half of the versions; all if a share is asked
// for.
std::vector<Run> all_runs() {
  const bool all = std::getenv("SLUICE_FAULT_SHARE") != nullptr || one_is_wanted();
  std::vector<Run> runs;
  for (std::size_t i = 0; i < std::size(kVersions); ++i) {
    for (std::size_t k = 0; k < shapes().size(); ++k) {
      const Version& version = kVersions[i];
      const Shape& shape = shapes()[k];
      const bool wanted = shape.has_parent || shape.has_replicas ? version.name == std::string_view("4.2")
                                                                 : all || (i + k) % 2 == 0;
      if (wanted) runs.push_back({version, shape});
    }
  }
  return runs;
}

INSTANTIATE_TEST_SUITE_P(Runs, EveryFailureTest, ::testing::ValuesIn(all_runs()), name_of_run);
INSTANTIATE_TEST_SUITE_P(Runs, EveryFailureOfAPreDump, ::testing::Values(Run{kVersions[2], shapes()[0]}),
                         name_of_run);

}  // namespace
}  // namespace sluice::plugin_test
