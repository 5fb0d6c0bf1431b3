// SPDX-License-Identifier: MIT
#include "plugin/restore.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <new>

#include "drm/device.h"
#include "drm/gem_restore.h"
#include "drm/target_file.h"
#include "images/files.h"
#include "kfd/bo_import.h"
#include "kfd/private_data.h"
#include "kfd/processes.h"
#include "kfd/uapi.h"
#include "plugin/image_store.h"
#include "plugin/machine.h"
#include "plugin/stats.h"

namespace sluice::plugin {

namespace {

constexpr std::string_view kRenderPrefix = "/dev/dri/renderD";
constexpr std::uint64_t kNoOffset =
    ~std::uint64_t{0xFFFF};  // a multiple of any page that no file can be mapped at

// CRIU's paths sometimes have doubled slashes.
std::string without_doubled_slashes(const char* path) {
  std::string clean;
  for (; *path != '\0'; ++path) {
    if (*path != '/' || clean.empty() || clean.back() != '/') clean += *path;
  }
  return clean;
}

std::optional<std::uint32_t> render_minor_of(std::string_view path) {
  if (!path.starts_with(kRenderPrefix)) return std::nullopt;
  path.remove_prefix(kRenderPrefix.size());
  std::uint32_t minor = 0;
  const auto [end, error] = std::from_chars(path.data(), path.data() + path.size(), minor);
  if (error != std::errc() || end != path.data() + path.size()) return std::nullopt;
  return minor;
}

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

bool gpu_has_contents(const kfd::KfdImage& image, std::uint32_t gpu_id) {
  return std::any_of(image.bos.begin(), image.bos.end(), [gpu_id](const kfd::BoEntry& bo) {
    return bo.gpu_id == gpu_id && kfd::has_contents(bo.alloc_flags) && !bo.imports;
  });
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

bool any_imports(const kfd::KfdImage& image) {
  return std::any_of(image.bos.begin(), image.bos.end(), [](const kfd::BoEntry& bo) { return bo.imports; });
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
  restorer->config_ = parse_config(environment_and_file(kConfigFile, lines), lines);
  log_lines(lines);
  SLUICE_TRY(restorer->survey_images());
  SLUICE_TRY_ASSIGN(restorer->lifeline_, Lifeline::make());
  if (!restorer->shared_numbers_.empty()) {
    SLUICE_TRY_ASSIGN(restorer->shared_, SharedTable::make(*restorer->shared_numbers_.rbegin()));
  }
  restorer->ask_record_bytes();
  if (restorer->config_.parallel && host_has_post_forking()) {
    auto server = ContentServer::make(restorer->config_, restorer->all_lanes());
    if (server) {
      restorer->server_ = std::move(*server);
    } else {
      log_line(Level::Warning, "tasks restore their GPU memory themselves: " + server.error().what);
    }
  }
  return restorer;
}

// What has to be known of all images before there is a task. What is wrong with one, the task that needs it
// will say; but images of two dumps are nobody's.
Result<void> Restorer::survey_images() {
  const auto names = kfd_images();
  if (!names) return {};
  for (const std::string& name : *names) {
    const auto payload = load_image(name);
    const auto image = payload ? unpack_kfd_image(*payload, name) : Result<kfd::KfdImage>(payload.error());
    if (!image) continue;
    SLUICE_TRY(same_dump_.add(name, image->dump_id));
    has_record_bytes_ = has_record_bytes_ || record_bytes_of(*image) != 0;
    if (const auto id = id_of_image(name); id && !image->alias_of) kfd_pids_.emplace(*id, image->pid);
    for (const kfd::BoEntry& bo : image->bos) {
      if (bo.shared != 0 && !bo.imports) shared_numbers_.insert(bo.shared);
    }
    for (const kfd::Node& gpu : image->topology.nodes) {
      if (!gpu.is_gpu() || !gpu_has_contents(*image, gpu.gpu_id)) continue;
      ++lanes_by_minor_[gpu.drm_render_minor];
      mapped_files_[{image->pid, gpu.drm_render_minor}].acquired = true;
    }
  }
  const auto render_names = render_images();
  if (!render_names) return {};
  for (const std::string& name : *render_names) {
    const auto payload = load_image(name);
    const auto image = payload ? unpack_render_image(*payload, name) : Result<RenderImage>(payload.error());
    if (!image) continue;
    SLUICE_TRY(same_dump_.add(name, image->dump_id));
    if (const auto id = id_of_image(name); id && image->pid) render_pids_.emplace(*id, *image->pid);
    for (const RenderBo& bo : image->bos) {
      if (bo.shared != 0 && !bo.imports) shared_numbers_.insert(bo.shared);
    }
    if (image->has_contents()) ++lanes_by_minor_[image->minor];
    if (!image->pid || !image->has_mappable_bos()) continue;
    MappedFiles& files = mapped_files_[{*image->pid, image->minor}];
    if (image->kfd_acquired.value_or(false)) {
      files.acquired = true;
    } else {
      ++files.others;
    }
  }
  const auto dmabuf_names = dmabuf_images();
  if (!dmabuf_names) return {};
  for (const std::string& name : *dmabuf_names) {
    const auto payload = load_image(name);
    const auto image = payload ? unpack_dmabuf_image(*payload, name) : Result<DmaBufImage>(payload.error());
    if (image) SLUICE_TRY(same_dump_.add(name, image->dump_id));
  }
  return {};
}

bool Restorer::maps_several_files(std::uint32_t pid, std::uint32_t source_minor) const {
  const auto files = mapped_files_.find({pid, source_minor});
  return files != mapped_files_.end() && files->second.others + (files->second.acquired ? 1 : 0) > 1;
}

// Makes the file when the first BO comes. The handles that it gets keep BOs for as long as anything is mapped
// through it: memory that the process frees meanwhile goes only then.
Result<void> Restorer::allow_in_common_file(std::uint32_t minor, int dmabuf) {
  UniqueFd& file = common_files_[minor];
  if (!file) {
    SLUICE_TRY_ASSIGN(file, open_high(minor));
  }
  SLUICE_TRY(drm::allow_map(file.get(), dmabuf));
  return {};
}

// A render node, at a number above all of the task's own.
Result<UniqueFd> Restorer::open_high(std::uint32_t minor) const {
  const std::string path = drm::Device::render_node(minor);
  const UniqueFd low(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!low) return make_error(errno, "open " + path + "; the container must have this device");
  UniqueFd high(fcntl(low.get(), F_DUPFD_CLOEXEC, std::max(first_unused_fd_, 0)));
  if (!high) return make_error(errno, "move " + path + " above the task's own fds");
  return high;
}

// Asks a kernel whose version does not tell it for the size of its BO records. In init(), where no task has
// been forked: this process' KFD process cannot RESTORE afterwards, and has no need to. Only where there is
// something to compare; without an answer the restore goes on unchecked.
void Restorer::ask_record_bytes() {
  if (!has_record_bytes_) return;
  const auto own = kfd::KfdDevice::open();
  if (!own || known_record_bytes(own->version().minor) != 0) return;
  const auto answer = [&]() -> Result<std::uint32_t> {
    SLUICE_TRY_ASSIGN(const kfd::Topology local, kfd::read_topology());
    const auto gpu = std::find_if(local.nodes.begin(), local.nodes.end(),
                                  [](const kfd::Node& node) { return node.is_gpu(); });
    if (gpu == local.nodes.end()) return make_error(ENODEV, "no GPU");
    const std::string path = drm::Device::render_node(gpu->drm_render_minor);
    const UniqueFd render(open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!render) return make_error(errno, "open " + path);
    return kfd::probe_bo_record_bytes(*own, gpu->gpu_id, render.get());
  }();
  if (answer) {
    asked_record_bytes_ = *answer;
  } else {
    log_line(Level::Warning, "cannot tell whether this kernel understands the image's private data (" +
                                 answer.error().what + "); if it does not, the restore will fail half-way");
  }
}

std::size_t Restorer::all_lanes() const {
  std::size_t lanes = 0;
  for (const auto& [minor, of_gpu] : lanes_by_minor_) lanes += of_gpu;
  return std::max<std::size_t>(lanes, 1);
}

void Restorer::start_server() {
  if (!server_) return;
  if (const auto started = server_->start(image_dir_fd()); !started)
    log_line(Level::Warning, "tasks restore their GPU memory themselves: " + started.error().what);
}

// Memory that several files have is made by one of them and imported by the rest, which may be restored
// first. So a task makes everything that is its to make before it waits for others: then nobody waits for
// ever.
Result<void> Restorer::make_all(std::uint32_t pid) {
  if (std::exchange(all_made_, true)) return {};
  meet(pid);
  SLUICE_TRY(read_map_runs());
  for (const auto& [id, its_pid] : kfd_pids_) {
    if (its_pid != pid) continue;
    SLUICE_TRY_ASSIGN(const auto payload, load_image(kfd_image_name(id)));
    SLUICE_TRY_ASSIGN(const kfd::KfdImage image, unpack_kfd_image(payload, kfd_image_name(id)));
    SLUICE_TRY_ASSIGN(const int fd, restore_kfd(image, id));
    made_[id].reset(fd);
  }
  for (const auto& [id, its_pid] : render_pids_) {
    if (its_pid != pid) continue;
    SLUICE_TRY_ASSIGN(const auto payload, load_image(render_image_name(id)));
    SLUICE_TRY_ASSIGN(const RenderImage image, unpack_render_image(payload, render_image_name(id)));
    SLUICE_TRY_ASSIGN(const int fd, restore_render(image, id));
    made_[id].reset(fd);
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
Result<void> Restorer::import_kfd_bos(const KfdImporting& process) {
  const kfd::KfdImage& image = process.image;
  SLUICE_TRY_ASSIGN(const kfd::PrivateData records, private_records(image));
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t> imports;  // by gpu_id and handle
  for (std::size_t i = 0; i < image.bos.size(); ++i) {
    if (image.bos[i].imports) imports.emplace(std::pair(image.bos[i].gpu_id, records.bo(i).handle), i);
  }
  kfd::BoImport kfd(process.file);
  for (const auto& import : imports) {
    const kfd::BoEntry& bo = image.bos[import.second];
    const kfd::PrivateData::BoRecord record = records.bo(import.second);
    const auto imported = [&]() -> Result<void> {
      SLUICE_TRY_ASSIGN(const UniqueFd dmabuf, take_shared(bo.shared));
      SLUICE_TRY(
          kfd.import({bo.addr, bo.bytes, bo.gpu_id, record.handle, record.mapped_gpu_ids}, dmabuf.get()));
      SLUICE_TRY_ASSIGN(const kfd::Node* gpu, local_gpu(bo.gpu_id));
      SLUICE_TRY_ASSIGN(const std::uint64_t offset, mmap_offset_of(gpu->drm_render_minor, dmabuf.get()));
      return note_kfd_bo(image, bo, offset, dmabuf.get());
    }();
    if (!imported) return explain(kfd_image_name(process.id), imported.error());
  }
  return {};
}

Result<UniqueFd> Restorer::take_shared(std::uint32_t number) {
  if (!shared_numbers_.contains(number)) return make_error(EBADMSG, "no image has the memory");
  return shared_->take(number, *lifeline_);
}

// Through a render file of our own, which forgets the BO again.
Result<std::uint64_t> Restorer::mmap_offset_of(std::uint32_t minor, int dmabuf) const {
  SLUICE_TRY_ASSIGN(const UniqueFd file, open_high(minor));
  SLUICE_TRY_ASSIGN(const std::uint32_t handle, drm::allow_map(file.get(), dmabuf));
  return drm::mmap_offset_of(file.get(), handle);
}

// A descriptor for a dma-buf that the process had open.
Result<int> Restorer::restore_dmabuf(const DmaBufImage& image) {
  if (image.pid && shared_) SLUICE_TRY(make_all(*image.pid));
  SLUICE_TRY_ASSIGN(UniqueFd dmabuf, take_shared(image.shared));
  return dmabuf.release();
}

Result<void> Restorer::publish(std::uint32_t number, int dmabuf) {
  if (number == 0) return {};
  if (!shared_) return make_error(EBADMSG, "shared memory that was not in the images at the beginning");
  return shared_->publish(number, dmabuf);
}

// To a number above all of the task's own, where it may stay while CRIU restores other files.
Result<UniqueFd> Restorer::make_high(UniqueFd file) const {
  if (first_unused_fd_ < 0 || file.get() >= first_unused_fd_) return file;
  UniqueFd high(fcntl(file.get(), F_DUPFD_CLOEXEC, first_unused_fd_));
  if (!high) return make_error(errno, "move a device file above the task's own fds");
  return high;
}

Result<Answer> Restorer::restore_file(int id) {
  if (!needed_) return Answer();
  if (shared_) {
    for (const auto* pids : {&kfd_pids_, &render_pids_}) {
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
    SLUICE_TRY_ASSIGN(const kfd::KfdImage image, unpack_kfd_image(*payload, name));
    SLUICE_TRY_ASSIGN(fd, restore_kfd(image, id));
    SLUICE_TRY(import_bos());
  } else if (is_render) {
    SLUICE_TRY_ASSIGN(const RenderImage image, unpack_render_image(*payload, name));
    SLUICE_TRY_ASSIGN(fd, restore_render(image, id));
    SLUICE_TRY(import_bos());
  } else {
    SLUICE_TRY_ASSIGN(const DmaBufImage image, unpack_dmabuf_image(*payload, name));
    SLUICE_TRY(same_dump_.add(name, image.dump_id));
    SLUICE_TRY_ASSIGN(fd, restore_dmabuf(image));
  }
  return Answer(fd);
}

// The restore of one KFD process, as a table of contents.
Result<int> Restorer::restore_kfd(const kfd::KfdImage& image, int id) {
  SLUICE_TRY_ASSIGN(kfd::KfdDevice own, kfd::KfdDevice::open());
  if (image.alias_of) {
    // Another open file of a KFD process that exists by now: files come in the order of their numbers.
    if (std::find(restored_ids_.begin(), restored_ids_.end(), static_cast<int>(*image.alias_of)) ==
        restored_ids_.end()) {
      return Error{EINVAL, kfd_image_name(id) + " belongs to file " + std::to_string(*image.alias_of) +
                               ", which this task has not restored"};
    }
    return std::move(own).take_fd().release();
  }
  meet(image.pid);
  SLUICE_TRY(read_map_runs());
  SLUICE_TRY(check_user_namespace());
  const std::uint32_t known = known_record_bytes(own.version().minor);
  SLUICE_TRY(check_private_data(image, known != 0 ? known : asked_record_bytes_));
  SLUICE_TRY(match_gpus(image));
  SLUICE_TRY_ASSIGN(const std::vector<kfd::RestoreDevice> devices, restore_devices(image));
  SLUICE_TRY_ASSIGN(std::vector<kfd::RestoredBo> restored, make_bos(own, image, devices));
  for (std::size_t i = 0; i < restored.size(); ++i) {
    const kfd::BoEntry& bo = image.bos[i];
    if (bo.imports) continue;
    SLUICE_TRY(note_kfd_bo(image, bo, restored[i].offset, restored[i].dmabuf.get()));
    SLUICE_TRY(publish(bo.shared, restored[i].dmabuf.get()));
  }
  SLUICE_TRY_ASSIGN(ContentRequest request, request_of(image, id, std::move(restored)));
  SLUICE_TRY(fill_contents(std::move(request)));
  if (image.shm.bytes != 0) SLUICE_TRY(kfd::restore_hsakmt_shm(image.shm));
  SLUICE_TRY_ASSIGN(UniqueFd file, make_high(std::move(own).take_fd()));
  if (any_imports(image)) kfd_importing_.push_back({id, file.get(), image});
  restored_ids_.push_back(id);
  restored_any_ = true;
  for (AcquiredFile& acquired : acquired_) {
    if (acquired.handed_out) acquired.file.reset();
  }
  return file.release();
}

// The task's pid, in its own namespace.
void Restorer::meet(std::uint32_t pid) {
  pid_ = pid;
  if (first_unused_fd_ < 0) first_unused_fd_ = first_unused_fd(static_cast<int>(pid));
}

Result<int> Restorer::restore_render(const RenderImage& image, int id) {
  if (image.pid) meet(*image.pid);
  if (!match_) SLUICE_TRY(match_gpus_by_any_image());
  SLUICE_TRY(read_map_runs());
  // The image of a file that no KFD process holds has the GPU's own id, not the one that processes know.
  const kfd::Node* source = match_ ? source_.find_render_minor(image.minor) : nullptr;
  SLUICE_TRY_ASSIGN(const kfd::Node* gpu,
                    match_ ? local_gpu(source != nullptr ? source->gpu_id : image.gpu_id) : same_gpu(image));
  const std::uint32_t minor = gpu->drm_render_minor;
  const bool acquired = match_ && image.kfd_acquired.value_or(true);
  UniqueFd file;
  if (acquired) {
    SLUICE_TRY_ASSIGN(file, hand_out(minor));
  } else {
    file.reset(open(drm::Device::render_node(minor).c_str(), O_RDWR | O_CLOEXEC));
    if (!file) return make_error(errno, "open " + drm::Device::render_node(minor));
  }
  SLUICE_TRY_ASSIGN(file, make_high(std::move(file)));
  Importing importing{id, file.get(), image, gpu, acquired, std::make_unique<drm::GemRestore>(file.get())};
  SLUICE_TRY(restore_bos(importing));
  restored_any_ = true;
  return file.release();
}

// The file that KFD uses shows KFD's maps, too: those of a BO that the file makes and KFD imports come with
// the import.
drm::GemBo Restorer::without_maps_of_kfd(const RenderBo& bo) const {
  drm::GemBo gem = bo.gem;
  for (const KfdImporting& process : kfd_importing_) {
    for (const kfd::BoEntry& import : process.image.bos) {
      if (!import.imports || import.shared != bo.shared) continue;
      std::erase_if(gem.mappings,
                    [&](const drm::GemMapping& mapping) { return mapping.address == import.addr; });
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
    return map_runs_.maps(bo.mmap_offset, bo.gem.bytes);
  });
  if (mapped && image.pid && maps_several_files(*image.pid, image.minor) && !host_takes_vma_fd()) {
    return Error{EINVAL, "a process maps renderD" + std::to_string(image.minor) +
                             " through several files, which this version of CRIU cannot bring back; 4.0 and "
                             "newer can"};
  }
  GpuContents contents = contents_on(*file.gpu, image.gpu_id, image.minor);
  contents.bo_table_digest = bo_table_digest(image.bos);
  contents.drm_minor = image.minor;
  bool imports = false;
  for (std::uint32_t i = 0; i < image.bos.size(); ++i) {
    const RenderBo& bo = image.bos[i];
    imports = imports || bo.imports;
    const auto made = [&]() -> Result<void> {
      if (bo.imports) return file.gem->reserve(bo.gem);
      SLUICE_TRY(file.gem->create(file.acquired ? without_maps_of_kfd(bo) : bo.gem));
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
  if (image.pid && maps_several_files(*image.pid, image.minor) &&
      map_runs_.maps(bo.mmap_offset, bo.gem.bytes))
    SLUICE_TRY(allow_in_common_file(file.gpu->drm_render_minor, dmabuf));
  offsets_.push_back(
      {false, image.minor, file.gpu->drm_render_minor, bo.mmap_offset, bo.gem.bytes, offset, file.id});
  return {};
}

GpuContents Restorer::contents_on(const kfd::Node& gpu, std::uint32_t user_gpu_id,
                                  std::uint32_t source_minor) const {
  GpuContents contents;
  contents.gpu_id = user_gpu_id;
  contents.render_minor = gpu.drm_render_minor;
  contents.numa_node = numa_node_of_render_minor(gpu.drm_render_minor);
  if (const auto lanes = lanes_by_minor_.find(source_minor); lanes != lanes_by_minor_.end())
    contents.sharers = lanes->second;
  return contents;
}

// Maps the image's GPUs to local ones, once per task. The local topology is the task's view: its device
// cgroup hides GPUs from sysfs and from KFD alike.
Result<void> Restorer::match_gpus(const kfd::KfdImage& image) {
  if (match_) return {};
  SLUICE_TRY_ASSIGN(local_, kfd::read_topology());
  kfd::MatchOutcome outcome = kfd::match_gpus(image.topology, local_, config_.match_rules);
  if (const auto* refusal = std::get_if<kfd::Refusal>(&outcome)) {
    log_text(Level::Error, refusal->text());
    return Error{ENODEV, "the image's GPUs cannot be matched to local ones (see the table above)"};
  }
  match_ = std::get<kfd::Match>(std::move(outcome));
  source_ = image.topology;
  return {};
}

// A render file may come before its KFD file. Every KFD image of a dump describes the same machine. No match
// where there is none: then the tree has render files only.
Result<void> Restorer::match_gpus_by_any_image() {
  SLUICE_TRY_ASSIGN(const std::vector<std::string> names, kfd_images());
  for (const std::string& name : names) {
    SLUICE_TRY_ASSIGN(const std::vector<std::uint8_t> payload, load_image(name));
    SLUICE_TRY_ASSIGN(const kfd::KfdImage image, unpack_kfd_image(payload, name));
    if (image.alias_of) continue;
    if (!pid_) meet(static_cast<std::uint32_t>(getpid()));
    return match_gpus(image);
  }
  return {};
}

// The GPU of a render file when no KFD process tells what the machine was like: the one of the same gpu_id,
// which is a hash over the GPU's place and size.
Result<const kfd::Node*> Restorer::same_gpu(const RenderImage& image) {
  SLUICE_TRY_ASSIGN(local_, kfd::read_topology());
  const kfd::Node* node = local_.find_gpu(image.gpu_id);
  if (node == nullptr) {
    return Error{ENODEV, "renderD" + std::to_string(image.minor) + " of the image belongs to GPU " +
                             std::to_string(image.gpu_id) +
                             ", which is not here, and without a KFD process the image does not say what it "
                             "was like, so no other can stand in for it"};
  }
  return node;
}

Result<const kfd::Node*> Restorer::local_gpu(std::uint32_t user_gpu_id) const {
  const auto ids =
      std::find_if(match_->gpus.begin(), match_->gpus.end(),
                   [&](const kfd::DeviceIds& candidate) { return candidate.user_gpu_id == user_gpu_id; });
  const kfd::Node* node = ids != match_->gpus.end() ? local_.find_gpu(ids->actual_gpu_id) : nullptr;
  if (node == nullptr)
    return Error{ENODEV, "no local GPU stands for GPU " + std::to_string(user_gpu_id) + " of the image"};
  return node;
}

Result<Restorer::AcquiredFile*> Restorer::acquire(std::uint32_t minor) {
  for (AcquiredFile& acquired : acquired_) {
    if (acquired.minor == minor) return &acquired;
  }
  SLUICE_TRY_ASSIGN(UniqueFd file, open_high(minor));
  acquired_.push_back({minor, std::move(file), false});
  return &acquired_.back();
}

// A descriptor of the acquired file for CRIU to take. Once KFD has the file, the task's descriptor will do
// for us, too, and ours goes with it: nothing of ours is left in the task.
Result<UniqueFd> Restorer::hand_out(std::uint32_t minor) {
  SLUICE_TRY_ASSIGN(AcquiredFile * acquired, acquire(minor));
  const bool kfd_has_it = !restored_ids_.empty();
  if (acquired->file && kfd_has_it) {
    acquired->handed_out = true;
    return std::move(acquired->file);
  }
  int source = acquired->file.get();
  if (source < 0) {
    SLUICE_TRY_ASSIGN(source, mapping_file(minor));
  }
  UniqueFd copy(fcntl(source, F_DUPFD_CLOEXEC, 0));
  if (!copy) return make_error(errno, "dup of " + drm::Device::render_node(minor));
  acquired->handed_out = true;
  return copy;
}

// A descriptor of this process, borrowed, for the acquired file: ours, or the task's own, which CRIU has
// moved to a number we were not told: it is the one that may map the GPU's BOs.
Result<int> Restorer::mapping_file(std::uint32_t minor) {
  SLUICE_TRY_ASSIGN(const AcquiredFile* acquired, acquire(minor));
  if (acquired->file) return acquired->file.get();
  const auto bo = std::find_if(offsets_.begin(), offsets_.end(), [&](const OffsetRange& range) {
    return !range.kfd && !range.render_id && range.minor == minor;
  });
  if (bo != offsets_.end()) return task_file_of(*bo);
  SLUICE_TRY_ASSIGN(const std::vector<int> descriptors,
                    kfd::device_descriptors(getpid(), kfd::render_node_device(minor)));
  if (!descriptors.empty()) return descriptors.front();
  return Error{EBADF, "no descriptor of the task is " + drm::Device::render_node(minor)};
}

// The task's own descriptor, borrowed, of a file that may map the BO.
Result<int> Restorer::task_file_of(const OffsetRange& bo) const {
  SLUICE_TRY_ASSIGN(const std::vector<int> descriptors,
                    kfd::device_descriptors(getpid(), kfd::render_node_device(bo.minor)));
  for (const int fd : descriptors) {
    const auto access = drm::may_map(fd, bo.new_begin);
    if (access && *access == drm::MapAccess::Allowed) return fd;
  }
  return Error{EBADF, "no descriptor of the task may map the BO at offset " + hex(bo.new_begin) + " of " +
                          drm::Device::render_node(bo.minor)};
}

// For UPDATE_VMA_MAP, which comes once for each of perhaps thousands of maps, when CRIU has moved all of the
// task's descriptors to their places: each file is looked for once.
Result<int> Restorer::map_source(const OffsetRange& bo) {
  if (const auto common = common_files_.find(bo.minor); common != common_files_.end())
    return common->second.get();
  int* known = nullptr;
  if (bo.render_id) {
    known = &render_fds_.emplace(*bo.render_id, -1).first->second;
  } else {
    SLUICE_TRY_ASSIGN(AcquiredFile * acquired, acquire(bo.minor));
    if (acquired->file) return acquired->file.get();
    known = &acquired->task_fd;
  }
  if (*known < 0) {
    SLUICE_TRY_ASSIGN(*known, task_file_of(bo));
  }
  return *known;
}

Result<std::vector<kfd::RestoreDevice>> Restorer::restore_devices(const kfd::KfdImage& image) {
  std::vector<kfd::RestoreDevice> devices;
  for (const kfd::Node& source : image.topology.nodes) {
    if (!source.is_gpu()) continue;
    SLUICE_TRY_ASSIGN(const kfd::Node* gpu, local_gpu(source.gpu_id));
    SLUICE_TRY_ASSIGN(const AcquiredFile* acquired, acquire(gpu->drm_render_minor));
    devices.push_back({source.gpu_id, gpu->gpu_id, acquired->file.get()});
  }
  // The kernel wants to hear of every GPU that the task sees.
  for (const kfd::Node& node : local_.nodes) {
    const bool is_named = std::any_of(devices.begin(), devices.end(), [&](const kfd::RestoreDevice& device) {
      return device.actual_gpu_id == node.gpu_id;
    });
    if (!node.is_gpu() || is_named) continue;
    SLUICE_TRY_ASSIGN(const AcquiredFile* acquired, acquire(node.drm_render_minor));
    devices.push_back({free_gpu_id(devices, node.gpu_id), node.gpu_id, acquired->file.get()});
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
  SLUICE_TRY_ASSIGN(const kfd::Node* gpu, local_gpu(bo.gpu_id));
  const bool in_kfd = (bo.alloc_flags & (kfd::kAllocDoorbell | kfd::kAllocMmioRemap)) != 0;
  if (!in_kfd && !kfd::has_contents(bo.alloc_flags)) return {};  // userptr: ordinary memory to the CPU
  offsets_.push_back(
      {in_kfd, source_minor, gpu->drm_render_minor, bo.offset, bo.bytes, new_offset, std::nullopt});
  if (in_kfd || !maps_several_files(image.pid, source_minor) || !map_runs_.maps(bo.offset, bo.bytes))
    return {};
  return allow_in_common_file(gpu->drm_render_minor, dmabuf);
}

Result<ContentRequest> Restorer::request_of(const kfd::KfdImage& image, int id,
                                            std::vector<kfd::RestoredBo> restored) const {
  ContentRequest request{id, image.dump_id.value_or(DumpId{}), {}};
  for (const kfd::Node& source : image.topology.nodes) {
    if (!source.is_gpu()) continue;
    SLUICE_TRY_ASSIGN(const kfd::Node* gpu, local_gpu(source.gpu_id));
    GpuContents contents = contents_on(*gpu, source.gpu_id, source.drm_render_minor);
    contents.bo_table_digest = bo_table_digest(image.bos, source.gpu_id);
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

Result<void> Restorer::fill_in_task(ContentRequest request) {
  const std::int64_t began_ns = monotonic_ns();
  SharedByJobs shared;
  shared.lanes = all_lanes();
  SLUICE_TRY_ASSIGN(const std::unique_ptr<ContentsJob> job,
                    ContentsJob::restore(image_dir_fd(), request.id, std::move(request.gpus), config_,
                                         request.dump_id, shared));
  job->begin();
  const Result<void> done = job->wait(log_progress);
  log_lines(job->take_log_lines());
  SLUICE_TRY(done);
  write_stats(Direction::Restore, request.id, {began_ns, began_ns, monotonic_ns()}, job->outcomes(), config_);
  return {};
}

Result<Answer> Restorer::update_map(const char* path, std::uint64_t address, std::uint64_t old_offset,
                                    std::uint64_t& new_offset, int& fd) {
  if (!needed_ || !restored_any_) return Answer();
  Result<Answer> answer = find_map(path, address, old_offset, new_offset, fd);
  if (map_runs_.is_last(address)) close_kept_files();
  return answer;
}

Result<Answer> Restorer::find_map(const char* path, std::uint64_t address, std::uint64_t old_offset,
                                  std::uint64_t& new_offset, int& fd) {
  const std::string clean = without_doubled_slashes(path);
  const bool in_kfd = clean == kfd::kDevicePath;
  const std::optional<std::uint32_t> minor = render_minor_of(clean);
  if (!in_kfd && !minor) return Answer();
  // The signal page of events has the same offset on every machine.
  if (in_kfd && kfd::decode_mmap_offset(old_offset).type == kfd::MmapType::Events) return Answer();

  const auto range = std::find_if(offsets_.begin(), offsets_.end(), [&](const OffsetRange& candidate) {
    return candidate.kfd == in_kfd && (in_kfd || candidate.source_minor == *minor) &&
           old_offset >= candidate.old_begin && old_offset - candidate.old_begin < candidate.bytes;
  });
  if (range == offsets_.end()) {
    if (map_runs_.is_first(address)) fd = eventfd(0, EFD_CLOEXEC);
    new_offset = kNoOffset;
    log_line(Level::Error, "UPDATE_VMA_MAP: the map of " + clean + " at " + hex(address) + ", offset " +
                               hex(old_offset) + " belongs to no restored BO; the restore will fail");
    return Answer(1);
  }
  new_offset = range->new_begin + (old_offset - range->old_begin);
  // CRIU opens /dev/kfd itself: any file of the process may map these.
  if (!in_kfd && map_runs_.is_first(address)) {
    SLUICE_TRY_ASSIGN(const int file, map_source(*range));
    SLUICE_TRY_ASSIGN(fd, give_away(file));
  }
  return Answer(1);
}

// A descriptor for the host. Older hosts dup what they get; newer ones take it, and would close the same
// number twice.
Result<int> Restorer::give_away(int file) const {
  if (!host_takes_vma_fd()) return file;
  const int copy = fcntl(file, F_DUPFD_CLOEXEC, std::max(first_unused_fd_, 0));
  if (copy < 0) return make_error(errno, "dup of a render file to map through");
  return copy;
}

// Once in a task. Where it has no such image, or one of a form that is not known, every map counts as the
// first of a run, and none as the last: descriptors of ours stay in the task then. One that cannot be read
// fails the restore, and does so here: the host ignores what UPDATE_VMA_MAP answers.
Result<void> Restorer::read_map_runs() {
  if (std::exchange(map_runs_read_, true)) return {};
  auto runs = !pid_         ? Result<MapRuns>(Error{ENOENT, "no image of the task's memory"})
              : streaming() ? map_runs_of_stream(*pid_)
                            : MapRuns::read(image_dir_fd(), *pid_);
  if (runs) {
    map_runs_ = std::move(*runs);
  } else if (runs.error().err == ENOENT || runs.error().err == EPROTONOSUPPORT) {
    log_line(Level::Info, "descriptors of GPU maps stay in the task: " + runs.error().what);
  } else {
    return std::move(runs).error();
  }
  return {};
}

// Nobody asks for maps any more. What an older host has been given just now, it dups only after this.
void Restorer::close_kept_files() {
  if (!host_takes_vma_fd()) return;
  common_files_.clear();
  for (AcquiredFile& acquired : acquired_) acquired.file.reset();
}

Result<Answer> Restorer::resume(int pid) {
  if (!needed_ || kfd_device_ == 0) return Answer();
  if (tree_killed_) {  // why was said
    (void)kill(pid, SIGKILL);
    return Answer(-ECANCELED);
  }
  Result<kfd::ResumeOutcome> outcome = Error{ENOMEM, "out of memory"};
  try {
    outcome = resume_process(pid);
  } catch (const std::bad_alloc&) {  // no way out of here may let the tree run
  }
  if (!outcome) {
    tree_killed_ = true;
    if (tree_) tree_->kill();
    (void)kill(pid, SIGKILL);
    return Error{outcome.error().err,
                 outcome.error().what + " (all processes of the tree were killed: none must run)"};
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
  }
  SLUICE_TRY_ASSIGN(const kfd::KfdDevice own, kfd::KfdDevice::open());
  SLUICE_TRY_ASSIGN(const kfd::ResumeOutcome outcome, kfd::resume(own, pid));
  tree_->ready(pid);
  return outcome;
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

Result<void> Restorer::finish() {
  if (!server_ || joined_) return {};
  server_->cancel();  // nothing is left to wait for: whatever was needed, resume() would have joined
  Result<void> joined = join_server();
  if (!joined && joined.error().err == ECANCELED) return {};
  return joined;
}

}  // namespace sluice::plugin
