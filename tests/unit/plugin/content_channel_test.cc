// SPDX-License-Identifier: MIT
// The channel between a restored task and the content server: everything arrives, and nothing malformed does.
#include "plugin/restore/server/content_channel.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/send_fds.h"
#include "unit/plugin/recorded_request.h"

namespace sluice::plugin {
namespace {

ino_t inode_of(int fd) {
  struct stat st {};
  EXPECT_EQ(fstat(fd, &st), 0);
  return st.st_ino;
}

// `bos` BOs for each of two GPUs, each with a memfd of its own size.
ContentRequest sample_request(std::size_t bos) {
  ContentRequest request;
  request.id = 42;
  request.dump_id.fill(5);
  for (std::uint32_t gpu_id : {0x5759U, 0x1234U}) {
    LaneContents& lane = request.lanes.emplace_back();
    lane.pages.gpu_id = gpu_id;
    lane.render_minor = 128 + gpu_id % 2;
    lane.numa_node = 1;
    lane.pages.bo_table_digest.fill(3);
    for (std::size_t i = 0; i < bos; ++i) {
      lane.pages.bos.push_back({(i + 1) * 4096, 0x100000 + i});
      lane.dmabufs.emplace_back(memfd_create("bo", MFD_CLOEXEC));
    }
  }
  return request;
}

struct Channel {
  Channel() {
    auto pair = make_content_sockets();
    server = std::move(pair->first);
    task = std::move(pair->second);
  }
  UniqueFd server;
  UniqueFd task;
};

Result<UniqueFd> wait_and_accept(int shared_socket) {
  wait_for_message(shared_socket);
  return accept_channel(shared_socket);
}

Result<ContentRequest> read_request(int channel) {
  RequestReader reader;
  for (;;) {
    wait_for_message(channel);
    SLUICE_TRY_ASSIGN(const bool whole, reader.read(channel));
    if (whole) return reader.take();
  }
}

bool send_hello(int shared_socket, const std::vector<int>& fds) {
  return test::send_with_fds(shared_socket, &kChannelMagic, sizeof kChannelMagic, fds) ==
         static_cast<ssize_t>(sizeof kChannelMagic);
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

TEST(ContentChannel, CarriesARequestOfSeveralMessagesWithItsFds) {
  const Channel shared;
  const ContentRequest request = sample_request(600);  // three messages a GPU
  Result<void> handed = Error{};
  std::thread task([&] { handed = hand_over(shared.task.get(), request); });
  auto channel = wait_and_accept(shared.server.get());
  ASSERT_TRUE(channel.ok()) << channel.error().what;
  const auto received = read_request(channel->get());
  ASSERT_TRUE(received.ok()) << received.error().what;
  ASSERT_TRUE(send_reply(channel->get(), Error{0, {}}).ok());
  wait_for_message(channel->get());
  EXPECT_TRUE(receive_handover(channel->get()).ok());
  task.join();
  EXPECT_TRUE(handed.ok());
  EXPECT_EQ(received->id, 42);
  EXPECT_EQ(received->dump_id, request.dump_id);
  ASSERT_EQ(received->lanes.size(), 2U);
  for (std::size_t g = 0; g < 2; ++g) {
    const LaneContents& lane = received->lanes[g];
    const LaneContents& sent = request.lanes[g];
    EXPECT_EQ(lane.pages.gpu_id, sent.pages.gpu_id);
    EXPECT_EQ(lane.render_minor, sent.render_minor);
    EXPECT_EQ(lane.numa_node, 1);
    EXPECT_EQ(lane.pages.bo_table_digest, sent.pages.bo_table_digest);
    ASSERT_EQ(lane.pages.bos.size(), 600U);
    ASSERT_EQ(lane.dmabufs.size(), 600U);
    for (std::size_t i = 0; i < 600; ++i) {
      EXPECT_EQ(lane.pages.bos[i].bytes, sent.pages.bos[i].bytes);
      EXPECT_EQ(lane.pages.bos[i].va, sent.pages.bos[i].va);
      EXPECT_EQ(inode_of(lane.dmabufs[i].get()), inode_of(sent.dmabufs[i].get()));
    }
  }
}

TEST(ContentChannel, TheServersRefusalReachesTheTask) {
  const Channel shared;
  const ContentRequest request = sample_request(1);
  Result<void> handed;
  std::thread task([&] { handed = hand_over(shared.task.get(), request); });
  auto channel = wait_and_accept(shared.server.get());
  ASSERT_TRUE(channel.ok());
  ASSERT_TRUE(read_request(channel->get()).ok());
  ASSERT_TRUE(send_reply(channel->get(), Error{EMFILE, "too many"}).ok());
  task.join();
  ASSERT_FALSE(handed.ok());
  EXPECT_EQ(handed.error().err, EMFILE);
  EXPECT_EQ(handed.error().what, "too many");
}

TEST(ContentChannel, AServerThatDiesIsAnErrorAndNotAHang) {
  Channel shared;
  Result<void> handed;
  const ContentRequest request = sample_request(1);
  std::thread task([&] { handed = hand_over(shared.task.get(), request); });
  auto channel = wait_and_accept(shared.server.get());
  ASSERT_TRUE(channel.ok());
  channel->reset();
  task.join();
  EXPECT_FALSE(handed.ok());
}

TEST(ContentChannel, AServerThatNeverStartsIsGivenUp) {
  const Channel shared;
  const Result<void> handed = hand_over(shared.task.get(), sample_request(1), std::chrono::seconds(1));
  ASSERT_FALSE(handed.ok());
  EXPECT_EQ(handed.error().err, EAGAIN);
}

TEST(ContentChannel, AServerThatIsShutDownIsGivenUpAtOnce) {
  const Channel shared;
  ASSERT_EQ(shutdown(shared.server.get(), SHUT_RDWR), 0);
  EXPECT_FALSE(hand_over(shared.task.get(), sample_request(1)).ok());
  EXPECT_EQ(accept_channel(shared.server.get()).error().err, ECONNRESET);
}

TEST(ContentChannel, ATaskThatGoesWithoutAHandoverHasNotHandedOver) {
  Channel channel;
  ASSERT_TRUE(send_reply(channel.server.get(), Error{0, {}}).ok());
  channel.task.reset();
  EXPECT_FALSE(receive_handover(channel.server.get()).ok());
}

TEST(ContentChannel, AHandoverWithMoreBehindItIsNone) {
  const Channel channel;
  ASSERT_EQ(send(channel.task.get(), &kChannelMagic, sizeof kChannelMagic, 0), 8);
  EXPECT_TRUE(receive_handover(channel.server.get()).ok());
  std::array<char, 9> longer{};
  std::memcpy(longer.data(), &kChannelMagic, sizeof kChannelMagic);
  ASSERT_EQ(send(channel.task.get(), longer.data(), longer.size(), 0), 9);
  EXPECT_FALSE(receive_handover(channel.server.get()).ok());
}

// Whoever of the two sees that the handover failed, the other sees it, too.
TEST(ContentChannel, AHandoverThatComesTooLateIsRefused) {
  const Channel channel;
  EXPECT_FALSE(receive_handover(channel.server.get()).ok());
  const std::uint64_t anything = 0;
  EXPECT_EQ(send(channel.task.get(), &anything, sizeof anything, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
}

TEST(ContentChannel, AHelloWithoutFdOrOfAnotherSizeIsRefused) {
  const Channel shared;
  std::array<char, 64> junk{};
  ASSERT_EQ(send(shared.task.get(), junk.data(), 8, 0), 8);
  EXPECT_EQ(accept_channel(shared.server.get()).error().err, EBADMSG);
  ASSERT_EQ(send(shared.task.get(), junk.data(), junk.size(), 0), static_cast<ssize_t>(junk.size()));
  EXPECT_EQ(accept_channel(shared.server.get()).error().err, EBADMSG);
}

TEST(ContentChannel, AHelloWithADescriptorOfTheWrongKindIsRefused) {
  const Channel shared;
  const auto refuses = [&](const UniqueFd& fd) {
    EXPECT_TRUE(send_hello(shared.task.get(), {fd.get()}));
    return accept_channel(shared.server.get()).error().err == EBADMSG;
  };
  EXPECT_TRUE(refuses(UniqueFd(eventfd(0, EFD_CLOEXEC))));
  EXPECT_TRUE(refuses(UniqueFd(memfd_create("bo", MFD_CLOEXEC))));
  EXPECT_TRUE(refuses(UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0))));
  const UniqueFd right(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  ASSERT_TRUE(send_hello(shared.task.get(), {right.get()}));
  EXPECT_TRUE(accept_channel(shared.server.get()).ok());
}

TEST(ContentChannel, AHelloWithNoDescriptorOrTwoIsRefusedAndNoneIsKept) {
  const Channel shared;
  const Channel tasks;
  const int end = tasks.server.get();
  const std::size_t before = open_descriptors();
  for (const std::vector<int>& fds : {std::vector<int>{}, std::vector<int>{end, end}}) {
    ASSERT_TRUE(send_hello(shared.task.get(), fds));
    EXPECT_EQ(accept_channel(shared.server.get()).error().err, EBADMSG) << fds.size();
  }
  EXPECT_EQ(open_descriptors(), before);
  ASSERT_TRUE(send_hello(shared.task.get(), {end}));
  EXPECT_TRUE(accept_channel(shared.server.get()).ok()) << "the hello itself";
}

// It is received as the end is. Whoever has asked before the end came is still heard.
TEST(ContentChannel, AnEmptyMessageIsNotTheEnd) {
  const Channel shared;
  const auto send_empty = [&] { return send(shared.task.get(), nullptr, 0, 0) == 0; };
  ASSERT_TRUE(send_empty());
  EXPECT_EQ(accept_channel(shared.server.get()).error().err, EBADMSG);
  ASSERT_TRUE(send_empty() && send_empty());
  ASSERT_TRUE(send_hello(shared.task.get(), {make_content_sockets()->first.get()}));
  ASSERT_TRUE(send_empty());
  ASSERT_EQ(shutdown(shared.server.get(), SHUT_RDWR), 0);
  EXPECT_EQ(accept_channel(shared.server.get()).error().err, EBADMSG);
  EXPECT_EQ(accept_channel(shared.server.get()).error().err, EBADMSG);
  EXPECT_TRUE(accept_channel(shared.server.get()).ok());
  EXPECT_EQ(accept_channel(shared.server.get()).error().err, ECONNRESET);
}

TEST(ContentChannel, JunkOnTheTasksChannelIsRefused) {
  for (const std::size_t length : {std::size_t{1}, std::size_t{32}, std::size_t{33}, std::size_t{4096}}) {
    const Channel channel;
    const std::vector<char> junk(length, '\x7f');
    ASSERT_EQ(send(channel.task.get(), junk.data(), junk.size(), 0), static_cast<ssize_t>(junk.size()));
    EXPECT_EQ(read_request(channel.server.get()).error().err, EBADMSG) << length;
  }
}

TEST(ContentChannel, AGpuWithoutBosIsRefused) {
  const std::vector<RecordedMessage> messages = record_request(sample_request(0));
  const Channel channel;
  for (std::size_t i = 1; i < messages.size(); ++i) ASSERT_TRUE(messages[i].send(channel.task.get()));
  EXPECT_EQ(read_request(channel.server.get()).error().err, EBADMSG);
}

// Each message of a request, the first ones as they are, with a descriptor too few and with one too many.
TEST(ContentChannel, ARequestWithOtherDescriptorsThanItAnnouncesIsRefusedAndNoneIsKept) {
  const std::vector<RecordedMessage> messages = record_request(sample_request(2));
  const std::size_t before = open_descriptors();
  for (std::size_t last = 1; last < messages.size(); ++last) {
    const std::size_t right = messages[last].fds.size();
    for (const std::size_t count : {right - 1, right + 1}) {
      if (right == 0 && count != 1) continue;
      SCOPED_TRACE("message " + std::to_string(last) + " with " + std::to_string(count));
      Channel channel;
      for (std::size_t i = 1; i < last; ++i) ASSERT_TRUE(messages[i].send(channel.task.get()));
      const RecordedMessage& wrong = messages[last];
      const std::vector<int> fds(count, STDIN_FILENO);
      ASSERT_GT(test::send_with_fds(channel.task.get(), wrong.bytes.data(), wrong.bytes.size(), fds), 0);
      channel.task.reset();
      EXPECT_EQ(read_request(channel.server.get()).error().err, EBADMSG);
    }
  }
  EXPECT_EQ(open_descriptors(), before);
  const Channel channel;
  for (std::size_t i = 1; i < messages.size(); ++i) ASSERT_TRUE(messages[i].send(channel.task.get()));
  EXPECT_TRUE(read_request(channel.server.get()).ok()) << "the request itself";
}

TEST(ContentChannel, ATaskThatEndsHalfWayIsAnError) {
  const std::vector<RecordedMessage> messages = record_request(sample_request(2));
  const std::size_t before = open_descriptors();
  for (std::size_t sent = 0; sent + 1 < messages.size(); ++sent) {
    Channel channel;
    for (std::size_t i = 1; i <= sent; ++i) ASSERT_TRUE(messages[i].send(channel.task.get()));
    channel.task.reset();
    EXPECT_EQ(read_request(channel.server.get()).error().err, ECONNRESET) << sent;
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(ContentChannel, TheServerWaitsForNobody) {
  const Channel channel;
  EXPECT_EQ(accept_channel(channel.server.get()).error().err, EAGAIN);
  EXPECT_EQ(RequestReader().read(channel.server.get()).error().err, EAGAIN);
  Result<void> told;
  while (told) told = send_reply(channel.server.get(), Error{0, {}});
  EXPECT_EQ(told.error().err, EAGAIN);
  EXPECT_FALSE(receive_handover(channel.server.get()).ok());
}

}  // namespace
}  // namespace sluice::plugin
