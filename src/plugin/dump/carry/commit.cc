// SPDX-License-Identifier: MIT
#include "plugin/dump/carry/commit.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "drm/target_file.h"
#include "images/files/files.h"
#include "images/metadata.h"
#include "images/pages.h"
#include "plugin/host/criu_host.h"
#include "proc/processes.h"

namespace sluice::plugin {

Commit::Commit(const DumpBasis& basis, Carrier& carrier, ImageSet& images, DumpPlan plan)
    : basis_(basis),
      carrier_(carrier),
      images_(images),
      plan_(std::move(plan)),
      ids_(plan_.files.size()),
      finished_(plan_.files.size()) {}

Result<std::optional<std::size_t>> Commit::find(int fd, bool is_kfd) const {
  const pid_t self = getpid();
  for (std::size_t i = 0; i < plan_.files.size(); ++i) {
    const PlannedFile& file = plan_.files[i];
    if (ids_[i] || file.is_kfd() != is_kfd) continue;
    SLUICE_TRY_ASSIGN(const bool same, proc::same_open_file({self, fd}, {self, file.fd}));
    if (same) return std::optional(i);
  }
  return std::optional<std::size_t>();
}

Result<void> Commit::look_at_vram(VramWatch& watch) const {
  for (const PlannedFile& file : plan_.files) {
    const auto* const render = std::get_if<RenderImage>(&file.image);
    if (render == nullptr) continue;
    SLUICE_TRY_ASSIGN(const std::uint32_t losses, drm::vram_losses(file.fd));
    SLUICE_TRY(watch.look(render->minor, losses));
  }
  return {};
}

bool Commit::all_named() const {
  return std::all_of(ids_.begin(), ids_.end(), [](const auto& id) { return id.has_value(); });
}

std::string Commit::image_name(std::size_t file) const {
  const int id = *ids_[file];
  return basis_.name_of(plan_.files[file].is_kfd() ? kfd_image_name(id) : render_image_name(id));
}

Result<void> Commit::finish(std::size_t number) {
  if (finished_[number]) return {};
  finished_[number] = true;
  PlannedFile& file = plan_.files[number];
  const int id = *ids_[number];
  images_.add_metadata(image_name(number));
  if (!file.is_alias()) {
    SLUICE_TRY(carrier_.join(number, id));
    SLUICE_TRY(save_empty_pages(file, id));
    SLUICE_TRY(basis_.sync());
  }
  if (all_named()) SLUICE_TRY(basis_.parent.check_unchanged(basis_.store));
  SLUICE_TRY_ASSIGN(const std::vector<std::uint8_t> payload, pack(number));
  SLUICE_TRY(basis_.save(image_name(number), payload));
  const auto* const render = std::get_if<RenderImage>(&file.image);
  if (!file.is_alias() && (render == nullptr || render->has_contents())) carrier_.note_stats(number, id);
  return {};
}

// A GPU without contents gets a file with only the header, as upstream writes it.
Result<void> Commit::save_empty_pages(const PlannedFile& file, int id) {
  const auto* const image = std::get_if<KfdImage>(&file.image);
  if (image == nullptr || basis_.policy.job_runs) return {};
  for (const kfd::Node& node : image->topology.nodes) {
    if (!node.is_gpu() || has_contents(*image, node.gpu_id)) continue;
    images_.add(pages_image_name(id, node.gpu_id));
    SLUICE_TRY(basis_.store.save(pages_image_name(id, node.gpu_id), {}, basis_.config.sync));
  }
  return {};
}

Result<std::vector<std::uint8_t>> Commit::pack(std::size_t number) {
  const ImageKeys& keys = basis_.store.keys();
  auto& image = plan_.files[number].image;
  const auto id = static_cast<std::uint32_t>(*ids_[number]);
  if (auto* const render = std::get_if<RenderImage>(&image)) {
    render->id = id;
    return pack_render_image(*render, keys);
  }
  if (auto* const process = std::get_if<KfdImage>(&image)) {
    process->id = id;
    process->replica_files = carrier_.replica_files(number);
    if (basis_.policy.job_runs) process->priv_data.clear();
    return pack_kfd_image(*process, keys);
  }
  const auto& first = ids_[std::get<KfdAlias>(image).of];
  if (!first) {  // unreached: no test
    return Error{
        EINVAL,
        formatted(
            "file {} of /dev/kfd comes before the one through which its process was dumped; the process "
            "must close all but one [SL-D36]",
            id)};
  }
  KfdImage alias;
  alias.alias_of = static_cast<std::uint32_t>(*first);
  alias.dump_id = basis_.dump_id;
  alias.id = id;
  return pack_kfd_image(alias, keys);
}

Result<void> Commit::finish_with_index(std::map<std::uint32_t, std::vector<PluginMap>> maps) {
  std::vector<std::string> metadata;
  for (std::size_t i = 0; i < ids_.size(); ++i) {
    if (!ids_[i]) continue;
    SLUICE_TRY(finish(i));
    metadata.push_back(image_name(i));
  }
  if (metadata.empty()) return {};  // unreached: a guard
  SLUICE_TRY(check_saved());
  return basis_.store.save_index({metadata, std::move(maps), basis_.dump_id});
}

Result<const SharedMemory*> Commit::memory_of_dmabuf(int fd, ino_t inode, int id) const {
  const SharedMemory* const shared = plan_.shared_of(inode);
  if (shared == nullptr) {
    const auto reason = plan_.not_restored.find(inode);
    log_line(
        Level::Warning,
        formatted(
            "file {} is a dma-buf of memory that no /dev/kfd or render node of the tree has: {} [SL-D24]", id,
            reason != plan_.not_restored.end() ? reason->second.what : "it was not among the tree's files"));
    return shared;
  }
  if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR) {
    return Error{
        EINVAL,
        formatted("file {} is a read-only dma-buf and would be restored as a writable one; the process must "
                  "close it [SL-D25]",
                  id)};
  }
  return shared;
}

Result<void> Commit::save_dmabuf(const SharedMemory& memory, int id, const std::vector<pid_t>& holders) {
  saved_dmabufs_.insert(memory.number);
  const DmaBufImage image{memory.handle, memory.number, proc::restoring_process(holders).innermost,
                          basis_.dump_id, static_cast<std::uint32_t>(id)};
  images_.add_metadata(dmabuf_image_name(id));
  return basis_.save(dmabuf_image_name(id), pack_dmabuf_image(image, basis_.store.keys()));
}

Result<void> Commit::check_saved() const {
  std::set<std::uint32_t> made;
  std::set<std::uint32_t> imported = saved_dmabufs_;
  for (std::size_t i = 0; i < plan_.files.size(); ++i) {
    if (!finished_[i]) continue;
    for (const std::uint32_t number : plan_.files[i].shared(false)) made.insert(number);
    for (const std::uint32_t number : plan_.files[i].shared(true)) imported.insert(number);
  }
  for (const auto& [dmabuf, memory] : plan_.shared) {
    if (!imported.contains(memory.number) || made.contains(memory.number)) continue;
    return Error{EINVAL, memory.creator +
                             " is memory that a dumped process shares, but CRIU does not dump the process "
                             "that allocated it; dump both together [SL-D17]"};
  }
  return {};
}

void Commit::warn_of_losses() const {
  for (std::size_t i = 0; i < plan_.files.size(); ++i) {
    const PlannedFile& file = plan_.files[i];
    if (ids_[i] || file.is_alias()) continue;
    log_line(Level::Warning,
             file.name + (file.is_kfd() ? ": CRIU did not ask for its /dev/kfd, so its GPU memory is in no "
                                          "image; do not rely on this checkpoint [SL-D37]"
                                        : ": CRIU did not ask for it, so its BOs are in no image; do not "
                                          "rely on this checkpoint [SL-D52]"));
  }
}

}  // namespace sluice::plugin
