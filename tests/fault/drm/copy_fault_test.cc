// SPDX-License-Identifier: MIT
// The copy stage when the driver says no: every ioctl refused once, fences that fail or never come, staging
// that cannot be registered. Never a wrong byte called success, nothing left behind but what must stay.
#include <gtest/gtest.h>
#include <linux/sync_file.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "base/units.h"
#include "copy_lane.h"
#include "ioctl_fault.h"
#include "support/process_state.h"
#include "support/rng.h"
#include "target.h"

namespace sluice::drm {
namespace {

using test::open_fds;
using test::Rng;

class CopyFaultTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!on_virtual_machine()) GTEST_SKIP() << "needs a virtual machine: run it by vamdgpu-run";
    target.emplace();
    auto opened = Device::open(kFirstMinor);
    ASSERT_TRUE(opened.ok()) << opened.error().what;
    device.emplace(std::move(opened).value());
    Rng rng(17);
    for (const std::uint64_t pages : {1, 3, 60, 2, 2, 17, 40}) {
      bos.push_back(target->create(pages * 4096));
      rng.fill(bos.back().cpu());
    }
    std::memset(bos[2].cpu().data(), 0, bos[2].cpu().size() / 2);
    expected = serial_image(bos);
    options.chunk_bytes = 64 * kKiB;
    options.slots = 3;
  }

  CopyOutcome run(Direction direction) {
    if (direction == Direction::Dump) {
      image.clear();
    } else {
      image = expected;
      for (const TargetBo& bo : bos) std::fill(bo.cpu().begin(), bo.cpu().end(), std::byte{0xDB});
    }
    return run_copy(*device, direction, *target, bos, image, options);
  }

  // What success must mean.
  bool right(Direction direction) const {
    return direction == Direction::Dump ? image == expected : serial_image(bos) == expected;
  }

  std::optional<TargetFile> target;
  std::optional<Device> device;
  std::vector<TargetBo> bos;
  Bytes expected;
  Bytes image;
  CopyLaneOptions options;
};

class EveryIoctl : public CopyFaultTest, public testing::WithParamInterface<Direction> {};
INSTANTIATE_TEST_SUITE_P(BothWays, EveryIoctl, testing::Values(Direction::Dump, Direction::Restore),
                         [](const auto& param) {
                           return param.param == Direction::Dump ? "Dump" : "Restore";
                         });

TEST_P(EveryIoctl, FailsOnce) {
  const std::size_t fds = open_fds();
  std::set<unsigned> failed_kinds;
  bool clean = false;
  for (int victim = 0; !clean; ++victim) {
    ASSERT_LT(victim, 2000);
    SCOPED_TRACE("ioctl " + std::to_string(victim));
    int count = 0;
    std::optional<unsigned> hit;
    CopyOutcome outcome;
    {
      const IoctlPlan plan(target->fd(), [&](char type, unsigned number, void*) {
        if (count++ != victim) return 0;
        hit = number;
        if (type == 'd') failed_kinds.insert(number);
        return ENOMEM;
      });
      outcome = run(GetParam());
    }
    clean = !hit;
    if (outcome.result.ok()) {
      EXPECT_TRUE(right(GetParam())) << "success, but wrong bytes";
    } else {
      EXPECT_TRUE(hit) << outcome.result.error().what;
      EXPECT_EQ(outcome.result.error().err, ENOMEM) << outcome.result.error().what;
      EXPECT_NE(outcome.result.error().what.find(kFirstNode), std::string::npos)
          << outcome.result.error().what;
    }
    EXPECT_FALSE(outcome.abandoned) << "every job ended";
    EXPECT_EQ(open_fds(), fds);
    // A refused close leaves its handle: nobody can do better.
    if (hit == kGemClose) {
      device.reset();  // closes the file and with it the handle
      device.emplace(std::move(Device::open(kFirstMinor)).value());
    }
    EXPECT_EQ(handles_of_others(kFirstNode, *target), 0U);
  }
  for (const unsigned number :
       {kGemClose, kGemCreate, kContext, kSubmit, kGemVa, kGemUserptr, kFenceToHandle}) {
    EXPECT_TRUE(failed_kinds.contains(number)) << "ioctl number " << number << " was never met";
  }
}

TEST_F(CopyFaultTest, EveryIoctlOfOpeningADeviceFailsOnce) {
  device.reset();
  const std::size_t fds = open_fds();
  bool clean = false;
  for (int victim = 0; !clean; ++victim) {
    int count = 0;
    bool hit = false;
    bool asked_by_us = true;
    {
      const IoctlPlan plan(target->fd(), [&](char, unsigned number, void*) {
        // libdrm itself cannot do without an answer to VERSION; it is asked before libdrm sees the file.
        if (number == kVersion && !std::exchange(asked_by_us, false)) return 0;
        if (count++ != victim) return 0;
        hit = true;
        return EIO;
      });
      const auto opened = Device::open(kFirstMinor);
      if (!opened.ok()) {
        EXPECT_TRUE(hit);
        EXPECT_NE(opened.error().what.find("/dev/dri/renderD128"), std::string::npos) << opened.error().what;
      }
    }
    clean = !hit;
    EXPECT_EQ(open_fds(), fds) << "ioctl " << victim;
  }
}

// ---- staging
// ---------------------------------------------------------------------------------------------------

struct StagingCase {
  int err;
  int failures;  // of GEM_USERPTR, from the first on
  int attempts;  // expected
  Staging staging;
};

class StagingFault : public CopyFaultTest, public testing::WithParamInterface<StagingCase> {};
INSTANTIATE_TEST_SUITE_P(Userptr, StagingFault,
                         testing::Values(StagingCase{EBUSY, 2, 3, Staging::Userptr},
                                         StagingCase{EFAULT, 1, 2, Staging::Userptr},
                                         StagingCase{EBUSY, 1000, 6, Staging::CpuCopy},
                                         StagingCase{EFAULT, 1000, 6, Staging::CpuCopy},
                                         StagingCase{EPERM, 1000, 1, Staging::CpuCopy}));

TEST_P(StagingFault, IsRetriedOrTheCpuCopies) {
  const std::size_t fds = open_fds();
  for (const Direction direction : {Direction::Dump, Direction::Restore}) {
    for (const bool holes : {true, false}) {
      options.holes = holes;
      int attempts = 0;
      const IoctlPlan plan(target->fd(), [&](char, unsigned number, void*) {
        if (number != kGemUserptr) return 0;
        return attempts++ < GetParam().failures ? GetParam().err : 0;
      });
      const CopyOutcome outcome = run(direction);
      ASSERT_TRUE(outcome.result.ok()) << outcome.result.error().what;
      EXPECT_TRUE(right(direction));
      EXPECT_EQ(attempts, GetParam().attempts);
      EXPECT_EQ(outcome.staging, GetParam().staging);
      EXPECT_EQ(outcome.note.empty(), GetParam().staging == Staging::Userptr) << outcome.note;
      EXPECT_EQ(open_fds(), fds);
    }
  }
  EXPECT_EQ(handles_of_others(kFirstNode, *target), 0U);
}

TEST_F(CopyFaultTest, NeitherUserptrNorGttIsAnError) {
  const IoctlPlan plan(target->fd(), [&](char, unsigned number, void*) {
    return number == kGemUserptr || number == kGemCreate ? ENOMEM : 0;
  });
  const CopyOutcome outcome = run(Direction::Dump);
  ASSERT_FALSE(outcome.result.ok());
  EXPECT_EQ(outcome.result.error().err, ENOMEM);
}

// ---- fences
// ------------------------------------------------------------------------------------------------------

TEST_F(CopyFaultTest, AFailedFenceIsAnErrorThoughItPollsReadable) {
  const std::size_t fds = open_fds();
  for (const int err : {ETIME, ECANCELED, ENODATA}) {
    int fences = 0;
    const IoctlPlan plan(target->fd(), nullptr, [&](char type, unsigned number, void* args) {
      if (type != '>' || number != kFileInfo || fences++ != 4) return;
      static_cast<sync_file_info*>(args)->status = -err;
    });
    const CopyOutcome outcome = run(Direction::Dump);
    ASSERT_FALSE(outcome.result.ok()) << "five fences came";
    EXPECT_EQ(outcome.result.error().err, err);
    EXPECT_NE(outcome.result.error().what.find("BO "), std::string::npos) << outcome.result.error().what;
    EXPECT_NE(outcome.result.error().what.find("chunk "), std::string::npos) << outcome.result.error().what;
    EXPECT_FALSE(outcome.abandoned) << "the job ended";
    EXPECT_EQ(open_fds(), fds);
    EXPECT_EQ(handles_of_others(kFirstNode, *target), 0U);
  }
}

// ---- a reactor that does not do its part
// --------------------------------------------------------------------------

// Takes every poll and answers none.
class SilentReactor final : public Reactor {
 public:
  void read(Op&, int, std::span<std::byte>, std::uint64_t) override {}
  void write(Op&, int, std::span<const std::byte>, std::uint64_t) override {}
  void sync_data(Op&, int) override {}
  void poll_readable(Op& op, int, std::chrono::nanoseconds) override { op.in_flight = true; }
  void poll_writable(Op& op, int, std::chrono::nanoseconds) override { op.in_flight = true; }
  void post(Op& op, std::int32_t) override { op.in_flight = true; }
  Result<std::size_t> wait(std::span<Completion>) override { return make_error(EIO, "the ring broke"); }
  std::uint64_t now_ns() override { return 0; }
};

class BrokenReactor : public CopyFaultTest {
 protected:
  void SetUp() override {
    CopyFaultTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    std::vector<std::uint64_t> sizes;
    std::vector<UniqueFd> dmabufs;
    for (const TargetBo& bo : bos) {
      sizes.push_back(bo.cpu().size());
      dmabufs.push_back(target->dmabuf(bo));
    }
    layout.emplace(std::move(ImageLayout::make(sizes, options.chunk_bytes)).value());
    memory.emplace(options.chunk_bytes, 20);
    SdmaCopyOptions copy_options;
    copy_options.contexts = 1;
    copy_options.rings_per_context = 1;
    auto made = SdmaCopy::make(*device, Direction::Dump, *layout, std::move(dmabufs), memory->arena,
                               memory->slots, reactor, copy_options);
    ASSERT_TRUE(made.ok()) << made.error().what;
    copy = std::move(made).value();
    for (Slot& slot : memory->slots) {
      slot.chunk = layout->chunk(0);
      slot.ops[0] = Op{&slot, 0, false};
    }
  }

  bool is_right(const Slot& slot) const {
    return std::equal(slot.buffer.begin(),
                      slot.buffer.begin() + static_cast<std::ptrdiff_t>(slot.chunk.length),
                      expected.begin() + static_cast<std::ptrdiff_t>(slot.chunk.file_offset));
  }

  std::optional<ImageLayout> layout;
  std::optional<LaneMemory> memory;
  SilentReactor reactor;
  std::unique_ptr<SdmaCopy> copy;
};

// The ring broke: nobody waits for the job but the stage's destructor.
TEST_F(BrokenReactor, WhatIsInFlightEndsBeforeAnythingIsUnmapped) {
  ASSERT_TRUE(copy->submit(memory->slots[0]).ok());
  copy.reset();
  EXPECT_TRUE(is_right(memory->slots[0]));
  EXPECT_FALSE(memory->arena.abandoned());
  EXPECT_EQ(handles_of_others(kFirstNode, *target), 0U);
}

TEST_F(BrokenReactor, APollThatFailsOrWakesEarlyIsNotTheEndOfTheJob) {
  for (const int result : {-ENOMEM, 0}) {
    Slot& slot = memory->slots[result == 0 ? 0 : 1];
    slot.chunk = layout->chunk(result == 0 ? 0 : 1);
    ASSERT_TRUE(copy->submit(slot).ok());
    const auto progress = copy->advance(slot, slot.op(), result);
    ASSERT_TRUE(progress.ok()) << progress.error().what;
    EXPECT_EQ(*progress, Progress::Done);
    EXPECT_TRUE(is_right(slot));
  }
}

// The kernel would block the thread that queues more jobs than an entity holds.
TEST_F(BrokenReactor, RefusesWhatTheEntityCannotQueue) {
  memory->slots[0].chunk = layout->chunk(layout->chunk_count() - 1);  // the one that will end
  std::size_t started = 0;
  for (Slot& slot : memory->slots) {
    const auto answer = copy->submit(slot);
    ASSERT_TRUE(answer.ok()) << answer.error().what;
    if (*answer == Submit::Busy) break;
    ++started;
  }
  EXPECT_EQ(started, 16U);
  ASSERT_TRUE(copy->advance(memory->slots[0], memory->slots[0].op(), 0).ok());
  const auto answer = copy->submit(memory->slots[16]);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(*answer, Submit::Started);
}

TEST_F(BrokenReactor, TheEndIsWaitedForWhereItCannotBePolled) {
  const IoctlPlan plan(target->fd(),
                       [](char, unsigned number, void*) { return number == kFenceToHandle ? EMFILE : 0; });
  const auto started = copy->submit(memory->slots[0]);
  ASSERT_FALSE(started.ok());
  EXPECT_EQ(started.error().err, EMFILE);
  EXPECT_NE(started.error().what.find("sync_file"), std::string::npos) << started.error().what;
  EXPECT_TRUE(is_right(memory->slots[0])) << "the job ended before submit() returned";
  copy.reset();
  EXPECT_FALSE(memory->arena.abandoned());
}

}  // namespace
}  // namespace sluice::drm
