// SPDX-License-Identifier: MIT
// Restores on another machine than the one the process was dumped on.
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "container.h"
#include "scenario.h"

namespace sluice::vm_test {
namespace {

constexpr const char* kIds = "11111,22222";
constexpr const char* kSwappedIds = "22222,11111";

class OtherGpus : public Scenario {
 protected:
  static Strings machine(const Strings& more) {
    Strings options = two_gpus();
    options.insert(options.end(), more.begin(), more.end());
    return options;
  }

  void dump_on(const Strings& options) {
    load(options);
    ASSERT_NO_FATAL_FAILURE(start_subject({"--gpus", "2", "--vram", "8M", "--gtt", "1M", "--run-queues"}));
    ASSERT_NO_FATAL_FAILURE(dump());
  }

  void expect_restores_on(const Strings& options) {
    ASSERT_NO_FATAL_FAILURE(move_to(options));
    ASSERT_NO_FATAL_FAILURE(restore());
    ASSERT_NO_FATAL_FAILURE(expect_queues_run());
    ASSERT_NO_FATAL_FAILURE(expect_whole());
    EXPECT_EQ(subject_->quit(), 0);
  }

  // The restored process has these GPUs, and calls them what it has called them from the start.
  void expect_devices(const std::set<std::uint32_t>& ids, const std::set<std::uint32_t>& user_ids) {
    const auto process = control().process(subject_->pid());
    ASSERT_TRUE(process.has_value());
    std::set<std::uint32_t> seen, seen_user;
    for (const vamdgpu::DeviceInfo& device : process->devices) {
      seen.insert(device.gpu_id);
      seen_user.insert(device.user_gpu_id);
    }
    EXPECT_EQ(seen, ids);
    EXPECT_EQ(seen_user, user_ids);
  }

  // Nothing is created, and each of `texts` is said.
  void expect_refused_on(const Strings& options, const Strings& texts) {
    ASSERT_NO_FATAL_FAILURE(move_to(options));
    const CriuRun run = criu_->restore(images());
    ASSERT_TRUE(run.status.has_value());
    EXPECT_NE(run.status, 0);
    for (const std::string& text : texts) EXPECT_TRUE(run.said(text)) << "criu's log does not say: " << text;
    EXPECT_EQ(control().criu_calls(3), 0U) << "RESTORE was tried";
  }
};

TEST_F(OtherGpus, SwappedIds) {
  ASSERT_NO_FATAL_FAILURE(dump_on(machine({"--gpu-ids", kIds})));
  expect_restores_on(machine({"--gpu-ids", kSwappedIds}));
}

TEST_F(OtherGpus, NewIds) {
  ASSERT_NO_FATAL_FAILURE(dump_on(machine({"--gpu-ids", kIds})));
  expect_restores_on(machine({"--gpu-ids", "333,444"}));
}

TEST_F(OtherGpus, RenumberedMinors) {
  ASSERT_NO_FATAL_FAILURE(dump_on(machine({"--minors", "128,129"})));
  expect_restores_on(machine({"--minors", "140,135"}));
}

TEST_F(OtherGpus, SwappedMinorsAndNodes) {
  ASSERT_NO_FATAL_FAILURE(dump_on(machine({"--minors", "128,129"})));
  expect_restores_on(machine({"--minors", "129,128", "--node-order", "1,0", "--gpu-ids", "333,444"}));
}

TEST_F(OtherGpus, DumpedAgainWhereItsGpusHaveOtherIds) {
  ASSERT_NO_FATAL_FAILURE(dump_on(machine({"--gpu-ids", kIds})));
  ASSERT_NO_FATAL_FAILURE(move_to(machine({"--gpu-ids", "333,444", "--minors", "140,135"})));
  ASSERT_NO_FATAL_FAILURE(restore());
  ASSERT_NO_FATAL_FAILURE(expect_devices({333, 444}, {11111, 22222}));
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  std::filesystem::remove_all(images());
  ASSERT_NO_FATAL_FAILURE(dump());
  expect_restores_on(machine({"--gpu-ids", "555,666"}));
}

// Joined by PCIe only: with XGMI each GPU of a larger machine has more links, and is another GPU for that.
TEST_F(OtherGpus, MoreGpusComeAlong) {
  const Strings three = {"--gpus", "3",       "--vram", "64M",       "--gtt",
                         "64M",    "--links", "pcie",   "--gpu-ids", "22222,333,11111"};
  load(machine({"--links", "pcie", "--gpu-ids", kIds}));
  ASSERT_NO_FATAL_FAILURE(
      start_subject({"--gpus", "2", "--vram", "8M", "--gtt", "1M", "--run-queues", "--svm"}));
  ASSERT_NO_FATAL_FAILURE(dump());
  ASSERT_NO_FATAL_FAILURE(move_to(three));
  ASSERT_NO_FATAL_FAILURE(restore());
  ASSERT_NO_FATAL_FAILURE(expect_devices({11111, 22222, 333}, {11111, 22222, 333}));
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  std::filesystem::remove_all(images());
  ASSERT_NO_FATAL_FAILURE(dump());
  expect_refused_on(machine({"--links", "pcie"}), {"made with 3 GPUs visible, here 2 GPUs are"});
  expect_restores_on(three);
}

TEST_F(OtherGpus, MoreGpusDoNotMatterWhereADeviceCgroupHidesThem) {
  ASSERT_NO_FATAL_FAILURE(dump_on(machine({"--links", "pcie"})));
  ASSERT_NO_FATAL_FAILURE(move_to({"--gpus", "3", "--vram", "64M", "--gtt", "64M", "--links", "pcie"}));
  const DeviceCgroup box(scratch() / "devices", {"c 226:130 rwm"});
  criu_->prepare = [&] { box.enter(); };
  ASSERT_NO_FATAL_FAILURE(restore());
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
  criu_->prepare = nullptr;
  subject_.reset();
}

TEST_F(OtherGpus, AnotherModelIsRefusedWithATable) {
  ASSERT_NO_FATAL_FAILURE(dump_on(two_gpus()));
  expect_refused_on(machine({"--preset", "mi300x"}), {"on local GPU", "device_id", "simd_count"});
}

TEST_F(OtherGpus, LessVramIsRefusedAndTheSwitchAllowsIt) {
  ASSERT_NO_FATAL_FAILURE(dump_on(two_gpus()));
  const Strings smaller = {"--gpus", "2", "--vram", "32M", "--gtt", "64M"};
  expect_refused_on(smaller, {"vram_size", "KFD_VRAM_SIZE_CHECK=0 allows this"});
  criu_->environment.insert_or_assign("KFD_VRAM_SIZE_CHECK", "0");
  expect_restores_on(smaller);
}

TEST_F(OtherGpus, OtherNumaNodesAreRefusedAndTheSwitchAllowsThem) {
  ASSERT_NO_FATAL_FAILURE(dump_on(two_gpus()));
  const Strings spread = machine({"--cpu-nodes", "2"});
  expect_refused_on(spread, {"KFD_NUMA_CHECK=0 allows this"});
  criu_->environment.insert_or_assign("KFD_NUMA_CHECK", "0");
  expect_restores_on(spread);
}

// Of equal GPUs the one with room, or the one that a container's own settings name.
class ChosenGpus : public OtherGpus {
 protected:
  static Strings equal_gpus(const std::string& number) {
    return {"--gpus", number, "--vram", "64M", "--gtt", "64M", "--links", "pcie"};
  }

  void dump_on_one() {
    load(equal_gpus("1"));
    ASSERT_NO_FATAL_FAILURE(start_subject({"--gpus", "1", "--vram", "24M", "--gtt", "1M", "--no-queues"}));
    ASSERT_NO_FATAL_FAILURE(dump());
  }

  // The GPUs, by number, on which the restored process has VRAM.
  std::set<std::uint32_t> gpus_of_subject() {
    std::set<std::uint32_t> gpus;
    const auto process = control().process(subject_->pid());
    if (!process) return gpus;
    for (const vamdgpu::BoInfo& bo : process->bos) {
      constexpr std::uint32_t kVram = 1;
      if ((bo.flags & kVram) != 0) gpus.insert(bo.gpu);
    }
    return gpus;
  }
};

TEST_F(ChosenGpus, AFullGpuIsLeftForOneWithRoom) {
  ASSERT_NO_FATAL_FAILURE(dump_on_one());
  ASSERT_NO_FATAL_FAILURE(move_to(equal_gpus("3")));
  GuestSubject other(scratch() / "other");
  ASSERT_TRUE(other.start(with_common_options({"--gpus", "1", "--vram", "48M", "--gtt", "1M", "--no-queues"}))
                  .starts_with("ready"));
  ASSERT_NO_FATAL_FAILURE(restore());
  EXPECT_EQ(gpus_of_subject(), std::set<std::uint32_t>{1});
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
  EXPECT_EQ(other.quit(), 0);
}

// As the engines hand it over: a configuration file of criu's that names a folder with a link to the plugin.
TEST_F(ChosenGpus, TheFolderInCriusConfigurationFileHasTheMap) {
  ASSERT_NO_FATAL_FAILURE(dump_on_one());
  const pid_t pid = subject_->pid();
  criu_->use_plugins({});
  for (const char* gpu : {"2", "1"}) {
    SCOPED_TRACE(gpu);
    const std::filesystem::path folder = scratch() / ("container-" + std::string(gpu));
    std::filesystem::create_directory(folder);
    std::filesystem::create_symlink(settings().plugin, folder / "amdgpu_plugin.so");
    std::ofstream(folder / "sluice.conf")
        << "SLUICE_GPU_MAP=renderD128=renderD" << 128 + std::stoi(gpu) << '\n';
    std::ofstream(folder / "criu.conf") << "libdir " << folder.string() << '\n';
    ASSERT_NO_FATAL_FAILURE(move_to(equal_gpus("3")));
    ASSERT_NO_FATAL_FAILURE(restore({"--config", (folder / "criu.conf").string()}));
    subject_->adopt(pid);
    EXPECT_EQ(gpus_of_subject(), std::set<std::uint32_t>{static_cast<std::uint32_t>(std::stoi(gpu))});
    ASSERT_NO_FATAL_FAILURE(expect_whole());
    EXPECT_EQ(subject_->quit(), 0);
  }
}

}  // namespace
}  // namespace sluice::vm_test
