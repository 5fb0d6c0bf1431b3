// SPDX-License-Identifier: MIT
// `sluice map`: which GPUs of a machine would stand for those of the images, or why none do.
#include "images_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/units.h"
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
  EXPECT_THAT(ended.out, HasSubstr("every GPU is the same"));
  const json object = object_of(sluice({"map", "--json", plain()}, &images_->machine()));
  EXPECT_EQ(object["result"], "fits");
  EXPECT_EQ(object["mappings"][0]["gpus"].size(), 2U);
  EXPECT_EQ(object["mappings"][0]["identity"], true);
}

// What nobody has there, what the images need, and what is left; of a copied topology nobody knows.
TEST_F(ImagesTest, MapShowsRoomAndNeedOfEachGpu) {
  const json object = object_of(sluice({"map", "--json", plain()}, &images_->machine()));
  ASSERT_EQ(object["local"].size(), 2U);
  for (const json& gpu : object["local"]) {
    EXPECT_EQ(gpu["vram_bytes"], small_machine().vram_bytes);
    EXPECT_EQ(gpu["room_bytes"], small_machine().vram_bytes);
    EXPECT_EQ(gpu["pci"].get<std::string>().size(), std::string("0000:c1:00.0").size());
  }
  for (const json& pair : object["mappings"][0]["gpus"]) {
    EXPECT_GE(pair["need_bytes"], 4 * kMiB);
    EXPECT_LT(pair["need_bytes"], pair["room_bytes"]);
  }
  EXPECT_THAT(sluice({"map", plain()}, &images_->machine()).out,
              AllOf(HasSubstr("VRAM needed"), HasSubstr("24.0 MiB of 24.0 MiB")));

  const host_test::ScratchDirectory sysfs;
  vamdgpu::write_topology(sysfs.path(), vamdgpu::describe(small_machine()).tree.topology);
  const json copied = object_of(sluice({"map", "--json", plain(), "--sysfs", sysfs.path().string()}));
  EXPECT_EQ(copied["result"], "fits");
  EXPECT_TRUE(copied["local"][0]["room_bytes"].is_null());
  EXPECT_THAT(sluice({"map", plain(), "--sysfs", sysfs.path().string()}).out, HasSubstr("not known"));
}

TEST_F(ImagesTest, MapTriesAMapAndRefusesOneThatNamesNoGpu) {
  const json as_it_is = object_of(sluice({"map", "--json", plain()}, &images_->machine()));
  const auto id = [&](std::size_t gpu) { return as_it_is["local"][gpu]["gpu_id"].get<std::uint32_t>(); };
  const std::string exchanged =
      std::to_string(id(0)) + "=" + std::to_string(id(1)) + "," + std::to_string(id(1)) + "=renderD128";
  const auto expect_exchanged = [&](const Ended& ended) {
    const json object = object_of(ended);
    EXPECT_EQ(object["mappings"][0]["identity"], false);
    for (const json& pair : object["mappings"][0]["gpus"])
      EXPECT_EQ(pair["local_gpu_id"], pair["gpu_id"] == id(0) ? id(1) : id(0));
  };
  expect_exchanged(sluice({"map", "--json", plain(), "--gpu-map", exchanged}, &images_->machine()));
  expect_exchanged(sluice({"map", "--json", plain()}, &images_->machine(), {"SLUICE_GPU_MAP=" + exchanged}));
  // The option overrules the setting; an empty one is none.
  const json none = object_of(sluice({"map", "--json", plain(), "--gpu-map", ""}, &images_->machine(),
                                     {"SLUICE_GPU_MAP=" + exchanged}));
  EXPECT_EQ(none["mappings"][0]["identity"], true);

  for (const char* bad :
       {"nonsense", "0x1=renderD128", "renderD128=0x1", "renderD128=renderD128,renderD129=128"}) {
    const Ended ended = sluice({"map", plain(), "--gpu-map", bad}, &images_->machine());
    EXPECT_EQ(ended.status, kRefused) << bad;
    EXPECT_THAT(ended.err, HasSubstr("SLUICE_GPU_MAP")) << bad;
  }
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
  // Told once for all GPUs.
  EXPECT_THAT(ended.out, HasSubstr("all 2 GPUs"));
  EXPECT_EQ(std::count(ended.out.begin(), ended.out.end(), '\n'), 3) << ended.out;
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
