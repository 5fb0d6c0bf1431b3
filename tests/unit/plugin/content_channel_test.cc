// SPDX-License-Identifier: MIT
// The channel between a restored task and the content server: everything arrives, and nothing malformed does.
#include "plugin/content_channel.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <thread>

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
    GpuContents gpu;
    gpu.gpu_id = gpu_id;
    gpu.render_minor = 128 + gpu_id % 2;
    gpu.numa_node = 1;
    gpu.bo_table_digest.fill(3);
    for (std::size_t i = 0; i < bos; ++i) {
      gpu.bos.push_back({(i + 1) * 4096, 0x100000 + i, UniqueFd(memfd_create("bo", MFD_CLOEXEC))});
    }
    request.gpus.push_back(std::move(gpu));
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

// A hello as hand_over() sends it, but with the descriptor that is given beside it.
class HelloOf {
 public:
  HelloOf() {
    const Channel channel;
    std::thread task([&] { EXPECT_FALSE(hand_over(channel.task.get(), sample_request(1)).ok()); });
    length_ = recv(channel.server.get(), bytes_.data(), bytes_.size(), 0);  // the task's channel is dropped
    task.join();
  }
  std::span<const char> bytes() const { return {bytes_.data(), static_cast<std::size_t>(length_)}; }
  bool send(int socket, const UniqueFd& fd) {
    iovec part{bytes_.data(), static_cast<std::size_t>(length_)};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    const int number = fd.get();
    std::memcpy(CMSG_DATA(header), &number, sizeof number);
    return length_ > 0 && sendmsg(socket, &message, 0) == length_;
  }

 private:
  std::array<char, 64> bytes_{};
  ssize_t length_ = -1;
};

TEST(ContentChannel, CarriesARequestOfSeveralMessagesWithItsFds) {
  const Channel shared;
  const ContentRequest request = sample_request(600);  // three messages a GPU
  Result<void> handed = Error{};
  std::thread task([&] { handed = hand_over(shared.task.get(), request); });
  auto channel = accept_channel(shared.server.get());
  ASSERT_TRUE(channel.ok()) << channel.error().what;
  const auto received = receive_request(channel->get());
  ASSERT_TRUE(received.ok()) << received.error().what;
  ASSERT_TRUE(send_reply(channel->get(), Error{0, {}}).ok());
  EXPECT_TRUE(receive_handover(channel->get()).ok());
  task.join();
  EXPECT_TRUE(handed.ok());
  EXPECT_EQ(received->id, 42);
  EXPECT_EQ(received->dump_id, request.dump_id);
  ASSERT_EQ(received->gpus.size(), 2U);
  for (std::size_t g = 0; g < 2; ++g) {
    EXPECT_EQ(received->gpus[g].gpu_id, request.gpus[g].gpu_id);
    EXPECT_EQ(received->gpus[g].render_minor, request.gpus[g].render_minor);
    EXPECT_EQ(received->gpus[g].numa_node, 1);
    EXPECT_EQ(received->gpus[g].bo_table_digest, request.gpus[g].bo_table_digest);
    ASSERT_EQ(received->gpus[g].bos.size(), 600U);
    for (std::size_t i = 0; i < 600; ++i) {
      EXPECT_EQ(received->gpus[g].bos[i].bytes, request.gpus[g].bos[i].bytes);
      EXPECT_EQ(received->gpus[g].bos[i].va, request.gpus[g].bos[i].va);
      EXPECT_EQ(inode_of(received->gpus[g].bos[i].dmabuf.get()),
                inode_of(request.gpus[g].bos[i].dmabuf.get()));
    }
  }
}

TEST(ContentChannel, TheServersRefusalReachesTheTask) {
  const Channel shared;
  const ContentRequest request = sample_request(1);
  Result<void> handed;
  std::thread task([&] { handed = hand_over(shared.task.get(), request); });
  auto channel = accept_channel(shared.server.get());
  ASSERT_TRUE(channel.ok());
  ASSERT_TRUE(receive_request(channel->get()).ok());
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
  auto channel = accept_channel(shared.server.get());
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
  const HelloOf hello;  // as long as a handover, and the same magic
  ASSERT_EQ(send(channel.task.get(), hello.bytes().data(), hello.bytes().size(), 0), 8);
  EXPECT_TRUE(receive_handover(channel.server.get()).ok());
  std::array<char, 9> longer{};
  std::copy(hello.bytes().begin(), hello.bytes().end(), longer.begin());
  ASSERT_EQ(send(channel.task.get(), longer.data(), longer.size(), 0), 9);
  EXPECT_FALSE(receive_handover(channel.server.get()).ok());
}

// Whoever of the two sees that the handover failed, the other sees it, too.
TEST(ContentChannel, AHandoverThatComesTooLateIsRefused) {
  const Channel channel;
  const timeval soon{0, 1};
  ASSERT_EQ(setsockopt(channel.server.get(), SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon), 0);
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
  HelloOf hello;
  const auto refuses = [&](const UniqueFd& fd) {
    EXPECT_TRUE(hello.send(shared.task.get(), fd));
    return accept_channel(shared.server.get()).error().err == EBADMSG;
  };
  EXPECT_TRUE(refuses(UniqueFd(eventfd(0, EFD_CLOEXEC))));
  EXPECT_TRUE(refuses(UniqueFd(memfd_create("bo", MFD_CLOEXEC))));
  EXPECT_TRUE(refuses(UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0))));
  ASSERT_TRUE(hello.send(shared.task.get(), UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0))));
  EXPECT_TRUE(accept_channel(shared.server.get()).ok());
}

// It is received as the end is. Whoever has asked before the end came is still heard.
TEST(ContentChannel, AnEmptyMessageIsNotTheEnd) {
  const Channel shared;
  HelloOf hello;
  const auto send_empty = [&] { return send(shared.task.get(), nullptr, 0, 0) == 0; };
  ASSERT_TRUE(send_empty());
  EXPECT_EQ(accept_channel(shared.server.get()).error().err, EBADMSG);
  ASSERT_TRUE(send_empty() && send_empty());
  ASSERT_TRUE(hello.send(shared.task.get(), make_content_sockets()->first));
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
    EXPECT_EQ(receive_request(channel.server.get()).error().err, EBADMSG) << length;
  }
}

TEST(ContentChannel, ATaskThatEndsHalfWayIsAnError) {
  Channel channel;
  channel.task.reset();
  EXPECT_EQ(receive_request(channel.server.get()).error().err, ECONNRESET);
}

}  // namespace
}  // namespace sluice::plugin
