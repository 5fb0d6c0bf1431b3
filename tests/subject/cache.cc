// SPDX-License-Identifier: MIT
#include "subject/cache.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/unique_fd.h"
#include "subject/bos.h"
#include "subject/device.h"

namespace sluice::subject {
namespace {

volatile sig_atomic_t g_is_to_drop = 0;

void ask_to_drop(int) {
  g_is_to_drop = 1;
}

Result<void> tell(const Arena& arena) {
  constexpr char kLine[] = "dropped\n";
  const UniqueFd fifo(::open(arena.cache_told.data(), O_WRONLY | O_CLOEXEC));
  if (!fifo || ::write(fifo.get(), kLine, sizeof kLine - 1) != sizeof kLine - 1)
    return make_error(errno, arena.cache_told.data());
  return {};
}

Result<void> drop_cache(Arena& arena) {
  for (; arena.cache_bos > 0; --arena.cache_bos) {
    const BoRecord& bo = arena.bos[arena.num_bos - 1];
    if (::munmap(reinterpret_cast<void*>(bo.va), bo.bytes) != 0) return make_error(errno, "munmap");
    --arena.num_maps;
    SLUICE_TRY(unmap_memory(arena.kfd_fd, bo.handle, arena.gpus[bo.gpu].gpu_id));
    SLUICE_TRY(free_memory(arena.kfd_fd, bo.handle));
    --arena.num_bos;
  }
  return tell(arena);
}

}  // namespace

Result<void> make_cache(Arena& arena, const Options& options) {
  if (options.cache_bytes == 0) return {};
  if (options.cache_told.size() >= arena.cache_told.size()) return Error{ENAMETOOLONG, "--cache-told"};
  std::memcpy(arena.cache_told.data(), options.cache_told.data(), options.cache_told.size());
  for (std::uint32_t gpu = 0; gpu < arena.num_gpus; ++gpu) {
    SLUICE_TRY_ASSIGN(const UniqueFd window, open_window_file(arena, gpu));
    NewBo wanted{.gpu = gpu, .bytes = options.cache_bytes};
    wanted.flags = KFD_IOC_ALLOC_MEM_FLAGS_VRAM | KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC | kWritable;
    std::uint64_t offset = 0;
    SLUICE_TRY_ASSIGN(const std::uint32_t index, add_bo(arena, wanted, &offset));
    SLUICE_TRY(map_bo(arena, index, offset));
    SLUICE_TRY(fill_bo(arena, window.get(), arena.bos[index]));
    ++arena.cache_bos;
  }
  struct sigaction action {};
  action.sa_handler = ask_to_drop;
  sigset_t drop;
  ::sigemptyset(&drop);
  ::sigaddset(&drop, SIGUSR1);
  if (::sigaction(SIGUSR1, &action, nullptr) != 0 || ::sigprocmask(SIG_BLOCK, &drop, nullptr) != 0)
    return make_error(errno, "SIGUSR1");
  return {};
}

Result<void> await_input(Arena& arena, int fd) {
  sigset_t taken;
  ::sigprocmask(SIG_BLOCK, nullptr, &taken);
  ::sigdelset(&taken, SIGUSR1);
  while (arena.cache_bos > 0) {
    pollfd input{fd, POLLIN, 0};
    if (::ppoll(&input, 1, nullptr, &taken) > 0) return {};
    if (errno != EINTR) return make_error(errno, "wait for a command");
    if (g_is_to_drop != 0) SLUICE_TRY(drop_cache(arena));
  }
  return {};
}

}  // namespace sluice::subject
