// SPDX-License-Identifier: MIT
// Virtual SDMA engines (see engine.h). Which job is whose turn is decided under the shared lock from the
// model's own queues; translation of addresses too, a batch at a time; bytes are moved without the lock.
// Between a pool and the process' own memory bytes move through a map of the pool, with vector stores;
// whatever that does not fit goes by pread and pwrite on the pool file, where a bad userptr is an error
// number instead of a signal.
#include "engine.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "../model/sdma.h"
#include "dma_copy.h"
#include "own_thread.h"
#include "raw.h"

namespace vamdgpu {
namespace {

constexpr std::uint32_t kMaxThreads = 64;
constexpr std::uint32_t kMaxThreadsPerGpu = 4;
constexpr std::uint64_t kIdleNs = 250'000'000;
constexpr std::size_t kBounceBytes = 256 * 1024;
constexpr int kBatch = 128;
constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;

struct Worker {
  pthread_t thread{};
  std::uint32_t gpu = 0;
  bool used = false;     // `thread` is to be joined
  bool running = false;  // still takes jobs
};

// Everything is guarded by the shared lock. `pid` says whose this is: after fork the child finds its
// parent's.
struct Engine {
  int pid = 0;
  bool stopping = false;
  Worker workers[kMaxThreads];
  std::uint32_t idle[VAMDGPU_MAX_GPUS] = {};
  std::uint32_t running[VAMDGPU_MAX_GPUS] = {};
  std::atomic<std::uint32_t> doorbell{0};  // futex: a job was submitted or finished
};

Engine g_engine;

int own_pid() {
  return static_cast<int>(::syscall(SYS_getpid));
}

void ring_doorbell() {
  g_engine.doorbell.fetch_add(1);
  ::syscall(SYS_futex, &g_engine.doorbell, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, INT32_MAX, nullptr, nullptr, 0);
}

// ---- moving bytes
// ----------------------------------------------------------------------------------------------------

// One side of a copy, resolved: a place in a pool, or in a process's memory.
struct Place {
  std::uint32_t pool;  // VAM_POOL_VRAM, VAM_POOL_GTT; VAM_POOL_NONE: memory
  std::uint32_t gpu;
  std::uint64_t offset;  // in the pool, or address
  std::int32_t pid;      // whose memory
};

struct Move {
  bool fill;
  std::uint32_t value;
  Place from, to;
  std::uint64_t bytes;
};

// What a thread has to itself.
class Mover {
 public:
  explicit Mover(const Local& local) : local_(local), pid_(own_pid()) {
    for (auto& gpu : pools_) gpu[0] = gpu[1] = Pool{};
  }
  ~Mover() {
    for (auto& gpu : pools_) {
      for (const Pool& pool : gpu) {
        if (pool.map != nullptr) raw::munmap(pool.map, pool.map_bytes);
        if (pool.fd >= 0) raw::close(pool.fd);
      }
    }
    if (bounce_ != nullptr) raw::munmap(bounce_, kBounceBytes);
  }
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  // 0 or -errno.
  int run(const Move& move) {
    if (move.fill) return fill(move);
    const bool from_pool = move.from.pool != VAM_POOL_NONE, to_pool = move.to.pool != VAM_POOL_NONE;
    if (from_pool && !to_pool && move.to.pid == pid_ && mapped_copy(move.from, move.to, move.bytes, true))
      return 0;
    if (!from_pool && to_pool && move.from.pid == pid_ && mapped_copy(move.to, move.from, move.bytes, false))
      return 0;
    if (from_pool && !to_pool && move.to.pid == pid_)
      return pool_io(SYS_pread64, move.from, move.to.offset, move.bytes);
    if (!from_pool && to_pool && move.from.pid == pid_)
      return pool_io(SYS_pwrite64, move.to, move.from.offset, move.bytes);
    return bounced(move);
  }

  // Reads from anywhere into this thread's memory.
  int fetch(const Place& from, void* to, std::uint64_t bytes) {
    const auto address = reinterpret_cast<std::uint64_t>(to);
    if (from.pool != VAM_POOL_NONE) return pool_io(SYS_pread64, from, address, bytes);
    return process_io(SYS_process_vm_readv, from, address, bytes);
  }

  int put(const Place& to, const void* from, std::uint64_t bytes) {
    const auto address = reinterpret_cast<std::uint64_t>(from);
    if (to.pool != VAM_POOL_NONE) return pool_io(SYS_pwrite64, to, address, bytes);
    return process_io(SYS_process_vm_writev, to, address, bytes);
  }

 private:
  // A pool's file, and a map of all of it at a multiple of the huge page, so that huge pages are mapped as
  // such.
  struct Pool {
    int fd = -1;
    char* map = nullptr;
    std::uint64_t map_bytes = 0;
    bool map_failed = false;
  };

  Pool& pool_of(const Place& place) {
    Pool& pool = pools_[place.gpu][place.pool == VAM_POOL_VRAM ? 0 : 1];
    if (pool.fd < 0) {
      const StatePath path = pool_path(local_.directory, static_cast<vam_pool>(place.pool), place.gpu);
      pool.fd = raw::openat(AT_FDCWD, path.c_str(), O_RDWR | O_CLOEXEC, 0);
    }
    return pool;
  }

  int pool_fd(const Place& place) { return pool_of(place).fd; }

  char* pool_map(const Place& place) {
    Pool& pool = pool_of(place);
    if (pool.map != nullptr || pool.map_failed) return pool.map;
    struct stat status;
    pool.map_failed = pool.fd < 0 || raw::fstat(pool.fd, &status) != 0;
    if (pool.map_failed) return nullptr;
    const auto bytes = static_cast<std::uint64_t>(status.st_size);
    void* const reserved =
        raw::mmap(nullptr, bytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    pool.map_failed = reserved == MAP_FAILED;
    if (pool.map_failed) return nullptr;
    auto* const begin = static_cast<char*>(reserved);
    const auto at = reinterpret_cast<std::uintptr_t>(reserved);
    char* const aligned = begin + ((at + kHugePage - 1) / kHugePage * kHugePage - at);
    pool.map_failed =
        raw::mmap(aligned, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, pool.fd, 0) == MAP_FAILED;
    if (aligned > begin) raw::munmap(begin, static_cast<std::size_t>(aligned - begin));
    char* const end = aligned + (bytes + 4095) / 4096 * 4096;
    char* const reserved_end = begin + bytes + kHugePage;
    if (end < reserved_end) raw::munmap(end, static_cast<std::size_t>(reserved_end - end));
    if (pool.map_failed) return nullptr;
    pool.map = aligned;
    pool.map_bytes = bytes;
    return pool.map;
  }

  // Copies between a pool and this process' memory, `out_of_pool` or into it. False: not possible this way.
  bool mapped_copy(const Place& pool, const Place& memory, std::uint64_t bytes, bool out_of_pool) {
    char* const here = reinterpret_cast<char*>(memory.offset);
    char* const map = pool_map(pool);
    if (map == nullptr || !is_mapped(here, bytes)) return false;
    if (out_of_pool) {
      dma_copy(here, map + pool.offset, bytes);
    } else {
      dma_copy(map + pool.offset, here, bytes);
    }
    return true;
  }

  int pool_io(long call, const Place& place, std::uint64_t address, std::uint64_t bytes) {
    const int fd = pool_fd(place);
    if (fd < 0) return -EIO;
    for (std::uint64_t at = 0; at < bytes;) {
      const long n = ::syscall(call, fd, address + at, bytes - at, place.offset + at);
      if (n <= 0) return n < 0 ? -errno : -EIO;
      at += static_cast<std::uint64_t>(n);
    }
    return 0;
  }

  static int process_io(long call, const Place& place, std::uint64_t address, std::uint64_t bytes) {
    for (std::uint64_t at = 0; at < bytes;) {
      iovec here = {reinterpret_cast<void*>(address + at), bytes - at};
      iovec there = {reinterpret_cast<void*>(place.offset + at), bytes - at};
      const long n = ::syscall(call, place.pid, &here, 1UL, &there, 1UL, 0UL);
      if (n <= 0) return n < 0 ? -errno : -EFAULT;
      at += static_cast<std::uint64_t>(n);
    }
    return 0;
  }

  char* bounce() {
    if (bounce_ == nullptr) {
      void* const memory =
          raw::mmap(nullptr, kBounceBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory != MAP_FAILED) bounce_ = static_cast<char*>(memory);
    }
    return bounce_;
  }

  int bounced(const Move& move) {
    if (bounce() == nullptr) return -ENOMEM;
    Place from = move.from, to = move.to;
    for (std::uint64_t at = 0; at < move.bytes;) {
      const std::uint64_t n = std::min<std::uint64_t>(move.bytes - at, kBounceBytes);
      int error = fetch(from, bounce_, n);
      if (error == 0) error = put(to, bounce_, n);
      if (error != 0) return error;
      at += n;
      from.offset += n;
      to.offset += n;
    }
    return 0;
  }

  int fill(const Move& move) {
    if (bounce() == nullptr) return -ENOMEM;
    const std::uint64_t block = std::min<std::uint64_t>(move.bytes, kBounceBytes);
    for (std::uint64_t at = 0; at < block; at += 4)
      std::memcpy(bounce_ + at, &move.value, std::min<std::uint64_t>(4, block - at));
    Place to = move.to;
    for (std::uint64_t at = 0; at < move.bytes;) {
      const std::uint64_t n = std::min<std::uint64_t>(move.bytes - at, block);
      const int error = put(to, bounce_, n);
      if (error != 0) return error;
      at += n;
      to.offset += n;
    }
    return 0;
  }

  const Local& local_;
  int pid_;
  Pool pools_[VAMDGPU_MAX_GPUS][2];
  char* bounce_ = nullptr;
};

Place place_of(const vam_model* model, std::uint32_t bo, std::uint64_t offset) {
  const vam_bo* record = VAM_BO_AT(model, bo);
  if (record->pool == VAM_POOL_NONE) return {VAM_POOL_NONE, 0, record->user_addr + offset, record->owner_pid};
  return {record->pool, record->gpu, record->pool_offset + offset, 0};
}

// ---- one job
// -------------------------------------------------------------------------------------------------------

// Memory that grows, from mmap: engine threads stay away from the program's allocator.
template <typename T>
class Buffer {
 public:
  Buffer() = default;
  ~Buffer() {
    if (data_ != nullptr) raw::munmap(data_, bytes_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T* reserve(std::size_t count) {
    const std::size_t need = std::max<std::size_t>((count * sizeof(T) + 4095) & ~std::size_t{4095}, 4096);
    if (need > bytes_) {
      if (data_ != nullptr) raw::munmap(data_, bytes_);
      void* const memory =
          raw::mmap(nullptr, need, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      data_ = memory == MAP_FAILED ? nullptr : static_cast<T*>(memory);
      bytes_ = memory == MAP_FAILED ? 0 : need;
    }
    return data_;
  }
  T* data() { return data_; }

 private:
  T* data_ = nullptr;
  std::size_t bytes_ = 0;
};

class JobRunner {
 public:
  explicit JobRunner(const Local& local) : local_(local), mover_(local) {}

  // Does everything a job asks for. 0 or -errno: the job failed. Sets the number of bytes moved.
  int run(std::uint32_t job, std::uint64_t* bytes) {
    std::uint32_t ibs = 0;
    {
      Locked locked(local_.shared->lock);
      const vam_model* model = local_.model();
      const vam_job* j = VAM_JOB_AT(model, job);
      ibs = j->num_ibs;
      gpu_ = VAM_FILE_AT(model, j->file)->gpu;
      file_ = j->file;
      listed_count_ = 0;
      if (listed_.reserve(j->num_bos) == nullptr) return -ENOMEM;
      for (std::uint32_t c = j->bos; c != 0; c = VAM_CHUNK_AT(model, c)->next) {
        const vam_chunk* chunk = VAM_CHUNK_AT(model, c);
        for (std::uint32_t i = 0; i < chunk->used; ++i) listed_.data()[listed_count_++] = chunk->word[i];
      }
    }
    std::sort(listed_.data(), listed_.data() + listed_count_);
    *bytes = 0;
    for (std::uint32_t i = 0; i < ibs; ++i) {
      const int error = run_ib(job, i, bytes);
      if (error != 0) return error;
    }
    return write_user_fence(job);
  }

 private:
  bool is_listed(const vam_model* model, std::uint32_t bo) {
    if (VAM_BO_AT(model, bo)->gem_flags & VAM_GEM_VM_ALWAYS_VALID) return true;
    if (VAM_BO_AT(model, bo)->mems != 0 && VAM_FILE_AT(model, file_)->process != 0)
      return true;  // KFD keeps it valid
    return std::binary_search(listed_.data(), listed_.data() + listed_count_, bo);
  }

  int fault(int error, const char* why, std::uint64_t va) {
    Locked locked(local_.shared->lock);
    std::snprintf(local_.shared->debug.last_fault, sizeof(local_.shared->debug.last_fault),
                  "GPU %u: %s (VA 0x%llx)", gpu_, why, static_cast<unsigned long long>(va));
    return error;
  }

  // Copies the IB's dwords out of its BOs.
  int read_ib(std::uint64_t va, std::uint32_t bytes) {
    if (dwords_.reserve(bytes / 4 + 1) == nullptr) return -ENOMEM;
    for (std::uint32_t at = 0; at < bytes;) {
      Place from{};
      std::uint64_t n = 0;
      {
        Locked locked(local_.shared->lock);
        const vam_model* model = local_.model();
        std::uint32_t bo = 0;
        std::uint64_t offset = 0;
        if (vam_vm_translate(model, file_, va + at, 0, &bo, &offset, &n) == 0 && is_listed(model, bo))
          from = place_of(model, bo, offset);
        else
          n = 0;
      }
      if (n == 0) return fault(-EFAULT, "the IB is not mapped or not in the BO list", va + at);
      n = std::min<std::uint64_t>(n, bytes - at);
      const int error = mover_.fetch(from, reinterpret_cast<char*>(dwords_.data()) + at, n);
      if (error != 0) return fault(error, "the IB cannot be read", va + at);
      at += static_cast<std::uint32_t>(n);
    }
    return 0;
  }

  int run_ib(std::uint32_t job, std::uint32_t index, std::uint64_t* bytes) {
    std::uint64_t va = 0;
    vam_sdma_reader reader{};
    {
      Locked locked(local_.shared->lock);
      const vam_model* model = local_.model();
      const std::uint32_t ibs = VAM_JOB_AT(model, job)->ibs;
      va = vam_chain_word(model, ibs, 4 * index) |
           static_cast<std::uint64_t>(vam_chain_word(model, ibs, 4 * index + 1)) << 32;
      reader.count = vam_chain_word(model, ibs, 4 * index + 2) / 4;
      const vamdgpu_gpu_config& config = model->gpu[gpu_].config;
      reader.max_bytes = config.sdma_max_bytes;
      reader.count_is_bytes_less_one = config.family >= 141;
      reader.tolerant = model->config.tolerant_sdma;
      reader.file = file_;
    }
    va &= ~std::uint64_t{31};  // the ring packet has no room for the low bits
    int error = read_ib(va, reader.count * 4);
    if (error != 0) return error;
    reader.dwords = dwords_.data();
    for (bool more = true; more;) {
      Move moves[kBatch];
      int count = 0;
      std::uint64_t unlisted = 0;
      {
        Locked locked(local_.shared->lock);
        const vam_model* model = local_.model();
        while (count < kBatch && more && error == 0) {
          vam_sdma_op op;
          const int got = vam_sdma_next(model, &reader, &op);
          if (got <= 0) {
            more = false;
            error = got;
          } else if (!is_listed(model, op.dst_bo) ||
                     (op.kind == VAM_SDMA_COPY && !is_listed(model, op.src_bo))) {
            unlisted = op.dst_offset;
            reader.fault = "a BO of the job is not in its BO list";
            error = -EFAULT;
          } else {
            Move& move = moves[count++];
            move.fill = op.kind == VAM_SDMA_FILL;
            move.value = op.value;
            move.bytes = op.bytes;
            move.to = place_of(model, op.dst_bo, op.dst_offset);
            if (!move.fill) move.from = place_of(model, op.src_bo, op.src_offset);
          }
        }
      }
      (void)unlisted;
      for (int i = 0; i < count; ++i) {  // what came before the bad packet is done
        const int failed = mover_.run(moves[i]);
        if (failed != 0) return fault(failed, "memory behind a BO cannot be reached", moves[i].to.offset);
        *bytes += moves[i].bytes;
      }
      if (error != 0) return fault(error, reader.fault, reader.fault_va);
    }
    return 0;
  }

  int write_user_fence(std::uint32_t job) {
    Place to{};
    std::uint64_t seq = 0;
    {
      Locked locked(local_.shared->lock);
      const vam_model* model = local_.model();
      const vam_job* j = VAM_JOB_AT(model, job);
      if (j->user_fence_bo == 0) return 0;
      to = place_of(model, j->user_fence_bo, j->user_fence_offset);
      seq = j->seq;
    }
    return mover_.put(to, &seq, sizeof(seq));
  }

  const Local& local_;
  Mover mover_;
  Buffer<std::uint32_t> dwords_;
  Buffer<std::uint32_t> listed_;
  std::size_t listed_count_ = 0;
  std::uint32_t gpu_ = 0, file_ = 0;
};

// ---- taking turns
// ---------------------------------------------------------------------------------------------------

// A job of this process on `gpu` whose turn it is. Lock held. *waiting: some job waits for fences.
std::uint32_t pick(vam_model* model, std::uint32_t gpu, bool* waiting) {
  const int pid = own_pid();
  std::uint32_t best = 0;
  *waiting = false;
  for (std::uint32_t i = 1; i < model->table[VAM_T_JOB].high; ++i) {
    const vam_job* job = VAM_JOB_AT(model, i);
    if (!job->rec.live || job->running || job->owner_pid != pid || VAM_FILE_AT(model, job->file)->gpu != gpu)
      continue;
    if (VAM_CTX_AT(model, job->ctx)->entity[job->ring].job_head != i) continue;
    if (!vam_job_ready(model, i)) {
      *waiting = true;
      continue;
    }
    // The oldest first: fence numbers of a GPU ascend.
    if (best == 0 ||
        VAM_FENCE_AT(model, job->fence)->number < VAM_FENCE_AT(model, VAM_JOB_AT(model, best)->fence)->number)
      best = i;
  }
  return best;
}

// Waits until the rate limit of the GPU would have let these bytes through. Engines of a GPU share the limit.
void pace(Shared* shared, std::uint32_t gpu, std::uint64_t bytes, std::uint64_t started) {
  const std::uint64_t rate = shared->debug.bytes_per_s[gpu];
  if (rate == 0 || bytes == 0) return;
  const auto cost = static_cast<std::uint64_t>(static_cast<double>(bytes) * 1e9 / static_cast<double>(rate));
  std::atomic<std::uint64_t>& busy = shared->busy_until_ns[gpu];
  std::uint64_t before = busy.load(), until = 0;
  do {
    until = std::max(before, started) + cost;
  } while (!busy.compare_exchange_weak(before, until));
  const timespec end = {static_cast<time_t>(until / 1'000'000'000), static_cast<long>(until % 1'000'000'000)};
  ::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, nullptr);
}

void run_job(const Local& local, JobRunner* runner, std::uint32_t job, std::uint32_t gpu) {
  const std::uint64_t started = monotonic_ns();
  std::uint64_t bytes = 0;
  bool lost = false;
  {
    Locked locked(local.shared->lock);
    lost = VAM_CTX_AT(local.model(), VAM_JOB_AT(local.model(), job)->ctx)->lost != 0;
  }
  int error = lost ? -ECANCELED : runner->run(job, &bytes);  // nothing of a lost context runs
  pace(local.shared, gpu, bytes, started);
  if (error != 0) error = -ECANCELED;  // what a job that took its engine down is given
  Locked locked(local.shared->lock);
  vam_model* model = local.model();
  local.shared->debug.engine_bytes += bytes;
  local.shared->debug.engine_jobs++;
  std::int32_t injected = 0;
  const vam_fence_fate fate = vam_debug_fence(
      &local.shared->debug, gpu, VAM_FENCE_AT(model, VAM_JOB_AT(model, job)->fence)->number, &injected);
  if (fate == VAM_FENCE_HANGS) {  // stays in flight for ever, as far as anybody can see
    VAM_JOB_AT(model, job)->hung = 1;
    return;
  }
  std::uint32_t fence = 0;
  vam_job_finish(model, job, fate == VAM_FENCE_FAILS ? injected : error, &fence);
  signal_exports(local.shared, local.directory, fence);
  vam_fence_unref(model, fence);
  announce_change(local.shared);
}

std::uint64_t thread_cpu_ns() {
  timespec now;
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

// Sleeps until something is submitted (or, with jobs waiting for fences, until any fence changes). False: too
// long.
bool rest(const Local& local, std::uint32_t doorbell, std::uint32_t change, bool waiting) {
  if (waiting) {
    wait_for_change(local.shared, change, monotonic_ns() + kIdleNs);
    return true;
  }
  const timespec limit = {0, static_cast<long>(kIdleNs)};
  const long result =
      ::syscall(SYS_futex, &g_engine.doorbell, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, doorbell, &limit, nullptr, 0);
  return result == 0 || errno != ETIMEDOUT;
}

void* engine_main(void* argument) {
  auto* self = static_cast<Worker*>(argument);
  const Local& machine = *local();
  const std::uint32_t gpu = self->gpu;
  // A descriptor table of its own, empty: nothing of the process is kept open, nothing of ours is seen there.
  ::syscall(SYS_close_range, 0, ~0U, CLOSE_RANGE_UNSHARE);
  JobRunner runner(machine);
  std::uint64_t cpu = 0;
  bool rested = true;
  machine.shared->lock.lock();
  for (;;) {
    bool waiting = false;
    const std::uint32_t job = g_engine.stopping ? 0 : pick(machine.model(), gpu, &waiting);
    if (job == 0 && (g_engine.stopping || (!waiting && !rested))) break;
    const std::uint32_t doorbell = g_engine.doorbell.load(), change = machine.shared->change.load();
    if (job != 0)
      VAM_JOB_AT(machine.model(), job)->running = 1;
    else
      ++g_engine.idle[gpu];
    machine.shared->lock.unlock();
    if (job != 0) {
      run_job(machine, &runner, job, gpu);
      rested = true;
    } else {
      rested = rest(machine, doorbell, change, waiting);
    }
    const std::uint64_t now = thread_cpu_ns();
    machine.shared->lock.lock();
    machine.shared->debug.engine_cpu_ns += now - cpu;
    cpu = now;
    if (job == 0) --g_engine.idle[gpu];
  }
  --g_engine.running[gpu];
  self->running = false;
  machine.shared->lock.unlock();
  return nullptr;
}

void adopt_engine() {
  const int pid = own_pid();
  if (g_engine.pid == pid) return;
  for (Worker& worker : g_engine.workers) worker = Worker();
  for (std::uint32_t gpu = 0; gpu < VAMDGPU_MAX_GPUS; ++gpu) g_engine.idle[gpu] = g_engine.running[gpu] = 0;
  g_engine.stopping = false;
  g_engine.pid = pid;
}

void start_worker(std::uint32_t gpu) {
  for (Worker& worker : g_engine.workers) {
    if (worker.running) continue;
    if (worker.used) ::pthread_join(worker.thread, nullptr);  // it gave its last sign with the lock held
    worker.used = false;
    worker.gpu = gpu;
    worker.running = start_own_thread("vamdgpu-sdma", engine_main, &worker, &worker.thread);
    worker.used = worker.running;
    if (worker.running) ++g_engine.running[gpu];
    return;
  }
}

// A thread for a job that waits to be run, if none is idle.
void start_worker_for(const vam_model* model, std::uint32_t job) {
  const std::uint32_t gpu = VAM_FILE_AT(model, VAM_JOB_AT(model, job)->file)->gpu;
  const std::uint32_t limit = std::min(model->gpu[gpu].config.sdma_instances, kMaxThreadsPerGpu);
  if (g_engine.idle[gpu] == 0 && g_engine.running[gpu] < limit) start_worker(gpu);
}

}  // namespace

void engine_submit(const Local& machine, std::uint32_t job) {
  adopt_engine();
  start_worker_for(machine.model(), job);
  ring_doorbell();
}

void engine_stop_if_unused(const Local& machine) {
  pthread_t threads[kMaxThreads];
  std::uint32_t count = 0;
  const int pid = own_pid();
  {
    Locked locked(machine.shared->lock);
    if (g_engine.pid != pid || g_engine.stopping) return;
    const vam_model* model = machine.model();
    for (std::uint32_t i = 1; i < model->table[VAM_T_CTX].high; ++i) {
      const vam_ctx* ctx = VAM_CTX_AT(model, i);
      if (ctx->rec.live && !ctx->closed && VAM_FILE_AT(model, ctx->file)->opener_pid == pid) return;
    }
    for (std::uint32_t i = 1; i < model->table[VAM_T_JOB].high; ++i) {
      const vam_job* job = VAM_JOB_AT(model, i);
      if (job->rec.live && job->owner_pid == pid && !job->running) return;
    }
    for (Worker& worker : g_engine.workers) {
      if (!worker.used) continue;
      threads[count++] = worker.thread;
      worker.used = false;
    }
    if (count == 0) return;
    g_engine.stopping = true;
  }
  ring_doorbell();
  announce_change(machine.shared);
  for (std::uint32_t i = 0; i < count; ++i) ::pthread_join(threads[i], nullptr);
  Locked locked(machine.shared->lock);
  g_engine.stopping = false;
  // Another thread may have made a context meanwhile and submitted to engines that were about to stop.
  const vam_model* model = machine.model();
  for (std::uint32_t i = 1; i < model->table[VAM_T_JOB].high; ++i) {
    const vam_job* job = VAM_JOB_AT(model, i);
    if (job->rec.live && job->owner_pid == pid && !job->running) start_worker_for(model, i);
  }
  ring_doorbell();
}

}  // namespace vamdgpu
