// SPDX-License-Identifier: MIT
// What targets of the content channel send.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "plugin/restore/server/content_channel.h"
#include "support/send_fds.h"

namespace sluice::fuzz {

// One message with `fds` times `fd` beside it. One that the socket does not take is dropped. One that begins
// with a magic, of whatever version, has today's: others are refused at once.
inline void send(int socket, std::span<const std::uint8_t> bytes, std::size_t fds, int fd) {
  const std::vector<int> numbers(std::min(fds, plugin::kFdsPerMessage), fd);
  std::vector<std::uint8_t> sent(bytes.begin(), bytes.end());
  constexpr std::string_view kAnyMagic = "slice-";
  if (sent.size() >= sizeof plugin::kChannelMagic &&
      std::equal(kAnyMagic.begin(), kAnyMagic.end(), sent.begin()))
    std::memcpy(sent.data(), &plugin::kChannelMagic, sizeof plugin::kChannelMagic);
  (void)test::send_with_fds(socket, sent.data(), sent.size(), numbers, MSG_DONTWAIT | MSG_NOSIGNAL);
}

// All of it is there, or it never will be.
inline Result<plugin::ContentRequest> read_request(int channel) {
  plugin::RequestReader reader;
  for (;;) {
    SLUICE_TRY_ASSIGN(const bool whole, reader.read(channel));
    if (whole) return reader.take();
  }
}

// How many descriptors this process has, where none but the last were opened and closed.
inline std::size_t descriptors() {
  const int next = ::dup(0);
  ::close(next);
  return static_cast<std::size_t>(next);
}

}  // namespace sluice::fuzz
