// SPDX-License-Identifier: MIT
// The real content server and the real tasks' end of it, over simulated processes, sockets, rings and GPUs:
// one seed is one run (support/seeds.h). All of the plugin that is between them is real: jobs (ContentsJob),
// lanes, stages, in the world of sim_contents.cc. CRIU's main process, up to four tasks with up to two open
// files each; strangers who say hello and nothing more; late and missing servers, peers that stall for longer
// than anybody waits, full sockets, a call that fails, descriptors that get lost, a process that is killed
// between any two calls or in the middle of a lane; blocks that are not what they were, a disk, a GPU or a
// ring that fails.
//
// Checked in every run: nobody waits for ever; a file's BOs have one writer, the server or their task, never
// both, and none only where one of the two is dead; who is told that all is well has every byte; what does
// not verify comes to no BO; the server's join tells of contents that failed, by what they failed of, and of
// nothing else; every descriptor is closed.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <set>

#include "base/units.h"
#include "plugin/host/image_store.h"
#include "plugin/restore/server/content_server.h"
#include "sim/sim_contents.h"
#include "support/seeds.h"
#include "support/temp_dir.h"

namespace sluice::sim {
namespace {

using test::Rng;

constexpr int kMain = 0;

// One open file of a task.
struct File {
  int id = 0;
  int task = 0;  // its process
  std::uint32_t gpus = 1;
  bool handed_over = false;      // the server does
  bool restored_itself = false;  // the task did
};

struct Case {
  explicit Case(std::uint64_t seed);

  Rng rng;
  SimProcesses::Chances chances;
  std::vector<File> files;
  int tasks = 0;
  int strangers = 0;
  bool starts = true;  // main gets to POST_FORKING
  std::uint64_t start_after_ns = 0;
  settings::Config config;
  bool same_gpus = false;  // of all files: lanes wait for staging memory
  SimContents contents;
};

SimGpu gpu_of(Rng& rng, std::uint64_t bos, std::uint64_t block_bytes) {
  test::BoList image;
  for (; bos > 0; --bos) {
    // Where there are many they are small.
    test::Bytes bo(rng.between(1, image.size() + bos > 100 ? 64 : 32 * kKiB));
    if (!rng.percent(10)) rng.fill(bo);
    image.push_back(std::move(bo));
  }
  const SimGpu::Trouble trouble =
      rng.percent(90) ? SimGpu::Trouble::None : static_cast<SimGpu::Trouble>(rng.between(1, 4));
  const std::uint64_t at = rng.between(0, trouble == SimGpu::Trouble::Corrupt ? 1 << 20 : 20);
  return SimGpu(std::move(image), block_bytes, Rng(rng.next()), trouble, at);
}

Case::Case(std::uint64_t seed) : rng(seed) {
  tasks = static_cast<int>(rng.between(1, 4));
  config.chunk_bytes = 4 * kKiB << rng.between(0, 3);
  config.staging_bytes = rng.percent(20) ? 4 * kMiB : rng.between(2, 6) * config.chunk_bytes;
  config.trace = rng.percent(10);
  same_gpus = rng.percent(50);
  int id = 10;
  std::uint32_t lanes = 0;
  for (int task = 1; task <= tasks; ++task) {
    for (std::uint64_t n = rng.between(1, 2); n > 0; --n) {
      File file{.id = id++, .task = task};
      file.gpus = static_cast<std::uint32_t>(rng.between(1, 2));
      const std::uint64_t bos = rng.percent(10) ? rng.between(200, 600) : rng.between(1, 4);
      for (std::uint32_t gpu = 0; gpu < file.gpus; ++gpu) {
        if (rng.percent(5)) contents.no_threads.insert(1 + lanes);
        const std::uint64_t block_bytes = rng.percent(50) ? 4 * kKiB : config.chunk_bytes;
        contents.gpus.emplace(std::pair(file.id, ++lanes), gpu_of(rng, bos, block_bytes));
      }
      files.push_back(file);
    }
  }
  strangers = rng.percent(20) ? static_cast<int>(rng.between(1, 3)) : 0;
  starts = rng.percent(90);
  start_after_ns = rng.percent(10) ? 100 * kSecond : rng.between(0, 10'000);
  if (rng.percent(5)) contents.no_threads.insert(0);
  chances.pause_ns_max = rng.percent(20) ? 1 : rng.between(2, 5000);
  chances.stall_permille = rng.percent(30) ? static_cast<unsigned>(rng.between(1, 30)) : 0;
  chances.socket_bytes = rng.percent(30) ? 1 : 200'000;
  if (rng.percent(40)) {
    chances.victim = static_cast<int>(rng.between(0, static_cast<std::uint64_t>(tasks)));
    chances.death_step = rng.between(1, rng.percent(50) ? 200 : 1000);
  }
  if (rng.percent(40)) {
    constexpr int kErrors[] = {0, ENOMEM, ENOBUFS, EMFILE, EPERM};
    chances.fail_call = rng.between(0, 60);
    chances.fail_errno = kErrors[rng.between(0, 4)];
  }
}

// Most GPUs have the contents of the first one, and say so; that lane leads wherever it is.
void share(Case& one) {
  one.contents.reader_rng = Rng(one.rng.next());
  auto& [leader_key, leader] = *one.contents.gpus.begin();
  const std::string name = pages_image_name(leader_key.first, leader_key.second);
  // Without zeros, which nobody reads.
  test::BoList image = leader.image;
  for (test::Bytes& bo : image) one.rng.fill(bo);
  leader = SimGpu(std::move(image), leader.sums.block_bytes, leader.rng, leader.trouble, leader.at);
  one.contents.shared.insert(name);
  for (auto& [key, gpu] : one.contents.gpus) {
    if (key == leader_key || one.rng.percent(20)) continue;
    // What is damaged in its own file, it does not read.
    const SimGpu::Trouble trouble =
        gpu.trouble == SimGpu::Trouble::Corrupt ? SimGpu::Trouble::None : gpu.trouble;
    gpu = SimGpu(leader.image, leader.sums.block_bytes, gpu.rng, trouble, gpu.at);
    gpu.leader = name;
  }
}

plugin::ContentRequest request_of(SimProcesses& processes, const Case& one, const File& file) {
  plugin::ContentRequest request;
  request.id = file.id;
  request.dump_id = kDump;
  for (const auto& [key, gpu] : one.contents.gpus) {
    if (key.first != file.id) continue;
    plugin::LaneContents& wanted = request.lanes.emplace_back();
    wanted.pages.gpu_id = key.second;
    wanted.render_minor =
        128 + (one.same_gpus ? static_cast<std::uint32_t>(request.lanes.size() - 1) : key.second);
    wanted.pages.has_sums = true;
    for (const test::Bytes& bo : gpu.bos) {
      const auto number = static_cast<std::uint32_t>(wanted.dmabufs.size());
      wanted.pages.bos.push_back({bo.size(), 0x10000 * number, number});
      wanted.dmabufs.emplace_back(processes.make_memory());
    }
  }
  return request;
}

// What RESTORE_EXT_FILE does for its contents.
void restore_task(SimProcesses& processes, Case& one, int task, int shared_socket) {
  const UniqueFd socket(shared_socket);
  for (File& file : one.files) {
    if (file.task != task) continue;
    processes.pause();
    const bool handed = plugin::hand_over(socket.get(), request_of(processes, one, file)).ok();
    file.handed_over = handed;
    file.restored_itself = !handed;
    if (handed) continue;
    if (!one.contents.untouched(file.id)) test::fail("the server has written to BOs that are the task's");
    one.contents.restore_itself(file.id);
  }
}

struct Outcome {
  std::optional<Result<void>> joined;
  bool joining = false;
  std::uint64_t joined_ns = 0;
  std::set<int> told;  // files in take_finished()
};

// Says hello, and holds its end of the channel until nobody could hear more.
void stay_silent(SimProcesses& processes, int main_thread, int shared_socket) {
  const UniqueFd socket(shared_socket);
  auto ends = plugin::make_content_sockets();
  if (!ends) return;
  std::vector<std::byte> hello(sizeof plugin::kChannelMagic);
  std::memcpy(hello.data(), &plugin::kChannelMagic, hello.size());
  (void)processes.send(socket.get(), std::move(hello), {ends->first.get()}, true);
  ends->first.reset();
  processes.wait_until([&] { return processes.ended(main_thread); });
}

void restore_main(SimProcesses& processes, Case& one, int image_dir, Outcome& outcome) {
  plugin::VramWatch vram;
  const auto store = plugin::ImageStore::of_directory([image_dir] { return image_dir; });
  auto made = plugin::ContentServer::make(one.config, one.files.size(), vram, *store, plugin::kPatience,
                                          one.contents);
  if (!made) return;  // tasks know that there is none
  plugin::ContentServer& server = **made;
  if (!one.contents.shared.empty()) server.share(one.contents.shared);
  const UniqueFd stored(one.contents.stored_fd);
  for (int stranger = 1; stranger <= one.strangers; ++stranger) {
    const int socket = processes.duplicate(stored.get());
    processes.spawn(one.tasks + stranger, [&processes, own = std::make_shared<UniqueFd>(socket)] {
      stay_silent(processes, kMain, own->release());
    });
  }
  std::vector<int> tasks;
  for (int task = 1; task <= one.tasks; ++task) {
    const int socket = processes.duplicate(stored.get());
    tasks.push_back(processes.spawn(task, [&processes, &one, task, own = std::make_shared<UniqueFd>(socket)] {
      restore_task(processes, one, task, own->release());
    }));
  }
  if (one.starts) {
    processes.pause_for(one.start_after_ns);
    (void)server.start();  // a failure is told to the tasks
  }
  for (const int task : tasks) processes.wait_until([&] { return processes.ended(task); });
  for (int task = 1; task <= one.tasks; ++task) {
    if (processes.dead(task)) server.cancel();
  }
  outcome.joining = true;
  outcome.joined = server.join(nullptr);
  outcome.joining = false;
  outcome.joined_ns = processes.now_ns();
  for (const plugin::ContentServer::Finished& file : server.take_finished()) {
    if (!outcome.told.insert(file.id).second) test::fail("the contents of a file were told of twice");
  }
}

struct Totals {
  std::uint64_t runs = 0, steps = 0, handed_over = 0, restored_itself = 0, dead = 0, killed_in_join = 0,
                failed = 0, stopped = 0, most_lanes = 0, last_ns = 0, read_once = 0;
};

int errno_of(SimGpu::Trouble trouble) {
  switch (trouble) {
    case SimGpu::Trouble::Corrupt:
      return EBADMSG;
    case SimGpu::Trouble::Gpu:
    case SimGpu::Trouble::Opening:
    case SimGpu::Trouble::End:
      return EREMOTEIO;
    case SimGpu::Trouble::Disk:
    case SimGpu::Trouble::Ring:
      return EIO;
    case SimGpu::Trouble::None:
      break;
  }
  return 0;
}

// What join() of a restore that nobody cancelled says: if anything that was to happen to contents did, that.
void expect_told(const Case& one, const Result<void>& joined) {
  bool any = false;
  bool this_one = false;
  for (const auto& [key, gpu] : one.contents.gpus) {
    const bool happened = gpu.fault_fired || (gpu.trouble == SimGpu::Trouble::Corrupt && gpu.opened);
    any = any || gpu.fault_fired;
    this_one = this_one || (happened && !joined && joined.error().err == errno_of(gpu.trouble));
    ASSERT_TRUE(!joined || !gpu.opened || gpu.filled) << "file " << key.first;
  }
  ASSERT_TRUE(joined ? !any : this_one) << (joined ? "nothing" : joined.error().what);
}

void run_case(const test::TempDir& images, Case& one, Totals& totals) {
  one.contents.write_images(images);
  set_contents(&one.contents);
  Outcome outcome;
  SimProcesses processes(Rng(one.rng.next()), one.chances);
  processes.spawn(kMain, [&] { restore_main(processes, one, images.fd(), outcome); });
  processes.run();
  ASSERT_EQ(processes.open_files(), 0U);

  const bool main_died = processes.dead(kMain);
  for (const File& file : one.files) {
    SCOPED_TRACE("file " + std::to_string(file.id));
    const bool told = outcome.told.contains(file.id);
    const bool begun = told || one.contents.begun(file.id);
    ASSERT_FALSE(begun && file.restored_itself) << "two writers";
    ASSERT_TRUE(begun || file.restored_itself || one.contents.untouched(file.id)) << "a writer too many";
    if (file.restored_itself || (begun && outcome.joined && outcome.joined->ok())) {
      ASSERT_TRUE(one.contents.whole(file.id));
    }
    if (file.handed_over && !main_died) {
      ASSERT_TRUE(begun) << "no writer";
    }
    ASSERT_TRUE(told || !begun || !outcome.joined) << "nobody is told of it";
    if (begun && !processes.dead(file.task)) {
      ASSERT_TRUE(file.handed_over) << "the task knows nothing of it";
    }
    totals.handed_over += file.handed_over ? 1U : 0U;
    totals.restored_itself += file.restored_itself ? 1U : 0U;
  }
  if (outcome.joined) {
    const bool cancelled = std::any_of(one.files.begin(), one.files.end(),
                                       [&](const File& file) { return processes.dead(file.task); });
    if (!cancelled) {
      ASSERT_NO_FATAL_FAILURE(expect_told(one, *outcome.joined));
    }
    totals.failed += outcome.joined->ok() ? 0U : 1U;
  } else {
    ASSERT_TRUE(main_died || std::none_of(one.files.begin(), one.files.end(),
                                          [&](const File& file) { return one.contents.begun(file.id); }));
  }
  ++totals.runs;
  totals.killed_in_join += outcome.joining ? 1U : 0U;
  totals.stopped += one.contents.stopped;
  totals.read_once += one.contents.read_once;
  totals.most_lanes = std::max(totals.most_lanes, one.contents.most_lanes);
  totals.steps += processes.steps();
  totals.last_ns = outcome.joined_ns;
  for (int process = 0; process <= one.tasks; ++process) totals.dead += processes.dead(process) ? 1U : 0U;
}

test::TempDir folder() {
  return test::TempDir(::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "");
}

TEST(Simulation, ContentServerLanesAndTasks) {
  const test::TempDir images = folder();
  Totals totals;
  const test::Seeds seeds = test::seeds_of_test(test::usual(5'000, 300));
  for (std::uint64_t seed = seeds.first; seed < seeds.first + seeds.count; ++seed) {
    SCOPED_TRACE(test::replay_with(seed));
    test::announce_seed(seed);
    Case one(seed);
    run_case(images, one, totals);
    if (HasFatalFailure()) return;
  }
  std::printf(
      "shown: content server, lanes and tasks: %llu seeds, %llu steps; %llu files handed over, %llu restored "
      "by their tasks, %llu processes killed, %llu restores failed, %llu lanes stopped, at most %llu at "
      "once\n",
      static_cast<unsigned long long>(totals.runs), static_cast<unsigned long long>(totals.steps),
      static_cast<unsigned long long>(totals.handed_over),
      static_cast<unsigned long long>(totals.restored_itself), static_cast<unsigned long long>(totals.dead),
      static_cast<unsigned long long>(totals.failed), static_cast<unsigned long long>(totals.stopped),
      static_cast<unsigned long long>(totals.most_lanes));
  EXPECT_EQ(totals.runs, seeds.count);
  if (!seeds.replay && seeds.count >= 100) {
    EXPECT_GT(totals.handed_over, seeds.count / 2);
    EXPECT_GT(totals.restored_itself, seeds.count / 10);
    EXPECT_GT(totals.dead, seeds.count / 10) << "deaths come too late";
    EXPECT_GT(totals.killed_in_join, seeds.count / 500);
    EXPECT_GT(totals.failed, seeds.count / 20);
    EXPECT_GT(totals.stopped, seeds.count / 50);
    EXPECT_GT(totals.most_lanes, 4U);
  }
}

// Lanes with equal contents read one file, through one reader. No lane waits for another that lags, fails, is
// killed or does not come. If the file is damaged, the others read their own.
TEST(Simulation, LanesThatReadOneFile) {
  const test::TempDir images = folder();
  Totals totals;
  const test::Seeds seeds = test::seeds_of_test(test::usual(500, 100));
  for (std::uint64_t seed = seeds.first; seed < seeds.first + seeds.count; ++seed) {
    SCOPED_TRACE(test::replay_with(seed));
    test::announce_seed(seed);
    Case one(seed);
    share(one);
    run_case(images, one, totals);
    if (HasFatalFailure()) return;
  }
  std::printf(
      "shown: lanes that read one file: %llu seeds, %llu steps; %llu reads for all, %llu restores "
      "failed, %llu processes killed\n",
      static_cast<unsigned long long>(totals.runs), static_cast<unsigned long long>(totals.steps),
      static_cast<unsigned long long>(totals.read_once), static_cast<unsigned long long>(totals.failed),
      static_cast<unsigned long long>(totals.dead));
  if (!seeds.replay && seeds.count >= 100) {
    EXPECT_GT(totals.read_once, seeds.count);
    EXPECT_GT(totals.failed, seeds.count / 20);
    EXPECT_GT(totals.dead, seeds.count / 10);
  }
}

// What has failed once: main ends in join(), and the server's thread lives on.
TEST(Simulation, MainIsKilledInJoin) {
  const test::TempDir images = folder();
  for (const std::uint64_t seed : {81, 298, 335, 379, 414}) {
    SCOPED_TRACE(test::replay_with(seed));
    Case one(seed);
    Totals totals;
    run_case(images, one, totals);
    if (HasFatalFailure()) return;
    ASSERT_EQ(totals.killed_in_join, 1U) << "seeds mean another case now: choose others";
  }
}

// However many there are, and whatever they hold: whoever asks is served at once, and the server's end waits
// for none of them.
TEST(Simulation, StrangersWhoSayNothingKeepNobodyWaiting) {
  const test::TempDir images = folder();
  for (const int strangers : {1, static_cast<int>(2 * plugin::kMostAsking)}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      SCOPED_TRACE(std::to_string(strangers) + " strangers, " + test::replay_with(seed));
      test::announce_seed(seed);
      Case one(seed);
      one.chances = {};
      one.strangers = strangers;
      one.starts = true;
      one.start_after_ns = 0;
      one.contents.no_threads.clear();
      Totals totals;
      run_case(images, one, totals);
      if (HasFatalFailure()) return;
      ASSERT_EQ(totals.handed_over, one.files.size());
      ASSERT_LT(totals.last_ns, kSecond);
    }
  }
}

// Of a job whose lane takes its time: three seconds for each step.
TEST(Simulation, AJobTellsOfItsProgressAndWaitsNoLongerThanItsPatienceOnceItIsStopped) {
  constexpr std::uint64_t kStopAfter = 10 * kSecond;
  const test::TempDir images = folder();
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(test::replay_with(seed));
    Case one(seed);
    one.config.chunk_bytes = 4 * kKiB;
    one.contents.gpus.clear();
    one.contents.no_threads.clear();
    const auto key = std::pair(one.files.front().id, 1U);
    one.contents.gpus.emplace(key, SimGpu({test::Bytes(128 * kKiB, std::byte{1})}, 4 * kKiB,
                                          Rng(one.rng.next()), SimGpu::Trouble::None, 0));
    one.contents.write_images(images);
    set_contents(&one.contents);
    SimProcesses processes(Rng(one.rng.next()), {.stall_permille = 1000});
    std::optional<Result<void>> waited;
    std::uint64_t lines = 0, stopped_ns = 0, ended_ns = 0;
    processes.spawn(kMain, [&] {
      plugin::VramWatch vram;
      const auto store = plugin::ImageStore::of_directory([&images] { return images.fd(); });
      plugin::SharedByJobs shared(vram, *store, one.contents);
      plugin::ContentRequest request = request_of(processes, one, one.files.front());
      auto job = plugin::ContentsJob::restore(request.id, std::move(request.lanes), one.config,
                                              request.dump_id, shared);
      (*job)->begin();
      const int stopper = processes.spawn(kMain, [&] {
        processes.pause_for(kStopAfter);
        stopped_ns = processes.now_ns();
        shared.stopped = true;
      });
      waited = (*job)->wait([&lines](const std::string&) { ++lines; });
      ended_ns = processes.now_ns();
      processes.wait_until([&] { return processes.ended(stopper); });
    });
    processes.run();
    ASSERT_TRUE(waited && !waited->ok());
    ASSERT_EQ(waited->error().err, ECANCELED);
    const std::chrono::nanoseconds patience = plugin::kStopPatience;
    ASSERT_GE(ended_ns, stopped_ns + static_cast<std::uint64_t>(patience.count()));
    ASSERT_LE(ended_ns, stopped_ns + 2 * static_cast<std::uint64_t>(patience.count()));
    ASSERT_GE(lines, 10U);  // the stopper begins late, too
  }
}

}  // namespace
}  // namespace sluice::sim
