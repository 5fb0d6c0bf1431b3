// SPDX-License-Identifier: MIT
// gpu-subject: builds a GPU process, says "ready bos=N bytes=N zero=N gpus=N pid=N", and obeys commands
// (subject.h). It sits in read(2) between commands, which is where it is dumped. It talks over standard input
// and output, or over two FIFOs that it has opened itself: then it holds nothing of who started it.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>

#include "base/unique_fd.h"
#include "subject/files.h"
#include "subject/subject.h"

namespace {

using sluice::Error;
using sluice::make_error;
using sluice::Result;
using sluice::UniqueFd;
using sluice::subject::Arena;
using sluice::subject::Options;

Result<UniqueFd> open_fifo(const std::string& path) {
  // For both directions: opening waits for nobody, and nobody's going away is an end of file.
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) return make_error(errno, path);
  return fd;
}

// Closes what came through execve: descriptors without FD_CLOEXEC. `but` stays.
Result<void> close_inherited(int but) {
  std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir("/proc/self/fd"), &::closedir);
  if (!directory) return make_error(errno, "/proc/self/fd");
  while (const dirent* entry = ::readdir(directory.get())) {
    const int fd = std::atoi(entry->d_name);  // "." and "..": 0
    const int flags = fd > STDERR_FILENO && fd != but ? ::fcntl(fd, F_GETFD) : FD_CLOEXEC;
    if ((flags & FD_CLOEXEC) == 0) (void)::close(fd);
  }
  return {};
}

// Commands and answers go over the FIFOs; the standard descriptors go to /dev/null, the terminal is let go.
Result<void> talk_over_fifos(Arena& arena, const std::string& directory) {
  SLUICE_TRY(close_inherited(arena.inherited_kfd_fd));
  SLUICE_TRY_ASSIGN(UniqueFd in, open_fifo(directory + "/in"));
  SLUICE_TRY_ASSIGN(UniqueFd out, open_fifo(directory + "/out"));
  arena.in_fd = in.release();
  arena.out_fd = out.release();
  (void)::setsid();  // EPERM: a leader already
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null) return make_error(errno, "/dev/null");
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::dup2(null.get(), fd) < 0) return make_error(errno, "dup2");
  }
  return {};
}

// Opens /dev/kfd and goes on in a child; the opener ends. The child's descriptor of a dead process' file.
Result<int> inherit_kfd() {
  UniqueFd fd(::open("/dev/kfd", O_RDWR | O_CLOEXEC));
  if (!fd) return make_error(errno, "/dev/kfd");
  const pid_t pid = ::fork();
  if (pid < 0) return make_error(errno, "fork");
  if (pid > 0) ::_exit(0);
  return fd.release();
}

// A child opens /dev/kfd, and lives as long as its parent, which has the file, too. The parent's descriptor.
Result<int> borrow_kfd() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return make_error(errno, "pipe2");
  const UniqueFd out(ends[0]);
  UniqueFd in(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return make_error(errno, "fork");
  if (pid == 0) {
    (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int fd = ::open("/dev/kfd", O_RDWR | O_CLOEXEC);
    if (::write(in.get(), &fd, sizeof fd) != sizeof fd) ::_exit(1);
    for (;;) (void)::pause();
  }
  in.reset();  // a child that ends before it has written is the end of file
  int fd = -1;
  if (::read(out.get(), &fd, sizeof fd) != sizeof fd) return make_error(EIO, "a child's /dev/kfd");
  SLUICE_TRY_ASSIGN(UniqueFd taken, sluice::subject::take_descriptor(pid, fd));
  return taken.release();
}

Result<void> build(Arena& arena, const Options& options) {
  if (options.inherited_kfd) {
    SLUICE_TRY_ASSIGN(arena.inherited_kfd_fd, inherit_kfd());
  }
  if (options.borrowed_kfd) {
    SLUICE_TRY_ASSIGN(arena.inherited_kfd_fd, borrow_kfd());
  }
  if (!options.control.empty()) SLUICE_TRY(talk_over_fifos(arena, options.control));
  return sluice::subject::subject_start(arena, options);
}

}  // namespace

int main(int argc, char** argv) {
  const auto options = sluice::subject::parse_options(argc, argv);
  if (!options) return 2;
  auto created = sluice::subject::create_arena();
  if (!created) {
    sluice::subject::say(STDOUT_FILENO, "bad " + created.error().what);
    return 1;
  }
  Arena& arena = **created;
  if (const auto built = build(arena, *options); !built) {
    sluice::subject::say(arena.out_fd, "bad " + built.error().what);
    return 1;
  }
  const sluice::subject::Totals totals = sluice::subject::totals_of(arena);
  sluice::subject::say(arena.out_fd,
                       "ready bos=" + std::to_string(totals.bos) + " bytes=" + std::to_string(totals.bytes) +
                           " zero=" + std::to_string(totals.zero_bytes) +
                           " gpus=" + std::to_string(arena.num_gpus) + " pid=" + std::to_string(::getpid()));
  return sluice::subject::subject_continue(arena);
}
