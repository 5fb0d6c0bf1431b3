// SPDX-License-Identifier: MIT
// Render nodes through the real libdrm_amdgpu: copies by SDMA, sharing by dma-buf, fences in all their forms,
// and what the virtual GPU refuses.
#include <liburing.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <xf86drm.h>

#include <thread>

#include "device_kit.h"

namespace vamdgpu::tests {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

class DrmDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    control_ = machine();
    ASSERT_NE(control_, nullptr) << "not on a virtual machine";
    before_ = control_->counts();
  }
  void TearDown() override {
    control_->clear_faults();
    control_->release_hung_fences();
    for (unsigned gpu = 0; gpu < control_->config().num_gpus; ++gpu) control_->set_engine_rate(gpu, 0);
    EXPECT_EQ(control_->counts(), before_) << "something was left behind";
  }
  std::unique_ptr<Control> control_;
  Counts before_;
};

void scribble(unsigned char* bytes, std::size_t size, unsigned seed) {
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<unsigned char>((i * 131 + seed) >> 3);
}

TEST_F(DrmDevice, CopiesBetweenUserMemoryAndVramAtAnyByte) {
  for (unsigned index = 0; index < control_->config().num_gpus; ++index) {
    Gpu gpu(*control_, index);
    ASSERT_TRUE(gpu.ok());
    Pages user(8 * kMiB);
    scribble(user.data(), user.size(), index);
    const Gpu::Memory vram = gpu.allocate(4 * kMiB, AMDGPU_GEM_DOMAIN_VRAM);
    const Gpu::Memory staging = gpu.user_memory(user.data(), user.size());
    ASSERT_NE(vram.bo, nullptr);
    ASSERT_NE(staging.bo, nullptr);
    EXPECT_EQ(gpu.run(Gpu::copy(staging.va + 8, vram.va, 4 * kMiB)), 0);
    EXPECT_EQ(gpu.run(Gpu::copy(vram.va + 1, staging.va + 4 * kMiB + 3, 12345)), 0);
    EXPECT_EQ(std::memcmp(user.data() + 4 * kMiB + 3, user.data() + 9, 12345), 0);
    void* map = nullptr;
    ASSERT_EQ(amdgpu_bo_cpu_map(vram.bo, &map), 0);
    EXPECT_EQ(std::memcmp(map, user.data() + 8, 4 * kMiB - 12360), 0);
    amdgpu_bo_cpu_unmap(vram.bo);
  }
}

TEST_F(DrmDevice, FillsWithADwordAndCopiesBetweenBos) {
  Gpu gpu(*control_, 0);
  ASSERT_TRUE(gpu.ok());
  const Gpu::Memory a = gpu.allocate(kMiB, AMDGPU_GEM_DOMAIN_VRAM),
                    b = gpu.allocate(kMiB, AMDGPU_GEM_DOMAIN_GTT);
  std::vector<std::uint32_t> packets = Gpu::fill(a.va, 0x01020304, kMiB);
  const std::vector<std::uint32_t> then = Gpu::copy(a.va, b.va, kMiB);
  packets.insert(packets.end(), then.begin(), then.end());
  EXPECT_EQ(gpu.run(packets), 0);
  void* map = nullptr;
  ASSERT_EQ(amdgpu_bo_cpu_map(b.bo, &map), 0);
  const auto* dwords = static_cast<const std::uint32_t*>(map);
  EXPECT_EQ(dwords[0], 0x01020304u);
  EXPECT_EQ(dwords[kMiB / 4 - 1], 0x01020304u);
  amdgpu_bo_cpu_unmap(b.bo);
}

TEST_F(DrmDevice, JobsOfOneRingRunInOrder) {
  Gpu gpu(*control_, 0);
  ASSERT_TRUE(gpu.ok());
  const Gpu::Memory bo = gpu.allocate(kMiB, AMDGPU_GEM_DOMAIN_VRAM);
  std::uint64_t seq = 0;
  for (std::uint32_t i = 1; i <= 20; ++i) ASSERT_EQ(gpu.submit(Gpu::fill(bo.va, i, kMiB), &seq), 0);
  EXPECT_EQ(seq, 20u);
  EXPECT_EQ(gpu.wait(seq), 0);
  void* map = nullptr;
  ASSERT_EQ(amdgpu_bo_cpu_map(bo.bo, &map), 0);
  EXPECT_EQ(static_cast<const std::uint32_t*>(map)[kMiB / 4 - 1], 20u);
  amdgpu_bo_cpu_unmap(bo.bo);
}

TEST_F(DrmDevice, AFenceIsAPollableSyncFile) {
  Gpu gpu(*control_, 0);
  ASSERT_TRUE(gpu.ok());
  ASSERT_EQ(gpu.hold_back(control_.get()), 0);
  const Gpu::Memory bo = gpu.allocate(4 * kMiB, AMDGPU_GEM_DOMAIN_VRAM);
  std::uint64_t seq = 0;
  ASSERT_EQ(gpu.submit(Gpu::fill(bo.va, 7, 4 * kMiB), &seq), 0);
  const Fd fence = gpu.sync_file(seq);
  ASSERT_GE(fence.get(), 0);
  EXPECT_EQ(fence_status(fence.get()), 0);
  EXPECT_EQ(poll_in(fence.get(), 0), 0);
  control_->release_hung_fences();
  EXPECT_EQ(poll_in(fence.get(), 30000), POLLIN);
  EXPECT_EQ(fence_status(fence.get()), 1);
  const Fd late = gpu.sync_file(seq);  // of a fence that has signalled
  EXPECT_EQ(poll_in(late.get(), 0), POLLIN);
  EXPECT_EQ(fence_status(late.get()), 1);
}

TEST_F(DrmDevice, AFenceWakesEpollAndIoUring) {
  control_->set_engine_rate(0, 200 * kMiB);
  Gpu gpu(*control_, 0);
  ASSERT_TRUE(gpu.ok());
  const Gpu::Memory bo = gpu.allocate(4 * kMiB, AMDGPU_GEM_DOMAIN_VRAM);
  std::uint64_t seq = 0;
  ASSERT_EQ(gpu.submit(Gpu::fill(bo.va, 7, 4 * kMiB), &seq), 0);
  const Fd fence = gpu.sync_file(seq), epoll(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN;
  ASSERT_EQ(::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fence.get(), &event), 0);
  io_uring ring;
  const int failed = io_uring_queue_init(4, &ring, 0);
  if (failed == 0) {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring);
    io_uring_prep_poll_add(sqe, fence.get(), POLLIN);
    EXPECT_EQ(io_uring_submit(&ring), 1);
    io_uring_cqe* cqe = nullptr;
    ASSERT_EQ(io_uring_wait_cqe(&ring, &cqe), 0);
    EXPECT_EQ(cqe->res, POLLIN);
    io_uring_cqe_seen(&ring, cqe);
    io_uring_queue_exit(&ring);
  }
  EXPECT_EQ(::epoll_wait(epoll.get(), &event, 1, 30000), 1);
  EXPECT_EQ(event.events, static_cast<std::uint32_t>(EPOLLIN));
  if (failed != 0) GTEST_SKIP() << "io_uring: " << std::strerror(-failed);
}

TEST_F(DrmDevice, AnUnmappedAddressFailsTheJobAndLosesTheContext) {
  Gpu gpu(*control_, 0);
  ASSERT_TRUE(gpu.ok());
  const Gpu::Memory bo = gpu.allocate(kMiB, AMDGPU_GEM_DOMAIN_VRAM);
  std::uint64_t seq = 0;
  ASSERT_EQ(gpu.submit(Gpu::copy(bo.va, bo.va + (1ull << 40), 4096), &seq), 0);
  const Fd fence = gpu.sync_file(seq);
  EXPECT_EQ(poll_in(fence.get(), 30000), POLLIN);  // signalled, not succeeded
  EXPECT_EQ(fence_status(fence.get()), -ECANCELED);
  EXPECT_EQ(gpu.wait(seq), -ECANCELED);
  EXPECT_EQ(gpu.submit(Gpu::fill(bo.va, 0, 4096), &seq), -ECANCELED);
  EXPECT_NE(control_->last_engine_fault().find("not mapped"), std::string::npos)
      << control_->last_engine_fault();
}

TEST_F(DrmDevice, PacketsTheHardwareWouldNotTakeAreFaults) {
  const std::uint32_t max = control_->config().gpus[0].sdma_max_bytes;
  struct Case {
    const char* what;
    std::function<std::vector<std::uint32_t>(std::uint64_t)> packets;
  };
  const Case cases[] = {
      {"count above the limit", [max](std::uint64_t va) { return Gpu::copy(va, va, max + 1); }},
      {"unknown packet", [](std::uint64_t) { return std::vector<std::uint32_t>{0x7f}; }},
      {"header bits",
       [](std::uint64_t va) {
         std::vector<std::uint32_t> packet = Gpu::copy(va, va + 4096, 64);
         packet[0] |= 1u << 27;
         return packet;
       }},
      {"runs past the end of a mapping",
       [](std::uint64_t va) { return Gpu::copy(va, va + 2 * kMiB - 4096 + (1ull << 40), 8192); }},
      {"unaligned fill", [](std::uint64_t va) { return Gpu::fill(va + 2, 0, 64); }},
  };
  for (const Case& c : cases) {
    Gpu gpu(*control_, 0);
    ASSERT_TRUE(gpu.ok());
    const Gpu::Memory bo = gpu.allocate(2 * kMiB, AMDGPU_GEM_DOMAIN_VRAM);
    EXPECT_EQ(gpu.run(c.packets(bo.va)), -ECANCELED) << c.what;
  }
}

TEST_F(DrmDevice, AByteTooManyIsAFaultAtTheEndOfAMapping) {
  if (control_->config().tolerant_sdma != 0) GTEST_SKIP() << "this machine forgives it";
  Gpu gpu(*control_, 0);
  ASSERT_TRUE(gpu.ok());
  const Gpu::Memory bo = gpu.allocate(kMiB, AMDGPU_GEM_DOMAIN_VRAM);
  // Behind everything that libdrm has handed out so far there is nothing.
  std::vector<std::uint32_t> packet = Gpu::copy(bo.va, bo.va + 4096, 4096);
  packet[1] = kMiB - 4096;  // bytes - 1 forgotten
  EXPECT_EQ(gpu.run(packet), -ECANCELED);
}

TEST_F(DrmDevice, BosMustBeInTheList) {
  Gpu gpu(*control_, 0), other(*control_, 0);
  ASSERT_TRUE(gpu.ok());
  const Gpu::Memory bo = gpu.allocate(kMiB, AMDGPU_GEM_DOMAIN_VRAM);
  amdgpu_bo_alloc_request request{};
  request.alloc_size = kMiB;
  request.preferred_heap = AMDGPU_GEM_DOMAIN_VRAM;
  amdgpu_bo_handle unlisted = nullptr;
  ASSERT_EQ(amdgpu_bo_alloc(gpu.device(), &request, &unlisted), 0);
  const std::uint64_t va = bo.va + (1ull << 36);
  ASSERT_EQ(amdgpu_bo_va_op(unlisted, 0, kMiB, va, 0, AMDGPU_VA_OP_MAP), 0);
  EXPECT_EQ(gpu.run(Gpu::copy(va, bo.va, 4096)), -ECANCELED);
  amdgpu_bo_free(unlisted);
}

TEST_F(DrmDevice, ReadOnlyMappingsAreNotWritten) {
  Gpu gpu(*control_, 0);
  ASSERT_TRUE(gpu.ok());
  const Gpu::Memory bo = gpu.allocate(kMiB, AMDGPU_GEM_DOMAIN_VRAM);
  const std::uint64_t va = 1ull << 44;
  ASSERT_EQ(amdgpu_bo_va_op_raw(gpu.device(), bo.bo, 0, kMiB, va, AMDGPU_VM_PAGE_READABLE, AMDGPU_VA_OP_MAP),
            0);
  EXPECT_EQ(gpu.run(Gpu::copy(va, bo.va + 4096, 64)), 0);
  EXPECT_EQ(gpu.run(Gpu::copy(bo.va, va + 4096, 64)), -ECANCELED);
}

TEST_F(DrmDevice, ADmaBufPassesToAnotherProcessAndKeepsItsMemory) {
  Gpu gpu(*control_, 0);
  ASSERT_TRUE(gpu.ok());
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  Fd parent(ends[0]), child(ends[1]);
  const int status = in_child([&] {
    Fd file = open_render(*control_, 0);
    drm_amdgpu_gem_create create{};
    create.in.bo_size = kMiB;
    create.in.domains = AMDGPU_GEM_DOMAIN_VRAM;
    EXPECT_EQ(call(file.get(), DRM_IOCTL_AMDGPU_GEM_CREATE, &create), 0);
    drm_amdgpu_gem_mmap where{};
    where.in.handle = create.out.handle;
    EXPECT_EQ(call(file.get(), DRM_IOCTL_AMDGPU_GEM_MMAP, &where), 0);
    void* map = ::mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(),
                       static_cast<off_t>(where.out.addr_ptr));
    EXPECT_NE(map, MAP_FAILED);
    if (map != MAP_FAILED) std::memset(map, 0x77, kMiB);
    int dmabuf = -1;
    EXPECT_EQ(drmPrimeHandleToFD(file.get(), create.out.handle, DRM_CLOEXEC, &dmabuf), 0);
    EXPECT_TRUE(send_fd(child.get(), dmabuf));
  });
  ASSERT_EQ(status, 0);
  Fd dmabuf = receive_fd(parent.get());
  ASSERT_GE(dmabuf.get(), 0);
  const Gpu::Memory shared = gpu.import(dmabuf.get());
  ASSERT_NE(shared.bo, nullptr);
  dmabuf.reset();  // the import holds it
  Pages user(kMiB);
  const Gpu::Memory staging = gpu.user_memory(user.data(), kMiB);
  EXPECT_EQ(gpu.run(Gpu::copy(shared.va, staging.va, kMiB)), 0);
  EXPECT_EQ(user.data()[0], 0x77);
  EXPECT_EQ(user.data()[kMiB - 1], 0x77);
}

TEST_F(DrmDevice, SyncobjsCarryFences) {
  Gpu gpu(*control_, 0);
  ASSERT_TRUE(gpu.ok());
  ASSERT_EQ(gpu.hold_back(control_.get()), 0);
  const Gpu::Memory bo = gpu.allocate(4 * kMiB, AMDGPU_GEM_DOMAIN_VRAM);
  std::uint64_t seq = 0;
  ASSERT_EQ(gpu.submit(Gpu::fill(bo.va, 7, 4 * kMiB), &seq), 0);
  amdgpu_cs_fence fence{};
  fence.context = gpu.context();
  fence.ip_type = AMDGPU_HW_IP_DMA;
  fence.fence = seq;
  std::uint32_t syncobj = 0, empty = 0, timeline = 0, first = 0;
  ASSERT_EQ(amdgpu_cs_fence_to_handle(gpu.device(), &fence, AMDGPU_FENCE_TO_HANDLE_GET_SYNCOBJ, &syncobj), 0);
  ASSERT_EQ(drmSyncobjCreate(gpu.fd(), 0, &empty), 0);
  EXPECT_EQ(drmSyncobjWait(gpu.fd(), &empty, 1, 0, 0, &first), -EINVAL);  // nothing in it
  EXPECT_EQ(drmSyncobjWait(gpu.fd(), &empty, 1, 0, DRM_SYNCOBJ_WAIT_FLAGS_WAIT_FOR_SUBMIT, &first), -ETIME);
  EXPECT_EQ(drmSyncobjWait(gpu.fd(), &syncobj, 1, 0, 0, &first), -ETIME);
  int exported = -1, opaque = -1;
  ASSERT_EQ(drmSyncobjExportSyncFile(gpu.fd(), syncobj, &exported), 0);
  const Fd sync_file(exported);
  EXPECT_EQ(drmSyncobjImportSyncFile(gpu.fd(), empty, sync_file.get()), 0);
  ASSERT_EQ(drmSyncobjCreate(gpu.fd(), 0, &timeline), 0);
  EXPECT_EQ(drmSyncobjTransfer(gpu.fd(), timeline, 5, syncobj, 0, 0), 0);
  control_->release_hung_fences();
  EXPECT_EQ(drmSyncobjWait(gpu.fd(), &empty, 1, INT64_MAX, 0, &first), 0);
  EXPECT_EQ(fence_status(sync_file.get()), 1);
  std::uint64_t point = 5;
  EXPECT_EQ(drmSyncobjTimelineWait(gpu.fd(), &timeline, &point, 1, INT64_MAX, 0, &first), 0);
  std::uint64_t value = 0;
  EXPECT_EQ(drmSyncobjQuery(gpu.fd(), &timeline, &value, 1), 0);
  EXPECT_EQ(value, 5u);
  ASSERT_EQ(drmSyncobjHandleToFD(gpu.fd(), syncobj, &opaque), 0);
  const Fd opaque_fd(opaque);
  std::uint32_t again = 0;
  EXPECT_EQ(drmSyncobjFDToHandle(gpu.fd(), opaque_fd.get(), &again), 0);
  EXPECT_EQ(drmSyncobjWait(gpu.fd(), &again, 1, 0, 0, &first), 0);
  EXPECT_EQ(drmSyncobjReset(gpu.fd(), &again, 1), 0);
  EXPECT_EQ(drmSyncobjWait(gpu.fd(), &syncobj, 1, 0, 0, &first), -EINVAL);  // the same object
  for (const std::uint32_t handle : {syncobj, empty, timeline, again})
    EXPECT_EQ(drmSyncobjDestroy(gpu.fd(), handle), 0);
  EXPECT_NE(drmSyncobjDestroy(gpu.fd(), syncobj), 0);
}

TEST_F(DrmDevice, AnEventfdTellsOfASyncobj) {
  if (control_->config().kfd_minor_version < 17) GTEST_SKIP() << "Linux 6.1 has no SYNCOBJ_EVENTFD";
  const Fd file = open_render(*control_, 0);
  const Fd event(::eventfd(0, EFD_CLOEXEC));
  std::uint32_t syncobj = 0;
  ASSERT_EQ(drmSyncobjCreate(file.get(), 0, &syncobj), 0);
  struct {
    std::uint32_t handle, flags;
    std::uint64_t point;
    std::int32_t fd;
    std::uint32_t pad;
  } args{syncobj, 0, 0, event.get(), 0};
  ASSERT_EQ(call(file.get(), _IOWR('d', 0xcf, decltype(args)), &args), 0);
  EXPECT_EQ(poll_in(event.get(), 0), 0);
  ASSERT_EQ(drmSyncobjSignal(file.get(), &syncobj, 1), 0);
  EXPECT_EQ(poll_in(event.get(), 30000), POLLIN);
  args.fd = file.get();
  EXPECT_EQ(call(file.get(), _IOWR('d', 0xcf, decltype(args)), &args), EINVAL);
  args.fd = -1;
  EXPECT_EQ(call(file.get(), _IOWR('d', 0xcf, decltype(args)), &args), EBADF);
}

// ---- faults on demand
// -----------------------------------------------------------------------------------------------

TEST_F(DrmDevice, ACallFailsWhenToldTo) {
  control_->inject({On::Render, 0x40, -1, ENOSPC, 1, 1, false});
  const Fd file = open_render(*control_, 0);
  int results[3];
  for (int& result : results) {
    drm_amdgpu_gem_create create{};
    create.in.bo_size = 4096;
    create.in.domains = AMDGPU_GEM_DOMAIN_GTT;
    result = call(file.get(), DRM_IOCTL_AMDGPU_GEM_CREATE, &create);
  }
  EXPECT_EQ(results[0], 0);
  EXPECT_EQ(results[1], ENOSPC);
  EXPECT_EQ(results[2], 0);
  const std::vector<TracedCall> trace = control_->trace();
  ASSERT_GE(trace.size(), 3u);
  EXPECT_TRUE(trace[trace.size() - 2].injected);
  EXPECT_EQ(trace.back().name, "DRM_GEM_CREATE");
  EXPECT_EQ(trace.back().pid, ::getpid());
}

TEST_F(DrmDevice, AFenceHangsOrFailsWhenToldTo) {
  Gpu gpu(*control_, 0);
  ASSERT_TRUE(gpu.ok());
  const Gpu::Memory bo = gpu.allocate(kMiB, AMDGPU_GEM_DOMAIN_VRAM);
  std::uint64_t seq = 0;
  control_->fail_fence(0, control_->fences_made(0) + 1, ETIME);
  ASSERT_EQ(gpu.submit(Gpu::fill(bo.va, 1, 4096), &seq), 0);
  Fd fence = gpu.sync_file(seq);
  EXPECT_EQ(poll_in(fence.get(), 30000), POLLIN);
  EXPECT_EQ(fence_status(fence.get()), -ETIME);

  Gpu second(*control_, 0);
  const Gpu::Memory other = second.allocate(kMiB, AMDGPU_GEM_DOMAIN_VRAM);
  ASSERT_EQ(second.submit_hanging(control_.get(), Gpu::fill(other.va, 1, 4096), &seq), 0);
  fence = second.sync_file(seq);
  EXPECT_EQ(second.wait(seq, 0, 0), 1);
  EXPECT_EQ(fence_status(fence.get()), 0);
  control_->release_hung_fences();
  EXPECT_EQ(poll_in(fence.get(), 30000), POLLIN);
  EXPECT_EQ(fence_status(fence.get()), -ECANCELED);
}

TEST_F(DrmDevice, NoThreadIsLeftWhenTheDeviceIsClosed) {
  const auto threads = [] {
    std::string text(4096, '\0');
    const Fd status(::open("/proc/self/status", O_RDONLY | O_CLOEXEC));
    const ssize_t length = ::read(status.get(), text.data(), text.size());
    text.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
    return std::atoi(text.c_str() + text.find("Threads:") + 8);
  };
  const int before = threads();
  {
    Gpu gpu(*control_, 0);
    ASSERT_TRUE(gpu.ok());
    EXPECT_EQ(threads(), before);  // none before the first submission
    const Gpu::Memory bo = gpu.allocate(kMiB, AMDGPU_GEM_DOMAIN_VRAM);
    EXPECT_EQ(gpu.run(Gpu::fill(bo.va, 1, 4096)), 0);
    EXPECT_GT(threads(), before);
  }
  EXPECT_EQ(threads(), before);
}

TEST_F(DrmDevice, AForkedChildHasEnginesOfItsOwn) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "forks with engine threads alive, which GCC's ThreadSanitizer cannot follow";
#endif
  Gpu gpu(*control_, 0);
  ASSERT_TRUE(gpu.ok());
  const Gpu::Memory bo = gpu.allocate(kMiB, AMDGPU_GEM_DOMAIN_VRAM);
  EXPECT_EQ(gpu.run(Gpu::fill(bo.va, 1, 4096)), 0);
  EXPECT_EQ(in_child([&] {
              Gpu own(*control_, 1);
              EXPECT_TRUE(own.ok());
              const Gpu::Memory memory = own.allocate(kMiB, AMDGPU_GEM_DOMAIN_VRAM);
              EXPECT_EQ(own.run(Gpu::fill(memory.va, 2, 4096)), 0);
            }),
            0);
  EXPECT_EQ(gpu.run(Gpu::fill(bo.va, 3, 4096)), 0);
}

}  // namespace
}  // namespace vamdgpu::tests
