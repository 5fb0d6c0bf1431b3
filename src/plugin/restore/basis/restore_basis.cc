// SPDX-License-Identifier: MIT
#include "plugin/restore/basis/restore_basis.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/format.h"
#include "images/files/key.h"
#include "kfd/driver.h"
#include "kfd/matching/gpu_map.h"
#include "kfd/matching/tree_choice.h"
#include "kfd/memory/ipc_memory.h"
#include "kfd/topology.h"
#include "plugin/host/criu_host.h"
#include "plugin/restore/gpus/vram_ledger.h"
#include "plugin/restore/survey/found_images.h"
#include "settings/settings.h"

namespace sluice::plugin {

namespace {

constexpr auto kIpcMemoryPatience = std::chrono::seconds(2);
constexpr auto kIpcMemoryPeriod = std::chrono::milliseconds(10);

}  // namespace

ino_t pid_namespace(int directory, const char* file) {
  struct stat st {};
  return fstatat(directory, file, &st, 0) == 0 ? st.st_ino : 0;
}

Result<std::unique_ptr<const RestoreBasis>> RestoreBasis::make(ImageStore& store, dev_t kfd_device) {
  std::unique_ptr<RestoreBasis> basis(new RestoreBasis(store, kfd_device));
  SLUICE_TRY(basis->make_plan());
  if (const Needs& needs = basis->plan.found.needs; needs.any()) {
    SLUICE_TRY_ASSIGN(basis->chain, RestoreChain::open(store, needs));
  }
  SLUICE_TRY(basis->make_shared());
  SLUICE_TRY(basis->make_match());
  SLUICE_TRY(basis->check_records());
  SLUICE_TRY(basis->check_gpus());
  return std::unique_ptr<const RestoreBasis>(std::move(basis));
}

Result<void> RestoreBasis::make_plan() {
  LogLines lines;
  config = settings::parse_config(settings::plugin_settings(lines), lines);
  log_lines(lines);
  store.set_keys(ImageKeys(settings::read_key(config)));  // without a usable key, reading an image fails
  SLUICE_TRY_ASSIGN(FoundImages found, find_images(store));
  SLUICE_TRY_ASSIGN(plan, plan_restore(std::move(found)));
  for (const std::string& line : plan.warnings) log_line(Level::Warning, line);
  return {};
}

Result<void> RestoreBasis::make_shared() {
  SLUICE_TRY_ASSIGN(lifeline, Lifeline::make());
  SLUICE_TRY_ASSIGN(thread_numbers, ThreadNumbers::make());
  main_pid_namespace = pid_namespace(AT_FDCWD, "/proc/self/ns/pid");
  if (plan.shared_numbers.empty()) return {};
  SLUICE_TRY_ASSIGN(shared, SharedTable::make(*plan.shared_numbers.rbegin()));
  return {};
}

// What tasks must know of each other and of other restores to be matched to GPUs.
Result<void> RestoreBasis::make_match() {
  SLUICE_TRY_ASSIGN(tree_match, TreeMatch::make());
  tree_match->gpus = plan.gpus;
  if (config.gpu_map) {
    SLUICE_TRY_ASSIGN(const kfd::GpuMap map, kfd::GpuMap::parse(*config.gpu_map));
    SLUICE_TRY_ASSIGN(const kfd::Topology local, kfd::read_topology());
    SLUICE_TRY_ASSIGN(tree_match->gpus.map, map.resolve(plan.topologies, local));
  }
  auto ledger = VramLedger::open();
  if (ledger) {
    tree_match->ledger = std::move(*ledger);
  } else {
    log_line(Level::Info,
             formatted("restores that begin at the same moment may choose the same GPU: {} [SL-R31]",
                       ledger.error().what));
  }
  return {};
}

// Compares the driver's records with those of the images, before any task is forked: this process' KFD
// process cannot RESTORE afterwards and need not. Only if there is a size to compare; without the driver's
// answer the restore goes on unchecked.
Result<void> RestoreBasis::check_records() {
  if (plan.records.bo_bytes == 0) return {};
  const auto answer = kfd::ask_bo_record_bytes(kfd_device);
  if (!answer) {
    log_line(
        Level::Warning,
        formatted("cannot tell whether this driver understands the image's private data, without which the "
                  "restore fails half-way: {} [SL-R32]",
                  answer.error().what));
    return {};
  }
  record_bytes = *answer;
  SLUICE_TRY(check_record_bytes(plan.records, record_bytes));
  return check_ipc_memory();
}

// RESTORE takes memory that has the image's IPC handle, and the contents would be written into it while
// another process uses it. The memory of a process that was killed goes in the kernel's own time.
Result<void> RestoreBasis::check_ipc_memory() const {
  if (plan.ipc_memory.empty()) return {};
  SLUICE_TRY_ASSIGN(const kfd::KfdDevice own, kfd::KfdDevice::open(kfd_device));
  SLUICE_TRY_ASSIGN(const kfd::Topology local, kfd::read_topology());
  std::vector<std::uint32_t> gpu_ids;
  for (const kfd::Node& node : local.nodes)
    if (node.is_gpu()) gpu_ids.push_back(node.gpu_id);
  const auto deadline = std::chrono::steady_clock::now() + kIpcMemoryPatience;
  for (const RestorePlan::IpcMemory& memory : plan.ipc_memory) {
    for (;;) {
      SLUICE_TRY_ASSIGN(const bool exists, kfd::ipc_memory_exists(own, gpu_ids, memory.handle));
      if (!exists) break;
      if (std::chrono::steady_clock::now() >= deadline) {
        return Error{EEXIST,
                     formatted("memory that process {} shared by an IPC handle still exists on this machine, "
                               "and this restore would write into it; end the processes that have it, the "
                               "dumped one first [SL-R46]",
                               memory.pid)};
      }
      std::this_thread::sleep_for(kIpcMemoryPeriod);
    }
  }
  return {};
}

// Whether this machine has GPUs of the images' kinds, before any task is forked. Only where all are visible:
// then no task sees another one. With what is free and reachable, each task chooses by itself.
Result<void> RestoreBasis::check_gpus() const {
  const auto local = kfd::read_topology();
  if (!local || !local->hidden.empty()) return {};
  for (const kfd::Topology& source : plan.topologies) {
    const kfd::TreeChoice choice =
        kfd::choose_gpus({source}, tree_match->gpus, {}, {*local, {}}, config.match_rules);
    if (const auto* refusal = std::get_if<kfd::Refusal>(&choice.outcome)) {
      log_text(Level::Error, refusal->text());
      return choice.refused();
    }
  }
  return {};
}

// An image that could not be read may have had it.
Error RestoreBasis::nobody_has_shared() const {
  if (const auto& unread = plan.found.checkpoint.unread)
    return explain("find shared memory in an image that cannot be read", *unread);
  return Error{EBADMSG, formatted("shared memory has no owner in {}; use another checkpoint [SL-R34]",
                                  store.words_of_known())};
}

Result<void> RestoreBasis::publish(std::uint32_t number, int dmabuf) const {
  if (number == 0) return {};
  if (!shared) return nobody_has_shared();
  return shared->publish(number, dmabuf);
}

Result<UniqueFd> RestoreBasis::take_shared(std::uint32_t number) const {
  if (!plan.shared_numbers.contains(number)) return nobody_has_shared();
  return shared->take(number, *lifeline);
}

}  // namespace sluice::plugin
