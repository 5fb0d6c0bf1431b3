// SPDX-License-Identifier: MIT
#include "queue_runner.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <stop_token>
#include <system_error>
#include <thread>

#include "front/shared.h"
#include "model/queue_run.h"

namespace vamdgpu {
namespace {

constexpr std::chrono::milliseconds kPause{1};  // between two looks at queues that have nothing to do
constexpr std::uint32_t kPacketsAtOnce = 64;
constexpr std::size_t kBounceBytes = 64 * 1024;

// A pool's file as memory.
class PoolMap {
 public:
  PoolMap() = default;
  ~PoolMap() {
    if (bytes_ != nullptr) (void)::munmap(bytes_, size_);
  }
  PoolMap(const PoolMap&) = delete;
  PoolMap& operator=(const PoolMap&) = delete;

  // nullptr: cannot be mapped.
  char* bytes(const char* path) {
    if (bytes_ != nullptr) return bytes_;
    const int fd = ::open(path, O_RDWR | O_CLOEXEC);
    struct stat status {};
    if (fd < 0) return nullptr;
    if (::fstat(fd, &status) == 0) {
      size_ = static_cast<std::size_t>(status.st_size);
      void* map = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
      if (map != MAP_FAILED) bytes_ = static_cast<char*>(map);
    }
    (void)::close(fd);
    return bytes_;
  }

 private:
  char* bytes_ = nullptr;
  std::size_t size_ = 0;
};

template <class Word>
void copy_word(char* to, const char* from, bool shared_is_target) {
  Word value;
  if (shared_is_target) {
    std::memcpy(&value, from, sizeof(value));
    std::atomic_ref(*reinterpret_cast<Word*>(to)).store(value, std::memory_order_release);
  } else {
    value =
        std::atomic_ref(*reinterpret_cast<Word*>(const_cast<char*>(from))).load(std::memory_order_acquire);
    std::memcpy(to, &value, sizeof(value));
  }
}

// Between a BO and memory of this program: words that programs watch go in one piece.
void copy_shared(char* to, const char* from, std::uint32_t bytes, bool shared_is_target) {
  const auto address = reinterpret_cast<std::uintptr_t>(shared_is_target ? to : from);
  if (bytes == 8 && address % 8 == 0)
    copy_word<std::uint64_t>(to, from, shared_is_target);
  else if (bytes == 4 && address % 4 == 0)
    copy_word<std::uint32_t>(to, from, shared_is_target);
  else
    std::memcpy(to, from, bytes);
}

}  // namespace

class QueueRunner::Impl {
 public:
  explicit Impl(const std::string& directory) : directory_(directory) {
    std::uint64_t device = 0;
    shared_ = map_shared(directory.c_str(), &device);
    if (shared_ == nullptr) throw std::system_error(errno, std::generic_category(), directory);
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }
  ~Impl() {
    thread_.request_stop();
    thread_.join();
    (void)::munmap(shared_, shared_->bytes);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

 private:
  void run(const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any stopped;
    std::unique_lock lock(mutex);
    while (!stop.stop_requested()) {
      if (!look()) (void)stopped.wait_for(lock, stop, kPause, [] { return false; });
    }
  }

  // One step of every queue. Whether any packet was consumed.
  bool look() {
    vam_model* model = shared_->model();
    const vam_queue_run run{model, this, read, write, add64, bounce_.data(), kBounceBytes};
    bool progress = false, events = false;
    {
      Locked locked(shared_->lock);
      for (std::uint32_t queue = vam_queue_runnable(model, 0); queue != 0;
           queue = vam_queue_runnable(model, queue)) {
        vam_queue_out out;
        vam_queue_step(&run, queue, kPacketsAtOnce, &out);
        progress |= out.packets != 0;
        events |= out.events != 0;
      }
    }
    if (events) announce_change(shared_);
    return progress;
  }

  // Memory of a BO; nullptr: not reachable.
  char* memory(const vam_place& place) {
    const vam_bo* bo = VAM_BO_AT(shared_->model(), place.bo);
    PoolMap& pool = pools_[bo->gpu][bo->pool == VAM_POOL_VRAM ? 0 : 1];
    char* bytes = pool.bytes(pool_path(directory_.c_str(), static_cast<vam_pool>(bo->pool), bo->gpu).c_str());
    return bytes != nullptr ? bytes + bo->pool_offset + place.offset : nullptr;
  }

  template <class Transfer>
  int user(Transfer transfer, const vam_place& place, const void* bytes, std::uint32_t size) {
    const iovec here{const_cast<void*>(bytes), size};
    const iovec there{reinterpret_cast<void*>(place.offset), size};
    const pid_t pid = VAM_PROCESS_AT(shared_->model(), place.process)->pid;
    return transfer(pid, &here, 1, &there, 1, 0) == static_cast<ssize_t>(size) ? 0 : -EFAULT;
  }

  static int read(void* shim, const vam_place* from, void* to, std::uint32_t bytes) {
    auto& self = *static_cast<Impl*>(shim);
    if (from->bo == 0) return self.user(::process_vm_readv, *from, to, bytes);
    const char* memory = self.memory(*from);
    if (memory == nullptr) return -EFAULT;
    copy_shared(static_cast<char*>(to), memory, bytes, false);
    return 0;
  }
  static int write(void* shim, const vam_place* to, const void* from, std::uint32_t bytes) {
    auto& self = *static_cast<Impl*>(shim);
    if (to->bo == 0) return self.user(::process_vm_writev, *to, from, bytes);
    char* memory = self.memory(*to);
    if (memory == nullptr) return -EFAULT;
    copy_shared(memory, static_cast<const char*>(from), bytes, true);
    return 0;
  }
  static int add64(void* shim, const vam_place* at, std::uint64_t value) {
    auto& self = *static_cast<Impl*>(shim);
    char* memory = at->bo != 0 ? self.memory(*at) : nullptr;
    if (memory == nullptr) return -EFAULT;
    std::atomic_ref(*reinterpret_cast<std::uint64_t*>(memory)).fetch_add(value);
    return 0;
  }

  std::string directory_;
  Shared* shared_ = nullptr;
  PoolMap pools_[VAMDGPU_MAX_GPUS][2];
  alignas(64) std::array<std::uint8_t, kBounceBytes> bounce_{};
  std::jthread thread_;
};

QueueRunner::QueueRunner(const std::string& directory) : impl_(std::make_unique<Impl>(directory)) {}
QueueRunner::~QueueRunner() = default;

}  // namespace vamdgpu
