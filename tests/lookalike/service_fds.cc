// SPDX-License-Identifier: MIT
#include "lookalike/service_fds.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "lookalike/lock.h"
#include "lookalike/log.h"
#include "lookalike/version.h"

namespace sluice::lookalike {
namespace {

constexpr int kMostServices = 17;
constexpr int kPad = 16;
constexpr int kAlignment = 128;
constexpr int kFirstBase = 1024;  // until the task's descriptors are known

int g_base = kFirstBase;
std::array<bool, kMostServices> g_installed{};

[[noreturn]] void bug(const char* what, int number) {
  log_line(kError, "Error: BUG: %s (%d)\n", what, number);
  std::abort();
}

int place_of(int type) {
  return g_base - type;
}

// The descriptors lie in the queue of a datagram socket that is connected to itself; one is read by peeking
// at its place in the queue (SO_PEEK_OFF counts bytes: one byte per message).
struct Fdstore {
  pthread_mutex_t mutex;
  int count;
};
// Mapped from the start: nobody takes it for what a plugin has left.
Fdstore* const g_fdstore_memory = static_cast<Fdstore*>(
    ::mmap(nullptr, sizeof(Fdstore), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
Fdstore* g_fdstore = nullptr;

struct Message {
  char byte = 'f';
  iovec vector{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
  Message() {
    header.msg_iov = &vector;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
};

}  // namespace

void install_service(int type, int fd) {
  if (type <= 0 || type > kHostVersion.last_service_fd) bug("unknown service descriptor", type);
  const int place = place_of(type);
  if (g_installed[static_cast<std::size_t>(type)] || ::fcntl(place, F_GETFD) >= 0) bug("busy target", place);
  if (::dup3(fd, place, O_CLOEXEC) != place) bug("cannot install a service descriptor", type);
  ::close(fd);
  g_installed[static_cast<std::size_t>(type)] = true;
}

void close_service(int type) {
  const int fd = service(type);
  if (fd < 0) return;
  ::close(fd);
  g_installed[static_cast<std::size_t>(type)] = false;
}

int service(int type) {
  if (type <= 0 || type > kHostVersion.last_service_fd) bug("unknown service descriptor", type);
  return g_installed[static_cast<std::size_t>(type)] ? place_of(type) : -1;
}

bool is_service(int fd) {
  const int type = g_base - fd;
  return type > 0 && type < kMostServices && g_installed[static_cast<std::size_t>(type)];
}

int service_limit() {
  return g_base;
}

void relocate_services(int highest_task_fd) {
  const int wanted = highest_task_fd + 1 + kPad + kMostServices;
  const int base = (wanted + kAlignment - 1) / kAlignment * kAlignment;
  if (base == g_base) return;
  for (int type = 1; type < kMostServices; ++type) {
    if (!g_installed[static_cast<std::size_t>(type)]) continue;
    if (::fcntl(base - type, F_GETFD) >= 0) bug("busy target", base - type);
    if (::dup3(g_base - type, base - type, O_CLOEXEC) < 0)
      bug("cannot move a service descriptor, errno", errno);
    ::close(g_base - type);
  }
  g_base = base;
  if (service(kLogFd) >= 0) log_init(service(kLogFd), log_level());
}

void fdstore_init() {
  const int socket_fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  socklen_t length = sizeof(name.sun_family);
  // An automatic abstract name, dropped again by nobody: the socket talks to itself only.
  if (socket_fd < 0 || ::bind(socket_fd, reinterpret_cast<sockaddr*>(&name), length) != 0)
    bug("fdstore", errno);
  length = sizeof(name);
  if (::getsockname(socket_fd, reinterpret_cast<sockaddr*>(&name), &length) != 0 ||
      ::connect(socket_fd, reinterpret_cast<sockaddr*>(&name), length) != 0) {
    bug("fdstore", errno);
  }
  install_service(kHostVersion.last_service_fd, socket_fd);
  g_fdstore = g_fdstore_memory;
  init_shared(g_fdstore->mutex);
}

int fdstore_add_fd(int fd) {
  if (g_fdstore == nullptr) bug("fdstore_add before the fdstore exists", fd);
  const Locked locked(g_fdstore->mutex);
  Message message;
  cmsghdr* control = CMSG_FIRSTHDR(&message.header);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(control), &fd, sizeof(fd));
  if (::sendmsg(service(kHostVersion.last_service_fd), &message.header, 0) != 1) return -1;
  return g_fdstore->count++;
}

int fdstore_get_fd(int id) {
  if (g_fdstore == nullptr) bug("fdstore_get before the fdstore exists", id);
  const Locked locked(g_fdstore->mutex);
  const int socket_fd = service(kHostVersion.last_service_fd);
  if (::setsockopt(socket_fd, SOL_SOCKET, SO_PEEK_OFF, &id, sizeof(id)) != 0) return -1;
  Message message;
  if (::recvmsg(socket_fd, &message.header, MSG_PEEK) != 1) return -1;
  const cmsghdr* control = CMSG_FIRSTHDR(&message.header);
  if (control == nullptr || control->cmsg_type != SCM_RIGHTS) return -1;
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(control), sizeof(fd));
  return fd;
}

}  // namespace sluice::lookalike
