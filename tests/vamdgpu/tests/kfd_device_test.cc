// SPDX-License-Identifier: MIT
// /dev/kfd as a ROCm start-up uses it: version, apertures, VMs, memory, maps, events, queues; with the errnos
// of the kernel.
#include <thread>

#include "device_kit.h"
#include "presets.h"

namespace vamdgpu::tests {
namespace {

constexpr std::uint64_t kVa = 0x7f1000000000;

class KfdDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    control_ = machine();
    ASSERT_NE(control_, nullptr) << "not on a virtual machine";
    for (unsigned gpu = 0; gpu < control_->config().num_gpus; ++gpu)
      ids_.push_back(control_->config().gpus[gpu].gpu_id);
  }
  void TearDown() override { control_->clear_faults(); }

  // Each test's body is a process of its own: a KFD process lives as long as its process.
  static void apart(const std::function<void()>& body) { EXPECT_EQ(in_child(body), 0); }

  std::unique_ptr<Control> control_;
  std::vector<std::uint32_t> ids_;
};

// AMDKFD_IOC_DBG_TRAP, which the oldest headers lack.
struct DebugTrap {
  std::int32_t pid;
  std::uint32_t op;
  std::uint64_t more[3];
};
constexpr std::uint32_t kEnable = 0, kDisable = 1, kQueryEvent = 11;

TEST_F(KfdDevice, DebuggingIsAskedForOnlyWhereItIsOn) {
  if (control_->config().kfd_minor_version < 13) GTEST_SKIP() << "a KFD without DBG_TRAP";
  apart([&] {
    const Fd kfd = open_kfd();
    ASSERT_GE(kfd.get(), 0);
    const auto ask = [&](pid_t pid, std::uint32_t op) {
      DebugTrap args{pid, op, {}};
      return call(kfd.get(), _IOWR('K', 0x26, DebugTrap), &args);
    };
    EXPECT_EQ(ask(::getpid(), kQueryEvent), EINVAL);
    EXPECT_EQ(ask(::getpid(), kEnable), 0);
    EXPECT_EQ(ask(::getpid(), kEnable), EALREADY);
    EXPECT_EQ(ask(::getpid(), kQueryEvent), EAGAIN);
    EXPECT_EQ(ask(::getpid(), kDisable), 0);
    EXPECT_EQ(ask(::getpid(), kQueryEvent), EINVAL);
    EXPECT_EQ(ask(::getppid(), kQueryEvent), ESRCH);
  });
}

TEST_F(KfdDevice, AVmIsOneDrmFileOfThatGpu) {
  apart([&] {
    const Fd kfd = open_kfd(), a = open_render(*control_, 0), b = open_render(*control_, 0);
    KfdBo bo;
    EXPECT_EQ(alloc(kfd.get(), ids_[0], kVa, 4096, kVram, &bo), ENODEV);  // no VM yet
    EXPECT_EQ(acquire_vm(kfd.get(), a.get(), ids_[1]), EINVAL);           // wrong GPU
    EXPECT_EQ(acquire_vm(kfd.get(), a.get(), 77), EINVAL);
    EXPECT_EQ(acquire_vm(kfd.get(), kfd.get(), ids_[0]), EINVAL);
    EXPECT_EQ(acquire_vm(kfd.get(), 999, ids_[0]), EINVAL);
    EXPECT_EQ(acquire_vm(kfd.get(), a.get(), ids_[0]), 0);
    EXPECT_EQ(acquire_vm(kfd.get(), a.get(), ids_[0]), 0);
    EXPECT_EQ(acquire_vm(kfd.get(), b.get(), ids_[0]), EBUSY);
    EXPECT_EQ(in_child([&] {
                const Fd own = open_kfd();
                EXPECT_EQ(acquire_vm(own.get(), a.get(), ids_[0]), EINVAL);  // another process's VM
                EXPECT_EQ(acquire_vm(kfd.get(), b.get(), ids_[0]), EBADF);   // another process's file
              }),
              0);
  });
}

TEST_F(KfdDevice, EventsAreSetWaitedForAndReset) {
  apart([&] {
    const Fd kfd = open_kfd(), render = open_render(*control_, 0);
    EXPECT_EQ(acquire_vm(kfd.get(), render.get(), ids_[0]), 0);
    KfdBo page;
    ASSERT_EQ(alloc(kfd.get(), ids_[0], kVa, 32768, kGtt, &page), 0);
    kfd_ioctl_create_event_args create{};
    create.event_page_offset = page.handle;
    ASSERT_EQ(call(kfd.get(), AMDKFD_IOC_CREATE_EVENT, &create), 0);
    EXPECT_EQ(create.event_id, 1u);
    EXPECT_EQ(create.event_slot_index, 1u);
    std::uint64_t slot = 0;
    EXPECT_TRUE(map_to(kfd.get(), page.handle, {ids_[0]}) == 0 &&
                control_->read(::getpid(), ids_[0], kVa + 8, &slot, sizeof(slot)));
    EXPECT_EQ(slot, UINT64_MAX);
    EXPECT_EQ(free_bo(kfd.get(), page.handle), EPERM);
    kfd_ioctl_create_event_args second{};
    second.event_page_offset = page.handle;
    EXPECT_EQ(call(kfd.get(), AMDKFD_IOC_CREATE_EVENT, &second), EINVAL);  // one page only
    kfd_ioctl_create_event_args memory{};
    memory.event_type = KFD_IOC_EVENT_MEMORY;
    EXPECT_EQ(call(kfd.get(), AMDKFD_IOC_CREATE_EVENT, &memory), 0);
    EXPECT_EQ(memory.event_id, 0x40000000u);

    kfd_event_data data{};
    data.event_id = create.event_id;
    kfd_ioctl_wait_events_args wait{};
    wait.events_ptr = reinterpret_cast<std::uint64_t>(&data);
    wait.num_events = 1;
    EXPECT_EQ(call(kfd.get(), AMDKFD_IOC_WAIT_EVENTS, &wait), 0);
    EXPECT_EQ(wait.wait_result, static_cast<std::uint32_t>(KFD_IOC_WAIT_RESULT_TIMEOUT));
    wait.timeout = 30000;
    kfd_ioctl_set_event_args set{};
    set.event_id = create.event_id;
    std::thread setter([&] { EXPECT_EQ(call(kfd.get(), AMDKFD_IOC_SET_EVENT, &set), 0); });
    EXPECT_EQ(call(kfd.get(), AMDKFD_IOC_WAIT_EVENTS, &wait), 0);
    setter.join();
    EXPECT_EQ(wait.wait_result, static_cast<std::uint32_t>(KFD_IOC_WAIT_RESULT_COMPLETE));
    kfd_ioctl_reset_event_args reset{};
    reset.event_id = create.event_id;
    EXPECT_EQ(call(kfd.get(), AMDKFD_IOC_RESET_EVENT, &reset), 0);
    reset.event_id = memory.event_id;
    EXPECT_EQ(call(kfd.get(), AMDKFD_IOC_RESET_EVENT, &reset), EINVAL);  // signal events only
    kfd_ioctl_destroy_event_args destroy{};
    destroy.event_id = create.event_id;
    EXPECT_EQ(call(kfd.get(), AMDKFD_IOC_DESTROY_EVENT, &destroy), 0);
    EXPECT_EQ(call(kfd.get(), AMDKFD_IOC_WAIT_EVENTS, &wait), EINVAL);
  });
}

TEST_F(KfdDevice, TwoFilesOfOneProcessAreOneKfdProcess) {
  apart([&] {
    const Fd a = open_kfd(), b = open_kfd(), render = open_render(*control_, 0);
    EXPECT_EQ(acquire_vm(a.get(), render.get(), ids_[0]), 0);
    KfdBo bo;
    EXPECT_EQ(alloc(b.get(), ids_[0], kVa, 4096, kVram, &bo), 0);
    EXPECT_EQ(free_bo(a.get(), bo.handle), 0);
  });
}

TEST_F(KfdDevice, MemoryOutlivesTheFilesButNotTheProcess) {
  const Counts before = control_->counts();
  apart([&] {
    {
      const Fd kfd = open_kfd(), render = open_render(*control_, 0);
      EXPECT_EQ(acquire_vm(kfd.get(), render.get(), ids_[0]), 0);
      KfdBo bo;
      EXPECT_EQ(alloc(kfd.get(), ids_[0], kVa, 4096, kVram, &bo), 0);
    }
    ASSERT_TRUE(control_->process(::getpid()).has_value());
    EXPECT_EQ(control_->process(::getpid())->bos.size(), 1u);
  });
  EXPECT_EQ(control_->counts(), before);
}

TEST_F(KfdDevice, ManyBosAreNoMatter) {
  apart([&] {
    const Fd kfd = open_kfd(), render = open_render(*control_, 0);
    EXPECT_EQ(acquire_vm(kfd.get(), render.get(), ids_[0]), 0);
    constexpr unsigned kCount = 8000;
    std::vector<KfdBo> bos(kCount);
    for (unsigned i = 0; i < kCount; ++i) {
      ASSERT_EQ(alloc(kfd.get(), ids_[0], kVa + i * 8192ull, 4096, kVram, &bos[i]), 0);
      ASSERT_EQ(map_to(kfd.get(), bos[i].handle, {ids_[0]}), 0);
    }
    for (unsigned i = 0; i < kCount; i += 2) {
      ASSERT_EQ(unmap_from(kfd.get(), bos[i].handle, {ids_[0]}), 0);
      ASSERT_EQ(free_bo(kfd.get(), bos[i].handle), 0);
    }
    EXPECT_EQ(control_->process(::getpid())->bos.size(), kCount / 2);
    KfdBo big;
    EXPECT_EQ(alloc(kfd.get(), ids_[0], kVa - (1 << 20), 8192, kVram, &big), 0);  // only behind all of them
  });
}

TEST_F(KfdDevice, SvmAttributesAreKeptAndGiven) {
  apart([&] {
    const Fd kfd = open_kfd(), render = open_render(*control_, 0);
    struct {
      std::uint64_t start, size;
      std::uint32_t op, count;
      kfd_ioctl_svm_attribute attributes[2];
    } args{kVa,
           16 * 4096,
           KFD_IOCTL_SVM_OP_SET_ATTR,
           2,
           {{KFD_IOCTL_SVM_ATTR_PREFERRED_LOC, ids_[0]}, {KFD_IOCTL_SVM_ATTR_GRANULARITY, 4}}};
    ASSERT_NE(::mmap(reinterpret_cast<void*>(kVa), 16 * 4096, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
              MAP_FAILED);
    const unsigned long request = _IOC(_IOC_READ | _IOC_WRITE, 'K', 0x20, sizeof(args));
    EXPECT_EQ(call(kfd.get(), request, &args), EINVAL);  // no VM
    EXPECT_EQ(acquire_vm(kfd.get(), render.get(), ids_[0]), 0);
    EXPECT_EQ(call(kfd.get(), request, &args), 0);
    args.start += 4 * 4096;
    args.size = 4096;
    args.attributes[1].value = 6;
    EXPECT_EQ(call(kfd.get(), request, &args), 0);
    EXPECT_EQ(control_->process(::getpid())->svm_ranges, 3u);  // the middle was cut out
    args.op = KFD_IOCTL_SVM_OP_GET_ATTR;
    args.attributes[0].value = args.attributes[1].value = 0;
    EXPECT_EQ(call(kfd.get(), request, &args), 0);
    EXPECT_EQ(args.attributes[0].value, ids_[0]);
    EXPECT_EQ(args.attributes[1].value, 6u);
    args.size = 100;
    EXPECT_EQ(call(kfd.get(), request, &args), EINVAL);
    KfdBo bo;
    EXPECT_EQ(alloc(kfd.get(), ids_[0], kVa, 4096, kVram, &bo), EADDRINUSE);
  });
}

}  // namespace
}  // namespace vamdgpu::tests
