// SPDX-License-Identifier: MIT
#include "plugin/restore.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdio>

#include "drm/device.h"
#include "drm/target_file.h"
#include "kfd/processes.h"
#include "kfd/uapi.h"
#include "plugin/image_files.h"
#include "plugin/machine.h"
#include "plugin/stats.h"

namespace sluice::plugin {

namespace {

constexpr unsigned kDrmMajor = 226;
constexpr std::string_view kRenderPrefix = "/dev/dri/renderD";

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
    return bo.gpu_id == gpu_id && kfd::has_contents(bo.alloc_flags);
  });
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
  restorer->survey_images();
  restorer->ask_record_bytes();
  if (restorer->config_.parallel && host_has_post_forking()) {
    SLUICE_TRY_ASSIGN(restorer->server_, ContentServer::make(restorer->config_, restorer->all_lanes()));
  }
  return restorer;
}

// What has to be known of all images before there is a task. What is wrong with one, the task that needs it
// will say.
void Restorer::survey_images() {
  if (streaming()) return;
  const auto names = list_kfd_images(image_dir_fd());
  if (!names) return;
  for (const std::string& name : *names) {
    const auto payload = read_image(image_dir_fd(), name);
    const auto image = payload ? unpack_kfd_image(*payload, name) : Result<kfd::KfdImage>(payload.error());
    if (!image) continue;
    has_record_bytes_ = has_record_bytes_ || record_bytes_of(*image) != 0;
    for (const kfd::Node& gpu : image->topology.nodes) {
      if (gpu.is_gpu() && gpu_has_contents(*image, gpu.gpu_id)) ++lanes_by_minor_[gpu.drm_render_minor];
    }
  }
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

Result<void> Restorer::start_server() {
  if (!server_) return {};
  SLUICE_TRY(server_->start(image_dir_fd()));
  return {};
}

Result<Answer> Restorer::restore_file(int id) {
  if (!needed_) return Answer();
  std::string name = kfd_image_name(id);
  auto payload = read_image(image_dir_fd(), name);
  const bool is_kfd = payload.ok() || payload.error().err != ENOENT;
  if (!is_kfd) {
    name = render_image_name(id);
    payload = read_image(image_dir_fd(), name);
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
  } else {
    SLUICE_TRY_ASSIGN(const RenderImage image, unpack_render_image(*payload, name));
    SLUICE_TRY_ASSIGN(fd, restore_render(image));
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
  if (first_unused_fd_ < 0) first_unused_fd_ = first_unused_fd(static_cast<int>(image.pid));
  SLUICE_TRY(check_user_namespace());
  const std::uint32_t known = known_record_bytes(own.version().minor);
  SLUICE_TRY(check_private_data(image, known != 0 ? known : asked_record_bytes_));
  SLUICE_TRY(match_gpus(image));
  SLUICE_TRY_ASSIGN(const std::vector<kfd::RestoreDevice> devices, restore_devices(image));
  std::vector<kfd::RestoreBo> bos;
  for (const kfd::BoEntry& bo : image.bos)
    bos.push_back({bo.addr, bo.bytes, bo.offset, bo.gpu_id, bo.alloc_flags});
  SLUICE_TRY_ASSIGN(std::vector<kfd::RestoredBo> restored,
                    kfd::restore(own, devices, bos, image.num_objects, image.priv_data));
  SLUICE_TRY(note_offsets(image, restored));
  SLUICE_TRY(fill_contents(image, id, std::move(restored)));
  if (image.shm.bytes != 0) SLUICE_TRY(kfd::restore_hsakmt_shm(image.shm));
  restored_ids_.push_back(id);
  for (AcquiredFile& acquired : acquired_) {
    if (acquired.handed_out) acquired.file.reset();
  }
  return std::move(own).take_fd().release();
}

Result<int> Restorer::restore_render(const RenderImage& image) {
  if (image.num_bos != 0) {
    return Error{EINVAL, "renderD" + std::to_string(image.minor) + " of the image has " +
                             std::to_string(image.num_bos) +
                             " BOs of its own; BOs of render nodes are not supported yet"};
  }
  if (!match_) SLUICE_TRY(match_gpus_by_any_image());
  SLUICE_TRY_ASSIGN(const kfd::Node* gpu, match_ ? local_gpu(image.gpu_id) : same_gpu(image));
  const std::uint32_t minor = gpu->drm_render_minor;
  if (match_ && image.kfd_acquired.value_or(true)) {
    SLUICE_TRY_ASSIGN(UniqueFd acquired, hand_out(minor));
    return acquired.release();
  }
  UniqueFd fresh(open(drm::Device::render_node(minor).c_str(), O_RDWR | O_CLOEXEC));
  if (!fresh) return make_error(errno, "open " + drm::Device::render_node(minor));
  return fresh.release();
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
  return {};
}

// A render file may come before its KFD file. Every KFD image of a dump describes the same machine. No match
// where there is none: then the tree has render files only.
Result<void> Restorer::match_gpus_by_any_image() {
  SLUICE_TRY_ASSIGN(const std::vector<std::string> names, list_kfd_images(image_dir_fd()));
  for (const std::string& name : names) {
    SLUICE_TRY_ASSIGN(const std::vector<std::uint8_t> payload, read_image(image_dir_fd(), name));
    SLUICE_TRY_ASSIGN(const kfd::KfdImage image, unpack_kfd_image(payload, name));
    if (image.alias_of) continue;
    if (first_unused_fd_ < 0) first_unused_fd_ = first_unused_fd(static_cast<int>(image.pid));
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
  const std::string path = drm::Device::render_node(minor);
  const UniqueFd low(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!low) return make_error(errno, "open " + path + "; the container must have this device");
  UniqueFd high(fcntl(low.get(), F_DUPFD_CLOEXEC, std::max(first_unused_fd_, 0)));
  if (!high) return make_error(errno, "move " + path + " above the task's own fds");
  acquired_.push_back({minor, std::move(high), false});
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
  const auto bo = std::find_if(offsets_.begin(), offsets_.end(),
                               [&](const OffsetRange& range) { return !range.kfd && range.minor == minor; });
  SLUICE_TRY_ASSIGN(const std::vector<int> descriptors,
                    kfd::device_descriptors(getpid(), makedev(kDrmMajor, minor)));
  for (const int fd : descriptors) {
    if (bo == offsets_.end()) return fd;
    const auto access = drm::may_map(fd, bo->new_begin);
    if (access && *access == drm::MapAccess::Allowed) return fd;
  }
  return Error{EBADF, "no descriptor of the task may map the BOs of " + drm::Device::render_node(minor)};
}

// mapping_file() for UPDATE_VMA_MAP, which comes once for each of perhaps thousands of maps, when CRIU has
// moved all of the task's descriptors to their places: looked for once.
Result<int> Restorer::map_source(std::uint32_t minor) {
  SLUICE_TRY_ASSIGN(AcquiredFile * acquired, acquire(minor));
  if (acquired->file) return acquired->file.get();
  if (acquired->task_fd < 0) {
    SLUICE_TRY_ASSIGN(acquired->task_fd, mapping_file(minor));
  }
  return acquired->task_fd;
}

Result<std::vector<kfd::RestoreDevice>> Restorer::restore_devices(const kfd::KfdImage& image) {
  std::vector<kfd::RestoreDevice> devices;
  for (const kfd::Node& source : image.topology.nodes) {
    if (!source.is_gpu()) continue;
    SLUICE_TRY_ASSIGN(const kfd::Node* gpu, local_gpu(source.gpu_id));
    SLUICE_TRY_ASSIGN(const AcquiredFile* acquired, acquire(gpu->drm_render_minor));
    devices.push_back({source.gpu_id, gpu->gpu_id, acquired->file.get()});
  }
  return devices;
}

Result<void> Restorer::note_offsets(const kfd::KfdImage& image,
                                    const std::vector<kfd::RestoredBo>& restored) {
  for (std::size_t i = 0; i < image.bos.size(); ++i) {
    const kfd::BoEntry& bo = image.bos[i];
    const kfd::Node* source = image.topology.find_gpu(bo.gpu_id);
    SLUICE_TRY_ASSIGN(const kfd::Node* gpu, local_gpu(bo.gpu_id));
    const bool in_kfd = (bo.alloc_flags & (kfd::kAllocDoorbell | kfd::kAllocMmioRemap)) != 0;
    if (!in_kfd && !kfd::has_contents(bo.alloc_flags)) continue;  // userptr: ordinary memory to the CPU
    offsets_.push_back(
        {in_kfd, source->drm_render_minor, gpu->drm_render_minor, bo.offset, bo.bytes, restored[i].offset});
  }
  return {};
}

// Hands the BOs to the content server, or fills them here when there is none or it does not answer.
Result<void> Restorer::fill_contents(const kfd::KfdImage& image, int id,
                                     std::vector<kfd::RestoredBo> restored) {
  ContentRequest request{id, image.dump_id.value_or(DumpId{}), {}};
  for (const kfd::Node& source : image.topology.nodes) {
    if (!source.is_gpu()) continue;
    SLUICE_TRY_ASSIGN(const kfd::Node* gpu, local_gpu(source.gpu_id));
    GpuContents contents;
    contents.gpu_id = source.gpu_id;
    contents.render_minor = gpu->drm_render_minor;
    contents.numa_node = numa_node_of_render_minor(gpu->drm_render_minor);
    contents.bo_table_digest = bo_table_digest(image.bos, source.gpu_id);
    if (const auto lanes = lanes_by_minor_.find(source.drm_render_minor); lanes != lanes_by_minor_.end())
      contents.sharers = lanes->second;
    for (std::size_t i = 0; i < image.bos.size(); ++i) {
      if (image.bos[i].gpu_id == source.gpu_id && kfd::has_contents(image.bos[i].alloc_flags)) {
        contents.bos.push_back({image.bos[i].bytes, image.bos[i].addr, std::move(restored[i].dmabuf)});
      }
    }
    if (!contents.bos.empty()) request.gpus.push_back(std::move(contents));
  }
  if (request.gpus.empty()) return {};
  if (server_) {
    const UniqueFd socket(fdstore_get(server_->fdstore_id()));
    const Result<void> handed = socket
                                    ? hand_over(socket.get(), request)
                                    : Result<void>(make_error(EBADF, "get the socket from CRIU's fdstore"));
    if (handed) return {};
    log_line(Level::Warning, "file " + std::to_string(id) +
                                 ": the content server did not take the GPU memory (" + handed.error().what +
                                 "); this task restores it itself");
  }
  return fill_in_task(id, std::move(request.gpus), image.dump_id.value_or(DumpId{}));
}

Result<void> Restorer::fill_in_task(int id, std::vector<GpuContents> contents, const DumpId& dump_id) {
  const std::int64_t began_ns = monotonic_ns();
  SharedByJobs shared;
  shared.lanes = all_lanes();
  SLUICE_TRY_ASSIGN(const std::unique_ptr<ContentsJob> job,
                    ContentsJob::restore(image_dir_fd(), id, std::move(contents), config_, dump_id, shared));
  const Result<void> done = job->wait(log_progress);
  log_lines(job->take_log_lines());
  SLUICE_TRY(done);
  write_stats(Direction::Restore, id, {began_ns, began_ns, monotonic_ns()}, job->outcomes());
  return {};
}

Result<Answer> Restorer::update_map(const char* path, std::uint64_t address, std::uint64_t old_offset,
                                    std::uint64_t& new_offset, int& fd) {
  if (!needed_ || restored_ids_.empty()) return Answer();
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
    fd = eventfd(0, EFD_CLOEXEC);
    new_offset = old_offset;
    log_line(Level::Error, "UPDATE_VMA_MAP: the map of " + clean + " at " + hex(address) + ", offset " +
                               hex(old_offset) + " belongs to no restored BO; the restore will fail");
    return Answer(1);
  }
  new_offset = range->new_begin + (old_offset - range->old_begin);
  if (in_kfd) return Answer(1);  // CRIU opens /dev/kfd itself: any file of the process may map these
  SLUICE_TRY_ASSIGN(const int file, map_source(range->minor));
  // Older hosts dup what they get; newer ones take it, and would close the same number twice.
  fd = host_takes_vma_fd() ? fcntl(file, F_DUPFD_CLOEXEC, std::max(first_unused_fd_, 0)) : file;
  if (fd < 0) return make_error(errno, "dup of " + drm::Device::render_node(range->minor));
  return Answer(1);
}

Result<Answer> Restorer::resume(int pid) {
  if (!needed_ || kfd_device_ == 0) return Answer();
  const auto outcome = [&]() -> Result<kfd::ResumeOutcome> {
    SLUICE_TRY(join_server());
    SLUICE_TRY_ASSIGN(const kfd::KfdDevice own, kfd::KfdDevice::open());
    return kfd::resume(own, pid);
  }();
  if (!outcome) {
    (void)kill(pid, SIGKILL);
    return Error{outcome.error().err,
                 outcome.error().what + " (process " + std::to_string(pid) + " was killed: it must not run)"};
  }
  if (*outcome == kfd::ResumeOutcome::NotGpuProcess) return Answer();
  return Answer(0);
}

Result<void> Restorer::join_server() {
  if (!server_) return {};
  joined_ = true;
  Result<void> joined = server_->join(log_progress);
  log_lines(server_->take_log_lines());
  if (joined) {
    for (const ContentServer::Finished& file : server_->take_finished()) {
      write_stats(Direction::Restore, file.id, file.times, file.gpus);
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
