// SPDX-License-Identifier: MIT
#include "plugin/restore/task/device_maps.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "drm/device.h"
#include "drm/target_file.h"
#include "kfd/device.h"
#include "kfd/uapi.h"
#include "plugin/restore/gpus/unnamed_gpus.h"
#include "proc/directory.h"

namespace sluice::plugin {
namespace {

constexpr std::string_view kRenderPrefix = "/dev/dri/renderD";

// CRIU's paths sometimes contain double slashes.
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

// This process' descriptors of the GPU's render node, ascending. The task's /proc is its container's: perhaps
// of another pid namespace, or forged. So the host's own /proc/self is read, and its list only says where to
// look.
Result<std::vector<int>> own_descriptors(std::uint32_t minor) {
  const int proc = proc_fd();
  auto numbers =
      proc >= 0 ? proc::numbered_entries("self/fd", proc) : proc::numbered_entries("/proc/self/fd");
  if (!numbers) {
    return with_remedy(numbers.error(), numbers.error().err == ENOENT ? proc::kMountProc : "");
  }
  std::erase_if(*numbers, [device = kfd::render_node_device(minor)](int fd) {
    struct stat st {};
    return fstat(fd, &st) != 0 || !S_ISCHR(st.st_mode) || st.st_rdev != device;
  });
  return numbers;
}

}  // namespace

void DeviceMaps::set_task(std::uint32_t pid) {
  pid_ = pid;
  if (first_unused_fd_ < 0) first_unused_fd_ = first_unused_fd(static_cast<int>(pid));
}

Result<void> DeviceMaps::read_runs(ImageStore& store) {
  if (std::exchange(runs_read_, true)) return {};
  auto runs = pid_ ? store.vma_runs(*pid_)
                   : Result<VmaRuns>(make_error(ENOENT, "find the image of the task's memory"));
  if (runs) {
    runs_ = std::move(*runs);
  } else if (runs.error().err == ENOENT || runs.error().err == EPROTONOSUPPORT) {
    log_line(Level::Info, "descriptors of GPU maps stay in the task: " + runs.error().what);
  } else {
    return std::move(runs).error();
  }
  return {};
}

Result<UniqueFd> DeviceMaps::open_high(std::uint32_t minor) const {
  auto file = drm::open_render_node(minor);
  if (!file) {
    const int err = file.error().err;
    const bool lacks = err == ENOENT || err == ENXIO || err == ENODEV || err == EACCES || err == EPERM;
    return with_remedy(file.error(), lacks ? "; give the container this device [SL-R09]" : "");
  }
  return make_high(std::move(*file));
}

Result<UniqueFd> DeviceMaps::make_high(UniqueFd file) const {
  if (file.get() >= first_unused_fd_) return file;
  return copy_high(file.get());
}

Result<UniqueFd> DeviceMaps::copy_high(int file) const {
  UniqueFd copy(fcntl(file, F_DUPFD_CLOEXEC, std::max(first_unused_fd_, 0)));
  if (!copy) return make_error(errno, "dup of a device file above the task's own fds");
  return copy;
}

Result<DeviceMaps::AcquiredFile*> DeviceMaps::acquired(std::uint32_t minor) {
  for (AcquiredFile& known : acquired_) {
    if (known.minor == minor) return &known;
  }
  SLUICE_TRY_ASSIGN(UniqueFd file, open_high(minor));
  acquired_.push_back({minor, std::move(file), false});
  return &acquired_.back();
}

Result<int> DeviceMaps::acquire(std::uint32_t minor) {
  SLUICE_TRY_ASSIGN(const AcquiredFile* known, acquired(minor));
  return known->file.get();
}

Result<int> DeviceMaps::acquire_unnamed(std::uint32_t minor, const std::string& why) {
  auto known = acquired(minor);
  if (known) return (*known)->file.get();
  if (known.error().err != ENOENT) return std::move(known).error();
  auto file = open_render_node_of_machine(minor);
  if (!file) return with_remedy(file.error(), formatted("; {} [SL-R10]", why));
  SLUICE_TRY_ASSIGN(UniqueFd high, make_high(std::move(*file)));
  outside_.push_back(std::move(high));
  return outside_.back().get();
}

// Once KFD has the file, our descriptor is handed out: none of ours stays in the task.
Result<UniqueFd> DeviceMaps::hand_out(std::uint32_t minor) {
  SLUICE_TRY_ASSIGN(AcquiredFile * known, acquired(minor));
  if (known->file && kfd_has_files_) {
    known->handed_out = true;
    return std::move(known->file);
  }
  int source = known->file.get();
  if (source < 0) {
    SLUICE_TRY_ASSIGN(source, mapping_file(minor));
  }
  SLUICE_TRY_ASSIGN(UniqueFd copy, copy_high(source));
  known->handed_out = true;
  return copy;
}

bool DeviceMaps::has_handed_out(std::uint32_t minor) const {
  return std::any_of(acquired_.begin(), acquired_.end(),
                     [minor](const AcquiredFile& known) { return known.minor == minor && known.handed_out; });
}

void DeviceMaps::kfd_has_files(const std::set<std::uint32_t>& to_come) {
  kfd_has_files_ = true;
  for (UniqueFd& file : outside_) file.reset();
  for (AcquiredFile& known : acquired_) {
    if (known.handed_out || (runs_.none() && !to_come.contains(known.minor))) known.file.reset();
  }
}

// Opens the file when the first BO comes. Its handles keep BOs while anything is mapped through it: memory
// that the process frees meanwhile is released only then.
Result<void> DeviceMaps::allow_in_common_file(std::uint32_t minor, int dmabuf) {
  UniqueFd& file = common_files_[minor];
  if (!file) {
    SLUICE_TRY_ASSIGN(file, open_high(minor));
  }
  SLUICE_TRY(drm::allow_map(file.get(), dmabuf));
  return {};
}

// Through our own render file, which drops the BO again.
Result<std::uint64_t> DeviceMaps::mmap_offset_of(std::uint32_t minor, int dmabuf) const {
  SLUICE_TRY_ASSIGN(const UniqueFd file, open_high(minor));
  SLUICE_TRY_ASSIGN(const std::uint32_t handle, drm::allow_map(file.get(), dmabuf));
  return drm::mmap_offset_of(file.get(), handle);
}

Result<Answer> DeviceMaps::update(const char* path, std::uint64_t address, std::uint64_t old_offset,
                                  std::uint64_t& new_offset, int& fd) {
  Result<Answer> answer = find(without_doubled_slashes(path), address, old_offset, new_offset, fd);
  if (runs_.is_last(address)) close_kept_files();
  return answer;
}

Result<Answer> DeviceMaps::find(const std::string& path, std::uint64_t address, std::uint64_t old_offset,
                                std::uint64_t& new_offset, int& fd) {
  const bool in_kfd = path == kfd::kDevicePath;
  const std::optional<std::uint32_t> minor = render_minor_of(path);
  if (!in_kfd && !minor) return Answer();  // unreached: a guard
  // The events' signal page has the same offset on every machine.
  if (in_kfd && kfd::decode_mmap_offset(old_offset).type == kfd::MmapType::Events) return Answer();

  const auto range = std::find_if(offsets_.begin(), offsets_.end(), [&](const OffsetRange& candidate) {
    return candidate.kfd == in_kfd && (in_kfd || candidate.source_minor == *minor) &&
           old_offset >= candidate.old_begin && old_offset - candidate.old_begin < candidate.bytes;
  });
  if (range == offsets_.end()) {  // unreached: no test
    return Error{
        EINVAL,
        formatted("the map of {} at {:#x}, offset {:#x} belongs to no restored BO; the restore will fail "
                  "[SL-R11]",
                  path, address, old_offset)};
  }
  new_offset = range->new_begin + (old_offset - range->old_begin);
  // CRIU opens /dev/kfd itself: any file of the process may map these.
  if (!in_kfd && runs_.is_first(address)) {
    SLUICE_TRY_ASSIGN(const int file, map_source(*range));
    SLUICE_TRY_ASSIGN(fd, give_away(file));
  }
  return Answer(1);
}

// A descriptor of this process, borrowed, for the acquired file: ours, or the task's own, which CRIU has
// moved to an unknown number. Only that file may map the GPU's BOs.
Result<int> DeviceMaps::mapping_file(std::uint32_t minor) {
  SLUICE_TRY_ASSIGN(const AcquiredFile* known, acquired(minor));
  if (known->file) return known->file.get();  // unreached: no test
  const auto bo = std::find_if(offsets_.begin(), offsets_.end(), [&](const OffsetRange& range) {
    return !range.kfd && !range.render_id && range.minor == minor;
  });
  if (bo != offsets_.end()) return task_file_of(*bo);
  SLUICE_TRY_ASSIGN(const std::vector<int> descriptors, own_descriptors(minor));
  if (!descriptors.empty()) return descriptors.front();
  return Error{EBADF, formatted("no descriptor of the task is {}; use another checkpoint [SL-R12]",
                                drm::Device::render_node(minor))};
}

// The task's own descriptor, borrowed, for a file that may map the BO.
Result<int> DeviceMaps::task_file_of(const OffsetRange& bo) const {
  SLUICE_TRY_ASSIGN(const std::vector<int> descriptors, own_descriptors(bo.minor));
  for (const int fd : descriptors) {
    const auto access = drm::may_map(fd, bo.new_begin);
    if (access && *access == drm::MapAccess::Allowed) return fd;
  }
  return Error{
      EBADF,
      formatted(
          "no descriptor of the task can map the BO at offset {:#x} of {}; see the lines before [SL-R13]",
          bo.new_begin, drm::Device::render_node(bo.minor))};
}

// For UPDATE_VMA_MAP, called for perhaps thousands of maps after CRIU has moved all of the task's
// descriptors: each file is searched for once.
Result<int> DeviceMaps::map_source(const OffsetRange& bo) {
  if (const auto common = common_files_.find(bo.minor); common != common_files_.end())
    return common->second.get();
  int* task_fd = nullptr;
  if (bo.render_id) {
    task_fd = &render_fds_.emplace(*bo.render_id, -1).first->second;
  } else {
    SLUICE_TRY_ASSIGN(AcquiredFile * known, acquired(bo.minor));
    if (known->file) return known->file.get();
    task_fd = &known->task_fd;
  }
  if (*task_fd < 0) {
    SLUICE_TRY_ASSIGN(*task_fd, task_file_of(bo));
  }
  return *task_fd;
}

// A descriptor for the host. Older hosts dup it; newer ones take it, and would close the same number twice.
Result<int> DeviceMaps::give_away(int file) const {
  if (!host_takes_vma_fd()) return file;
  SLUICE_TRY_ASSIGN(UniqueFd copy, copy_high(file));
  return copy.release();
}

// No more maps are requested. An older host dups its last descriptor only after this.
void DeviceMaps::close_kept_files() {
  if (!host_takes_vma_fd()) return;
  common_files_.clear();
  for (AcquiredFile& known : acquired_) known.file.reset();
}

}  // namespace sluice::plugin
