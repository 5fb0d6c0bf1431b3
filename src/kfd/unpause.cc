// SPDX-License-Identifier: MIT
#include "kfd/unpause.h"

#include <sys/ptrace.h>

#include <cerrno>
#include <optional>
#include <thread>
#include <utility>

#include "kfd/device.h"
#include "kfd/ioctl_call.h"
#include "kfd/uapi.h"
#include "proc/directory.h"
#include "proc/processes.h"
#include "proc/task_status.h"

namespace sluice::kfd {
namespace {

constexpr char kCapabilityRemedy[] =
    "run it as root on the host: the kernel wants CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN in the initial "
    "user namespace";
constexpr char kPtraceRemedy[] =
    "run it as root on the host: it needs CAP_SYS_PTRACE, a kernel.yama.ptrace_scope below 3, and no seccomp "
    "filter (as containers have) on ptrace and pidfd_getfd";

std::string proc_directory(pid_t pid) {
  return std::string(kProcPath) + "/" + std::to_string(pid);
}

// "4711 (python3)".
std::string named(pid_t pid) {
  const auto status = read_task_status(proc_directory(pid));
  return std::to_string(pid) + (status ? " (" + status->name + ")" : "");
}

// One try at one process.
class Attempt {
 public:
  explicit Attempt(pid_t pid) : pid_(pid), process_("process " + named(pid)) {}

  UnpauseReport run() {
    if (look()) {
      // The kernel's rule is about a thread, and a thread's end detaches without the target being stopped,
      // which a frozen one could not be.
      std::thread([this] { attach_and_unpause(); }).join();
    }
    return std::move(report_);
  }

 private:
  // Each of these says false when the report is complete.

  bool end(UnpauseStatus status, std::string what, std::string remedy = {}) {
    report_.status = status;
    report_.what = std::move(what);
    report_.remedy = std::move(remedy);
    return false;
  }

  bool fail(Error error, std::string remedy = {}) {
    const bool forbidden = error.err == EPERM || error.err == EACCES;
    report_.err = error.err;
    return end(forbidden ? UnpauseStatus::NotPermitted : UnpauseStatus::KernelError, std::move(error.what),
               std::move(remedy));
  }

  bool gone() {
    return end(UnpauseStatus::NoSuchProcess, "there is no process " + std::to_string(pid_),
               "give the process' id as this pid namespace has it");
  }

  // Refuses what must not be touched, before anything is.
  bool look() {
    const auto status = read_task_status(proc_directory(pid_));
    if (!status) return no_such_task(status.error()) ? gone() : fail(status.error());
    if (status->tgid != pid_) {
      return end(UnpauseStatus::NotLeadThread,
                 std::to_string(pid_) + " is a thread of process " + named(status->tgid),
                 "give the process: sluice unpause " + std::to_string(status->tgid));
    }
    if (status->state == 'Z' || status->state == 'X') {
      return end(UnpauseStatus::Ended, process_ + " has ended; its parent has not taken notice yet");
    }
    auto device = kfd_device_number();
    if (!device) {
      return end(UnpauseStatus::NoKfd, "this machine has no /dev/kfd: no process here has GPU queues of its",
                 "check that the amdgpu driver is loaded (lsmod), and run it on the host");
    }
    device_ = *device;
    return find_descriptors() && nobody_traces();
  }

  bool find_descriptors() {
    auto descriptors = device_descriptors(pid_, device_);
    if (!descriptors) return fail(std::move(descriptors).error(), kPtraceRemedy);
    report_.descriptors = std::move(*descriptors);
    if (!report_.descriptors.empty()) return true;
    return end(UnpauseStatus::NotGpuProcess, process_ + " has no open /dev/kfd: it has no GPU queues",
               "of a tree of processes, give the one that uses the GPU");
  }

  // A dump traces every thread of the process, a debugger may trace any.
  bool nobody_traces() {
    const std::string tasks = proc_directory(pid_) + "/task";
    const auto threads = numbered_entries(tasks);
    if (!threads) return gone();
    for (const int thread : *threads) {
      const auto status = read_task_status(tasks + "/" + std::to_string(thread));
      if (!status && !no_such_task(status.error())) return fail(status.error());
      if (!status || status->tracer == 0) continue;
      return end(UnpauseStatus::Traced, process_ + " is traced by process " + named(status->tracer),
                 "a dump that is at work starts the queues itself when it ends, and a debugger has its own "
                 "reasons: wait for that process, or end it, then try again");
    }
    return true;
  }

  // On a thread of its own.
  void attach_and_unpause() {
    if (::ptrace(PTRACE_SEIZE, pid_, nullptr, nullptr) != 0) {
      const int err = errno;
      if (err == ESRCH) {
        (void)gone();
      } else if (nobody_traces()) {  // nor came before us
        (void)fail(make_error(err, "may not trace " + process_), kPtraceRemedy);
      }
      return;
    }
    // From here on the number is not given to another process, and nobody else can pause this one.
    if (find_descriptors()) (void)unpause_files();
  }

  // Every file, for each may be of a KFD process of its own; two files of one are a success and an EINVAL.
  bool unpause_files() {
    std::size_t own_files = 0;
    std::size_t unpaused = 0;
    for (const int descriptor : report_.descriptors) {
      auto file = take_descriptor({pid_, descriptor});
      if (!file && file.error().err == EBADF) continue;  // closed meanwhile
      if (!file) return fail(std::move(file).error(), kPtraceRemedy);
      const auto kind = classify_fd(file->get(), device_);
      if (!kind || kind->kind != FileKind::Kfd) continue;  // another file meanwhile

      CriuArgs args{};
      args.op = CriuOp::Unpause;
      const int err = call_ioctl(system_ioctl, file->get(), kIocCriuOp, &args);
      if (err == EBADF) continue;  // not its own
      own_files++;
      if (err == 0) unpaused++;
      // No second try, not even by another file: where several GPUs are concerned the kernel may have started
      // some of them, and would count those twice.
      if (err != 0 && err != EINVAL) return fail_unpause(err, descriptor);
    }
    if (own_files > 0) {
      report_.status = unpaused > 0 ? UnpauseStatus::Unpaused : UnpauseStatus::NotPaused;
      return true;
    }
    const auto status = read_task_status(proc_directory(pid_));
    return end(UnpauseStatus::InheritedFiles,
               process_ + " has inherited its /dev/kfd: the queues are those of the process that opened it",
               "give that process; the parent of this one is " + named(status ? status->parent : 0));
  }

  bool fail_unpause(int err, int descriptor) {
    std::string remedy =
        "its queues stay paused: the kernel's log (dmesg) has the driver's reason; try again when the GPU "
        "has been reset";
    if (err == EACCES) remedy = kCapabilityRemedy;
    if (err == ENOTTY) remedy = "this kernel cannot checkpoint GPU processes at all; Linux 6.1 can";
    return fail(
        make_error(err, "UNPAUSE of " + process_ + " through its descriptor " + std::to_string(descriptor)),
        std::move(remedy));
  }

  pid_t pid_;
  std::string process_;  // for messages
  dev_t device_ = 0;
  UnpauseReport report_;
};

}  // namespace

UnpauseReport unpause_left_paused(pid_t pid) {
  return Attempt(pid).run();
}

}  // namespace sluice::kfd
