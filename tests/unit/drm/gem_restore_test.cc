// SPDX-License-Identifier: MIT
// BOs made again under chosen handles, on the virtual driver, whose kernel changes handles (SLUICE_CHANGES=1)
// or does not.
#include "drm/gem_restore.h"

#include <gtest/gtest.h>
#include <libdrm/amdgpu_drm.h>

#include <cstdlib>

#include "base/units.h"
#include "control.h"
#include "drm/target_file.h"
#include "target.h"

namespace sluice::drm {
namespace {

GemBo bo_with(std::uint32_t handle) {
  return {handle, 8 * kKiB, 4 * kKiB, AMDGPU_GEM_DOMAIN_GTT, 0, {}, {}};
}

class GemRestoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!on_virtual_machine()) GTEST_SKIP() << "needs a virtual machine";
    control_ = vamdgpu::Control::open(std::getenv("VAMDGPU_DIR"));
    changes_ = control_->config().change_handle != 0;
  }

  std::vector<std::uint32_t> handles() const {
    std::vector<std::uint32_t> numbers;
    const auto listed = list_handles(target_.fd());
    for (const GemHandle& handle : **listed) numbers.push_back(handle.handle);
    return numbers;
  }

  TargetFile target_;
  std::unique_ptr<vamdgpu::Control> control_;
  bool changes_ = false;
};

TEST_F(GemRestoreTest, HandlesWithGapsComeBackAndNothingElse) {
  {
    GemRestore restore(target_.fd());
    for (const std::uint32_t handle : {1U, 3U, 70U, 4096U}) {
      const auto created = restore.create(bo_with(handle));
      ASSERT_TRUE(created.ok()) << created.error().what;
    }
    EXPECT_EQ(restore.placeholders(), changes_ ? 0U : 4092U);
  }
  EXPECT_EQ(handles(), (std::vector<std::uint32_t>{1, 3, 70, 4096}));
  EXPECT_EQ(target_.create(4096).handle(), 2U) << "the next BO gets the lowest handle that is free";
}

TEST_F(GemRestoreTest, MappingsAreMadeAgain) {
  GemBo bo = bo_with(5);
  bo.mappings = {{1ULL << 40, 8 * kKiB, 0, AMDGPU_VM_PAGE_READABLE | AMDGPU_VM_PAGE_WRITEABLE},
                 {2ULL << 40, 4 * kKiB, 4 * kKiB, AMDGPU_VM_PAGE_READABLE}};
  GemRestore restore(target_.fd());
  ASSERT_TRUE(restore.create(bo).ok());
  const auto mappings = mappings_of(target_.fd(), 5);
  ASSERT_TRUE(mappings.ok() && mappings->has_value());
  EXPECT_EQ((*mappings)->size(), 2U);
  EXPECT_EQ(*alignment_of(target_.fd(), 5), 4 * kKiB);
}

// As the kernel tells addresses of the upper half, and so does upstream's image.
TEST_F(GemRestoreTest, AnAddressOfTheUpperHalfIsMadeWhole) {
  constexpr std::uint64_t kTold = 0x8000'0010'0000, kWhole = 0xffff'8000'0010'0000;
  EXPECT_EQ(canonical_address(kTold), kWhole);
  EXPECT_EQ(canonical_address(kWhole), kWhole);
  EXPECT_EQ(canonical_address(0x7fff'ffff'f000), 0x7fff'ffff'f000U);
  EXPECT_EQ(canonical_address(1ULL << 48), 1ULL << 48) << "of a GPU whose addresses have more bits";
  GemBo bo = bo_with(5);
  bo.mappings = {{kTold, 8 * kKiB, 0, AMDGPU_VM_PAGE_READABLE}};
  GemRestore restore(target_.fd());
  const auto created = restore.create(bo);
  ASSERT_TRUE(created.ok()) << created.error().what;
  const auto mappings = mappings_of(target_.fd(), 5);
  ASSERT_TRUE(mappings.ok() && mappings->has_value());
  ASSERT_EQ((*mappings)->size(), 1U);
  EXPECT_EQ((*mappings)->front().address, kWhole);
}

// The largest, one that ends within a word, tiling alone, and flags whose data went.
TEST_F(GemRestoreTest, MetadataIsSetAgain) {
  const std::vector<GemMetadata> kinds = {{0, 0, {}},
                                          {7, 1, std::vector<std::uint8_t>(kMostMetadataBytes, 0xa5)},
                                          {0, 0, {1, 2, 3, 4, 5}},
                                          {UINT64_MAX, 0, {}},
                                          {0, UINT64_MAX, {}}};
  GemRestore restore(target_.fd());
  std::uint32_t handle = 0;
  for (const GemMetadata& metadata : kinds) {
    GemBo bo = bo_with(++handle);
    bo.metadata = metadata;
    const auto created = restore.create(bo);
    ASSERT_TRUE(created.ok()) << created.error().what;
    const auto found = metadata_of(target_.fd(), handle);
    ASSERT_TRUE(found.ok()) << found.error().what;
    EXPECT_EQ(*found, metadata) << handle;
  }
  EXPECT_EQ(metadata_of(target_.fd(), handle + 1).error().err, ENOENT);
}

TEST_F(GemRestoreTest, AHandleThatIsTakenIsRefused) {
  const auto taken = target_.create(4096);
  GemRestore restore(target_.fd());
  const auto refused = restore.create(bo_with(taken.handle()));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().err, EEXIST);
}

TEST_F(GemRestoreTest, TooManyPlaceholdersAreRefusedBeforeAnyIsMade) {
  GemRestore restore(target_.fd());
  const auto created = restore.create(bo_with(kMostPlaceholders + 2));
  EXPECT_EQ(created.ok(), changes_);
  if (changes_) return;
  EXPECT_EQ(created.error().err, E2BIG);
  EXPECT_EQ(restore.placeholders(), 0U);
  EXPECT_TRUE(handles().empty());
}

// Memory of the KFD has none before.
TEST_F(GemRestoreTest, MemoryThatIsImportedGetsItsMetadata) {
  const TargetFile other;
  const auto memory = other.create(8 * kKiB, Domain::Gtt);
  GemBo bo = bo_with(2);
  bo.metadata = {5, 6, {7, 8}};
  GemRestore restore(target_.fd());
  ASSERT_TRUE(restore.reserve(bo).ok());
  EXPECT_EQ(*metadata_of(target_.fd(), 2), GemMetadata{});
  ASSERT_TRUE(restore.import(bo, other.dmabuf(memory).get()).ok());
  EXPECT_EQ(*metadata_of(target_.fd(), 2), bo.metadata);
}

// Where it is smaller, what is mapped of the BO would end in the middle.
TEST_F(GemRestoreTest, MemoryOfAnotherFileIsImportedUnderTheHandleIfItIsAsLargeAsTheBo) {
  const TargetFile other;
  const auto large = other.create(8 * kKiB, Domain::Gtt);
  const auto small = other.create(4 * kKiB, Domain::Gtt);
  const UniqueFd large_dmabuf = other.dmabuf(large), small_dmabuf = other.dmabuf(small);
  {
    GemRestore restore(target_.fd());
    ASSERT_TRUE(restore.reserve(bo_with(2)).ok());
    EXPECT_EQ(restore.import(bo_with(2), small_dmabuf.get()).error().err, EINVAL);
    EXPECT_EQ(restore.import(bo_with(2), -1).error().err, EBADF);
    const auto imported = restore.import(bo_with(2), large_dmabuf.get());
    ASSERT_TRUE(imported.ok()) << imported.error().what;
  }
  const auto listed = list_handles(target_.fd());
  ASSERT_TRUE(listed.ok() && listed->has_value());
  ASSERT_EQ((*listed)->size(), 1U);
  EXPECT_EQ((*listed)->front().handle, 2U);
  EXPECT_EQ((*listed)->front().bytes, 8 * kKiB);
}

TEST_F(GemRestoreTest, EachCallThatFailsIsReportedAndLeavesNoPlaceholder) {
  constexpr std::uint32_t kCreate = 0x40, kMetadata = 0x46, kVa = 0x48;
  for (const std::uint32_t nr : {kCreate, kMetadata, kVa}) {
    for (std::uint32_t skip = 0; skip < (nr == kCreate ? 3U : 1U); ++skip) {
      const TargetFile target;
      control_->inject({vamdgpu::On::Render, nr, -1, ENOMEM, skip, 1, false});
      {
        GemRestore restore(target.fd());
        GemBo bo = bo_with(4);
        bo.mappings = {{1ULL << 40, 8 * kKiB, 0, AMDGPU_VM_PAGE_READABLE}};
        bo.metadata.tiling_info = 1;
        const auto created = restore.create(bo);
        if (changes_ && nr == kCreate && skip > 0) {
          EXPECT_TRUE(created.ok());
        } else {
          ASSERT_FALSE(created.ok()) << nr << " " << skip;
          EXPECT_EQ(created.error().err, ENOMEM);
        }
      }
      const auto left = list_handles(target.fd());
      for (const GemHandle& handle : **left) EXPECT_EQ(handle.handle, 4U);
      control_->clear_faults();
    }
  }
}

}  // namespace
}  // namespace sluice::drm
