/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Virtual SDMA engines: one thread per GPU. Which job is whose turn is decided under the machine's lock from
 * the model's own queues; addresses are translated there too, a batch at a time; bytes are moved without the
 * lock, while the batch holds its BOs. Userptr memory is reached by borrowing its owner's mm.
 */
#include <linux/bsearch.h>
#include <linux/hrtimer.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/pid.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/sort.h>
#include <linux/vmalloc.h>

#include "../model/sdma.h"
#include "core.h"

#define BATCH 128
#define BOUNCE_BYTES PAGE_SIZE

/* One side of a copy: a BO of a pool, or memory of a process. */
struct place {
  u32 bo;     /* 0: memory */
  u64 offset; /* in the BO, or address */
  s32 owner;  /* whose memory */
};

struct move {
  bool fill;
  u32 value;
  struct place from, to;
  u64 bytes;
};

struct vam_engine {
  struct vam_gpu_device* gpu;
  struct task_struct* thread;
  u64 busy_until_ns; /* pacing */
  /* Of the job being run. */
  u32 file;
  u32 *dwords, *listed;
  size_t dwords_size, listed_size; /* bytes */
  u32 listed_count;
  void* bounce;
  int count;
  struct move moves[BATCH];
};

/* ---- moving bytes -----------------------------------------------------------------------------------------
 */

/* Borrows the memory of a process. NULL when it is gone. */
static struct mm_struct* borrow(struct vam_engine* engine, s32 pid) {
  struct task_struct* task = NULL;
  struct mm_struct* mm = NULL;
  down_read(&engine->gpu->machine->borrowing);
  rcu_read_lock();
  task = pid_task(find_pid_ns(pid, &init_pid_ns), PIDTYPE_PID);
  if (task) get_task_struct(task);
  rcu_read_unlock();
  if (task) {
    mm = get_task_mm(task);
    put_task_struct(task);
  }
  if (mm)
    kthread_use_mm(mm);
  else
    up_read(&engine->gpu->machine->borrowing);
  return mm;
}

static void give_back(struct vam_engine* engine, struct mm_struct* mm) {
  kthread_unuse_mm(mm);
  mmput(mm);
  up_read(&engine->gpu->machine->borrowing);
}

/* Between memory and the bounce buffer. */
static int bounce(struct vam_engine* engine, const struct place* memory, u64 bytes, bool out) {
  struct mm_struct* mm = borrow(engine, memory->owner);
  unsigned long failed;
  if (!mm) return -EFAULT;
  failed = out ? copy_to_user(u64_to_user_ptr(memory->offset), engine->bounce, bytes)
               : copy_from_user(engine->bounce, u64_to_user_ptr(memory->offset), bytes);
  give_back(engine, mm);
  return failed ? -EFAULT : 0;
}

/* Through the bounce buffer: between two processes, or a fill of memory. */
static int move_memory(struct vam_engine* engine, const struct move* move) {
  struct place from = move->from, to = move->to;
  u64 left = move->bytes;
  if (move->fill) {
    for (u32 i = 0; i < BOUNCE_BYTES; i += 4) memcpy(engine->bounce + i, &move->value, 4);
  }
  while (left) {
    u64 n = min_t(u64, left, BOUNCE_BYTES);
    int err = move->fill ? 0 : bounce(engine, &from, n, false);
    if (!err) err = bounce(engine, &to, n, true);
    if (err) return err;
    from.offset += n;
    to.offset += n;
    left -= n;
  }
  return 0;
}

static int run_move(struct vam_engine* engine, const struct move* move) {
  struct vam_machine* machine = engine->gpu->machine;
  struct mm_struct* mm;
  int err;
  if (move->to.bo && move->fill)
    return vam_bo_fill(machine, move->to.bo, move->to.offset, move->value, move->bytes);
  if (move->to.bo && move->from.bo)
    return vam_bo_copy(machine, move->to.bo, move->to.offset, move->from.bo, move->from.offset, move->bytes);
  if (!move->to.bo && (move->fill || !move->from.bo)) return move_memory(engine, move);
  mm = borrow(engine, move->to.bo ? move->from.owner : move->to.owner);
  if (!mm) return -EFAULT;
  if (move->to.bo)
    err = vam_bo_from_user(machine, move->to.bo, move->to.offset, move->from.offset, move->bytes);
  else
    err = vam_bo_to_user(machine, move->to.offset, move->from.bo, move->from.offset, move->bytes);
  give_back(engine, mm);
  return err;
}

/* Reads or writes a little at a place. */
static int access(struct vam_engine* engine, const struct place* place, void* bytes, u64 size, bool write) {
  struct vam_machine* machine = engine->gpu->machine;
  struct mm_struct* mm;
  unsigned long failed;
  if (place->bo) {
    return write ? vam_bo_write(machine, place->bo, place->offset, bytes, size)
                 : vam_bo_read(machine, place->bo, place->offset, bytes, size);
  }
  mm = borrow(engine, place->owner);
  if (!mm) return -EFAULT;
  failed = write ? copy_to_user(u64_to_user_ptr(place->offset), bytes, size)
                 : copy_from_user(bytes, u64_to_user_ptr(place->offset), size);
  give_back(engine, mm);
  return failed ? -EFAULT : 0;
}

/* ---- holding BOs while the lock is not held ---------------------------------------------------------------
 */

static void hold(struct vam_machine* machine, struct place* place, u32 bo, u64 offset) {
  const struct vam_bo* record = VAM_BO_AT(machine->model, bo);
  if (record->pool == VAM_POOL_NONE) {
    *place = (struct place){0, record->user_addr + offset, record->owner_pid};
    return;
  }
  *place = (struct place){bo, offset, 0};
  vam_bo_ref(machine->model, bo);
}

static void release(struct vam_machine* machine, const struct place* place) {
  if (place->bo) vam_bo_unref(machine->model, place->bo);
}

static void release_moves(struct vam_engine* engine) {
  struct vam_machine* machine = engine->gpu->machine;
  if (!engine->count) return;
  mutex_lock(&machine->lock);
  for (int i = 0; i < engine->count; ++i) {
    release(machine, &engine->moves[i].to);
    release(machine, &engine->moves[i].from);
  }
  mutex_unlock(&machine->lock);
  engine->count = 0;
}

/* ---- one job ----------------------------------------------------------------------------------------------
 */

static void* reserve(void* buffer, size_t* size, size_t need) {
  if (need <= *size) return buffer;
  kvfree(buffer);
  buffer = kvmalloc(need, GFP_KERNEL);
  *size = buffer ? need : 0;
  return buffer;
}

static int compare_u32(const void* a, const void* b) {
  u32 left = *(const u32*)a, right = *(const u32*)b;
  return left < right ? -1 : left > right;
}

static bool is_listed(const struct vam_engine* engine, u32 bo) {
  const struct vam_model* model = engine->gpu->machine->model;
  if (VAM_BO_AT(model, bo)->gem_flags & VAM_GEM_VM_ALWAYS_VALID) return true;
  if (VAM_BO_AT(model, bo)->mems && VAM_FILE_AT(model, engine->file)->process)
    return true; /* KFD keeps it valid */
  return bsearch(&bo, engine->listed, engine->listed_count, sizeof(u32), compare_u32) != NULL;
}

static int fault(struct vam_engine* engine, int err, const char* why, u64 va) {
  struct vam_machine* machine = engine->gpu->machine;
  mutex_lock(&machine->lock);
  snprintf(machine->last_fault, sizeof(machine->last_fault), "GPU %u: %s (VA 0x%llx)", engine->gpu->index,
           why, va);
  mutex_unlock(&machine->lock);
  return err;
}

/* Copies the IB's dwords out of its BOs. */
static int read_ib(struct vam_engine* engine, u64 va, u32 bytes) {
  struct vam_machine* machine = engine->gpu->machine;
  engine->dwords = reserve(engine->dwords, &engine->dwords_size, (size_t)bytes + 4);
  if (!engine->dwords) return -ENOMEM;
  for (u32 at = 0; at < bytes;) {
    struct place from = {0, 0, 0};
    u64 n = 0, offset = 0;
    u32 bo = 0;
    int err;
    mutex_lock(&machine->lock);
    if (vam_vm_translate(machine->model, engine->file, va + at, 0, &bo, &offset, &n) == 0 &&
        is_listed(engine, bo))
      hold(machine, &from, bo, offset);
    else
      n = 0;
    mutex_unlock(&machine->lock);
    if (!n) return fault(engine, -EFAULT, "the IB is not mapped or not in the BO list", va + at);
    n = min_t(u64, n, bytes - at);
    err = access(engine, &from, (char*)engine->dwords + at, n, false);
    mutex_lock(&machine->lock);
    release(machine, &from);
    mutex_unlock(&machine->lock);
    if (err) return fault(engine, err, "the IB cannot be read", va + at);
    at += (u32)n;
  }
  return 0;
}

/* Decodes up to a batch of moves. 0: there may be more; 1: that was all; negative: `reader->fault`. */
static int decode(struct vam_engine* engine, struct vam_sdma_reader* reader) {
  struct vam_machine* machine = engine->gpu->machine;
  int result = 0;
  mutex_lock(&machine->lock);
  while (engine->count < BATCH && !result) {
    struct vam_sdma_op op;
    int got = vam_sdma_next(machine->model, reader, &op);
    if (got <= 0) {
      result = got ? got : 1;
    } else if (!is_listed(engine, op.dst_bo) || (op.kind == VAM_SDMA_COPY && !is_listed(engine, op.src_bo))) {
      reader->fault = "a BO of the job is not in its BO list";
      result = -EFAULT;
    } else {
      struct move* move = &engine->moves[engine->count++];
      move->fill = op.kind == VAM_SDMA_FILL;
      move->value = op.value;
      move->bytes = op.bytes;
      hold(machine, &move->to, op.dst_bo, op.dst_offset);
      move->from = (struct place){0, 0, 0};
      if (!move->fill) hold(machine, &move->from, op.src_bo, op.src_offset);
    }
  }
  mutex_unlock(&machine->lock);
  return result;
}

static int run_ib(struct vam_engine* engine, u32 job, u32 index, u64* bytes) {
  struct vam_machine* machine = engine->gpu->machine;
  const struct vamdgpu_gpu_config* config = &machine->model->gpu[engine->gpu->index].config;
  struct vam_sdma_reader reader = {
      .max_bytes = config->sdma_max_bytes,
      .count_is_bytes_less_one = config->family >= 141,
      .tolerant = machine->model->config.tolerant_sdma,
      .file = engine->file,
  };
  u64 va;
  u32 ibs;
  int state = 0, err;
  mutex_lock(&machine->lock);
  ibs = VAM_JOB_AT(machine->model, job)->ibs;
  va = vam_chain_word(machine->model, ibs, 4 * index) |
       (u64)vam_chain_word(machine->model, ibs, 4 * index + 1) << 32;
  reader.count = vam_chain_word(machine->model, ibs, 4 * index + 2) / 4;
  mutex_unlock(&machine->lock);
  va &= ~31ull; /* the ring packet has no room for the low bits */
  err = read_ib(engine, va, reader.count * 4);
  if (err) return err;
  reader.dwords = engine->dwords;
  while (!state) {
    state = decode(engine, &reader);
    for (int i = 0; i < engine->count && !err; ++i) { /* what came before a bad packet is done */
      err = run_move(engine, &engine->moves[i]);
      if (err)
        fault(engine, err, "memory behind a BO cannot be reached", engine->moves[i].to.offset);
      else
        *bytes += engine->moves[i].bytes;
    }
    release_moves(engine);
    if (err) return err;
    if (state < 0) return fault(engine, state, reader.fault, reader.fault_va);
  }
  return 0;
}

static int write_user_fence(struct vam_engine* engine, u32 job_index) {
  struct vam_machine* machine = engine->gpu->machine;
  const struct vam_job* job = VAM_JOB_AT(machine->model, job_index);
  struct place to;
  u64 seq;
  int err;
  if (!job->user_fence_bo) return 0;
  mutex_lock(&machine->lock);
  hold(machine, &to, job->user_fence_bo, job->user_fence_offset);
  seq = job->seq;
  mutex_unlock(&machine->lock);
  err = access(engine, &to, &seq, sizeof(seq), true);
  mutex_lock(&machine->lock);
  release(machine, &to);
  mutex_unlock(&machine->lock);
  return err;
}

/* Does everything a job asks for. */
static int run_ibs(struct vam_engine* engine, u32 job_index, u64* bytes) {
  struct vam_machine* machine = engine->gpu->machine;
  const struct vam_model* model = machine->model;
  const struct vam_job* job = VAM_JOB_AT(model, job_index);
  u32 ibs;
  int err = 0;
  mutex_lock(&machine->lock);
  ibs = job->num_ibs;
  engine->file = job->file;
  engine->listed_count = 0;
  engine->listed = reserve(engine->listed, &engine->listed_size, (job->num_bos + 1) * sizeof(u32));
  for (u32 c = job->bos; c && engine->listed; c = VAM_CHUNK_AT(model, c)->next) {
    const struct vam_chunk* chunk = VAM_CHUNK_AT(model, c);
    for (u32 i = 0; i < chunk->used && engine->listed_count < job->num_bos; ++i)
      engine->listed[engine->listed_count++] = chunk->word[i];
  }
  mutex_unlock(&machine->lock);
  if (!engine->listed) return -ENOMEM;
  sort(engine->listed, engine->listed_count, sizeof(u32), compare_u32, NULL);
  for (u32 i = 0; i < ibs && !err; ++i) err = run_ib(engine, job_index, i, bytes);
  return err ? err : write_user_fence(engine, job_index);
}

/* ---- taking turns -----------------------------------------------------------------------------------------
 */

/* A job of this GPU whose turn it is, the oldest first; 0 = none. Lock held. */
static u32 pick(const struct vam_engine* engine) {
  const struct vam_model* model = engine->gpu->machine->model;
  u32 best = 0;
  if (!model->table[VAM_T_JOB].live) return 0;
  for (u32 i = 1; i < model->table[VAM_T_JOB].high; ++i) {
    const struct vam_job* job = VAM_JOB_AT(model, i);
    if (!job->rec.live || job->running || VAM_FILE_AT(model, job->file)->gpu != engine->gpu->index) continue;
    if (VAM_CTX_AT(model, job->ctx)->entity[job->ring].job_head != i || !vam_job_ready(model, i)) continue;
    if (!best ||
        VAM_FENCE_AT(model, job->fence)->number < VAM_FENCE_AT(model, VAM_JOB_AT(model, best)->fence)->number)
      best = i;
  }
  return best;
}

/* Waits until the rate limit of the GPU would have let these bytes through. */
static void pace(struct vam_engine* engine, u64 bytes, u64 started_ns) {
  u64 rate = vam_engine_rate(engine->gpu->machine, engine->gpu->index);
  ktime_t until;
  if (!rate || !bytes) return;
  engine->busy_until_ns =
      max(engine->busy_until_ns, started_ns) + mul_u64_u64_div_u64(bytes, NSEC_PER_SEC, rate);
  until = ns_to_ktime(engine->busy_until_ns);
  while (!kthread_should_stop() && ktime_before(ktime_get(), until)) {
    set_current_state(TASK_IDLE);
    if (kthread_should_stop()) break;
    schedule_hrtimeout(&until, HRTIMER_MODE_ABS);
  }
  __set_current_state(TASK_RUNNING);
}

static void run_job(struct vam_engine* engine, u32 job) {
  struct vam_machine* machine = engine->gpu->machine;
  struct vam_model* model = machine->model;
  u64 started = ktime_get_ns(), busy, bytes = 0;
  bool lost;
  int err, fate;
  mutex_lock(&machine->lock);
  lost = VAM_CTX_AT(model, VAM_JOB_AT(model, job)->ctx)->lost != 0;
  mutex_unlock(&machine->lock);
  err = lost ? -ECANCELED : run_ibs(engine, job, &bytes); /* nothing of a lost context runs */
  if (err) err = -ECANCELED;                              /* what a job that took its engine down is given */
  busy = ktime_get_ns() - started;
  pace(engine, bytes, started);
  mutex_lock(&machine->lock);
  machine->engine_bytes += bytes;
  machine->engine_busy_ns += busy;
  machine->engine_jobs++;
  fate =
      vam_fence_fate(machine, engine->gpu->index, VAM_FENCE_AT(model, VAM_JOB_AT(model, job)->fence)->number);
  if (fate > 0)
    VAM_JOB_AT(model, job)->hung = 1; /* stays in flight for ever, as far as anybody can see */
  else
    vam_job_end(machine, job, fate ? fate : err);
  vam_announce(machine);
  mutex_unlock(&machine->lock);
}

static int engine_main(void* data) {
  struct vam_engine* engine = data;
  struct vam_machine* machine = engine->gpu->machine;
  while (!kthread_should_stop()) {
    int seen;
    u32 job;
    mutex_lock(&machine->lock);
    seen = atomic_read(&machine->change);
    job = pick(engine);
    if (job) VAM_JOB_AT(machine->model, job)->running = 1;
    mutex_unlock(&machine->lock);
    if (job)
      run_job(engine, job);
    else
      wait_event_idle(machine->wait, kthread_should_stop() || atomic_read(&machine->change) != seen);
  }
  return 0;
}

int vam_engines_create(struct vam_machine* machine) {
  for (u32 i = 0; i < machine->num_gpus; ++i) {
    struct vam_engine* engine = kvzalloc(sizeof(*engine), GFP_KERNEL);
    if (!engine) return -ENOMEM;
    engine->gpu = &machine->gpu[i];
    machine->gpu[i].engine = engine;
    engine->bounce = kmalloc(BOUNCE_BYTES, GFP_KERNEL);
    if (!engine->bounce) return -ENOMEM;
    engine->thread = kthread_run(engine_main, engine, "vamdgpu-sdma%u", i);
    if (IS_ERR(engine->thread)) {
      int err = PTR_ERR(engine->thread);
      engine->thread = NULL;
      return err;
    }
  }
  return 0;
}

void vam_engines_destroy(struct vam_machine* machine) {
  for (u32 i = 0; i < machine->num_gpus; ++i) {
    struct vam_engine* engine = machine->gpu[i].engine;
    if (!engine) continue;
    if (engine->thread) kthread_stop(engine->thread);
    kvfree(engine->dwords);
    kvfree(engine->listed);
    kfree(engine->bounce);
    kvfree(engine);
    machine->gpu[i].engine = NULL;
  }
}
