// SPDX-License-Identifier: MIT
#include "kfd/criu_ops.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <new>
#include <unordered_set>
#include <utility>

#include "base/format.h"
#include "kfd/uapi.h"

namespace sluice::kfd {
namespace {

// A protobuf message is limited to 2 GiB, and the private data must fit into one.
constexpr std::uint64_t kPrivDataBytesMax = INT32_MAX;

std::uint64_t user_pointer(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

std::string descriptor_limit_hint(std::size_t needed) {
  rlimit limit{};
  const bool known = ::getrlimit(RLIMIT_NOFILE, &limit) == 0;
  return formatted(
      "; {} BOs with contents need a descriptor each{}: raise the limit of open files (ulimit -n) [SL-G04]",
      needed, known ? formatted(" and RLIMIT_NOFILE is {}", limit.rlim_cur) : "");
}

// An error from the kernel. EBADF: the caller does not trace the process' lead thread. `remedy`: for another
// errno.
Error refusal(int err, std::string what, const char* remedy = "") {
  constexpr char kNotTraced[] =
      "; the kernel accepts this only from the thread that traces the process: it may have died meanwhile "
      "[SL-G05]";
  return with_remedy(make_error(err, std::move(what)), err == EBADF ? kNotTraced : remedy);
}

// Takes over the kernel's descriptor for a BO, if it made one. It lacks O_CLOEXEC.
UniqueFd take_dmabuf(const BoBucket& bucket) {
  if (bucket.dmabuf_fd == kInvalidFd) return {};
  UniqueFd fd(static_cast<int>(bucket.dmabuf_fd));
  (void)::fcntl(fd.get(), F_SETFD, FD_CLOEXEC);
  return fd;
}

Result<void> check_dmabuf(const BoBucket& bucket, std::size_t index) {
  const bool has_one = bucket.dmabuf_fd != kInvalidFd;
  if (has_one == has_contents(bucket.alloc_flags)) return {};
  return make_error(EIO, formatted("the KFD returned BO {} at {:#x} with flags {:#x} {} a dma-buf", index,
                                   bucket.addr, bucket.alloc_flags, has_one ? "and" : "without"));
}

}  // namespace

CriuSession::CriuSession(UniqueFd target_kfd, std::string name, IoctlFunction ioctl_function)
    : kfd_(std::move(target_kfd)),
      name_(std::move(name)),
      ioctl_(std::move(ioctl_function)),
      owner_tid_(::gettid()) {}

CriuSession::~CriuSession() {
  unpause_at_exit();
}

Result<void> CriuSession::on_own_thread(const char* operation) const {
  const pid_t tid = ::gettid();
  if (tid == owner_tid_) return {};
  return make_error(EBADF, formatted("{} of {} from thread {}: only thread {}, which traces it, may do this",
                                     operation, name_, tid, owner_tid_));
}

// The kernel counts evictions, and UNPAUSE undoes one. After a pause that a dead dump left behind, this
// session's would never end.
Result<void> CriuSession::end_older_pause() {
  if (older_pause_ended_) return {};
  CriuArgs args{};
  args.op = CriuOp::Unpause;
  const int err = call_ioctl(ioctl_, kfd_.get(), kIocCriuOp, &args);
  found_paused_ = err == 0;
  // EINVAL: it runs. PROCESS_INFO reports why the call is not allowed or not possible.
  older_pause_ended_ = err == 0 || err == EINVAL || err == EBADF || err == EACCES;
  if (older_pause_ended_) return {};
  return make_error(err, "UNPAUSE of " + name_ + ", which another dump has left paused");
}

Result<ProcessInfo> CriuSession::process_info() {
  SLUICE_TRY(on_own_thread("PROCESS_INFO"));
  if (asked_) {
    return make_error(EALREADY, "a second PROCESS_INFO of " + name_ + " would stop its queues for ever");
  }

  SLUICE_TRY(end_older_pause());
  CriuArgs args{};
  args.op = CriuOp::ProcessInfo;
  paused_ = true;  // or will be, if this process ends just as the call returns
  if (const int err = call_ioctl(ioctl_, kfd_.get(), kIocCriuOp, &args); err != 0) {
    paused_ = false;
    const char* remedy = "";
    if (err == ENODEV) remedy = "; no GPU is visible to it: check its device cgroup [SL-G06]";
    if (err == EOPNOTSUPP)
      remedy = "; it has a queue that is neither of compute nor of SDMA: it must destroy it [SL-G07]";
    return refusal(err, "PROCESS_INFO of " + name_, remedy);
  }
  asked_ = true;
  info_ = {args.num_devices, args.num_bos, args.num_objects, args.pid, args.priv_data_size};
  if (info_.priv_data_bytes > kPrivDataBytesMax) {
    return Error{
        EOVERFLOW,
        formatted("the KFD's private data of {} has {} bytes, an image holds {}; free BOs, queues or "
                  "events before the dump [SL-G08]",
                  name_, info_.priv_data_bytes, kPrivDataBytesMax)};
  }
  return info_;
}

Result<Checkpoint> CriuSession::checkpoint() {
  SLUICE_TRY(on_own_thread("CHECKPOINT"));
  if (!asked_ || !paused_)
    return make_error(EINVAL, "CHECKPOINT of " + name_ + " while its queues are not paused");
  if (checkpointed_) return make_error(EALREADY, "CHECKPOINT of " + name_ + " a second time");

  std::vector<DeviceBucket> devices;
  std::vector<BoBucket> bos;
  Checkpoint result;
  result.info = info_;
  try {
    devices.resize(info_.num_devices);
    // Without BOs the kernel still requires a pointer that is not null.
    bos.resize(std::max<std::size_t>(info_.num_bos, 1));
    result.priv_data.resize(info_.priv_data_bytes);
    result.devices.reserve(info_.num_devices);
    result.bos.reserve(info_.num_bos);
    result.dmabufs.reserve(info_.num_bos);
  } catch (const std::bad_alloc&) {
    // unreached: out of memory
    return make_error(ENOMEM, formatted("allocate tables of {} for {} BOs and {} bytes of private data",
                                        name_, info_.num_bos, info_.priv_data_bytes));
  }

  CriuArgs args{};
  args.op = CriuOp::Checkpoint;
  args.devices = user_pointer(devices.data());
  args.bos = user_pointer(bos.data());
  args.priv_data = user_pointer(result.priv_data.data());
  args.priv_data_size = info_.priv_data_bytes;
  args.num_devices = info_.num_devices;
  args.num_bos = info_.num_bos;
  args.num_objects = info_.num_objects;
  if (const int err = call_ioctl(ioctl_, kfd_.get(), kIocCriuOp, &args); err != 0) {
    const std::string what = "CHECKPOINT of " + name_;
    if (err == EMFILE) return with_remedy(make_error(err, what), descriptor_limit_hint(info_.num_bos));
    const char* remedy = "";
    if (err == EINVAL)
      remedy = "; its BOs, queues or events changed after PROCESS_INFO: stop the process first [SL-G09]";
    if (err == EOPNOTSUPP) remedy = "; the KFD cannot checkpoint queues of this GPU [SL-G10]";
    return refusal(err, what, remedy);
  }
  checkpointed_ = true;

  // Every descriptor gets an owner before anything can fail, including allocations.
  for (std::size_t i = 0; i < info_.num_bos; i++) {
    const BoBucket& bucket = bos[i];
    result.bos.push_back({bucket.addr, bucket.size, bucket.offset, bucket.gpu_id, bucket.alloc_flags});
    result.dmabufs.push_back(take_dmabuf(bucket));
  }
  std::unordered_set<std::uint32_t> user_ids;
  for (const DeviceBucket& device : devices) {
    result.devices.push_back({device.user_gpu_id, device.actual_gpu_id});
    user_ids.insert(device.user_gpu_id);
  }
  for (std::size_t i = 0; i < info_.num_bos; i++) {
    const BoBucket& bucket = bos[i];
    Result<void> checked = check_dmabuf(bucket, i);
    if (checked && !user_ids.contains(bucket.gpu_id)) {
      checked = make_error(EIO, formatted("BO {} at {:#x} is on GPU {:#x}, which the process does not have",
                                          i, bucket.addr, bucket.gpu_id));
    }
    if (!checked) return explain("CHECKPOINT of " + name_, checked.error());
  }
  return result;
}

Result<bool> CriuSession::same_process(int kfd_fd) {
  SLUICE_TRY(on_own_thread("CHECKPOINT"));
  if (!paused_) return make_error(EINVAL, "compare a file with " + name_ + ", which is not paused");
  constexpr std::uint64_t kNobodysMemory = 1;  // no process maps anything there, and it is not null
  CriuArgs args{};
  args.op = CriuOp::Checkpoint;
  args.devices = args.bos = args.priv_data = kNobodysMemory;
  args.priv_data_size = info_.priv_data_bytes;
  args.num_devices = info_.num_devices;
  args.num_bos = info_.num_bos;
  args.num_objects = info_.num_objects;
  const int err = call_ioctl(ioctl_, kfd_fd, kIocCriuOp, &args);
  if (err == EFAULT) return true;   // stopped, with these counts
  if (err == EINVAL) return false;  // it runs, or has other counts
  std::string what = "CHECKPOINT of another file beside " + name_;
  if (err == 0) return make_error(EIO, what + " succeeded without memory to write to");
  return refusal(err, std::move(what));
}

// 0, or the errno.
int CriuSession::call_unpause() noexcept {
  CriuArgs args{};
  args.op = CriuOp::Unpause;
  const int err = call_ioctl(ioctl_, kfd_.get(), kIocCriuOp, &args);
  if (err == 0) paused_ = asked_ = checkpointed_ = false;
  return err;
}

void CriuSession::unpause_at_exit() noexcept {
  if (paused_ && ::gettid() == owner_tid_) (void)call_unpause();
}

Result<void> CriuSession::unpause() {
  if (!paused_) return {};
  SLUICE_TRY(on_own_thread("UNPAUSE"));
  const int err = call_unpause();
  if (err == 0) return {};
  const Error failed = make_error(err, "UNPAUSE of " + name_);
  if (err != EINVAL) return with_remedy(failed, "; its GPU queues stay stopped: run sluice unpause [SL-G11]");
  paused_ = false;  // the kernel says so, so no later try can succeed
  return with_remedy(
      failed, "; the kernel does not know its queues as paused: check whether it makes progress [SL-G12]");
}

UnpauseGuard::~UnpauseGuard() {
  unpause_at_exit();
}

CriuSession& UnpauseGuard::open_session(UniqueFd target_kfd, std::string name, IoctlFunction ioctl_function) {
  return sessions_.emplace_back(std::move(target_kfd), std::move(name), std::move(ioctl_function));
}

Result<void> UnpauseGuard::let_run() {
  Result<void> first;
  for (CriuSession& session : sessions_) {
    auto result = session.unpause();
    if (!result && first) first = std::move(result);
  }
  return first;
}

Result<void> UnpauseGuard::unpause_all() {
  Result<void> unpaused = let_run();
  for (CriuSession& session : sessions_) {
    if (!session.paused()) session.close();
  }
  return unpaused;
}

void UnpauseGuard::unpause_at_exit() noexcept {
  for (CriuSession& session : sessions_) session.unpause_at_exit();
}

std::size_t UnpauseGuard::paused_count() const {
  return static_cast<std::size_t>(std::count_if(sessions_.begin(), sessions_.end(),
                                                [](const CriuSession& session) { return session.paused(); }));
}

namespace {

// Errors that can be found before anything is created.
Result<void> check_restore_arguments(std::span<const RestoreDevice> devices, std::span<const KfdBo> bos,
                                     std::span<const std::uint8_t> priv_data) {
  const auto refuse = [](const std::string& why) { return make_error(EINVAL, "RESTORE of " + why); };
  if (devices.empty()) return refuse("a process without GPUs");
  if (priv_data.empty()) return refuse("a process without private data");

  std::unordered_set<std::uint32_t> user_ids;
  std::unordered_set<std::uint32_t> actual_ids;
  for (const RestoreDevice& device : devices) {
    if (device.user_gpu_id == 0 || device.actual_gpu_id == 0) return refuse("a GPU without gpu_id");
    if (!user_ids.insert(device.user_gpu_id).second)
      return refuse("GPU " + hex(device.user_gpu_id) + ", which is named twice");
    if (!actual_ids.insert(device.actual_gpu_id).second) {
      return refuse("two GPUs of the image on local GPU " + hex(device.actual_gpu_id));
    }
    if (device.drm_fd < 0) return refuse("GPU " + hex(device.user_gpu_id) + " without an open render node");
  }
  for (std::size_t i = 0; i < bos.size(); i++) {
    if (!user_ids.contains(bos[i].gpu_id)) {
      return refuse(
          formatted("BO {} at {:#x} on GPU {:#x}, which is not restored", i, bos[i].addr, bos[i].gpu_id));
    }
    if (bos[i].bytes == 0) return refuse(formatted("BO {} at {:#x}, which has no size", i, bos[i].addr));
  }
  return {};
}

// The remedy for a failed RESTORE; empty if only the errno is known.
std::string restore_remedy(int err, std::size_t num_devices, std::size_t num_with_contents) {
  switch (err) {
    case EINVAL:
      return formatted(
          "; restore under the kernel version of the dump, with exactly {} GPUs visible to the task and none "
          "in use by it [SL-G13]",
          num_devices);
    case EPERM:
      return "; the image needs XNACK: boot with amdgpu.noretry=0 if the GPUs have it [SL-G14]";
    case ENOMEM:
      return "; there is too little VRAM or system memory for the BOs, or a BO handle is taken: stop other "
             "users of the "
             "GPU [SL-G15]";
    case EMFILE:
      return descriptor_limit_hint(num_with_contents);
    case EBADF:
      return "; another process opened this /dev/kfd: each task must open its own [SL-G16]";
    case EBUSY:
      return "; another process has an SDMA queue with the image's number: end the dumped process or other "
             "users of this "
             "GPU, or choose another GPU [SL-G17]";
    default:
      return {};
  }
}

}  // namespace

Result<std::vector<RestoredBo>> restore(const KfdDevice& kfd, std::span<const RestoreDevice> devices,
                                        std::span<const KfdBo> bos, std::uint32_t num_objects,
                                        std::span<const std::uint8_t> priv_data) {
  SLUICE_TRY(check_restore_arguments(devices, bos, priv_data));

  std::vector<DeviceBucket> device_buckets;
  std::vector<BoBucket> bo_buckets;
  std::vector<RestoredBo> restored;
  std::size_t num_with_contents = 0;
  try {
    device_buckets.reserve(devices.size());
    bo_buckets.reserve(bos.size());
    restored.reserve(bos.size());
  } catch (const std::bad_alloc&) {
    return make_error(ENOMEM, formatted("allocate tables for RESTORE of {} BOs", bos.size()));
  }
  for (const RestoreDevice& device : devices) {
    DeviceBucket bucket{};
    bucket.user_gpu_id = device.user_gpu_id;
    bucket.actual_gpu_id = device.actual_gpu_id;
    bucket.drm_fd = static_cast<std::uint32_t>(device.drm_fd);
    device_buckets.push_back(bucket);
  }
  for (const KfdBo& bo : bos) {
    BoBucket bucket{};
    bucket.addr = bo.addr;
    bucket.size = bo.bytes;
    bucket.offset = bo.offset;
    bucket.gpu_id = bo.gpu_id;
    bucket.alloc_flags = bo.alloc_flags;
    bucket.dmabuf_fd = kInvalidFd;
    bo_buckets.push_back(bucket);
    if (has_contents(bo.alloc_flags)) num_with_contents++;
  }

  CriuArgs args{};
  args.op = CriuOp::Restore;
  args.devices = user_pointer(device_buckets.data());
  args.bos = user_pointer(bo_buckets.data());
  args.priv_data = user_pointer(priv_data.data());
  args.priv_data_size = priv_data.size();
  args.num_devices = static_cast<std::uint32_t>(device_buckets.size());
  args.num_bos = static_cast<std::uint32_t>(bo_buckets.size());
  args.num_objects = num_objects;
  if (const int err = call_ioctl(kfd.ioctl_function(), kfd.fd(), kIocCriuOp, &args, OnInterrupt::Fail);
      err != 0) {
    return with_remedy(make_error(err, "RESTORE"), restore_remedy(err, devices.size(), num_with_contents));
  }

  // Every descriptor gets an owner before anything can fail, including allocations.
  for (const BoBucket& bucket : bo_buckets) restored.push_back({bucket.restored_offset, take_dmabuf(bucket)});
  for (std::size_t i = 0; i < bo_buckets.size(); i++) {
    if (const auto checked = check_dmabuf(bo_buckets[i], i); !checked)
      return explain("RESTORE", checked.error());
  }
  return restored;
}

Result<ResumeOutcome> resume(const KfdDevice& kfd, pid_t pid) {
  CriuArgs args{};
  args.op = CriuOp::Resume;
  args.pid = static_cast<std::uint32_t>(pid);
  // Once: kfd_criu_resume_svm() drops the SVM ranges that an error leaves unset, and a second call succeeds
  // without them.
  const int err = call_ioctl(kfd.ioctl_function(), kfd.fd(), kIocCriuOp, &args, OnInterrupt::Fail);
  if (err == 0) return ResumeOutcome::Resumed;
  if (err == ESRCH) return ResumeOutcome::NotGpuProcess;
  return with_remedy(
      make_error(err, "RESUME of process " + std::to_string(pid)),
      err == EINVAL ? "; its GPU state was not restored, or was resumed before: restore again [SL-G18]" : "");
}

namespace {

// PROCESS_INFO of the caller itself, undone at once.
Result<ProcessInfo> own_process_info(const KfdDevice& kfd) {
  UniqueFd own(::fcntl(kfd.fd(), F_DUPFD_CLOEXEC, 0));
  if (!own) return make_error(errno, "dup of /dev/kfd");
  CriuSession session(std::move(own), "this process", kfd.ioctl_function());
  auto info = session.process_info();
  SLUICE_TRY(session.unpause());
  return info;
}

}  // namespace

Result<std::uint32_t> probe_bo_record_bytes(const KfdDevice& kfd, std::span<const GpuFile> gpus) {
  constexpr std::uint64_t kAnyAddress = std::uint64_t{1} << 32;  // nothing is mapped: any GPU VA will do
  constexpr std::uint64_t kBytes = 4096;
  const auto call = [&](unsigned long request, void* argument) {
    return call_ioctl(kfd.ioctl_function(), kfd.fd(), request, argument);
  };

  GetAperturesArgs seen{};
  if (const int err = call(kIocGetApertures, &seen); err != 0)
    return make_error(err, "GET_PROCESS_APERTURES_NEW");
  if (gpus.empty() || seen.num_nodes != gpus.size()) {
    return make_error(ENODEV, formatted("take a VM on each of {} GPUs, of which {} can be opened",
                                        seen.num_nodes, gpus.size()));
  }
  for (const GpuFile& gpu : gpus) {
    AcquireVmArgs vm{static_cast<std::uint32_t>(gpu.drm_fd), gpu.gpu_id};
    if (const int err = call(kIocAcquireVm, &vm); err != 0)
      return make_error(err, "ACQUIRE_VM of GPU " + hex(gpu.gpu_id));
  }
  const std::uint32_t gpu_id = gpus.front().gpu_id;
  AllocMemoryArgs memory{};
  memory.va_addr = kAnyAddress;
  memory.size = kBytes;
  memory.gpu_id = gpu_id;
  memory.flags = kAllocGtt | kAllocWritable;
  if (const int err = call(kIocAllocMemory, &memory); err != 0) {
    return make_error(err, "ALLOC_MEMORY_OF_GPU on GPU " + hex(gpu_id));
  }
  auto info = own_process_info(kfd);
  FreeMemoryArgs free{memory.handle};
  const int free_err = call(kIocFreeMemory, &free);
  if (!info) return std::move(info).error();
  if (free_err != 0) return make_error(free_err, "FREE_MEMORY_OF_GPU on GPU " + hex(gpu_id));

  const std::uint64_t around = kProcessRecordBytes + kDeviceRecordBytes * info->num_devices;
  if (info->num_bos != 1 || info->num_objects != 0 || info->priv_data_bytes < around) {
    return make_error(EBUSY, "ask for the size of a BO's record in a process that uses its KFD");
  }
  return static_cast<std::uint32_t>(info->priv_data_bytes - around);
}

}  // namespace sluice::kfd
