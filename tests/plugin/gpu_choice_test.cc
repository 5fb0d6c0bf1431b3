// SPDX-License-Identifier: MIT
// Which of several equal GPUs a restore takes: the one with room, the one that the user names, the same for
// all of a tree, and not the one that another restore is about to fill.
#include <sched.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "lookalike/task_tree.h"
#include "plugin_test.h"

namespace sluice::plugin_test {
namespace {

using lookalike::TaskTree;

constexpr std::uint64_t kGpuVram = 48 * kMiB;

vamdgpu::MachineOptions equal_gpus(unsigned gpus) {
  vamdgpu::MachineOptions options;
  options.gpus = gpus;
  options.fabric = vamdgpu::Fabric::Pcie;
  options.vram_bytes = kGpuVram;
  options.gtt_bytes = 16 * kMiB;
  return options;
}

// A process restored alongside others.
struct Replica {
  std::unique_ptr<ScratchDirectory> directory = std::make_unique<ScratchDirectory>();
  Program program;

  std::string log() const { return read_file(directory->path() / "log"); }
};

class GpuChoiceTest : public PluginTest {
 protected:
  GpuChoiceTest() : PluginTest(equal_gpus(1)) {}

  // A checkpoint of a process with `vram` on one GPU; then four equal ones, of which that one is the first.
  void dump_and_move(const std::string& vram = "20M") {
    const std::string ready =
        scene_.start_subject({"--gpus", "1", "--vram", vram, "--gtt", "1M", "--no-queues"});
    ASSERT_TRUE(ready.starts_with("ready")) << ready;
    ASSERT_NO_FATAL_FAILURE(dump());
    scene_.move_to(equal_gpus(4));
  }

  Replica start_replica(const Strings& more = {}) {
    Replica replica;
    Strings options = {"--pidfile", (replica.directory->path() / "pid").string(), "--log",
                       (replica.directory->path() / "log").string()};
    options.insert(options.end(), more.begin(), more.end());
    replica.program = scene_.start_host(version(), "restore", options);
    return replica;
  }
  Replica restored_replica(const Strings& more = {}) {
    Replica replica = start_replica(more);
    EXPECT_EQ(replica.program.wait(), 0) << replica.log();
    EXPECT_TRUE(replica.program.ask("check").starts_with("ok check")) << replica.log();
    return replica;
  }

  std::uint64_t vram_in_use(unsigned gpu) {
    Program cat = scene_.start_program(
        {"/bin/cat", "/sys/class/drm/renderD" + std::to_string(128 + gpu) + "/device/mem_info_vram_used"});
    const std::uint64_t bytes = std::strtoull(cat.hear().c_str(), nullptr, 10);
    EXPECT_EQ(cat.wait(), 0);
    return bytes;
  }
  // The GPUs that somebody has VRAM of.
  std::set<unsigned> gpus_in_use() {
    std::set<unsigned> used;
    for (unsigned gpu = 0; gpu < 4; ++gpu) {
      if (vram_in_use(gpu) != 0) used.insert(gpu);
    }
    return used;
  }

  std::string gpu_id(unsigned gpu) {
    std::array<char, 16> text{};
    (void)std::snprintf(text.data(), text.size(), "0x%04x", scene_.control().config().gpus[gpu].gpu_id);
    return text.data();
  }

  void expect_refused(const std::string& map, const std::string& why) {
    SCOPED_TRACE(map);
    scene_.variables["SLUICE_GPU_MAP"] = map;
    scene_.control().clear_trace();
    (void)scene_.log();
    EXPECT_EQ(scene_.restore(version()), 1);
    const std::string log = scene_.log();
    EXPECT_NE(log.find(why), std::string::npos) << log;
    EXPECT_EQ(scene_.control().criu_calls(kRestoreOp), 0U);
    EXPECT_EQ(scene_.control().counts(), vamdgpu::Counts());
  }
};

TEST_P(GpuChoiceTest, EachReplicaGetsAGpuWithRoomTheFirstItsOwn) {
  ASSERT_NO_FATAL_FAILURE(dump_and_move("30M"));
  std::vector<Replica> replicas;
  replicas.push_back(restored_replica());
  EXPECT_EQ(gpus_in_use(), std::set<unsigned>{0});
  for (unsigned i = 1; i < 4; ++i) {
    replicas.push_back(restored_replica());
    const std::string log = replicas.back().log();
    EXPECT_NE(log.find("its own has"), std::string::npos) << "why it moved is not said: " << log;
  }
  EXPECT_EQ(gpus_in_use(), (std::set<unsigned>{0, 1, 2, 3}));
  // One too many: said in the GPU's terms, not in those of the host's memory.
  Replica last = start_replica();
  EXPECT_EQ(last.program.wait(), 1);
  const std::string log = last.log();
  EXPECT_NE(log.find("are missing"), std::string::npos) << log;
  EXPECT_NE(log.find("no other matching GPU here"), std::string::npos) << log;
  EXPECT_EQ(log.find("SLUICE_STAGING_SIZE"), std::string::npos) << log;
}

TEST_P(GpuChoiceTest, TheEmptiestIsTaken) {
  ASSERT_NO_FATAL_FAILURE(dump_and_move("20M"));
  std::vector<Replica> replicas;
  for (const char* map :
       {"renderD128=renderD128", "renderD128=128", "renderD128=renderD129", "renderD128=131"}) {
    scene_.variables["SLUICE_GPU_MAP"] = map;
    replicas.push_back(restored_replica());
  }
  scene_.variables.erase("SLUICE_GPU_MAP");
  replicas.push_back(restored_replica());
  EXPECT_NE(vram_in_use(2), 0U);
  EXPECT_EQ(vram_in_use(1), vram_in_use(2));
}

TEST_P(GpuChoiceTest, AMapNamesTheGpuInEveryWay) {
  ASSERT_NO_FATAL_FAILURE(dump_and_move("30M"));
  const std::string own = gpu_id(0);
  std::array<char, 32> pci{};
  (void)std::snprintf(pci.data(), pci.size(), "0000:%02x:00.0",
                      scene_.machine().description().tree.gpus.at(2).bus);
  std::vector<Replica> replicas;
  unsigned expected = 3;
  for (const std::string& local : {gpu_id(3), std::string(pci.data()), std::string("renderD129")}) {
    scene_.variables["SLUICE_GPU_MAP"] = own + "=" + local;
    replicas.push_back(restored_replica());
    EXPECT_TRUE(gpus_in_use().contains(expected)) << local;
    --expected;
  }
  EXPECT_EQ(vram_in_use(0), 0U);
}

TEST_P(GpuChoiceTest, AMapThatNamesNoGpuFailsTheRestoreBeforeAnythingIsMade) {
  ASSERT_NO_FATAL_FAILURE(dump_and_move());
  const std::string own = gpu_id(0);
  expect_refused("here=there", "is not IMAGE=LOCAL");
  expect_refused("0x1=" + own, "no process of the images knows");
  expect_refused(own + "=0x1", "this machine has no GPU '0x1'");
  expect_refused(own + "=renderD129," + own + "=renderD130", "is named twice");
}

// A device cgroup may show a task what this criu does not see: then the task itself is asked.
TEST_P(GpuChoiceTest, AMachineOfOtherGpusIsRefusedBeforeThereIsATaskWhereAllOfThemAreVisible) {
  ASSERT_NO_FATAL_FAILURE(dump_and_move());
  vamdgpu::MachineOptions other = equal_gpus(2);
  other.preset = vamdgpu::Preset::Mi300x;
  for (const bool all : {true, false}) {
    if (!all) other.hidden = {1};
    scene_.move_to(other);
    EXPECT_EQ(scene_.restore(version()), 1);
    const std::string log = scene_.log();
    EXPECT_NE(log.find("[SL-R14]"), std::string::npos) << log;
    EXPECT_EQ(log.find("was not restored") == std::string::npos, all) << log;
  }
}

TEST_P(GpuChoiceTest, AMapAgainstTheRulesIsRefusedWithTheReason) {
  ASSERT_NO_FATAL_FAILURE(dump_and_move());
  vamdgpu::MachineOptions other = equal_gpus(2);
  other.gpu_ids = {4711, 4712};
  other.vram_bytes = kGpuVram / 2;
  const std::string own = gpu_id(0);
  scene_.move_to(other);
  expect_refused(own + "=0x1267", "SLUICE_GPU_MAP puts GPU");
  expect_refused(own + "=0x1267", "KFD_VRAM_SIZE_CHECK=0 allows this");
}

TEST_P(GpuChoiceTest, AMapOntoAFullGpuSaysWhatIsMissingAndWhichWouldDo) {
  ASSERT_NO_FATAL_FAILURE(dump_and_move("30M"));
  const Replica first = restored_replica();
  scene_.variables["SLUICE_GPU_MAP"] = gpu_id(0) + "=renderD128";
  Replica second = start_replica();
  EXPECT_EQ(second.program.wait(), 1);
  const std::string log = second.log();
  EXPECT_NE(log.find("are missing"), std::string::npos) << log;
  for (const unsigned gpu : {1U, 2U, 3U})
    EXPECT_NE(log.find(gpu_id(gpu) + " renderD" + std::to_string(128 + gpu) + " (48.0 MiB free)"),
              std::string::npos)
        << log;
  EXPECT_EQ(log.find("SLUICE_STAGING_SIZE"), std::string::npos) << log;
}

// Two GPUs of one CPU node: the third, at another, can replace neither.
TEST_P(GpuChoiceTest, AGpuThatTheRulesForbidIsNotAmongThoseThatWouldDo) {
  scene_.move_to(equal_gpus(2));
  const std::string ready =
      scene_.start_subject({"--gpus", "2", "--vram", "20M", "--gtt", "1M", "--no-queues"});
  ASSERT_TRUE(ready.starts_with("ready")) << ready;
  ASSERT_NO_FATAL_FAILURE(dump());
  vamdgpu::MachineOptions three = equal_gpus(3);
  three.cpu_nodes = 2;
  scene_.move_to(three);
  Program other = scene_.start_program({(program_directory() / "../subject/gpu-subject").string(), "--gpus",
                                        "1", "--vram", "40M", "--gtt", "1M", "--no-queues"});
  ASSERT_TRUE(other.hear().starts_with("ready"));
  Replica replica = start_replica();
  EXPECT_EQ(replica.program.wait(), 1);
  const std::string log = replica.log();
  EXPECT_NE(log.find("are missing"), std::string::npos) << log;
  EXPECT_NE(log.find("renderD129 (48.0 MiB free)"), std::string::npos) << log;
  EXPECT_EQ(log.find("renderD130 (48.0 MiB free)"), std::string::npos) << log;
}

TEST_P(GpuChoiceTest, VramThatARenderFileCannotHaveIsSaidTheSameWay) {
  const std::string ready =
      scene_.start_subject({"--gpus", "1", "--render-only", "--gem-handles", "1,2,3", "--gem-bytes", "14M"});
  ASSERT_TRUE(ready.starts_with("ready")) << ready;
  ASSERT_NO_FATAL_FAILURE(dump());
  scene_.move_to(equal_gpus(4));
  const Replica first = restored_replica();
  ASSERT_EQ(gpus_in_use(), std::set<unsigned>{0});
  Replica second = start_replica();
  EXPECT_EQ(second.program.wait(), 1);
  const std::string log = second.log();
  EXPECT_NE(log.find("are missing"), std::string::npos) << log;
  EXPECT_EQ(log.find("SLUICE_STAGING_SIZE"), std::string::npos) << log;
}

// As runc and crun have it from a container's annotation: CRIU loads the plugin from a folder of the
// container's own, by a link, and the settings are next to that link.
TEST_P(GpuChoiceTest, TwoContainersAtOnceTakeTheMapsNextToTheirLinksToThePlugin) {
  ASSERT_NO_FATAL_FAILURE(dump_and_move("20M"));
  const ScratchDirectory containers;
  std::vector<Replica> replicas;
  for (const char* gpu : {"2", "3"}) {
    const std::filesystem::path folder = containers.path() / gpu;
    std::filesystem::create_directory(folder);
    std::filesystem::create_symlink(shipped_plugin_directory() / "amdgpu_plugin.so",
                                    folder / "amdgpu_plugin.so");
    std::ofstream(folder / "sluice.conf") << "SLUICE_GPU_MAP=" << gpu_id(0) << "=renderD"
                                          << 128 + std::atoi(gpu) << "\nSLUICE_STAGING_SIZE=8M\n";
    ASSERT_EQ(::chmod((folder / "sluice.conf").c_str(), 0644), 0);
    replicas.push_back(start_replica({"--libdir", folder.string(), "--hold", "init"}));
  }
  for (Replica& replica : replicas) EXPECT_EQ(replica.program.hear_control(), "init") << replica.log();
  for (Replica& replica : replicas) replica.program.release_control();
  for (Replica& replica : replicas) {
    EXPECT_EQ(replica.program.wait(), 0) << replica.log();
    EXPECT_TRUE(replica.program.ask("check").starts_with("ok check")) << replica.log();
  }
  EXPECT_EQ(gpus_in_use(), (std::set<unsigned>{2, 3}));
}

TEST_P(GpuChoiceTest, SettingsNextToThePluginThatOthersMayWriteAreIgnored) {
  ASSERT_NO_FATAL_FAILURE(dump_and_move("20M"));
  const ScratchDirectory folder;
  std::filesystem::create_symlink(shipped_plugin_directory() / "amdgpu_plugin.so",
                                  folder.path() / "amdgpu_plugin.so");
  std::ofstream(folder.path() / "sluice.conf") << "SLUICE_GPU_MAP=" << gpu_id(0) << "=renderD130\n";
  ASSERT_EQ(::chmod((folder.path() / "sluice.conf").c_str(), 0666), 0);
  const Replica replica = restored_replica({"--libdir", folder.path().string()});
  EXPECT_EQ(gpus_in_use(), std::set<unsigned>{0});
  EXPECT_NE(replica.log().find("[SL-S07]"), std::string::npos) << replica.log();
}

TEST_P(GpuChoiceTest, WithoutALedgerARestoreGoesOnByItself) {
  ASSERT_NO_FATAL_FAILURE(dump_and_move("20M"));
  const std::filesystem::path run = scene_.machine().directory() / "sysfs/run/sluice";
  ASSERT_EQ(::chmod(run.c_str(), 0777), 0);
  const Replica replica = restored_replica();
  EXPECT_EQ(gpus_in_use(), std::set<unsigned>{0});
  EXPECT_NE(replica.log().find("may choose the same GPU"), std::string::npos) << replica.log();
}

// So many that a line would not hold all that would do.
class ManyGpusTest : public GpuChoiceTest {
 protected:
  static vamdgpu::MachineOptions small_gpus(unsigned gpus) {
    vamdgpu::MachineOptions options = equal_gpus(gpus);
    options.vram_bytes = 12 * kMiB;
    return options;
  }
};

TEST_P(ManyGpusTest, EightOfThoseThatWouldDoAreNamed) {
  scene_.move_to(small_gpus(1));
  ASSERT_NO_FATAL_FAILURE(dump_and_move("7M"));
  scene_.move_to(small_gpus(11));
  scene_.variables["SLUICE_GPU_MAP"] = "renderD128=renderD128";
  const Replica first = restored_replica();
  Replica second = start_replica();
  EXPECT_EQ(second.program.wait(), 1);
  const std::string log = second.log();
  const std::string free = " (12.0 MiB free)";
  std::size_t named = 0;
  for (std::size_t at = log.find(free); at != std::string::npos; at = log.find(free, at + 1)) ++named;
  EXPECT_EQ(named, 8U) << log;
}

INSTANTIATE_TEST_SUITE_P(Versions, ManyGpusTest, ::testing::Values(kVersions[2]), name_of_version);

// Processes that used one GPU.
class GpuChoiceTreeTest : public GpuChoiceTest {
 protected:
  void dump_tree_and_move(const Strings& more = {}) {
    for (const char* seed : {"1", "2"}) {
      Strings arguments = {"--gpus", "1", "--vram", "20M", "--gtt", "1M", "--no-queues", "--seed", seed};
      arguments.insert(arguments.end(), more.begin(), more.end());
      const std::string ready = tasks_.add(arguments);
      ASSERT_TRUE(ready.starts_with("ready")) << ready;
    }
    ASSERT_EQ(scene_.dump(version(), tasks_.with_pids()), 0) << scene_.log();
    tasks_.wait_until_dumped();
    (void)scene_.log();
    std::filesystem::copy(scene_.images(), single_.path() / "tree", std::filesystem::copy_options::recursive);
  }

  TaskTree tasks_{scene_};
  ScratchDirectory single_;
};

TEST_P(GpuChoiceTreeTest, ComeBackOnOneThatHasRoomForAllOfThem) {
  ASSERT_NO_FATAL_FAILURE(dump_tree_and_move());
  // There is room for one of them at home: another process has the rest.
  scene_.move_to(equal_gpus(4));
  Program other = scene_.start_program({(program_directory() / "../subject/gpu-subject").string(), "--gpus",
                                        "1", "--vram", "20M", "--gtt", "1M", "--no-queues"});
  ASSERT_TRUE(other.hear().starts_with("ready"));
  const std::uint64_t others = vram_in_use(0);
  ASSERT_GT(others, 0U);
  ASSERT_EQ(scene_.start_host(version(), "restore", {}).wait(), 0) << scene_.log();
  ASSERT_TRUE(tasks_.meet_restored());
  EXPECT_EQ(tasks_.wrong_answers({"check"}), "");
  EXPECT_EQ(vram_in_use(0), others);
  EXPECT_EQ(gpus_in_use(), (std::set<unsigned>{0, 1}));
  EXPECT_GE(vram_in_use(1), 40 * kMiB);
  EXPECT_EQ(tasks_.who_does_not_quit(), "");
}

// One of its tasks has what it needs, the other not yet: what a restore that begins now sees in sysfs is not
// what will be free.
TEST_P(GpuChoiceTreeTest, ARestoreThatBeginsMeanwhileLeavesThemWhatTheyAreAboutToTake) {
  ASSERT_NO_FATAL_FAILURE(dump_tree_and_move());
  const std::filesystem::path tree = single_.path() / "tree";
  std::filesystem::remove_all(scene_.images());
  ASSERT_NO_FATAL_FAILURE(dump_and_move("20M"));
  Replica both = start_replica({"--images", tree.string(), "--hold", "premapped"});
  EXPECT_EQ(both.program.hear_control(), "premapped") << both.log();
  EXPECT_EQ(both.program.hear_control(), "premapped") << both.log();
  both.program.release_control();
  while (vram_in_use(0) < 20 * kMiB) (void)::sched_yield();
  const Replica single = restored_replica();
  EXPECT_EQ(gpus_in_use().size(), 2U) << single.log();
  both.program.release_control();
  EXPECT_EQ(both.program.wait(), 0) << both.log();
  EXPECT_GE(vram_in_use(0), 40 * kMiB);
  std::ifstream pids(both.directory->path() / "pid");
  ASSERT_TRUE(tasks_.meet({std::istream_iterator<pid_t>(pids), std::istream_iterator<pid_t>()}));
  EXPECT_EQ(tasks_.wrong_answers({"check"}), "");
  EXPECT_EQ(tasks_.who_does_not_quit(), "");
}

INSTANTIATE_TEST_SUITE_P(Versions, GpuChoiceTest, ::testing::ValuesIn(kVersionsOfLongSuites),
                         name_of_version);
INSTANTIATE_TEST_SUITE_P(Versions, GpuChoiceTreeTest, ::testing::ValuesIn(kVersionsOfLongSuites),
                         name_of_version);

}  // namespace
}  // namespace sluice::plugin_test
