// SPDX-License-Identifier: MIT
// The KFD's five CRIU operations as objects: what must happen once, in order, on one thread, cannot be done
// otherwise.
//
//   dump     PROCESS_INFO (queues stop) -> CHECKPOINT -> [copy contents] -> UNPAUSE     on the *target's*
//   file restore  RESTORE -> [copy contents] -> RESUME                                       on files of our
//   own
//
// A CriuSession is one KFD process that is being dumped. It holds a descriptor of the target's open /dev/kfd.
// The kernel lets only the thread that ptrace-attached the target's lead thread use it, so a session belongs
// to the thread that made it (thread-bound): its calls refuse every other thread. An UnpauseGuard owns all
// sessions of a dump, each from before its queues stop to after they run again, so that no way out of the
// plugin leaves a queue stopped.
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

struct CheckpointBo {
  std::uint64_t addr = 0;  // GPU VA
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  // mmap offset: of /dev/kfd for DOORBELL and MMIO_REMAP, else of the render node
  std::uint32_t gpu_id = 0;  // user gpu_id
  std::uint32_t alloc_flags = 0;
  UniqueFd dmabuf;  // valid iff has_contents(alloc_flags)
};

struct Checkpoint {
  ProcessInfo info;
  std::vector<DeviceIds> devices;
  std::vector<CheckpointBo> bos;        // the kernel's order
  std::vector<std::uint8_t> priv_data;  // opaque: RESTORE wants the same bytes back
};

class CriuSession {
 public:
  // `target_kfd`: a descriptor of the target's own open file (SCM_RIGHTS or pidfd_getfd; a new open would be
  // a KFD file of ours). `name` is used in messages ("process 4711"). Stops nothing yet. The calling thread
  // becomes the session's thread.
  CriuSession(UniqueFd target_kfd, std::string name, IoctlFunction ioctl_function = system_ioctl);
  ~CriuSession();  // unpauses if need be, closes; errors are lost here: call unpause() to know
  CriuSession(const CriuSession&) = delete;
  CriuSession& operator=(const CriuSession&) = delete;

  // Ends a pause that an older dump left behind when it was killed; nothing where there is none. Once,
  // further calls do nothing. Where there are several sessions, for all of them before the first
  // process_info(): the kernel does not tell a process that was left paused from one that was just paused.
  // Errors: the kernel's, but for EBADF and EACCES, whose reason process_info() tells.
  Result<void> end_older_pause();
  // Whether it found such a pause.
  bool found_paused() const { return found_paused_; }

  // PROCESS_INFO: stops the target's queues and counts what it has, after end_older_pause(). Once: EALREADY
  // after a success (a second one would stop the queues twice, and UNPAUSE starts them once). Errors: EBADF
  // (wrong thread, or the target is not traced by it), EACCES (capability), ENODEV (the target sees no GPU),
  // EOPNOTSUPP (a kind of queue that cannot be dumped), EOVERFLOW (private data that no image can hold).
  Result<ProcessInfo> process_info();

  // CHECKPOINT. Needs process_info() first (EINVAL), once (EALREADY). The dma-buf descriptors are
  // close-on-exec. Errors: as above; EINVAL (the target's BOs or queues changed: it was not stopped), EMFILE,
  // ENOMEM, EFAULT, EIO (the kernel's answer contradicts itself).
  Result<Checkpoint> checkpoint();

  // Whether the open file behind `kfd_fd`, a borrowed descriptor of another file of the target, belongs to
  // this session's KFD process. Needs a successful process_info() (EINVAL). Asks by a CHECKPOINT that cannot
  // begin: the kernel compares state and counts before it touches the caller's memory, of which there is
  // none. Changes nothing. True as well for another process that stands stopped with the very same counts:
  // whoever has several sessions asks them all. Errors: EBADF (the file's process is not traced by this
  // thread), EACCES, ENODEV; EIO (an answer that is none).
  Result<bool> same_process(int kfd_fd);

  // UNPAUSE, if PROCESS_INFO succeeded and it has not been undone; otherwise success without a system call.
  // After an error the queues still stand, and a later call tries again.
  Result<void> unpause();

  // The same without a word about an error: allocates nothing. Also on top of any call of this session, the
  // moment at which PROCESS_INFO returns included; where nothing was paused the kernel says EINVAL.
  void unpause_at_exit() noexcept;

  // Lets go of the target's file: nothing more is asked. REQUIRES: not paused().
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

// Owns the sessions of one dump. Thread-bound as they are.
class UnpauseGuard {
 public:
  UnpauseGuard() = default;
  ~UnpauseGuard();  // unpauses, errors lost
  UnpauseGuard(const UnpauseGuard&) = delete;
  UnpauseGuard& operator=(const UnpauseGuard&) = delete;

  // Makes a session that this guard owns. The reference stays good until the end of the guard.
  CriuSession& open_session(UniqueFd target_kfd, std::string name,
                            IoctlFunction ioctl_function = system_ioctl);

  // Unpauses every session that is paused, and closes those that run. A failure does not keep the others from
  // being unpaused; the first one is returned, and a later call tries it again. Idempotent.
  Result<void> unpause_all();

  // For a process that ends on top of whatever it was doing, a call of this guard included: unpauses all
  // sessions. Allocates nothing.
  void unpause_at_exit() noexcept;

  std::size_t paused_count() const;

 private:
  std::list<CriuSession> sessions_;  // none moves or goes: unpause_at_exit() may come at any time
};

struct RestoreDevice {
  std::uint32_t user_gpu_id = 0;
  std::uint32_t actual_gpu_id = 0;
  int drm_fd =
      -1;  // borrowed; the kernel keeps a reference to the file: the one to mmap this GPU's BOs through
};

struct RestoreBo {
  std::uint64_t addr = 0;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  // as dumped
  std::uint32_t gpu_id = 0;  // user gpu_id
  std::uint32_t alloc_flags = 0;
};

struct RestoredBo {
  std::uint64_t offset = 0;  // the new mmap offset; 0 for a userptr BO, which has none
  UniqueFd dmabuf;           // valid iff has_contents(alloc_flags); read-write, close-on-exec
};

// RESTORE: creates GPU VMs, BOs, queues and events of `kfd`'s process, which must be the caller, single, and
// must not have used its KFD yet; `devices` names every GPU visible to it. The BOs come back empty, queues
// stopped. On failure half of it may exist until the process ends: give it up. Errors: EINVAL (text lists
// what the arguments show, or what the kernel compares), EPERM (XNACK), ENODEV, ENOMEM, EMFILE, EACCES, EIO.
Result<std::vector<RestoredBo>> restore(const KfdDevice& kfd, std::span<const RestoreDevice> devices,
                                        std::span<const RestoreBo> bos, std::uint32_t num_objects,
                                        std::span<const std::uint8_t> priv_data);

enum class ResumeOutcome { Resumed, NotGpuProcess };

// RESUME of process `pid` (in the caller's pid namespace), from any process with the capability, on its own
// file. Memory of the process must be at its final addresses. Errors: EINVAL (not restored, or resumed
// before), EACCES.
Result<ResumeOutcome> resume(const KfdDevice& kfd, pid_t pid);

// Size in bytes of a BO's record in the private data that this kernel writes and expects: to be compared with
// that of an image before RESTORE, which would fail half-way. Found by asking: takes `drm_fd` as the VM of
// `gpu_id`, allocates a page there and looks what PROCESS_INFO says of the caller. The caller's KFD process
// keeps that VM until its address space is gone, so it can RESTORE no more: REQUIRES a process that never
// will (CRIU's main process, a helper) and a render file opened for this. `kfd` must be the caller's. Errors:
// those of the calls; EBUSY when the process has BOs, queues or events already.
Result<std::uint32_t> probe_bo_record_bytes(const KfdDevice& kfd, std::uint32_t gpu_id, int drm_fd);

}  // namespace sluice::kfd
