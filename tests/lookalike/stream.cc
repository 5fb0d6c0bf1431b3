// SPDX-License-Identifier: MIT
#include "lookalike/stream.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <set>

#include "lookalike/lock.h"
#include "lookalike/log.h"
#include "lookalike/service_fds.h"
#include "streamer/wire.h"

namespace sluice::lookalike {
namespace {

pthread_mutex_t* g_lock = nullptr;  // in memory that all tasks share
int g_flags = 0;
bool g_frozen = false;
std::set<std::string>* g_dumped = nullptr;

}  // namespace

int stream_connect(const std::string& images, bool dump) {
  UniqueFd socket = streamer::connect_to(images, dump ? streamer::kCaptureSocket : streamer::kServeSocket);
  if (!socket) {
    log_line(kError, "Error: can't connect to the image streamer in %s: %s\n", images.c_str(),
             std::strerror(errno));
    return -1;
  }
  install_service(kStreamerFd, socket.release());
  g_flags = dump ? O_WRONLY | O_CREAT | O_TRUNC : O_RDONLY;
  void* const memory =
      ::mmap(nullptr, sizeof(pthread_mutex_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return -1;
  g_lock = static_cast<pthread_mutex_t*>(memory);
  init_shared(*g_lock);
  if (dump) g_dumped = new std::set<std::string>;
  return 0;
}

bool streams() {
  return g_lock != nullptr;
}

void stream_frozen() {
  g_frozen = true;
}

int stream_open(const char* name, int flags) {
  if (!streams()) {
    log_line(kError, "Error: BUG: img_streamer_open(%s) without --stream\n", name);
    std::abort();
  }
  if (flags != g_flags) {
    log_line(kError, "Error: BUG: img_streamer_open(%s) with flags 0%o\n", name,
             static_cast<unsigned>(flags));
    std::abort();
  }
  const Locked locked(*g_lock);
  if (g_dumped != nullptr && !g_frozen) violation("%s is streamed before the tasks are frozen", name);
  if (g_dumped != nullptr && !g_dumped->insert(name).second) violation("%s is streamed twice", name);
  const int fd = streamer::open_stream(service(kStreamerFd), name, g_dumped != nullptr);
  if (fd >= 0 || fd == -ENOENT) return fd;
  log_in_any_thread("Error: the image streamer does not answer for %s: %s", name, std::strerror(-fd));
  return -1;
}

UniqueFd open_image(int directory, const std::string& name, int flags) {
  if (!streams()) return UniqueFd(::openat(directory, name.c_str(), flags | O_CLOEXEC, 0600));
  const int fd = stream_open(name.c_str(), flags);
  errno = fd == -ENOENT ? ENOENT : EPIPE;
  return UniqueFd(fd < 0 ? -1 : fd);
}

}  // namespace sluice::lookalike
