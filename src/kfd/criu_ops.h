// SPDX-License-Identifier: MIT
// The KFD's five CRIU operations as objects that enforce what must happen once, in order, on one thread.
//
//   dump     PROCESS_INFO (queues stop) -> CHECKPOINT -> [copy contents] -> UNPAUSE   on the *target's* file
//   restore  RESTORE -> [copy contents] -> RESUME                                     on files of our own
//
// A CriuSession is one KFD process being dumped. It holds a descriptor of the target's open /dev/kfd. The
// kernel accepts it only from the thread that ptrace-attached the target's lead thread. So a session belongs
// to the thread that made it (thread-bound), and its calls refuse every other thread. An UnpauseGuard owns
// all sessions of a dump from before their queues stop until they run again. So no path out of the plugin
// leaves a queue stopped.
//
// Sources: kfd_chardev.c (kfd_ioctl, criu_process_info, criu_checkpoint, criu_unpause, criu_restore,
// criu_resume), Linux 6.1 to 7.3.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "kfd/device.h"
#include "kfd/ioctl_call.h"
#include "kfd/topology.h"

namespace sluice::kfd {

// The counts that PROCESS_INFO reports and CHECKPOINT checks again.
struct ProcessInfo {
  std::uint32_t num_devices = 0;  // GPUs visible to the target, used or not
  std::uint32_t num_bos = 0;
  std::uint32_t num_objects = 0;  // queues, events, SVM ranges
  std::uint32_t pid = 0;          // of the target's lead thread, in its own pid namespace
  std::uint64_t priv_data_bytes = 0;
};

// A BO as the kernel's bucket describes it and expects it back.
struct KfdBo {
  std::uint64_t addr = 0;  // GPU VA
  std::uint64_t bytes = 0;
  // mmap offset at the time of the dump: of /dev/kfd for DOORBELL and MMIO_REMAP, else of the render node
  std::uint64_t offset = 0;
  std::uint32_t gpu_id = 0;  // user gpu_id
  std::uint32_t alloc_flags = 0;

  bool operator==(const KfdBo&) const = default;
};

struct Checkpoint {
  ProcessInfo info;
  std::vector<DeviceIds> devices;
  std::vector<KfdBo> bos;               // in the order of their records
  std::vector<UniqueFd> dmabufs;        // one per BO; valid iff has_contents(alloc_flags)
  std::vector<std::uint8_t> priv_data;  // opaque: RESTORE expects the same bytes
};

class CriuSession {
 public:
  // `target_kfd`: a descriptor of the target's own open file (SCM_RIGHTS or pidfd_getfd; a new open would
  // create a KFD file of ours). `name` is used in messages ("process 4711"). Stops nothing yet. The calling
  // thread becomes the session's thread.
  CriuSession(UniqueFd target_kfd, std::string name, IoctlFunction ioctl_function = system_ioctl);
  ~CriuSession();  // unpauses if necessary and closes; errors are lost here: call unpause() to see them
  CriuSession(const CriuSession&) = delete;
  CriuSession& operator=(const CriuSession&) = delete;

  // Ends a pause left behind by an older dump that was killed; without one it does nothing. Further calls do
  // nothing. With several sessions, call it for all of them before the first process_info(): the kernel does
  // not distinguish an old pause from a new one. Errors: the kernel's, except EBADF and EACCES, which
  // process_info() explains.
  Result<void> end_older_pause();
  // Whether it found such a pause.
  bool found_paused() const { return found_paused_; }

  // PROCESS_INFO: stops the target's queues and counts its objects, after end_older_pause(). EALREADY while
  // they are stopped: a second one would stop them twice, and UNPAUSE starts them once. Errors:
  // EBADF (wrong thread, or it does not trace the target), EACCES (capability), ENODEV (the target sees no
  // GPU), EOPNOTSUPP (a kind of queue that cannot be dumped), EOVERFLOW (more private data than an image can
  // hold).
  Result<ProcessInfo> process_info();

  // CHECKPOINT. Needs process_info() first (EINVAL), once for each (EALREADY). The dma-buf descriptors are
  // close-on-exec. Errors: as above; EINVAL (the target's BOs or queues changed: it was not stopped), EMFILE,
  // ENOMEM, EFAULT, EIO (the kernel's answer contradicts itself).
  Result<Checkpoint> checkpoint();

  // Whether the open file behind `kfd_fd`, a borrowed descriptor of another file of the target, belongs to
  // this session's KFD process. Needs a successful process_info() (EINVAL). It issues a CHECKPOINT that
  // cannot begin: the kernel compares state and counts before it uses the caller's pointers, which are
  // invalid. Changes nothing. Also true for another stopped process with exactly the same counts, so a caller
  // with several sessions asks all of them. Errors: EBADF (this thread does not trace the file's process),
  // EACCES, ENODEV; EIO (an unexpected answer).
  Result<bool> same_process(int kfd_fd);

  // UNPAUSE, if PROCESS_INFO succeeded and was not undone; else success without a system call. After a
  // success process_info() may stop the queues again. After an error they are still stopped, and a later call
  // tries again.
  Result<void> unpause();

  // The same without reporting errors: allocates nothing. May run on top of any call of this session, even as
  // PROCESS_INFO returns; if nothing was paused, the kernel's EINVAL is ignored.
  void unpause_at_exit() noexcept;

  // Closes the target's file: no calls after this. REQUIRES: not paused().
  void close() { kfd_.reset(); }

  bool paused() const { return paused_; }
  int fd() const { return kfd_.get(); }
  const std::string& name() const { return name_; }

 private:
  Result<void> on_own_thread(const char* operation) const;
  int call_unpause() noexcept;

  UniqueFd kfd_;
  std::string name_;
  IoctlFunction ioctl_;
  pid_t owner_tid_;
  ProcessInfo info_;
  bool older_pause_ended_ = false;
  bool asked_ = false;
  bool checkpointed_ = false;
  bool found_paused_ = false;
  bool paused_ = false;
};

// Owns the sessions of one dump. Thread-bound like them.
class UnpauseGuard {
 public:
  UnpauseGuard() = default;
  ~UnpauseGuard();  // unpauses, errors lost
  UnpauseGuard(const UnpauseGuard&) = delete;
  UnpauseGuard& operator=(const UnpauseGuard&) = delete;

  // Makes a session owned by this guard. The reference is valid for the guard's life.
  CriuSession& open_session(UniqueFd target_kfd, std::string name,
                            IoctlFunction ioctl_function = system_ioctl);

  // Unpauses every paused session: process_info() may follow. After a failure the others are still unpaused,
  // and the first error is returned.
  Result<void> let_run();
  // For good: closes those that run. After a failure the others are still unpaused;
  // the first error is returned, and a later call tries again. Idempotent.
  Result<void> unpause_all();

  // For a process that ends on top of whatever it was doing, even a call of this guard: unpauses all
  // sessions. Allocates nothing.
  void unpause_at_exit() noexcept;

  std::size_t paused_count() const;

 private:
  std::list<CriuSession> sessions_;  // sessions never move or go: unpause_at_exit() may come at any time
};

struct RestoreDevice {
  std::uint32_t user_gpu_id = 0;
  std::uint32_t actual_gpu_id = 0;
  int drm_fd = -1;  // borrowed, while the kernel keeps a reference to the file: the one through which this
                    // GPU's BOs are mapped
};

struct RestoredBo {
  std::uint64_t offset = 0;  // the new mmap offset; 0 for userptr BOs, which have none
  UniqueFd dmabuf;           // valid iff has_contents(alloc_flags); read-write, close-on-exec
};

// RESTORE: creates GPU VMs, BOs, queues and events of `kfd`'s process. It must be the caller,
// single-threaded, and must not have used its KFD yet; `devices` names every GPU visible to it. The BOs are
// empty and the queues stopped. After a failure, half of it may exist until the process ends: give the
// process up. Errors: EINVAL (text lists what the arguments show, or what the kernel compares), EPERM
// (XNACK), ENODEV, ENOMEM, EMFILE, EACCES, EIO.
Result<std::vector<RestoredBo>> restore(const KfdDevice& kfd, std::span<const RestoreDevice> devices,
                                        std::span<const KfdBo> bos, std::uint32_t num_objects,
                                        std::span<const std::uint8_t> priv_data);

enum class ResumeOutcome { Resumed, NotGpuProcess };

// RESUME of process `pid` (in the caller's pid namespace), from any process with the capability, on its own
// file. Memory of the process must be at its final addresses. Errors: EINVAL (not restored, or resumed
// before), EACCES.
Result<ResumeOutcome> resume(const KfdDevice& kfd, pid_t pid);

// A GPU, and a render file of it that its VM may be taken from.
struct GpuFile {
  std::uint32_t gpu_id = 0;
  int drm_fd = -1;  // borrowed
};

// Size in bytes of a BO's record in the private data that this kernel writes and expects. Compare it with the
// image's before RESTORE, which would fail half-way. Measured: takes a VM on each GPU, allocates a page on
// the first and reads PROCESS_INFO of the caller. The caller's KFD process keeps the VMs until its address
// space is gone, so it can no longer RESTORE. REQUIRES a process that never will (CRIU's main process, a
// helper) and render files opened for this. `kfd` must be the caller's, `gpus` every GPU that it sees: Linux
// 6.1 follows a NULL pointer when the queues of a process start that lacks a VM
// (restore_process_queues_cpsch). So the kernel is asked how many there are, and one too few is ENODEV before
// anything stops. Errors: those of the calls; EBUSY if the process already has BOs, queues or events.
Result<std::uint32_t> probe_bo_record_bytes(const KfdDevice& kfd, std::span<const GpuFile> gpus);

}  // namespace sluice::kfd
