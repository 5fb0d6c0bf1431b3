// SPDX-License-Identifier: MIT
// Messages on a socket: whole ones, in pieces, and what is none.
#include "bus/connection.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <fstream>
#include <thread>

#include "bus_kit.h"
#include "support/temp_dir.h"

namespace sluice::card::tests {
namespace {

// As QEMU's end does it.
void send_bytes(int socket, std::span<const std::byte> bytes, const std::vector<int>& fds = {}) {
  alignas(cmsghdr) char control[CMSG_SPACE(32 * sizeof(int))] = {};
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
  }
  ASSERT_EQ(::sendmsg(socket, &message, MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
}

class ConnectionTest : public testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    qemu_.reset(ends[0]);
    card_.emplace(UniqueFd(ends[1]));
  }

  int error() {
    const auto got = card_->receive();
    return got ? 0 : got.error().err;
  }

  UniqueFd qemu_;
  std::optional<Connection> card_;
};

TEST_F(ConnectionTest, MessagesComeOneByOneWithTheirDescriptors) {
  const UniqueFd file = memory_file(0x1000);
  const Bytes with_file = message(7, kDmaMap, dma_map_body(0x1000, 0x1000));
  const Bytes other = message(8, kReset, {});
  send_bytes(qemu_.get(), with_file, {file.get(), file.get()});
  send_bytes(qemu_.get(), other);
  auto first = card_->receive();
  ASSERT_TRUE(first && first->has_value());
  EXPECT_EQ((*first)->header.id, 7);
  EXPECT_EQ((*first)->header.command, kDmaMap);
  EXPECT_EQ((*first)->body, dma_map_body(0x1000, 0x1000));
  ASSERT_EQ((*first)->fds.size(), 2U);
  struct stat mine {
  }, sent{};
  ASSERT_EQ(::fstat((*first)->fds[1].get(), &mine), 0);
  ASSERT_EQ(::fstat(file.get(), &sent), 0);
  EXPECT_EQ(mine.st_ino, sent.st_ino);
  auto second = card_->receive();
  ASSERT_TRUE(second && second->has_value());
  EXPECT_EQ((*second)->header.id, 8);
  EXPECT_TRUE((*second)->body.empty() && (*second)->fds.empty());
}

TEST_F(ConnectionTest, MessageInPiecesIsOneMessage) {
  const Bytes whole = message(9, kRegionWrite, write_body<std::uint64_t>(0x100, 2, 5));
  std::thread qemu([&] {
    for (const std::byte each : whole) send_bytes(qemu_.get(), {&each, 1});
  });
  const auto got = card_->receive();
  qemu.join();
  ASSERT_TRUE(got && got->has_value());
  EXPECT_EQ((*got)->body, write_body<std::uint64_t>(0x100, 2, 5));
}

TEST_F(ConnectionTest, CloseBetweenMessagesIsTheEnd) {
  qemu_.reset();
  const auto got = card_->receive();
  ASSERT_TRUE(got);
  EXPECT_FALSE(got->has_value());
}

TEST_F(ConnectionTest, CloseInsideOfAMessageIsAnError) {
  const Bytes whole = message(9, kRegionWrite, write_body<std::uint64_t>(0x100, 2, 5));
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{15}, std::size_t{16}, whole.size() - 1}) {
    SetUp();
    send_bytes(qemu_.get(), std::span(whole).first(bytes));
    qemu_.reset();
    EXPECT_EQ(error(), EPROTO) << bytes;
  }
}

TEST_F(ConnectionTest, LengthsThatNoMessageHasAreErrors) {
  for (const std::uint32_t bytes : {0U, 15U, static_cast<std::uint32_t>(16 + kMostBody + 1), ~0U}) {
    SetUp();
    const Bytes header = Packed().u16(1).u16(kReset).u32(bytes).u32(0).u32(0);
    send_bytes(qemu_.get(), header);
    EXPECT_EQ(error(), EPROTO) << bytes;
  }
}

TEST_F(ConnectionTest, LongestMessageIsTaken) {
  const Bytes body(kMostBody);
  std::thread qemu([&] {
    const Bytes whole = message(1, kRegionWrite, body);
    std::size_t done = 0;
    while (done < whole.size()) {
      const ssize_t sent = ::send(qemu_.get(), whole.data() + done, whole.size() - done, MSG_NOSIGNAL);
      if (sent <= 0) return;
      done += static_cast<std::size_t>(sent);
    }
  });
  const auto got = card_->receive();
  qemu.join();
  ASSERT_TRUE(got && got->has_value());
  EXPECT_EQ((*got)->body.size(), kMostBody);
}

TEST_F(ConnectionTest, ReplyIsNoRequest) {
  send_bytes(qemu_.get(), message(1, kReset, {}, VfioUserHeader::kReply));
  EXPECT_EQ(error(), EPROTO);
}

TEST_F(ConnectionTest, TooManyDescriptorsAndThoseInsideOfAMessageAreErrors) {
  const UniqueFd file = memory_file(0x1000);
  send_bytes(qemu_.get(), message(1, kDmaMap, dma_map_body(0, 0x1000)), std::vector<int>(20, file.get()));
  EXPECT_EQ(error(), EPROTO);

  SetUp();
  const Bytes whole = message(1, kDmaMap, dma_map_body(0, 0x1000));
  send_bytes(qemu_.get(), std::span(whole).first(16));
  send_bytes(qemu_.get(), std::span(whole).subspan(16), {file.get()});
  EXPECT_EQ(error(), EPROTO);
}

TEST_F(ConnectionTest, ReplyGoesOutWithItsDescriptor) {
  const UniqueFd file = memory_file(0x1000);
  ASSERT_TRUE(
      card_->send({message(3, kRegionInfo, region_info_body(0), VfioUserHeader::kReply), file.get()}));
  Connection qemu(std::move(qemu_));
  std::byte bytes[64];
  iovec part{bytes, sizeof bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr got{};
  got.msg_iov = &part;
  got.msg_iovlen = 1;
  got.msg_control = control;
  got.msg_controllen = sizeof control;
  EXPECT_EQ(::recvmsg(qemu.fd(), &got, MSG_CMSG_CLOEXEC), 48);
  const cmsghdr* const rights = CMSG_FIRSTHDR(&got);
  ASSERT_NE(rights, nullptr);
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(rights), sizeof fd);
  const UniqueFd owned(fd);
  struct stat came {
  }, sent{};
  ASSERT_EQ(::fstat(owned.get(), &came), 0);
  ASSERT_EQ(::fstat(file.get(), &sent), 0);
  EXPECT_EQ(came.st_ino, sent.st_ino);
}

TEST_F(ConnectionTest, SendToNobodyIsAnErrorAndNoSignal) {
  qemu_.reset();
  const auto sent = card_->send({message(3, kReset, {}, VfioUserHeader::kReply), -1});
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().err, EPIPE);
}

TEST(ListenTest, OldSocketIsReplacedAndAFileIsNot) {
  const test::TempDir directory;
  const std::string path = directory.path() + "/socket";
  ASSERT_TRUE(listen_at(path));
  EXPECT_TRUE(listen_at(path)) << "left over from a card that was killed";
  const std::string file = directory.path() + "/file";
  std::ofstream(file) << "somebody's";
  const auto refused = listen_at(file);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().err, EEXIST);
  EXPECT_EQ(listen_at("/" + std::string(200, 'a')).error().err, ENAMETOOLONG);
}

}  // namespace
}  // namespace sluice::card::tests
