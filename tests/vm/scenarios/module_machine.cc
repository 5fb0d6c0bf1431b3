// SPDX-License-Identifier: MIT
#include "module_machine.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "settings.h"
#include "stock_machine.h"

namespace sluice::vm_test {
namespace {

constexpr const char* kControlDirectory = "/sys/kernel/debug/vamdgpu";
constexpr std::uint32_t kVram = 1;  // KFD_IOC_ALLOC_MEM_FLAGS_VRAM
constexpr unsigned kFirstMinor = 128, kOtherMinor = 140;
constexpr unsigned kOtherId = 333, kBetweenIds = 111;

// "1,2,3"
std::string listed(const std::vector<unsigned>& numbers) {
  std::string text;
  for (const unsigned number : numbers) text += (text.empty() ? "" : ",") + std::to_string(number);
  return text;
}

std::string mib(unsigned number) {
  return std::to_string(number) + "M";
}

Strings words_of(const Gpus& wanted) {
  const unsigned vram = wanted.small ? wanted.vram_mib / 2 : wanted.vram_mib;
  Strings words = {"--gpus", std::to_string(wanted.number),
                   "--vram", mib(vram),
                   "--gtt",  mib(wanted.gtt_mib != 0 ? wanted.gtt_mib : wanted.vram_mib)};
  // Linux 6.12 restores a queue only where its save area is a BO by then, and SVM ranges come later; here
  // they are SVM (--svm-context), because BOs of that size would be most of what is dumped.
  if (kernel_version() >= KernelVersion{6, 12} && kernel_version() < KernelVersion{7, 2})
    words.insert(words.end(), {"--linux", "7.2"});
  std::vector<unsigned> minors, ids;
  for (unsigned i = 0; i < wanted.number; ++i) {
    minors.push_back(kOtherMinor + wanted.machine * wanted.number - i);
    ids.push_back(kOtherId * wanted.machine + kBetweenIds * i);
  }
  if (wanted.machine != 0) words.insert(words.end(), {"--minors", listed(minors), "--gpu-ids", listed(ids)});
  if (wanted.reversed) {
    std::iota(minors.rbegin(), minors.rend(), kFirstMinor);
    std::vector<unsigned> nodes(wanted.number);
    std::iota(nodes.rbegin(), nodes.rend(), 0);
    words.insert(words.end(), {"--minors", listed(minors), "--node-order", listed(nodes)});
  }
  for (const Strings& more : {wanted.ours, wanted.ours_too})
    words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace

ModuleMachine::~ModuleMachine() {
  (void)unload();
}

void ModuleMachine::load(const Gpus& wanted) {
  if (loaded() && !unload()) throw std::runtime_error("our module is in use");
  StockMachine::remove_driver();
  Launch loader;
  loader.arguments = {(settings().programs / "vamdgpu-load").string(), "--module",
                      settings().module.string()};
  const Strings words = words_of(wanted);
  loader.arguments.insert(loader.arguments.end(), words.begin(), words.end());
  loader.output = "/dev/console";
  const std::optional<int> status = run(loader);
  if (status != 0) throw std::runtime_error("vamdgpu-load did not load the module");
  control_ = vamdgpu::Control::open(kControlDirectory);
  if (!control_) throw std::runtime_error(std::string("no control of the module: ") + std::strerror(errno));
  changes_.reset(::open((std::string(kControlDirectory) + "/changes").c_str(), O_RDONLY | O_CLOEXEC));
  if (!changes_) throw std::runtime_error(std::string("changes of the module: ") + std::strerror(errno));
  watch_for_changes(changes_.get());
}

bool ModuleMachine::unload() {
  if (!loaded()) return true;
  control_.reset();
  watch_for_changes(-1);
  changes_.reset();
  Launch loader;
  loader.arguments = {(settings().programs / "vamdgpu-load").string(), "--unload"};
  loader.output = "/dev/console";
  return run(loader) == 0;
}

vamdgpu::Control& ModuleMachine::control() const {
  if (!loaded()) throw std::runtime_error("the module is not loaded");
  return *control_;
}

std::vector<std::uint32_t> ModuleMachine::gpu_ids() const {
  const vamdgpu_machine_config& config = control().config();
  std::map<std::uint32_t, std::uint32_t> by_minor;
  for (std::uint32_t i = 0; i < config.num_gpus; ++i)
    by_minor[config.gpus[i].render_minor] = config.gpus[i].gpu_id;
  std::vector<std::uint32_t> ids;
  ids.reserve(by_minor.size());
  for (const auto& [minor, id] : by_minor) ids.push_back(id);
  return ids;
}

std::uint64_t ModuleMachine::vram_bytes() const {
  return control().config().gpus[0].vram_bytes;
}

Usage ModuleMachine::usage() const {
  const vamdgpu::Counts counts = control().counts();
  return {{{"kfd files", counts.kfd_files},
           {"render files", counts.render_files},
           {"KFD processes", counts.processes},
           {"BOs", counts.bos},
           {"GEM handles", counts.gem_handles},
           {"KFD handles", counts.kfd_handles},
           {"mappings", counts.mappings},
           {"contexts", counts.contexts},
           {"BO lists", counts.bo_lists},
           {"jobs", counts.jobs},
           {"fences", counts.fences},
           {"syncobjs", counts.syncobjs},
           {"dma-bufs", counts.dma_bufs},
           {"bytes of VRAM", counts.vram_bytes},
           {"bytes of GTT", counts.gtt_bytes}}};
}

std::optional<ProcessSeen> ModuleMachine::process(pid_t pid) const {
  const auto known = control().process(pid);
  if (!known) return std::nullopt;
  const vamdgpu_machine_config& config = control().config();
  ProcessSeen seen;
  for (const vamdgpu::DeviceInfo& device : known->devices) seen.gpu_ids.insert(device.gpu_id);
  for (const vamdgpu::BoInfo& bo : known->bos) {
    if ((bo.flags & kVram) != 0) seen.vram[config.gpus[bo.gpu].gpu_id] += bo.size;
  }
  for (const vamdgpu::QueueInfo& queue : known->queues)
    seen.queues.push_back({queue.id, config.gpus[queue.gpu].gpu_id, queue.type, queue.ring_size});
  std::sort(seen.queues.begin(), seen.queues.end());
  return seen;
}

std::uint64_t ModuleMachine::criu_calls(std::uint32_t op) const {
  return control().criu_calls(op);
}

std::uint64_t ModuleMachine::copies_begun(unsigned gpu) const {
  return control().fences_made(gpu);
}

void ModuleMachine::set_engine_rate(unsigned gpu, std::uint64_t bytes_per_s) {
  control().set_engine_rate(gpu, bytes_per_s);
}

void ModuleMachine::hold_copies(unsigned gpu) {
  control().hang_fence(gpu, 0);
}

void ModuleMachine::let_copies_end() {
  control().clear_faults();
  control().release_hung_fences();
}

bool ModuleMachine::holds_a_copy(unsigned) const {
  return control().faults_hit() > 0;
}

std::uint32_t ModuleMachine::kfd_version() const {
  return control().config().kfd_minor_version;
}

bool ModuleMachine::lists_handles() const {
  return control().config().list_handles != 0;
}

bool ModuleMachine::changes_handles() const {
  return control().config().change_handle != 0;
}

std::uint32_t ModuleMachine::bo_record_bytes() const {
  return control().config().bo_record_bytes;
}

}  // namespace sluice::vm_test
