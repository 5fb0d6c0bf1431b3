// SPDX-License-Identifier: MIT
// The shared state of a virtual machine: one file, mapped by every process on the machine and by its
// controllers. It holds the device model, a lock over it, the trace, faults to inject, and the word that
// waiters sleep on.
//
//   DIR/state       this segment           DIR/files/     one file per open device file
//   DIR/vram-N      VRAM pool of GPU N     DIR/bufs/      one file per exported dma-buf
//   DIR/gtt-N       GTT pool of GPU N      DIR/syncobjs/  one file per exported syncobj
//   DIR/doorbells   doorbell, MMIO pages   DIR/fences/    one FIFO per exported fence not yet signalled
//
// Everything in the segment but atomics is read and written only under `lock`. No pointers: it is mapped at
// different addresses. The functions here make system calls only through raw:: and allocate nothing.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "../model/debug.h"

namespace vamdgpu {

// A lock in shared memory that survives the death of its holder (kill -9 in the middle included): the word is
// the holder's thread id; a waiter that finds the holder dead takes over.
class SharedLock {
 public:
  void lock();
  void unlock();

 private:
  std::atomic<std::uint32_t> word_;  // thread id, bit 31: somebody waits
};

class Locked {
 public:
  explicit Locked(SharedLock& lock) : lock_(lock) { lock_.lock(); }
  ~Locked() { lock_.unlock(); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  SharedLock& lock_;
};

constexpr std::uint64_t kSharedMagic = 0x31756d6461766c73;

struct Shared {
  std::uint64_t magic;
  std::uint64_t bytes;  // of the whole segment
  std::uint64_t model_offset;
  alignas(64) SharedLock lock;
  // Bumped whenever something that can be waited for changes; a futex.
  alignas(64) std::atomic<std::uint32_t> change;
  std::atomic<std::uint32_t> waiters;
  alignas(64) std::uint64_t next_name;                         // of files in the directory
  std::atomic<std::uint64_t> busy_until_ns[VAMDGPU_MAX_GPUS];  // by the rate limit of a GPU's engines
  vam_debug debug;

  // What `magic` must be: two builds with different layouts do not meet.
  static constexpr std::uint64_t layout() {
    return kSharedMagic ^ sizeof(Shared) << 20 ^ sizeof(vam_model) << 40 ^ sizeof(vam_bo) ^
           sizeof(vam_job) << 8;
  }

  vam_model* model() { return reinterpret_cast<vam_model*>(reinterpret_cast<char*>(this) + model_offset); }
};

// How many records of each kind a machine has room for.
vam_limits machine_limits();

// Maps DIR/state. nullptr with errno when there is none. `device` gets the st_dev of the directory's files.
Shared* map_shared(const char* directory, std::uint64_t* device);

// Wakes everybody who waits for `change`. Any thread, with or without the lock.
void announce_change(Shared* shared);

// Waits until `change` is not `seen` any more or the absolute monotonic deadline has passed (UINT64_MAX: for
// ever). 0 changed, ETIMEDOUT, EINTR.
int wait_for_change(Shared* shared, std::uint32_t seen, std::uint64_t deadline_ns);

std::uint64_t monotonic_ns();

// ---- names of files in the directory
// -----------------------------------------------------------------------------

// A path below the machine's directory: "<directory>/<what><number>".
class StatePath {
 public:
  StatePath(const char* directory, const char* what, std::uint64_t number);
  const char* c_str() const { return text_; }

 private:
  char text_[512];
};

StatePath pool_path(const char* directory, enum vam_pool pool, std::uint32_t gpu);

// What kind of file of ours an fstat result is, and the index of its record (in the modification time).
enum class FileKind : std::uint32_t { None = 0, Kfd = 1, Render = 2, DmaBuf = 3, Syncobj = 4, Fence = 5 };
struct FileTag {
  FileKind kind = FileKind::None;
  std::uint32_t index = 0;
};
FileTag tag_of(const struct stat& status, std::uint64_t device);

// Makes (or opens again) a tagged file and opens it with `flags`; the open file holds a shared flock, by
// which file_is_open() knows that somebody still has it. Returns an fd or -errno; *inode identifies it.
int create_tagged(const char* path, FileTag tag, int flags, std::uint64_t size, std::uint64_t* inode);
int open_tagged(const char* path, int flags);
bool file_is_open(const char* path);

// ---- lazy reaping
// -------------------------------------------------------------------------------------------------

// State letter of a thread, as /proc/TID/stat has it; 0 when there is none.
char thread_state(int tid);

// Start time of a process (clock ticks since boot), 0 when it is dead or a zombie.
std::uint64_t process_start_time(int pid);

// Gives back what nobody has any more: device files and dma-bufs that are no longer open anywhere, KFD
// processes and jobs whose process is dead. Call with the lock held. `buffers`: dma-bufs and syncobjs too
// (slower).
void reap(Shared* shared, const char* directory, bool buffers);

// One exported dma-buf or device file, if it is no longer open. Call with the lock held.
void reap_file(Shared* shared, const char* directory, FileTag tag);

// Writes the outcome of a signalled fence into the FIFOs exported for it. Call with the lock held.
void signal_exports(Shared* shared, const char* directory, std::uint32_t fence);

StatePath file_path(const char* directory, const vam_file& file);
StatePath buffer_path(const char* directory, const vam_bo& bo);
StatePath syncobj_path(const char* directory, std::uint64_t inode_name);
StatePath fence_path(const char* directory, std::uint64_t id);

}  // namespace vamdgpu
