// SPDX-License-Identifier: MIT
#include "plugin/restore/restore.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <thread>

#include "drm/device.h"
#include "drm/gem_restore.h"
#include "drm/target_file.h"
#include "images/files.h"
#include "images/key.h"
#include "kfd/bo_import.h"
#include "kfd/private_data.h"
#include "kfd/uapi.h"
#include "plugin/contents/machine.h"
#include "plugin/contents/stats.h"
#include "plugin/host/image_store.h"
#include "proc/processes.h"
#include "settings/settings.h"

namespace sluice::plugin {

namespace {

constexpr auto kEndPatience = std::chrono::seconds(5);  // until all tasks of a restore that failed have ended
constexpr auto kEndPeriod = std::chrono::milliseconds(1);

// The KFD wants its capability for RESTORE in the initial user namespace, where no task is that CRIU restores
// into one of its own. The inode of the initial one is fixed (PROC_USER_INIT_INO, include/linux/proc_ns.h).
Result<void> check_user_namespace() {
  constexpr ino_t kInitialUserNamespace = 0xEFFFFFFD;
  struct stat st {};
  if (stat("/proc/self/ns/user", &st) != 0 || st.st_ino == kInitialUserNamespace) return {};
  return Error{EPERM,
               "this task is restored into a user namespace, and the kernel creates KFD state only for the "
               "initial one; nothing was created"};
}

// What a task that never saw the GPU will know it by: its own id, unless another GPU has that for the task.
std::uint32_t free_gpu_id(std::span<const kfd::RestoreDevice> devices, std::uint32_t gpu_id) {
  const auto taken = [&](std::uint32_t id) {
    return std::any_of(devices.begin(), devices.end(),
                       [id](const kfd::RestoreDevice& device) { return device.user_gpu_id == id; });
  };
  while (taken(gpu_id)) gpu_id = gpu_id % kfd::kGpuIdMax + 1;
  return gpu_id;
}

// VRAM of the BOs from number `first` on.
VramBytes rest_of(const RenderImage& image, std::size_t first) {
  VramBytes rest;
  for (std::size_t i = first; i < image.bos.size(); ++i)
    add_vram(rest, {{image.minor, vram_of(image.bos[i])}});
  return rest;
}

// Those in which all shared memory is.
std::string images_of_shared_memory() {
  return streaming() ? std::string("the images that ") + kIndexImage + " names"
                     : std::string("the images at the beginning");
}

// What tells the pid namespace of the calling process from others; 0: it is not to be had.
ino_t pid_namespace(int directory, const char* own) {
  struct stat st {};
  return fstatat(directory, own, &st, 0) == 0 ? st.st_ino : 0;
}

void log_progress(const std::string& line) {
  log_line(Level::Info, line);
}

}  // namespace

Result<std::unique_ptr<Restorer>> Restorer::make() {
  std::unique_ptr<Restorer> restorer(new Restorer);
  restorer->needed_ = !inventory_says_not_needed();
  if (!restorer->needed_) return restorer;
  if (const auto kfd_device = kfd::kfd_device_number()) restorer->kfd_device_ = *kfd_device;
  if (restorer->kfd_device_ == 0) return restorer;
  LogLines lines;
  restorer->config_ = parse_config(plugin_settings(lines), lines);
  log_lines(lines);
  use_image_key(read_key(restorer->config_));  // one that is not to be had fails whoever reads an image
  SLUICE_TRY_ASSIGN(restorer->survey_, RestoreSurvey::read());
  SLUICE_TRY_ASSIGN(restorer->lifeline_, Lifeline::make());
  SLUICE_TRY_ASSIGN(restorer->thread_numbers_, ThreadNumbers::make());
  restorer->own_pid_namespace_ = pid_namespace(AT_FDCWD, "/proc/self/ns/pid");
  if (const auto& shared = restorer->survey_.shared_numbers(); !shared.empty()) {
    SLUICE_TRY_ASSIGN(restorer->shared_, SharedTable::make(*shared.rbegin()));
  }
  SLUICE_TRY(restorer->prepare_match());
  restorer->ask_record_bytes();
  if (restorer->config_.parallel && host_has_post_forking()) {
    auto server =
        ContentServer::make(restorer->config_, restorer->survey_.all_lanes(), restorer->lifeline_->vram());
    if (server) {
      restorer->server_ = std::move(*server);
    } else {
      log_line(Level::Warning, "tasks restore their GPU memory themselves: " + server.error().what);
    }
  }
  return restorer;
}

// What the tasks have to know of each other, and of other restores, to be matched to GPUs. A map that does
// not name GPUs fails the restore here, where nothing was created.
Result<void> Restorer::prepare_match() {
  SLUICE_TRY_ASSIGN(tree_match_, TreeMatch::make());
  tree_match_->need = survey_.vram();
  if (!survey_.topologies().empty()) tree_match_->widest = survey_.topologies().front();
  if (config_.gpu_map) {
    SLUICE_TRY_ASSIGN(const kfd::GpuMap map, kfd::GpuMap::parse(*config_.gpu_map));
    SLUICE_TRY_ASSIGN(const kfd::Topology local, kfd::read_topology());
    std::vector<const kfd::Topology*> sources;
    sources.reserve(survey_.topologies().size());
    for (const kfd::Topology& source : survey_.topologies()) sources.push_back(&source);
    SLUICE_TRY_ASSIGN(tree_match_->map, map.resolve(sources, local));
  }
  auto ledger = VramLedger::open();
  if (ledger) {
    tree_match_->ledger = std::move(*ledger);
  } else {
    log_line(Level::Info,
             "restores that begin at the same moment may choose the same GPU (" + ledger.error().what + ")");
  }
  gpus_.join(tree_match_.get());
  return {};
}

// Asks a kernel whose version does not tell it for the size of its BO records. In init(), where no task has
// been forked: this process' KFD process cannot RESTORE afterwards, and has no need to. Only where there is
// something to compare; without an answer the restore goes on unchecked.
void Restorer::ask_record_bytes() {
  if (!survey_.has_record_bytes()) return;
  const auto own = kfd::KfdDevice::open(kfd_device_);
  if (!own || known_record_bytes(own->version().minor) != 0) return;
  const auto answer = [&]() -> Result<std::uint32_t> {
    SLUICE_TRY_ASSIGN(const kfd::Topology local, kfd::read_topology());
    const auto gpu = std::find_if(local.nodes.begin(), local.nodes.end(),
                                  [](const kfd::Node& node) { return node.is_gpu(); });
    if (gpu == local.nodes.end()) return make_error(ENODEV, "no GPU");
    SLUICE_TRY_ASSIGN(const UniqueFd render, drm::open_render_node(gpu->drm_render_minor));
    return kfd::probe_bo_record_bytes(*own, gpu->gpu_id, render.get());
  }();
  if (answer) {
    asked_record_bytes_ = *answer;
  } else {
    log_line(Level::Warning, "cannot tell whether this kernel understands the image's private data (" +
                                 answer.error().what + "); if it does not, the restore will fail half-way");
  }
}

void Restorer::start_server() {
  if (!server_) return;
  if (const auto started = server_->start(image_dir_fd()); !started)
    log_line(Level::Warning, "tasks restore their GPU memory themselves: " + started.error().what);
}

// An image that is about to be restored: of the same dump as those that init() has seen.
template <class Image>
Result<Image> Restorer::checked(Result<Image> image, const std::string& name) {
  if (image) SLUICE_TRY(survey_.add(name, *image));
  return image;
}

// Memory that several files have is made by one of them and imported by the rest, which may be restored
// first. So a task makes everything that is its to make before it waits for others: then nobody waits for
// ever.
Result<void> Restorer::make_all(std::uint32_t pid) {
  if (std::exchange(all_made_, true)) return {};
  maps_.meet(pid);
  SLUICE_TRY(maps_.read_runs());
  for (const auto& [id, its_pid] : survey_.kfd_pids()) {
    if (its_pid != pid) continue;
    SLUICE_TRY_ASSIGN(const kfd::KfdImage image, load_kfd_image(id));
    SLUICE_TRY_ASSIGN(const int fd, restore_kfd(image, id));
    made_[id].reset(fd);
  }
  for (const auto& [id, its_pid] : survey_.render_pids()) {
    if (its_pid != pid) continue;
    SLUICE_TRY_ASSIGN(const RenderImage image, load_render_image(id));
    SLUICE_TRY_ASSIGN(const int fd, restore_render(image, id));
    UniqueFd file(fd);
    if (!is_memory_of_dmabuf(id)) made_[id] = std::move(file);
  }
  return import_bos();
}

Result<void> Restorer::import_bos() {
  for (const KfdImporting& process : kfd_importing_) SLUICE_TRY(import_kfd_bos(process));
  kfd_importing_.clear();
  for (Importing& file : importing_) {
    for (const RenderBo& bo : file.image.bos) {
      if (!bo.imports) continue;
      const auto imported = [&]() -> Result<void> {
        SLUICE_TRY_ASSIGN(const UniqueFd dmabuf, take_shared(bo.shared));
        SLUICE_TRY(file.gem->import(bo.gem, dmabuf.get()));
        return note_mapped(file, bo, dmabuf.get());
      }();
      if (!imported) {
        return explain(render_image_name(file.id) + ", GEM handle " + std::to_string(bo.gem.handle),
                       imported.error());
      }
    }
  }
  importing_.clear();
  return {};
}

// In ascending order of their handles on each GPU.
Result<std::vector<Restorer::KfdImport>> Restorer::imports_of(const kfd::KfdImage& image) {
  std::vector<KfdImport> imports;
  for (std::size_t i = 0; i < image.bos.size(); ++i) {
    const kfd::BoEntry& bo = image.bos[i];
    if (bo.imports) imports.push_back({i, {bo.addr, bo.bytes, bo.gpu_id, 0, {}}});
  }
  if (imports.empty()) return imports;
  SLUICE_TRY_ASSIGN(const kfd::PrivateData records, private_records(image));
  for (KfdImport& import : imports) {
    kfd::PrivateData::BoRecord record = records.bo(import.index);
    import.bo.handle = record.handle;
    import.bo.mapped_gpu_ids = std::move(record.mapped_gpu_ids);
  }
  std::sort(imports.begin(), imports.end(), [](const KfdImport& a, const KfdImport& b) {
    return std::pair(a.bo.gpu_id, a.bo.handle) < std::pair(b.bo.gpu_id, b.bo.handle);
  });
  return imports;
}

Result<void> Restorer::import_kfd_bos(const KfdImporting& process) {
  const kfd::KfdImage& image = process.image;
  kfd::BoImport kfd(process.file);
  for (const KfdImport& next : process.imports) {
    const kfd::BoEntry& bo = image.bos[next.index];
    const auto imported = [&]() -> Result<void> {
      SLUICE_TRY_ASSIGN(const UniqueFd dmabuf, take_shared(bo.shared));
      SLUICE_TRY(kfd.import(next.bo, dmabuf.get()));
      SLUICE_TRY_ASSIGN(const kfd::Node* gpu, gpus_.local_gpu(bo.gpu_id));
      SLUICE_TRY_ASSIGN(const std::uint64_t offset,
                        maps_.mmap_offset_of(gpu->drm_render_minor, dmabuf.get()));
      return note_kfd_bo(image, bo, offset, dmabuf.get());
    }();
    if (!imported) return explain(kfd_image_name(process.id), imported.error());
  }
  return {};
}

// What init() could not read may have had it.
Error Restorer::nobody_has_shared() const {
  if (const auto& unread = survey_.unread())
    return explain("shared memory of an image that is not read", *unread);
  return make_error(EBADMSG, "shared memory that nobody has in " + images_of_shared_memory());
}

Result<UniqueFd> Restorer::take_shared(std::uint32_t number) {
  if (!survey_.shared_numbers().contains(number)) return nobody_has_shared();
  return shared_->take(number, *lifeline_);
}

// A descriptor for a dma-buf that the process had open.
Result<int> Restorer::restore_dmabuf(const DmaBufImage& image) {
  if (image.pid && shared_) SLUICE_TRY(make_all(*image.pid));
  SLUICE_TRY_ASSIGN(UniqueFd dmabuf, take_shared(image.shared));
  return dmabuf.release();
}

Result<void> Restorer::publish(std::uint32_t number, int dmabuf) {
  if (number == 0) return {};
  if (!shared_) return nobody_has_shared();
  return shared_->publish(number, dmabuf);
}

Result<Answer> Restorer::restore_file(int id) {
  SLUICE_TRY_ASSIGN(const Answer file, restore_if_ours(id));
  if (file) lifeline_->note_file();  // no file comes without: there is a KFD
  return file;
}

Result<Answer> Restorer::restore_if_ours(int id) {
  if (!needed_) return Answer();
  if (shared_) {
    for (const auto* pids : {&survey_.kfd_pids(), &survey_.render_pids()}) {
      if (const auto pid = pids->find(id); pid != pids->end()) SLUICE_TRY(make_all(pid->second));
    }
    if (const auto made = made_.find(id); made != made_.end() && made->second)
      return Answer(made->second.release());
  }
  std::string name = kfd_image_name(id);
  auto payload = load_image(name);
  const bool is_kfd = payload.ok() || payload.error().err != ENOENT;
  if (!is_kfd) {
    name = render_image_name(id);
    payload = load_image(name);
  }
  const bool is_render = !is_kfd && (payload.ok() || payload.error().err != ENOENT);
  if (!is_kfd && !is_render) {
    name = dmabuf_image_name(id);
    payload = load_image(name);
    if (!payload && payload.error().err == ENOENT) return Answer();
  }
  if (!payload) return std::move(payload).error();
  if (kfd_device_ == 0) {
    return Error{ENODEV, name + " needs AMD GPUs, but this machine has no /dev/kfd; load the amdgpu driver"};
  }
  int fd = -1;
  if (is_kfd) {
    SLUICE_TRY_ASSIGN(const kfd::KfdImage image, checked(unpack_kfd_image(*payload, name), name));
    SLUICE_TRY_ASSIGN(fd, restore_kfd(image, id));
    SLUICE_TRY(import_bos());
  } else if (is_render) {
    SLUICE_TRY_ASSIGN(const RenderImage image, checked(unpack_render_image(*payload, name), name));
    SLUICE_TRY_ASSIGN(fd, restore_render(image, id));
    SLUICE_TRY(import_bos());
  } else {
    SLUICE_TRY_ASSIGN(const DmaBufImage image, checked(unpack_dmabuf_image(*payload, name), name));
    SLUICE_TRY_ASSIGN(fd, restore_dmabuf(image));
  }
  return Answer(fd);
}

// The restore of one KFD process, as a table of contents.
Result<int> Restorer::restore_kfd(const kfd::KfdImage& image, int id) {
  SLUICE_TRY_ASSIGN(kfd::KfdDevice own, kfd::KfdDevice::open(kfd_device_));
  if (image.alias_of) {
    // Another open file of a KFD process that exists by now: files come in the order of their numbers.
    if (std::find(restored_ids_.begin(), restored_ids_.end(), static_cast<int>(*image.alias_of)) ==
        restored_ids_.end()) {
      return Error{EINVAL, kfd_image_name(id) + " belongs to file " + std::to_string(*image.alias_of) +
                               ", which this task has not restored"};
    }
    return std::move(own).take_fd().release();
  }
  maps_.meet(image.pid);
  SLUICE_TRY(maps_.read_runs());
  SLUICE_TRY(check_user_namespace());
  const std::uint32_t known = known_record_bytes(own.version().minor);
  SLUICE_TRY(check_private_data(image, known != 0 ? known : asked_record_bytes_));
  SLUICE_TRY(gpus_.match(image, config_.match_rules));
  SLUICE_TRY_ASSIGN(const std::vector<kfd::RestoreDevice> devices, restore_devices(image));
  const GpuMatch::Rooms rooms = gpus_.rooms();
  auto made = make_bos(own, image, devices);
  if (!made) return gpus_.explain(made.error(), vram_of(image), rooms);
  std::vector<kfd::RestoredBo> restored = std::move(*made);
  gpus_.allocated(vram_of(image));
  for (std::size_t i = 0; i < restored.size(); ++i) {
    const kfd::BoEntry& bo = image.bos[i];
    if (bo.imports) continue;
    SLUICE_TRY(note_kfd_bo(image, bo, restored[i].offset, restored[i].dmabuf.get()));
    SLUICE_TRY(publish(bo.shared, restored[i].dmabuf.get()));
  }
  SLUICE_TRY_ASSIGN(ContentRequest request, request_of(image, id, std::move(restored)));
  SLUICE_TRY(fill_contents(std::move(request)));
  if (image.shm.bytes != 0) SLUICE_TRY(kfd::restore_hsakmt_shm(image.shm));
  SLUICE_TRY_ASSIGN(UniqueFd file, maps_.make_high(std::move(own).take_fd()));
  SLUICE_TRY_ASSIGN(std::vector<KfdImport> imports, imports_of(image));
  if (!imports.empty()) kfd_importing_.push_back({id, file.get(), image, std::move(imports)});
  restored_ids_.push_back(id);
  restored_any_ = true;
  maps_.kfd_has_files(minors_of_files_to_come(image));
  return file.release();
}

// Local GPUs of which the task gets a render file, before or later.
std::set<std::uint32_t> Restorer::minors_of_files_to_come(const kfd::KfdImage& image) const {
  std::set<std::uint32_t> minors;
  for (const kfd::Node& source : image.topology.nodes) {
    if (!source.is_gpu() || !survey_.may_restore_render_file(image.pid, source)) continue;
    if (const auto gpu = gpus_.local_gpu(source.gpu_id)) minors.insert((*gpu)->drm_render_minor);
  }
  return minors;
}

// A render file may come before its KFD file: the image of the task's KFD process tells of the GPUs, or,
// where it has none, any. These agree about the machine, but not always about the ids by which a process
// knows its GPUs. Where there is none, the tree has render files only.
Result<void> Restorer::match_gpus_of(const RenderImage& render) {
  if (gpus_.matched() || survey_.kfd_pids().empty()) return {};
  const auto& pids = survey_.kfd_pids();
  const std::uint32_t task = render.pid.value_or(static_cast<std::uint32_t>(getpid()));
  auto which = std::find_if(pids.begin(), pids.end(), [&](const auto& each) { return task == each.second; });
  if (which == pids.end()) which = pids.begin();
  SLUICE_TRY_ASSIGN(const kfd::KfdImage image, load_kfd_image(which->first));
  return gpus_.match(image, config_.match_rules);
}

// What was read in init() may not be there any more.
Result<kfd::KfdImage> Restorer::load_kfd_image(int id) {
  const std::string name = kfd_image_name(id);
  SLUICE_TRY_ASSIGN(const auto payload, load_image(name));
  return checked(unpack_kfd_image(payload, name), name);
}

Result<RenderImage> Restorer::load_render_image(int id) {
  const std::string name = render_image_name(id);
  SLUICE_TRY_ASSIGN(const auto payload, load_image(name));
  return checked(unpack_render_image(payload, name), name);
}

Result<int> Restorer::restore_render(const RenderImage& image, int id) {
  if (image.pid) maps_.meet(*image.pid);
  SLUICE_TRY(match_gpus_of(image));
  if (gpus_.matched() && !maps_.met()) maps_.meet(static_cast<std::uint32_t>(getpid()));
  SLUICE_TRY(maps_.read_runs());
  SLUICE_TRY_ASSIGN(const kfd::Node* gpu, gpus_.gpu_of(image));
  const std::uint32_t minor = gpu->drm_render_minor;
  // Where KFD had no memory by which the dump could tell, or none that a file may not have imported, too, the
  // first of the GPU's files is its.
  const bool may_be = gpus_.matched() && image.kfd_acquired.value_or(true);
  const bool acquired = may_be && !maps_.has_handed_out(minor);
  if (may_be && !acquired) {
    log_line(Level::Warning, render_image_name(id) + " does not tell whether KFD uses this file of " +
                                 image.node_words() +
                                 "; another file is taken for it, and new KFD memory cannot be mapped "
                                 "through this one");
  }
  UniqueFd file;
  if (acquired) {
    SLUICE_TRY_ASSIGN(file, maps_.hand_out(minor));
  } else {
    SLUICE_TRY_ASSIGN(file, maps_.open_high(minor));
  }
  Importing importing{id, file.get(), image, gpu, acquired, std::make_unique<drm::GemRestore>(file.get())};
  SLUICE_TRY(restore_bos(importing));
  restored_any_ = true;
  return file.release();
}

// The file that KFD uses shows KFD's maps, too: those of a BO that the file makes and KFD imports come with
// the import, where KFD has mapped that on the file's GPU.
drm::GemBo Restorer::without_maps_of_kfd(const Importing& file, const RenderBo& bo) const {
  drm::GemBo gem = bo.gem;
  if (!file.acquired) return gem;
  for (const KfdImporting& process : kfd_importing_) {
    for (const KfdImport& import : process.imports) {
      const std::vector<std::uint32_t>& mapped = import.bo.mapped_gpu_ids;
      if (process.image.bos[import.index].shared != bo.shared ||
          std::find(mapped.begin(), mapped.end(), file.image.gpu_id) == mapped.end())
        continue;
      std::erase_if(gem.mappings,
                    [&](const drm::GemMapping& mapping) { return mapping.address == import.bo.addr; });
    }
  }
  return gem;
}

// Makes the BOs of a render file again, in ascending order of their handles, and has them filled. Those that
// it imports come later.
Result<void> Restorer::restore_bos(Importing& file) {
  const RenderImage& image = file.image;
  if (image.bos.empty()) return {};
  const bool mapped = std::any_of(image.bos.begin(), image.bos.end(), [&](const RenderBo& bo) {
    return maps_.maps(bo.mmap_offset, bo.gem.bytes);
  });
  if (mapped && image.pid && survey_.maps_several_files(*image.pid, image.minor) && !host_takes_vma_fd()) {
    return Error{EINVAL, "a process maps renderD" + std::to_string(image.minor) +
                             " through several files, which this version of CRIU cannot bring back; 3.19 and "
                             "newer can"};
  }
  GpuContents contents = contents_on(*file.gpu, image.gpu_id, image.minor);
  contents.bo_table_digest = bo_table_digest(image.bos);
  contents.has_sums = image.has_sums;
  contents.drm_minor = image.minor;
  bool imports = false;
  for (std::uint32_t i = 0; i < image.bos.size(); ++i) {
    const RenderBo& bo = image.bos[i];
    imports = imports || bo.imports;
    const auto made = [&]() -> Result<void> {
      if (bo.imports) return file.gem->reserve(bo.gem);
      if (const auto created = file.gem->create(without_maps_of_kfd(file, bo)); !created)
        return gpus_.explain(created.error(), rest_of(image, i), gpus_.rooms());
      gpus_.allocated(*file.gpu, vram_of(bo));
      SLUICE_TRY_ASSIGN(UniqueFd dmabuf, drm::export_dmabuf(file.file, bo.gem.handle));
      SLUICE_TRY(note_mapped(file, bo, dmabuf.get()));
      SLUICE_TRY(publish(bo.shared, dmabuf.get()));
      const std::uint64_t va = bo.gem.mappings.empty() ? 0 : bo.gem.mappings.front().address;
      contents.bos.push_back({bo.gem.bytes, va, std::move(dmabuf), i});
      return {};
    }();
    if (!made) return explain(render_image_name(file.id), made.error());
  }
  ContentRequest request{file.id, image.dump_id.value_or(DumpId{}), {}};
  if (!contents.bos.empty()) {
    request.gpus.push_back(std::move(contents));
    SLUICE_TRY(fill_contents(std::move(request)));
  }
  if (imports) importing_.push_back(std::move(file));
  return {};
}

// Where the BO is mapped from now on, for UPDATE_VMA_MAP.
Result<void> Restorer::note_mapped(const Importing& file, const RenderBo& bo, int dmabuf) {
  if (bo.mmap_offset == 0) return {};
  const RenderImage& image = file.image;
  SLUICE_TRY_ASSIGN(const std::uint64_t offset, drm::mmap_offset_of(file.file, bo.gem.handle));
  if (image.pid && survey_.maps_several_files(*image.pid, image.minor) &&
      maps_.maps(bo.mmap_offset, bo.gem.bytes))
    SLUICE_TRY(maps_.allow_in_common_file(file.gpu->drm_render_minor, dmabuf));
  maps_.add({false, image.minor, file.gpu->drm_render_minor, bo.mmap_offset, bo.gem.bytes, offset, file.id});
  return {};
}

GpuContents Restorer::contents_on(const kfd::Node& gpu, std::uint32_t user_gpu_id,
                                  std::uint32_t source_minor) const {
  GpuContents contents;
  contents.gpu_id = user_gpu_id;
  contents.render_minor = gpu.drm_render_minor;
  contents.numa_node = numa_node_of_render_minor(gpu.drm_render_minor);
  contents.sharers = survey_.lanes_on(source_minor);
  return contents;
}

Result<std::vector<kfd::RestoreDevice>> Restorer::restore_devices(const kfd::KfdImage& image) {
  std::vector<kfd::RestoreDevice> devices;
  for (const kfd::Node& source : image.topology.nodes) {
    if (!source.is_gpu()) continue;
    SLUICE_TRY_ASSIGN(const kfd::Node* gpu, gpus_.local_gpu(source.gpu_id));
    SLUICE_TRY_ASSIGN(const int acquired, maps_.acquire(gpu->drm_render_minor));
    devices.push_back({source.gpu_id, gpu->gpu_id, acquired});
  }
  // The kernel wants to hear of every GPU that the task sees.
  for (const kfd::Node& node : gpus_.local().nodes) {
    const bool is_named = std::any_of(devices.begin(), devices.end(), [&](const kfd::RestoreDevice& device) {
      return device.actual_gpu_id == node.gpu_id;
    });
    if (!node.is_gpu() || is_named) continue;
    SLUICE_TRY_ASSIGN(const int acquired, maps_.acquire(node.drm_render_minor));
    devices.push_back({free_gpu_id(devices, node.gpu_id), node.gpu_id, acquired});
  }
  return devices;
}

// RESTORE. One entry for each BO of the image, empty for those that are imported later.
Result<std::vector<kfd::RestoredBo>> Restorer::make_bos(const kfd::KfdDevice& own, const kfd::KfdImage& image,
                                                        std::span<const kfd::RestoreDevice> devices) const {
  std::vector<kfd::RestoreBo> made;
  std::vector<std::size_t> imported;
  for (std::size_t i = 0; i < image.bos.size(); ++i) {
    const kfd::BoEntry& bo = image.bos[i];
    if (bo.imports) {
      imported.push_back(i);
    } else {
      made.push_back({bo.addr, bo.bytes, bo.offset, bo.gpu_id, bo.alloc_flags});
    }
  }
  std::vector<std::uint32_t> more_gpu_ids;
  for (const kfd::RestoreDevice& device : devices) {
    if (image.topology.find_gpu(device.user_gpu_id) == nullptr) more_gpu_ids.push_back(device.user_gpu_id);
  }
  if (imported.empty() && more_gpu_ids.empty())
    return kfd::restore(own, devices, made, image.num_objects, image.priv_data);
  SLUICE_TRY_ASSIGN(const kfd::PrivateData records, private_records(image));
  SLUICE_TRY_ASSIGN(
      std::vector<kfd::RestoredBo> restored,
      kfd::restore(own, devices, made, image.num_objects, records.edit(imported, more_gpu_ids)));
  std::vector<kfd::RestoredBo> all(image.bos.size());
  for (std::size_t i = 0, next = 0; i < all.size(); ++i) {
    if (!image.bos[i].imports) all[i] = std::move(restored[next++]);
  }
  return all;
}

// Where a BO of the KFD is mapped from now on, for UPDATE_VMA_MAP.
Result<void> Restorer::note_kfd_bo(const kfd::KfdImage& image, const kfd::BoEntry& bo,
                                   std::uint64_t new_offset, int dmabuf) {
  const std::uint32_t source_minor = image.topology.find_gpu(bo.gpu_id)->drm_render_minor;
  SLUICE_TRY_ASSIGN(const kfd::Node* gpu, gpus_.local_gpu(bo.gpu_id));
  const bool in_kfd = (bo.alloc_flags & (kfd::kAllocDoorbell | kfd::kAllocMmioRemap)) != 0;
  if (!in_kfd && !kfd::has_contents(bo.alloc_flags)) return {};  // userptr: ordinary memory to the CPU
  maps_.add({in_kfd, source_minor, gpu->drm_render_minor, bo.offset, bo.bytes, new_offset, std::nullopt});
  if (in_kfd || !survey_.maps_several_files(image.pid, source_minor) || !maps_.maps(bo.offset, bo.bytes))
    return {};
  return maps_.allow_in_common_file(gpu->drm_render_minor, dmabuf);
}

Result<ContentRequest> Restorer::request_of(const kfd::KfdImage& image, int id,
                                            std::vector<kfd::RestoredBo> restored) const {
  ContentRequest request{id, image.dump_id.value_or(DumpId{}), {}};
  for (const kfd::Node& source : image.topology.nodes) {
    if (!source.is_gpu()) continue;
    SLUICE_TRY_ASSIGN(const kfd::Node* gpu, gpus_.local_gpu(source.gpu_id));
    GpuContents contents = contents_on(*gpu, source.gpu_id, source.drm_render_minor);
    contents.bo_table_digest = bo_table_digest(image.bos, source.gpu_id);
    contents.has_sums = image.has_sums;
    for (std::size_t i = 0; i < image.bos.size(); ++i) {
      if (image.bos[i].gpu_id == source.gpu_id && restored[i].dmabuf) {
        contents.bos.push_back({image.bos[i].bytes, image.bos[i].addr, std::move(restored[i].dmabuf),
                                static_cast<std::uint32_t>(i)});
      }
    }
    if (!contents.bos.empty()) request.gpus.push_back(std::move(contents));
  }
  return request;
}

// Hands the BOs to the content server, or fills them here when there is none or it does not answer.
Result<void> Restorer::fill_contents(ContentRequest request) {
  if (request.gpus.empty()) return {};
  if (server_) {
    const UniqueFd socket(fdstore_get(server_->fdstore_id()));
    const Result<void> handed = socket
                                    ? hand_over(socket.get(), request)
                                    : Result<void>(make_error(EBADF, "get the socket from CRIU's fdstore"));
    if (handed) return {};
    SLUICE_TRY(lifeline_->check());
    log_line(Level::Warning, "file " + std::to_string(request.id) +
                                 ": the content server did not take the GPU memory (" + handed.error().what +
                                 "); this task restores it itself");
  }
  return fill_in_task(std::move(request));
}

// Not in criu's own pid namespace, where others live, too, whose numbers are not for us to move. Where they
// cannot be raised, the restore mostly gets on all the same.
std::optional<ThreadNumbers::Raised> Restorer::raise_thread_numbers() const {
  const ino_t its = pid_namespace(proc_fd(), "self/ns/pid");
  if (its == 0 || its == own_pid_namespace_) return std::nullopt;
  auto raised = thread_numbers_->raise(proc_fd());
  if (raised) return std::move(*raised);
  log_line(Level::Warning,
           "threads that restore GPU memory may take numbers that belong to threads of the tree (" +
               raised.error().what + "); if CRIU is then unable to create a thread (-17), restore again");
  return std::nullopt;
}

Result<void> Restorer::fill_in_task(ContentRequest request) {
  const std::optional<ThreadNumbers::Raised> raised = raise_thread_numbers();
  SharedByJobs shared(lifeline_->vram());
  const std::uint64_t began_ns = shared.world.now_ns();
  shared.lanes = survey_.all_lanes();
  shared.unverified_said = unverified_said_;
  SLUICE_TRY_ASSIGN(const std::unique_ptr<ContentsJob> job,
                    ContentsJob::restore(image_dir_fd(), request.id, std::move(request.gpus), config_,
                                         request.dump_id, shared));
  job->begin();
  const Result<void> done = job->wait(log_progress);
  log_lines(job->take_log_lines());
  unverified_said_ = shared.unverified_said;
  SLUICE_TRY(done);
  write_stats(Direction::Restore, request.id, {began_ns, began_ns, shared.world.now_ns()}, job->outcomes(),
              config_);
  return {};
}

Result<Answer> Restorer::update_map(const char* path, std::uint64_t address, std::uint64_t old_offset,
                                    std::uint64_t& new_offset, int& fd) {
  if (!needed_ || !restored_any_) return Answer();
  return maps_.update(path, address, old_offset, new_offset, fd);
}

Result<Answer> Restorer::resume(int pid) {
  if (!lifeline_ || !lifeline_->has_files()) return Answer();
  if (tree_killed_) {  // why was said
    StoppedTree::kill_traced(pid);
    return Answer(-ECANCELED);
  }
  Result<kfd::ResumeOutcome> outcome = Error{ENOMEM, "out of memory"};
  try {
    outcome = resume_process(pid);
  } catch (const std::bad_alloc&) {  // no way out of here may let the tree run
  } catch (...) {
    outcome = Error{EIO, "unexpected exception"};
  }
  if (!outcome) {
    tree_killed_ = true;
    if (tree_) tree_->kill();
    StoppedTree::kill_traced(pid);  // CRIU 3.17.1 asks about helpers, too, which were reaped
    return Error{outcome.error().err,
                 outcome.error().what + " (all processes of the tree were killed: none must run)",
                 outcome.error().topic};
  }
  if (*outcome == kfd::ResumeOutcome::NotGpuProcess) return Answer();
  return Answer(0);
}

Result<kfd::ResumeOutcome> Restorer::resume_process(int pid) {
  if (!tree_) {
    SLUICE_TRY_ASSIGN(tree_, StoppedTree::find());
    SLUICE_TRY(tree_->hold());
    SLUICE_TRY(join_server());
    SLUICE_TRY(tree_->hold());
    SLUICE_TRY(check_vram());
    if (tree_match_->ledger) tree_match_->ledger->clear();  // all is allocated
  }
  SLUICE_TRY_ASSIGN(const kfd::KfdDevice own, kfd::KfdDevice::open(kfd_device_));
  SLUICE_TRY_ASSIGN(const kfd::ResumeOutcome outcome, kfd::resume(own, pid));
  SLUICE_TRY(tree_->ready(pid));
  return outcome;
}

// Lanes have looked at their ends, some of them long ago.
Result<void> Restorer::check_vram() const {
  VramWatch& vram = lifeline_->vram();
  for (const std::uint32_t minor : vram.render_minors()) {
    SLUICE_TRY_ASSIGN(const UniqueFd gpu, drm::open_render_node(minor));
    SLUICE_TRY_ASSIGN(const std::uint32_t losses, drm::vram_losses(gpu.get()));
    SLUICE_TRY(vram.look(minor, losses));
  }
  return {};
}

Result<void> Restorer::join_server() {
  if (!server_) return {};
  joined_ = true;
  Result<void> joined = server_->join(log_progress);
  log_lines(server_->take_log_lines());
  if (joined) {
    for (const ContentServer::Finished& file : server_->take_finished()) {
      write_stats(Direction::Restore, file.id, file.times, file.gpus, config_);
    }
  }
  return joined;
}

Result<void> Restorer::finish(int ret) {
  Result<void> resumed = ret >= 0 ? check_resumed() : Result<void>();
  Result<void> joined = join_unasked();
  if (ret < 0) await_end_of_tasks();
  SLUICE_TRY(std::move(resumed));
  return joined;
}

// CRIU asks no further plugin where one has answered RESUME_DEVICES_LATE.
Result<void> Restorer::check_resumed() const {
  if (!lifeline_ || !lifeline_->has_files() || tree_ || tree_killed_) return {};
  const auto tasks = kfd::descendants(getpid());
  if (tasks) {
    for (const pid_t task : *tasks) (void)kill(task, SIGKILL);
  }
  return Error{
      EPROTO,
      "CRIU lets the processes run and has not asked for their queues; does another plugin answer "
      "RESUME_DEVICES_LATE for all? GPU memory may be missing, so criu's children were killed; kill what is "
      "left of the tree"};
}

Result<void> Restorer::join_unasked() {
  if (!server_ || joined_) return {};
  server_->cancel();  // nothing is left to wait for: whatever was needed, resume() would have joined
  Result<void> joined = join_server();
  if (!joined && joined.error().err == ECANCELED) return {};
  return joined;
}

// CRIU waits for none of them. What they have in the GPUs is free for another try when they have ended. And
// SIGCHLD had better come here: CRIU's handler calls strsignal(), which waits for ever in a main process that
// was interrupted on its way out where libc had locked its locales (seen with 4.2.1, once in a thousand).
// But it has other children, which live until it ends: cgroupd, since 3.18.
void Restorer::await_end_of_tasks() const {
  if (!needed_ || kfd_device_ == 0) return;
  auto tasks = kfd::descendants(getpid());
  if (!tasks) return;
  std::erase_if(*tasks, [](pid_t task) { return !kfd::is_ending(task); });
  const auto deadline = std::chrono::steady_clock::now() + kEndPatience;
  for (;;) {
    std::erase_if(*tasks, [](pid_t task) { return kfd::has_ended(task); });
    if (tasks->empty() || std::chrono::steady_clock::now() >= deadline) break;
    std::this_thread::sleep_for(kEndPeriod);
  }
  for (const pid_t task : *tasks) {
    log_line(Level::Warning, "process " + std::to_string(task) +
                                 " of the restore that failed has not ended yet: what it has in the GPUs is "
                                 "not free");
  }
}

}  // namespace sluice::plugin
