// SPDX-License-Identifier: MIT
// The plugin's imports that can fail, and how. What is not here, and why: imports_test.cc.
#include <amdgpu.h>
#include <dirent.h>
#include <fcntl.h>
#include <protobuf-c/protobuf-c.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/poll.h>
#include <sys/ptrace.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "seam.h"

namespace sluice::seam {
namespace {

template <std::size_t kBytes>
struct Name {
  char text[kBytes]{};
  constexpr Name(const char (&from)[kBytes]) { std::copy_n(from, kBytes, text); }  // NOLINT: a literal
};

template <Name kName>
void* real = nullptr;

// ---- what a failure looks like. `call` makes the call; what it returns.

constexpr std::uint32_t kOfCalls = kError | kKill | kHang;

// -1 (MAP_FAILED) and errno.
template <int kErrno>
struct Minus {
  static constexpr std::uint32_t kKinds = kOfCalls;
  template <class Result, class Call>
  static Result fail(Call) {
    errno = kErrno;
    return (Result)-1;  // NOLINT: of an integer, and of mmap's pointer
  }
};
// As the kernel does it: the descriptor is gone, and then the error is told.
struct Late {
  static constexpr std::uint32_t kKinds = kOfCalls;
  template <class Result, class Call>
  static Result fail(Call call) {
    (void)call();
    errno = EIO;
    return -1;
  }
};
template <int kErrno>
struct Null {
  static constexpr std::uint32_t kKinds = kOfCalls;
  template <class Result, class Call>
  static Result fail(Call) {
    errno = kErrno;
    return nullptr;
  }
};
// Memory. A process that is killed here cannot be told from one that is killed at its next other point.
struct NoMemory : Null<ENOMEM> {
  static constexpr std::uint32_t kKinds = kError;
};
// The error itself is returned, negative or not.
template <int kResult>
struct Number {
  static constexpr std::uint32_t kKinds = kOfCalls;
  template <class Result, class Call>
  static Result fail(Call) {
    return kResult;
  }
};
// Of a call that waits for nothing but memory of the kernel's: no disk, driver, lock of another process' or
// peer can keep it. Nor does one hang that waits as long as it is told: what it waits for does, elsewhere.
template <class Failure>
struct AtOnce : Failure {
  static constexpr std::uint32_t kKinds = Failure::kKinds & ~std::uint32_t{kHang};
};

template <Name kName, class Failure, class Function>
struct Wrapper;
template <Name kName, class Failure, class Result, class... Arguments>
struct Wrapper<kName, Failure, Result(Arguments...)> {
  static Result call(Arguments... arguments) {
    const auto made = [&] { return reinterpret_cast<Result (*)(Arguments...)>(real<kName>)(arguments...); };
    return at_point(kName.text, Failure::kKinds) == kError ? Failure::template fail<Result>(made) : made();
  }
};
template <Name kName, class Failure, class Result, class... Arguments>
struct Wrapper<kName, Failure, Result(Arguments...) noexcept>
    : Wrapper<kName, Failure, Result(Arguments...)> {};

template <Name kName, class Function>
Import wrapped_by(Function* wrapper) {
  return {kName.text, reinterpret_cast<void*>(wrapper), &real<kName>};
}
template <Name kName, class Failure, class Function>
Import entry() {
  return wrapped_by<kName>(&Wrapper<kName, Failure, Function>::call);
}

// ---- transfers, which may be short. read and write have no offset and do not look at one.
template <Name kName>
ssize_t transfer(int fd, void* data, std::size_t bytes, off_t offset) {
  const std::uint32_t kinds = kOfCalls | (bytes > 1 ? kShort : kPass);
  const Kind kind = at_point(kName.text, kinds);
  if (kind == kError) {
    errno = EIO;
    return -1;
  }
  if (kind == kShort) bytes /= 2;
  return reinterpret_cast<ssize_t (*)(int, void*, std::size_t, off_t)>(real<kName>)(fd, data, bytes, offset);
}

// ---- files

void note(int dir, const char* path, bool writes) {
  const char* const notes = std::getenv(kOpenedVariable);
  if (notes == nullptr) return;
  std::array<char, 4096> place{};
  if (path[0] != '/') {  // not readlink(), for which the virtual machine has answers of its own
    std::array<char, 64> link{};
    (void)std::snprintf(link.data(), link.size(), dir == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d",
                        dir);
    if (::syscall(SYS_readlinkat, AT_FDCWD, link.data(), place.data(), place.size() - 1) < 0) place[0] = '?';
  }
  std::array<char, 8192> line{};
  const int length = std::snprintf(line.data(), line.size(), "%c %s%s%s\n", writes ? 'w' : 'r', place.data(),
                                   path[0] == '/' ? "" : "/", path);
  const int fd = ::open(notes, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0 || ::write(fd, line.data(), static_cast<std::size_t>(length)) != length) std::abort();
  (void)::close(fd);
}

bool writes(int flags) {
  return (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC)) != 0;
}

template <Name kName>
int open_file(const char* path, int flags, mode_t mode) {
  note(AT_FDCWD, path, writes(flags));
  return Wrapper<kName, Minus<EMFILE>, int(const char*, int, mode_t)>::call(path, flags, mode);
}
int open_at(int dir, const char* path, int flags, mode_t mode) {
  note(dir, path, writes(flags));
  return Wrapper<"openat64", Minus<EMFILE>, int(int, const char*, int, mode_t)>::call(dir, path, flags, mode);
}
FILE* open_stdio(const char* path, const char* mode) {
  note(AT_FDCWD, path, mode[0] != 'r' || std::strchr(mode, '+') != nullptr);
  return Wrapper<"fopen64", Null<EMFILE>, FILE*(const char*, const char*)>::call(path, mode);
}
int link_at(int dir, const char* from, int to_dir, const char* to, int flags) {
  note(to_dir, to, true);
  return Wrapper<"linkat", Minus<ENOSPC>, int(int, const char*, int, const char*, int)>::call(
      dir, from, to_dir, to, flags);
}
int rename_at(int dir, const char* from, int to_dir, const char* to) {
  note(dir, from, true);
  note(to_dir, to, true);
  return Wrapper<"renameat", Minus<ENOSPC>, int(int, const char*, int, const char*)>::call(dir, from, to_dir,
                                                                                           to);
}
int unlink_at(int dir, const char* path, int flags) {
  note(dir, path, true);
  return Wrapper<"unlinkat", Minus<EIO>, int(int, const char*, int)>::call(dir, path, flags);
}

// ---- the odd ones

struct SystemCall {
  long number;
  const char* name;
  int error;
  std::uint32_t kinds;
};
constexpr std::uint32_t kAtOnce = AtOnce<Minus<0>>::kKinds;
constexpr SystemCall kSystemCalls[] = {
    {SYS_pidfd_open, "pidfd_open", EMFILE, kAtOnce}, {SYS_pidfd_getfd, "pidfd_getfd", EMFILE, kOfCalls},
    {SYS_openat2, "openat2", ELOOP, kOfCalls},       {SYS_kcmp, "kcmp", EPERM, kOfCalls},
    {SYS_mbind, "mbind", ENOMEM, kAtOnce},           {SYS_memfd_create, "memfd_create", EMFILE, kAtOnce},
};
// Of a lock that is there, and who waits looks again whatever it says.
constexpr long kNoPoint = SYS_futex;

long system_call(long number, long a, long b, long c, long d, long e, long f) {
  const auto* const known = std::find_if(std::begin(kSystemCalls), std::end(kSystemCalls),
                                         [number](const SystemCall& each) { return each.number == number; });
  if (known != std::end(kSystemCalls)) {
    if (at_point(known->name, known->kinds) != kPass) {
      errno = known->error;
      return -1;
    }
  } else if (number != kNoPoint) {
    give_up_unlisted("the system call", number);
  }
  return reinterpret_cast<long (*)(long, long, long, long, long, long, long)>(real<"syscall">)(number, a, b,
                                                                                               c, d, e, f);
}

// The trap of own_calls.cc is a signal that nobody may block.
int mask_signals(int how, const sigset_t* set, sigset_t* old) {
  const bool with = set != nullptr && sigismember(set, SIGTERM) == 1;
  if (set != nullptr && how == SIG_SETMASK && !with) signals_are_held(false);
  const int result = ::sigprocmask(how, set, old);  // seam.cc's; glibc's two are alike
  if (how == SIG_BLOCK && with) signals_are_held(true);
  return result;
}
// The last look for one that was held.
int take_signal(const sigset_t* set, siginfo_t* info, const timespec* patience) {
  if (sigismember(set, SIGTERM) == 1) signals_are_held(false);
  return reinterpret_cast<decltype(&sigtimedwait)>(real<"sigtimedwait">)(set, info, patience);
}

int poll_files(pollfd* files, nfds_t count, int milliseconds) {
  if (at_point("poll", kAtOnce) == kError) {
    errno = ENOMEM;
    return -1;
  }
  return reinterpret_cast<decltype(&poll)>(real<"poll">)(files, count, milliseconds);
}

// For what is declared without "...".
#define SEAM(name, failure) entry<#name, failure, decltype(::name)>()

}  // namespace

Imports imports() {
  static const Import kImports[] = {
      // files
      wrapped_by<"open">(&open_file<"open">),
      wrapped_by<"open64">(&open_file<"open64">),
      wrapped_by<"openat64">(&open_at),
      entry<"fcntl64", AtOnce<Minus<EMFILE>>, int(int, int, long)>(),
      SEAM(close, Late),
      SEAM(statx, Minus<EIO>),
      SEAM(stat64, Minus<EIO>),
      SEAM(fstat64, Minus<EIO>),
      SEAM(fstatat64, Minus<EIO>),
      SEAM(fstatfs64, Minus<EIO>),
      SEAM(access, AtOnce<Minus<ENOENT>>),
      SEAM(readlink, Minus<EIO>),
      SEAM(readlinkat, Minus<EIO>),
      SEAM(opendir, Null<EMFILE>),
      SEAM(fdopendir, Null<ENOMEM>),
      SEAM(readdir64, Null<EIO>),
      wrapped_by<"fopen64">(&open_stdio),
      SEAM(mkdir, Minus<EROFS>),
      SEAM(fchmod, Minus<EIO>),
      SEAM(fallocate64, Minus<ENOSPC>),
      SEAM(lseek64, AtOnce<Minus<EIO>>),
      SEAM(ftruncate64, Minus<ENOSPC>),
      SEAM(fdatasync, Minus<EIO>),
      SEAM(fsync, Minus<EIO>),
      wrapped_by<"renameat">(&rename_at),
      wrapped_by<"linkat">(&link_at),
      wrapped_by<"unlinkat">(&unlink_at),
      SEAM(posix_fadvise64, Number<ENOSYS>),
      wrapped_by<"read">(&transfer<"read">),
      wrapped_by<"write">(&transfer<"write">),
      wrapped_by<"pread64">(&transfer<"pread64">),
      wrapped_by<"pwrite64">(&transfer<"pwrite64">),
      SEAM(writev, Minus<EIO>),
      // devices and processes
      entry<"ioctl", Minus<ENOMEM>, int(int, unsigned long, void*)>(),
      entry<"ptrace", Minus<ESRCH>, long(int, pid_t, void*, void*)>(),
      wrapped_by<"syscall">(&system_call),
      wrapped_by<"poll">(&poll_files),
      SEAM(ppoll, AtOnce<Minus<ENOMEM>>),
      SEAM(eventfd, AtOnce<Minus<EMFILE>>),
      SEAM(on_exit, AtOnce<Number<ENOMEM>>),
      SEAM(signalfd, AtOnce<Minus<EMFILE>>),
      SEAM(sem_init, AtOnce<Minus<ENOSYS>>),
      SEAM(uname, AtOnce<Minus<EFAULT>>),
      SEAM(unshare, AtOnce<Minus<ENOMEM>>),
      SEAM(sched_getaffinity, AtOnce<Minus<ENOMEM>>),
      SEAM(getrandom, AtOnce<Minus<ENOSYS>>),
      // sockets
      SEAM(socketpair, AtOnce<Minus<EMFILE>>),
      SEAM(sendmsg, Minus<ENOBUFS>),
      SEAM(recvmsg, Minus<ENOMEM>),
      SEAM(recv, Minus<ENOMEM>),
      SEAM(getsockopt, AtOnce<Minus<ENOMEM>>),
      SEAM(setsockopt, AtOnce<Minus<ENOMEM>>),
      // memory
      SEAM(malloc, NoMemory),
      SEAM(calloc, NoMemory),
      SEAM(realloc, NoMemory),
      SEAM(aligned_alloc, NoMemory),
      SEAM(strdup, NoMemory),
      SEAM(mmap64, Minus<ENOMEM>),
      SEAM(madvise, AtOnce<Minus<ENOMEM>>),
      SEAM(mincore, AtOnce<Minus<EAGAIN>>),
      // threads
      SEAM(pthread_create, AtOnce<Number<EAGAIN>>),
      wrapped_by<"pthread_sigmask">(&mask_signals),
      wrapped_by<"sigtimedwait">(&take_signal),
      // the loader
      entry<"dlopen", AtOnce<Null<ENOMEM>>, void*(const char*, int)>(),
      // libraries
      SEAM(protobuf_c_message_unpack, NoMemory),
      SEAM(amdgpu_device_initialize, Number<-ENOMEM>),
      SEAM(amdgpu_query_gpu_info, Number<-EIO>),
      SEAM(amdgpu_query_hw_ip_info, Number<-EIO>),
      SEAM(amdgpu_bo_alloc, Number<-ENOMEM>),
      SEAM(amdgpu_bo_import, Number<-ENOMEM>),
      SEAM(amdgpu_bo_export, Number<-EMFILE>),
      SEAM(amdgpu_bo_cpu_map, Number<-ENOMEM>),
      SEAM(amdgpu_bo_va_op_raw, Number<-ENOMEM>),
      SEAM(amdgpu_create_bo_from_user_mem, Number<-ENOMEM>),
      SEAM(amdgpu_va_range_alloc, Number<-ENOMEM>),
      SEAM(amdgpu_cs_ctx_create, Number<-ENOMEM>),
      SEAM(amdgpu_cs_submit_raw2, Number<-ENOMEM>),
      SEAM(amdgpu_cs_fence_to_handle, Number<-EMFILE>),
      SEAM(amdgpu_cs_query_fence_status, Number<-EIO>),
      // the host
      entry<"criu_get_image_dir", Number<-1>, int()>(),
      entry<"find_unused_fd_pid", Number<-1>, int(int)>(),
      entry<"fdstore_add", Number<-1>, int(int)>(),
      entry<"fdstore_get", Number<-1>, int(int)>(),
      entry<"img_streamer_open", Number<-1>, int(char*, int)>(),
      entry<"add_inventory_plugin", Number<-1>, int(const char*)>(),
  };
  return {kImports, std::size(kImports)};
}

}  // namespace sluice::seam
