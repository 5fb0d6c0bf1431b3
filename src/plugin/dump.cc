// SPDX-License-Identifier: MIT
#include "plugin/dump.h"

#include <fcntl.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <iterator>
#include <map>

#include "drm/target_file.h"
#include "kfd/image.h"
#include "kfd/mapped_files.h"
#include "kfd/processes.h"
#include "kfd/uapi.h"
#include "plugin/image_files.h"
#include "plugin/machine.h"
#include "plugin/metadata.h"
#include "plugin/stats.h"

namespace sluice::plugin {

namespace {

std::string kernel_release() {
  utsname names{};
  return uname(&names) == 0 ? names.release : "";
}

Result<UniqueFd> duplicate(int fd) {
  UniqueFd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) return make_error(errno, "dup of the target's fd");
  return copy;
}

std::vector<kfd::BoEntry> bo_entries(const kfd::Checkpoint& checkpoint) {
  std::vector<kfd::BoEntry> bos;
  bos.reserve(checkpoint.bos.size());
  for (const kfd::CheckpointBo& bo : checkpoint.bos) {
    bos.push_back({bo.addr, bo.bytes, bo.offset, bo.alloc_flags, bo.gpu_id});
  }
  return bos;
}

// The processes of the tree that hold the open file behind `fd`.
Result<std::vector<pid_t>> holding_processes(int fd, dev_t device) {
  SLUICE_TRY_ASSIGN(const std::vector<kfd::FileHolder> holders, kfd::holders_of(fd, device));
  std::vector<pid_t> pids;
  pids.reserve(holders.size());
  for (const kfd::FileHolder& holder : holders) pids.push_back(holder.pid);
  pids.erase(std::unique(pids.begin(), pids.end()), pids.end());  // they come sorted by pid
  return pids;
}

constexpr unsigned kDrmMajor = 226;

Error unlisted_bo(pid_t pid, const kfd::DeviceMap& map) {
  return Error{EINVAL, "process " + std::to_string(pid) + " maps at " + hex(map.address) +
                           " a BO of renderD" + std::to_string(minor(map.device)) +
                           " that the KFD does not know; BOs allocated or imported through a render node are "
                           "not supported yet"};
}

// Kernels before 7.2 do not list the BOs of a render node. Those that are mapped show.
Result<void> check_render_maps(const kfd::Checkpoint& checkpoint, const kfd::Topology& topology,
                               const std::vector<pid_t>& holders) {
  std::map<std::uint64_t, std::uint64_t> ends;  // of the KFD's BOs, by mmap offset
  for (const kfd::CheckpointBo& bo : checkpoint.bos) ends.emplace(bo.offset, bo.offset + bo.bytes);
  for (const pid_t pid : holders) {
    SLUICE_TRY_ASSIGN(const std::vector<kfd::DeviceMap> maps, kfd::device_maps(pid));
    for (const kfd::DeviceMap& map : maps) {
      if (major(map.device) != kDrmMajor || topology.find_render_minor(minor(map.device)) == nullptr)
        continue;
      const auto after = ends.upper_bound(map.offset);
      if (after == ends.begin() || std::prev(after)->second <= map.offset) return unlisted_bo(pid, map);
    }
  }
  return {};
}

// The same for a process without a KFD file: whatever it maps of a render node is that node's own.
Result<void> check_render_maps_without_kfd(int fd, std::uint32_t render_minor, dev_t kfd_device) {
  const dev_t device = makedev(kDrmMajor, render_minor);
  SLUICE_TRY_ASSIGN(const std::vector<pid_t> holders, holding_processes(fd, device));
  for (const pid_t pid : holders) {
    SLUICE_TRY_ASSIGN(const std::vector<int> descriptors, kfd::device_descriptors(pid, kfd_device));
    if (!descriptors.empty()) continue;
    SLUICE_TRY_ASSIGN(const std::vector<kfd::DeviceMap> maps, kfd::device_maps(pid));
    for (const kfd::DeviceMap& map : maps) {
      if (map.device == device) return unlisted_bo(pid, map);
    }
  }
  return {};
}

// CRIU restores a file in the process of the lowest pid that holds it, and the KFD process becomes that
// one's. `owner`: the process that opened it, as PROCESS_INFO says, in its own pid namespace.
Result<void> check_owner(pid_t owner, int id, const std::vector<pid_t>& holders) {
  std::optional<pid_t> lowest;
  for (const pid_t holder : holders) {
    const auto pid = kfd::innermost_pid(holder);
    if (!pid) return {};  // an old kernel does not say
    lowest = std::min(lowest.value_or(*pid), *pid);
  }
  if (!lowest || lowest == owner) return {};
  return Error{EINVAL, "file " + std::to_string(id) + " of /dev/kfd was opened by process " +
                           std::to_string(owner) + " and would be restored in process " +
                           std::to_string(*lowest) +
                           ", which has inherited it; that is not supported: the process that opened it must "
                           "keep it, and have the lowest pid of all that hold it"};
}

}  // namespace

Result<std::unique_ptr<Dumper>> Dumper::make(RunStage stage) {
  std::unique_ptr<Dumper> dumper(new Dumper(stage));
  const auto kfd_device = kfd::kfd_device_number();
  if (!kfd_device) return dumper;  // no KFD: nothing is ours, and nothing is said
  dumper->kfd_device_ = *kfd_device;
  LogLines lines;
  dumper->config_ = parse_config(environment_and_file(kConfigFile, lines), lines);
  log_lines(lines);
  // A topology that cannot be read fails the dump of a GPU process, not that of every other process.
  if (auto topology = kfd::read_topology()) {
    dumper->topology_ = std::move(*topology);
  } else {
    dumper->topology_error_ = topology.error().what;
  }
  dumper->dump_id_ = random_dump_id();
  return dumper;
}

Dumper::~Dumper() = default;

Result<Answer> Dumper::accept_map(const struct stat& st) {
  if (kfd_device_ == 0) return Answer();
  const kfd::FileClass file = kfd::classify_device(st.st_mode, st.st_rdev, kfd_device_);
  const bool ours =
      file.kind == kfd::FileKind::Kfd ||
      (file.kind == kfd::FileKind::RenderNode && topology_.find_render_minor(file.render_minor) != nullptr);
  if (!ours) return Answer();
  if (file.kind == kfd::FileKind::Kfd) SLUICE_TRY(check_kfd_maps());
  note_in_inventory();
  return Answer(0);
}

// CRIU names no process here, but all of the tree stand still and are traced by now, so once is enough. A map
// without a descriptor would pass unseen otherwise: no DUMP_EXT_FILE ever comes for it.
Result<void> Dumper::check_kfd_maps() {
  if (stage_ != kStageDump || std::exchange(kfd_maps_checked_, true)) return {};
  SLUICE_TRY_ASSIGN(const std::vector<pid_t> pids, kfd::traced_processes());
  for (const pid_t pid : pids) {
    SLUICE_TRY_ASSIGN(const std::vector<kfd::MappedFile> files, kfd::mapped_files(pid));
    const bool maps_kfd = std::any_of(
        files.begin(), files.end(), [&](const kfd::MappedFile& file) { return file.device == kfd_device_; });
    if (!maps_kfd) continue;
    SLUICE_TRY_ASSIGN(const std::vector<int> descriptors, kfd::device_descriptors(pid, kfd_device_));
    if (descriptors.empty()) {
      return Error{EINVAL, "process " + std::to_string(pid) +
                               " maps /dev/kfd but has no descriptor of it: what it has in the GPUs cannot "
                               "be reached; it must keep /dev/kfd open"};
    }
  }
  return {};
}

// Once per image: CRIU does not look for doubles, and a double makes every restore fail.
void Dumper::note_in_inventory() {
  if (stage_ == kStageDump && !std::exchange(in_inventory_, true)) inventory_add_self();
}

Result<Answer> Dumper::dump_file(int fd, int id) {
  if (kfd_device_ == 0) return Answer();
  SLUICE_TRY_ASSIGN(const kfd::FileClass file, kfd::classify_fd(fd, kfd_device_));
  if (file.kind == kfd::FileKind::Kfd) {
    note_in_inventory();
    SLUICE_TRY(dump_kfd(fd, id));
    return Answer(0);
  }
  if (file.kind == kfd::FileKind::RenderNode && drm::is_amdgpu(fd)) {
    note_in_inventory();
    SLUICE_TRY(dump_render(fd, id, file.render_minor));
    return Answer(0);
  }
  if (file.kind == kfd::FileKind::DmaBuf) {
    log_line(Level::Warning, "file " + std::to_string(id) +
                                 " is a dma-buf: GPU memory shared by dma-buf is not supported yet");
  }
  return Answer();
}

Result<void> Dumper::dump_kfd(int fd, int id) {
  if (streaming()) return Error{EINVAL, "GPU processes cannot be streamed yet; dump without --stream"};
  if (!topology_error_.empty()) return Error{EIO, topology_error_};
  SLUICE_TRY(remove_stale());
  SLUICE_TRY_ASSIGN(const kfd::KfdDevice own, kfd::KfdDevice::open());  // the version gate
  kfd_minor_version_ = own.version().minor;

  SLUICE_TRY_ASSIGN(std::vector<pid_t> holders, holding_processes(fd, kfd_device_));
  SLUICE_TRY_ASSIGN(const KfdFile* same, find_alias(fd, holders));
  if (same != nullptr) {
    kfd::KfdImage alias;
    alias.alias_of = static_cast<std::uint32_t>(same->id);
    alias.dump_id = dump_id_;
    images_.insert(images_.begin(), kfd_image_name(id));
    SLUICE_TRY(write_image(image_dir_fd(), kfd_image_name(id), kfd::encode_kfd_image(alias), config_.sync));
    return {};
  }

  SLUICE_TRY_ASSIGN(UniqueFd file, duplicate(fd));
  const std::string name = holders.empty() ? "the process of file " + std::to_string(id)
                                           : "process " + std::to_string(holders.front());
  kfd::CriuSession& session = sessions_.open_session(std::move(file), name);
  SLUICE_TRY(dump_process(session, id, holders));
  kfd_files_.push_back({id, std::move(holders), &session});
  return {};
}

// A KFD process is the unit, not the file: a process that opens /dev/kfd twice has one, and a second
// PROCESS_INFO would stop its queues for ever. The file through which the KFD process of `fd` was dumped, or
// null when it runs. What could not be restored is refused: in a restored task every file of /dev/kfd that it
// opens itself belongs to one KFD process, its own.
Result<const Dumper::KfdFile*> Dumper::find_alias(int fd, const std::vector<pid_t>& holders) const {
  const auto refusal = [&] {
    return Error{EINVAL,
                 "of the files of /dev/kfd that " +
                     (holders.empty() ? "a process" : "process " + std::to_string(holders.front())) +
                     " holds, one was inherited through a fork; that is not supported yet where there "
                     "are several"};
  };
  const KfdFile* same = nullptr;
  bool runs = true;
  for (const KfdFile& file : kfd_files_) {
    SLUICE_TRY_ASSIGN(const bool is_same, file.session->same_process(fd));
    if (is_same) runs = false;
    const bool shares = std::find_first_of(holders.begin(), holders.end(), file.holders.begin(),
                                           file.holders.end()) != holders.end();
    if (!shares) continue;  // processes that are alike have the same counts
    if (!is_same || holders.size() != 1 || file.holders.size() != 1) return refusal();
    same = &file;
  }
  if (same == nullptr && !runs) return refusal();
  return same;
}

// The dump of one KFD process, as a table of contents.
Result<void> Dumper::dump_process(kfd::CriuSession& session, int id, const std::vector<pid_t>& holders) {
  const auto began = std::chrono::steady_clock::now();
  const auto answer = session.process_info();
  if (!answer && answer.error().err == EBADF) {
    return Error{EBADF, "file " + std::to_string(id) +
                            " of /dev/kfd was opened by a process that is gone or not part of this dump, and "
                            "inherited: " +
                            session.name() + " must close it (" + answer.error().what + ")"};
  }
  if (!answer) return answer.error();
  if (session.found_paused()) {
    log_line(Level::Warning, session.name() + ": an older dump was killed and had left its queues paused");
  }
  const kfd::ProcessInfo info = *answer;
  SLUICE_TRY(check_owner(static_cast<pid_t>(info.pid), id, holders));
  SLUICE_TRY_ASSIGN(kfd::Checkpoint checkpoint, session.checkpoint());
  SLUICE_TRY(check_render_maps(checkpoint, topology_, holders));
  log_line(Level::Info, session.name() + ": " + std::to_string(info.num_devices) + " GPUs, " +
                            std::to_string(info.num_bos) + " BOs, " + std::to_string(info.num_objects) +
                            " queues, events and SVM ranges");
  kfd::KfdImage image;
  image.pid = info.pid;
  SLUICE_TRY_ASSIGN(image.topology, kfd::topology_of_process(topology_, checkpoint.devices));
  image.bos = bo_entries(checkpoint);
  image.num_objects = info.num_objects;
  SLUICE_TRY_ASSIGN(const std::optional<kfd::HsakmtShm> shm, kfd::read_hsakmt_shm());
  image.shm = shm.value_or(kfd::HsakmtShm{});
  image.priv_data = checkpoint.priv_data;
  image.sluice_version = SLUICE_VERSION;
  image.kernel_release = kernel_release();
  image.kfd_minor_version = kfd_minor_version_;
  image.bo_record_bytes =
      kfd::derive_bo_record_bytes(info.num_devices, info.num_bos, info.num_objects, checkpoint.priv_data);
  image.dump_id = dump_id_;

  images_.insert(images_.begin(), kfd_image_name(id));
  SLUICE_TRY_ASSIGN(std::vector<GpuContents> contents, contents_of(checkpoint));
  SLUICE_TRY_ASSIGN(const std::vector<GpuOutcome> outcomes, dump_contents(std::move(contents), id));
  note_gpus(checkpoint);
  for (RenderFile& render : render_files_) SLUICE_TRY(settle(render));

  // Metadata last: it stands only beside complete contents.
  SLUICE_TRY(write_image(image_dir_fd(), kfd_image_name(id), kfd::encode_kfd_image(image), config_.sync));
  if (config_.sync) SLUICE_TRY(sync_directory(image_dir_fd()));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  write_stats(Direction::Dump, id, seconds, outcomes);
  images_.push_back(stats_name(Direction::Dump, id));
  return {};
}

// Sorts the BOs that have contents by GPU, in bucket order, and takes their dma-bufs.
Result<std::vector<GpuContents>> Dumper::contents_of(kfd::Checkpoint& checkpoint) const {
  const std::vector<kfd::BoEntry> bos = bo_entries(checkpoint);
  std::vector<GpuContents> contents;
  for (const kfd::DeviceIds& ids : checkpoint.devices) {
    const kfd::Node* node = topology_.find_gpu(ids.actual_gpu_id);
    if (node == nullptr) {
      return Error{ENODEV, "the process has GPU " + std::to_string(ids.actual_gpu_id) +
                               ", which the topology in sysfs lacks"};
    }
    GpuContents gpu;
    gpu.gpu_id = ids.user_gpu_id;
    gpu.render_minor = node->drm_render_minor;
    gpu.numa_node = numa_node_of_render_minor(node->drm_render_minor);
    gpu.bo_table_digest = bo_table_digest(bos, ids.user_gpu_id);
    for (kfd::CheckpointBo& bo : checkpoint.bos) {
      if (bo.gpu_id == ids.user_gpu_id && kfd::has_contents(bo.alloc_flags)) {
        gpu.bos.push_back({bo.bytes, bo.addr, std::move(bo.dmabuf)});
      }
    }
    contents.push_back(std::move(gpu));
  }
  return contents;
}

// Runs the lanes and gives the files their names. A GPU without contents has a file of the bare header, as
// upstream's.
Result<std::vector<GpuOutcome>> Dumper::dump_contents(std::vector<GpuContents> contents, int id) {
  for (const GpuContents& gpu : contents) {
    images_.push_back(pages_image_name(id, gpu.gpu_id));
    images_.push_back(sums_image_name(id, gpu.gpu_id));
    if (gpu.bos.empty())
      SLUICE_TRY(write_image(image_dir_fd(), pages_image_name(id, gpu.gpu_id), {}, config_.sync));
  }
  std::erase_if(contents, [](const GpuContents& gpu) { return gpu.bos.empty(); });
  SLUICE_TRY_ASSIGN(
      const std::unique_ptr<ContentsJob> job,
      ContentsJob::start(Direction::Dump, image_dir_fd(), id, std::move(contents), config_, dump_id_));
  Result<void> done = job->wait([](const std::string& line) { log_line(Level::Info, line); });
  log_lines(job->take_log_lines());
  SLUICE_TRY(done);
  SLUICE_TRY(job->commit());
  if (config_.sync) SLUICE_TRY(sync_directory(image_dir_fd()));
  return job->outcomes();
}

// A render file carries nothing of its own yet: its GPU, and whether it is the one KFD uses as the GPU's
// address space.
Result<void> Dumper::dump_render(int fd, int id, std::uint32_t minor) {
  if (streaming()) return Error{EINVAL, "GPU processes cannot be streamed yet; dump without --stream"};
  if (!topology_error_.empty()) return Error{EIO, topology_error_};
  SLUICE_TRY(remove_stale());
  SLUICE_TRY_ASSIGN(const auto handles, drm::list_handles(fd));
  if (handles && !handles->empty()) {
    return Error{
        EINVAL, "file " + std::to_string(id) + " (renderD" + std::to_string(minor) + ") holds " +
                    std::to_string(handles->size()) +
                    " BOs of its own; BOs allocated or imported through a render node are not supported yet"};
  }
  if (!handles) SLUICE_TRY(check_render_maps_without_kfd(fd, minor, kfd_device_));
  const kfd::Node* node = topology_.find_render_minor(minor);
  if (node == nullptr)
    return Error{ENODEV, "renderD" + std::to_string(minor) + " belongs to no GPU of the topology in sysfs"};
  RenderFile render;
  render.id = id;
  SLUICE_TRY_ASSIGN(render.file, duplicate(fd));
  render.minor = minor;
  render.user_gpu_id = node->gpu_id;
  images_.insert(images_.begin(), render_image_name(id));
  SLUICE_TRY(write_render(render));
  render_files_.push_back(std::move(render));
  return settle(render_files_.back());
}

void Dumper::note_gpus(const kfd::Checkpoint& checkpoint) {
  for (const kfd::DeviceIds& ids : checkpoint.devices) {
    const kfd::Node* node = topology_.find_gpu(ids.actual_gpu_id);
    if (node == nullptr) continue;
    ProcessGpu gpu{node->drm_render_minor, ids.user_gpu_id, std::nullopt};
    const auto bo =
        std::find_if(checkpoint.bos.begin(), checkpoint.bos.end(), [&](const kfd::CheckpointBo& candidate) {
          return candidate.gpu_id == ids.user_gpu_id && kfd::has_contents(candidate.alloc_flags);
        });
    if (bo != checkpoint.bos.end()) gpu.bo_offset = bo->offset;
    gpus_.push_back(gpu);
  }
}

// What a KFD process that was dumped before or after tells of a render file: files come in order of their
// numbers, so either may be first.
Result<void> Dumper::settle(RenderFile& render) {
  bool changed = false;
  for (const ProcessGpu& gpu : gpus_) {
    if (gpu.minor != render.minor) continue;
    changed = changed || render.user_gpu_id != gpu.user_gpu_id;
    render.user_gpu_id = gpu.user_gpu_id;
    if (!gpu.bo_offset || render.kfd_acquired.value_or(false)) continue;
    SLUICE_TRY_ASSIGN(const drm::MapAccess access, drm::may_map(render.file.get(), *gpu.bo_offset));
    render.kfd_acquired = access == drm::MapAccess::Allowed;
    changed = true;
  }
  return changed ? write_render(render) : Result<void>();
}

Result<void> Dumper::write_render(const RenderFile& render) {
  RenderImage image;
  image.gpu_id = render.user_gpu_id;
  image.id = static_cast<std::uint32_t>(render.id);
  image.minor = render.minor;
  image.kfd_acquired = render.kfd_acquired;
  return write_image(image_dir_fd(), render_image_name(render.id), pack_render_image(image, dump_id_),
                     config_.sync);
}

Result<void> Dumper::unpause() {
  return sessions_.unpause_all();
}

Result<void> Dumper::finish(int ret) {
  remove_old_pages();
  if (ret < 0) {
    remove_images();
    name_hopeless_maps();
  }
  return unpause();
}

// CRIU's own parser stops at a map of a dma-buf, before it asks any plugin.
void Dumper::name_hopeless_maps() const {
  if (kfd_device_ == 0 || stage_ != kStageDump) return;
  const auto pids = kfd::traced_processes();
  if (!pids) return;
  for (const pid_t pid : *pids) {
    const auto files = kfd::mapped_files(pid);
    if (!files) continue;
    const auto dma_buf = std::find_if(files->begin(), files->end(),
                                      [](const kfd::MappedFile& file) { return file.is_dma_buf(); });
    if (dma_buf == files->end()) continue;
    log_line(Level::Error, "process " + std::to_string(pid) + " maps a dma-buf, " + dma_buf->name + ", at " +
                               hex(dma_buf->address) +
                               ": CRIU cannot dump such a map, whatever the plugin; the process "
                               "must unmap it first");
  }
}

// What an earlier dump left in the directory never mixes with this one: a pages file of then beside metadata
// of now.
Result<void> Dumper::remove_stale() {
  if (std::exchange(stale_removed_, true)) return {};
  SLUICE_TRY_ASSIGN(old_pages_, remove_plugin_images(image_dir_fd(), config_.reuse_files));
  return {};
}

// What no GPU of this dump has written over.
void Dumper::remove_old_pages() {
  for (const std::string& name : old_pages_) {
    if (std::find(images_.begin(), images_.end(), name) != images_.end()) continue;
    if (auto removed = remove_image(image_dir_fd(), name); !removed)
      log_line(Level::Warning, removed.error().what);
  }
}

// Metadata goes first, so that at no moment an incomplete dump looks complete.
void Dumper::remove_images() {
  for (const std::string& name : images_) {
    if (auto removed = remove_image(image_dir_fd(), name); !removed)
      log_line(Level::Warning, removed.error().what);
  }
  if (!images_.empty()) (void)sync_directory(image_dir_fd());
}

}  // namespace sluice::plugin
