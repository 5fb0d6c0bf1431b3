// SPDX-License-Identifier: MIT
// A restored task that sees more GPUs than its container has nodes of: the device cgroup is not in force yet.
// The task gets its own GPUs only, KFD what it wants to hear of, and nobody memory of a GPU that was not
// given to the container.
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "plugin_test.h"

namespace sluice::plugin_test {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kGpuVram = 48 * kMiB;

vamdgpu::MachineOptions equal_gpus(unsigned gpus) {
  vamdgpu::MachineOptions options;
  options.gpus = gpus;
  options.fabric = vamdgpu::Fabric::Pcie;
  options.vram_bytes = kGpuVram;
  options.gtt_bytes = 80 * kMiB;
  return options;
}

class ContainerGpusTest : public PluginTest {
 protected:
  ContainerGpusTest() : PluginTest(equal_gpus(1)) {}

  // A checkpoint of a job that saw one GPU; then a machine with four, whose container has the nodes `given`.
  void dump_and_move(const std::set<unsigned>& given, const Strings& more = {}) {
    Strings arguments = {"--gpus", "1", "--vram", "20M", "--gtt", "1M"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const std::string ready = scene_.start_subject(arguments);
    ASSERT_TRUE(ready.starts_with("ready")) << ready;
    ASSERT_NO_FATAL_FAILURE(dump());
    scene_.move_to(equal_gpus(4));
    give(given);
  }
  void give(const std::set<unsigned>& given) {
    std::ofstream list(scene_.machine().directory() / "hidden");
    for (unsigned minor = 128; minor < 132; ++minor) {
      if (!given.contains(minor)) list << "absent " << minor << "\n";
    }
  }

  // GPUs of which somebody has VRAM.
  std::set<unsigned> gpus_in_use() {
    give({128, 129, 130, 131});
    std::set<unsigned> used;
    for (unsigned gpu = 0; gpu < 4; ++gpu) {
      Program cat = scene_.start_program(
          {"/bin/cat", "/sys/class/drm/renderD" + std::to_string(128 + gpu) + "/device/mem_info_vram_used"});
      if (std::stoull(cat.hear()) != 0) used.insert(gpu);
      EXPECT_EQ(cat.wait(), 0);
    }
    return used;
  }

  void expect_refused(const std::string& why) {
    EXPECT_EQ(scene_.restore(version()), 1);
    const std::string log = scene_.log();
    EXPECT_NE(log.find(why), std::string::npos) << log;
    expect_not_resumed();
  }
};

TEST_P(ContainerGpusTest, AJobOfOneGpuComesBackAndItIsSaidThatItSeesMore) {
  ASSERT_NO_FATAL_FAILURE(dump_and_move({128}));
  ASSERT_NO_FATAL_FAILURE(restore_and_check());
  EXPECT_EQ(gpus_in_use(), std::set<unsigned>{0});
  const std::string log = scene_.log();
  EXPECT_NE(log.find("the container had 1 GPU at the dump and sees 4 GPUs now"), std::string::npos) << log;
}

TEST_P(ContainerGpusTest, ItIsPutOnTheGpuThatItsContainerHas) {
  ASSERT_NO_FATAL_FAILURE(dump_and_move({130}));
  ASSERT_NO_FATAL_FAILURE(restore_and_check());
  EXPECT_EQ(gpus_in_use(), std::set<unsigned>{2});
}

TEST_P(ContainerGpusTest, AContainerWithTheNodesOfAllGpusHearsNothingOfIt) {
  ASSERT_NO_FATAL_FAILURE(dump_and_move({128, 129, 130, 131}));
  ASSERT_NO_FATAL_FAILURE(restore_and_check());
  const std::string log = scene_.log();
  EXPECT_EQ(log.find("device cgroup"), std::string::npos) << log;
}

TEST_P(ContainerGpusTest, AFullGpuIsNotEvadedToOneThatTheContainerLacks) {
  ASSERT_NO_FATAL_FAILURE(dump_and_move({128}, {"--no-queues"}));
  give({128, 129, 130, 131});
  Program other = scene_.start_program({(program_directory() / "../subject/gpu-subject").string(), "--gpus",
                                        "1", "--vram", "40M", "--gtt", "1M", "--no-queues"});
  ASSERT_TRUE(other.hear().starts_with("ready"));
  give({128});
  EXPECT_EQ(scene_.restore(version()), 1);
  const std::string log = scene_.log();
  EXPECT_NE(log.find("are missing"), std::string::npos) << log;
  EXPECT_EQ(log.find("these could replace it"), std::string::npos) << log;
  EXPECT_EQ(gpus_in_use(), std::set<unsigned>{0});
}

TEST_P(ContainerGpusTest, AMapOntoAGpuThatTheContainerLacksIsRefused) {
  ASSERT_NO_FATAL_FAILURE(dump_and_move({128}));
  scene_.variables["SLUICE_GPU_MAP"] = "renderD128=renderD129";
  expect_refused(
      "open /dev/dri/renderD129: No such file or directory; give the container this device [SL-R09]");
}

TEST_P(ContainerGpusTest, AContainerWithoutAnyNodeIsRefused) {
  ASSERT_NO_FATAL_FAILURE(dump_and_move({}));
  expect_refused("give the container this device [SL-R09]");
}

TEST_P(ContainerGpusTest, ARenderFileOfAGpuThatTheContainerLacksIsRefused) {
  const std::string ready =
      scene_.start_subject({"--gpus", "1", "--render-only", "--gem-handles", "1,2", "--gem-bytes", "1M"});
  ASSERT_TRUE(ready.starts_with("ready")) << ready;
  ASSERT_NO_FATAL_FAILURE(dump());
  scene_.move_to(equal_gpus(4));
  give({129});
  expect_refused(
      "open /dev/dri/renderD128: No such file or directory; give the container this device [SL-R09]");
}

TEST_P(ContainerGpusTest, WhereCriuHasNoNodeEitherItIsSaidWhatHappened) {
  ASSERT_NO_FATAL_FAILURE(dump_and_move({128}));
  fs::remove(scene_.machine().directory() / "sysfs/dev/dri/renderD130");
  expect_refused("its device cgroup is not in force yet; use runc, or systemd's cgroups with crun");
}

INSTANTIATE_TEST_SUITE_P(Versions, ContainerGpusTest, ::testing::ValuesIn(kVersions), name_of_version);

}  // namespace
}  // namespace sluice::plugin_test
