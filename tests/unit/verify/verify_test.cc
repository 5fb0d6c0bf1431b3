// SPDX-License-Identifier: MIT
// Images that are made to be verified at great length.
#include "verify/verify.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>

#include "base/units.h"
#include "images/files/files.h"
#include "images/metadata.h"
#include "images/sums.h"
#include "kfd/uapi.h"
#include "support/temp_dir.h"

namespace sluice {
namespace {

constexpr int kId = 1;
constexpr std::uint64_t kBlock = 4 * kKiB;

// One BO, all of it a hole, and sums that say otherwise: it costs nothing to make it large. `sums`: how many.
void make_images(int dir_fd, std::uint64_t blocks, std::uint64_t& sums) {
  KfdImage image;
  image.pid = 1;
  image.id = kId;
  image.dump_id = DumpId{7};
  image.has_sums = true;
  image.topology.nodes.push_back({.node_id = 1, .gpu_id = 0x5759, .drm_render_minor = 128});
  BoEntry bo;
  bo.addr = 0x7f0000000000;
  bo.bytes = blocks * kBlock - 8;  // with the length before it
  bo.alloc_flags = kfd::kAllocVram;
  bo.gpu_id = 0x5759;
  image.bos.push_back(bo);
  ASSERT_TRUE(write_image(dir_fd, kfd_image_name(kId), pack_kfd_image(image, {}), false).ok());

  const PagesSet set = pages_of(image).front();
  Sidecar sidecar;
  sidecar.tables = unit_tables(std::move(set.layout(kSumBlockBytes)).value(), kBlock);
  sums = sidecar.tables.front().sums.size();
  sidecar.pages_files = set.pages_names(kId);
  sidecar.bo_table_digest = set.bo_table_digest;
  sidecar.dump_id = *image.dump_id;
  ASSERT_TRUE(write_image(dir_fd, set.sums_name(kId), pack_sidecar(sidecar, {}), false).ok());
  const UniqueFd pages(::openat(dir_fd, set.pages_name(kId, 0).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::ftruncate(pages.get(), static_cast<off_t>(blocks * kBlock)), 0);
}

TEST(Verification, MoreProblemsThanAnybodyReadsAreCountedAndNotKept) {
  const test::TempDir dir;
  std::uint64_t sums = 0;
  ASSERT_NO_FATAL_FAILURE(make_images(dir.fd(), kMostProblems + 1000, sums));
  const DirectorySource source(dir.fd());
  const auto checkpoint = read_checkpoint(source);
  ASSERT_TRUE(checkpoint.ok() && checkpoint->unreadable.empty());
  const auto verification =
      std::move(Verification::start(source, *checkpoint, {4 * kMiB, 16 * kMiB})).value();
  while (!verification->wait_for(std::chrono::hours(1))) {
  }
  EXPECT_EQ(verification->take_problems().size(), kMostProblems);
  EXPECT_EQ(verification->totals().problems, sums);
  EXPECT_EQ(verification->totals().bad_blocks, sums);
}

}  // namespace
}  // namespace sluice
