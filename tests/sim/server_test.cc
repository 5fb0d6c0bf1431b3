// SPDX-License-Identifier: MIT
// The real content server and the real tasks' end of it, over simulated processes and sockets: one seed is
// one run (support/seeds.h). CRIU's main process, up to four tasks with up to two open files each; late and
// missing servers, peers that stall for longer than anybody waits, full sockets, a call that fails,
// descriptors that get lost, a process that is killed between any two calls.
//
// Checked in every run: nobody waits for ever; a file's BOs have one writer, the server or their task, never
// both, and none only where one of the two is dead; the server's join tells of contents that failed, and of
// nothing else; every descriptor is closed.
#include <gtest/gtest.h>

#include <cstdio>
#include <optional>

#include "plugin/content_server.h"
#include "sim/sim_contents.h"
#include "support/seeds.h"

namespace sluice::sim {
namespace {

using test::Rng;

constexpr int kMain = 0;

// One open file of a task.
struct File {
  int id = 0;
  int task = 0;  // its process
  std::uint32_t gpus = 1;
  std::uint64_t bos = 1;         // of each GPU
  bool settled = false;          // the task knows who writes
  bool handed_over = false;      // the server does
  bool restored_itself = false;  // the task did
};

struct Case {
  explicit Case(std::uint64_t seed);

  Rng rng;
  SimProcesses::Chances chances;
  std::vector<File> files;
  int tasks = 0;
  bool starts = true;  // main gets to POST_FORKING
  std::uint64_t start_after_ns = 0;
  SimContents contents;
};

Case::Case(std::uint64_t seed) : rng(seed) {
  tasks = static_cast<int>(rng.between(1, 4));
  int id = 10;
  for (int task = 1; task <= tasks; ++task) {
    for (std::uint64_t n = rng.between(1, 2); n > 0; --n) {
      File file{.id = id++, .task = task};
      file.gpus = static_cast<std::uint32_t>(rng.between(1, 2));
      file.bos = rng.percent(10) ? rng.between(200, 600) : rng.between(1, 4);
      contents.plans[file.id] = {rng.percent(5), rng.percent(5)};
      files.push_back(file);
    }
  }
  starts = rng.percent(90);
  start_after_ns = rng.percent(10) ? 100 * kSecond : rng.between(0, 10'000);
  contents.no_thread = rng.percent(5);
  chances.pause_ns_max = rng.percent(20) ? 1 : rng.between(2, 5000);
  chances.stall_permille = rng.percent(30) ? static_cast<unsigned>(rng.between(1, 30)) : 0;
  chances.socket_bytes = rng.percent(30) ? 1 : 200'000;
  if (rng.percent(40)) {
    chances.victim = static_cast<int>(rng.between(0, static_cast<std::uint64_t>(tasks)));
    chances.death_step = rng.between(1, 200);
  }
  if (rng.percent(40)) {
    constexpr int kErrors[] = {0, ENOMEM, ENOBUFS, EMFILE, EPERM};
    chances.fail_call = rng.between(0, 60);
    chances.fail_errno = kErrors[rng.between(0, 4)];
  }
}

plugin::ContentRequest request_of(SimProcesses& processes, const File& file) {
  plugin::ContentRequest request;
  request.id = file.id;
  for (std::uint32_t gpu = 0; gpu < file.gpus; ++gpu) {
    plugin::GpuContents contents;
    contents.gpu_id = gpu + 1;
    for (std::uint64_t bo = 0; bo < file.bos; ++bo)
      contents.bos.push_back(
          {4096, 0x1000 * bo, UniqueFd(processes.make_memory()), static_cast<std::uint32_t>(bo)});
    request.gpus.push_back(std::move(contents));
  }
  return request;
}

// What RESTORE_EXT_FILE does for its contents.
void restore_task(SimProcesses& processes, std::vector<File>& files, int task, int shared_socket) {
  const UniqueFd socket(shared_socket);
  for (File& file : files) {
    if (file.task != task) continue;
    processes.pause();
    const bool handed = plugin::hand_over(socket.get(), request_of(processes, file)).ok();
    file.settled = true;
    file.handed_over = handed;
    file.restored_itself = !handed;
  }
}

struct Outcome {
  std::optional<Result<void>> joined;
  std::uint64_t told = 0;  // files in take_finished()
};

void restore_main(SimProcesses& processes, Case& one, Outcome& outcome) {
  const plugin::Config config;
  auto made = plugin::ContentServer::make(config, one.files.size());
  if (!made) return;  // tasks know that there is none
  plugin::ContentServer& server = **made;
  const UniqueFd stored(one.contents.stored_fd);
  std::vector<int> tasks;
  for (int task = 1; task <= one.tasks; ++task) {
    const int socket = processes.duplicate(stored.get());
    tasks.push_back(processes.spawn(task, [&processes, &one, task, own = std::make_shared<UniqueFd>(socket)] {
      restore_task(processes, one.files, task, own->release());
    }));
  }
  if (one.starts) {
    processes.pause_for(one.start_after_ns);
    (void)server.start(0);  // a failure is told to the tasks
  }
  for (const int task : tasks) processes.wait_until([&] { return processes.ended(task); });
  for (int task = 1; task <= one.tasks; ++task) {
    if (processes.dead(task)) server.cancel();
  }
  outcome.joined = server.join(nullptr);
  outcome.told = server.take_finished().size();
}

struct Totals {
  std::uint64_t runs = 0, steps = 0, handed_over = 0, restored_itself = 0, dead = 0, failed = 0;
};

void run_seed(std::uint64_t seed, Totals& totals) {
  test::announce_seed(seed);
  Case one(seed);
  set_contents(&one.contents);
  Outcome outcome;
  SimProcesses processes(Rng(one.rng.next()), one.chances);
  processes.spawn(kMain, [&] { restore_main(processes, one, outcome); });
  processes.run();
  ASSERT_EQ(processes.open_files(), 0U);

  const bool main_died = processes.dead(kMain);
  for (const File& file : one.files) {
    SCOPED_TRACE("file " + std::to_string(file.id));
    const bool begun = one.contents.begun.contains(file.id);
    ASSERT_FALSE(begun && file.restored_itself) << "two writers";
    if (file.handed_over && !main_died) {
      ASSERT_TRUE(begun) << "no writer";
    }
    if (begun && !processes.dead(file.task)) {
      ASSERT_TRUE(file.handed_over) << "the task knows nothing of it";
    }
    totals.handed_over += file.handed_over ? 1U : 0U;
    totals.restored_itself += file.restored_itself ? 1U : 0U;
  }
  if (outcome.joined) {
    ASSERT_EQ(outcome.told, one.contents.begun.size());
    const bool cancelled = std::any_of(one.files.begin(), one.files.end(),
                                       [&](const File& file) { return processes.dead(file.task); });
    if (!cancelled) {
      ASSERT_EQ(outcome.joined->ok(), one.contents.failed.empty());
    }
    totals.failed += outcome.joined->ok() ? 0U : 1U;
  } else {
    ASSERT_TRUE(main_died || one.contents.begun.empty());
  }
  ++totals.runs;
  totals.steps += processes.steps();
  for (int process = 0; process <= one.tasks; ++process) totals.dead += processes.dead(process) ? 1U : 0U;
}

TEST(Simulation, ContentServerAndTasks) {
  Totals totals;
  const test::Seeds seeds = test::seeds_of_test(5'000);
  for (std::uint64_t seed = seeds.first; seed < seeds.first + seeds.count; ++seed) {
    SCOPED_TRACE(test::replay_with(seed));
    run_seed(seed, totals);
    if (HasFatalFailure()) return;
  }
  std::printf(
      "shown: content server and tasks: %llu seeds, %llu steps; %llu files handed over, %llu restored by "
      "their tasks, %llu "
      "processes "
      "killed, %llu restores failed\n",
      static_cast<unsigned long long>(totals.runs), static_cast<unsigned long long>(totals.steps),
      static_cast<unsigned long long>(totals.handed_over),
      static_cast<unsigned long long>(totals.restored_itself), static_cast<unsigned long long>(totals.dead),
      static_cast<unsigned long long>(totals.failed));
  EXPECT_EQ(totals.runs, seeds.count);
  if (!seeds.replay && seeds.count >= 100) {
    EXPECT_GT(totals.handed_over, seeds.count / 2);
    EXPECT_GT(totals.restored_itself, seeds.count / 10);
    EXPECT_GT(totals.dead, seeds.count / 10) << "deaths come too late";
    EXPECT_GT(totals.failed, 0U);
  }
}

}  // namespace
}  // namespace sluice::sim
