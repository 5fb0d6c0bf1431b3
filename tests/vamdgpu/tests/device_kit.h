// SPDX-License-Identifier: MIT
// What the device tests have in common: descriptors that close themselves, KFD ioctls as functions that
// return 0 or errno, and a DRM device through the real libdrm_amdgpu with a DMA ring to copy on. The tests
// run on a virtual machine (vamdgpu-run), which they look into through
// Control.
#pragma once

#include <amdgpu.h>
#include <amdgpu_drm.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/kfd_ioctl.h>
#include <linux/sync_file.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "control.h"

namespace vamdgpu::tests {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~Fd() { reset(); }
  int get() const { return fd_; }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

// 0 or errno.
inline int call(int fd, unsigned long request, void* argument) {
  return ::ioctl(fd, request, argument) == 0 ? 0 : errno;
}

// A message of one byte with room for one descriptor.
struct FdMessage {
  FdMessage() {
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof(space);
  }
  FdMessage(const FdMessage&) = delete;
  FdMessage& operator=(const FdMessage&) = delete;

  char byte = 0;
  iovec data = {&byte, 1};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
};

inline bool send_fd(int socket, int fd) {
  FdMessage carrier;
  cmsghdr* header = CMSG_FIRSTHDR(&carrier.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  return ::sendmsg(socket, &carrier.message, 0) == 1;
}

inline Fd receive_fd(int socket) {
  FdMessage carrier;
  if (::recvmsg(socket, &carrier.message, MSG_CMSG_CLOEXEC) != 1) return Fd();
  const cmsghdr* header = CMSG_FIRSTHDR(&carrier.message);
  if (header == nullptr) return Fd();
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
  return Fd(fd);
}

inline std::unique_ptr<Control> machine() {
  return Control::open_default();
}

inline Fd open_kfd() {
  return Fd(::open("/dev/kfd", O_RDWR | O_CLOEXEC));
}

inline Fd open_render(const Control& control, unsigned gpu) {
  return Fd(::open(("/dev/dri/renderD" + std::to_string(control.config().gpus[gpu].render_minor)).c_str(),
                   O_RDWR | O_CLOEXEC));
}

inline int acquire_vm(int kfd, int render, std::uint32_t gpu_id) {
  kfd_ioctl_acquire_vm_args args{};
  args.drm_fd = static_cast<std::uint32_t>(render);
  args.gpu_id = gpu_id;
  return call(kfd, AMDKFD_IOC_ACQUIRE_VM, &args);
}

struct KfdBo {
  std::uint64_t va = 0, size = 0, handle = 0, offset = 0;
};

inline int alloc(int kfd, std::uint32_t gpu_id, std::uint64_t va, std::uint64_t size, std::uint32_t flags,
                 KfdBo* bo, std::uint64_t user = 0) {
  kfd_ioctl_alloc_memory_of_gpu_args args{};
  args.va_addr = va;
  args.size = size;
  args.gpu_id = gpu_id;
  args.flags = flags;
  args.mmap_offset = user;
  const int error = call(kfd, AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &args);
  *bo = {va, size, args.handle, args.mmap_offset};
  return error;
}

inline int map_to(int kfd, std::uint64_t handle, std::vector<std::uint32_t> gpu_ids) {
  kfd_ioctl_map_memory_to_gpu_args args{};
  args.handle = handle;
  args.device_ids_array_ptr = reinterpret_cast<std::uint64_t>(gpu_ids.data());
  args.n_devices = static_cast<std::uint32_t>(gpu_ids.size());
  return call(kfd, AMDKFD_IOC_MAP_MEMORY_TO_GPU, &args);
}

inline int unmap_from(int kfd, std::uint64_t handle, std::vector<std::uint32_t> gpu_ids) {
  kfd_ioctl_unmap_memory_from_gpu_args args{};
  args.handle = handle;
  args.device_ids_array_ptr = reinterpret_cast<std::uint64_t>(gpu_ids.data());
  args.n_devices = static_cast<std::uint32_t>(gpu_ids.size());
  return call(kfd, AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU, &args);
}

inline int free_bo(int kfd, std::uint64_t handle) {
  kfd_ioctl_free_memory_of_gpu_args args{};
  args.handle = handle;
  return call(kfd, AMDKFD_IOC_FREE_MEMORY_OF_GPU, &args);
}

constexpr std::uint32_t kVram =
    KFD_IOC_ALLOC_MEM_FLAGS_VRAM | KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE;
constexpr std::uint32_t kGtt = KFD_IOC_ALLOC_MEM_FLAGS_GTT | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE;

// Runs `body` in a child process; 0 when all its expectations held.
inline int in_child(const std::function<void()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    body();
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

inline int fence_status(int fd) {
  sync_file_info info{};
  return ::ioctl(fd, SYNC_IOC_FILE_INFO, &info) == 0 ? info.status : -10000;
}

inline int poll_in(int fd, int timeout_ms) {
  pollfd request = {fd, POLLIN, 0};
  return ::poll(&request, 1, timeout_ms) == 1 ? request.revents : 0;
}

// A GPU through libdrm: BOs with VAs, one context, IBs.
class Gpu {
 public:
  Gpu(const Control& control, unsigned index) : index_(index) {
    Fd fd = open_render(control, index);
    std::uint32_t major = 0, minor = 0;
    ok_ = fd.get() >= 0 && amdgpu_device_initialize(fd.get(), &major, &minor, &device_) == 0;
    ok_ = ok_ && amdgpu_cs_ctx_create(device_, &context_) == 0;
    ok_ = ok_ && (ib_ = allocate(kIbBytes, AMDGPU_GEM_DOMAIN_GTT)).bo != nullptr;
    ok_ = ok_ && amdgpu_bo_cpu_map(ib_.bo, reinterpret_cast<void**>(&dwords_)) == 0;
  }
  ~Gpu() {
    if (holder_.context != nullptr) amdgpu_cs_ctx_free(holder_.context);
    if (context_ != nullptr) amdgpu_cs_ctx_free(context_);
    for (Memory& memory : memories_) {
      amdgpu_bo_va_op(memory.bo, 0, memory.size, memory.va, 0, AMDGPU_VA_OP_UNMAP);
      amdgpu_bo_free(memory.bo);
      amdgpu_va_range_free(memory.range);
    }
    if (device_ != nullptr) amdgpu_device_deinitialize(device_);
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  struct Memory {
    amdgpu_bo_handle bo = nullptr;
    amdgpu_va_handle range = nullptr;
    std::uint64_t va = 0, size = 0;
  };

  bool ok() const { return ok_; }
  amdgpu_device_handle device() const { return device_; }
  amdgpu_context_handle context() const { return context_; }
  int fd() const { return amdgpu_device_get_fd(device_); }

  Memory allocate(std::uint64_t size, std::uint32_t domain) {
    amdgpu_bo_alloc_request request{};
    request.alloc_size = size;
    request.phys_alignment = 4096;
    request.preferred_heap = domain;
    Memory memory;
    if (amdgpu_bo_alloc(device_, &request, &memory.bo) != 0) return {};
    return give_va(memory, size);
  }
  Memory user_memory(void* address, std::uint64_t size) {
    Memory memory;
    if (amdgpu_create_bo_from_user_mem(device_, address, size, &memory.bo) != 0) return {};
    return give_va(memory, size);
  }
  Memory import(int dmabuf) {
    amdgpu_bo_import_result result{};
    if (amdgpu_bo_import(device_, amdgpu_bo_handle_type_dma_buf_fd, static_cast<std::uint32_t>(dmabuf),
                         &result) != 0)
      return {};
    Memory memory;
    memory.bo = result.buf_handle;
    return give_va(memory, result.alloc_size);
  }

  static std::vector<std::uint32_t> copy(std::uint64_t from, std::uint64_t to, std::uint32_t bytes) {
    return {1,
            bytes - 1,
            0,
            static_cast<std::uint32_t>(from),
            static_cast<std::uint32_t>(from >> 32),
            static_cast<std::uint32_t>(to),
            static_cast<std::uint32_t>(to >> 32)};
  }
  static std::vector<std::uint32_t> fill(std::uint64_t to, std::uint32_t value, std::uint32_t bytes) {
    return {11u | 2u << 30, static_cast<std::uint32_t>(to), static_cast<std::uint32_t>(to >> 32), value,
            bytes - 1};
  }

  // Submits packets on a ring with every BO of this object listed. 0 or -errno; `seq` identifies the fence.
  int submit(std::vector<std::uint32_t> packets, std::uint64_t* seq, unsigned ring = 0,
             amdgpu_context_handle context = nullptr) {
    while (packets.size() % 8 != 0) packets.push_back(0);
    const std::uint64_t at = next_ib_;
    next_ib_ = (next_ib_ + ((packets.size() * 4 + 255) & ~std::size_t{255})) % kIbBytes;
    std::memcpy(reinterpret_cast<char*>(dwords_) + at, packets.data(), packets.size() * 4);
    std::vector<amdgpu_bo_handle> bos;
    for (Memory& memory : memories_) bos.push_back(memory.bo);
    amdgpu_bo_list_handle list = nullptr;
    const int failed =
        amdgpu_bo_list_create(device_, static_cast<std::uint32_t>(bos.size()), bos.data(), nullptr, &list);
    if (failed != 0) return failed;
    amdgpu_cs_ib_info ib{};
    ib.ib_mc_address = ib_.va + at;
    ib.size = static_cast<std::uint32_t>(packets.size());
    amdgpu_cs_request request{};
    request.ip_type = AMDGPU_HW_IP_DMA;
    request.ring = ring;
    request.resources = list;
    request.number_of_ibs = 1;
    request.ibs = &ib;
    request.number_of_dependencies = held_back_ ? 1 : 0;
    request.dependencies = &holder_;
    const int result = amdgpu_cs_submit(context != nullptr ? context : context_, 0, &request, 1);
    amdgpu_bo_list_destroy(list);
    *seq = request.seq_no;
    return result;
  }

  // What is submitted from now on is not run until release_hung_fences(): it waits for a job of another
  // context, which hangs. 0 or -errno.
  int hold_back(Control* control) {
    const int failed = amdgpu_cs_ctx_create(device_, &holder_.context);
    if (failed != 0) return failed;
    const int result = submit_hanging(control, {0}, &holder_.fence, holder_.context);
    holder_.ip_type = AMDGPU_HW_IP_DMA;
    held_back_ = result == 0;
    return result;
  }
  // Submits on ring 0; returns when the job hangs.
  int submit_hanging(Control* control, const std::vector<std::uint32_t>& packets, std::uint64_t* seq,
                     amdgpu_context_handle context = nullptr) {
    const std::uint64_t hits = control->faults_hit();
    control->hang_fence(index_, control->fences_made(index_) + 1);
    const int result = submit(packets, seq, 0, context);
    while (result == 0 && control->faults_hit() == hits) (void)::sched_yield();
    return result;
  }

  // A sync_file of the fence.
  Fd sync_file(std::uint64_t seq, unsigned ring = 0) {
    amdgpu_cs_fence fence{};
    fence.context = context_;
    fence.ip_type = AMDGPU_HW_IP_DMA;
    fence.ring = ring;
    fence.fence = seq;
    std::uint32_t handle = 0;
    if (amdgpu_cs_fence_to_handle(device_, &fence, AMDGPU_FENCE_TO_HANDLE_GET_SYNC_FILE_FD, &handle) != 0)
      return Fd();
    return Fd(static_cast<int>(handle));
  }

  // Waits for a fence: 0, or the fence's (or the wait's) negative errno; 1 when it took too long.
  int wait(std::uint64_t seq, unsigned ring = 0, std::uint64_t timeout_ns = AMDGPU_TIMEOUT_INFINITE) {
    amdgpu_cs_fence fence{};
    fence.context = context_;
    fence.ip_type = AMDGPU_HW_IP_DMA;
    fence.ring = ring;
    fence.fence = seq;
    std::uint32_t done = 0;
    const int result = amdgpu_cs_query_fence_status(&fence, timeout_ns, 0, &done);
    if (result != 0) return result;
    return done != 0 ? 0 : 1;
  }

  // Submits, waits, and gives the outcome of either.
  int run(const std::vector<std::uint32_t>& packets) {
    std::uint64_t seq = 0;
    const int result = submit(packets, &seq);
    return result != 0 ? result : wait(seq);
  }

  // Takes a memory out again (unmapped and freed).
  void free(const Memory& memory) {
    for (std::size_t i = 0; i < memories_.size(); ++i) {
      if (memories_[i].bo != memory.bo) continue;
      amdgpu_bo_va_op(memory.bo, 0, memory.size, memory.va, 0, AMDGPU_VA_OP_UNMAP);
      amdgpu_bo_free(memory.bo);
      amdgpu_va_range_free(memory.range);
      memories_.erase(memories_.begin() + static_cast<std::ptrdiff_t>(i));
      return;
    }
  }

 private:
  static constexpr std::uint64_t kIbBytes = 65536;

  Memory give_va(Memory memory, std::uint64_t size) {
    memory.size = size;
    if (amdgpu_va_range_alloc(device_, amdgpu_gpu_va_range_general, size, 4096, 0, &memory.va, &memory.range,
                              0) != 0 ||
        amdgpu_bo_va_op(memory.bo, 0, size, memory.va, 0, AMDGPU_VA_OP_MAP) != 0)
      return {};
    memories_.push_back(memory);
    return memory;
  }

  unsigned index_;
  bool ok_ = false;
  amdgpu_cs_fence holder_{};
  bool held_back_ = false;
  amdgpu_device_handle device_ = nullptr;
  amdgpu_context_handle context_ = nullptr;
  Memory ib_;
  std::uint32_t* dwords_ = nullptr;
  std::uint64_t next_ib_ = 0;
  std::vector<Memory> memories_;
};

// Anonymous memory of whole pages.
class Pages {
 public:
  explicit Pages(std::size_t bytes)
      : bytes_(bytes),
        data_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~Pages() { ::munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  unsigned char* data() { return static_cast<unsigned char*>(data_); }
  std::size_t size() const { return bytes_; }

 private:
  std::size_t bytes_;
  void* data_;
};

}  // namespace vamdgpu::tests
