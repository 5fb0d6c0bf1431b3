// SPDX-License-Identifier: MIT
// A program on AMD's own runtime (libhsa-runtime64, unchanged), to be dumped and restored: nothing of what it
// asks of the driver was written here. On every GPU it allocates VRAM that all other GPUs may access,
// fine-grained host memory that all GPUs may access, a signal and an AQL queue, and fills the memory with
// data it can check.
//
// usage: hsa-client DIR [MIB]      MIB of VRAM on each GPU, by default 6
// Commands come from the FIFO DIR/in, answers go to the FIFO DIR/out, one line each:
//   (start) -> "ready gpus=N bytes=N"
//   check   -> "ok check bytes=N"       every byte of every allocation, every signal's value
//   work    -> "ok work packets=N"      a barrier packet through every queue; VRAM of each GPU copied by the
//                                       GPUs into the next one's; memory allocated, used, freed
//   quit    -> "ok quit"
// Anything that is not as it should be: "bad REASON". It opens both FIFOs for reading and writing itself, so
// that it depends on nobody else's end of them. Single-threaded but for the runtime's own threads.
#include <fcntl.h>
#include <hsa/hsa.h>
#include <hsa/hsa_ext_amd.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_GPUS = 16, HOST_BYTES = 1 << 20, WORK_BYTES = 6 << 20, COPY_BYTES = 1 << 20, QUEUE_PACKETS = 64 };

struct gpu {
  hsa_agent_t agent;
  hsa_amd_memory_pool_t vram;
  uint64_t *device, *host;  // vram_bytes and HOST_BYTES long
  uint64_t* landing;        // COPY_BYTES of VRAM for what another GPU has
  hsa_signal_t signal;      // keeps the value 1000 + index
  hsa_queue_t* queue;
};

static uint64_t vram_bytes = 6 << 20;  // of each GPU
static struct gpu gpus[MAX_GPUS];
static hsa_agent_t gpu_agents[MAX_GPUS];
static uint32_t num_gpus;
static int peers_reach_vram;  // each GPU the others' VRAM: not every kernel lets them
static hsa_amd_memory_pool_t host_pool;
static int have_host_pool;
static int in_fd, out_fd;

__attribute__((format(printf, 1, 2))) static void say(const char* format, ...) {
  char line[256];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(line, sizeof(line) - 1, format, arguments);
  va_end(arguments);
  line[length++] = '\n';
  if (write(out_fd, line, (size_t)length) != length) _exit(3);
}

// One command without its newline; 0 at the end of the input.
static int hear(char* line, size_t size) {
  for (size_t used = 0; used + 1 < size; ++used) {
    if (read(in_fd, line + used, 1) != 1) return 0;
    if (line[used] == '\n') {
      line[used] = 0;
      return 1;
    }
  }
  return 0;
}

static int fine(hsa_status_t status, const char* what) {
  if (status == HSA_STATUS_SUCCESS) return 1;
  const char* text = "unknown";
  hsa_status_string(status, &text);
  say("bad %s: %s", what, text);
  return 0;
}

static uint64_t pattern(uint64_t seed, uint64_t i) {
  uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15u + i * 0xd1342543de82ef95u;
  return x ^ x >> 29;
}

static void fill(uint64_t* memory, uint64_t bytes, uint64_t seed) {
  for (uint64_t i = 0; i < bytes / 8; ++i) memory[i] = pattern(seed, i);
}

static int holds(const uint64_t* memory, uint64_t bytes, uint64_t seed, const char* what) {
  for (uint64_t i = 0; i < bytes / 8; ++i) {
    if (memory[i] == pattern(seed, i)) continue;
    say("bad %s at byte %" PRIu64 ": 0x%" PRIx64 " instead of 0x%" PRIx64, what, i * 8, memory[i],
        pattern(seed, i));
    return 0;
  }
  return 1;
}

// ---- what there is

static hsa_status_t take_pool(hsa_amd_memory_pool_t pool, void* data) {
  struct gpu* gpu = data;  // NULL: the pools of a CPU
  hsa_amd_segment_t segment;
  bool allocatable = false;
  uint32_t flags = 0;
  hsa_amd_memory_pool_get_info(pool, HSA_AMD_MEMORY_POOL_INFO_SEGMENT, &segment);
  hsa_amd_memory_pool_get_info(pool, HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED, &allocatable);
  if (segment != HSA_AMD_SEGMENT_GLOBAL || !allocatable) return HSA_STATUS_SUCCESS;
  hsa_amd_memory_pool_get_info(pool, HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS, &flags);
  if (gpu && (flags & HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED)) gpu->vram = pool;
  if (!gpu && !have_host_pool && (flags & HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED)) {
    host_pool = pool;
    have_host_pool = 1;
  }
  return HSA_STATUS_SUCCESS;
}

static hsa_status_t take_agent(hsa_agent_t agent, void* unused) {
  hsa_device_type_t type;
  (void)unused;
  hsa_agent_get_info(agent, HSA_AGENT_INFO_DEVICE, &type);
  if (type == HSA_DEVICE_TYPE_CPU) return hsa_amd_agent_iterate_memory_pools(agent, take_pool, NULL);
  if (type != HSA_DEVICE_TYPE_GPU || num_gpus == MAX_GPUS) return HSA_STATUS_SUCCESS;
  gpus[num_gpus].agent = agent;
  gpu_agents[num_gpus] = agent;
  return hsa_amd_agent_iterate_memory_pools(agent, take_pool, &gpus[num_gpus++]);
}

static int can_peers_reach_vram(void) {
  for (uint32_t i = 0; i < num_gpus; ++i) {
    for (uint32_t peer = 0; peer < num_gpus; ++peer) {
      hsa_amd_memory_pool_access_t access = HSA_AMD_MEMORY_POOL_ACCESS_NEVER_ALLOWED;
      hsa_amd_agent_memory_pool_get_info(gpus[peer].agent, gpus[i].vram,
                                         HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS, &access);
      if (access == HSA_AMD_MEMORY_POOL_ACCESS_NEVER_ALLOWED) return 0;
    }
  }
  return 1;
}

// For all GPUs that can.
static hsa_status_t allow_vram(uint32_t gpu, void* at) {
  if (peers_reach_vram) return hsa_amd_agents_allow_access(num_gpus, gpu_agents, NULL, at);
  return hsa_amd_agents_allow_access(1, &gpu_agents[gpu], NULL, at);
}

// ---- what it does

static int build(void) {
  if (!fine(hsa_init(), "hsa_init")) return 0;
  if (!fine(hsa_iterate_agents(take_agent, NULL), "hsa_iterate_agents")) return 0;
  if (!num_gpus || !have_host_pool) return say("bad no GPU or no host memory found"), 0;
  peers_reach_vram = can_peers_reach_vram();
  for (uint32_t i = 0; i < num_gpus; ++i) {
    struct gpu* gpu = &gpus[i];
    if (!fine(hsa_amd_memory_pool_allocate(gpu->vram, vram_bytes, 0, (void**)&gpu->device), "VRAM") ||
        !fine(allow_vram(i, gpu->device), "peer access") ||
        !fine(hsa_amd_memory_pool_allocate(gpu->vram, COPY_BYTES, 0, (void**)&gpu->landing), "VRAM") ||
        !fine(allow_vram(i, gpu->landing), "peer access") ||
        !fine(hsa_amd_memory_pool_allocate(host_pool, HOST_BYTES, 0, (void**)&gpu->host), "host memory") ||
        !fine(hsa_amd_agents_allow_access(num_gpus, gpu_agents, NULL, gpu->host), "host memory access") ||
        !fine(hsa_signal_create(1000 + i, 0, NULL, &gpu->signal), "signal") ||
        !fine(hsa_queue_create(gpu->agent, QUEUE_PACKETS, HSA_QUEUE_TYPE_SINGLE, NULL, NULL, UINT32_MAX,
                               UINT32_MAX, &gpu->queue),
              "queue"))
      return 0;
    fill(gpu->device, vram_bytes, i);
    fill(gpu->host, HOST_BYTES, 100 + i);
  }
  return 1;
}

static int check(void) {
  for (uint32_t i = 0; i < num_gpus; ++i) {
    if (!holds(gpus[i].device, vram_bytes, i, "VRAM") ||
        !holds(gpus[i].host, HOST_BYTES, 100 + i, "host memory"))
      return 0;
    if (hsa_signal_load_scacquire(gpus[i].signal) != 1000 + (hsa_signal_value_t)i)
      return say("bad signal of GPU %" PRIu32, i), 0;
  }
  return 1;
}

// A barrier packet with no dependencies through the queue: the GPU completes it.
static int run_queue(struct gpu* gpu) {
  hsa_signal_t done;
  if (!fine(hsa_signal_create(1, 0, NULL, &done), "signal")) return 0;
  uint64_t index = hsa_queue_add_write_index_relaxed(gpu->queue, 1);
  hsa_barrier_and_packet_t* packet =
      (hsa_barrier_and_packet_t*)gpu->queue->base_address + index % gpu->queue->size;
  memset((char*)packet + 2, 0, sizeof(*packet) - 2);
  packet->completion_signal = done;
  uint16_t header = HSA_PACKET_TYPE_BARRIER_AND << HSA_PACKET_HEADER_TYPE | 1 << HSA_PACKET_HEADER_BARRIER |
                    HSA_FENCE_SCOPE_SYSTEM << HSA_PACKET_HEADER_SCACQUIRE_FENCE_SCOPE |
                    HSA_FENCE_SCOPE_SYSTEM << HSA_PACKET_HEADER_SCRELEASE_FENCE_SCOPE;
  __atomic_store_n(&packet->header, header, __ATOMIC_RELEASE);
  hsa_signal_store_screlease(gpu->queue->doorbell_signal, (hsa_signal_value_t)index);
  hsa_signal_value_t value =
      hsa_signal_wait_scacquire(done, HSA_SIGNAL_CONDITION_LT, 1, UINT64_MAX, HSA_WAIT_STATE_BLOCKED);
  hsa_signal_destroy(done);
  if (value != 0) return say("bad barrier packet left %" PRId64, (int64_t)value), 0;
  return 1;
}

// What GPU `from` has in its VRAM, copied by a GPU into the VRAM of `to`: one of the two reaches its peer's.
static int copy_to_peer(uint32_t from, uint32_t to) {
  hsa_signal_t done;
  if (!fine(hsa_signal_create(1, 0, NULL, &done), "signal")) return 0;
  fill(gpus[to].landing, COPY_BYTES, 300 + to);
  if (!fine(hsa_amd_memory_async_copy(gpus[to].landing, gpus[to].agent, gpus[from].device, gpus[from].agent,
                                      COPY_BYTES, 0, NULL, done),
            "copy to a peer"))
    return 0;
  hsa_signal_value_t value =
      hsa_signal_wait_scacquire(done, HSA_SIGNAL_CONDITION_LT, 1, UINT64_MAX, HSA_WAIT_STATE_BLOCKED);
  hsa_signal_destroy(done);
  if (value != 0) return say("bad copy to a peer left %" PRId64, (int64_t)value), 0;
  return holds(gpus[to].landing, COPY_BYTES, from, "VRAM of a peer");
}

static int work(void) {
  for (uint32_t i = 0; i < num_gpus; ++i) {
    uint64_t* more = NULL;
    if (!run_queue(&gpus[i])) return 0;
    if (num_gpus > 1 && peers_reach_vram && !copy_to_peer(i, (i + 1) % num_gpus)) return 0;
    if (!fine(hsa_amd_memory_pool_allocate(gpus[i].vram, WORK_BYTES, 0, (void**)&more), "VRAM") ||
        !fine(allow_vram(i, more), "peer access"))
      return 0;
    fill(more, WORK_BYTES, 200 + i);
    if (!holds(more, WORK_BYTES, 200 + i, "new VRAM")) return 0;
    if (!fine(hsa_amd_memory_pool_free(more), "freeing VRAM")) return 0;
  }
  return 1;
}

static int tear_down(void) {
  for (uint32_t i = 0; i < num_gpus; ++i) {
    if (!fine(hsa_queue_destroy(gpus[i].queue), "queue's end") ||
        !fine(hsa_signal_destroy(gpus[i].signal), "signal's end") ||
        !fine(hsa_amd_memory_pool_free(gpus[i].device), "freeing VRAM") ||
        !fine(hsa_amd_memory_pool_free(gpus[i].landing), "freeing VRAM") ||
        !fine(hsa_amd_memory_pool_free(gpus[i].host), "freeing host memory"))
      return 0;
  }
  return fine(hsa_shut_down(), "hsa_shut_down");
}

static int open_fifo(const char* directory, const char* name) {
  char path[4096];
  snprintf(path, sizeof(path), "%s/%s", directory, name);
  int fd = open(path, O_RDWR);
  if (fd < 0) perror(path);
  return fd;
}

int main(int argc, char** argv) {
  if (argc == 3) vram_bytes = strtoull(argv[2], NULL, 10) << 20;
  if (argc < 2 || argc > 3 || !vram_bytes) {
    fputs("usage: hsa-client DIR [MIB]     (with FIFOs DIR/in and DIR/out)\n", stderr);
    return 2;
  }
  in_fd = open_fifo(argv[1], "in");
  out_fd = open_fifo(argv[1], "out");
  if (in_fd < 0 || out_fd < 0) return 2;
  if (!build()) return 1;
  say("ready gpus=%" PRIu32 " bytes=%" PRIu64, num_gpus, num_gpus * (vram_bytes + HOST_BYTES));
  for (char line[64]; hear(line, sizeof(line));) {
    if (strcmp(line, "check") == 0) {
      if (check()) say("ok check bytes=%" PRIu64, num_gpus * (vram_bytes + HOST_BYTES));
    } else if (strcmp(line, "work") == 0) {
      if (work()) say("ok work packets=%" PRIu32, num_gpus);
    } else if (strcmp(line, "quit") == 0) {
      if (!tear_down()) return 1;
      say("ok quit");
      return 0;
    } else {
      say("bad command '%s'", line);
    }
  }
  return 1;
}
