/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Who consumes the packets of user queues (../model/queue_run.h): one thread, which looks at every queue that
 * may run about once a millisecond, and sleeps until something changes when there is none. A step may reach
 * into its process' memory, so the thread borrows that process' mm and takes its mmap_lock before the
 * machine's lock, as the process' own ioctls do.
 */
#include <linux/delay.h>
#include <linux/file.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "../model/queue_run.h"
#include "core.h"

#define BOUNCE_BYTES 65536
#define PACKETS 64
#define POLL_US 1000

struct vam_queues {
  struct vam_machine* machine;
  struct task_struct* thread;
  u32 process; /* whose mm is borrowed */
  u8* bounce;
};

/* ---- memory, for the model --------------------------------------------------------------------------------
 */

/* Four or eight aligned bytes of a BO, in one piece; 1: not such a case. */
static int bo_word(struct vam_machine* machine, const struct vam_place* place, void* value, u32 bytes,
                   bool write) {
  struct page* page;
  void* at;
  if ((bytes != 4 && bytes != 8) || place->offset % bytes) return 1;
  page = vam_bo_page(machine, place->bo, place->offset);
  if (IS_ERR(page)) return PTR_ERR(page);
  at = page_address(page) + place->offset % PAGE_SIZE;
  if (bytes == 4 && write)
    smp_store_release((u32*)at, *(u32*)value);
  else if (bytes == 4)
    *(u32*)value = smp_load_acquire((u32*)at);
  else if (write)
    smp_store_release((u64*)at, *(u64*)value);
  else
    *(u64*)value = smp_load_acquire((u64*)at);
  put_page(page);
  return 0;
}

static int reach(void* shim, const struct vam_place* place, void* bytes, u32 size, bool write) {
  struct vam_queues* queues = shim;
  int err;
  if (!place->bo) {
    if (place->process != queues->process) return -EFAULT;
    return vam_user_copy(bytes, place->offset, size, write);
  }
  err = bo_word(queues->machine, place, bytes, size, write);
  if (err <= 0) return err;
  return write ? vam_bo_write(queues->machine, place->bo, place->offset, bytes, size)
               : vam_bo_read(queues->machine, place->bo, place->offset, bytes, size);
}

static int read_place(void* shim, const struct vam_place* from, void* to, uint32_t bytes) {
  return reach(shim, from, to, bytes, false);
}

static int write_place(void* shim, const struct vam_place* to, const void* from, uint32_t bytes) {
  return reach(shim, to, (void*)from, bytes, true);
}

/* A page of current->mm for writing, with a reference, under its mmap_lock. */
static struct page* user_page(u64 address) {
  for (int attempt = 0; attempt < 4; ++attempt) {
    struct page* page;
    if (get_user_pages_fast_only(address & PAGE_MASK, 1, FOLL_WRITE, &page) == 1) return page;
    if (fixup_user_fault(current->mm, address, FAULT_FLAG_WRITE, NULL)) break;
  }
  return ERR_PTR(-EFAULT);
}

static int add64(void* shim, const struct vam_place* at, uint64_t value) {
  struct vam_queues* queues = shim;
  struct page* page;
  if (at->offset % 8 || (!at->bo && at->process != queues->process)) return -EFAULT;
  page = at->bo ? vam_bo_page(queues->machine, at->bo, at->offset) : user_page(at->offset);
  if (IS_ERR(page)) return PTR_ERR(page);
  atomic64_add((s64)value, (atomic64_t*)(page_address(page) + at->offset % PAGE_SIZE));
  if (!at->bo) set_page_dirty_lock(page);
  put_page(page);
  return 0;
}

/* ---- turns ------------------------------------------------------------------------------------------------
 */

/* The first process after `after` with a queue that may run, its mm borrowed; 0 = none. */
static u32 next_process(struct vam_machine* machine, u32 after, struct mm_struct** mm) {
  const struct vam_model* model = machine->model;
  u32 best = 0;
  mutex_lock(&machine->lock);
  for (u32 q = vam_queue_runnable(model, 0); q; q = vam_queue_runnable(model, q)) {
    u32 process = VAM_AT(model, VAM_T_QUEUE, vam_queue, q)->process;
    if (process > after && (!best || process < best)) best = process;
  }
  *mm = best ? vam_process_mm(machine, best) : NULL;
  mutex_unlock(&machine->lock);
  return best;
}

/* One step of every queue of a process. Whether any packet was consumed. */
static bool run_process(struct vam_queues* queues, u32 process, struct mm_struct* mm) {
  struct vam_machine* machine = queues->machine;
  struct vam_model* model = machine->model;
  const struct vam_queue_run run = {
      .model = model,
      .shim = queues,
      .read = read_place,
      .write = write_place,
      .add64 = add64,
      .bounce = queues->bounce,
      .bounce_bytes = BOUNCE_BYTES,
  };
  bool progress = false, events = false;
  queues->process = process;
  kthread_use_mm(mm);
  mmap_read_lock(mm);
  mutex_lock(&machine->lock);
  for (u32 q = vam_queue_runnable(model, 0); q; q = vam_queue_runnable(model, q)) {
    struct vam_queue_out out;
    if (VAM_AT(model, VAM_T_QUEUE, vam_queue, q)->process != process) continue;
    vam_queue_step(&run, q, PACKETS, &out);
    progress = progress || out.packets;
    events = events || out.events;
  }
  if (events) vam_changed(machine, 0);
  mutex_unlock(&machine->lock);
  mmap_read_unlock(mm);
  kthread_unuse_mm(mm);
  mmput(mm);
  return progress;
}

static int queues_main(void* data) {
  struct vam_queues* queues = data;
  struct vam_machine* machine = queues->machine;
  while (!kthread_should_stop()) {
    int seen = atomic_read(&machine->change);
    bool progress = false, any = false;
    struct mm_struct* mm;
    u32 process = 0;
    down_read(&machine->borrowing);
    while ((process = next_process(machine, process, &mm))) {
      if (!mm) continue;
      any = true;
      progress = run_process(queues, process, mm) || progress;
    }
    up_read(&machine->borrowing);
    if (progress)
      cond_resched();
    else if (any)
      usleep_range_state(POLL_US, 2 * POLL_US, TASK_IDLE);
    else
      wait_event_idle(machine->wait, kthread_should_stop() || atomic_read(&machine->change) != seen);
  }
  return 0;
}

int vam_queues_create(struct vam_machine* machine) {
  struct vam_queues* queues = kzalloc(sizeof(*queues), GFP_KERNEL);
  if (!queues) return -ENOMEM;
  machine->queues = queues;
  queues->machine = machine;
  queues->bounce = kvmalloc(BOUNCE_BYTES, GFP_KERNEL);
  if (!queues->bounce) return -ENOMEM;
  queues->thread = kthread_run(queues_main, queues, "vamdgpu-queues");
  if (IS_ERR(queues->thread)) {
    int err = PTR_ERR(queues->thread);
    queues->thread = NULL;
    return err;
  }
  return 0;
}

void vam_queues_destroy(struct vam_machine* machine) {
  struct vam_queues* queues = machine->queues;
  if (!queues) return;
  if (queues->thread) kthread_stop(queues->thread);
  kvfree(queues->bounce);
  kfree(queues);
  machine->queues = NULL;
}

void vam_settle(struct vam_machine* machine) {
  down_write(&machine->borrowing); /* whoever had a program's mm has put it */
  up_write(&machine->borrowing);
  flush_delayed_fput(); /* the files that went with it */
}
