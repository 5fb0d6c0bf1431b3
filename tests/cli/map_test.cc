// SPDX-License-Identifier: MIT
// `sluice map`: which GPUs of a machine would stand for those of the images, or why none do.
#include "images_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "pipeline/units.h"
#include "sysfs_tree.h"

namespace sluice::cli_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST_F(ImagesTest, MapFindsTheMachineItself) {
  const Ended ended = sluice({"map", plain()}, &images_->machine());
  EXPECT_EQ(ended.status, kDone) << ended.out << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("every GPU is the one it was"));
  const json object = object_of(sluice({"map", "--json", plain()}, &images_->machine()));
  EXPECT_EQ(object["result"], "fits");
  EXPECT_EQ(object["mappings"][0]["gpus"].size(), 2U);
  EXPECT_EQ(object["mappings"][0]["identity"], true);
}

TEST_F(ImagesTest, MapNamesThePropertyAndTheSwitch) {
  const host_test::ScratchDirectory sysfs;
  vamdgpu::MachineOptions other = small_machine();
  other.vram_bytes = 16 * kMiB;
  vamdgpu::write_topology(sysfs.path(), vamdgpu::describe(other).tree.topology);
  const Strings command = {"map", plain(), "--sysfs", sysfs.path().string()};
  const Ended ended = sluice(command);
  EXPECT_EQ(ended.status, kRefused) << ended.out << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("vram_size 25165824 -> 16777216 (KFD_VRAM_SIZE_CHECK=0 allows this)"));
  Strings as_json = command;
  as_json.emplace_back("--json");
  const json object = object_of(sluice(as_json));
  EXPECT_EQ(object["result"], "refused");
  EXPECT_EQ(object["mappings"][0]["candidates"].size(), 4U);
  EXPECT_EQ(object["mappings"][0]["candidates"][0]["mismatches"][0]["switch"], "KFD_VRAM_SIZE_CHECK");
  EXPECT_EQ(sluice(command, nullptr, {"KFD_VRAM_SIZE_CHECK=0"}).status, kDone);
}

TEST_F(ImagesTest, MapSaysWhatFitsByItselfAndWhatNoSwitchAllows) {
  const host_test::ScratchDirectory sysfs;
  // The second GPU here is smaller: each of the image fits the first, and both need one of their own.
  vamdgpu::Topology topology = vamdgpu::describe(small_machine()).tree.topology;
  topology.nodes.back().memory_banks.at(0).size_bytes = 16 * kMiB;
  vamdgpu::write_topology(sysfs.path(), topology);
  const Ended ended = sluice({"map", plain(), "--sysfs", sysfs.path().string()});
  EXPECT_EQ(ended.status, kRefused);
  EXPECT_THAT(ended.out, AllOf(HasSubstr(": REFUSED: every GPU of the image fits some local GPU"),
                               HasSubstr("  fits by itself\n")));

  const host_test::ScratchDirectory others;
  vamdgpu::MachineOptions other = small_machine();
  other.preset = vamdgpu::Preset::Mi300x;
  vamdgpu::write_topology(others.path(), vamdgpu::describe(other).tree.topology);
  const Strings command = {"map", plain(), "--sysfs", others.path().string()};
  EXPECT_THAT(sluice(command).out, AllOf(HasSubstr("device_id 29711 -> "), HasSubstr("; ")));
  Strings as_json = command;
  as_json.emplace_back("--json");
  EXPECT_TRUE(
      object_of(sluice(as_json))["mappings"][0]["candidates"][0]["mismatches"][0]["switch"].is_null());
}

TEST_F(ImagesTest, MapWithTooFewGpusSaysSoInASentence) {
  const host_test::ScratchDirectory sysfs;
  vamdgpu::MachineOptions smaller = small_machine();
  smaller.gpus = 1;
  vamdgpu::write_topology(sysfs.path(), vamdgpu::describe(smaller).tree.topology);
  const Ended ended = sluice({"map", plain(), "--sysfs", sysfs.path().string()});
  EXPECT_EQ(ended.status, kRefused);
  EXPECT_THAT(ended.out, HasSubstr(": REFUSED: "));
  EXPECT_EQ(std::count(ended.out.begin(), ended.out.end(), '\n'), 1) << ended.out;
}

// Without a KFD process nobody says how GPUs are joined: each file wants the GPU that it had.
TEST_F(ImagesTest, MapFindsTheGpusOfRenderFiles) {
  ASSERT_EQ(images_->dump("render", {"--render-only", "--gem-handles", "1"}), "");
  const std::string directory = images_->directory("render").string();
  const Ended here = sluice({"map", directory}, &images_->machine());
  EXPECT_EQ(here.status, kDone) << here.err;
  EXPECT_EQ(here.out, "every render file has its GPU here\n");

  const host_test::ScratchDirectory sysfs;
  vamdgpu::MachineOptions other = small_machine();
  other.gpu_ids = {11, 12};
  vamdgpu::write_topology(sysfs.path(), vamdgpu::describe(other).tree.topology);
  const Ended there = sluice({"map", directory, "--sysfs", sysfs.path().string()});
  EXPECT_EQ(there.status, kRefused);
  for (const std::string& name : names(directory, std::string(kRenderPrefix)))
    EXPECT_THAT(there.out, HasSubstr("REFUSED: " + name + " belongs to GPU 0x"));
  const json object = object_of(sluice({"map", "--json", directory, "--sysfs", sysfs.path().string()}));
  EXPECT_EQ(object["result"], "refused");
  EXPECT_EQ(object["render_files"].size(), 2U);
}

TEST_F(ImagesTest, MapWarnsOfSettingsThatAreNone) {
  const Ended ended = sluice({"map", plain()}, &images_->machine(), {"KFD_VRAM_SIZE_CHECK=perhaps"});
  EXPECT_EQ(ended.status, kDone);
  EXPECT_THAT(ended.err, AllOf(StartsWith("sluice map: "), HasSubstr("KFD_VRAM_SIZE_CHECK")));
}

TEST_F(ImagesTest, MapWithoutATopologySaysWhatToDo) {
  if (::access("/sys/class/kfd", F_OK) != 0) {
    const Ended ended = sluice({"map", plain()});
    EXPECT_EQ(ended.status, kFailed);
    EXPECT_THAT(ended.err,
                HasSubstr("this machine has no KFD: load the amdgpu driver, or name with --sysfs"));
  }
  const host_test::ScratchDirectory nothing;
  const Ended ended = sluice({"map", plain(), "--sysfs", nothing.path().string()});
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_THAT(ended.err, HasSubstr("cp -rL"));
}

}  // namespace
}  // namespace sluice::cli_test
