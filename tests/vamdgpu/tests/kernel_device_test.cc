// SPDX-License-Identifier: MIT
// What only a kernel can show: maps that nobody may pin, what fork and execve leave of them, KFD processes
// that die with their memory and not with their files. Skipped on the user-space front, whose maps are
// ordinary memory.
#include <sys/socket.h>
#include <sys/uio.h>

#include <fstream>

#include "device_kit.h"

namespace vamdgpu::test {
namespace {

constexpr std::uint64_t kVa = 0x100000000;
constexpr std::size_t kBytes = 65536;

// The "VmFlags:" of the map that contains `address`.
std::string vm_flags(const void* address) {
  std::ifstream smaps("/proc/self/smaps");
  std::string line;
  bool here = false;
  while (std::getline(smaps, line)) {
    unsigned long start = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &start, &end) == 2) {
      const auto value = reinterpret_cast<unsigned long>(address);
      here = start <= value && value < end;
    } else if (here && line.rfind("VmFlags:", 0) == 0) {
      return line + " ";
    }
  }
  return "";
}

int exit_status(pid_t pid) {
  int status = -1;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

class KernelDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    control_ = machine();
    ASSERT_NE(control_, nullptr) << "not on a virtual machine";
    if (!control_->in_kernel()) GTEST_SKIP() << "this machine is not the kernel's";
    gpu_id_ = control_->config().gpus[0].gpu_id;
    before_ = control_->counts();
  }

  // A KFD process in a child: what it leaves behind ends with it.
  void apart(const std::function<void()>& body) { EXPECT_EQ(in_child(body), 0); }

  // A VRAM BO of a fresh KFD process, mapped through its render node.
  struct Mapped {
    Fd kfd, render;
    KfdBo bo;
    char* bytes = nullptr;
  };
  Mapped mapped() {
    Mapped m;
    m.kfd = open_kfd();
    m.render = open_render(*control_, 0);
    EXPECT_EQ(acquire_vm(m.kfd.get(), m.render.get(), gpu_id_), 0);
    EXPECT_EQ(alloc(m.kfd.get(), gpu_id_, kVa, kBytes, kVram, &m.bo), 0);
    void* address = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, m.render.get(),
                           static_cast<off_t>(m.bo.offset));
    EXPECT_NE(address, MAP_FAILED);
    m.bytes = static_cast<char*>(address);
    return m;
  }

  std::unique_ptr<Control> control_;
  std::uint32_t gpu_id_ = 0;
  Counts before_;
};

TEST_F(KernelDevice, NobodyCanPinABosMap) {
  apart([&] {
    Mapped m = mapped();
    m.bytes[0] = 'x';
    char copy = 0;
    iovec here = {&copy, 1}, there = {m.bytes, 1};
    EXPECT_EQ(::process_vm_readv(::getpid(), &here, 1, &there, 1, 0), -1);
    EXPECT_EQ(errno, EFAULT);
    const std::string flags = vm_flags(m.bytes);
    EXPECT_NE(flags.find(" pf "), std::string::npos) << flags;
    EXPECT_NE(flags.find(" io "), std::string::npos) << flags;
    EXPECT_NE(flags.find(" dd "), std::string::npos) << flags;
  });
}

TEST_F(KernelDevice, ADebuggerMayLookIntoABosMap) {
  apart([&] {
    Mapped m = mapped();
    std::memcpy(m.bytes + 100, "sluice", 6);
    const Fd memory(::open("/proc/self/mem", O_RDWR | O_CLOEXEC));
    char text[6] = {};
    const auto at = static_cast<off_t>(reinterpret_cast<std::uintptr_t>(m.bytes) + 100);
    EXPECT_EQ(::pread(memory.get(), text, sizeof(text), at), 6);
    EXPECT_EQ(std::memcmp(text, "sluice", 6), 0);
    EXPECT_EQ(::pwrite(memory.get(), "SLUICE", 6, at), 6);
    EXPECT_EQ(std::memcmp(m.bytes + 100, "SLUICE", 6), 0);
  });
}

TEST_F(KernelDevice, AMapOutlivesItsBosHandleAndItsFile) {
  apart([&] {
    const Counts before = control_->counts();
    Fd render = open_render(*control_, 0);
    union drm_amdgpu_gem_create create {};
    create.in.bo_size = kBytes;
    create.in.domains = AMDGPU_GEM_DOMAIN_VRAM;
    ASSERT_EQ(call(render.get(), DRM_IOCTL_AMDGPU_GEM_CREATE, &create), 0);
    const std::uint32_t handle = create.out.handle;
    union drm_amdgpu_gem_mmap where {};
    where.in.handle = handle;
    ASSERT_EQ(call(render.get(), DRM_IOCTL_AMDGPU_GEM_MMAP, &where), 0);
    auto* bytes = static_cast<char*>(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, render.get(),
                                            static_cast<off_t>(where.out.addr_ptr)));
    ASSERT_NE(static_cast<void*>(bytes), MAP_FAILED);
    std::memset(bytes, 7, kBytes);
    struct {
      std::uint32_t handle, pad;
    } close{handle, 0};
    EXPECT_EQ(call(render.get(), _IOW('d', 0x09, decltype(close)), &close), 0);
    EXPECT_EQ(::munmap(bytes + kBytes / 2, kBytes / 2), 0);  // half of it stays
    EXPECT_EQ(control_->counts().bos, before.bos + 1);
    render.reset();
    EXPECT_EQ(bytes[4097], 7);
    EXPECT_EQ(::munmap(bytes, kBytes / 2), 0);
    EXPECT_EQ(control_->counts(), before);
  });
}

TEST_F(KernelDevice, AChildSharesTheBoButNotTheDoorbells) {
  apart([&] {
    Mapped m = mapped();
    const std::uint64_t offset = std::uint64_t{3} << 62 | std::uint64_t{gpu_id_} << 46;
    const std::size_t slice = control_->config().gpus[0].doorbell_bytes;
    auto* doorbells = static_cast<volatile char*>(
        ::mmap(nullptr, slice, PROT_READ | PROT_WRITE, MAP_SHARED, m.kfd.get(), static_cast<off_t>(offset)));
    ASSERT_NE(const_cast<char*>(doorbells), MAP_FAILED);
    doorbells[0] = 1;
    m.bytes[0] = 1;
    pid_t child = ::fork();
    if (child == 0) {
      m.bytes[0] = 2;
      ::_exit(0);
    }
    EXPECT_EQ(exit_status(child), 0);
    EXPECT_EQ(m.bytes[0], 2);
    child = ::fork();
    if (child == 0) {
      unsigned char resident = 0;
      const bool gone = ::mincore(const_cast<char*>(doorbells), 4096, &resident) == -1 && errno == ENOMEM;
      ::_exit(gone ? 0 : 1);
    }
    EXPECT_EQ(exit_status(child), 0);
    EXPECT_EQ(doorbells[0], 1);
  });
}

TEST_F(KernelDevice, AMapOfTheDmaBufShowsTheSamePages) {
  apart([&] {
    const Fd render = open_render(*control_, 0);
    union drm_amdgpu_gem_create create {};
    create.in.bo_size = kBytes;
    create.in.domains = AMDGPU_GEM_DOMAIN_GTT;
    ASSERT_EQ(call(render.get(), DRM_IOCTL_AMDGPU_GEM_CREATE, &create), 0);
    union drm_amdgpu_gem_mmap where {};
    where.in.handle = create.out.handle;
    ASSERT_EQ(call(render.get(), DRM_IOCTL_AMDGPU_GEM_MMAP, &where), 0);
    auto* bytes = static_cast<char*>(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, render.get(),
                                            static_cast<off_t>(where.out.addr_ptr)));
    struct {
      std::uint32_t handle, flags;
      std::int32_t fd;
    } prime{create.out.handle, O_RDWR | O_CLOEXEC, -1};
    ASSERT_EQ(call(render.get(), _IOWR('d', 0x2d, decltype(prime)), &prime), 0);
    const Fd dmabuf(prime.fd);
    EXPECT_EQ(::lseek(dmabuf.get(), 0, SEEK_END), static_cast<off_t>(kBytes));
    auto* half = static_cast<char*>(
        ::mmap(nullptr, kBytes / 2, PROT_READ | PROT_WRITE, MAP_SHARED, dmabuf.get(), kBytes / 2));
    ASSERT_NE(static_cast<void*>(half), MAP_FAILED);
    half[5] = 'h';
    EXPECT_EQ(bytes[kBytes / 2 + 5], 'h');
    bytes[kBytes - 1] = 'z';
    EXPECT_EQ(half[kBytes / 2 - 1], 'z');
    EXPECT_EQ(::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, dmabuf.get(), 4096), MAP_FAILED);
    EXPECT_EQ(errno, EINVAL);
  });
}

TEST_F(KernelDevice, AKfdProcessDiesWithItsMemoryNotWithItsFiles) {
  int sockets[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
  const Fd ours(sockets[0]), theirs(sockets[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    const Mapped m = mapped();
    ::_exit(send_fd(theirs.get(), m.kfd.get()) && send_fd(theirs.get(), m.render.get()) ? 0 : 1);
  }
  Fd kfd = receive_fd(ours.get()), render = receive_fd(ours.get());
  EXPECT_EQ(exit_status(child), 0);
  EXPECT_FALSE(control_->process(child).has_value());
  const Counts now = control_->counts();
  EXPECT_EQ(now.bos, before_.bos);
  EXPECT_EQ(now.kfd_files, before_.kfd_files + 1);
  kfd_ioctl_get_version_args version{};
  EXPECT_EQ(call(kfd.get(), AMDKFD_IOC_GET_VERSION, &version), EBADF);
  kfd.reset();
  render.reset();
  EXPECT_EQ(control_->counts(), before_);
}

TEST_F(KernelDevice, ExecveEndsTheKfdProcess) {
  int pipes[2];
  ASSERT_EQ(::pipe2(pipes, O_CLOEXEC), 0);
  const Fd reader(pipes[0]);
  Fd writer(pipes[1]);
  int hold[2];
  ASSERT_EQ(::pipe2(hold, 0), 0);
  const Fd hold_reader(hold[0]);
  Fd hold_writer(hold[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    const Mapped m = mapped();
    ::fcntl(m.kfd.get(), F_SETFD, 0);  // stays open in the next program
    ::dup2(hold_reader.get(), STDIN_FILENO);
    ::close(hold_writer.release());
    ::execlp("cat", "cat", static_cast<char*>(nullptr));
    ::_exit(127);
  }
  writer.reset();
  char nothing = 0;
  EXPECT_EQ(::read(reader.get(), &nothing, 1), 0);  // closed by execve
  EXPECT_FALSE(control_->process(child).has_value());
  EXPECT_EQ(control_->counts().kfd_files, before_.kfd_files + 1);
  EXPECT_EQ(control_->counts().bos, before_.bos);
  hold_writer.reset();
  EXPECT_EQ(exit_status(child), 0);
  EXPECT_EQ(control_->counts(), before_);
}

TEST_F(KernelDevice, ArgumentsInMemoryThatIsNotThereAreFaults) {
  apart([&] {
    Mapped m = mapped();
    Pages pages(2 * 4096);
    auto* ids = reinterpret_cast<std::uint32_t*>(pages.data() + 4096) - 1;  // two of them cross a page
    ids[0] = ids[1] = gpu_id_;
    ASSERT_EQ(::mprotect(pages.data() + 4096, 4096, PROT_NONE), 0);
    kfd_ioctl_map_memory_to_gpu_args args{};
    args.handle = m.bo.handle;
    args.device_ids_array_ptr = reinterpret_cast<std::uint64_t>(ids);
    args.n_devices = 2;
    EXPECT_EQ(call(m.kfd.get(), AMDKFD_IOC_MAP_MEMORY_TO_GPU, &args), EFAULT);
    args.n_devices = 1;
    EXPECT_EQ(call(m.kfd.get(), AMDKFD_IOC_MAP_MEMORY_TO_GPU, &args), 0);
    kfd_ioctl_get_process_apertures_new_args apertures{};
    apertures.num_of_nodes = 1;
    apertures.kfd_process_device_apertures_ptr = reinterpret_cast<std::uint64_t>(pages.data());
    ASSERT_EQ(::mprotect(pages.data(), 4096, PROT_READ), 0);
    EXPECT_EQ(call(m.kfd.get(), AMDKFD_IOC_GET_PROCESS_APERTURES_NEW, &apertures), EFAULT);
    EXPECT_EQ(call(m.kfd.get(), AMDKFD_IOC_GET_VERSION, nullptr), EFAULT);
  });
}

TEST_F(KernelDevice, ArgumentsMayLieInABosMap) {
  apart([&] {
    Mapped m = mapped();
    std::memcpy(m.bytes + 4096, &gpu_id_, sizeof(gpu_id_));
    kfd_ioctl_map_memory_to_gpu_args args{};
    args.handle = m.bo.handle;
    args.device_ids_array_ptr = reinterpret_cast<std::uint64_t>(m.bytes + 4096);
    args.n_devices = 1;
    EXPECT_EQ(call(m.kfd.get(), AMDKFD_IOC_MAP_MEMORY_TO_GPU, &args), 0);
    kfd_ioctl_get_process_apertures_new_args apertures{};
    apertures.num_of_nodes = 1;
    apertures.kfd_process_device_apertures_ptr = reinterpret_cast<std::uint64_t>(m.bytes + 12288);
    EXPECT_EQ(call(m.kfd.get(), AMDKFD_IOC_GET_PROCESS_APERTURES_NEW, &apertures), 0);
    kfd_process_device_apertures first;
    std::memcpy(&first, m.bytes + 12288, sizeof(first));
    EXPECT_EQ(first.gpu_id, gpu_id_);
  });
}

TEST_F(KernelDevice, APrivateMapOnlyReservesAddresses) {
  apart([&] {
    Mapped m = mapped();
    const auto offset = static_cast<off_t>(m.bo.offset);
    EXPECT_EQ(::mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE, m.render.get(), offset), MAP_FAILED);
    EXPECT_EQ(errno, EINVAL);
    void* reserved = ::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE, m.render.get(), offset);
    ASSERT_NE(reserved, MAP_FAILED);
    EXPECT_EQ(::mprotect(reserved, kBytes, PROT_READ | PROT_WRITE), -1);
    EXPECT_EQ(errno, EACCES);
  });
}

TEST_F(KernelDevice, UserMemoryOfADeadMappingFailsTheJob) {
  apart([&] {
    Gpu gpu(*control_, 0);
    ASSERT_TRUE(gpu.ok());
    Pages pages(kBytes);
    std::memset(pages.data(), 3, kBytes);
    const Gpu::Memory user = gpu.user_memory(pages.data(), kBytes);
    const Gpu::Memory vram = gpu.allocate(kBytes, AMDGPU_GEM_DOMAIN_VRAM);
    ASSERT_NE(user.bo, nullptr);
    EXPECT_EQ(gpu.run(Gpu::copy(user.va, vram.va, kBytes)), 0);
    ASSERT_EQ(::mprotect(pages.data(), kBytes, PROT_NONE), 0);
    EXPECT_EQ(gpu.run(Gpu::copy(vram.va, user.va, kBytes)), -ECANCELED);
  });
}

}  // namespace
}  // namespace vamdgpu::test
