// SPDX-License-Identifier: MIT
// Dump and restore over and over, of random jobs, by hosts of random versions: all is whole each time, and
// nothing grows. A job is a subject of a seeded shape; it is dumped, restored, checked and sent to work many
// times, so each process but the first was restored.
//
//   SLUICE_CYCLES=n     dumps and restores (8)
//   SLUICE_SEED=n       another choice of jobs
#include <sched.h>

#include <cstdio>
#include <fstream>
#include <map>

#include "plugin_test.h"
#include "support/rng.h"
#include "support/seeds.h"

namespace sluice::host_test {
namespace {

constexpr std::uint64_t kMostCyclesOfAJob = 20;
// A thread stack, which the C library keeps for the next thread, and heaps of threads that have ended: how
// many depends on how many ran at once. The look-alike's tasks keep these; CRIU's lose all that was not
// dumped.
constexpr std::size_t kSlackMaps = 16;
constexpr std::uint64_t kSlackKib = 8192;

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

class LongRunTest : public PluginTest {
 protected:
  Strings random_job(test::Rng& rng) {
    Strings arguments = {"--seed", std::to_string(rng.between(1, 1'000'000)), "--zero",
                         std::to_string(rng.between(0, 100))};
    constexpr const char* kSizes[] = {"mixed", "small", "many", "huge"};
    arguments.insert(arguments.end(), {"--bos", kSizes[rng.between(0, 3)]});
    for (const char* option : {"--no-events", "--no-userptr", "--svm", "--second-kfd", "--dup-kfd"}) {
      if (rng.percent(25)) arguments.push_back(option);
    }
    return arguments;
  }

  // How the plugin is set for one cycle.
  void choose_settings(test::Rng& rng) {
    scene_.variables["SLUICE_STAGING_SIZE"] = rng.percent(50) ? "8M" : "64M";
    scene_.variables["SLUICE_CHUNK_SIZE"] = rng.percent(50) ? "1M" : "4M";
    scene_.variables["SLUICE_PARALLEL"] = rng.percent(75) ? "on" : "off";
    scene_.variables["SLUICE_REUSE"] = rng.percent(25) ? "on" : "off";
    scene_.variables["SLUICE_IO_MODE"] = rng.percent(75) ? "auto" : "buffered";
  }

  void quit() {
    EXPECT_EQ(heard("quit"), "ok quit");
    EXPECT_EQ(scene_.subject().hear(), "");
    while (!scene_.control().processes().empty()) (void)::sched_yield();
    EXPECT_EQ(scene_.control().counts(), vamdgpu::Counts());
  }
};

TEST_F(LongRunTest, NothingIsLostAndNothingGrows) {
  const std::uint64_t cycles = test::number_from("SLUICE_CYCLES", 8);
  test::Rng rng(test::seeds_of_test(1).first);
  std::uint64_t jobs = 0;
  for (std::uint64_t cycle = 0; cycle < cycles; ++jobs) {
    const Strings job = random_job(rng);
    std::string words = "job";
    for (const std::string& word : job) words += " " + word;
    SCOPED_TRACE(words);
    ASSERT_NO_FATAL_FAILURE(start(job));
    // By the version that restored, and whether contents flowed in the task itself: some leave descriptors
    // there (docs/architecture.md).
    std::map<std::string, Footprint> first;
    std::map<std::string, vamdgpu::Counts> first_counts;
    for (std::uint64_t left = rng.between(1, kMostCyclesOfAJob); left > 0 && cycle < cycles;
         --left, ++cycle) {
      SCOPED_TRACE("cycle " + std::to_string(cycle));
      choose_settings(rng);
      if (rng.percent(20)) {
        ASSERT_EQ(scene_.dump(kVersions[rng.between(0, 3)].name, {"--leave-running"}), 0) << scene_.log();
        ASSERT_NO_FATAL_FAILURE(expect_running());
      }
      ASSERT_EQ(scene_.dump(kVersions[rng.between(0, 3)].name), 0) << scene_.log();
      scene_.wait_until_subject_is_gone();
      EXPECT_EQ(scene_.control().counts(), vamdgpu::Counts());
      const std::string version = kVersions[rng.between(0, 3)].name;
      const std::string way = version + scene_.variables["SLUICE_PARALLEL"];
      ASSERT_EQ(scene_.restore(version), 0) << scene_.log();
      (void)scene_.log();
      ASSERT_NO_FATAL_FAILURE(expect_whole());
      const Footprint now = footprint_of(scene_.subject_pid());
      const Footprint& then = first.try_emplace(way, now).first->second;
      EXPECT_EQ(now.descriptors, then.descriptors);
      EXPECT_EQ(now.threads, then.threads);
      EXPECT_LE(now.maps, then.maps + kSlackMaps);
      EXPECT_LE(now.data_kib, then.data_kib + kSlackKib);
      const vamdgpu::Counts counts = scene_.control().counts();
      EXPECT_EQ(counts, first_counts.try_emplace(way, counts).first->second);
      if (HasFailure()) return;
    }
    quit();
  }
  std::printf("shown: long run: %llu cycles of %llu jobs, all whole\n",
              static_cast<unsigned long long>(cycles), static_cast<unsigned long long>(jobs));
}

}  // namespace
}  // namespace sluice::host_test
