// SPDX-License-Identifier: MIT
// What a dump decides about a tree, seen without a host, a process or a GPU: who creates shared memory, what
// each image says, which contents flow, and what is refused.
#include "plugin/dump/plan/dump_plan.h"

#include <gtest/gtest.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "images/metadata.h"
#include "kfd/device.h"
#include "kfd/uapi.h"
#include "support/planned_tree.h"
#include "support/rng.h"

namespace sluice::plugin {
namespace {

using test::PlannedTree;

constexpr DumpPolicy kDump{};

// EXPECTs that it is refused with this id.
void expect_refused(PlannedTree tree, int err, const std::string& id) {
  const auto plan = plan_dump(std::move(tree).survey(), kDump);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().err, err);
  EXPECT_NE(plan.error().what.find("[" + id + "]"), std::string::npos) << plan.error().what;
}

// REQUIRES: it can be planned.
DumpPlan plan_of(PlannedTree tree, const DumpPolicy& policy = kDump) {
  auto plan = plan_dump(std::move(tree).survey(), policy);
  EXPECT_TRUE(plan.ok()) << (plan ? "" : plan.error().what);
  return std::move(plan).value();
}

const BoEntry& kfd_bo(const DumpPlan& plan, std::size_t file, std::size_t bo = 0) {
  return std::get<KfdImage>(plan.files[file].image).bos[bo];
}

const RenderBo& render_bo(const DumpPlan& plan, std::size_t file, std::size_t bo = 0) {
  return std::get<RenderImage>(plan.files[file].image).bos[bo];
}

TEST(DumpPlan, MemoryOfOneFileAloneIsNotShared) {
  PlannedTree tree;
  tree.add_kfd({10}).bo({.inode = 1});
  const DumpPlan plan = plan_of(std::move(tree));
  EXPECT_EQ(kfd_bo(plan, 0).shared, 0U);
  EXPECT_EQ(plan.shared_of(1), nullptr);
  ASSERT_EQ(plan.lanes[0].size(), 1U);
  EXPECT_EQ(plan.lanes[0][0].pages.bos.size(), 1U);
  EXPECT_EQ(plan.lanes[0][0].render_minor, 128U);
}

TEST(DumpPlan, TheKfdProcessThatAllocatedSharedMemoryCreatesIt) {
  PlannedTree tree;
  tree.add_kfd({10}).bo({.inode = 1, .looks_imported = true});
  tree.add_kfd({11}).bo({.inode = 1});
  tree.add_render({10}).bo({.inode = 1, .handle = 7});
  const DumpPlan plan = plan_of(std::move(tree));
  EXPECT_TRUE(kfd_bo(plan, 0).imports);
  EXPECT_FALSE(kfd_bo(plan, 1).imports);
  EXPECT_TRUE(render_bo(plan, 2).imports);
  EXPECT_EQ(kfd_bo(plan, 0).shared, 1U);
  EXPECT_EQ(kfd_bo(plan, 1).shared, 1U);
  EXPECT_EQ(render_bo(plan, 2).shared, 1U);
  EXPECT_EQ(kfd_bo(plan, 1).handle, 7U) << "upstream knows it by the render file's handle";
  ASSERT_NE(plan.shared_of(1), nullptr);
  EXPECT_EQ(plan.shared_of(1)->handle, 7U);
  EXPECT_EQ(plan.lanes[0].size(), 0U) << "its contents flow with their creator";
  EXPECT_EQ(plan.lanes[1].size(), 1U);
  EXPECT_EQ(plan.lanes[2].size(), 0U);
  EXPECT_EQ(plan.files[1].shared(false), std::vector<std::uint32_t>{1});
  EXPECT_EQ(plan.files[2].shared(true), std::vector<std::uint32_t>{1});
}

TEST(DumpPlan, TheOneThatHasExportedAnIpcHandleCreatesTheMemory) {
  PlannedTree tree;
  tree.add_kfd({10}).bo({.inode = 1});
  tree.add_kfd({11}).bo({.inode = 1, .looks_imported = true, .ipc = Ipc::Imported});
  tree.add_kfd({12}).bo({.inode = 1, .ipc = Ipc::Exported});
  const DumpPlan plan = plan_of(std::move(tree));
  EXPECT_TRUE(kfd_bo(plan, 0).imports) << "its flags are those of an allocation, as AMD's driver copies them";
  EXPECT_TRUE(kfd_bo(plan, 1).imports);
  EXPECT_FALSE(kfd_bo(plan, 2).imports);
}

TEST(DumpPlan, MemoryOfAnIpcHandleThatNobodyOfTheTreeExportedIsRefused) {
  PlannedTree tree;
  tree.add_kfd({10}).bo({.inode = 1, .looks_imported = true, .ipc = Ipc::Imported});
  tree.add_kfd({11}).bo({.inode = 1, .looks_imported = true, .ipc = Ipc::Imported});
  tree.add_render({10}).bo({.inode = 1, .handle = 3});
  expect_refused(std::move(tree), EINVAL, "SL-D99");
}

TEST(DumpPlan, ARenderFileCreatesMemoryThatAKfdProcessImported) {
  PlannedTree tree;
  tree.add_kfd({10}).bo({.inode = 1, .looks_imported = true});
  tree.add_render({10}).bo({.inode = 1, .handle = 3});
  const DumpPlan plan = plan_of(std::move(tree));
  EXPECT_TRUE(kfd_bo(plan, 0).imports);
  EXPECT_FALSE(render_bo(plan, 1).imports);
}

// As Linux 6.1 makes a new dma-buf for each checkpoint.
TEST(DumpPlan, MemoryOfTwoDmaBufsIsRecognisedByItsPlace) {
  PlannedTree tree;
  tree.add_kfd({10}).bo({.inode = 1, .offset = 0x10000});
  tree.add_kfd({11}).bo({.inode = 2, .offset = 0x10000, .looks_imported = true});
  tree.add_kfd({12}).bo({.inode = 3, .offset = 0x10000, .render_minor = 129});
  tree.add_descriptor(2);
  const DumpPlan plan = plan_of(std::move(tree));
  EXPECT_EQ(kfd_bo(plan, 0).shared, 1U);
  EXPECT_EQ(kfd_bo(plan, 1).shared, 1U);
  EXPECT_FALSE(kfd_bo(plan, 0).imports);
  EXPECT_TRUE(kfd_bo(plan, 1).imports);
  EXPECT_EQ(kfd_bo(plan, 2).shared, 0U) << "another GPU's";
  ASSERT_NE(plan.shared_of(2), nullptr);
  EXPECT_EQ(plan.shared_of(2)->number, 1U);
}

TEST(DumpPlan, AnOpenDescriptorMakesMemoryShared) {
  PlannedTree tree;
  tree.add_render({10}).bo({.inode = 1, .handle = 3});
  tree.add_descriptor(1);
  tree.add_descriptor(9);
  const DumpPlan plan = plan_of(std::move(tree));
  EXPECT_EQ(render_bo(plan, 0).shared, 1U);
  EXPECT_FALSE(render_bo(plan, 0).imports);
  EXPECT_EQ(plan.shared_of(9), nullptr) << "memory of others";
}

// The place is known by an import only.
TEST(DumpPlan, ADescriptorOfAnotherDmaBufIsFoundByItsPlace) {
  PlannedTree tree;
  tree.add_kfd({10}).bo({.inode = 1, .offset = 0x1000});
  for (const ino_t dmabuf : {ino_t{2}, ino_t{3}}) tree.add_descriptor(dmabuf);
  MemoryTable& memory = tree.memory();
  EXPECT_EQ(memory.of(2), nullptr);
  EXPECT_TRUE(memory.find_at(2, {128, 0x1000}));
  EXPECT_FALSE(memory.find_at(3, {129, 0x1000})) << "another GPU's";
  EXPECT_FALSE(memory.find_at(3, {128, 0})) << "[SL-D27]";
  const DumpPlan plan = plan_of(std::move(tree));
  EXPECT_EQ(kfd_bo(plan, 0).shared, 1U) << "the descriptor has it, too";
  ASSERT_NE(plan.shared_of(2), nullptr);
  EXPECT_EQ(plan.shared_of(3), nullptr);
}

TEST(DumpPlan, MemoryThatNoFileCanCreateIsRefused) {
  PlannedTree tree;
  tree.add_render({10}).bo({.inode = 1, .handle = 4, .can_create = false});
  tree.add_render({11}).bo({.inode = 1, .handle = 9, .can_create = false});
  expect_refused(std::move(tree), EINVAL, "SL-D15");
}

TEST(DumpPlan, MoreSharedMemoryThanARestoreAcceptsIsRefused) {
  const auto with = [](std::size_t count) {
    PlannedTree tree;
    auto& file = tree.add_render({10});
    for (std::size_t i = 1; i <= count; ++i) {
      file.bo({.inode = i, .handle = static_cast<std::uint32_t>(i)});
      tree.add_descriptor(i);
    }
    return tree;
  };
  EXPECT_EQ(plan_of(with(kMostSharedBos)).shared.size(), kMostSharedBos);
  expect_refused(with(kMostSharedBos + 1), E2BIG, "SL-D16");
}

TEST(DumpPlan, ARenderFileTakesItsGpusNameFromItsProcess) {
  PlannedTree tree;
  tree.add_kfd({10}).bo({.inode = 1});
  tree.add_render({10}, 129);
  tree.add_render({11}, 129);
  const DumpPlan plan = plan_of(std::move(tree));
  EXPECT_EQ(std::get<RenderImage>(plan.files[1].image).gpu_id, PlannedTree::user_gpu_id(129));
  EXPECT_EQ(std::get<RenderImage>(plan.files[2].image).gpu_id, PlannedTree::local_gpu_id(129));
}

TEST(DumpPlan, TheFileThatTheKfdUsesIsRestoredInItsProcess) {
  for (const pid_t other : {10, 9}) {
    SCOPED_TRACE(other);
    PlannedTree tree;
    tree.add_kfd({10}).bo({.inode = 1});
    tree.add_render(other == 10 ? std::vector<pid_t>{10} : std::vector<pid_t>{9, 10}).acquired_by(0);
    if (other == 10) {
      EXPECT_EQ(plan_of(std::move(tree)).files.size(), 2U);
    } else {
      expect_refused(std::move(tree), EINVAL, "SL-D50");
    }
  }
}

TEST(DumpPlan, AMapIsRefusedUnlessItsOwnProcessCanMakeItAgain) {
  struct Case {
    pid_t pid;
    std::uint32_t minor;
    std::uint64_t offset;
    bool good;
  };
  for (const Case& one :
       {Case{10, 128, 0x10000, true}, Case{10, 128, 0x10fff, true}, Case{10, 128, 0x11000, false},
        Case{10, 128, 0xffff, false}, Case{10, 129, 0x10000, false}, Case{11, 128, 0x10000, false},
        Case{11, 128, 0x70000, true}, Case{12, 128, 0x70000, false}}) {
    SCOPED_TRACE(std::to_string(one.pid) + " " + hex(one.offset));
    PlannedTree tree;
    tree.add_kfd({10}).bo({.inode = 1, .offset = 0x10000});
    tree.add_render({11}).bo({.inode = 2, .offset = 0x70000, .handle = 1});
    tree.add_map(one.pid, one.minor, one.offset);
    if (one.good) {
      EXPECT_EQ(plan_of(std::move(tree)).files.size(), 2U);
    } else {
      expect_refused(std::move(tree), EINVAL, "SL-D54");
    }
  }
}

TEST(DumpPlan, AKfdProcessHasALaneForEachGpuWithContents) {
  PlannedTree tree;
  tree.add_kfd({10})
      .bo({.inode = 1})
      .bo({.inode = 2, .render_minor = 129})
      .bo({.inode = 3})
      .bo({.inode = 4, .flags = kfd::kAllocUserptr});
  const DumpPlan plan = plan_of(std::move(tree));
  ASSERT_EQ(plan.lanes[0].size(), 2U);
  EXPECT_EQ(plan.lanes[0][0].render_minor, 128U);
  EXPECT_EQ(plan.lanes[0][0].pages.bos.size(), 2U);
  EXPECT_EQ(plan.lanes[0][0].dmabufs.size(), 2U);
  EXPECT_EQ(plan.lanes[0][1].render_minor, 129U);
}

TEST(DumpPlan, AnAliasHasNoLanes) {
  PlannedTree tree;
  tree.add_kfd({10}).bo({.inode = 1});
  tree.add_alias({10}, 0);
  const DumpPlan plan = plan_of(std::move(tree));
  EXPECT_TRUE(plan.files[1].is_alias());
  EXPECT_TRUE(plan.lanes[1].empty());
}

TEST(DumpPlan, APreDumpsFilesHaveTheirOwnNames) {
  PlannedTree tree;
  tree.add_kfd({10}).bo({.inode = 1});
  const DumpPlan plan = plan_of(std::move(tree), {.job_runs = true});
  EXPECT_TRUE(plan.lanes[0][0].pages.predump);
}

// A restore of an import has to change its record.
TEST(DumpPlan, AnImportWhoseRecordsAreUnknownIsRefused) {
  for (const bool imports : {false, true}) {
    SCOPED_TRACE(imports);
    PlannedTree tree;
    tree.add_kfd({10}).bo({.inode = 1, .looks_imported = imports}).without_records();
    if (imports) tree.add_kfd({11}).bo({.inode = 1});
    if (imports) {
      expect_refused(std::move(tree), EBADMSG, "SL-G45");
    } else {
      EXPECT_EQ(plan_of(std::move(tree)).files.size(), 1U);
    }
  }
}

// ---- what holds of every tree

// Each memory is written once, by the file that creates it, and each other holder imports it.
void expect_each_memory_once(const DumpPlan& plan) {
  std::map<std::uint32_t, std::size_t> creators;
  std::set<std::uint32_t> imported;
  std::size_t written = 0;
  for (std::size_t file = 0; file < plan.files.size(); ++file) {
    for (const std::uint32_t number : plan.files[file].shared(false)) ++creators[number];
    for (const std::uint32_t number : plan.files[file].shared(true)) imported.insert(number);
    for (const LaneContents& lane : plan.lanes[file]) {
      EXPECT_EQ(lane.pages.bos.size(), lane.dmabufs.size());
      written += lane.pages.bos.size();
    }
  }
  std::size_t memories = 0;
  for (const auto& [dmabuf, memory] : plan.memory.all()) {
    if (memory.bos.empty()) continue;
    ++memories;
    EXPECT_EQ(plan.shared_of(dmabuf) != nullptr, memory.is_shared());
  }
  EXPECT_EQ(written, memories);
  EXPECT_EQ(creators.size(), plan.shared.size());
  for (const auto& [number, count] : creators) EXPECT_EQ(count, 1U) << number;
  for (const std::uint32_t number : imported) EXPECT_TRUE(creators.contains(number)) << number;
}

TEST(DumpPlan, WritesEachMemoryOnceOrIsRefused) {
  std::size_t planned = 0;
  constexpr std::size_t kTrees = 5000;
  for (std::uint64_t seed = 0; seed < kTrees; ++seed) {
    SCOPED_TRACE(seed);
    test::Rng random(seed);
    const auto plan = plan_dump(std::move(test::random_tree(random)).survey(), kDump);
    if (plan) {
      ++planned;
      expect_each_memory_once(*plan);
    } else {
      EXPECT_NE(plan.error().what.find("[SL-D15]"), std::string::npos) << plan.error().what;
    }
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(planned, kTrees / 4);
  EXPECT_LT(planned, kTrees);
}

}  // namespace
}  // namespace sluice::plugin
