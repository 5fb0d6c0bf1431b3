// SPDX-License-Identifier: MIT
#include "wire.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

namespace sluice::streamer {
namespace {

constexpr std::uint32_t kLongestRequest = 10 * 1024;
constexpr char kFilenameField = 0x0a;  // field 1, length-delimited
constexpr char kExistsField = 0x08;    // field 1, varint

UniqueFd unix_socket(const std::string& directory, const char* name, sockaddr_un* address) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  address->sun_family = AF_UNIX;
  const std::string path = directory + "/" + name;
  if (path.size() >= sizeof address->sun_path) {
    errno = ENAMETOOLONG;
    return {};
  }
  std::memcpy(address->sun_path, path.c_str(), path.size() + 1);
  return socket;
}

bool send_all(int socket, const std::string& bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t sent = TEMP_FAILURE_RETRY(::send(socket, &bytes[at], bytes.size() - at, MSG_NOSIGNAL));
    if (sent <= 0) return false;
    at += static_cast<std::size_t>(sent);
  }
  return true;
}

// 0: the other end is closed; -1: in the middle, or an error.
int receive_all(int socket, char* bytes, std::size_t count) {
  for (std::size_t at = 0; at < count;) {
    const ssize_t got = TEMP_FAILURE_RETRY(::recv(socket, bytes + at, count - at, 0));
    if (got == 0 && at == 0) return 0;
    if (got <= 0) return -1;
    at += static_cast<std::size_t>(got);
  }
  return 1;
}

std::string framed(const std::string& message) {
  std::string frame(4, '\0');
  for (std::size_t i = 0; i < 4; ++i) frame[i] = static_cast<char>(message.size() >> (8 * i));
  return frame + message;
}

int receive_framed(int socket, std::string* message) {
  std::array<char, 4> length{};
  if (const int got = receive_all(socket, length.data(), length.size()); got != 1) return got;
  std::uint32_t bytes = 0;
  for (std::size_t i = 0; i < 4; ++i)
    bytes |= static_cast<std::uint32_t>(static_cast<unsigned char>(length[i])) << (8 * i);
  if (bytes > kLongestRequest) return -1;
  message->resize(bytes);
  return bytes == 0 || receive_all(socket, message->data(), bytes) == 1 ? 1 : -1;
}

// One byte, with room for one descriptor.
struct PipeMessage {
  PipeMessage() {
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
  }
  PipeMessage(const PipeMessage&) = delete;
  PipeMessage& operator=(const PipeMessage&) = delete;

  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
};

}  // namespace

UniqueFd connect_to(const std::string& directory, const char* name) {
  sockaddr_un address{};
  UniqueFd socket = unix_socket(directory, name, &address);
  if (socket && ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    return {};
  return socket;
}

int open_stream(int socket, const std::string& file, bool dump) {
  std::string request(1, kFilenameField);
  std::size_t length = file.size();
  for (; length >= 0x80; length >>= 7) request += static_cast<char>(length | 0x80);
  request += static_cast<char>(length);
  request += file;
  if (!send_all(socket, framed(request))) return -EPIPE;
  if (!dump) {
    std::string reply;
    if (receive_framed(socket, &reply) != 1 || reply.size() != 2 || reply[0] != kExistsField) return -EPROTO;
    if (reply[1] == 0) return -ENOENT;
  }
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return -errno;
  UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const UniqueFd theirs = std::move(dump ? reader : writer);
  UniqueFd ours = std::move(dump ? writer : reader);
  PipeMessage with;
  cmsghdr* const header = CMSG_FIRSTHDR(&with.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = theirs.get();
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  if (TEMP_FAILURE_RETRY(::sendmsg(socket, &with.message, MSG_NOSIGNAL)) != 1) return -EPIPE;
  return ours.release();
}

UniqueFd listen_in(const std::string& directory, const char* name) {
  sockaddr_un address{};
  UniqueFd listener = unix_socket(directory, name, &address);
  if (!listener) return {};
  (void)::unlink(address.sun_path);
  if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener.get(), 1) != 0) {
    return {};
  }
  return listener;
}

UniqueFd accept_from(int listener) {
  return UniqueFd(static_cast<int>(TEMP_FAILURE_RETRY(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC))));
}

std::optional<std::string> next_request(int socket, bool* broken) {
  std::string message;
  const int got = receive_framed(socket, &message);
  *broken = got < 0;
  if (got != 1) return std::nullopt;
  std::size_t at = 1;
  std::size_t length = 0;
  unsigned shift = 0;
  *broken = message.empty() || message[0] != kFilenameField;
  for (bool more = true; !*broken && more; shift += 7) {
    if (at >= message.size() || shift > 28) {
      *broken = true;
      break;
    }
    const auto byte = static_cast<unsigned char>(message[at++]);
    length |= static_cast<std::size_t>(byte & 0x7f) << shift;
    more = (byte & 0x80) != 0;
  }
  if (*broken || at + length != message.size()) {
    *broken = true;
    return std::nullopt;
  }
  return message.substr(at);
}

int answer(int socket, bool exists) {
  const std::string reply{kExistsField, static_cast<char>(exists ? 1 : 0)};
  return send_all(socket, framed(reply)) ? 0 : -EPIPE;
}

UniqueFd receive_pipe(int socket) {
  PipeMessage with;
  if (TEMP_FAILURE_RETRY(::recvmsg(socket, &with.message, MSG_CMSG_CLOEXEC)) != 1) return {};
  const cmsghdr* const header = CMSG_FIRSTHDR(&with.message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof(int)))
    return {};
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return UniqueFd(fd);
}

}  // namespace sluice::streamer
