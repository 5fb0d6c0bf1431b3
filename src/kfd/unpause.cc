// SPDX-License-Identifier: MIT
#include "kfd/unpause.h"

#include <sys/ptrace.h>

#include <cerrno>
#include <optional>
#include <thread>
#include <utility>

#include "base/format.h"
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
  return std::string(proc::kProcPath) + "/" + std::to_string(pid);
}

// "4711 (python3)".
std::string named(pid_t pid) {
  const auto status = proc::read_task_status(proc_directory(pid));
  return std::to_string(pid) + (status ? " (" + status->name + ")" : "");
}

// One attempt at one process.
class Attempt {
 public:
  explicit Attempt(pid_t pid) : pid_(pid), process_("process " + named(pid)) {}

  UnpauseReport run() {
    if (look()) {
      // The kernel's rule is about threads, and a thread's end detaches without stopping the target, which a
      // frozen one could not be.
      std::thread([this] { attach_and_unpause(); }).join();
    }
    return std::move(report_);
  }

 private:
  // Each of these returns false when the report is complete.

  bool end(UnpauseStatus status, std::string what, std::string remedy = {}) {
    report_.status = status;
    report_.what = std::move(what);
    report_.remedy = std::move(remedy);
    return false;
  }

  bool fail(Error error, std::string remedy = {}) {
    const bool forbidden = error.err == EPERM || error.err == EACCES;
    report_.err = error.err;
    if (!has_id(error.what)) error.what += " [SL-T13]";
    return end(forbidden ? UnpauseStatus::NotPermitted : UnpauseStatus::KernelError, std::move(error.what),
               std::move(remedy));
  }

  bool gone() {
    return end(UnpauseStatus::NoSuchProcess, formatted("there is no process {} [SL-T01]", pid_),
               "give the process' id as this pid namespace has it");
  }

  // Refuses processes that must not be touched, before touching anything.
  bool look() {
    const auto status = proc::read_task_status(proc_directory(pid_));
    if (!status) return proc::no_such_task(status.error()) ? gone() : fail(status.error());
    if (status->tgid != pid_) {
      return end(UnpauseStatus::NotLeadThread,
                 formatted("{} is a thread of process {} [SL-T02]", pid_, named(status->tgid)),
                 "give the process: sluice unpause " + std::to_string(status->tgid));
    }
    if (status->state == 'Z' || status->state == 'X') {
      return end(UnpauseStatus::Ended,
                 process_ + " has ended, but its parent has not waited for it yet [SL-T03]",
                 "nothing to do: a process that has ended has no GPU queues");
    }
    auto device = kfd_device_number();
    if (!device) {
      return end(UnpauseStatus::NoKfd,
                 "this machine has no /dev/kfd, so no process here has GPU queues [SL-T04]",
                 "check that the amdgpu driver is loaded (lsmod), and run it on the host");
    }
    device_ = *device;
    return find_descriptors() && nobody_traces();
  }

  bool find_descriptors() {
    auto descriptors = proc::device_descriptors(pid_, device_);
    if (!descriptors) return fail(std::move(descriptors).error(), kPtraceRemedy);  // unreached: a race
    report_.descriptors = std::move(*descriptors);
    if (!report_.descriptors.empty()) return true;
    return end(UnpauseStatus::NotGpuProcess,
               process_ + " has no open /dev/kfd, so it has no GPU queues [SL-T05]",
               "give the process of the tree that uses the GPU");
  }

  // A dump traces every thread of the process, a debugger may trace any.
  bool nobody_traces() {
    const std::string tasks = proc_directory(pid_) + "/task";
    const auto threads = proc::numbered_entries(tasks);
    if (!threads) return gone();  // unreached: a race
    for (const int thread : *threads) {
      const auto status = proc::read_task_status(tasks + "/" + std::to_string(thread));
      if (!status && !proc::no_such_task(status.error())) return fail(status.error());
      if (!status || status->tracer == 0) continue;  // unreached: a race
      return end(
          UnpauseStatus::Traced,
          formatted("{} is traced by process {} [SL-T06]", process_, named(status->tracer)),
          "wait for that process or end it, then try again; a dump starts the queues itself when it ends");
    }
    return true;
  }

  // Runs in a thread of its own.
  void attach_and_unpause() {
    if (::ptrace(PTRACE_SEIZE, pid_, nullptr, nullptr) != 0) {
      const int err = errno;
      if (err == ESRCH) {
        (void)gone();                // unreached: a race
      } else if (nobody_traces()) {  // nor before us
        (void)fail(make_error(err, "trace " + process_ + " [SL-T07]"), kPtraceRemedy);
      }
      return;
    }
    // From here on the pid is not reused, and nobody else can pause this process.
    if (find_descriptors()) (void)unpause_files();  // unreached: a race
  }

  // Every file, because each may belong to another KFD process; two files of one give a success and an
  // EINVAL.
  bool unpause_files() {
    std::size_t own_files = 0;
    std::size_t unpaused = 0;
    for (const int descriptor : report_.descriptors) {
      auto file = proc::take_descriptor({pid_, descriptor});
      if (!file && file.error().err == EBADF) continue;  // unreached: closed meanwhile
      if (!file) return fail(std::move(file).error(), kPtraceRemedy);
      const auto kind = classify_fd(file->get(), device_);
      if (!kind || kind->kind != FileKind::Kfd) continue;  // unreached: another file meanwhile

      CriuArgs args{};
      args.op = CriuOp::Unpause;
      const int err = call_ioctl(system_ioctl, file->get(), kIocCriuOp, &args);
      if (err == EBADF) continue;  // another process' file
      own_files++;
      if (err == 0) unpaused++;
      // No second try, even through another file: with several GPUs the kernel may have started some of them,
      // and would count those twice.
      if (err != 0 && err != EINVAL) return fail_unpause(err, descriptor);
    }
    if (own_files > 0) {
      report_.status = unpaused > 0 ? UnpauseStatus::Unpaused : UnpauseStatus::NotPaused;
      return true;
    }
    const auto status = proc::read_task_status(proc_directory(pid_));
    return end(UnpauseStatus::InheritedFiles,
               process_ + " inherited its /dev/kfd; the queues belong to the process that opened it [SL-T08]",
               "give that process; the parent of this one is " + named(status ? status->parent : 0));
  }

  bool fail_unpause(int err, int descriptor) {
    std::string remedy =
        "its queues stay paused: see the driver's reason in the kernel's log (dmesg); try again after the "
        "GPU was reset";
    if (err == EACCES) remedy = kCapabilityRemedy;
    if (err == ENOTTY) remedy = "this kernel cannot checkpoint GPU processes; use Linux 6.1 or newer";
    return fail(
        make_error(err, formatted("UNPAUSE of {} through its descriptor {} [SL-T09]", process_, descriptor)),
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
