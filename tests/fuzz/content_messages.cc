// SPDX-License-Identifier: MIT
// What a task may send to the content server. The input is a row of messages: the length in two bytes, the
// number of descriptors in one, the bytes. The descriptors stand for BOs.
#include <sys/eventfd.h>

#include <algorithm>

#include "base/unique_fd.h"
#include "fuzz.h"
#include "messages.h"
#include "plugin/restore/server/content_channel.h"

using namespace sluice;

namespace {

fuzz::Goal a_request("a request with BOs");

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const UniqueFd bo(::eventfd(0, EFD_CLOEXEC));
  FUZZ_CHECK(bo);
  const std::size_t before = fuzz::descriptors();
  {
    auto ends = plugin::make_content_sockets();
    FUZZ_CHECK(ends.ok());
    UniqueFd task = std::move(ends->first), server = std::move(ends->second);
    std::span<const std::uint8_t> rest(data, size);
    while (rest.size() >= 3) {
      const std::size_t length = std::min(std::size_t{rest[0]} | std::size_t{rest[1]} << 8, rest.size() - 3);
      const std::size_t fds = rest[2];
      fuzz::send(task.get(), rest.subspan(3, length), fds, bo.get());
      rest = rest.subspan(3 + length);
    }
    task.reset();
    const auto request = fuzz::read_request(server.get());
    if (request) {
      FUZZ_CHECK(request->lanes.size() <= plugin::kMostGpus);
      for (const auto& lane : request->lanes) {
        FUZZ_CHECK(lane.pages.bos.size() <= plugin::kMostBos && lane.dmabufs.size() == lane.pages.bos.size());
        if (!lane.dmabufs.empty()) a_request.reach();
      }
    } else {
      FUZZ_CHECK(request.error().err > 0 && !request.error().what.empty());
    }
  }
  FUZZ_CHECK(fuzz::descriptors() == before);
  return 0;
}
