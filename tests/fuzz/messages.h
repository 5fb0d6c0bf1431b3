// SPDX-License-Identifier: MIT
// What targets of the content channel send.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "plugin/content_channel.h"

namespace sluice::fuzz {

// One message with `fds` times `fd` beside it. One that the socket does not take is dropped.
inline void send(int socket, std::span<const std::uint8_t> bytes, std::size_t fds, int fd) {
  iovec part{const_cast<std::uint8_t*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(plugin::kFdsPerMessage * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  fds = std::min(fds, plugin::kFdsPerMessage);
  if (fds != 0) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(fds * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds * sizeof(int));
    const std::vector<int> numbers(fds, fd);
    std::memcpy(CMSG_DATA(header), numbers.data(), fds * sizeof(int));
  }
  (void)::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

// How many descriptors this process has, where none but the last were opened and closed.
inline std::size_t descriptors() {
  const int next = ::dup(0);
  ::close(next);
  return static_cast<std::size_t>(next);
}

}  // namespace sluice::fuzz
