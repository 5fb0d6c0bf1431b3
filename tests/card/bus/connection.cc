// SPDX-License-Identifier: MIT
#include "bus/connection.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace sluice::card {
namespace {

// Takes the descriptors of a received message, so that each is closed whatever becomes of the message.
std::vector<UniqueFd> fds_of(msghdr& message) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr; each = CMSG_NXTHDR(&message, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(each) + i * sizeof fd, sizeof fd);
      fds.emplace_back(fd);
    }
  }
  return fds;
}

// All of `bytes`; how many there were before the end of the stream. Descriptors come with the first byte of
// their message: `fds` takes those of the first.
Result<std::size_t> receive_bytes(int socket, std::span<std::byte> bytes, std::vector<UniqueFd>* fds) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    alignas(cmsghdr) char control[CMSG_SPACE(kMostFds * sizeof(int))];
    iovec part{bytes.data() + done, bytes.size() - done};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return make_error(errno, "receive from QEMU");
    std::vector<UniqueFd> came = fds_of(message);
    if ((message.msg_flags & MSG_CTRUNC) != 0) {
      return make_error(EPROTO, "a message with more descriptors than were agreed on");
    }
    if (got == 0) break;
    if (!came.empty()) {
      if (fds == nullptr || done != 0) return make_error(EPROTO, "descriptors inside of a message");
      *fds = std::move(came);
    }
    done += static_cast<std::size_t>(got);
  }
  return done;
}

}  // namespace

Result<UniqueFd> listen_at(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // Bound under another name first: QEMU would be refused at a name that nobody listens at yet.
  const std::string early = path + ".new";
  if (early.size() >= sizeof address.sun_path) return make_error(ENAMETOOLONG, "listen at " + path);
  std::memcpy(address.sun_path, early.c_str(), early.size() + 1);
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0 && !S_ISSOCK(status.st_mode)) {
    return make_error(EEXIST, "listen at " + path + ", which is no socket");
  }
  (void)::unlink(early.c_str());
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket || ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(socket.get(), 1) != 0 || std::rename(early.c_str(), path.c_str()) != 0) {
    return make_error(errno, "listen at " + path);
  }
  return socket;
}

Result<std::optional<VfioUserRequest>> Connection::receive() {
  VfioUserRequest request;
  const std::span header(reinterpret_cast<std::byte*>(&request.header), sizeof request.header);
  SLUICE_TRY_ASSIGN(const std::size_t got, receive_bytes(fd(), header, &request.fds));
  if (got == 0) return std::optional<VfioUserRequest>();
  if (got < header.size()) return make_error(EPROTO, "a message of QEMU ends in its header");
  const std::uint32_t bytes = request.header.bytes;
  if (bytes < header.size() || bytes - header.size() > kMostBody) {
    return make_error(EPROTO, "a message of " + std::to_string(bytes) + " bytes");
  }
  if ((request.header.flags & VfioUserHeader::kTypeMask) != 0) {
    return make_error(EPROTO, "a message that is no request");
  }
  request.body.resize(bytes - header.size());
  SLUICE_TRY_ASSIGN(const std::size_t body, receive_bytes(fd(), request.body, nullptr));
  if (body < request.body.size()) return make_error(EPROTO, "a message of QEMU ends in its body");
  return std::optional(std::move(request));
}

Result<void> Connection::send(const VfioUserReply& reply) {
  std::size_t done = 0;
  while (done < reply.message.size()) {
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    iovec part{const_cast<std::byte*>(reply.message.data()) + done, reply.message.size() - done};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (reply.fd >= 0 && done == 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* const rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(rights), &reply.fd, sizeof reply.fd);
    }
    const ssize_t sent = ::sendmsg(fd(), &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return make_error(errno, "send to QEMU");
    done += static_cast<std::size_t>(sent);
  }
  return {};
}

}  // namespace sluice::card
