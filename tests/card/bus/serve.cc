// SPDX-License-Identifier: MIT
#include "bus/serve.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace sluice::card {
namespace {

// While engines wait for memory, they look at it after so long. Twice as long each time that no message came
// meanwhile: a queue may wait for hours.
constexpr int kFirstWaitMs = 1;
constexpr int kLongestWaitMs = 8;

// Somebody at the control socket: lines in, lines out.
class Client {
 public:
  explicit Client(UniqueFd socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }

  // Takes what has come. False: the client has gone, or is to go.
  bool take(Control& control) {
    char bytes[512];
    const ssize_t got = ::recv(fd(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    line_.append(bytes, static_cast<std::size_t>(got));
    for (std::size_t end = 0; (end = line_.find('\n')) != std::string::npos; line_.erase(0, end + 1)) {
      const std::string answer = control.run(std::string_view(line_).substr(0, end)) + "\n";
      // An answer is short and the socket's buffer is not: one that does not fit has a reader who does not
      // read.
      if (::send(fd(), answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT) !=
          static_cast<ssize_t>(answer.size())) {
        return false;
      }
    }
    return line_.size() <= Control::kLongest;
  }

 private:
  UniqueFd socket_;
  std::string line_;  // that has not ended
};

class Loop {
 public:
  Loop(Service service, VfioUser& session, Device& device, Control& control)
      : service_(std::move(service)), session_(session), device_(device), control_(control) {}

  Result<void> run() {
    while (true) {
      const bool waits = connection_ && device_.work();
      if (!waits) wait_ms_ = kFirstWaitMs;
      SLUICE_TRY(wait(waits ? wait_ms_ : -1));
      const bool message = polled_[0].revents != 0;
      wait_ms_ = message ? kFirstWaitMs : std::min(2 * wait_ms_, kLongestWaitMs);
      serve_clients();
      if (!message) continue;
      if (!connection_) {
        SLUICE_TRY(connect());
        continue;
      }
      SLUICE_TRY_ASSIGN(const bool goes_on, answer());
      if (!goes_on) return {};
    }
  }

 private:
  // QEMU's socket is the first that is polled, the control socket the second, then come its clients.
  Result<void> wait(int timeout_ms) {
    polled_.clear();
    polled_.push_back({connection_ ? connection_->fd() : service_.socket.get(), POLLIN, 0});
    polled_.push_back({service_.commands.get(), POLLIN, 0});  // none is -1, which poll(2) leaves out
    for (const Client& client : clients_) polled_.push_back({client.fd(), POLLIN, 0});
    while (::poll(polled_.data(), polled_.size(), timeout_ms) < 0) {
      if (errno != EINTR) return make_error(errno, "wait for QEMU");
    }
    return {};
  }

  Result<void> connect() {
    UniqueFd socket(::accept4(service_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) return make_error(errno, "accept QEMU's connection");
    connection_.emplace(std::move(socket));
    service_.socket.reset();  // there is one card for one QEMU
    return {};
  }

  // One message. False: QEMU has gone.
  Result<bool> answer() {
    SLUICE_TRY_ASSIGN(std::optional<VfioUserRequest> request, connection_->receive());
    if (!request) return false;
    const std::optional<VfioUserReply> reply = session_.answer(std::move(*request));
    if (reply) SLUICE_TRY(connection_->send(*reply));
    return true;
  }

  void serve_clients() {
    // From behind, so that those that go do not move those that are still to be looked at.
    for (std::size_t i = clients_.size(); i-- > 0;) {
      if (polled_[2 + i].revents == 0 || clients_[i].take(control_)) continue;
      clients_.erase(clients_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (polled_[1].revents == 0) return;
    UniqueFd socket(::accept4(service_.commands.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket) clients_.emplace_back(std::move(socket));
  }

  Service service_;
  VfioUser& session_;
  Device& device_;
  Control& control_;
  std::optional<Connection> connection_;
  std::vector<Client> clients_;
  std::vector<pollfd> polled_;
  int wait_ms_ = kFirstWaitMs;
};

}  // namespace

Result<void> serve(Service service, VfioUser& session, Device& device, Control& control) {
  return Loop(std::move(service), session, device, control).run();
}

}  // namespace sluice::card
