/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The device model's view of the calling thread (vam_os): its memory, descriptors, tracer and capabilities.
 * Every function runs on the thread that made the call, with the machine's lock and, outside it, the
 * mmap_lock of current->mm (read) held. So memory is copied with page faults off, and a page that is missing
 * is brought in by fixup_user_fault(), which wants exactly that lock.
 */
#include <linux/capability.h>
#include <linux/device_cgroup.h>
#include <linux/fdtable.h>
#include <linux/file.h>
#include <linux/mm.h>
#include <linux/pid.h>
#include <linux/ptrace.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/timekeeping.h>
#include <linux/uaccess.h>

#include "compat.h"
#include "core.h"

/* ---- memory -----------------------------------------------------------------------------------------------
 */

/* An aligned word in one piece, written after what was written before it. */
#define DEFINE_COPY_WORD(type)                               \
  static int copy_##type(void* kernel, u64 user, bool out) { \
    type word = 0;                                           \
    int err;                                                 \
    if (out) {                                               \
      memcpy(&word, kernel, sizeof(word));                   \
      smp_wmb();                                             \
      return __put_user(word, (type __user*)user);           \
    }                                                        \
    err = __get_user(word, (type __user*)user);              \
    memcpy(kernel, &word, sizeof(word));                     \
    return err;                                              \
  }
DEFINE_COPY_WORD(u32)
DEFINE_COPY_WORD(u64)

/* Whatever cannot be copied without a page fault is not. Aligned words go in one piece (queue_run.h). */
static unsigned long copy_now(void* kernel, u64 user, unsigned long bytes, bool out) {
  if (bytes == sizeof(u32) && user % sizeof(u32) == 0) return copy_u32(kernel, user, out) ? bytes : 0;
  if (bytes == sizeof(u64) && user % sizeof(u64) == 0) return copy_u64(kernel, user, out) ? bytes : 0;
  return out ? __copy_to_user_inatomic(u64_to_user_ptr(user), kernel, bytes)
             : __copy_from_user_inatomic(kernel, u64_to_user_ptr(user), bytes);
}

/* Copies what lies in one page. */
static int copy_piece(void* kernel, u64 user, unsigned long bytes, bool out) {
  for (int attempt = 0; attempt < 4; ++attempt) {
    unsigned long failed;
    pagefault_disable();
    failed = copy_now(kernel, user, bytes, out);
    pagefault_enable();
    if (!failed) return 0;
    if (fixup_user_fault(current->mm, user, out ? FAULT_FLAG_WRITE : 0, NULL)) return -EFAULT;
  }
  return -EFAULT;
}

int vam_user_copy(void* kernel, u64 user, u64 bytes, bool out) {
  if (!access_ok(u64_to_user_ptr(user), bytes)) return -EFAULT;
  while (bytes) {
    unsigned long n = min_t(u64, bytes, PAGE_SIZE - user % PAGE_SIZE);
    int err = copy_piece(kernel, user, n, out);
    if (err) return err;
    kernel += n;
    user += n;
    bytes -= n;
  }
  return 0;
}

static int copy_in(const struct vam_call* call, void* to, uint64_t from, uint64_t bytes) {
  return vam_user_copy(to, from, bytes, false);
}

static int copy_out(const struct vam_call* call, uint64_t to, const void* from, uint64_t bytes) {
  return vam_user_copy((void*)from, to, bytes, true);
}

static int user_range(const struct vam_call* call, uint64_t address, uint64_t bytes, uint32_t flags) {
  u64 end = address + bytes, covered = address;
  if (vam_userptr_busy(vam_machine_of(call))) return -EBUSY;
  if (end < address || !access_ok(u64_to_user_ptr(address), bytes)) return -EFAULT;
  while (covered < end) {
    struct vm_area_struct* vma = find_vma(current->mm, covered);
    if (!vma || vma->vm_start > covered || (vma->vm_flags & (VM_PFNMAP | VM_IO))) return -EFAULT;
    if ((flags & VAM_USERPTR_ANONONLY) && vma->vm_file) return -EPERM;
    if (!(flags & VAM_USERPTR_READONLY) && !(vma->vm_flags & VM_WRITE)) return -EFAULT;
    covered = vma->vm_end;
  }
  return 0;
}

static void fill_bo(const struct vam_call* call, uint32_t bo, uint64_t offset, uint64_t bytes, uint8_t byte) {
  struct vam_machine* machine = vam_machine_of(call);
  struct vam_bo_state* state = &machine->bo[bo];
  if (offset == 0 && bytes == VAM_BO_AT(call->model, bo)->size && !state->touched) {
    state->fresh = byte;
    return;
  }
  if (vam_bo_fill(machine, bo, offset, byte * 0x01010101u, bytes))
    pr_warn_ratelimited("vamdgpu: no memory for the contents of a BO\n");
}

/* ---- descriptors ------------------------------------------------------------------------------------------
 */

struct vam_open* vam_open_of(struct file* file) {
  return vam_is_kfd_file(file) ? file->private_data : vam_render_open_of(file);
}

static int file_of_fd(const struct vam_call* call, uint32_t fd, uint32_t* file) {
  struct file* opened = fget(fd);
  const struct vam_open* open;
  if (!opened) return -EBADF;
  open = vam_open_of(opened);
  if (open) *file = open->file;
  fput(opened);
  return open ? 0 : -EINVAL;
}

static void close_descriptor(const struct vam_call* call, uint32_t fd) {
  close_fd(fd);
}

/* ---- identity ---------------------------------------------------------------------------------------------
 */

/* The lead thread of a process, in the initial namespace, with a reference; NULL when it is gone. */
static struct task_struct* task_of(s32 pid) {
  struct task_struct* task;
  rcu_read_lock();
  task = pid_task(find_pid_ns(pid, &init_pid_ns), PIDTYPE_PID);
  if (task) get_task_struct(task);
  rcu_read_unlock();
  return task;
}

static int traces(const struct vam_call* call, int32_t pid) {
  struct task_struct* lead = task_of(pid);
  int result;
  if (!lead) return 0;
  rcu_read_lock();
  result = ptrace_parent(lead) == current;
  rcu_read_unlock();
  put_task_struct(lead);
  return result;
}

static int may_checkpoint(const struct vam_call* call) {
  return capable(CAP_CHECKPOINT_RESTORE) || capable(CAP_SYS_ADMIN);
}

s32 vam_pid_of_itself(s32 pid) {
  struct task_struct* lead = task_of(pid);
  s32 result = 0;
  if (!lead) return 0;
  rcu_read_lock();
  if (pid_alive(lead)) result = task_tgid_nr_ns(lead, task_active_pid_ns(lead));
  rcu_read_unlock();
  put_task_struct(lead);
  return result;
}

s32 vam_pid_from_caller(s32 pid) {
  struct pid* found = find_get_pid(pid);
  s32 result = found ? pid_nr(found) : 0;
  put_pid(found);
  return result;
}

int vam_gpu_allowed(const struct vam_machine* machine, u32 gpu) {
  return devcgroup_check_permission(DEVCG_DEV_CHAR, VAM_DRM_MAJOR,
                                    machine->model->gpu[gpu].config.render_minor,
                                    DEVCG_ACC_READ | DEVCG_ACC_WRITE);
}

static int gpu_allowed(const struct vam_call* call, uint32_t gpu) {
  return vam_gpu_allowed(vam_machine_of(call), gpu) == 0;
}

static uint64_t now_ns(const struct vam_call* call, int clock) {
  return clock == 0 ? ktime_get_ns() : ktime_get_boottime_ns();
}

/* ---- what happens -----------------------------------------------------------------------------------------
 */

static void submitted(const struct vam_call* call, uint32_t job) {
  vam_announce(vam_machine_of(call));
}

static void fence_changed(const struct vam_call* call, uint32_t fence) {
  vam_changed(vam_machine_of(call), fence);
}

const struct vam_os vam_kernel_os = {
    .copy_in = copy_in,
    .copy_out = copy_out,
    .file_of_fd = file_of_fd,
    .bo_of_fd = vam_buffer_of_fd,
    .export_bo = vam_buffer_export,
    .close_fd = close_descriptor,
    .traces = traces,
    .capable = may_checkpoint,
    .user_range = user_range,
    .fill_bo = fill_bo,
    .now_ns = now_ns,
    .export_fence = vam_fence_export,
    .fence_of_fd = vam_fence_of_fd,
    .export_syncobj = vam_syncobj_export,
    .syncobj_of_fd = vam_syncobj_of_fd,
    .watch_eventfd = vam_watch_eventfd,
    .submitted = submitted,
    .fence_changed = fence_changed,
    .gpu_allowed = gpu_allowed,
};

void vam_frame_init(struct vam_frame* frame, struct vam_machine* machine, u32 file) {
  frame->machine = machine;
  frame->call = (struct vam_call){
      .model = machine->model,
      .os = &vam_kernel_os,
      .shim = frame,
      .file = file,
      .pid = task_tgid_nr(current),
      .tid = task_pid_nr(current),
      .start_time = current->group_leader->start_boottime,
  };
}
