// SPDX-License-Identifier: MIT
// AMDKFD_IOC_CRIU_OP between real processes: a tracer checkpoints a GPU process, a fresh process restores it,
// the tracer resumes it; and who is refused.
#include <sys/prctl.h>
#include <sys/ptrace.h>

#include <thread>

#include "device_kit.h"

namespace vamdgpu::tests {
namespace {

constexpr std::uint64_t kVa = 0x7f0000000000;

// One end of a socketpair per process: lines up parent and child, byte by byte.
struct Rendezvous {
  Rendezvous() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
  void signal() { EXPECT_EQ(::write(write.get(), "x", 1), 1); }
  bool wait() {
    char byte = 0;
    return ::read(read.get(), &byte, 1) == 1;
  }
  Fd read, write;
};

constexpr std::uint32_t kSdmaMqdBytes = 512;  // v9_sdma_mqd

kfd_ioctl_criu_args criu(std::uint32_t op) {
  kfd_ioctl_criu_args args{};
  args.op = op;
  return args;
}

int criu_call(int kfd, kfd_ioctl_criu_args* args) {
  return call(kfd, AMDKFD_IOC_CRIU_OP, args);
}

struct Checkpoint {
  kfd_ioctl_criu_args info{};
  std::vector<kfd_criu_device_bucket> devices;
  std::vector<kfd_criu_bo_bucket> bos;
  std::vector<unsigned char> priv;
  std::vector<std::vector<unsigned char>> contents;
};

int do_checkpoint(int kfd, Checkpoint* c) {
  c->devices.resize(c->info.num_devices);
  c->bos.resize(c->info.num_bos);
  c->priv.resize(c->info.priv_data_size);
  kfd_ioctl_criu_args args = c->info;
  args.op = KFD_CRIU_OP_CHECKPOINT;
  args.devices = reinterpret_cast<std::uint64_t>(c->devices.data());
  args.bos = reinterpret_cast<std::uint64_t>(c->bos.data());
  args.priv_data = reinterpret_cast<std::uint64_t>(c->priv.data());
  return criu_call(kfd, &args);
}

// What the GPU process has, in this order: per GPU a VRAM BO, a GTT BO; on GPU 0 also userptr, doorbell and
// MMIO.
struct Subject {
  explicit Subject(const Control& control) : kfd(open_kfd()) {
    for (unsigned gpu = 0; gpu < control.config().num_gpus; ++gpu) {
      ids.push_back(control.config().gpus[gpu].gpu_id);
      renders.push_back(open_render(control, gpu));
      EXPECT_EQ(acquire_vm(kfd.get(), renders[gpu].get(), ids[gpu]), 0);
    }
    for (unsigned gpu = 0; gpu < ids.size(); ++gpu) {
      add(gpu, 4 << 20, kVram, static_cast<unsigned char>(0x10 + gpu));
      add(gpu, 1 << 20, kGtt, static_cast<unsigned char>(0x20 + gpu));
    }
    event_page = bos[1];  // GTT of GPU 0
    KfdBo bo;
    EXPECT_EQ(alloc(kfd.get(), ids[0], kVa + (1ull << 32), user.size(),
                    KFD_IOC_ALLOC_MEM_FLAGS_USERPTR | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE, &bo,
                    reinterpret_cast<std::uint64_t>(user.data())),
              0);
    EXPECT_EQ(map_to(kfd.get(), bo.handle, {ids[0]}), 0);
    EXPECT_EQ(alloc(kfd.get(), ids[0], kVa + (2ull << 32), 8192,
                    KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE, &bo),
              0);
    EXPECT_EQ(map_to(kfd.get(), bo.handle, {ids[0]}), 0);
    EXPECT_EQ(alloc(kfd.get(), ids[0], kVa + (3ull << 32), 4096,
                    KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE, &bo),
              0);
    EXPECT_EQ(map_to(kfd.get(), bo.handle, {ids[0]}), 0);
    add_events();
    add_queue();
  }

  void add(unsigned gpu, std::uint64_t size, std::uint32_t flags, unsigned char byte) {
    KfdBo bo;
    const std::uint64_t va = kVa + bos.size() * (16 << 20);
    EXPECT_EQ(alloc(kfd.get(), ids[gpu], va, size, flags, &bo), 0);
    EXPECT_EQ(map_to(kfd.get(), bo.handle, ids), 0);
    void* map = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, renders[gpu].get(),
                       static_cast<off_t>(bo.offset));
    EXPECT_NE(map, MAP_FAILED);
    if (map != MAP_FAILED) {
      std::memset(map, byte, size);
      ::munmap(map, size);
    }
    bos.push_back(bo);
  }

  void add_events() {
    for (unsigned i = 0; i < 3; ++i) {
      kfd_ioctl_create_event_args args{};
      args.event_page_offset = i == 0 ? event_page.handle : 0;
      args.event_type = i < 2 ? KFD_IOC_EVENT_SIGNAL : KFD_IOC_EVENT_MEMORY;
      args.auto_reset = i;
      EXPECT_EQ(call(kfd.get(), AMDKFD_IOC_CREATE_EVENT, &args), 0);
    }
  }

  void add_queue() {
    KfdBo ring, pointers, more;
    const std::uint64_t va = kVa + (4ull << 32);
    EXPECT_EQ(alloc(kfd.get(), ids[0], va, 65536, kGtt, &ring), 0);
    EXPECT_EQ(alloc(kfd.get(), ids[0], va + 65536, 4096, kGtt, &pointers), 0);
    EXPECT_EQ(alloc(kfd.get(), ids[0], va + 2 * 65536, 4096, kGtt, &more), 0);
    for (const KfdBo& bo : {ring, pointers, more}) EXPECT_EQ(map_to(kfd.get(), bo.handle, {ids[0]}), 0);
    kfd_ioctl_create_queue_args args{};
    args.ring_base_address = ring.va;
    args.ring_size = 65536;
    args.write_pointer_address = pointers.va;
    args.read_pointer_address = more.va;
    args.gpu_id = ids[0];
    args.queue_type = KFD_IOC_QUEUE_TYPE_SDMA;
    args.queue_percentage = 100;
    args.queue_priority = 7;
    EXPECT_EQ(call(kfd.get(), AMDKFD_IOC_CREATE_QUEUE, &args), 0);
    void* doorbell = ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, kfd.get(),
                            static_cast<off_t>(args.doorbell_offset & ~std::uint64_t{8191}));
    EXPECT_NE(doorbell, MAP_FAILED);
    if (doorbell != MAP_FAILED) ::munmap(doorbell, 8192);
  }

  Fd kfd;
  Pages user{65536};
  std::vector<Fd> renders;
  std::vector<std::uint32_t> ids;
  std::vector<KfdBo> bos;
  KfdBo event_page;
};

class CriuDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    control_ = machine();
    ASSERT_NE(control_, nullptr) << "not on a virtual machine";
  }

  // A child that holds a Subject until `go` is given up.
  pid_t start_subject(Rendezvous* ready, Rendezvous* go, int* kfd_number) {
    int number[2];
    EXPECT_EQ(::pipe2(number, O_CLOEXEC), 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::close(number[0]);
      go->write.reset();
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      {
        Subject subject(*control_);
        const int fd = subject.kfd.get();
        EXPECT_EQ(::write(number[1], &fd, sizeof(fd)), static_cast<ssize_t>(sizeof(fd)));
        ready->signal();
        go->wait();
      }
      ::_exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    ::close(number[1]);
    EXPECT_EQ(::read(number[0], kfd_number, sizeof(*kfd_number)), static_cast<ssize_t>(sizeof(*kfd_number)));
    ::close(number[0]);
    EXPECT_TRUE(ready->wait());
    return pid;
  }

  static void seize(pid_t pid) {
    ASSERT_EQ(::ptrace(PTRACE_SEIZE, pid, nullptr, nullptr), 0);
    ASSERT_EQ(::ptrace(PTRACE_INTERRUPT, pid, nullptr, nullptr), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, __WALL), pid);
  }

  static Fd take(pid_t pid, int number) {
    const Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    return Fd(static_cast<int>(::syscall(SYS_pidfd_getfd, pidfd.get(), number, 0)));
  }

  std::unique_ptr<Control> control_;
};

TEST_F(CriuDevice, CheckpointInATracerAndRestoreInAFreshProcess) {
  Rendezvous ready, go;
  int kfd_number = -1;
  const pid_t pid = start_subject(&ready, &go, &kfd_number);
  ASSERT_NO_FATAL_FAILURE(seize(pid));
  Fd kfd = take(pid, kfd_number);
  ASSERT_GE(kfd.get(), 0);
  const std::optional<ProcessInfo> before = control_->process(pid);
  ASSERT_TRUE(before.has_value());
  EXPECT_TRUE(before->queues_run());
  const unsigned gpus = control_->config().num_gpus;

  Checkpoint c;
  c.info = criu(KFD_CRIU_OP_PROCESS_INFO);
  ASSERT_EQ(criu_call(kfd.get(), &c.info), 0);
  EXPECT_EQ(c.info.pid, static_cast<std::uint32_t>(pid));
  EXPECT_EQ(c.info.num_devices, gpus);
  EXPECT_EQ(c.info.num_bos, gpus * 2 + 3 + 3);
  EXPECT_EQ(c.info.num_objects, 1u + 3u);
  EXPECT_EQ(c.info.priv_data_size, 8 + 8 * gpus + control_->config().bo_record_bytes * c.info.num_bos + 120 +
                                       kSdmaMqdBytes + 3 * 64);
  EXPECT_FALSE(control_->process(pid)->queues_run());

  ASSERT_EQ(do_checkpoint(kfd.get(), &c), 0);
  unsigned with_fd = 0;
  for (const kfd_criu_bo_bucket& bo : c.bos) {
    const bool memory = (bo.alloc_flags & (KFD_IOC_ALLOC_MEM_FLAGS_VRAM | KFD_IOC_ALLOC_MEM_FLAGS_GTT)) != 0;
    EXPECT_EQ(bo.dmabuf_fd != KFD_INVALID_FD, memory);
    c.contents.emplace_back();
    if (!memory) continue;
    ++with_fd;
    Fd dmabuf(static_cast<int>(bo.dmabuf_fd));
    EXPECT_EQ(::lseek(dmabuf.get(), 0, SEEK_END), static_cast<off_t>(bo.size));
    c.contents.back().resize(bo.size);
    EXPECT_TRUE(control_->read(pid, bo.gpu_id, bo.addr, c.contents.back().data(), bo.size));
  }
  EXPECT_EQ(with_fd, gpus * 2 + 3);

  kfd_ioctl_criu_args unpause = criu(KFD_CRIU_OP_UNPAUSE);
  EXPECT_EQ(criu_call(kfd.get(), &unpause), 0);
  EXPECT_EQ(criu_call(kfd.get(), &unpause), EINVAL);
  EXPECT_TRUE(control_->process(pid)->queues_run());

  kfd.reset();
  ASSERT_EQ(::kill(pid, SIGKILL), 0);
  ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
  EXPECT_FALSE(control_->process(pid).has_value());

  // ---- restore
  Rendezvous restored, resume;
  const pid_t fresh = ::fork();
  if (fresh == 0) {
    resume.write.reset();
    Fd own = open_kfd();
    std::vector<Fd> renders;
    for (unsigned gpu = 0; gpu < gpus; ++gpu) {
      renders.push_back(open_render(*control_, gpu));
      c.devices[gpu].drm_fd = static_cast<std::uint32_t>(renders[gpu].get());
    }
    for (kfd_criu_bo_bucket& bo : c.bos) bo.dmabuf_fd = 0;
    kfd_ioctl_criu_args args = c.info;
    args.op = KFD_CRIU_OP_RESTORE;
    args.devices = reinterpret_cast<std::uint64_t>(c.devices.data());
    args.bos = reinterpret_cast<std::uint64_t>(c.bos.data());
    args.priv_data = reinterpret_cast<std::uint64_t>(c.priv.data());
    EXPECT_EQ(criu_call(own.get(), &args), 0);
    for (std::size_t i = 0; i < c.bos.size(); ++i) {
      const kfd_criu_bo_bucket& bo = c.bos[i];
      if (c.contents[i].empty()) {
        EXPECT_EQ(bo.dmabuf_fd, KFD_INVALID_FD);
        continue;
      }
      ::close(static_cast<int>(bo.dmabuf_fd));
      const std::size_t gpu = bo.gpu_id == control_->config().gpus[0].gpu_id ? 0 : 1;
      void* map = ::mmap(nullptr, bo.size, PROT_READ | PROT_WRITE, MAP_SHARED, renders[gpu].get(),
                         static_cast<off_t>(bo.restored_offset));
      EXPECT_NE(map, MAP_FAILED);
      if (map == MAP_FAILED) continue;
      std::memcpy(map, c.contents[i].data(), bo.size);
      ::munmap(map, bo.size);
    }
    EXPECT_EQ(criu_call(own.get(), &unpause), EINVAL);  // restored is not paused
    restored.signal();
    resume.wait();
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  ASSERT_TRUE(restored.wait());
  std::optional<ProcessInfo> after = control_->process(fresh);
  ASSERT_TRUE(after.has_value());
  EXPECT_TRUE(after->restore_blocked);
  EXPECT_FALSE(after->queues_run());
  EXPECT_EQ(after->damaged_queues, 0u);

  Fd master = open_kfd();
  kfd_ioctl_criu_args args = criu(KFD_CRIU_OP_RESUME);
  args.pid = static_cast<std::uint32_t>(fresh);
  EXPECT_EQ(criu_call(master.get(), &args), 0);
  EXPECT_EQ(criu_call(master.get(), &args), EINVAL);  // a second time
  args.pid = 1;
  EXPECT_EQ(criu_call(master.get(), &args), ESRCH);

  after = control_->process(fresh);
  EXPECT_TRUE(after->queues_run());
  EXPECT_EQ(after->event_page_handle, before->event_page_handle);
  ASSERT_EQ(after->bos.size(), before->bos.size());
  for (std::size_t i = 0; i < after->bos.size(); ++i) {
    const BoInfo &a = after->bos[i], &b = before->bos[i];
    EXPECT_EQ(a.va, b.va);
    EXPECT_EQ(a.size, b.size);
    EXPECT_EQ(a.flags, b.flags);
    EXPECT_EQ(a.kfd_handle, b.kfd_handle);
    EXPECT_EQ(a.mapped_gpus, b.mapped_gpus);
    EXPECT_EQ(a.user_addr, b.user_addr);
  }
  ASSERT_EQ(after->queues.size(), 1u);
  EXPECT_EQ(after->queues[0].id, before->queues[0].id);
  EXPECT_EQ(after->queues[0].ring, before->queues[0].ring);
  EXPECT_EQ(after->queues[0].ring_size, before->queues[0].ring_size);
  ASSERT_EQ(after->events.size(), before->events.size());
  for (std::size_t i = 0; i < after->events.size(); ++i) {
    EXPECT_EQ(after->events[i].id, before->events[i].id);
    EXPECT_EQ(after->events[i].type, before->events[i].type);
    EXPECT_EQ(after->events[i].auto_reset, before->events[i].auto_reset);
  }
  for (std::size_t i = 0; i < c.bos.size(); ++i) {
    if (c.contents[i].empty()) continue;
    std::vector<unsigned char> now(c.bos[i].size);
    ASSERT_TRUE(control_->read(fresh, c.bos[i].gpu_id, c.bos[i].addr, now.data(), now.size()));
    EXPECT_EQ(now, c.contents[i]);
  }
  resume.signal();
  int status = 0;
  ASSERT_EQ(::waitpid(fresh, &status, 0), fresh);
  EXPECT_EQ(status, 0);
}

TEST_F(CriuDevice, OnlyTheThreadThatTracesMayUseATargetsFile) {
  Rendezvous ready, go;
  int kfd_number = -1;
  const pid_t pid = start_subject(&ready, &go, &kfd_number);
  Fd kfd = take(pid, kfd_number);
  kfd_ioctl_criu_args args = criu(KFD_CRIU_OP_PROCESS_INFO);
  EXPECT_EQ(criu_call(kfd.get(), &args), EBADF);  // not traced
  kfd_ioctl_get_version_args version{};
  ASSERT_NO_FATAL_FAILURE(seize(pid));
  EXPECT_EQ(call(kfd.get(), AMDKFD_IOC_GET_VERSION, &version), EBADF);  // never on another's file
  int other = 0;
  std::thread([&] { other = criu_call(kfd.get(), &args); }).join();
  EXPECT_EQ(other, EBADF);
  EXPECT_TRUE(control_->process(pid)->queues_run());
  EXPECT_EQ(criu_call(kfd.get(), &args), 0);
  args = criu(KFD_CRIU_OP_UNPAUSE);
  EXPECT_EQ(criu_call(kfd.get(), &args), 0);
  ASSERT_EQ(::ptrace(PTRACE_DETACH, pid, nullptr, nullptr), 0);
  go.write.reset();
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
}

TEST_F(CriuDevice, ASecondProcessInfoEvictsAgainAndOneUnpauseIsNotEnough) {
  if (control_->config().evict_once != 0) GTEST_SKIP() << "this machine evicts once only, as Linux 7.3 does";
  Rendezvous ready, go;
  int kfd_number = -1;
  const pid_t pid = start_subject(&ready, &go, &kfd_number);
  ASSERT_NO_FATAL_FAILURE(seize(pid));
  Fd kfd = take(pid, kfd_number);
  for (int i = 0; i < 2; ++i) {
    kfd_ioctl_criu_args args = criu(KFD_CRIU_OP_PROCESS_INFO);
    EXPECT_EQ(criu_call(kfd.get(), &args), 0);
  }
  kfd_ioctl_criu_args args = criu(KFD_CRIU_OP_UNPAUSE);
  EXPECT_EQ(criu_call(kfd.get(), &args), 0);
  EXPECT_EQ(criu_call(kfd.get(), &args), EINVAL);
  EXPECT_FALSE(control_->process(pid)->queues_run());
  EXPECT_EQ(control_->process(pid)->process_infos, 2u);
  ASSERT_EQ(::kill(pid, SIGKILL), 0);
  ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
}

TEST_F(CriuDevice, ABusyProcessIsNeverStoppedInsideADriverCall) {
  Rendezvous ready;
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ready.signal();
    for (;;) open_kfd();  // makes files, with the lock held
  }
  ASSERT_TRUE(ready.wait());
  ASSERT_EQ(::ptrace(PTRACE_SEIZE, pid, nullptr, nullptr), 0);
  for (int i = 0; i < 200; ++i) {
    ASSERT_EQ(::ptrace(PTRACE_INTERRUPT, pid, nullptr, nullptr), 0);
    ASSERT_EQ(::waitpid(pid, nullptr, __WALL), pid);
    ASSERT_GE(open_kfd().get(), 0);  // would wait for ever
    ASSERT_EQ(::ptrace(PTRACE_CONT, pid, nullptr, nullptr), 0);
  }
  ASSERT_EQ(::kill(pid, SIGKILL), 0);
  ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
}

TEST_F(CriuDevice, NothingIsLeftOfAKilledProcess) {
  const Counts empty = control_->counts();
  Rendezvous ready, go;
  int kfd_number = -1;
  const pid_t pid = start_subject(&ready, &go, &kfd_number);
  EXPECT_GT(control_->counts().bos, empty.bos);
  ASSERT_EQ(::kill(pid, SIGKILL), 0);
  ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
  EXPECT_EQ(control_->counts(), empty);
}

}  // namespace
}  // namespace vamdgpu::tests
