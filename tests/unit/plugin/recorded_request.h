// SPDX-License-Identifier: MIT
// What a task sends to the content server, message by message, to be sent again as it was or otherwise.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "plugin/restore/server/content_channel.h"
#include "support/send_fds.h"

namespace sluice::plugin {

struct RecordedMessage {
  std::vector<std::byte> bytes;
  std::vector<UniqueFd> fds;

  bool send(int socket) const {
    std::vector<int> numbers;
    for (const UniqueFd& fd : fds) numbers.push_back(fd.get());
    return test::send_with_fds(socket, bytes.data(), bytes.size(), numbers) ==
           static_cast<ssize_t>(bytes.size());
  }
};

inline void wait_for_message(int socket) {
  pollfd file{socket, POLLIN, 0};
  (void)TEMP_FAILURE_RETRY(poll(&file, 1, -1));
}

inline RecordedMessage record_message(int socket) {
  RecordedMessage message;
  message.bytes.resize(64 * 1024);
  iovec part{message.bytes.data(), message.bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kFdsPerMessage * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  const ssize_t got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  message.bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  if (const cmsghdr* const beside = CMSG_FIRSTHDR(&header); beside != nullptr) {
    std::vector<int> numbers((beside->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(numbers.data(), CMSG_DATA(beside), numbers.size() * sizeof(int));
    for (const int number : numbers) message.fds.emplace_back(number);
  }
  return message;
}

// The hello, with the server's end of a channel that leads nowhere beside it, and the messages on the
// channel.
inline std::vector<RecordedMessage> record_request(const ContentRequest& request) {
  std::size_t messages = 1;
  for (const LaneContents& lane : request.lanes)
    messages += 1 + (lane.dmabufs.size() + kFdsPerMessage - 1) / kFdsPerMessage;
  const auto shared = std::move(make_content_sockets()).value();
  std::thread task([&] { (void)hand_over(shared.second.get(), request); });
  std::vector<RecordedMessage> all;
  all.push_back(record_message(shared.first.get()));
  const int channel = all.front().fds.front().get();
  while (all.size() <= messages) all.push_back(record_message(channel));
  (void)shutdown(channel, SHUT_RDWR);
  task.join();
  return all;
}

}  // namespace sluice::plugin
