// SPDX-License-Identifier: MIT
// Looking into a virtual machine from outside (see control.h). Uses the shared segment like any process on
// the machine does, through system calls that no wrapper sees.
#include "control.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <thread>

#include "front/raw.h"
#include "front/shared.h"

namespace vamdgpu {
namespace {

constexpr unsigned char kPoison = 0xa5;
constexpr std::uint64_t kDoorbellFileBytes = 65536ull * VAMDGPU_MAX_GPUS * 512;
constexpr std::uint64_t kDoorbellStride = 65536;
constexpr std::uint64_t kMmioAt = 32768;

int make_file(const StatePath& path, std::uint64_t bytes) {
  const int fd = raw::openat(AT_FDCWD, path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return -errno;
  if (::syscall(SYS_ftruncate, fd, bytes) != 0) {
    const int error = errno;
    raw::close(fd);
    return -error;
  }
  return fd;
}

// Asks for huge pages, where the kernel can give a file some (Linux 6.1, whatever the file system's own
// setting): the virtual engines copy twice as fast. Nobody depends on it, so nobody hears of a failure.
void want_huge_pages(int fd, std::uint64_t bytes) {
  constexpr std::uint64_t kHuge = std::uint64_t{2} << 20;
  constexpr int kMadvCollapse = 25;
  const std::uint64_t whole = bytes / kHuge * kHuge;
  if (whole == 0) return;
  const long reserved = ::syscall(SYS_mmap, nullptr, whole + kHuge, PROT_NONE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == -1) return;
  const std::uint64_t aligned = (static_cast<std::uint64_t>(reserved) + kHuge - 1) / kHuge * kHuge;
  const char byte = 0;
  for (std::uint64_t at = 0; at < whole; at += kHuge) (void)!::syscall(SYS_pwrite64, fd, &byte, 1, at);
  if (::syscall(SYS_mmap, aligned, whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != -1)
    ::syscall(SYS_madvise, aligned, whole, kMadvCollapse);
  ::syscall(SYS_munmap, reserved, whole + kHuge);
}

int make_pool(const StatePath& path, std::uint64_t bytes) {
  const int fd = make_file(path, bytes);
  if (fd < 0) return fd;
  want_huge_pages(fd, bytes);
  const std::vector<unsigned char> block(std::size_t{1} << 20, kPoison);
  int error = 0;
  for (std::uint64_t at = 0; at < bytes && error == 0;) {
    const long n =
        ::syscall(SYS_pwrite64, fd, block.data(), std::min<std::uint64_t>(block.size(), bytes - at), at);
    if (n <= 0) error = n < 0 ? errno : ENOSPC;
    if (n > 0) at += static_cast<std::uint64_t>(n);
  }
  raw::close(fd);
  return -error;
}

// GPUs that the machine's "hidden" file keeps from its programs, as a device cgroup does: lines "render
// <minor>".
void hide_gpus(const char* directory, vam_model* model) {
  std::FILE* file = std::fopen(StatePath(directory, "hidden", UINT64_MAX).c_str(), "re");
  if (file == nullptr) return;
  char line[64];
  unsigned minor = 0;
  while (std::fgets(line, sizeof(line), file) != nullptr) {
    if (std::sscanf(line, "render %u", &minor) != 1) continue;
    for (std::uint32_t gpu = 0; gpu < model->num_gpus; ++gpu) {
      if (model->gpu[gpu].config.render_minor == minor) model->gpu[gpu].hidden = 1;
    }
  }
  std::fclose(file);
}

int make_segment(const char* directory, const vamdgpu_machine_config& config) {
  const vam_limits limits = machine_limits();
  const std::uint64_t model_offset = (sizeof(Shared) + 4095) & ~std::uint64_t{4095};
  const std::uint64_t bytes = model_offset + vam_model_bytes(&limits);
  const int fd = make_file(StatePath(directory, "state", UINT64_MAX), bytes);
  if (fd < 0) return fd;
  const long memory =
      ::syscall(SYS_mmap, nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  const int error = errno;
  raw::close(fd);
  if (memory == -1) return -error;
  auto* shared = reinterpret_cast<Shared*>(memory);
  shared->bytes = bytes;
  shared->model_offset = model_offset;
  for (std::uint32_t i = 0; i < config.num_gpus && i < VAMDGPU_MAX_GPUS; ++i)
    shared->bytes_per_s[i] = config.gpus[i].sdma_bytes_per_s;
  const int result = vam_model_init(shared->model(), &limits, &config);
  if (result == 0) hide_gpus(directory, shared->model());
  shared->magic = Shared::layout();
  ::syscall(SYS_munmap, memory, bytes);
  return result;
}

struct Names {
  std::uint32_t nr;
  const char* name;
};

constexpr Names kKfdNames[] = {
    {VAM_KFD_GET_VERSION, "GET_VERSION"},
    {VAM_KFD_CREATE_QUEUE, "CREATE_QUEUE"},
    {VAM_KFD_DESTROY_QUEUE, "DESTROY_QUEUE"},
    {VAM_KFD_SET_MEMORY_POLICY, "SET_MEMORY_POLICY"},
    {VAM_KFD_GET_CLOCK_COUNTERS, "GET_CLOCK_COUNTERS"},
    {VAM_KFD_GET_PROCESS_APERTURES, "GET_PROCESS_APERTURES"},
    {VAM_KFD_UPDATE_QUEUE, "UPDATE_QUEUE"},
    {VAM_KFD_CREATE_EVENT, "CREATE_EVENT"},
    {VAM_KFD_DESTROY_EVENT, "DESTROY_EVENT"},
    {VAM_KFD_SET_EVENT, "SET_EVENT"},
    {VAM_KFD_RESET_EVENT, "RESET_EVENT"},
    {VAM_KFD_WAIT_EVENTS, "WAIT_EVENTS"},
    {VAM_KFD_SET_SCRATCH_BACKING_VA, "SET_SCRATCH_BACKING_VA"},
    {VAM_KFD_GET_TILE_CONFIG, "GET_TILE_CONFIG"},
    {VAM_KFD_SET_TRAP_HANDLER, "SET_TRAP_HANDLER"},
    {VAM_KFD_GET_PROCESS_APERTURES_NEW, "GET_PROCESS_APERTURES_NEW"},
    {VAM_KFD_ACQUIRE_VM, "ACQUIRE_VM"},
    {VAM_KFD_ALLOC_MEMORY, "ALLOC_MEMORY_OF_GPU"},
    {VAM_KFD_FREE_MEMORY, "FREE_MEMORY_OF_GPU"},
    {VAM_KFD_MAP_MEMORY, "MAP_MEMORY_TO_GPU"},
    {VAM_KFD_UNMAP_MEMORY, "UNMAP_MEMORY_FROM_GPU"},
    {VAM_KFD_GET_DMABUF_INFO, "GET_DMABUF_INFO"},
    {VAM_KFD_IMPORT_DMABUF, "IMPORT_DMABUF"},
    {VAM_KFD_SVM, "SVM"},
    {VAM_KFD_SET_XNACK_MODE, "SET_XNACK_MODE"},
    {VAM_KFD_AVAILABLE_MEMORY, "AVAILABLE_MEMORY"},
    {VAM_KFD_EXPORT_DMABUF, "EXPORT_DMABUF"},
    {VAM_KFD_RUNTIME_ENABLE, "RUNTIME_ENABLE"},
};

constexpr const char* kCriuNames[] = {"PROCESS_INFO", "CHECKPOINT", "UNPAUSE", "RESTORE", "RESUME"};

constexpr Names kDrmNames[] = {
    {VAM_DRM_VERSION, "VERSION"},
    {VAM_DRM_GET_CLIENT, "GET_CLIENT"},
    {VAM_DRM_GEM_CLOSE, "GEM_CLOSE"},
    {VAM_DRM_GET_CAP, "GET_CAP"},
    {VAM_DRM_PRIME_HANDLE_TO_FD, "PRIME_HANDLE_TO_FD"},
    {VAM_DRM_PRIME_FD_TO_HANDLE, "PRIME_FD_TO_HANDLE"},
    {VAM_DRM_GEM_CREATE, "GEM_CREATE"},
    {VAM_DRM_GEM_MMAP, "GEM_MMAP"},
    {VAM_DRM_CTX, "CTX"},
    {VAM_DRM_BO_LIST, "BO_LIST"},
    {VAM_DRM_CS, "CS"},
    {VAM_DRM_INFO, "INFO"},
    {VAM_DRM_GEM_METADATA, "GEM_METADATA"},
    {VAM_DRM_GEM_WAIT_IDLE, "GEM_WAIT_IDLE"},
    {VAM_DRM_GEM_VA, "GEM_VA"},
    {VAM_DRM_WAIT_CS, "WAIT_CS"},
    {VAM_DRM_GEM_OP, "GEM_OP"},
    {VAM_DRM_GEM_USERPTR, "GEM_USERPTR"},
    {VAM_DRM_WAIT_FENCES, "WAIT_FENCES"},
    {VAM_DRM_FENCE_TO_HANDLE, "FENCE_TO_HANDLE"},
    {VAM_DRM_GEM_LIST_HANDLES, "GEM_LIST_HANDLES"},
    {VAM_DRM_SYNCOBJ_CREATE, "SYNCOBJ_CREATE"},
    {VAM_DRM_SYNCOBJ_DESTROY, "SYNCOBJ_DESTROY"},
    {VAM_DRM_SYNCOBJ_HANDLE_TO_FD, "SYNCOBJ_HANDLE_TO_FD"},
    {VAM_DRM_SYNCOBJ_FD_TO_HANDLE, "SYNCOBJ_FD_TO_HANDLE"},
    {VAM_DRM_SYNCOBJ_WAIT, "SYNCOBJ_WAIT"},
    {VAM_DRM_SYNCOBJ_EVENTFD, "SYNCOBJ_EVENTFD"},
    {VAM_DRM_GEM_CHANGE_HANDLE, "GEM_CHANGE_HANDLE"},
};

}  // namespace

int create_state(const char* directory, const vamdgpu_machine_config& config) {
  for (const char* sub : {"files", "bufs", "fences", "syncobjs"}) {
    if (::syscall(SYS_mkdirat, AT_FDCWD, StatePath(directory, sub, UINT64_MAX).c_str(), 0700) != 0)
      return -errno;
  }
  const int doorbells = make_file(StatePath(directory, "doorbells", UINT64_MAX), kDoorbellFileBytes);
  if (doorbells < 0) return doorbells;
  raw::close(doorbells);
  for (std::uint32_t gpu = 0; gpu < config.num_gpus && gpu < VAMDGPU_MAX_GPUS; ++gpu) {
    int error = make_pool(pool_path(directory, VAM_POOL_VRAM, gpu), config.gpus[gpu].vram_bytes);
    if (error == 0) error = make_pool(pool_path(directory, VAM_POOL_GTT, gpu), config.gpus[gpu].gtt_bytes);
    if (error != 0) return error;
  }
  return make_segment(directory, config);
}

std::string call_name(On device, std::uint32_t nr, std::uint32_t op) {
  if (device == On::Kfd && nr == VAM_KFD_CRIU_OP)
    return std::string("KFD_CRIU_OP:") + (op < std::size(kCriuNames) ? kCriuNames[op] : "?");
  if (device == On::Kfd) {
    for (const Names& known : kKfdNames) {
      if (known.nr == nr) return std::string("KFD_") + known.name;
    }
    return "KFD_" + std::to_string(nr);
  }
  for (const Names& known : kDrmNames) {
    if (known.nr == nr) return std::string("DRM_") + known.name;
  }
  return "DRM_" + std::to_string(nr);
}

// ---- opening
// -------------------------------------------------------------------------------------------------------

Control::Control(std::string directory, Shared* shared, std::uint64_t device)
    : directory_(std::move(directory)), shared_(shared), device_(device) {}

Control::~Control() {
  ::syscall(SYS_munmap, shared_, shared_->bytes);
}

std::unique_ptr<Control> Control::open(const std::string& directory) {
  std::uint64_t device = 0;
  Shared* shared = map_shared(directory.c_str(), &device);
  if (shared == nullptr) return nullptr;
  return std::unique_ptr<Control>(new Control(directory, shared, device));
}

const vamdgpu_machine_config& Control::config() const {
  return shared_->model()->config;
}

// ---- faults
// --------------------------------------------------------------------------------------------------------

void Control::inject(const Fault& fault) {
  Locked locked(shared_->lock);
  for (FaultRule& rule : shared_->faults) {
    if (rule.active) continue;
    rule = FaultRule{};
    rule.active = 1;
    rule.device = fault.device == On::Kfd ? Device::Kfd : Device::Render;
    rule.nr = static_cast<std::uint16_t>(fault.nr);
    rule.op = fault.op;
    rule.error = fault.error;
    rule.skip = fault.skip;
    rule.times = fault.times;
    rule.after = fault.after ? 1 : 0;
    return;
  }
}

namespace {

void add_fence_fault(Shared* shared, std::uint32_t gpu, std::uint64_t number, FenceFaultKind kind,
                     int error) {
  Locked locked(shared->lock);
  for (FenceFault& fault : shared->fence_faults) {
    if (fault.active) continue;
    fault = FenceFault{};
    fault.active = 1;
    fault.gpu = gpu;
    fault.kind = kind;
    fault.error = error;
    fault.number = number;
    return;
  }
}

}  // namespace

void Control::hang_fence(std::uint32_t gpu, std::uint64_t number) {
  add_fence_fault(shared_, gpu, number, FenceFaultKind::Hang, 0);
}

void Control::fail_fence(std::uint32_t gpu, std::uint64_t number, int error) {
  add_fence_fault(shared_, gpu, number, FenceFaultKind::Error, error);
}

std::uint64_t Control::fences_made(std::uint32_t gpu) const {
  Locked locked(shared_->lock);
  return shared_->model()->gpu[gpu].fences;
}

void Control::release_hung_fences() {
  Locked locked(shared_->lock);
  vam_model* model = shared_->model();
  for (std::uint32_t i = 1; i < model->table[VAM_T_JOB].high; ++i) {
    const vam_job* job = VAM_JOB_AT(model, i);
    if (!job->rec.live || !job->hung) continue;
    std::uint32_t fence = 0;
    vam_job_finish(model, i, -ECANCELED, &fence);
    signal_exports(shared_, directory_.c_str(), fence);
    vam_fence_unref(model, fence);
  }
  announce_change(shared_);
}

void Control::set_engine_rate(std::uint32_t gpu, std::uint64_t bytes_per_s) {
  Locked locked(shared_->lock);
  shared_->bytes_per_s[gpu] = bytes_per_s;
}

void Control::fail_userptr_with_ebusy(std::uint32_t times) {
  Locked locked(shared_->lock);
  shared_->userptr_busy = times;
}

void Control::clear_faults() {
  Locked locked(shared_->lock);
  for (FaultRule& rule : shared_->faults) rule.active = 0;
  for (FenceFault& fault : shared_->fence_faults) fault.active = 0;
  shared_->userptr_busy = 0;
}

std::uint64_t Control::faults_hit() const {
  Locked locked(shared_->lock);
  std::uint64_t hits = 0;
  for (const FaultRule& rule : shared_->faults) hits += rule.hit;
  for (const FenceFault& fault : shared_->fence_faults) hits += fault.hit;
  return hits;
}

std::string Control::last_engine_fault() const {
  Locked locked(shared_->lock);
  return shared_->last_fault;
}

// ---- what happened
// -------------------------------------------------------------------------------------------------

std::vector<TracedCall> Control::trace() const {
  Locked locked(shared_->lock);
  std::vector<TracedCall> calls;
  const std::uint64_t count = shared_->trace_count;
  for (std::uint64_t i = count > kTraceRecords ? count - kTraceRecords : 0; i < count; ++i) {
    const TraceRecord& record = shared_->trace[i % kTraceRecords];
    TracedCall call;
    call.sequence = record.sequence;
    call.pid = record.pid;
    call.tid = record.tid;
    call.device = record.device == Device::Kfd ? On::Kfd : On::Render;
    call.nr = record.nr;
    call.op = record.op;
    call.result = record.result;
    call.injected = record.injected != 0;
    call.name = call_name(call.device, call.nr, call.op);
    calls.push_back(std::move(call));
  }
  return calls;
}

void Control::clear_trace() {
  Locked locked(shared_->lock);
  shared_->trace_count = 0;
  std::memset(shared_->calls, 0, sizeof(shared_->calls));
  std::memset(shared_->criu_calls, 0, sizeof(shared_->criu_calls));
}

std::uint64_t Control::calls(On device, std::uint32_t nr) const {
  Locked locked(shared_->lock);
  return shared_->calls[static_cast<int>(device == On::Kfd ? Device::Kfd : Device::Render)][nr & 255];
}

std::uint64_t Control::criu_calls(std::uint32_t op) const {
  Locked locked(shared_->lock);
  return shared_->criu_calls[op & 7];
}

// ---- what there is
// -------------------------------------------------------------------------------------------------

std::vector<pid_t> Control::processes() const {
  Locked locked(shared_->lock);
  reap(shared_, directory_.c_str(), false);
  const vam_model* model = shared_->model();
  std::vector<pid_t> pids;
  for (std::uint32_t i = 1; i < model->table[VAM_T_PROCESS].high; ++i) {
    const vam_process* process = VAM_PROCESS_AT(model, i);
    if (process->rec.live && !process->dead) pids.push_back(process->pid);
  }
  return pids;
}

namespace {

BoInfo bo_info(const vam_model* model, const vam_process* process, const vam_mem* mem) {
  BoInfo info;
  info.gpu = mem->gpu;
  info.user_gpu_id = process->pdd[mem->gpu].user_gpu_id;
  info.kfd_handle = mem->handle;
  info.va = mem->va;
  info.size = mem->size;
  info.flags = mem->flags;
  info.user_addr = mem->user_addr;
  info.mapped_gpus = mem->mapped;
  info.imported = mem->imported != 0;
  info.object = VAM_BO_AT(model, mem->bo)->serial;
  return info;
}

QueueInfo queue_info(const vam_process* process, const vam_queue* queue) {
  QueueInfo info;
  info.id = queue->id;
  info.gpu = queue->gpu;
  info.type = queue->type;
  info.format = queue->format;
  info.doorbell = queue->doorbell;
  info.ring = queue->ring;
  info.ring_size = queue->ring_size;
  info.read_ptr = queue->read_ptr;
  info.write_ptr = queue->write_ptr;
  info.active = queue->active != 0;
  info.running = info.active && process->pdd[queue->gpu].evicted == 0;
  return info;
}

}  // namespace

std::optional<ProcessInfo> Control::process(pid_t pid) const {
  Locked locked(shared_->lock);
  reap(shared_, directory_.c_str(), false);
  const vam_model* model = shared_->model();
  const std::uint32_t index = vam_find_process(model, pid, 0);
  if (index == 0) return std::nullopt;
  const vam_process* p = VAM_PROCESS_AT(model, index);
  ProcessInfo info;
  info.pid = pid;
  info.queues_paused = p->queues_paused != 0;
  info.restore_blocked = p->restore_blocked != 0;
  info.process_infos = p->process_infos;
  info.unpauses = p->unpauses;
  info.damaged_queues = p->mqd_damaged;
  info.svm_ranges = p->num_svm;
  if (p->event_page_mem != 0) {
    const vam_mem* mem = VAM_MEM_AT(model, p->event_page_mem);
    info.event_page_handle = std::uint64_t{p->pdd[mem->gpu].user_gpu_id} << 32 | mem->handle;
  }
  std::uint32_t value = 0;
  for (std::uint32_t gpu = 0; gpu < model->num_gpus; ++gpu) {
    const vam_pdd& pdd = p->pdd[gpu];
    if (!pdd.present) continue;
    info.devices.push_back({model->gpu[gpu].config.gpu_id, pdd.user_gpu_id, pdd.evicted, pdd.file != 0});
    for (std::uint32_t id = 0; (value = vam_idr_next(model, &pdd.mems, &id)) != 0; ++id)
      info.bos.push_back(bo_info(model, p, VAM_MEM_AT(model, value)));
  }
  for (std::uint32_t id = 0; (value = vam_idr_next(model, &p->queues, &id)) != 0; ++id)
    info.queues.push_back(queue_info(p, VAM_AT(model, VAM_T_QUEUE, vam_queue, value)));
  for (const vam_idr* table : {&p->signal_events, &p->other_events}) {
    for (std::uint32_t id = 0; (value = vam_idr_next(model, table, &id)) != 0; ++id) {
      const auto* event = VAM_AT(model, VAM_T_EVENT, vam_event, value);
      info.events.push_back({event->id, event->type, event->auto_reset != 0, event->signaled != 0});
    }
  }
  return info;
}

std::vector<GemInfo> Control::gem_handles() const {
  Locked locked(shared_->lock);
  reap(shared_, directory_.c_str(), false);
  const vam_model* model = shared_->model();
  std::vector<GemInfo> handles;
  for (std::uint32_t i = 1; i < model->table[VAM_T_FILE].high; ++i) {
    const vam_file* file = VAM_FILE_AT(model, i);
    if (!file->rec.live || file->kind != VAM_FILE_RENDER) continue;
    std::uint32_t value = 0;
    for (std::uint32_t id = 0; (value = vam_idr_next(model, &file->gem, &id)) != 0; ++id) {
      const vam_bo* bo = VAM_BO_AT(model, VAM_HANDLE_AT(model, value)->bo);
      handles.push_back({file->opener_pid, file->gpu, id, bo->size, bo->serial, bo->kind == VAM_BO_USERPTR});
    }
  }
  return handles;
}

Counts Control::counts() const {
  Locked locked(shared_->lock);
  reap(shared_, directory_.c_str(), true);
  const vam_model* model = shared_->model();
  Counts counts;
  for (std::uint32_t i = 1; i < model->table[VAM_T_FILE].high; ++i) {
    const vam_file* file = VAM_FILE_AT(model, i);
    if (!file->rec.live) continue;
    if (file->kind == VAM_FILE_KFD)
      ++counts.kfd_files;
    else
      ++counts.render_files;
  }
  for (std::uint32_t i = 1; i < model->table[VAM_T_BO].high; ++i) {
    const vam_bo* bo = VAM_BO_AT(model, i);
    if (!bo->rec.live) continue;
    if (bo->exported) ++counts.dma_bufs;
    for (std::uint32_t map = bo->maps; map != 0; map = VAM_RANGE_AT(model, map)->bo_next) ++counts.mappings;
  }
  counts.processes = model->table[VAM_T_PROCESS].live;
  counts.bos = model->table[VAM_T_BO].live;
  counts.gem_handles = model->table[VAM_T_HANDLE].live;
  counts.kfd_handles = model->table[VAM_T_MEM].live;
  counts.contexts = model->table[VAM_T_CTX].live;
  counts.bo_lists = model->table[VAM_T_BO_LIST].live;
  counts.jobs = model->table[VAM_T_JOB].live;
  counts.fences = model->table[VAM_T_FENCE].live;
  counts.syncobjs = model->table[VAM_T_SYNCOBJ].live;
  for (std::uint32_t gpu = 0; gpu < model->num_gpus; ++gpu) {
    counts.vram_bytes += model->gpu[gpu].used_bytes[VAM_POOL_VRAM];
    counts.gtt_bytes += model->gpu[gpu].used_bytes[VAM_POOL_GTT];
  }
  return counts;
}

EngineUse Control::engine_use() const {
  return {shared_->engine_cpu_ns.load(), shared_->engine_bytes.load(), shared_->engine_jobs.load()};
}

// ---- contents
// ------------------------------------------------------------------------------------------------------

bool Control::transfer(pid_t pid, std::uint32_t gpu_id, std::uint64_t va, void* bytes, std::size_t size,
                       bool write) const {
  Locked locked(shared_->lock);
  const vam_model* model = shared_->model();
  const std::uint32_t process = vam_find_process(model, pid, 0);
  if (process == 0) return false;
  std::uint32_t gpu = vam_pdd_by_user_id(model, process, gpu_id);
  if (gpu == 0) gpu = vam_gpu_by_id(model, gpu_id);
  const std::uint32_t file = gpu == 0 ? 0 : VAM_PROCESS_AT(model, process)->pdd[gpu - 1].file;
  if (file == 0) return false;
  for (std::size_t at = 0; at < size;) {
    const std::uint32_t range = vam_range_find(model, VAM_FILE_AT(model, file)->vm, va + at);
    if (range == 0 || VAM_RANGE_AT(model, range)->bo == 0) return false;
    const vam_range* mapping = VAM_RANGE_AT(model, range);
    const vam_bo* bo = VAM_BO_AT(model, mapping->bo);
    if (bo->pool == VAM_POOL_NONE) return false;
    const std::uint64_t inside = va + at - mapping->start;
    const std::uint64_t n = std::min<std::uint64_t>(size - at, mapping->size - inside);
    const StatePath path = pool_path(directory_.c_str(), static_cast<vam_pool>(bo->pool), bo->gpu);
    const int fd = raw::openat(AT_FDCWD, path.c_str(), O_RDWR | O_CLOEXEC, 0);
    const long moved = ::syscall(write ? SYS_pwrite64 : SYS_pread64, fd, static_cast<char*>(bytes) + at, n,
                                 bo->pool_offset + mapping->bo_offset + inside);
    raw::close(fd);
    if (moved <= 0) return false;
    at += static_cast<std::size_t>(moved);
  }
  return true;
}

bool Control::read(pid_t pid, std::uint32_t gpu_id, std::uint64_t va, void* bytes, std::size_t size) const {
  return transfer(pid, gpu_id, va, bytes, size, false);
}

bool Control::write(pid_t pid, std::uint32_t gpu_id, std::uint64_t va, const void* bytes, std::size_t size) {
  return transfer(pid, gpu_id, va, const_cast<void*>(bytes), size, true);
}

std::optional<DeviceMapping> Control::device_of_mapping(dev_t device, ino_t inode,
                                                        std::uint64_t offset) const {
  if (device != device_) return std::nullopt;
  const vam_model* model = shared_->model();
  struct stat status;
  for (std::uint32_t gpu = 0; gpu < model->num_gpus; ++gpu) {
    for (const vam_pool pool : {VAM_POOL_VRAM, VAM_POOL_GTT}) {
      const StatePath path = pool_path(directory_.c_str(), pool, gpu);
      if (raw::fstatat(AT_FDCWD, path.c_str(), &status, 0) != 0 || status.st_ino != inode) continue;
      return DeviceMapping{On::Render, model->gpu[gpu].config.render_minor,
                           vam_pool_mmap_offset(model, gpu, pool, offset)};
    }
  }
  const StatePath path(directory_.c_str(), "doorbells", UINT64_MAX);
  if (raw::fstatat(AT_FDCWD, path.c_str(), &status, 0) != 0 || status.st_ino != inode) return std::nullopt;
  const std::uint64_t gpu = offset / kDoorbellStride % VAMDGPU_MAX_GPUS;
  if (gpu >= model->num_gpus) return std::nullopt;
  const bool mmio = offset % kDoorbellStride >= kMmioAt;
  const std::uint64_t id = std::uint64_t{model->gpu[gpu].config.gpu_id} << VAM_MMAP_GPU_SHIFT;
  return DeviceMapping{On::Kfd, 0, (mmio ? VAM_MMAP_MMIO : VAM_MMAP_DOORBELL) | id};
}

}  // namespace vamdgpu
