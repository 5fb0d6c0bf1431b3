/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * /sys/kernel/debug/vamdgpu: faults, trace and inspection. See debug_abi.h for the files. What is asked and
 * counted lives in struct vam_debug, under the machine's lock; user memory is only touched outside it.
 */
#include <linux/debugfs.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "../model/debug.h"
#include "debug_abi.h"
#include "vam_machine.h"

struct vam_control {
  struct dentry* directory;
  struct vam_debug debug;
};

/* ---- what the core asks, lock held */

static struct vam_debug* debug_of(struct vam_machine* machine) {
  return machine->control ? &machine->control->debug : NULL;
}

int vam_fault_for(struct vam_machine* machine, const struct vam_request* request, bool* after) {
  struct vam_debug* debug = debug_of(machine);
  int later = 0;
  const int fault = debug ? vam_debug_fault(debug, request->device, request->nr, request->op, &later) : 0;

  *after = later != 0;
  return fault;
}

void vam_trace_add(struct vam_machine* machine, const struct vam_request* request, int result,
                   bool injected) {
  const struct vam_trace_record record = {.pid = request->pid,
                                          .tid = request->tid,
                                          .device = (u8)request->device,
                                          .injected = injected,
                                          .nr = (u16)request->nr,
                                          .op = request->op,
                                          .result = result,
                                          .gpu = request->gpu};

  if (machine->control) vam_debug_trace(&machine->control->debug, &record);
}

int vam_fence_fate(struct vam_machine* machine, u32 gpu, u64 number) {
  struct vam_debug* debug = debug_of(machine);
  s32 error = 0;

  switch (debug ? vam_debug_fence(debug, gpu, number, &error) : VAM_FENCE_RUNS) {
    case VAM_FENCE_HANGS:
      return 1;
    case VAM_FENCE_FAILS:
      return error;
    default:
      return 0;
  }
}

bool vam_userptr_busy(struct vam_machine* machine) {
  struct vam_debug* debug = debug_of(machine);

  return debug && vam_debug_userptr_busy(debug);
}

u64 vam_engine_rate(struct vam_machine* machine, u32 gpu) {
  struct vam_debug* debug = debug_of(machine);

  return debug ? READ_ONCE(debug->bytes_per_s[gpu]) : 0;
}

/* ---- control */

static int add_fault(struct vam_debug* debug, const char* text) {
  struct vam_fault_rule rule = {};
  char device[8];
  unsigned int nr;

  if (sscanf(text, "%7s %i %i %i %i %i %i", device, &nr, &rule.op, &rule.error, &rule.skip, &rule.times,
             &rule.after) != 7 ||
      nr > 255)
    return -EINVAL;
  rule.nr = (u16)nr;
  rule.device = !strcmp(device, "kfd") ? VAM_FILE_KFD : !strcmp(device, "render") ? VAM_FILE_RENDER : 0;
  return vam_debug_add_fault(debug, &rule);
}

static int add_fence_fault(struct vam_debug* debug, const char* text) {
  struct vam_fence_fault fault = {};

  if (sscanf(text, "%u %llu %i", &fault.gpu, &fault.number, &fault.error) != 3) return -EINVAL;
  fault.fate = fault.error ? VAM_FENCE_FAILS : VAM_FENCE_HANGS;
  return vam_debug_add_fence_fault(debug, &fault);
}

static int set_rate(struct vam_machine* machine, const char* text) {
  u64 rate;
  u32 gpu;

  if (sscanf(text, "%u %llu", &gpu, &rate) != 2 || gpu >= machine->num_gpus) return -EINVAL;
  WRITE_ONCE(machine->control->debug.bytes_per_s[gpu], rate);
  return 0;
}

static int lose_vram(struct vam_machine* machine, const char* text) {
  u32 gpu, answers;

  if (sscanf(text, "%u %u", &gpu, &answers) != 2) return -EINVAL;
  return vam_lose_vram(machine->model, gpu, answers);
}

static int run_kernels(struct vam_machine* machine, const char* text) {
  u32 waves, stops;
  int pid;

  if (sscanf(text, "%d %u %u", &pid, &waves, &stops) != 3) return -EINVAL;
  return vam_run_kernels(machine->model, pid, waves, stops);
}

/* Lock held. */
static int command(struct vam_machine* machine, char* text) {
  struct vam_debug* debug = &machine->control->debug;
  const char* name = strsep(&text, " \n");

  text = text ? text : "";
  if (!strcmp(name, "fault")) return add_fault(debug, text);
  if (!strcmp(name, "fence")) return add_fence_fault(debug, text);
  if (!strcmp(name, "userptr")) return sscanf(text, "%llu", &debug->userptr_busy) == 1 ? 0 : -EINVAL;
  if (!strcmp(name, "rate")) return set_rate(machine, text);
  if (!strcmp(name, "lose")) return lose_vram(machine, text);
  if (!strcmp(name, "waves")) return run_kernels(machine, text);
  if (!strcmp(name, "release")) {
    vam_release_hung(machine, 0);
    return 0;
  }
  if (!strcmp(name, "clear")) {
    vam_debug_clear_faults(debug);
    return 0;
  }
  if (!strcmp(name, "forget")) {
    vam_debug_clear_trace(debug);
    return 0;
  }
  return -EINVAL;
}

static ssize_t control_write(struct file* file, const char __user* from, size_t bytes, loff_t* at) {
  struct vam_machine* machine = file->private_data;
  char text[VAMDGPU_MAX_COMMAND];
  int err;

  if (bytes >= sizeof(text)) return -EINVAL;
  if (copy_from_user(text, from, bytes)) return -EFAULT;
  text[bytes] = 0;
  mutex_lock(&machine->lock);
  err = command(machine, text);
  mutex_unlock(&machine->lock);
  return err ? err : (ssize_t)bytes;
}

static const struct file_operations control_fops = {
    .owner = THIS_MODULE, .open = simple_open, .write = control_write, .llseek = noop_llseek};

/* ---- debug */

static ssize_t debug_read(struct file* file, char __user* to, size_t bytes, loff_t* at) {
  struct vam_machine* machine = file->private_data;
  struct vam_debug* copy;
  ssize_t result;

  copy = kvmalloc(sizeof(*copy), GFP_KERNEL);
  if (!copy) return -ENOMEM;
  mutex_lock(&machine->lock);
  memcpy(copy, &machine->control->debug, sizeof(*copy));
  copy->engine_bytes = machine->engine_bytes;
  copy->engine_jobs = machine->engine_jobs;
  copy->engine_cpu_ns = machine->engine_busy_ns;
  strscpy(copy->last_fault, machine->last_fault, sizeof(copy->last_fault));
  mutex_unlock(&machine->lock);
  result = simple_read_from_buffer(to, bytes, at, copy, sizeof(*copy));
  kvfree(copy);
  return result;
}

static const struct file_operations debug_fops = {
    .owner = THIS_MODULE, .open = simple_open, .read = debug_read, .llseek = default_llseek};

/* ---- changes */

struct watcher {
  struct vam_machine* machine;
  int seen; /* value of machine->change at the last read */
};

static int changes_open(struct inode* inode, struct file* file) {
  struct watcher* watcher = kzalloc(sizeof(*watcher), GFP_KERNEL);

  if (!watcher) return -ENOMEM;
  watcher->machine = inode->i_private;
  watcher->seen = atomic_read(&watcher->machine->change) - 1;
  file->private_data = watcher;
  return 0;
}

static ssize_t changes_read(struct file* file, char __user* to, size_t bytes, loff_t* at) {
  struct watcher* watcher = file->private_data;
  u64 count;

  if (bytes < sizeof(count)) return -EINVAL;
  watcher->seen = atomic_read(&watcher->machine->change);
  count = (u32)watcher->seen;
  return copy_to_user(to, &count, sizeof(count)) ? -EFAULT : (ssize_t)sizeof(count);
}

static __poll_t changes_poll(struct file* file, poll_table* table) {
  struct watcher* watcher = file->private_data;

  poll_wait(file, &watcher->machine->wait, table);
  return atomic_read(&watcher->machine->change) != watcher->seen ? EPOLLIN | EPOLLRDNORM : 0;
}

static int changes_release(struct inode* inode, struct file* file) {
  kfree(file->private_data);
  return 0;
}

static const struct file_operations changes_fops = {.owner = THIS_MODULE,
                                                    .open = changes_open,
                                                    .read = changes_read,
                                                    .poll = changes_poll,
                                                    .release = changes_release,
                                                    .llseek = noop_llseek};

/* ---- model */

/* The bytes of a struct vam_model and its tables follow. */
struct snapshot {
  size_t bytes;
  u64 data[];
};

static u64 used_bytes(const struct vam_table* table) {
  return ALIGN((u64)table->high * table->stride, 64);
}

/* Lock held. */
static struct snapshot* take_snapshot(const struct vam_model* model) {
  u64 bytes = ALIGN(sizeof(*model), 64);
  struct snapshot* s;
  struct vam_model* copy;
  u32 t;

  for (t = 0; t < VAM_T_COUNT; t++) bytes += used_bytes(&model->table[t]);
  s = kvzalloc(sizeof(*s) + bytes, GFP_KERNEL);
  if (!s) return NULL;
  s->bytes = bytes;
  copy = (struct vam_model*)s->data;
  *copy = *model;
  copy->total_bytes = bytes;
  bytes = ALIGN(sizeof(*model), 64);
  for (t = 0; t < VAM_T_COUNT; t++) {
    struct vam_table* table = &copy->table[t];

    table->offset = bytes;
    table->capacity = table->high - 1;
    memcpy((char*)s->data + bytes, vam_rec_at(model, (enum vam_table_id)t, 0),
           (size_t)table->high * table->stride);
    bytes += used_bytes(table);
  }
  return s;
}

static int model_open(struct inode* inode, struct file* file) {
  struct vam_machine* machine = inode->i_private;
  struct snapshot* s;

  vam_settle(machine);
  mutex_lock(&machine->lock);
  s = take_snapshot(machine->model);
  mutex_unlock(&machine->lock);
  file->private_data = s;
  return s ? 0 : -ENOMEM;
}

static ssize_t model_read(struct file* file, char __user* to, size_t bytes, loff_t* at) {
  const struct snapshot* s = file->private_data;

  return simple_read_from_buffer(to, bytes, at, s->data, s->bytes);
}

static int model_release(struct inode* inode, struct file* file) {
  kvfree(file->private_data);
  return 0;
}

static const struct file_operations model_fops = {.owner = THIS_MODULE,
                                                  .open = model_open,
                                                  .read = model_read,
                                                  .release = model_release,
                                                  .llseek = default_llseek};

/* ---- memory */

/* Moves at most a page. How many bytes, or a negative errno. Lock not held. */
static ssize_t move_piece(struct vam_machine* machine, const struct vamdgpu_memory* m, u64 done, char* page) {
  char __user* user = u64_to_user_ptr(m->buffer + done);
  u64 offset, bytes;
  u32 bo;
  int err;

  if (m->write && copy_from_user(page, user, min_t(u64, m->bytes - done, PAGE_SIZE))) return -EFAULT;
  mutex_lock(&machine->lock);
  err = vam_debug_locate(machine->model, m->pid, m->gpu_id, m->va + done, &bo, &offset, &bytes);
  bytes = min3(bytes, m->bytes - done, (u64)PAGE_SIZE);
  if (!err)
    err = m->write ? vam_bo_write(machine, bo, offset, page, bytes)
                   : vam_bo_read(machine, bo, offset, page, bytes);
  mutex_unlock(&machine->lock);
  if (!err && !m->write && copy_to_user(user, page, bytes)) err = -EFAULT;
  return err ? err : (ssize_t)bytes;
}

static long memory_ioctl(struct file* file, unsigned int request, unsigned long argument) {
  struct vamdgpu_memory m;
  ssize_t moved = 0;
  char* page;
  u64 done;

  if (request != VAMDGPU_IOC_MEMORY) return -ENOTTY;
  if (copy_from_user(&m, (void __user*)argument, sizeof(m))) return -EFAULT;
  page = kmalloc(PAGE_SIZE, GFP_KERNEL);
  if (!page) return -ENOMEM;
  for (done = 0; done < m.bytes && moved >= 0; done += (u64)moved) {
    moved = move_piece(file->private_data, &m, done, page);
    if (moved < 0) break;
  }
  kfree(page);
  return moved < 0 ? moved : 0;
}

static const struct file_operations memory_fops = {
    .owner = THIS_MODULE, .open = simple_open, .unlocked_ioctl = memory_ioctl, .llseek = noop_llseek};

/* ---- */

int vam_debugfs_create(struct vam_machine* machine) {
  struct vam_control* c = kvzalloc(sizeof(*c), GFP_KERNEL);

  if (!c) return -ENOMEM;
  vam_debug_init(&c->debug, &machine->model->config);
  c->directory = debugfs_create_dir(VAMDGPU_DEBUG_DIRECTORY, NULL);
  mutex_lock(&machine->lock);
  machine->control = c;
  mutex_unlock(&machine->lock);
  debugfs_create_file("control", 0200, c->directory, machine, &control_fops);
  debugfs_create_file("debug", 0400, c->directory, machine, &debug_fops);
  debugfs_create_file("changes", 0400, c->directory, machine, &changes_fops);
  debugfs_create_file("model", 0400, c->directory, machine, &model_fops);
  debugfs_create_file("memory", 0600, c->directory, machine, &memory_fops);
  return 0;
}

void vam_debugfs_destroy(struct vam_machine* machine) {
  struct vam_control* c = machine->control;

  if (!c) return;
  debugfs_remove_recursive(c->directory); /* waits for calls in progress */
  mutex_lock(&machine->lock);
  machine->control = NULL;
  mutex_unlock(&machine->lock);
  kvfree(c);
}
