// SPDX-License-Identifier: MIT
// What a task may send to the content server. The input is a row of messages: the length in two bytes, the
// number of descriptors in one, the bytes. The descriptors stand for BOs; none is an end of the channel: a
// server that was given the task's would wait for itself, for as long as it has patience (content_channel.h),
// which is no finding but takes a minute.
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "fuzz.h"
#include "pipeline/unique_fd.h"
#include "plugin/content_channel.h"

using namespace sluice;

namespace {

void send(int socket, std::span<const std::uint8_t> bytes, std::size_t fds, int bo) {
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
    const std::vector<int> numbers(fds, bo);
    std::memcpy(CMSG_DATA(header), numbers.data(), fds * sizeof(int));
  }
  (void)::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

// How many descriptors this process has.
std::size_t descriptors() {
  const int next = ::dup(0);
  ::close(next);
  return static_cast<std::size_t>(next);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const UniqueFd bo(::eventfd(0, EFD_CLOEXEC));
  FUZZ_CHECK(bo);
  const std::size_t before = descriptors();
  {
    auto ends = plugin::make_content_sockets();
    FUZZ_CHECK(ends.ok());
    UniqueFd task = std::move(ends->first), server = std::move(ends->second);
    std::span<const std::uint8_t> rest(data, size);
    while (rest.size() >= 3) {
      const std::size_t length = std::min(std::size_t{rest[0]} | std::size_t{rest[1]} << 8, rest.size() - 3);
      const std::size_t fds = rest[2];
      send(task.get(), rest.subspan(3, length), fds, bo.get());
      rest = rest.subspan(3 + length);
    }
    task.reset();
    const auto request = plugin::receive_request(server.get());
    if (request) {
      FUZZ_CHECK(request->gpus.size() <= plugin::kMostGpus);
      for (const auto& gpu : request->gpus) FUZZ_CHECK(gpu.bos.size() <= plugin::kMostBos);
    } else {
      FUZZ_CHECK(request.error().err > 0 && !request.error().what.empty());
    }
  }
  FUZZ_CHECK(descriptors() == before);
  return 0;
}
