// SPDX-License-Identifier: MIT
// The content channel as a whole: what a server is asked, from the hello on, and what a task is answered. The
// input is a row of messages: the length in two bytes, the number of descriptors in one, where it goes in
// one, the bytes.
//
// A hello has the server's end of a channel beside it, or BOs.
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "fuzz.h"
#include "messages.h"
#include "plugin/restore/server/content_channel.h"

using namespace sluice;

namespace {

fuzz::Goal a_handover("a task that hands BOs over"), a_good_reply("a server's good reply"),
    a_refusal("a server's refusal");

enum Where : std::uint8_t { kHello, kHelloWithBos, kChannel, kReply, kEnd };

struct Message {
  Where where = kHello;
  std::size_t fds = 0;
  std::span<const std::uint8_t> bytes;
};

std::vector<Message> messages_of(std::span<const std::uint8_t> rest) {
  std::vector<Message> all;
  while (rest.size() >= 4) {
    const std::size_t length = std::min(std::size_t{rest[0]} | std::size_t{rest[1]} << 8, rest.size() - 4);
    all.push_back({static_cast<Where>(rest[3] % kEnd), rest[2], rest.subspan(4, length)});
    rest = rest.subspan(4 + length);
  }
  return all;
}

void check(const Error& error) {
  FUZZ_CHECK(error.err > 0 && !error.what.empty());
}

// All that was sent is there, and is answered; then the socket is at its end.
void serve(int shared, std::size_t sent) {
  for (std::size_t i = 0; i <= sent; ++i) {
    const auto channel = plugin::accept_channel(shared);
    if (!channel) {
      check(channel.error());
      if (channel.error().err != EBADMSG) return;
      continue;
    }
    const auto request = fuzz::read_request(channel->get());
    if (!request) check(request.error());
    (void)plugin::send_reply(channel->get(), Error{request ? 0 : request.error().err, "no"});
    const auto handed = plugin::receive_handover(channel->get());
    if (!handed) check(handed.error());
    if (request && handed && !request->lanes.empty() && !request->lanes.front().dmabufs.empty())
      a_handover.reach();
  }
  FUZZ_CHECK(!"more came than was sent");
}

void ask_a_server(const std::vector<Message>& messages, int bo) {
  auto shared = std::move(plugin::make_content_sockets()).value();
  auto channel = std::move(plugin::make_content_sockets()).value();
  for (const Message& message : messages) {
    const bool hello = message.where == kHello || message.where == kHelloWithBos;
    if (message.where == kReply) continue;
    fuzz::send(hello ? shared.second.get() : channel.second.get(), message.bytes, message.fds,
               message.where == kHello ? channel.first.get() : bo);
  }
  channel.second.reset();
  channel.first.reset();
  FUZZ_CHECK(::shutdown(shared.first.get(), SHUT_RDWR) == 0);
  serve(shared.first.get(), messages.size());
}

void wait_for_message(int socket) {
  pollfd file{socket, POLLIN, 0};
  FUZZ_CHECK(::poll(&file, 1, -1) == 1);
}

// A task that asks gets these replies. Its server ends when it has handed over, or has gone.
void answer_a_task(const std::vector<Message>& messages, int bo) {
  auto shared = std::move(plugin::make_content_sockets()).value();
  std::thread server([&] {
    wait_for_message(shared.first.get());
    const auto channel = plugin::accept_channel(shared.first.get());
    FUZZ_CHECK(channel.ok());
    wait_for_message(channel->get());
    FUZZ_CHECK(fuzz::read_request(channel->get()).ok());
    for (const Message& message : messages) {
      if (message.where == kReply) fuzz::send(channel->get(), message.bytes, message.fds, bo);
    }
    wait_for_message(channel->get());
  });
  const auto handed = plugin::hand_over(shared.second.get(), plugin::ContentRequest());
  server.join();
  if (handed) {
    a_good_reply.reach();
  } else {
    FUZZ_CHECK(handed.error().err > 0);
    if (handed.error().what == "too many") a_refusal.reach();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const UniqueFd bo(::eventfd(0, EFD_CLOEXEC));
  FUZZ_CHECK(bo);
  const std::size_t before = fuzz::descriptors();
  const std::vector<Message> messages = messages_of({data, size});
  ask_a_server(messages, bo.get());
  const bool answers = std::any_of(messages.begin(), messages.end(),
                                   [](const Message& message) { return message.where == kReply; });
  if (answers) answer_a_task(messages, bo.get());
  FUZZ_CHECK(fuzz::descriptors() == before);
  return 0;
}
