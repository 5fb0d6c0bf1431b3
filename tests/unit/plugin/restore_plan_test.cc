// SPDX-License-Identifier: MIT
// What a restore decides from its images, seen without a store, a task or a GPU.
#include "plugin/restore/plan/restore_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "images/files/files.h"
#include "images/vram_need.h"
#include "kfd/uapi.h"
#include "plugin/dump/plan/dump_plan.h"
#include "support/planned_tree.h"
#include "support/rng.h"

namespace sluice::plugin {
namespace {

constexpr std::uint32_t kPid = 17;
constexpr DumpId kDump{1, 2, 3};

// Of a process that saw `gpus` GPUs, with one BO on the first.
KfdImage kfd_image(std::uint32_t id, std::uint32_t gpus = 1) {
  KfdImage image;
  image.pid = kPid;
  image.id = id;
  image.dump_id = kDump;
  for (std::uint32_t i = 0; i < gpus; ++i)
    image.topology.nodes.push_back({.node_id = i + 1, .gpu_id = i + 16, .drm_render_minor = 128 + i});
  image.bos = {{{0x1000, 4096, 0x100000000, 16, kfd::kAllocVram}}};
  return image;
}

RenderImage render_image(std::uint32_t id, std::optional<std::uint32_t> pid = kPid) {
  RenderImage image;
  image.id = id;
  image.pid = pid;
  image.dump_id = kDump;
  image.gpu_id = 16;
  image.minor = 128;
  image.bos.push_back({{1, 4096, 4096, 4, 0, {}, {}}, 0x200000000});
  return image;
}

FoundImages found(const std::vector<KfdImage>& kfd, const std::vector<RenderImage>& render = {}) {
  FoundImages found;
  for (const auto& image : kfd) found.checkpoint.kfd.push_back({static_cast<int>(*image.id), image});
  for (const auto& image : render) found.checkpoint.render.push_back({static_cast<int>(image.id), image});
  return found;
}

RestorePlan plan_of(FoundImages images) {
  auto plan = plan_restore(std::move(images));
  EXPECT_TRUE(plan.ok()) << (plan ? "" : plan.error().what);
  return std::move(plan).value();
}

TEST(RestorePlan, OfTheTopologiesTheWidestIsFirstAndEachIsOnce) {
  const RestorePlan plan =
      plan_of(found({kfd_image(1, 1), kfd_image(2, 1), kfd_image(3, 3), kfd_image(4, 2)}));
  ASSERT_EQ(plan.topologies.size(), 3U);
  EXPECT_EQ(plan.topologies.front().gpu_count(), 3U);
  EXPECT_EQ(plan.gpus.widest.gpu_count(), 3U);
}

TEST(RestorePlan, AnAliasIsNoProcess) {
  KfdImage alias = kfd_image(2);
  alias.bos.clear();
  alias.alias_of = 1;
  const RestorePlan plan = plan_of(found({kfd_image(1), alias}));
  EXPECT_EQ(plan.kfd_pids, (std::map<int, std::uint32_t>{{1, kPid}}));
  EXPECT_EQ(plan.all_lanes(), 1U);
}

TEST(RestorePlan, WithoutImagesThereIsOneLane) {
  const RestorePlan plan = plan_of({});
  EXPECT_EQ(plan.all_lanes(), 1U);
  EXPECT_EQ(plan.lanes_on(128), 1U);
}

TEST(RestorePlan, LanesOfOneGpuAreCountedOverAllFiles) {
  const RestorePlan plan = plan_of(found({kfd_image(1)}, {render_image(2), render_image(3)}));
  EXPECT_EQ(plan.lanes_on(128), 3U);
  EXPECT_EQ(plan.lanes_on(129), 1U);
  EXPECT_EQ(plan.all_lanes(), 3U);
}

TEST(RestorePlan, VramIsCountedByGpuOverAllFiles) {
  RenderImage in_vram = render_image(2);
  in_vram.bos[0].gem.domains = 4;
  const RestorePlan plan = plan_of(found({kfd_image(1)}, {in_vram}));
  VramBytes need = vram_of(kfd_image(1));
  add_vram(need, vram_of(in_vram));
  EXPECT_EQ(plan.gpus.need, need);
  EXPECT_GT(need[128], 4096U);
}

// CRIU before 3.19 restores maps through one file of a GPU only.
TEST(RestorePlan, FilesThroughWhichAProcessMapsAGpu) {
  RenderImage kfds = render_image(2), other = render_image(3), foreign = render_image(4, kPid + 1);
  kfds.kfd_acquired = true;
  other.kfd_acquired = foreign.kfd_acquired = false;
  EXPECT_FALSE(plan_of(found({kfd_image(1)})).maps_several_files(kPid, 128));
  EXPECT_FALSE(plan_of(found({kfd_image(1)}, {kfds})).maps_several_files(kPid, 128));
  EXPECT_FALSE(plan_of(found({kfd_image(1)}, {foreign})).maps_several_files(kPid, 128));
  const RestorePlan several = plan_of(found({kfd_image(1)}, {kfds, other}));
  EXPECT_TRUE(several.maps_several_files(kPid, 128));
  EXPECT_FALSE(several.maps_several_files(kPid, 129));
}

TEST(RestorePlan, ARenderFileOfUnknownProcessOrGpuMayBeAnyones) {
  const kfd::Node gpu = kfd_image(1).topology.nodes[0];
  EXPECT_FALSE(plan_of(found({kfd_image(1)})).may_restore_render_file(kPid, gpu));
  EXPECT_TRUE(plan_of(found({}, {render_image(2)})).may_restore_render_file(kPid, gpu));
  EXPECT_FALSE(plan_of(found({}, {render_image(2, kPid + 1)})).may_restore_render_file(kPid, gpu));
  EXPECT_TRUE(plan_of(found({}, {render_image(2, std::nullopt)})).may_restore_render_file(kPid, gpu));
  RenderImage unknown = render_image(2, kPid + 1);
  unknown.minor = RenderImage::kUnknownMinor;
  EXPECT_TRUE(plan_of(found({}, {unknown})).may_restore_render_file(kPid, gpu));
}

// As images of upstream's plugin may.
TEST(RestorePlan, ImagesThatShowOneMemoryTwiceAreRefused) {
  KfdImage first = kfd_image(1), second = kfd_image(2);
  EXPECT_TRUE(plan_restore(found({first, second})).ok()) << "ours say what is shared";
  first.dump_id = second.dump_id = std::nullopt;
  EXPECT_EQ(plan_restore(found({first, second})).error().err, ENOSYS);
}

TEST(RestorePlan, ImagesOfAnotherDumpThanTheIndexAreRefused) {
  FoundImages images = found({kfd_image(1)});
  images.index_dump = kDump;
  EXPECT_TRUE(plan_restore(images).ok());
  images.index_dump = DumpId{9};
  EXPECT_EQ(plan_restore(images).error().err, EBADMSG);
}

// ---- what holds of every tree that a dump has planned

FoundImages images_of(const DumpPlan& plan) {
  FoundImages found;
  std::uint32_t id = 0;
  const auto add = [&id](auto& images, auto image) {
    image.id = id;
    image.dump_id = kDump;
    images.push_back({static_cast<int>(id), std::move(image)});
  };
  for (const PlannedFile& file : plan.files) {
    ++id;
    if (const auto* kfd = std::get_if<KfdImage>(&file.image)) add(found.checkpoint.kfd, *kfd);
    if (const auto* render = std::get_if<RenderImage>(&file.image)) add(found.checkpoint.render, *render);
  }
  return found;
}

TEST(RestorePlan, OfEveryPlannedDumpImportsHaveACreatorAndLanesAreTheDumps) {
  std::size_t planned = 0, shared = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    test::Rng random(seed);
    const auto dump = plan_dump(std::move(test::random_tree(random)).survey(), {});
    if (!dump) continue;
    ++planned;
    const auto plan = plan_restore(images_of(*dump));
    ASSERT_TRUE(plan.ok()) << plan.error().what;
    std::size_t lanes = 0;
    for (const auto& of_file : dump->lanes) lanes += of_file.size();
    EXPECT_EQ(plan->all_lanes(), std::max<std::size_t>(lanes, 1));
    for (const PlannedFile& file : dump->files) {
      for (const std::uint32_t number : file.shared(true)) {
        EXPECT_TRUE(plan->shared_numbers.contains(number)) << number;
        ++shared;
      }
    }
    EXPECT_EQ(plan->shared_numbers.size(), dump->shared.size());
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(planned, 500U);
  EXPECT_GT(shared, 500U);
}

}  // namespace
}  // namespace sluice::plugin
