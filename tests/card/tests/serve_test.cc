// SPDX-License-Identifier: MIT
// A card from QEMU's connection to its end, on sockets.
#include "bus/serve.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <string>
#include <thread>

#include "bus_kit.h"
#include "support/temp_dir.h"

namespace sluice::card::tests {
namespace {

UniqueFd connect_to(const std::string& path) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return {};
  return socket;
}

class ServeTest : public testing::Test {
 protected:
  void start() {
    Result<UniqueFd> socket = listen_at(path_);
    Result<UniqueFd> commands = listen_at(path_ + ".control");
    ASSERT_TRUE(socket && commands);
    Service service{std::move(socket).value(), std::move(commands).value()};
    thread_ = std::thread([this, service = std::move(service)]() mutable {
      result_ = serve(std::move(service), card_.session, card_.device, control_);
    });
    qemu_ = connect_to(path_);
    ASSERT_TRUE(qemu_);
  }
  void TearDown() override {
    qemu_.reset();
    if (thread_.joinable()) thread_.join();
  }

  // Sends a message and takes the reply; its error, or -1 where none came.
  int say(std::uint16_t command, const Bytes& body) {
    const Bytes bytes = message(1, command, body);
    if (::send(qemu_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(bytes.size()))
      return -1;
    VfioUserHeader header;
    if (::recv(qemu_.get(), &header, sizeof header, MSG_WAITALL) != sizeof header) return -1;
    Bytes rest(header.bytes - sizeof header);
    if (!rest.empty() &&
        ::recv(qemu_.get(), rest.data(), rest.size(), MSG_WAITALL) != static_cast<ssize_t>(rest.size())) {
      return -1;
    }
    return static_cast<int>(header.error);
  }

  const test::TempDir directory_;
  const std::string path_ = directory_.path() + "/card";
  TestCard card_;
  Faults faults_;
  Counters counters_;
  Control control_{faults_, counters_, card_.vram.bytes(), card_.trace};
  UniqueFd qemu_;
  std::thread thread_;
  Result<void> result_;
};

TEST_F(ServeTest, ConversationEndsWhenQemuGoes) {
  start();
  EXPECT_EQ(say(kVersion, version_body()), 0);
  EXPECT_EQ(say(kRegionWrite, write_body<std::uint32_t>(0x10, 5, 1)), 0);
  EXPECT_EQ(say(kRegionRead, access_body(kRegisterBytes, 5, 4)), EINVAL);
  EXPECT_EQ(say(kReset, {}), 0);
  TearDown();
  EXPECT_TRUE(result_);
  EXPECT_EQ(card_.device.accesses.size(), 1U);
  EXPECT_EQ(card_.device.resets, 1);
}

TEST_F(ServeTest, WhatIsNoMessageEndsItWithAnError) {
  start();
  ASSERT_EQ(say(kVersion, version_body()), 0);
  const Bytes nothing(16);
  ASSERT_EQ(::send(qemu_.get(), nothing.data(), nothing.size(), MSG_NOSIGNAL), 16);
  thread_.join();
  ASSERT_FALSE(result_);
  EXPECT_EQ(result_.error().err, EPROTO);
}

TEST_F(ServeTest, ThereIsNoSecondQemu) {
  start();
  ASSERT_EQ(say(kVersion, version_body()), 0);
  EXPECT_FALSE(connect_to(path_));
}

TEST_F(ServeTest, EnginesWorkBetweenMessagesUntilNoneWaits) {
  card_.device.works_until = 20;
  start();
  ASSERT_EQ(say(kVersion, version_body()), 0);
  // Without any other message: it comes to the end by itself, and its answer to the next one tells that.
  const UniqueFd client = connect_to(path_ + ".control");
  ASSERT_TRUE(client);
  for (int round = 0; round < 1000 && result_; ++round) {
    ASSERT_EQ(::send(client.get(), "counters\n", 9, MSG_NOSIGNAL), 9);
    char answer[2048];
    ASSERT_GT(::recv(client.get(), answer, sizeof answer, 0), 0);
    if (round >= 20) break;
  }
  TearDown();
  EXPECT_GE(card_.device.works, 20);
}

TEST_F(ServeTest, ControlSocketAnswersLineByLine) {
  start();
  const UniqueFd client = connect_to(path_ + ".control");
  ASSERT_TRUE(client);
  const auto answer = [&client] {
    std::string line;
    char each = 0;
    while (::recv(client.get(), &each, 1, 0) == 1 && each != '\n') line += each;
    return line;
  };
  const std::string two = "sdma fault\nno such";
  ASSERT_EQ(::send(client.get(), two.data(), two.size(), MSG_NOSIGNAL), static_cast<ssize_t>(two.size()));
  EXPECT_EQ(answer(), "ok");
  ASSERT_EQ(::send(client.get(), " thing\n", 7, MSG_NOSIGNAL), 7);
  EXPECT_EQ(answer().rfind("error: ", 0), 0U);
  EXPECT_EQ(say(kVersion, version_body()), 0) << "QEMU is served beside it";

  const std::string endless(4 * Control::kLongest, 'x');
  (void)::send(client.get(), endless.data(), endless.size(), MSG_NOSIGNAL);
  char each = 0;
  EXPECT_LE(::recv(client.get(), &each, 1, 0), 0) << "a line without an end";
  TearDown();
  EXPECT_TRUE(faults_.sdma_fault);
}

}  // namespace
}  // namespace sluice::card::tests
