// SPDX-License-Identifier: MIT
#include "cli/check/obstacles/unix_sockets.h"

#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <thread>

#include "base/unique_fd.h"

namespace sluice::cli {
namespace {

constexpr std::size_t kMostSockets = 1U << 20U;
constexpr std::size_t kAnswerBytes = std::size_t{64} * 1024;
constexpr timeval kPatience = {0, 200'000};  // for an answer, which normally comes at once

UniqueFd diag_socket() {
  UniqueFd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (fd) (void)::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
  return fd;
}

// A socket belongs to the namespace in which it was created.
Result<UniqueFd> diag_socket_in(const std::string& process) {
  const std::string path = process + "/ns/net";
  const UniqueFd space(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!space) return make_error(errno, path);
  UniqueFd fd;
  int err = 0;
  std::thread([&] {
    if (::setns(space.get(), CLONE_NEWNET) != 0) {
      err = errno;
      return;
    }
    fd = diag_socket();
    err = fd ? 0 : errno;
  }).join();
  if (!fd) return make_error(err, path);
  return fd;
}

template <class T>
T read_as(std::string_view bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), std::min(bytes.size(), sizeof value));
  return value;
}

void read_attribute(unsigned type, std::string_view value, UnixSocket& socket) {
  switch (type) {
    case UNIX_DIAG_NAME:
      socket.named = !value.empty();
      break;
    case UNIX_DIAG_PEER:
      socket.peer = read_as<std::uint32_t>(value);
      break;
    case UNIX_DIAG_SHUTDOWN:
      socket.shutdown = read_as<std::uint8_t>(value);
      break;
    case UNIX_DIAG_RQLEN:
      socket.to_be_sent = read_as<unix_diag_rqlen>(value).udiag_wqueue;
      break;
    case UNIX_DIAG_ICONS:
      for (; value.size() >= sizeof(std::uint32_t); value.remove_prefix(sizeof(std::uint32_t)))
        socket.in_flight.push_back(read_as<std::uint32_t>(value));
      break;
    default:  // unreached: a guard
      break;
  }
}

void read_socket(std::string_view message, UnixSockets& sockets) {
  if (message.size() < sizeof(unix_diag_msg)) return;  // unreached: a guard
  const auto head = read_as<unix_diag_msg>(message);
  UnixSocket socket;
  socket.type = head.udiag_type;
  socket.state = head.udiag_state;
  message.remove_prefix(NLMSG_ALIGN(sizeof head));
  while (message.size() >= sizeof(nlattr)) {
    const auto attribute = read_as<nlattr>(message);
    if (attribute.nla_len < NLA_HDRLEN || attribute.nla_len > message.size()) break;  // unreached: a guard
    read_attribute(attribute.nla_type & NLA_TYPE_MASK,
                   message.substr(NLA_HDRLEN, attribute.nla_len - NLA_HDRLEN), socket);
    message.remove_prefix(std::min<std::size_t>(message.size(), NLA_ALIGN(attribute.nla_len)));
  }
  sockets.insert_or_assign(head.udiag_ino, std::move(socket));
}

// One part of the answer. True at its end.
Result<bool> read_answer(std::string_view bytes, UnixSockets& sockets) {
  while (bytes.size() >= sizeof(nlmsghdr)) {
    const auto head = read_as<nlmsghdr>(bytes);
    if (head.nlmsg_len < sizeof head || head.nlmsg_len > bytes.size()) break;  // unreached: a guard
    const std::string_view payload = bytes.substr(NLMSG_HDRLEN, head.nlmsg_len - NLMSG_HDRLEN);
    if (head.nlmsg_type == NLMSG_DONE) return true;
    // unreached: another machine
    if (head.nlmsg_type == NLMSG_ERROR) return make_error(-read_as<nlmsgerr>(payload).error, "unix_diag");
    if (head.nlmsg_type == SOCK_DIAG_BY_FAMILY) read_socket(payload, sockets);
    bytes.remove_prefix(std::min<std::size_t>(bytes.size(), NLMSG_ALIGN(head.nlmsg_len)));
  }
  return sockets.size() > kMostSockets;
}

}  // namespace

Result<UnixSockets> unix_sockets(const std::string& process, bool enter) {
  UniqueFd fd;
  if (enter) {
    SLUICE_TRY_ASSIGN(fd, diag_socket_in(process));
  } else {
    fd = diag_socket();
  }
  if (!fd) return make_error(errno, "sock_diag");
  struct {
    nlmsghdr head;
    unix_diag_req what;
  } question{};
  question.head.nlmsg_len = sizeof question;
  question.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.head.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  question.what.sdiag_family = AF_UNIX;
  question.what.udiag_states = ~0U;
  question.what.udiag_show = UDIAG_SHOW_NAME | UDIAG_SHOW_PEER | UDIAG_SHOW_ICONS | UDIAG_SHOW_RQLEN;
  if (::send(fd.get(), &question, sizeof question, 0) < 0) return make_error(errno, "sock_diag");
  UnixSockets sockets;
  std::string answer(kAnswerBytes, '\0');
  for (;;) {
    const ssize_t got = TEMP_FAILURE_RETRY(::recv(fd.get(), answer.data(), answer.size(), 0));
    if (got <= 0) return make_error(got == 0 ? EPIPE : errno, "sock_diag");
    SLUICE_TRY_ASSIGN(const bool done, read_answer({answer.data(), static_cast<std::size_t>(got)}, sockets));
    if (done) return sockets;
  }
}

}  // namespace sluice::cli
