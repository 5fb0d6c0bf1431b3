// SPDX-License-Identifier: MIT
#include "daemon.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "base/unique_fd.h"

namespace sluice::vm_test {
namespace {

bool answers(const std::string& path) {
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  return fd && ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

}  // namespace

Daemon::Daemon(const Launch& launch, std::filesystem::path socket)
    : socket_(std::move(socket)), pid_(start(launch)) {
  if (eventually([this] { return !is_alive(pid_) || answers(socket_); }) && is_alive(pid_)) return;
  kill_and_reap(pid_);
  throw std::runtime_error(launch.arguments.front() + " does not start");
}

Daemon::~Daemon() {
  (void)::kill(pid_, SIGTERM);
  if (!wait_for(pid_)) kill_and_reap(pid_);
}

}  // namespace sluice::vm_test
