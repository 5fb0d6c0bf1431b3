// SPDX-License-Identifier: MIT
#include "subject/files.h"

#include <fcntl.h>
#include <libdrm/amdgpu_drm.h>
#include <linux/kcmp.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xf86drm.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <span>
#include <string>
#include <thread>

#include "base/units.h"
#include "subject/bos.h"
#include "subject/gem.h"

namespace sluice::subject {
namespace {

constexpr std::uint32_t kFirstMinorWithExport = 12;  // EXPORT_DMABUF

// libhsakmt's shared memory: a magic number, "HSA" read as a number, and a count.
constexpr const char* kShmName = "/hsakmt_shared_mem";
constexpr const char* kSemaphoreName = "/hsakmt_semaphore";
constexpr mode_t kShmMode = 0666;
constexpr std::uint32_t kShmMagic = 0x00415348;
struct HsakmtShared {
  std::uint32_t magic;
  std::uint32_t slots_left;
};

// The device behind an open character device's descriptor.
Result<dev_t> device_of(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return make_error(errno, "descriptor " + std::to_string(fd));
  if (!S_ISCHR(status.st_mode)) return Error{EBADF, "descriptor " + std::to_string(fd) + " is no device"};
  return status.st_rdev;
}

bool same_open_file(pid_t one, int one_fd, pid_t other, int other_fd) {
  return ::syscall(SYS_kcmp, one, other, KCMP_FILE, one_fd, other_fd) == 0;
}

// The number at which a process keeps the first GPU's render file for others.
constexpr int kLentRenderFd = 41;

Result<void> open_render(Arena& arena, std::uint32_t index, const TopologyGpu& topology,
                         const Options& options) {
  GpuRecord& gpu = arena.gpus[index];
  gpu.gpu_id = topology.gpu_id;
  gpu.render_minor = topology.render_minor;
  gpu.next_va = kGpuVaBase + index * kGpuVaStride;
  gpu.other_render_fd = -1;
  const std::string path = "/dev/dri/renderD" + std::to_string(gpu.render_minor);
  if (options.second_render) {
    SLUICE_TRY_ASSIGN(UniqueFd other, open_device(path));
    gpu.other_render_fd = other.release();
  }
  const bool borrows = index == 0 && options.render_from != 0;
  SLUICE_TRY_ASSIGN(
      UniqueFd render,
      borrows ? take_descriptor(static_cast<pid_t>(options.render_from), kLentRenderFd) : open_device(path));
  gpu.render_fd = render.release();
  if (index == 0 && options.lend_render &&
      ::fcntl(gpu.render_fd, F_DUPFD_CLOEXEC, kLentRenderFd) != kLentRenderFd)
    return Error{EEXIST, "the number of the lent render file is taken"};
  return {};
}

// As ROCm's thunk does with all GPUs that it sees, whether its program uses them or not. The files stay open,
// as those of the GPUs that are used do, and nothing else happens with them.
Result<void> acquire_rest(const Arena& arena, const Options& options,
                          const std::vector<TopologyGpu>& topology) {
  for (std::size_t i = arena.num_gpus; i < topology.size(); ++i) {
    SLUICE_TRY_ASSIGN(UniqueFd render,
                      open_device("/dev/dri/renderD" + std::to_string(topology[i].render_minor)));
    SLUICE_TRY(acquire_vm(arena.kfd_fd, render.get(), topology[i].gpu_id));
    if (!options.close_render) (void)render.release();
  }
  return {};
}

void close_fd(std::int32_t& fd) {
  if (fd >= 0) (void)::close(fd);
  fd = -1;
}

void close_kfd(Arena& arena) {
  close_fd(arena.kfd_dup_fd);
  close_fd(arena.second_kfd_fd);
  close_fd(arena.kfd_fd);
}

// ---- dma-bufs
// ----------------------------------------------------------------------------------------------------------

Pattern dmabuf_data(const Arena& arena) {
  return Pattern{arena.dmabuf_seed, arena.dmabuf_bytes, arena.dmabuf_zero};
}

constexpr MetadataRecord kDmabufMetadata = {AMDGPU_TILING_SET(SWIZZLE_MODE, 9), 5, 60, 0};

// A dma-buf of memory that nothing else holds.
Result<UniqueFd> make_dmabuf(Arena& arena) {
  const int render_fd = arena.gpus[0].render_fd;
  SLUICE_TRY_ASSIGN(const std::uint32_t handle, create_plain_gem(render_fd));
  arena.dmabuf_bytes = kPlainGemBytes;
  arena.dmabuf_seed = mix(arena.seed);
  SLUICE_TRY_ASSIGN(const std::span<std::uint8_t> bytes, map_plain_gem(render_fd, handle));
  dmabuf_data(arena).fill(bytes, 0);
  (void)::munmap(bytes.data(), bytes.size());
  SLUICE_TRY(set_metadata(render_fd, handle, kDmabufMetadata));
  int fd = -1;
  if (drmPrimeHandleToFD(render_fd, handle, DRM_CLOEXEC | DRM_RDWR, &fd) != 0)
    return make_error(errno, "PRIME_HANDLE_TO_FD");
  UniqueFd dmabuf(fd);
  if (drmCloseBufferHandle(render_fd, handle) != 0) return make_error(errno, "GEM_CLOSE");
  return dmabuf;
}

Result<void> add_dmabuf(Arena& arena, const Options& options) {
  SLUICE_TRY_ASSIGN(UniqueFd fd, make_dmabuf(arena));
  if (options.map_dmabuf) {
    void* map = ::mmap(nullptr, arena.dmabuf_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (map == MAP_FAILED) return make_error(errno, "mmap of a dma-buf");
    arena.dmabuf_map = reinterpret_cast<std::uintptr_t>(map);
  }
  arena.dmabuf_fd = fd.release();
  return {};
}

// Reads the memory through a render file that was opened for that.
Result<void> check_memory_of_dmabuf(const Arena& arena) {
  const off_t size = ::lseek(arena.dmabuf_fd, 0, SEEK_END);
  if (size < 0 || static_cast<std::uint64_t>(size) != arena.dmabuf_bytes)
    return Error{EBADF, "the dma-buf has " + std::to_string(size) + " bytes"};
  SLUICE_TRY_ASSIGN(const UniqueFd window, open_window_file(arena, 0));
  std::uint32_t handle = 0;
  if (drmPrimeFDToHandle(window.get(), arena.dmabuf_fd, &handle) != 0)
    return make_error(errno, "PRIME_FD_TO_HANDLE");
  SLUICE_TRY(check_metadata(window.get(), handle, kDmabufMetadata));
  UniqueFd copy(::fcntl(arena.dmabuf_fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) return make_error(errno, "the descriptor of the dma-buf");
  return visit_bo(window.get(), std::move(copy), arena.dmabuf_bytes,
                  [&](std::span<std::uint8_t> bytes, std::uint64_t offset) -> Result<void> {
                    const auto difference = dmabuf_data(arena).first_difference(bytes, offset);
                    if (!difference) return {};
                    return Error{EIO, "the dma-buf's memory differs at byte " + std::to_string(*difference)};
                  });
}

Result<void> check_dmabuf(const Arena& arena) {
  if (arena.dmabuf_fd >= 0) SLUICE_TRY(check_memory_of_dmabuf(arena));
  if (arena.dmabuf_map != 0) {
    const std::span bytes(reinterpret_cast<const std::uint8_t*>(arena.dmabuf_map), arena.dmabuf_bytes);
    if (const auto difference = dmabuf_data(arena).first_difference(bytes, 0))
      return Error{EIO, "the dma-buf's map differs at byte " + std::to_string(*difference)};
  }
  return {};
}

// ---- libhsakmt's shared memory
// ----------------------------------------------------------------------------------------------------------

Result<void> add_hsakmt_shm(Arena& arena) {
  const mode_t before = ::umask(0);
  // Twice: who makes the semaphore has libc's temporary file mapped, which has no name any more; this process
  // is one that came later.
  if (sem_t* first = ::sem_open(kSemaphoreName, O_CREAT, kShmMode, 1); first != SEM_FAILED)
    (void)::sem_close(first);
  sem_t* semaphore = ::sem_open(kSemaphoreName, O_CREAT, kShmMode, 1);
  const UniqueFd fd(::shm_open(kShmName, O_CREAT | O_RDWR | O_CLOEXEC, kShmMode));
  (void)::umask(before);
  if (semaphore == SEM_FAILED) return make_error(errno, "sem_open");
  arena.semaphore = reinterpret_cast<std::uintptr_t>(semaphore);
  if (!fd || ::ftruncate(fd.get(), sizeof(HsakmtShared)) != 0) return make_error(errno, "shm_open");
  void* map = ::mmap(nullptr, sizeof(HsakmtShared), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (map == MAP_FAILED) return make_error(errno, "mmap of libhsakmt's shared memory");
  static_cast<HsakmtShared*>(map)->magic = kShmMagic;
  arena.shm = reinterpret_cast<std::uintptr_t>(map);
  return {};
}

Result<void> check_hsakmt_shm(const Arena& arena) {
  if (arena.shm == 0) return {};
  if (reinterpret_cast<const HsakmtShared*>(arena.shm)->magic != kShmMagic)
    return Error{EIO, "libhsakmt's shared memory has lost its magic number"};
  auto* semaphore = reinterpret_cast<sem_t*>(arena.semaphore);
  if (::sem_trywait(semaphore) != 0) return make_error(errno, "libhsakmt's semaphore");
  (void)::sem_post(semaphore);
  // The file that other ROCm processes open is the one that is mapped here.
  const UniqueFd fd(::shm_open(kShmName, O_RDWR | O_CLOEXEC, 0));
  std::uint32_t magic = 0;
  if (!fd || ::pread(fd.get(), &magic, sizeof(magic), 0) != sizeof(magic) || magic != kShmMagic)
    return Error{ENOENT, "libhsakmt's shared memory is not in /dev/shm"};
  return {};
}

// ---- the child
// ----------------------------------------------------------------------------------------------------------

// The child of a process with GPU memory inherits descriptors, but no device map and no memory that a GPU
// uses, as libhsakmt arranges it.
Result<void> add_child(Arena& arena) {
  for (std::uint32_t i = 0; i < arena.num_maps; ++i)
    (void)::madvise(reinterpret_cast<void*>(arena.maps[i].address), arena.maps[i].bytes, MADV_DONTFORK);
  if (::madvise(&arena, arena.bytes, MADV_DONTFORK) != 0) return make_error(errno, "MADV_DONTFORK");
  const pid_t pid = ::fork();
  if (pid < 0) return make_error(errno, "fork");
  if (pid == 0) {
    (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) (void)::pause();
  }
  arena.child = pid;
  return {};
}

Result<void> check_child(const Arena& arena) {
  if (arena.child == 0) return {};
  if (::kill(arena.child, 0) != 0) return make_error(errno, "the child");
  for (const int fd : {arena.kfd_fd, arena.gpus[0].render_fd}) {
    if (fd >= 0 && !same_open_file(::getpid(), fd, arena.child, fd))
      return Error{EBADF, "descriptor " + std::to_string(fd) + " of the child is another file"};
  }
  return {};
}

Result<void> check_threaded_child(const Arena& arena) {
  if (arena.threaded_child == 0) return {};
  const auto threads =
      std::filesystem::directory_iterator("/proc/" + std::to_string(arena.threaded_child) + "/task");
  const auto found = std::distance(begin(threads), end(threads));
  if (found == arena.child_threads + 1) return {};
  return Error{ESRCH, "the child has " + std::to_string(found) + " threads"};
}

}  // namespace

Result<UniqueFd> take_descriptor(pid_t pid, int fd) {
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process) return make_error(errno, "pidfd_open of " + std::to_string(pid));
  UniqueFd taken(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), fd, 0)));
  if (!taken) return make_error(errno, "pidfd_getfd of " + std::to_string(fd) + " of " + std::to_string(pid));
  return taken;
}

Result<void> open_files(Arena& arena, const Options& options, const std::vector<TopologyGpu>& topology) {
  if (options.render_first) SLUICE_TRY(open_render_nodes(arena, options, topology));
  SLUICE_TRY_ASSIGN(UniqueFd kfd, open_device("/dev/kfd"));
  arena.kfd_fd = kfd.release();
  if (options.second_kfd) {
    SLUICE_TRY_ASSIGN(UniqueFd second, open_device("/dev/kfd"));
    arena.second_kfd_fd = second.release();
  }
  if (options.dup_kfd) arena.kfd_dup_fd = ::fcntl(arena.kfd_fd, F_DUPFD_CLOEXEC, 20);

  kfd_ioctl_get_version_args version{};
  SLUICE_TRY(device_ioctl(arena.kfd_fd, AMDKFD_IOC_GET_VERSION, &version, "GET_VERSION"));
  if (version.major_version != 1) return Error{EPROTO, "unknown KFD version"};
  arena.can_export = version.minor_version >= kFirstMinorWithExport ? 1 : 0;
  if (!options.render_first) SLUICE_TRY(open_render_nodes(arena, options, topology));
  for (std::uint32_t i = 0; i < arena.num_gpus; ++i)
    SLUICE_TRY(acquire_vm(arena.kfd_fd, arena.gpus[i].render_fd, arena.gpus[i].gpu_id));
  return acquire_rest(arena, options, topology);
}

Result<void> open_render_nodes(Arena& arena, const Options& options,
                               const std::vector<TopologyGpu>& topology) {
  for (std::uint32_t i = 0; i < arena.num_gpus; ++i) SLUICE_TRY(open_render(arena, i, topology[i], options));
  return {};
}

Result<void> finish_files(Arena& arena, const Options& options) {
  if (options.dmabuf_fd || options.map_dmabuf) SLUICE_TRY(add_dmabuf(arena, options));
  if (options.hsakmt_shm) SLUICE_TRY(add_hsakmt_shm(arena));
  for (std::uint32_t i = 0; i < arena.num_gpus && options.close_render; ++i)
    close_fd(arena.gpus[i].render_fd);
  if (options.close_kfd) close_kfd(arena);
  if (options.mapping_child) SLUICE_TRY(add_threaded_child(arena, 0));
  return options.fork_child ? add_child(arena) : Result<void>{};
}

Result<void> check_files(const Arena& arena) {
  if (arena.kfd_fd >= 0) {
    SLUICE_TRY_ASSIGN(const dev_t kfd, device_of(arena.kfd_fd));
    for (const int fd : {arena.kfd_dup_fd, arena.second_kfd_fd, arena.inherited_kfd_fd}) {
      if (fd < 0) continue;
      SLUICE_TRY_ASSIGN(const dev_t other, device_of(fd));
      if (other != kfd) return Error{EBADF, "descriptor " + std::to_string(fd) + " is no /dev/kfd"};
    }
    // Both open files of /dev/kfd belong to one KFD process: each answers.
    for (const int fd : {arena.kfd_fd, arena.kfd_dup_fd, arena.second_kfd_fd}) {
      if (fd < 0) continue;
      SLUICE_TRY_ASSIGN(const std::vector<std::uint32_t> ids, aperture_gpu_ids(fd));
      if (ids.size() < arena.num_gpus) return Error{ENODEV, "GPUs are missing"};
    }
  }
  for (std::uint32_t i = 0; i < arena.num_gpus; ++i) {
    const GpuRecord& gpu = arena.gpus[i];
    if (gpu.render_fd < 0) continue;
    SLUICE_TRY_ASSIGN(const dev_t render, device_of(gpu.render_fd));
    std::uint32_t working = 0;
    drm_amdgpu_info info{};
    info.return_pointer = reinterpret_cast<std::uintptr_t>(&working);
    info.return_size = sizeof(working);
    info.query = AMDGPU_INFO_ACCEL_WORKING;
    SLUICE_TRY(device_ioctl(gpu.render_fd, DRM_IOCTL_AMDGPU_INFO, &info, "AMDGPU_INFO"));
    if (working == 0) return Error{EIO, "a render node does not work"};
    if (gpu.other_render_fd < 0) continue;
    SLUICE_TRY_ASSIGN(const dev_t other, device_of(gpu.other_render_fd));
    if (other != render) return Error{EBADF, "two render files are of different GPUs"};
    if (same_open_file(::getpid(), gpu.render_fd, ::getpid(), gpu.other_render_fd))
      return Error{EBADF, "two render files have become one"};
  }
  SLUICE_TRY(check_dmabuf(arena));
  SLUICE_TRY(check_hsakmt_shm(arena));
  SLUICE_TRY(check_child(arena));
  return check_threaded_child(arena);
}

Result<void> add_threaded_child(Arena& arena, std::uint32_t threads) {
  int ready[2];
  if (::pipe2(ready, O_CLOEXEC) != 0) return make_error(errno, "pipe2");
  const UniqueFd from(ready[0]), to(ready[1]);
  if (::madvise(&arena, arena.bytes, MADV_DONTFORK) != 0) return make_error(errno, "MADV_DONTFORK");
  const pid_t pid = ::fork();
  if (pid < 0) return make_error(errno, "fork");
  if (pid == 0) {
    (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (std::uint32_t i = 0; i < threads; ++i) {
      std::thread([] {
        for (;;) (void)::pause();
      }).detach();
    }
    (void)!::write(to.get(), "r", 1);
    (void)::close_range(0, ~0U, 0);
    for (;;) (void)::pause();
  }
  char said = 0;
  if (::read(from.get(), &said, 1) != 1) return make_error(EIO, "the child with threads");
  arena.threaded_child = pid;
  arena.child_threads = threads;
  return {};
}

Result<void> end_children(Arena& arena) {
  for (std::int32_t* const child : {&arena.child, &arena.threaded_child}) {
    if (*child == 0) continue;
    if (::kill(*child, SIGKILL) != 0) return make_error(errno, "the child");
    while (::waitpid(*child, nullptr, 0) < 0 && errno == EINTR) {
    }
    *child = 0;
  }
  return {};
}

}  // namespace sluice::subject
