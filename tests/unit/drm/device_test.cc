// SPDX-License-Identifier: MIT
// Devices, BOs, maps, contexts and fences, through the real libdrm_amdgpu on a virtual machine of two GPUs.
#include "drm/device.h"

#include <gtest/gtest.h>
#include <libdrm/amdgpu_drm.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "base/units.h"
#include "control.h"
#include "drm/target_file.h"
#include "pipeline/arena.h"
#include "support/process_state.h"
#include "support/refuse_system_call.h"
#include "target.h"

namespace sluice::drm {
namespace {

using test::open_fds;

class OnTwoGpus : public testing::Test {
 protected:
  void SetUp() override {
    if (!on_virtual_machine()) GTEST_SKIP() << "needs a virtual machine: run it by vamdgpu-run";
  }

  static Device open(std::uint32_t minor) {
    auto device = Device::open(minor);
    EXPECT_TRUE(device.ok()) << device.error().what;
    return std::move(device).value();
  }
};

TEST_F(OnTwoGpus, TwoNodesAreTwoDevices) {
  const Device first = open(kFirstMinor);
  const Device second = open(kSecondMinor);
  EXPECT_NE(first.state()->handle, second.state()->handle);
  EXPECT_EQ(first.path(), kFirstNode);
  EXPECT_EQ(first.family(), 141U);
  EXPECT_EQ(first.generation(), SdmaGeneration::V4);
  EXPECT_EQ(std::vector(first.rings().begin(), first.rings().end()), (std::vector{0U, 1U}));
  EXPECT_EQ(first.ib_alignment_bytes(), 256U);
}

TEST_F(OnTwoGpus, OpeningTwiceIsOneDevice) {
  const Device first = open(kFirstMinor);
  const Device again = open(kFirstMinor);
  EXPECT_EQ(first.state()->handle, again.state()->handle);
}

// One lane ends while another begins: libdrm's own list of devices does not stand that.
TEST_F(OnTwoGpus, ThreadsMayOpenAndCloseOneDeviceAtOnce) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int round = 0; round < 100; ++round) EXPECT_TRUE(Device::open(kFirstMinor).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(OnTwoGpus, AClosedDeviceLeavesNoDescriptor) {
  const std::size_t before = open_fds();
  { const Device device = open(kFirstMinor); }
  EXPECT_EQ(open_fds(), before);
}

TEST_F(OnTwoGpus, WhatIsNoGpuIsRefusedByName) {
  const auto missing = Device::open(200);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().err, ENOENT);
  EXPECT_NE(missing.error().what.find("renderD200"), std::string::npos);
}

TEST_F(OnTwoGpus, AnImportTakesTheDescriptorAndTheSize) {
  const Device device = open(kFirstMinor);
  const TargetFile target;
  const TargetBo bo = target.create(64 * kKiB);
  const std::size_t before = open_fds();
  {
    UniqueFd dmabuf = target.dmabuf(bo);
    auto imported = Bo::import(device, std::move(dmabuf));
    ASSERT_TRUE(imported.ok()) << imported.error().what;
    EXPECT_EQ(open_fds(), before);
    EXPECT_EQ(imported->bytes(), 64 * kKiB);
    EXPECT_GT(imported->handle(), 0U);
    EXPECT_TRUE(imported->cpu().empty());
    EXPECT_EQ(handles_of_others(kFirstNode, target), 1U);
  }
  EXPECT_EQ(handles_of_others(kFirstNode, target), 0U);
}

TEST_F(OnTwoGpus, ImportedTwiceLivesUntilBothAreGone) {
  const Device device = open(kFirstMinor);
  const TargetFile target;
  const TargetBo bo = target.create(4 * kKiB);
  auto first = Bo::import(device, target.dmabuf(bo));
  {
    auto second = Bo::import(device, target.dmabuf(bo));
    ASSERT_TRUE(first.ok() && second.ok());
    EXPECT_EQ(first->handle(), second->handle());
    auto a = VaMapping::map(*first, GpuAccess::Read);
    auto b = VaMapping::map(*second, GpuAccess::Read);
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_NE(a->address(), b->address());
  }
  EXPECT_EQ(handles_of_others(kFirstNode, target), 1U);
  EXPECT_TRUE(VaMapping::map(*first, GpuAccess::Read).ok());
}

TEST_F(OnTwoGpus, WhatIsNoDmabufIsNoBo) {
  const Device device = open(kFirstMinor);
  const auto closed = Bo::import(device, UniqueFd());
  ASSERT_FALSE(closed.ok());
  EXPECT_EQ(closed.error().err, EBADF);
  const auto file = Bo::import(device, UniqueFd(::memfd_create("no dma-buf", MFD_CLOEXEC)));
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().err, EINVAL);
}

TEST_F(OnTwoGpus, MapsDoNotOverlapAndAreGivenBack) {
  const Device device = open(kFirstMinor);
  auto bo = Bo::allocate_gtt(device, 3 * kMiB);
  ASSERT_TRUE(bo.ok()) << bo.error().what;
  EXPECT_EQ(bo->cpu().size(), 3 * kMiB);
  std::uint64_t first_address = 0;
  {
    auto first = VaMapping::map(*bo, GpuAccess::ReadWrite);
    auto second = VaMapping::map(*bo, GpuAccess::Read);
    ASSERT_TRUE(first.ok() && second.ok());
    first_address = first->address();
    EXPECT_TRUE(first->address() + 3 * kMiB <= second->address() ||
                second->address() + 3 * kMiB <= first->address());
    EXPECT_TRUE(is_aligned(first->address(), 2 * kMiB)) << "large fragments";
  }
  auto again = VaMapping::map(*bo, GpuAccess::Read);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->address(), first_address);
}

TEST_F(OnTwoGpus, FileBackedMemoryIsNoStaging) {
  const Device device = open(kFirstMinor);
  const UniqueFd file(::memfd_create("file", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(file.get(), 64 * kKiB), 0);
  void* const memory = ::mmap(nullptr, 64 * kKiB, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  ASSERT_NE(memory, MAP_FAILED);
  const auto bo = Bo::from_user_memory(device, {static_cast<std::byte*>(memory), 64 * kKiB});
  ASSERT_FALSE(bo.ok());
  EXPECT_EQ(bo.error().err, EPERM);
  (void)::munmap(memory, 64 * kKiB);
}

// A whole copy by hand: arena -> GTT BO.
class OneJob : public OnTwoGpus {
 protected:
  void SetUp() override {
    OnTwoGpus::SetUp();
    if (IsSkipped()) return;
    device.emplace(open(kFirstMinor));
    arena.emplace(std::move(StagingArena::make(64 * kKiB, 1, -1)).value());
    source = std::move(Bo::from_user_memory(*device, arena->bytes())).value();
    source_map = std::move(VaMapping::map(source, GpuAccess::Read)).value();
    target = std::move(Bo::allocate_gtt(*device, 64 * kKiB)).value();
    target_map = std::move(VaMapping::map(target, GpuAccess::ReadWrite)).value();
    ib = std::move(Bo::allocate_gtt(*device, 4 * kKiB)).value();
    ib_map = std::move(VaMapping::map(ib, GpuAccess::Execute)).value();
    context = std::move(Context::make(*device)).value();
    for (std::size_t i = 0; i < arena->bytes().size(); ++i)
      arena->bytes()[i] = static_cast<std::byte>(i * 7 + i / 251);
  }

  Result<Job> copy(std::uint64_t from, std::uint64_t to, std::uint64_t bytes, std::uint32_t ring = 0) {
    IbBuilder builder(device->generation(), {reinterpret_cast<std::uint32_t*>(ib.cpu().data()), 1024}, 64);
    builder.copy(from, to, bytes);
    const auto segments = builder.finish();
    BoList bos(3);
    bos.add(source);
    bos.add(target);
    bos.add(ib);
    const IbRange range{ib_map.address(), segments[0].dwords * 4};
    return context.submit(ring, bos, {&range, 1});
  }

  std::optional<Device> device;
  std::optional<StagingArena> arena;
  Bo source, target, ib;
  VaMapping source_map, target_map, ib_map;
  Context context;
};

TEST_F(OneJob, CopiesBytesAndSignalsItsFence) {
  std::fill(target.cpu().begin(), target.cpu().end(), std::byte{0x11});
  auto job = copy(source_map.address() + 3, target_map.address() + 8, 5000);
  ASSERT_TRUE(job.ok()) << job.error().what;
  auto fence = context.fence(*job);
  ASSERT_TRUE(fence.ok()) << fence.error().what;
  pollfd wait{fence->get(), POLLIN, 0};
  ASSERT_EQ(::poll(&wait, 1, -1), 1);
  const auto state = fence_state(fence->get());
  ASSERT_TRUE(state.ok()) << state.error().what;
  EXPECT_TRUE(*state);
  EXPECT_EQ(std::memcmp(target.cpu().data() + 8, arena->bytes().data() + 3, 5000), 0);
  EXPECT_EQ(target.cpu()[7], std::byte{0x11});
  EXPECT_EQ(target.cpu()[5008], std::byte{0x11}) << "not one byte more than asked for";
}

TEST_F(OneJob, CanBeWaitedForWithoutAFence) {
  auto job = copy(source_map.address(), target_map.address(), 4096, 1);
  ASSERT_TRUE(job.ok()) << job.error().what;
  const auto ended = context.wait(*job, std::chrono::seconds(60));
  ASSERT_TRUE(ended.ok()) << ended.error().what;
  EXPECT_TRUE(*ended);
  EXPECT_EQ(std::memcmp(target.cpu().data(), arena->bytes().data(), 4096), 0);
}

TEST_F(OneJob, SeveralIbsAreOneJob) {
  const std::span<std::uint32_t> memory(reinterpret_cast<std::uint32_t*>(ib.cpu().data()), 1024);
  IbBuilder builder(device->generation(), memory, 64, 8);  // one packet each
  for (std::uint64_t at = 0; at < 64 * kKiB; at += 16 * kKiB) {
    builder.copy(source_map.address() + at, target_map.address() + at, 16 * kKiB);
  }
  const auto segments = builder.finish();
  ASSERT_EQ(segments.size(), 4U);
  std::vector<IbRange> ranges;
  for (const IbSegment& segment : segments) {
    ranges.push_back({ib_map.address() + segment.offset * 4, segment.dwords * 4});
  }
  BoList bos(3);
  bos.add(source);
  bos.add(target);
  bos.add(ib);
  auto job = context.submit(0, bos, ranges);
  ASSERT_TRUE(job.ok()) << job.error().what;
  const auto ended = context.wait(*job, std::chrono::seconds(60));
  ASSERT_TRUE(ended.ok() && *ended);
  EXPECT_TRUE(std::equal(arena->bytes().begin(), arena->bytes().end(), target.cpu().begin()));
}

TEST_F(OneJob, ACopyBeyondTheMapEndsTheFenceWithAnError) {
  auto job = copy(source_map.address(), target_map.address() + 64 * kKiB, 4096);
  ASSERT_TRUE(job.ok()) << job.error().what;
  auto fence = context.fence(*job);
  ASSERT_TRUE(fence.ok());
  pollfd wait{fence->get(), POLLIN, 0};
  ASSERT_EQ(::poll(&wait, 1, -1), 1) << "signalled is not succeeded";
  EXPECT_FALSE(fence_state(fence->get()).ok());
}

TEST_F(OneJob, ARingTheDeviceLacksIsRefused) {
  const auto job = copy(source_map.address(), target_map.address(), 4096, 2);
  ASSERT_FALSE(job.ok());
  EXPECT_EQ(job.error().err, EINVAL);
}

// ---- files of the target
// ---------------------------------------------------------------------------------------

TEST_F(OnTwoGpus, TellsAmdgpuFilesFromOthers) {
  const TargetFile target;
  EXPECT_TRUE(is_amdgpu(target.fd()));
  EXPECT_FALSE(is_amdgpu(STDERR_FILENO));
  EXPECT_FALSE(is_amdgpu(-1));
  EXPECT_EQ(*driver_name(target.fd()), "amdgpu");
}

TEST_F(OnTwoGpus, ListsEveryHandleOfAFile) {
  const TargetFile target;
  std::vector<TargetBo> bos;
  for (std::uint64_t i = 1; i <= 100; ++i) {
    bos.push_back(target.create(i * 4096, i % 2 == 0 ? Domain::Vram : Domain::Gtt));
  }
  const auto handles = list_handles(target.fd());
  ASSERT_TRUE(handles.ok()) << handles.error().what;
  ASSERT_TRUE(handles->has_value()) << "this machine's kernel lists handles";
  ASSERT_EQ((*handles)->size(), 100U) << "more than the first guess";
  for (std::size_t i = 0; i < 100; ++i) {
    const GemHandle& handle = (**handles)[i];
    const auto bo =
        std::find_if(bos.begin(), bos.end(), [&](const TargetBo& b) { return b.handle() == handle.handle; });
    ASSERT_NE(bo, bos.end());
    EXPECT_EQ(handle.bytes, bo->cpu().size());
    EXPECT_FALSE(handle.imported);
  }
}

TEST_F(OnTwoGpus, AFileWithoutBosListsNothing) {
  const TargetFile target;
  const auto handles = list_handles(target.fd());
  ASSERT_TRUE(handles.ok() && handles->has_value());
  EXPECT_TRUE((*handles)->empty());
  EXPECT_FALSE(list_handles(-1).ok());
}

TEST_F(OnTwoGpus, ABoMappedNowhereHasNoMappings) {
  const TargetFile target;
  const TargetBo bo = target.create(4096);
  const auto mappings = mappings_of(target.fd(), bo.handle());
  ASSERT_TRUE(mappings.ok()) << mappings.error().what;
  ASSERT_TRUE(mappings->has_value());
  EXPECT_TRUE((*mappings)->empty());
}

TEST_F(OnTwoGpus, EveryMappingOfABoIsReported) {
  const TargetFile target;
  const TargetBo bo = target.create(8 * kKiB);
  constexpr std::uint64_t kBase = std::uint64_t{1} << 40;
  constexpr std::size_t kCount = 70;  // more than the first guess
  for (std::size_t i = 0; i < kCount; ++i) {
    drm_amdgpu_gem_va va{};
    va.handle = bo.handle();
    va.operation = AMDGPU_VA_OP_MAP;
    va.flags = AMDGPU_VM_PAGE_READABLE;
    va.va_address = kBase + i * kMiB;
    va.offset_in_bo = 4 * kKiB;
    va.map_size = 4 * kKiB;
    ASSERT_EQ(::ioctl(target.fd(), DRM_IOCTL_AMDGPU_GEM_VA, &va), 0);
  }
  const auto mappings = mappings_of(target.fd(), bo.handle());
  ASSERT_TRUE(mappings.ok()) << mappings.error().what;
  ASSERT_TRUE(mappings->has_value());
  std::set<std::uint64_t> addresses;
  for (const GemMapping& mapping : **mappings) {
    addresses.insert(mapping.address);
    EXPECT_EQ(mapping.bytes, 4 * kKiB);
    EXPECT_EQ(mapping.bo_offset, 4 * kKiB);
  }
  EXPECT_EQ(addresses.size(), kCount);
  EXPECT_EQ(*addresses.begin(), kBase);
}

TEST_F(OnTwoGpus, ALossOfItsVramIsCounted) {
  const TargetFile target;
  const Device device = open(kFirstMinor);
  const auto control = vamdgpu::Control::open(std::getenv("VAMDGPU_DIR"));
  const std::uint32_t before = device.vram_losses().value();
  control->lose_vram(0);
  EXPECT_EQ(device.vram_losses().value(), before + 1);
  EXPECT_EQ(vram_losses(target.fd()).value(), before + 1);
  EXPECT_EQ(open(kSecondMinor).vram_losses().value(), 0U);
  control->inject({vamdgpu::On::Render, 0x45, AMDGPU_INFO_VRAM_LOST_COUNTER, EIO, 0, 2, false});
  EXPECT_EQ(device.vram_losses().error().err, EIO);
  EXPECT_EQ(vram_losses(target.fd()).error().err, EIO);
  control->clear_faults();
}

TEST_F(OnTwoGpus, AnOldKernelCannotSay) {
  const TargetFile target;
  const TargetBo bo = target.create(4096);
  const auto control = vamdgpu::Control::open(std::getenv("VAMDGPU_DIR"));
  control->inject({vamdgpu::On::Render, 0x59, -1, EINVAL, 0, 1, false});
  control->inject({vamdgpu::On::Render, 0x50, -1, EINVAL, 0, 1, false});
  const auto handles = list_handles(target.fd());
  ASSERT_TRUE(handles.ok()) << handles.error().what;
  EXPECT_FALSE(handles->has_value());
  const auto mappings = mappings_of(target.fd(), bo.handle());
  ASSERT_TRUE(mappings.ok()) << mappings.error().what;
  EXPECT_FALSE(mappings->has_value());
  control->clear_faults();
}

TEST_F(OnTwoGpus, AListThatGrowsMeanwhileIsAskedForAgain) {
  const TargetFile target;
  const TargetBo bo = target.create(4096);
  const auto control = vamdgpu::Control::open(std::getenv("VAMDGPU_DIR"));
  control->inject({vamdgpu::On::Render, 0x59, -1, EAGAIN, 0, 3, false});
  const auto handles = list_handles(target.fd());
  ASSERT_TRUE(handles.ok()) << handles.error().what;
  EXPECT_EQ((*handles)->size(), 1U);
  control->clear_faults();
}

TEST_F(OnTwoGpus, ExportOfAnUnknownHandleIsRefused) {
  const TargetFile target;
  const auto dmabuf = export_dmabuf(target.fd(), 4711);
  ASSERT_FALSE(dmabuf.ok());
  EXPECT_EQ(dmabuf.error().err, ENOENT);
}

TEST_F(OnTwoGpus, OnlyTheFileThatHoldsABoMayMapIt) {
  const TargetFile owner;
  const TargetFile stranger;
  const TargetBo bo = owner.create(4096);
  EXPECT_EQ(*may_map(owner.fd(), bo.map_offset()), MapAccess::Allowed);
  EXPECT_EQ(*may_map(stranger.fd(), bo.map_offset()), MapAccess::Denied);
  EXPECT_EQ(*may_map(owner.fd(), std::uint64_t{1} << 45), MapAccess::UnknownOffset);
  EXPECT_FALSE(may_map(-1, bo.map_offset()).ok());
  // A BO that no CPU may map is nobody's secret.
  std::thread([&] {
    if (!test::refuse_system_call(SYS_mmap, EPERM)) return;
    EXPECT_EQ(*may_map(owner.fd(), bo.map_offset()), MapAccess::Allowed);
  }).join();
}

}  // namespace
}  // namespace sluice::drm
