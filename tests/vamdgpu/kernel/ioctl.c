/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * ioctls on device files: argument copies as the drivers make them, injected faults, the trace, and waiting
 * outside the locks. A command is looked up by its number alone; its argument may be shorter or longer than
 * this kernel's.
 */
#include <linux/hrtimer.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "../model/debug.h"
#include "core.h"

#define DRM_TYPE 'd'

/* Sleeps until `change` is not `seen` any more. 0, -ETIME at the deadline (absolute, monotonic; U64_MAX: for
 * ever), -ERESTARTSYS. */
static int wait_for_change(struct vam_machine* machine, int seen, u64 deadline_ns) {
  u64 now = ktime_get_ns();
  if (deadline_ns >= (u64)KTIME_MAX)
    return wait_event_interruptible(machine->wait, atomic_read(&machine->change) != seen);
  if (deadline_ns <= now) return -ETIME;
  return wait_event_interruptible_hrtimeout(machine->wait, atomic_read(&machine->change) != seen,
                                            ns_to_ktime(deadline_ns - now));
}

static int run_model(const struct vam_call* call, const struct vam_request* request, void* argument,
                     u32 bytes, int again, u64* deadline_ns) {
  if (request->device == VAM_DEVICE_KFD)
    return vam_kfd_ioctl(call, request->nr, argument, bytes, again, deadline_ns);
  return vam_drm_ioctl(call, request->nr, argument, bytes, again, deadline_ns);
}

/* What is left of a wait that a signal ends goes into the argument, so that it can be started again. */
static void save_rest_of_wait(const struct vam_request* request, void* argument, u64 deadline_ns) {
  struct vam_wait_events_args* wait = argument;
  u64 now = ktime_get_ns();
  if (request->device != VAM_DEVICE_KFD || request->nr != VAM_KFD_WAIT_EVENTS) return;
  if (wait->timeout_ms == VAM_EVENT_TIMEOUT_INFINITE) return;
  wait->timeout_ms = deadline_ns > now ? (u32)DIV_ROUND_UP_ULL(deadline_ns - now, NSEC_PER_MSEC) : 0;
}

/* Runs the ioctl, waiting as long as it wants to. */
static int run(struct vam_frame* frame, struct vam_request* request, void* argument, u32 bytes) {
  struct vam_machine* machine = frame->machine;
  struct mm_struct* mm = current->mm;
  u64 deadline = 0;
  int again = VAM_FIRST, fault = 0;
  for (;;) {
    u64 wanted = 0;
    int result, seen;
    bool after = false;
    if (mmap_read_lock_killable(mm)) return -EINTR;
    mutex_lock(&machine->lock);
    if (again == VAM_FIRST) fault = vam_fault_for(machine, request, &after);
    if (again == VAM_FIRST && fault && !after)
      result = 0;
    else
      result = run_model(&frame->call, request, argument, bytes, again, &wanted);
    seen = atomic_read(&machine->change);
    if (result != -VAM_WOULD_BLOCK) {
      if (fault) result = fault;
      /* A queue may have been made, changed or set running: whoever runs queues looks again. */
      if (request->device == VAM_DEVICE_KFD && again == VAM_FIRST) vam_announce(machine);
      vam_trace_add(machine, request, result, fault != 0);
    }
    mutex_unlock(&machine->lock);
    mmap_read_unlock(mm);
    if (result != -VAM_WOULD_BLOCK) return result;
    if (again == VAM_FIRST) deadline = wanted;
    result = wait_for_change(machine, seen, deadline);
    if (result == -ERESTARTSYS) {
      save_rest_of_wait(request, argument, deadline);
      return result;
    }
    again = result == -ETIME ? VAM_EXPIRED : VAM_AGAIN;
  }
}

/* CRIU_OP names processes as its caller sees them, the model as the initial pid namespace does. */
static int run_criu(struct vam_frame* frame, struct vam_request* request, struct vam_criu_args* args,
                    u32 bytes) {
  u32 pid = args->pid;
  int result;
  if (args->op == VAM_CRIU_RESUME) args->pid = (u32)vam_pid_from_caller((s32)pid);
  result = run(frame, request, args, bytes);
  if (args->op == VAM_CRIU_RESUME) args->pid = pid;
  if (args->op == VAM_CRIU_PROCESS_INFO && result == 0) args->pid = (u32)vam_pid_of_itself((s32)args->pid);
  return result;
}

bool vam_drm_knows(unsigned int command) {
  return _IOC_TYPE(command) == DRM_TYPE && vam_drm_arg_bytes(_IOC_NR(command)) >= 0;
}

long vam_ioctl(struct vam_open* open, unsigned int command, unsigned long argument) {
  struct vam_machine* machine = open->machine;
  struct vam_request request = {.device = open->device, .nr = _IOC_NR(command), .gpu = open->gpu};
  void __user* user = (void __user*)argument;
  struct vam_frame frame;
  u64 fixed[32];
  u32 bytes = _IOC_SIZE(command), size;
  void* copy = fixed;
  long result;
  int known;
  /* KFD looks at the number only, whatever the type (seen on Linux 6.12). */
  if (open->device != VAM_DEVICE_KFD && _IOC_TYPE(command) != DRM_TYPE) return -ENOTTY;
  vam_frame_init(&frame, machine, open->file);
  request.pid = frame.call.pid;
  request.tid = frame.call.tid;
  known = open->device == VAM_DEVICE_KFD ? vam_kfd_arg_bytes(machine->model, request.nr)
                                         : vam_drm_arg_bytes(request.nr);
  if (known < 0) {
    result = open->device == VAM_DEVICE_KFD ? -ENOTTY : -EINVAL;
    mutex_lock(&machine->lock);
    vam_trace_add(machine, &request, (int)result, false);
    mutex_unlock(&machine->lock);
    return result;
  }
  size = max3(bytes, (u32)known, 64u);
  if (size > sizeof(fixed)) {
    copy = kvzalloc(size, GFP_KERNEL);
    if (!copy) return -ENOMEM;
  } else {
    memset(fixed, 0, sizeof(fixed));
  }
  if ((_IOC_DIR(command) & _IOC_WRITE) && copy_from_user(copy, user, bytes)) {
    result = -EFAULT;
    goto out;
  }
  request.op = vam_debug_op(open->device, request.nr, copy, size);
  if (open->device == VAM_DEVICE_KFD && request.nr == VAM_KFD_CRIU_OP)
    result = run_criu(&frame, &request, copy, bytes);
  else
    result = run(&frame, &request, copy, bytes);
  /* Even after an error: drivers report how far they came. */
  if ((_IOC_DIR(command) & _IOC_READ) && copy_to_user(user, copy, bytes)) result = -EFAULT;
out:
  if (copy != fixed) kvfree(copy);
  return result;
}
