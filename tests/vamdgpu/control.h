// SPDX-License-Identifier: MIT
// Looking into a virtual machine from outside, and meddling: for tests, the host look-alike and the demo. The
// machine lives in a directory (vamdgpu-run, machine_directory.h). Works in any process that can reach the
// directory, on the machine or not, from any thread. Every function takes the machine's lock for as long as
// it looks. What goes wrong with the machine itself (no room for one more fault) throws std::system_error.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config.h"

namespace vamdgpu {

class ControlFront;

// Makes a machine's state in an existing directory: the shared segment and one VRAM and one GTT pool per GPU,
// every page of them touched (filled with 0xA5, so that nobody takes fresh memory for zeroes). 0 or -errno;
// what was made is left for the caller to remove.
int create_state(const char* directory, const vamdgpu_machine_config& config);

// Which device file an ioctl is for.
enum class On { Kfd, Render };

// What is saved of a queue whose kernels run when it is stopped.
enum class Waves {
  Words,    // only words on the control stack, as firmware may leave them on an idle one
  Saved,    // waves and their state
  Counted,  // no waves, but a profiler counts the kernels
};

// One ioctl that a program made, in the order in which they took effect.
struct TracedCall {
  std::uint64_t sequence = 0;
  pid_t pid = 0, tid = 0;
  On device = On::Kfd;
  std::uint32_t nr = 0;  // _IOC_NR
  std::uint32_t op = 0;  // CRIU_OP, GEM_VA, CTX, BO_LIST, GEM_OP, INFO ...: which operation
  int result = 0;        // 0 or -errno
  bool injected = false;
  std::string name;  // "KFD_CRIU_OP:CHECKPOINT", "DRM_GEM_CREATE", ...
};

// "Calls `skip` .. of this ioctl fail with `error`".
struct Fault {
  On device = On::Kfd;
  std::uint32_t nr = 0;
  int op = -1;              // -1: any
  int error = 5;            // positive errno
  std::uint32_t skip = 0;   // matching calls that pass first
  std::uint32_t times = 1;  // then so many fail; 0: all
  bool after = false;       // the call takes effect and then reports failure
};

struct BoInfo {
  std::uint32_t gpu = 0;          // index
  std::uint32_t user_gpu_id = 0;  // of the process's handle
  std::uint32_t kfd_handle = 0;   // lower half of the KFD handle
  std::uint64_t va = 0, size = 0;
  std::uint32_t flags = 0;        // KFD_IOC_ALLOC_MEM_FLAGS_*
  std::uint64_t user_addr = 0;    // userptr BOs
  std::uint32_t mapped_gpus = 0;  // bit i: mapped on GPU i
  bool imported = false;
  std::uint64_t object = 0;  // the same for two handles of one BO, unique for the machine's life
};

struct QueueInfo {
  std::uint32_t id = 0, gpu = 0, type = 0, format = 0, doorbell = 0;
  std::uint64_t ring = 0, ring_size = 0, read_ptr = 0, write_ptr = 0;
  bool active = false;         // has a ring and a share
  bool running = false;        // active and not evicted
  std::uint64_t consumed = 0;  // packets since it was made or restored
  std::string fault;           // why it consumes no more, "" = it does
};

struct EventInfo {
  std::uint32_t id = 0, type = 0;
  bool auto_reset = false, signaled = false;
};

struct DeviceInfo {
  std::uint32_t gpu_id = 0, user_gpu_id = 0;
  std::uint32_t evictions = 0;  // queues run at 0
  bool acquired = false;        // has a VM
};

struct ProcessInfo {
  pid_t pid = 0;
  bool queues_paused = false;
  bool restore_blocked = false;     // RESTORE done, RESUME not yet
  std::uint32_t process_infos = 0;  // PROCESS_INFO calls that took effect
  std::uint32_t unpauses = 0;
  std::uint32_t damaged_queues = 0;  // restored from private data that had been changed
  std::uint32_t svm_ranges = 0;
  std::uint64_t event_page_handle = 0;
  std::vector<DeviceInfo> devices;
  std::vector<BoInfo> bos;  // by GPU, then handle
  std::vector<QueueInfo> queues;
  std::vector<EventInfo> events;

  bool queues_run() const {
    for (const QueueInfo& queue : queues) {
      if (queue.active && !queue.running) return false;
    }
    return true;
  }
};

// A GEM handle of a DRM file.
struct GemInfo {
  pid_t opener = 0;
  std::uint32_t gpu = 0, handle = 0;
  std::uint64_t size = 0, object = 0;
  bool userptr = false;
};

// How much of everything exists, after reaping what nobody has any more. Leak checks compare two of these.
struct Counts {
  std::uint32_t kfd_files = 0, render_files = 0, processes = 0;
  std::uint32_t bos = 0, gem_handles = 0, kfd_handles = 0, mappings = 0;
  std::uint32_t contexts = 0, bo_lists = 0, jobs = 0, fences = 0, syncobjs = 0, dma_bufs = 0;
  std::uint64_t vram_bytes = 0, gtt_bytes = 0;  // in use, all GPUs

  bool operator==(const Counts&) const = default;
};

struct EngineUse {
  std::uint64_t cpu_ns = 0;  // processor time of all engine threads so far
  std::uint64_t bytes = 0;   // moved
  std::uint64_t jobs = 0;
};

// Where a piece of a process's address space that maps device memory comes from: for readers of
// /proc/PID/maps.
struct DeviceMapping {
  On device = On::Render;
  std::uint32_t minor = 0;   // render minor
  std::uint64_t offset = 0;  // the mmap offset on that device
};

class Control {
 public:
  // The machine in a directory. nullptr with errno when there is none.
  static std::unique_ptr<Control> open(const std::string& directory);
  // The machine that this process is on, which $VAMDGPU_DIR names.
  static std::unique_ptr<Control> open_default();
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  const vamdgpu_machine_config& config() const;
  const std::string& directory() const { return directory_; }

  // ---- faults. All of these stay until clear_faults().
  void inject(const Fault& fault);
  // Fence `number` (from 1, 0 = every further one) of a GPU never signals, or signals with an error. The
  // number of fences a GPU has made so far is fences_made().
  void hang_fence(std::uint32_t gpu, std::uint64_t number);
  void fail_fence(std::uint32_t gpu, std::uint64_t number, int error);
  std::uint64_t fences_made(std::uint32_t gpu) const;
  // Jobs that hang on purpose signal now with -ECANCELED.
  void release_hung_fences();
  void set_engine_rate(std::uint32_t gpu, std::uint64_t bytes_per_s);  // 0: as fast as it goes
  // A GPU says from now on, or when it has been asked `answers` times more, that a reset has cost it its VRAM
  // (INFO_VRAM_LOST_COUNTER). What is in the VRAM stays; clear_faults() does not undo it.
  void lose_vram(std::uint32_t gpu, std::uint32_t answers = 0);
  // The compute queues of a process have kernels, which the next `stops` PROCESS_INFOs of it find running, or
  // all (kForEver). No packet waits for them; clear_faults() does not end them.
  static constexpr std::uint32_t kForEver = UINT32_MAX;
  void run_kernels(pid_t pid, Waves waves, std::uint32_t stops);
  void clear_faults();
  // How many calls and fences were hit by injected faults so far.
  std::uint64_t faults_hit() const;
  std::string last_engine_fault() const;  // why the last failed job failed, for messages

  // Runs `body` while no program on the machine is in the middle of a device call. What `body`
  // kills, and sees dead, has died between two calls: a kernel would not let it die inside one.
  void between_calls(const std::function<void()>& body);

  // ---- what happened
  std::vector<TracedCall> trace() const;  // the last 16384 calls, oldest first
  void clear_trace();
  std::uint64_t calls(On device, std::uint32_t nr) const;
  std::uint64_t criu_calls(std::uint32_t op) const;

  // ---- what there is
  std::optional<ProcessInfo> process(pid_t pid) const;
  std::vector<pid_t> processes() const;
  std::vector<GemInfo> gem_handles() const;
  Counts counts() const;
  EngineUse engine_use() const;

  // BO contents at a GPU virtual address of a process; the range may span BOs. False: not (wholly) mapped, or
  // not device memory (userptr). gpu_id may be the actual or the user's.
  bool read(pid_t pid, std::uint32_t gpu_id, std::uint64_t va, void* bytes, std::size_t size) const;
  bool write(pid_t pid, std::uint32_t gpu_id, std::uint64_t va, const void* bytes, std::size_t size);

  // What a mapping of (st_dev, st_ino) at file offset `offset`, as /proc/PID/maps shows it, maps of a device.
  // Doorbell and MMIO pages come back as On::Kfd. Nothing for files that are none of the machine's.
  std::optional<DeviceMapping> device_of_mapping(dev_t device, ino_t inode, std::uint64_t offset) const;

 private:
  Control(std::string directory, std::unique_ptr<ControlFront> front);

  std::string directory_;
  std::unique_ptr<ControlFront> front_;
};

// Name of an ioctl, as in TracedCall::name.
std::string call_name(On device, std::uint32_t nr, std::uint32_t op);

}  // namespace vamdgpu
