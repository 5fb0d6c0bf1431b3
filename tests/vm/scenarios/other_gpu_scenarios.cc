// SPDX-License-Identifier: MIT
// Restores on another machine than the one the process was dumped on.
#include <set>

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

}  // namespace
}  // namespace sluice::vm_test
