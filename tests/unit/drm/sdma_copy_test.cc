// SPDX-License-Identifier: MIT
// The copy stage between BOs of a virtual GPU and an image in memory, through the real pipeline and
// libdrm_amdgpu.
#include "drm/sdma_copy.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <optional>

#include "base/units.h"
#include "control.h"
#include "copy_lane.h"
#include "pipeline/chunk_walk.h"
#include "support/process_state.h"
#include "support/rng.h"
#include "target.h"

namespace sluice::drm {
namespace {

using test::open_fds;
using test::Rng;

// Sizes of BOs: mostly small, some as large as several chunks; whole pages as the kernel makes them.
std::vector<TargetBo> random_bos(const TargetFile& target, Rng& rng) {
  std::vector<TargetBo> bos;
  const std::uint64_t count = rng.between(1, 40);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t pages = rng.percent(80) ? rng.between(1, 16) : rng.between(1, 512);
    bos.push_back(target.create(pages * 4096, rng.percent(70) ? Domain::Vram : Domain::Gtt));
  }
  return bos;
}

// Random bytes with runs of zeros that sometimes cover whole units.
void fill_random(const std::vector<TargetBo>& bos, Rng& rng) {
  for (const TargetBo& bo : bos) {
    rng.fill(bo.cpu());
    for (int hole = 0; hole < 3; ++hole) {
      if (rng.percent(50)) continue;
      const std::uint64_t begin = rng.between(0, bo.cpu().size() - 1);
      const std::uint64_t length = rng.between(1, bo.cpu().size() - begin);
      std::memset(bo.cpu().data() + begin, 0, length);
    }
  }
}

void fill_all(const std::vector<TargetBo>& bos, std::byte value) {
  for (const TargetBo& bo : bos) std::fill(bo.cpu().begin(), bo.cpu().end(), value);
}

class SdmaCopyTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!on_virtual_machine()) GTEST_SKIP() << "needs a virtual machine: run it by vamdgpu-run";
    auto opened = Device::open(kFirstMinor);
    ASSERT_TRUE(opened.ok()) << opened.error().what;
    device.emplace(std::move(opened).value());
    target.emplace();
    control = vamdgpu::Control::open(std::getenv("VAMDGPU_DIR"));
    ASSERT_NE(control, nullptr);
  }

  // Both ways: the image is the serial one; VRAM that was full of other bytes holds the image's afterwards.
  void round_trip(const std::vector<TargetBo>& bos, const CopyLaneOptions& options) {
    const std::size_t fds = open_fds();
    const vamdgpu::Counts before = control->counts();
    const Bytes expected = serial_image(bos);
    Bytes image;
    CopyOutcome dumped = run_copy(*device, Direction::Dump, *target, bos, image, options);
    ASSERT_TRUE(dumped.result.ok()) << dumped.result.error().what;
    ASSERT_TRUE(image == expected) << "the image is the serial one";

    fill_all(bos, std::byte{0xDB});
    CopyOutcome restored = run_copy(*device, Direction::Restore, *target, bos, image, options);
    ASSERT_TRUE(restored.result.ok()) << restored.result.error().what;
    ASSERT_TRUE(serial_image(bos) == expected) << "memory is what it was";

    for (const SdmaCopyStats& stats : {dumped.stats, restored.stats}) {
      EXPECT_EQ(stats.copied_bytes + stats.filled_bytes, expected.size() - kHeaderBytes);
      EXPECT_EQ(stats.imported_bos,
                std::count_if(bos.begin(), bos.end(), [](const TargetBo& bo) { return !bo.cpu().empty(); }));
    }
    EXPECT_EQ(dumped.stats.filled_bytes, 0U);
    EXPECT_EQ(open_fds(), fds);
    EXPECT_EQ(handles_of_others(kFirstNode, *target), 0U);
    const vamdgpu::Counts after = control->counts();
    EXPECT_EQ(after.bos, before.bos);
    EXPECT_EQ(after.gem_handles, before.gem_handles);
    EXPECT_EQ(after.mappings, before.mappings) << "in the GPU's address space";
    EXPECT_EQ(after.contexts, before.contexts);
    EXPECT_EQ(after.jobs, 0U);
    EXPECT_EQ(after.dma_bufs, before.dma_bufs);
    EXPECT_EQ(after.gtt_bytes, before.gtt_bytes);
    last = restored;
  }

  std::optional<Device> device;
  std::optional<TargetFile> target;
  std::unique_ptr<vamdgpu::Control> control;
  std::optional<CopyOutcome> last;
};

TEST_F(SdmaCopyTest, OneSmallBo) {
  std::vector<TargetBo> bos;
  bos.push_back(target->create(4096));
  Rng rng(1);
  rng.fill(bos[0].cpu());
  round_trip(bos, {});
  EXPECT_EQ(last->staging, Staging::Userptr);
  EXPECT_TRUE(last->note.empty());
  EXPECT_EQ(last->stats.submissions, 1U);
}

TEST_F(SdmaCopyTest, NoBoAtAll) {
  round_trip({}, {});
  EXPECT_EQ(last->stats.submissions, 0U);
}

TEST_F(SdmaCopyTest, AnEmptyBoAmongOthersNeedsNoMemory) {
  std::vector<TargetBo> bos;
  bos.emplace_back(0, std::span<std::byte>(), 0);
  bos.push_back(target->create(4096));
  bos.emplace_back(0, std::span<std::byte>(), 0);
  Rng rng(1);
  rng.fill(bos[1].cpu());
  round_trip(bos, {});
}

TEST_F(SdmaCopyTest, RandomBosOnEveryReactor) {
  for (const ReactorKind kind : {ReactorKind::Threads, ReactorKind::Uring}) {
    if (const std::string why = test::unavailable(kind); !why.empty()) {
      std::printf("not on %s: %s\n", test::name_of(kind), why.c_str());
      continue;
    }
    for (std::uint64_t seed = 1; seed <= 25; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " on " + test::name_of(kind));
      Rng rng(seed);
      const auto bos = random_bos(*target, rng);
      fill_random(bos, rng);
      CopyLaneOptions options;
      options.reactor = kind;
      options.chunk_bytes = 64 * kKiB << rng.between(0, 5);
      options.slots = static_cast<std::uint32_t>(rng.between(1, 9));
      options.holes = rng.percent(70);
      if (rng.percent(50)) options.cursors = static_cast<std::uint32_t>(rng.between(1, kMostCursors));
      options.copy.contexts = static_cast<std::uint32_t>(rng.between(1, 4));
      options.copy.rings_per_context = static_cast<std::uint32_t>(rng.between(1, 2));
      round_trip(bos, options);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(SdmaCopyTest, TenThousandSmallBosAreNeverListedTogether) {
  constexpr std::size_t kCount = 10'000;
  // Every dma-buf is open at the start: one descriptor a BO.
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  files.rlim_cur = files.rlim_max;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
  if (files.rlim_max < kCount + 200)
    GTEST_SKIP() << "no more than " << files.rlim_max << " open files allowed";
  std::vector<TargetBo> bos;
  bos.reserve(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    bos.push_back(target->create(4096));
    std::memset(bos.back().cpu().data(), static_cast<int>(1 + i % 255), 4096);
    std::memcpy(bos.back().cpu().data(), &i, sizeof i);
  }
  CopyLaneOptions options;
  options.chunk_bytes = kMiB;
  options.slots = 4;
  round_trip(bos, options);
  EXPECT_EQ(last->stats.submissions, 40U) << "one per chunk";
  EXPECT_LE(last->stats.live_bos_peak, 4U * 258U) << "a few chunks' worth";
}

TEST_F(SdmaCopyTest, ABoLargerThanTheArena) {
  std::vector<TargetBo> bos;
  bos.push_back(target->create(4096));
  bos.push_back(target->create(64 * kMiB));
  bos.push_back(target->create(8192));
  Rng rng(7);
  for (const TargetBo& bo : bos) rng.fill(bo.cpu());
  CopyLaneOptions options;
  options.chunk_bytes = 2 * kMiB;
  options.slots = 3;
  round_trip(bos, options);
  EXPECT_EQ(last->stats.submissions, 33U);
  EXPECT_LE(last->stats.pinned_bytes, 3 * 2 * kMiB + 64 * kKiB);
}

TEST_F(SdmaCopyTest, HolesAreFilledOnTheGpu) {
  std::vector<TargetBo> bos;
  bos.push_back(target->create(kMiB));
  std::memset(bos[0].cpu().data(), 0, kMiB);
  // Unit 3 of the file has data; the unit of the file's begin has the header.
  std::memset(bos[0].cpu().data() + 3 * kZeroUnitBytes, 0x77, 100);
  CopyLaneOptions options;
  options.chunk_bytes = 512 * kKiB;
  round_trip(bos, options);
  EXPECT_EQ(last->stats.copied_bytes, 2 * kZeroUnitBytes - kHeaderBytes);
  EXPECT_EQ(last->stats.filled_bytes, kMiB - last->stats.copied_bytes);
}

TEST_F(SdmaCopyTest, AllZeroBosBecomeFillsOnly) {
  std::vector<TargetBo> bos;
  for (int i = 0; i < 20; ++i) bos.push_back(target->create(5 * 4096));
  fill_all(bos, std::byte{0});
  CopyLaneOptions options;
  options.chunk_bytes = 64 * kKiB;
  round_trip(bos, options);
  EXPECT_EQ(last->stats.copied_bytes, kZeroUnitBytes - kHeaderBytes) << "only the unit with the header";
}

TEST_F(SdmaCopyTest, BytesBesideABoAreLeftAlone) {
  std::vector<TargetBo> bos;
  for (int i = 0; i < 30; ++i) bos.push_back(target->create(4096));
  Rng rng(11);
  for (const TargetBo& bo : bos) rng.fill(bo.cpu());
  // Every second one is restored; its neighbours in memory keep what they hold.
  std::vector<TargetBo> restored;
  std::vector<TargetBo> neighbours;
  for (std::size_t i = 0; i < bos.size(); ++i)
    (i % 2 == 0 ? restored : neighbours).push_back(std::move(bos[i]));
  const Bytes before = serial_image(neighbours);
  round_trip(restored, {});
  EXPECT_TRUE(serial_image(neighbours) == before);
}

TEST_F(SdmaCopyTest, OneBoTwice) {
  const TargetBo bo = target->create(16 * 4096);
  Rng rng(3);
  rng.fill(bo.cpu());
  const std::array<std::uint64_t, 2> sizes{bo.cpu().size(), bo.cpu().size()};
  const ImageLayout layout = std::move(ImageLayout::make(sizes, 256 * kKiB)).value();
  std::vector<UniqueFd> dmabufs;
  for (int i = 0; i < 2; ++i) dmabufs.push_back(target->dmabuf(bo));
  LaneMemory memory(layout.chunk_bytes(), 2);
  auto reactor = test::make_reactor_of(ReactorKind::Threads, memory.entries());
  {
    auto copy = SdmaCopy::make(*device, Direction::Dump, layout, std::move(dmabufs), memory.arena,
                               memory.slots, *reactor);
    ASSERT_TRUE(copy.ok()) << copy.error().what;
    Bytes image;
    MemoryStore store(Direction::Dump, layout, *reactor, image, true);
    std::array<Stage*, 2> route{copy->get(), &store};
    const auto ran = Pipeline(layout, memory.slots, route, *reactor).run();
    ASSERT_TRUE(ran.ok()) << ran.error().what;
    EXPECT_EQ(std::memcmp(image.data() + 8, bo.cpu().data(), bo.cpu().size()), 0);
    EXPECT_EQ(std::memcmp(image.data() + 8 + bo.cpu().size(), bo.cpu().data(), bo.cpu().size()), 0);
  }
  EXPECT_EQ(handles_of_others(kFirstNode, *target), 0U);
}

// The checksum stage finishes chunks in any order: a BO's last piece may come first.
TEST_F(SdmaCopyTest, ChunksInAnyOrder) {
  std::vector<TargetBo> bos;
  for (int i = 0; i < 6; ++i) bos.push_back(target->create(40 * 4096));
  Rng rng(5);
  for (const TargetBo& bo : bos) rng.fill(bo.cpu());
  const Bytes image = serial_image(bos);
  fill_all(bos, std::byte{0xEE});

  const std::vector<std::uint64_t> sizes(bos.size(), bos[0].cpu().size());
  const ImageLayout layout = std::move(ImageLayout::make(sizes, 64 * kKiB)).value();
  std::vector<UniqueFd> dmabufs;
  for (const TargetBo& bo : bos) dmabufs.push_back(target->dmabuf(bo));
  const auto chunks = static_cast<std::uint32_t>(layout.chunk_count());
  LaneMemory memory(layout.chunk_bytes(), chunks);  // every chunk has a slot
  auto reactor = test::make_reactor_of(ReactorKind::Threads, memory.entries());
  auto copy = SdmaCopy::make(*device, Direction::Restore, layout, std::move(dmabufs), memory.arena,
                             memory.slots, *reactor);
  ASSERT_TRUE(copy.ok()) << copy.error().what;
  std::vector<std::uint32_t> order(chunks);
  std::iota(order.begin(), order.end(), 0U);
  for (std::size_t i = order.size(); i-- > 1;) std::swap(order[i], order[rng.between(0, i)]);
  for (const std::uint32_t chunk : order) {
    Slot& slot = memory.slots[chunk];
    slot.chunk = layout.chunk(chunk);
    slot.zero_units.assign(1, false);
    slot.ops[0] = Op{&slot, 0, false};
    std::memcpy(slot.buffer.data(), image.data() + slot.chunk.file_offset, slot.chunk.length);
    const auto started = (*copy)->submit(slot);
    ASSERT_TRUE(started.ok()) << started.error().what;
    ASSERT_EQ(*started, Submit::Started);
  }
  while (reactor->in_flight() > 0) {
    std::array<Completion, 8> completions;
    const auto count = reactor->wait(completions);
    ASSERT_TRUE(count.ok());
    for (std::size_t i = 0; i < *count; ++i) {
      Op& op = *completions[i].op;
      const auto progress = (*copy)->advance(*op.slot, op, completions[i].result);
      ASSERT_TRUE(progress.ok()) << progress.error().what;
      EXPECT_EQ(*progress, Progress::Done);
    }
  }
  EXPECT_TRUE((*copy)->finish().ok());
  EXPECT_TRUE(serial_image(bos) == image);
}

TEST_F(SdmaCopyTest, FinishTellsWhatIsMissing) {
  const TargetBo bo = target->create(4096);
  const std::array<std::uint64_t, 1> sizes{4096};
  const ImageLayout layout = std::move(ImageLayout::make(sizes, 64 * kKiB)).value();
  std::vector<UniqueFd> dmabufs;
  dmabufs.push_back(target->dmabuf(bo));
  LaneMemory memory(layout.chunk_bytes(), 1);
  auto reactor = test::make_reactor_of(ReactorKind::Threads, memory.entries());
  auto copy = SdmaCopy::make(*device, Direction::Dump, layout, std::move(dmabufs), memory.arena, memory.slots,
                             *reactor);
  ASSERT_TRUE(copy.ok());
  const auto finished = (*copy)->finish();
  ASSERT_FALSE(finished.ok());
  EXPECT_EQ(finished.error().err, EIO);
}

TEST_F(SdmaCopyTest, EachBoNeedsItsDmabuf) {
  const std::array<std::uint64_t, 1> sizes{4096};
  const ImageLayout layout = std::move(ImageLayout::make(sizes, 64 * kKiB)).value();
  LaneMemory memory(layout.chunk_bytes(), 1);
  auto reactor = test::make_reactor_of(ReactorKind::Threads, memory.entries());
  const auto copy =
      SdmaCopy::make(*device, Direction::Dump, layout, {}, memory.arena, memory.slots, *reactor);
  ASSERT_FALSE(copy.ok());
  EXPECT_EQ(copy.error().err, EINVAL);
}

// The record of a BO says more than its dma-buf holds: named, and nothing of it is copied.
TEST_F(SdmaCopyTest, ADmabufThatIsTooSmallIsNamed) {
  std::vector<TargetBo> bos;
  bos.push_back(target->create(4096));
  bos.push_back(target->create(4096));
  const std::array<std::uint64_t, 2> sizes{4096, 3 * 4096};
  const ImageLayout layout = std::move(ImageLayout::make(sizes, 64 * kKiB)).value();
  std::vector<UniqueFd> dmabufs;
  for (std::size_t i = 0; i < 2; ++i) dmabufs.push_back(target->dmabuf(bos[i]));
  LaneMemory memory(layout.chunk_bytes(), 1);
  auto reactor = test::make_reactor_of(ReactorKind::Threads, memory.entries());
  {
    auto copy = SdmaCopy::make(*device, Direction::Dump, layout, std::move(dmabufs), memory.arena,
                               memory.slots, *reactor);
    ASSERT_TRUE(copy.ok());
    std::array<Stage*, 1> route{copy->get()};
    const auto ran = Pipeline(layout, memory.slots, route, *reactor).run();
    ASSERT_FALSE(ran.ok());
    EXPECT_EQ(ran.error().err, EINVAL);
    EXPECT_NE(ran.error().what.find("BO 1 (12288 bytes)"), std::string::npos) << ran.error().what;
    EXPECT_FALSE(memory.arena.abandoned());
  }
  EXPECT_EQ(handles_of_others(kFirstNode, *target), 0U);
}

TEST_F(SdmaCopyTest, TwoLanesOfOneGpuShareADevice) {
  const Device again = std::move(Device::open(kFirstMinor)).value();
  std::vector<TargetBo> bos;
  bos.push_back(target->create(kMiB));
  Rng rng(9);
  rng.fill(bos[0].cpu());
  const Bytes expected = serial_image(bos);
  std::array<Bytes, 2> images;
  const auto sizes = std::array<std::uint64_t, 1>{kMiB};
  const ImageLayout layout = std::move(ImageLayout::make(sizes, 64 * kKiB)).value();
  LaneMemory first_memory(layout.chunk_bytes(), 2);
  auto first_reactor = test::make_reactor_of(ReactorKind::Threads, first_memory.entries());
  std::vector<UniqueFd> dmabufs;
  dmabufs.push_back(target->dmabuf(bos[0]));
  auto first = SdmaCopy::make(*device, Direction::Dump, layout, std::move(dmabufs), first_memory.arena,
                              first_memory.slots, *first_reactor);
  ASSERT_TRUE(first.ok());
  // The second lane runs whole while the first is set up.
  const CopyOutcome second = run_copy(again, Direction::Dump, *target, bos, images[1]);
  ASSERT_TRUE(second.result.ok()) << second.result.error().what;
  MemoryStore store(Direction::Dump, layout, *first_reactor, images[0], true);
  std::array<Stage*, 2> route{first->get(), &store};
  const auto ran = Pipeline(layout, first_memory.slots, route, *first_reactor).run();
  ASSERT_TRUE(ran.ok()) << ran.error().what;
  EXPECT_TRUE(images[0] == expected && images[1] == expected);
}

// BOs of one GPU copied by another: the import is a foreign one, the bytes are the same.
TEST_F(SdmaCopyTest, TheOtherGpuMayCopyToo) {
  const Device second = std::move(Device::open(kSecondMinor)).value();
  std::vector<TargetBo> bos;
  bos.push_back(target->create(256 * kKiB, Domain::Gtt));
  Rng rng(13);
  rng.fill(bos[0].cpu());
  Bytes image;
  const CopyOutcome outcome = run_copy(second, Direction::Dump, *target, bos, image);
  ASSERT_TRUE(outcome.result.ok()) << outcome.result.error().what;
  EXPECT_TRUE(image == serial_image(bos));
}

}  // namespace
}  // namespace sluice::drm
