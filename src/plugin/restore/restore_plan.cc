// SPDX-License-Identifier: MIT
#include "plugin/restore/restore_plan.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/format.h"
#include "images/files/files.h"
#include "images/files/key.h"
#include "kfd/device.h"
#include "kfd/driver.h"
#include "kfd/matching/gpu_map.h"
#include "kfd/topology.h"
#include "plugin/host/criu_host.h"
#include "plugin/restore/gpus/vram_ledger.h"
#include "settings/settings.h"

namespace sluice::plugin {

ino_t pid_namespace(int directory, const char* file) {
  struct stat st {};
  return fstatat(directory, file, &st, 0) == 0 ? st.st_ino : 0;
}

Result<std::unique_ptr<RestorePlan>> RestorePlan::make(ImageStore& store) {
  auto plan = std::make_unique<RestorePlan>(store);
  plan->needed = !inventory_says_not_needed();
  if (!plan->needed) return plan;
  if (const auto kfd_device = kfd::kfd_device_number()) plan->kfd_device = *kfd_device;
  if (plan->kfd_device == 0) return plan;
  LogLines lines;
  plan->config = settings::parse_config(settings::plugin_settings(lines), lines);
  log_lines(lines);
  store.set_keys(
      ImageKeys(settings::read_key(plan->config)));  // without a usable key, reading an image fails
  SLUICE_TRY_ASSIGN(plan->survey, RestoreSurvey::read(store));
  if (const DumpId& parent = plan->survey.parent_dump_id(); parent != DumpId{}) {
    SLUICE_TRY_ASSIGN(plan->chain, RestoreChain::open(store, parent));
  }
  SLUICE_TRY_ASSIGN(plan->lifeline, Lifeline::make());
  SLUICE_TRY_ASSIGN(plan->thread_numbers, ThreadNumbers::make());
  plan->main_pid_namespace = pid_namespace(AT_FDCWD, "/proc/self/ns/pid");
  if (const auto& shared = plan->survey.shared_numbers(); !shared.empty()) {
    SLUICE_TRY_ASSIGN(plan->shared, SharedTable::make(*shared.rbegin()));
  }
  SLUICE_TRY(plan->prepare_match());
  SLUICE_TRY(plan->check_records());
  return plan;
}

// Prepares what tasks must know of each other and of other restores to be matched to GPUs.
Result<void> RestorePlan::prepare_match() {
  SLUICE_TRY_ASSIGN(tree_match, TreeMatch::make());
  tree_match->gpus.need = survey.vram();
  if (!survey.topologies().empty()) tree_match->gpus.widest = survey.topologies().front();
  if (config.gpu_map) {
    SLUICE_TRY_ASSIGN(const kfd::GpuMap map, kfd::GpuMap::parse(*config.gpu_map));
    SLUICE_TRY_ASSIGN(const kfd::Topology local, kfd::read_topology());
    SLUICE_TRY_ASSIGN(tree_match->gpus.map, map.resolve(survey.topologies(), local));
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
Result<void> RestorePlan::check_records() {
  if (survey.records().bo_bytes == 0) return {};
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
  return check_record_bytes(survey.records(), record_bytes);
}

template <class Image>
Result<Image> RestorePlan::checked(Result<Image> image, const std::string& name) {
  if (image) SLUICE_TRY(survey.add(name, *image));
  return image;
}

// The payload of the image that a complete checkpoint calls `name`, which becomes its name here. A chain is
// never in a stream.
Result<std::vector<std::uint8_t>> RestorePlan::load(std::string& name) {
  auto payload = store.load(name);
  if (payload || payload.error().err != ENOENT || store.one_way()) return payload;
  auto of_chain = store.load(chain_name(name));
  if (!of_chain && of_chain.error().err == ENOENT) return payload;
  name = chain_name(name);
  return of_chain;
}

Result<kfd::KfdImage> RestorePlan::load_kfd_image(int id) {
  std::string name = kfd_image_name(id);
  SLUICE_TRY_ASSIGN(const auto payload, load(name));
  return checked(unpack_kfd_image(payload, name, store.keys()), name);
}

Result<RenderImage> RestorePlan::load_render_image(int id) {
  std::string name = render_image_name(id);
  SLUICE_TRY_ASSIGN(const auto payload, load(name));
  return checked(unpack_render_image(payload, name, store.keys()), name);
}

template <class Image, class Unpack>
Result<std::optional<Image>> RestorePlan::load_if_there(std::string name, Unpack unpack) {
  const auto payload = load(name);
  if (!payload && payload.error().err == ENOENT) return std::optional<Image>();
  if (!payload) return payload.error();
  if (kfd_device == 0)
    return Error{ENODEV,
                 name + " needs AMD GPUs, but this machine has no /dev/kfd; load the amdgpu driver [SL-R33]"};
  SLUICE_TRY_ASSIGN(Image image, checked(unpack(*payload, name, store.keys()), name));
  return std::optional(std::move(image));
}

Result<std::optional<DeviceImage>> RestorePlan::load_device_image(int id) {
  SLUICE_TRY_ASSIGN(auto kfd, load_if_there<kfd::KfdImage>(kfd_image_name(id), unpack_kfd_image));
  if (kfd) return std::optional<DeviceImage>(std::move(*kfd));
  SLUICE_TRY_ASSIGN(auto render, load_if_there<RenderImage>(render_image_name(id), unpack_render_image));
  if (render) return std::optional<DeviceImage>(std::move(*render));
  SLUICE_TRY_ASSIGN(auto dmabuf, load_if_there<DmaBufImage>(dmabuf_image_name(id), unpack_dmabuf_image));
  if (dmabuf) return std::optional<DeviceImage>(*dmabuf);
  return std::optional<DeviceImage>();
}

// An image that make() could not read may have had it.
Error RestorePlan::nobody_has_shared() const {
  if (const auto& unread = survey.unread())
    return explain("find shared memory in an image that cannot be read", *unread);
  return Error{EBADMSG, formatted("shared memory has no owner in {}; use another checkpoint [SL-R34]",
                                  store.words_of_known())};
}

Result<void> RestorePlan::publish(std::uint32_t number, int dmabuf) {
  if (number == 0) return {};
  if (!shared) return nobody_has_shared();
  return shared->publish(number, dmabuf);
}

Result<UniqueFd> RestorePlan::take_shared(std::uint32_t number) {
  if (!survey.shared_numbers().contains(number)) return nobody_has_shared();
  return shared->take(number, *lifeline);
}

}  // namespace sluice::plugin
