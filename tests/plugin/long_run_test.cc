// SPDX-License-Identifier: MIT
// Dump and restore over and over, of random jobs, by hosts of random versions: all is intact each time, and
// nothing grows. A job is a tree of one to three processes of seeded shapes; it is dumped, restored, checked
// and sent to work many times, so each process but the first was restored. And one job for so long that what
// grows by a page in a few cycles is seen.
//
//   SLUICE_CYCLES=n     dumps and restores (10) of random jobs, and of the long one a fifth of that, at least
//   16 SLUICE_SEED=n       another choice of jobs
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lookalike/task_tree.h"
#include "plugin_test.h"
#include "support/rng.h"
#include "support/seeds.h"

namespace sluice::plugin_test {
namespace {

using lookalike::TaskTree;

constexpr std::uint64_t kUsualCycles = 10, kMostCyclesOfAJob = 20;
// A thread stack, which the C library keeps for the next thread, and heaps of threads that have ended: how
// many depends on how many ran at once. The look-alike's tasks keep these; CRIU's lose all that was not
// dumped.
constexpr std::size_t kSlackMaps = 16;
constexpr std::uint64_t kSlackKib = 8192;
// Of the least that a process has had in a quarter of the long job.
#ifdef __SANITIZE_THREAD__
constexpr std::size_t kLongSlackMaps = 8;  // its runtime maps memory of its own, now and then
#else
constexpr std::size_t kLongSlackMaps = 1;
#endif
constexpr std::uint64_t kLongSlackKib = 64;
constexpr std::uint64_t kFewestLongCycles = 16;
constexpr unsigned kMostTasks = 3;

// What a process holds on to.
struct Footprint {
  std::size_t descriptors = 0;
  std::size_t maps = 0;
  std::uint64_t threads = 0;
  std::uint64_t data_kib = 0;  // writable private memory
};

Footprint footprint_of(pid_t pid) {
  const std::filesystem::path proc = "/proc/" + std::to_string(pid);
  Footprint footprint;
  for (const auto& entry : std::filesystem::directory_iterator(proc / "fd")) {
    (void)entry;
    ++footprint.descriptors;
  }
  std::ifstream maps(proc / "maps");
  for (std::string line; std::getline(maps, line);) ++footprint.maps;
  std::ifstream status(proc / "status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("Threads:")) footprint.threads = std::stoull(line.substr(8));
    if (line.starts_with("VmData:")) footprint.data_kib = std::stoull(line.substr(7));
  }
  return footprint;
}

vamdgpu::MachineOptions machine_for_trees() {
  vamdgpu::MachineOptions options = small_machine();
  options.vram_bytes *= kMostTasks;
  options.gtt_bytes *= kMostTasks;
  return options;
}

std::uint64_t cycles_of_jobs() {
  return test::number_from("SLUICE_CYCLES", kUsualCycles);
}

class LongRunTest : public SceneTest {
 protected:
  LongRunTest() : SceneTest(machine_for_trees()) {}

  // What all kinds of jobs have.
  static Strings random_memory(test::Rng& rng) {
    return {"--vram", "16M",
            "--gtt",  "1M",
            "--seed", std::to_string(rng.between(1, 1'000'000)),
            "--zero", std::to_string(rng.between(0, 100))};
  }
  static Strings random_process(test::Rng& rng) {
    Strings arguments = random_memory(rng);
    constexpr const char* kSizes[] = {"mixed", "small", "many", "huge"};
    arguments.insert(arguments.end(), {"--bos", kSizes[rng.between(0, 3)]});
    for (const char* option : {"--no-events", "--no-userptr", "--svm", "--second-kfd", "--dup-kfd"}) {
      if (rng.percent(25)) arguments.push_back(option);
    }
    return arguments;
  }

  // A kind of job, and its processes. One that imports does so from the first.
  struct Job {
    const char* kind;
    std::vector<Strings> tasks;
    bool first_exports = false;
  };
  static constexpr std::uint64_t kKinds = 5;
  // REQUIRES: kind < kKinds.
  static Job random_job(std::uint64_t kind, test::Rng& rng) {
    const auto with = [&rng](const Strings& more) {
      Strings arguments = random_memory(rng);
      arguments.insert(arguments.end(), more.begin(), more.end());
      return arguments;
    };
    switch (kind) {
      case 0: {
        Job job{"a tree", {}};
        for (std::uint64_t tasks = rng.between(2, kMostTasks); tasks > 0; --tasks)
          job.tasks.push_back(random_process(rng));
        return job;
      }
      case 1:
        return {"shared by processes",
                {with({"--share", rng.percent(50) ? "kfd" : "gem", "--share-fd"}), with({})},
                true};
      case 2:
        return {"shared by devices", {with({"--share", "kfd", "--share-fd", "--kfd-import"})}};
      case 3:
        return {"BOs of render nodes", {with({"--gem-handles", "1,3"})}};
      default:
        return {"one process", {random_process(rng)}};
    }
  }

  void start(const Job& job) {
    for (std::size_t i = 0; i < job.tasks.size(); ++i) {
      Strings arguments = job.tasks[i];
      if (i > 0 && job.first_exports)
        arguments.insert(arguments.end(), {"--import-from", std::to_string(tasks().front().pid())});
      const std::string ready = tasks().add(arguments);
      ASSERT_TRUE(ready.starts_with("ready")) << ready;
    }
  }

  // How the plugin is set for one cycle.
  void choose_settings(test::Rng& rng) {
    scene_.variables["SLUICE_STAGING_SIZE"] = rng.percent(50) ? "8M" : "64M";
    scene_.variables["SLUICE_CHUNK_SIZE"] = rng.percent(50) ? "1M" : "4M";
    scene_.variables["SLUICE_PARALLEL"] = rng.percent(75) ? "on" : "off";
    scene_.variables["SLUICE_REUSE"] = rng.percent(25) ? "on" : "off";
    scene_.variables["SLUICE_IO_MODE"] = rng.percent(75) ? "auto" : "buffered";
  }

  void dump_and_leave(const std::string& version) {
    ASSERT_EQ(scene_.dump(version, tasks().with_pids({"--leave-running"})), 0) << scene_.log();
    for (const FifoSubject& task : tasks()) ASSERT_NO_FATAL_FAILURE(expect_queues_run(task.pid()));
    EXPECT_EQ(tasks().what_is_not_whole(), "");
  }

  void cycle(const std::string& dumper, const std::string& restorer) {
    ASSERT_EQ(scene_.dump(dumper, tasks().with_pids()), 0) << scene_.log();
    tasks().wait_until_dumped();
    ASSERT_EQ(scene_.start_host(restorer, "restore", {}).wait(), 0) << scene_.log();
    (void)scene_.log();
    ASSERT_TRUE(tasks().meet_restored());
    EXPECT_EQ(tasks().what_is_not_whole(), "");
  }

  void quit() {
    EXPECT_EQ(tasks().who_does_not_quit(), "");
    tasks().wait_until_gpus_are_free();
    tasks_.reset();
  }

  TaskTree& tasks() {
    if (!tasks_) tasks_.emplace(scene_);
    return *tasks_;
  }

  std::optional<TaskTree> tasks_;  // of the job under way
};

// What a job has left of itself after a cycle; by the version that restored, and whether contents flowed in
// the task itself: some leave descriptors there (docs/internals/restore.md).
class Growth {
 public:
  explicit Growth(TaskTree& tasks) : tasks_(tasks) {}

  void look(const std::string& way, const vamdgpu::Counts& counts) {
    std::vector<Footprint> now;
    for (const FifoSubject& task : tasks_) now.push_back(footprint_of(task.pid()));
    const std::vector<Footprint>& then = first_.try_emplace(way, now).first->second;
    for (std::size_t i = 0; i < now.size(); ++i) {
      SCOPED_TRACE("process " + std::to_string(i));
      EXPECT_EQ(now[i].descriptors, then[i].descriptors);
      EXPECT_EQ(now[i].threads, then[i].threads);
      EXPECT_LE(now[i].maps, then[i].maps + kSlackMaps);
      EXPECT_LE(now[i].data_kib, then[i].data_kib + kSlackKib);
    }
    EXPECT_EQ(counts, first_counts_.try_emplace(way, counts).first->second);
  }

 private:
  TaskTree& tasks_;
  std::map<std::string, std::vector<Footprint>> first_;
  std::map<std::string, vamdgpu::Counts> first_counts_;
};

TEST_F(LongRunTest, NothingIsLostAndNothingGrows) {
  const std::uint64_t cycles = cycles_of_jobs();
  test::Rng rng(test::seeds_of_test(1).first);
  const auto any_version = [&rng] { return std::string(kVersions[rng.between(0, 3)].name); };
  const std::uint64_t most = std::clamp<std::uint64_t>(cycles / kKinds, 1, kMostCyclesOfAJob);
  std::map<std::string, std::uint64_t> jobs;
  for (std::uint64_t done = 0, number = 0; done < cycles; ++number) {
    const Job job = random_job(number % kKinds, rng);
    ++jobs[job.kind];
    std::string words = job.kind;
    for (const Strings& task : job.tasks) {
      words += ":";
      for (const std::string& word : task) words += " " + word;
    }
    SCOPED_TRACE(words);
    ASSERT_NO_FATAL_FAILURE(start(job));
    Growth growth(tasks());
    for (std::uint64_t left = rng.between(1, most); left > 0 && done < cycles; --left, ++done) {
      SCOPED_TRACE("cycle " + std::to_string(done));
      choose_settings(rng);
      if (rng.percent(20)) {
        ASSERT_NO_FATAL_FAILURE(dump_and_leave(any_version()));
      }
      const std::string dumper = any_version();
      const std::string restorer = any_version();
      ASSERT_NO_FATAL_FAILURE(cycle(dumper, restorer));
      growth.look(restorer + scene_.variables["SLUICE_PARALLEL"], scene_.control().counts());
      if (HasFailure()) return;
    }
    quit();
  }
  std::printf("shown: long run: %llu cycles, all whole; jobs:", static_cast<unsigned long long>(cycles));
  for (const auto& [kind, count] : jobs)
    std::printf(" %s %llu%s", kind.c_str(), static_cast<unsigned long long>(count),
                kind == jobs.rbegin()->first ? "\n" : ",");
}

// A tree whose processes share memory. One version restores it, whose tasks make no threads for that, so that
// they have the same each time.
TEST_F(LongRunTest, ALongJobDoesNotGrow) {
  const std::uint64_t cycles = std::max(cycles_of_jobs() / 5, kFewestLongCycles);
  const Strings little = {"--vram", "1M", "--gtt", "1M", "--svm-context"};
  Strings exporter = little;
  exporter.insert(exporter.end(), {"--share", "kfd", "--share-fd"});
  ASSERT_NO_FATAL_FAILURE(start({"", {exporter, little}, true}));
  std::vector<std::vector<Footprint>> all;  // by cycle, then by process
  std::vector<std::size_t> files;           // of the plugin, in the image directory
  for (std::uint64_t done = 0; done < cycles; ++done) {
    SCOPED_TRACE("cycle " + std::to_string(done));
    ASSERT_NO_FATAL_FAILURE(cycle(kVersions[done % std::size(kVersions)].name, "dev"));
    all.emplace_back();
    for (const FifoSubject& task : tasks()) all.back().push_back(footprint_of(task.pid()));
    files.push_back(images("amdgpu-").size() + images("sluice-").size());
  }
  const auto least = [&](std::size_t process, std::size_t quarter, auto Footprint::*what) {
    const std::size_t length = all.size() / 4;
    auto found = all[quarter * length][process].*what;
    for (std::size_t i = quarter * length; i < (quarter + 1) * length; ++i)
      found = std::min(found, all[i][process].*what);
    return found;
  };
  for (std::size_t process = 0; process < tasks().size(); ++process) {
    EXPECT_EQ(least(process, 3, &Footprint::descriptors), least(process, 0, &Footprint::descriptors));
    EXPECT_EQ(least(process, 3, &Footprint::threads), least(process, 0, &Footprint::threads));
    EXPECT_LE(least(process, 3, &Footprint::maps), least(process, 0, &Footprint::maps) + kLongSlackMaps);
    EXPECT_LE(least(process, 3, &Footprint::data_kib),
              least(process, 0, &Footprint::data_kib) + kLongSlackKib);
  }
  EXPECT_EQ(files.back(), files.front());
  quit();
  std::printf("shown: long run: %llu cycles of one job of two processes, nothing has grown\n",
              static_cast<unsigned long long>(cycles));
}

}  // namespace
}  // namespace sluice::plugin_test
