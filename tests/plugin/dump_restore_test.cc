// SPDX-License-Identifier: MIT
// The shipped plugin in all five hosts: what is dumped comes back intact, the KFD calls come in the one right
// order, and the images are what the serial way gives.
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "base/units.h"
#include "plugin_test.h"

namespace sluice::plugin_test {
namespace {

using DumpRestoreTest = PluginTest;

constexpr std::size_t kSlots = 16;  // of a lane that has a GPU's 64 MiB of staging memory for itself

struct Period {
  std::int64_t begin = 0, end = 0;  // nanoseconds
};

Period period_of(const nlohmann::json& event) {  // which has microseconds
  const double begin = event.at("ts"), length = event.at("dur");
  return {std::llround(begin * 1000), std::llround((begin + length) * 1000)};
}

// How many of them there are at the same time. One that begins where another ends comes after it.
std::size_t most_at_once(const std::vector<Period>& periods) {
  std::vector<std::pair<std::int64_t, int>> changes;
  for (const Period& period : periods) {
    changes.emplace_back(period.begin, 1);
    changes.emplace_back(period.end, -1);
  }
  std::sort(changes.begin(), changes.end());
  int now = 0, most = 0;
  for (const auto& [when, change] : changes) most = std::max(most, now += change);
  return static_cast<std::size_t>(most);
}

TEST_P(DumpRestoreTest, TheRestoredProcessIsIntactAndEndsWell) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  EXPECT_EQ(scene_.subject().wait(), 128 + SIGKILL);
  restore_and_check();
  EXPECT_EQ(heard("quit"), "ok quit");
}

TEST_P(DumpRestoreTest, RestoresInTheTaskWhenParallelRestoreIsOff) {
  scene_.variables["SLUICE_PARALLEL"] = "off";
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  restore_and_check();
}

TEST_P(DumpRestoreTest, ARestoredProcessCanBeDumpedAgain) {
  ASSERT_NO_FATAL_FAILURE(start());
  for (int generation = 0; generation < 3; ++generation) {
    ASSERT_NO_FATAL_FAILURE(dump());
    ASSERT_NO_FATAL_FAILURE(restore_and_check());
  }
}

TEST_P(DumpRestoreTest, ADumpMayWriteIntoTheFilesOfAnEarlierOne) {
  scene_.variables["SLUICE_REUSE"] = "on";
  ASSERT_NO_FATAL_FAILURE(start());
  std::map<std::string, ino_t> inodes;
  for (int generation = 0; generation < 3; ++generation) {
    ASSERT_EQ(scene_.dump(version(), {"--leave-running"}), 0) << scene_.log();
    EXPECT_EQ(heard("work"), "ok work");  // other contents for the next one
    for (const auto& entry : std::filesystem::directory_iterator(scene_.images())) {
      if (!entry.path().filename().string().starts_with("amdgpu-pages-")) continue;
      struct stat status {};
      ASSERT_EQ(::stat(entry.path().c_str(), &status), 0);
      if (generation == 0) inodes[entry.path().string()] = status.st_ino;
      EXPECT_EQ(inodes.at(entry.path().string()), status.st_ino) << entry.path();
    }
  }
  // Of a GPU that this process has not: it would only take room.
  std::ofstream(scene_.images() / "amdgpu-pages-1-0001.img") << "old";
  ASSERT_NO_FATAL_FAILURE(dump());
  EXPECT_FALSE(std::filesystem::exists(scene_.images() / "amdgpu-pages-1-0001.img"));
  restore_and_check();
}

TEST_P(DumpRestoreTest, LeaveRunningLeavesTheProcessRunning) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(scene_.dump(version(), {"--leave-running"}), 0) << scene_.log();
  expect_running();
}

// Memory that is shared, and that of private file systems, is dumped after all hooks.
TEST_P(DumpRestoreTest, QueuesStayPausedUntilCpuPagesAreDumped) {
  ASSERT_NO_FATAL_FAILURE(start());
  Program host = scene_.start_host(version(), "dump", {"--leave-running", "--hold", "before_exit"});
  ASSERT_EQ(host.hear_control(), "before_exit") << scene_.log();
  const auto process = scene_.control().process(scene_.subject_pid());
  ASSERT_TRUE(process.has_value());
  EXPECT_TRUE(process->queues_paused);
  EXPECT_FALSE(process->queues_run());
  host.release_control();
  EXPECT_EQ(host.wait(), 0) << scene_.log();
  expect_running();
}

TEST_P(DumpRestoreTest, QueuesArePausedWhileCpuPagesAreDumped) {
  ASSERT_NO_FATAL_FAILURE(start());
  Program host = scene_.start_host(version(), "dump", {"--hold", "cpu_pages"});
  ASSERT_EQ(host.hear_control(), "cpu_pages") << scene_.log();
  const auto process = scene_.control().process(scene_.subject_pid());
  ASSERT_TRUE(process.has_value());
  EXPECT_TRUE(process->queues_paused);
  EXPECT_EQ(process->unpauses, 0U);
  host.release_control();
  EXPECT_EQ(host.wait(), 0) << scene_.log();
}

TEST_P(DumpRestoreTest, ADumpAfterAKilledOneLeavesTheQueuesRunning) {
  ASSERT_NO_FATAL_FAILURE(start());
  Program killed = scene_.start_host(version(), "dump", {"--hold", "cpu_pages"});
  ASSERT_EQ(killed.hear_control(), "cpu_pages") << scene_.log();
  scene_.control().between_calls([&] { killed.kill(); });
  ASSERT_EQ(scene_.dump(version(), {"--leave-running"}), 0) << scene_.log();
  EXPECT_NE(scene_.log().find("[SL-D40]"), std::string::npos);
  expect_running();
}

TEST_P(DumpRestoreTest, EachCriuOperationIsCalledOnce) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  EXPECT_EQ(scene_.control().criu_calls(kProcessInfo), 1U);
  EXPECT_EQ(scene_.control().criu_calls(kCheckpoint), 1U);
  // Once to end a pause that an older dump might have left behind, and once to end its own.
  EXPECT_EQ(scene_.control().criu_calls(kUnpause), 2U);
  scene_.control().clear_trace();
  ASSERT_EQ(scene_.restore(version()), 0) << scene_.log();
  // RESUME comes after the last copy onto a GPU.
  std::uint64_t restored = 0, last_copy = 0, resumed = 0;
  for (const vamdgpu::TracedCall& call : scene_.control().trace()) {
    if (call.name == "KFD_CRIU_OP:RESTORE") restored = call.sequence;
    if (call.name == "KFD_CRIU_OP:RESUME") resumed = call.sequence;
    if (call.name == "DRM_CS") last_copy = call.sequence;
  }
  EXPECT_GT(restored, 0U);
  EXPECT_GT(last_copy, restored);
  EXPECT_GT(resumed, last_copy);
}

TEST_P(DumpRestoreTest, TwoFilesOfOneKfdProcessAreOneProcess) {
  ASSERT_NO_FATAL_FAILURE(start({"--second-kfd"}));
  ASSERT_NO_FATAL_FAILURE(dump());
  EXPECT_EQ(scene_.control().criu_calls(kProcessInfo), 1U);
  restore_and_check();
}

TEST_P(DumpRestoreTest, ADuplicatedDescriptorStaysADuplicate) {
  ASSERT_NO_FATAL_FAILURE(start({"--dup-kfd"}));
  ASSERT_NO_FATAL_FAILURE(dump());
  restore_and_check();
}

TEST_P(DumpRestoreTest, BosOfEverySizeComeBack) {
  for (const char* sizes : {"small", "many", "huge"}) {
    SCOPED_TRACE(sizes);
    ASSERT_NO_FATAL_FAILURE(start({"--bos", sizes}));
    ASSERT_NO_FATAL_FAILURE(dump());
    ASSERT_NO_FATAL_FAILURE(restore_and_check());
    EXPECT_EQ(heard("quit"), "ok quit");
  }
}

TEST_P(DumpRestoreTest, AllZeroAndNoZeroComeBack) {
  for (const char* percent : {"0", "100"}) {
    SCOPED_TRACE(percent);
    ASSERT_NO_FATAL_FAILURE(start({"--zero", percent}));
    ASSERT_NO_FATAL_FAILURE(dump());
    ASSERT_NO_FATAL_FAILURE(restore_and_check());
    EXPECT_EQ(heard("quit"), "ok quit");
  }
}

// One for each direction, next to the images, with every chunk in every stage, in order: what a restore
// copies onto a GPU has been compared before.
TEST_P(DumpRestoreTest, ATraceIsWrittenWhereItIsAskedFor) {
  scene_.variables["SLUICE_TRACE"] = "on";
  scene_.variables["SLUICE_STATS"] = "off";
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  ASSERT_NO_FATAL_FAILURE(restore_and_check());
  EXPECT_TRUE(images("sluice-stats-").empty());
  std::set<std::string> names = images("sluice-trace-");
  ASSERT_EQ(names.size(), 2U);
  for (const std::string& name : names) {
    const auto events = nlohmann::json::parse(read_file(scene_.images() / name));
    std::map<std::pair<int, int>, std::map<std::string, Period>> stages;  // by GPU and chunk
    std::map<int, std::vector<Period>> on_disk;                           // by GPU
    for (const auto& event : events) {
      if (event["ph"] != "X") continue;
      stages[{event["pid"], event["args"]["chunk"]}][event["name"]] = period_of(event);
      if (event["name"] == "store") on_disk[event["pid"]].push_back(period_of(event));
    }
    EXPECT_FALSE(stages.empty()) << name;
    std::array<const char*, 3> route = {"copy", "checksum", "store"};
    if (name.starts_with("sluice-trace-restore-")) std::swap(route.front(), route.back());
    for (const auto& [chunk, seen] : stages) {
      SCOPED_TRACE(name + " chunk " + std::to_string(chunk.second));
      ASSERT_EQ(seen.size(), route.size());
      for (std::size_t i = 1; i < route.size(); ++i)
        EXPECT_LE(seen.at(route[i - 1]).end, seen.at(route[i]).begin) << route[i] << " began too early";
    }
    for (const auto& [gpu, periods] : on_disk)
      EXPECT_LE(most_at_once(periods), kSlots - kSlots / 4) << name << ": slots that stay off the disk";
  }
}

TEST_P(DumpRestoreTest, NothingIsLeftOnTheMachine) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  EXPECT_EQ(scene_.control().counts(), vamdgpu::Counts());
  ASSERT_EQ(scene_.restore(version()), 0) << scene_.log();
  EXPECT_EQ(heard("quit"), "ok quit");
  EXPECT_EQ(scene_.subject().hear(), "");  // it has ended
  // Descriptors close in the kernel's own time after the end of file that we have seen: the process goes
  // last.
  while (!scene_.control().processes().empty()) (void)::sched_yield();
  EXPECT_EQ(scene_.control().counts(), vamdgpu::Counts());
}

// The serial way, independent of the plugin: payload length, then the contents of each VRAM and GTT BO in the
// order in which KFD lists them.
TEST_P(DumpRestoreTest, PagesFilesAreWhatTheSerialWayGives) {
  ASSERT_NO_FATAL_FAILURE(start());
  const auto process = scene_.control().process(scene_.subject_pid());
  ASSERT_TRUE(process.has_value());
  std::map<std::uint32_t, std::string> expected;
  for (const vamdgpu::DeviceInfo& device : process->devices) expected[device.gpu_id] = std::string(8, '\0');
  std::vector<vamdgpu::BoInfo> bos = process->bos;
  std::stable_partition(bos.begin(), bos.end(),
                        [](const vamdgpu::BoInfo& bo) { return bo.size % kMiB == 0; });
  for (const vamdgpu::BoInfo& bo : bos) {
    if ((bo.flags & 3) == 0) continue;  // neither VRAM nor GTT
    std::string& file = expected[bo.user_gpu_id];
    const std::size_t at = file.size();
    file.resize(at + bo.size);
    ASSERT_TRUE(
        scene_.control().read(scene_.subject_pid(), bo.user_gpu_id, bo.va, file.data() + at, bo.size));
  }
  ASSERT_NO_FATAL_FAILURE(dump());
  for (auto& [gpu_id, file] : expected) {
    const std::uint64_t payload = file.size() - 8;
    std::copy_n(reinterpret_cast<const char*>(&payload), sizeof(payload), file.data());
    char name[64];
    std::snprintf(name, sizeof(name), "amdgpu-pages-1-%04x.img", gpu_id);
    EXPECT_TRUE(read_file(scene_.images() / name) == file) << name;
  }
}

TEST_P(DumpRestoreTest, ImagesGoToAnyOtherHost) {
  for (const Version& other : kVersions) {
    SCOPED_TRACE(other.name);
    ASSERT_NO_FATAL_FAILURE(start());
    ASSERT_NO_FATAL_FAILURE(dump());
    ASSERT_EQ(scene_.restore(other.name), 0) << scene_.log();
    expect_whole();
    EXPECT_EQ(heard("quit"), "ok quit");
  }
}

// Which of the two GPUs is which goes by what they are called, and not by their order.
TEST_P(DumpRestoreTest, AProcessMovesToAMachineWhoseGpusHaveSwappedTheirNames) {
  vamdgpu::MachineOptions machine = small_machine();
  machine.gpu_ids = {0x1234, 0x4321};
  machine.minors = {128, 129};
  scene_.move_to(machine);
  ASSERT_NO_FATAL_FAILURE(start());
  for (int generation = 0; generation < 2; ++generation) {
    ASSERT_NO_FATAL_FAILURE(dump());
    std::reverse(machine.gpu_ids.begin(), machine.gpu_ids.end());
    if (generation == 1) {
      machine.minors = {129, 128};
      machine.node_order = {1, 0};
    }
    scene_.move_to(machine);
    ASSERT_NO_FATAL_FAILURE(restore_and_check());
  }
}

TEST_P(DumpRestoreTest, TheKernelKnowsTheProcessAsBefore) {
  ASSERT_NO_FATAL_FAILURE(start({"--gpus", "2", "--svm"}));
  const auto known = [this] { return scene_.control().process(scene_.subject_pid()).value(); };
  const vamdgpu::ProcessInfo before = known();
  EXPECT_GT(before.svm_ranges, 0U);
  ASSERT_NO_FATAL_FAILURE(dump());
  ASSERT_NO_FATAL_FAILURE(restore_and_check());
  const vamdgpu::ProcessInfo after = known();
  EXPECT_TRUE(after.queues_run());
  EXPECT_FALSE(after.restore_blocked);
  EXPECT_EQ(after.damaged_queues, 0U);
  EXPECT_EQ(after.svm_ranges, before.svm_ranges);
  EXPECT_EQ(after.bos.size(), before.bos.size());
  EXPECT_EQ(after.event_page_handle, before.event_page_handle);
  const auto same = [](const auto& all, const auto& others, auto... members) {
    return std::equal(
        all.begin(), all.end(), others.begin(), others.end(),
        [&](const auto& one, const auto& other) { return ((one.*members == other.*members) && ...); });
  };
  using Queue = vamdgpu::QueueInfo;
  EXPECT_TRUE(same(after.queues, before.queues, &Queue::id, &Queue::type, &Queue::ring, &Queue::doorbell));
  using Event = vamdgpu::EventInfo;
  EXPECT_TRUE(same(after.events, before.events, &Event::id, &Event::type, &Event::auto_reset));
}

TEST_P(DumpRestoreTest, AProcessMovesToAMachineWithOtherIds) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  vamdgpu::MachineOptions other = small_machine();
  other.gpu_ids = {0x1234, 0x4321};
  other.minor_base = 140;
  scene_.move_to(other);
  ASSERT_EQ(scene_.restore(version()), 0) << scene_.log();
  EXPECT_TRUE(heard("check").starts_with("ok check")) << last_;
}

// Its SVM ranges, too, that tell each visible GPU how it may use them. From then on the process has all
// three.
TEST_P(DumpRestoreTest, AProcessMovesToAMachineWithMoreGpus) {
  vamdgpu::MachineOptions machine = small_machine();
  machine.fabric = vamdgpu::Fabric::Pcie;  // with XGMI each GPU of a larger machine has more links
  machine.gpu_ids = {0x1234, 0x4321};
  scene_.move_to(machine);
  ASSERT_NO_FATAL_FAILURE(start({"--gpus", "2", "--svm"}));
  ASSERT_NO_FATAL_FAILURE(dump());
  machine.gpus = 3;
  machine.gpu_ids = {0x5555, 0x6666, 0x1234};  // the third's name is what the process calls another one
  scene_.variables["SLUICE_GPU_MAP"] = "0x1234=0x5555,0x4321=0x6666";
  for (int generation = 0; generation < 2; ++generation) {
    scene_.move_to(machine);
    ASSERT_NO_FATAL_FAILURE(restore_and_check());
    const auto process = scene_.control().process(scene_.subject_pid());
    ASSERT_TRUE(process.has_value());
    std::set<std::uint32_t> names;
    for (const vamdgpu::DeviceInfo& gpu : process->devices) names.insert(gpu.user_gpu_id);
    EXPECT_EQ(names, (std::set<std::uint32_t>{0x1234, 0x1235, 0x4321}));
    ASSERT_NO_FATAL_FAILURE(dump());
    machine.minor_base = 140;
  }
  scene_.variables.erase("SLUICE_GPU_MAP");
  machine.gpus = 2;
  machine.gpu_ids = {0x5555, 0x6666};
  scene_.move_to(machine);
  EXPECT_NE(scene_.restore(version()), 0);
  EXPECT_NE(scene_.log().find("[SL-G40]"), std::string::npos);
}

// The links of the others lead to it, and sysfs shows its node.
TEST_P(DumpRestoreTest, AGpuThatADeviceCgroupHidesIsNoPartOfTheImage) {
  vamdgpu::MachineOptions three = small_machine(3);
  three.hidden = {1};
  scene_.move_to(three);
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  EXPECT_EQ(images("amdgpu-pages-1-").size(), 2U);
  ASSERT_NO_FATAL_FAILURE(restore_and_check());
  EXPECT_EQ(heard("quit"), "ok quit");
}

TEST_P(DumpRestoreTest, OneAndFourGpus) {
  for (const unsigned gpus : {1U, 4U}) {
    SCOPED_TRACE(gpus);
    scene_.move_to(small_machine(gpus));
    ASSERT_NO_FATAL_FAILURE(start());
    ASSERT_NO_FATAL_FAILURE(dump());
    ASSERT_NO_FATAL_FAILURE(restore_and_check());
    EXPECT_EQ(heard("quit"), "ok quit");
  }
}

INSTANTIATE_TEST_SUITE_P(Versions, DumpRestoreTest, ::testing::ValuesIn(kVersionsOfLongSuites),
                         name_of_version);
INSTANTIATE_TEST_SUITE_P(Criu40, DumpRestoreTest, ::testing::Values(kCriu40), name_of_version);

}  // namespace
}  // namespace sluice::plugin_test
