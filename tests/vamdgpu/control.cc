// SPDX-License-Identifier: MIT
// Looking into a virtual machine from outside (see control.h): what the model's tables say, put into plain
// structs. How the machine is reached is ControlFront's business.
#include "control.h"

#include <cerrno>
#include <cstdlib>

#include "control_front.h"
#include "model/queue_run.h"

namespace vamdgpu {

Control::Control(std::string directory, std::unique_ptr<ControlFront> front)
    : directory_(std::move(directory)), front_(std::move(front)) {}

Control::~Control() = default;

std::unique_ptr<Control> Control::open(const std::string& directory) {
  std::unique_ptr<ControlFront> front = ControlFront::open(directory);
  if (front == nullptr) return nullptr;
  return std::unique_ptr<Control>(new Control(directory, std::move(front)));
}

std::unique_ptr<Control> Control::open_default() {
  const char* directory = std::getenv("VAMDGPU_DIR");
  if (directory != nullptr) return open(directory);
  errno = ENOENT;
  return nullptr;
}

const vamdgpu_machine_config& Control::config() const {
  return front_->config();
}

// ---- faults
// --------------------------------------------------------------------------------------------------------

void Control::inject(const Fault& fault) {
  vam_fault_rule rule{};
  rule.device = fault.device == On::Kfd ? VAM_FILE_KFD : VAM_FILE_RENDER;
  rule.nr = static_cast<std::uint16_t>(fault.nr);
  rule.op = fault.op;
  rule.error = fault.error;
  rule.skip = fault.skip;
  rule.times = fault.times;
  rule.after = fault.after ? 1 : 0;
  front_->add_fault(rule);
}

void Control::hang_fence(std::uint32_t gpu, std::uint64_t number) {
  vam_fence_fault fault{};
  fault.gpu = gpu;
  fault.fate = VAM_FENCE_HANGS;
  fault.number = number;
  front_->add_fence_fault(fault);
}

void Control::fail_fence(std::uint32_t gpu, std::uint64_t number, int error) {
  vam_fence_fault fault{};
  fault.gpu = gpu;
  fault.fate = VAM_FENCE_FAILS;
  fault.error = error;
  fault.number = number;
  front_->add_fence_fault(fault);
}

std::uint64_t Control::fences_made(std::uint32_t gpu) const {
  std::uint64_t made = 0;
  front_->model(false, [&](const vam_model& model) { made = model.gpu[gpu].fences; });
  return made;
}

void Control::release_hung_fences() {
  front_->release_hung_fences();
}

void Control::set_engine_rate(std::uint32_t gpu, std::uint64_t bytes_per_s) {
  front_->set_engine_rate(gpu, bytes_per_s);
}

void Control::lose_vram(std::uint32_t gpu, std::uint32_t answers) {
  front_->lose_vram(gpu, answers);
}

void Control::run_kernels(pid_t pid, Waves waves, std::uint32_t stops) {
  front_->run_kernels(pid, static_cast<vam_waves>(VAM_WAVES_WORDS + static_cast<int>(waves)), stops);
}

void Control::between_calls(const std::function<void()>& body) {
  front_->debug([&body](const vam_debug&) { body(); });
}

void Control::clear_faults() {
  front_->clear_faults();
}

std::uint64_t Control::faults_hit() const {
  std::uint64_t hits = 0;
  front_->debug([&](const vam_debug& debug) { hits = vam_debug_hits(&debug); });
  return hits;
}

std::string Control::last_engine_fault() const {
  std::string text;
  front_->debug([&](const vam_debug& debug) { text = debug.last_fault; });
  return text;
}

// ---- what happened
// -------------------------------------------------------------------------------------------------

std::vector<TracedCall> Control::trace() const {
  std::vector<TracedCall> calls;
  front_->debug([&](const vam_debug& debug) {
    const std::uint64_t count = debug.trace_count;
    for (std::uint64_t i = count > VAM_TRACE_RECORDS ? count - VAM_TRACE_RECORDS : 0; i < count; ++i) {
      const vam_trace_record& record = debug.trace[i % VAM_TRACE_RECORDS];
      TracedCall call;
      call.sequence = record.sequence;
      call.pid = record.pid;
      call.tid = record.tid;
      call.device = record.device == VAM_FILE_KFD ? On::Kfd : On::Render;
      call.nr = record.nr;
      call.op = record.op;
      call.result = record.result;
      call.injected = record.injected != 0;
      call.name = call_name(call.device, call.nr, call.op);
      calls.push_back(std::move(call));
    }
  });
  return calls;
}

void Control::clear_trace() {
  front_->clear_trace();
}

std::uint64_t Control::calls(On device, std::uint32_t nr) const {
  std::uint64_t count = 0;
  front_->debug([&](const vam_debug& debug) {
    count = debug.calls[device == On::Kfd ? VAM_FILE_KFD : VAM_FILE_RENDER][nr & 255];
  });
  return count;
}

std::uint64_t Control::criu_calls(std::uint32_t op) const {
  std::uint64_t count = 0;
  front_->debug([&](const vam_debug& debug) { count = debug.criu_calls[op & 7]; });
  return count;
}

// ---- what there is
// -------------------------------------------------------------------------------------------------

std::vector<pid_t> Control::processes() const {
  std::vector<pid_t> pids;
  front_->model(false, [&](const vam_model& model) {
    for (std::uint32_t i = 1; i < model.table[VAM_T_PROCESS].high; ++i) {
      const vam_process* process = VAM_PROCESS_AT(&model, i);
      if (process->rec.live && !process->dead) pids.push_back(process->pid);
    }
  });
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
  info.consumed = queue->consumed;
  if (queue->fault != VAM_QUEUE_OK) info.fault = vam_queue_fault_name(queue->fault);
  return info;
}

std::optional<ProcessInfo> process_info(const vam_model* model, pid_t pid) {
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

std::vector<GemInfo> gem_infos(const vam_model* model) {
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

Counts counts_of(const vam_model* model) {
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

}  // namespace

std::optional<ProcessInfo> Control::process(pid_t pid) const {
  std::optional<ProcessInfo> info;
  front_->model(false, [&](const vam_model& model) { info = process_info(&model, pid); });
  return info;
}

std::vector<GemInfo> Control::gem_handles() const {
  std::vector<GemInfo> handles;
  front_->model(false, [&](const vam_model& model) { handles = gem_infos(&model); });
  return handles;
}

Counts Control::counts() const {
  Counts counts;
  front_->model(true, [&](const vam_model& model) { counts = counts_of(&model); });
  return counts;
}

EngineUse Control::engine_use() const {
  EngineUse use;
  front_->debug([&](const vam_debug& debug) {
    use = {debug.engine_cpu_ns, debug.engine_bytes, debug.engine_jobs};
  });
  return use;
}

bool Control::read(pid_t pid, std::uint32_t gpu_id, std::uint64_t va, void* bytes, std::size_t size) const {
  return front_->transfer(pid, gpu_id, va, bytes, size, false);
}

bool Control::write(pid_t pid, std::uint32_t gpu_id, std::uint64_t va, const void* bytes, std::size_t size) {
  return front_->transfer(pid, gpu_id, va, const_cast<void*>(bytes), size, true);
}

std::optional<DeviceMapping> Control::device_of_mapping(dev_t device, ino_t inode,
                                                        std::uint64_t offset) const {
  return front_->device_of_mapping(device, inode, offset);
}

}  // namespace vamdgpu
