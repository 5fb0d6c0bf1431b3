// SPDX-License-Identifier: MIT
// A message with descriptors, well-formed or not.
#pragma once

#include <sys/socket.h>

#include <cstring>
#include <span>
#include <vector>

namespace sluice::test {

// Returns sendmsg()'s result. A socket accepts at most 253 descriptors.
inline ssize_t send_with_fds(int socket, const void* bytes, std::size_t length, std::span<const int> fds,
                             int flags = MSG_NOSIGNAL) {
  iovec part{const_cast<void*>(bytes), length};
  std::vector<cmsghdr> control(CMSG_SPACE(fds.size_bytes()) / sizeof(cmsghdr) + 1);  // for its alignment
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  return ::sendmsg(socket, &message, flags);
}

}  // namespace sluice::test
