// SPDX-License-Identifier: MIT
// The content server when things go wrong: what was not handed over is the task's, untouched, and no failure
// of the restore; what was, is the server's, and its failure the restore's. There are no images here:
// contents that begin fail, which tells whether any have begun.
#include "plugin/restore/server/content_server.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "plugin/host/image_store.h"
#include "support/failing_allocation.h"
#include "support/temp_dir.h"
#include "unit/plugin/recorded_request.h"

namespace {

sluice::UniqueFd g_tasks_end;             // of the server's socket
sluice::test::NthFails g_failing_thread;  // that is made

}  // namespace

// The host.
extern "C" int fdstore_add(int fd);
extern "C" int fdstore_add(int fd) {
  g_tasks_end.reset(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  return 0;
}

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                              void* argument) noexcept {
  static const auto next = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return g_failing_thread.is_this_one() ? EAGAIN : next(thread, attributes, body, argument);
}

namespace sluice::plugin {
namespace {

ContentRequest request() {
  ContentRequest request;
  request.id = 7;
  for (const std::uint32_t gpu_id : {0x5759U, 0x1234U}) {
    LaneContents& lane = request.lanes.emplace_back();
    lane.pages.gpu_id = gpu_id;
    lane.pages.bos.push_back({4096, 0x100000});
    lane.dmabufs.emplace_back(memfd_create("bo", MFD_CLOEXEC));
  }
  return request;
}

class ContentServerTest : public ::testing::Test {
 protected:
  ContentServerTest() {
    test::spare_allocations_of_this_thread();
    make_server();
  }
  ~ContentServerTest() override {
    (void)g_failing_thread.disarm();
    (void)test::failing_allocation().disarm();
  }

  void make_server(std::chrono::seconds patience = kPatience) {
    auto made = ContentServer::make(settings::Config(), 2, vram_, *store_, patience);
    server_ = std::move(*made);
  }
  bool hand_over() { return plugin::hand_over(g_tasks_end.get(), request()).ok(); }
  // Asks, and hands nothing over yet. The end that would, when the server has answered.
  static UniqueFd ask() {
    const std::vector<RecordedMessage> messages = record_request(request());
    UniqueFd channel = say_hello();
    for (std::size_t i = 1; i < messages.size(); ++i) EXPECT_TRUE(messages[i].send(channel.get()));
    std::array<char, 1024> reply{};
    EXPECT_GT(recv(channel.get(), reply.data(), reply.size(), 0), 0);
    return channel;
  }
  // Says hello and nothing more. The end that would.
  static UniqueFd say_hello() {
    auto ends = std::move(make_content_sockets()).value();
    const int servers[] = {ends.first.get()};
    EXPECT_EQ(test::send_with_fds(g_tasks_end.get(), &kChannelMagic, sizeof kChannelMagic, servers),
              static_cast<ssize_t>(sizeof kChannelMagic));
    return std::move(ends.second);
  }
  std::size_t lines_with(const char* text) {
    const LogLines lines = server_->take_log_lines();
    return static_cast<std::size_t>(std::count_if(lines.begin(), lines.end(), [text](const LogLine& line) {
      return line.text.find(text) != std::string::npos;
    }));
  }
  static void wait_until_given_up(const UniqueFd& channel) {
    pollfd end{channel.get(), POLLRDHUP, 0};
    EXPECT_EQ(TEMP_FAILURE_RETRY(poll(&end, 1, -1)), 1);
  }

  test::TempDir images_;
  std::unique_ptr<ImageStore> store_ = ImageStore::of_directory([this] { return images_.fd(); });
  VramWatch vram_;
  std::unique_ptr<ContentServer> server_;
};

TEST_F(ContentServerTest, WhatWasHandedOverIsTheRestores) {
  ASSERT_TRUE(server_->start().ok());
  EXPECT_TRUE(hand_over());
  const auto joined = server_->join(nullptr);
  ASSERT_FALSE(joined.ok());
  EXPECT_EQ(server_->join(nullptr).error().what, joined.error().what);
}

TEST_F(ContentServerTest, ATaskThatDoesNotWaitForTheReplyKeepsItsContents) {
  EXPECT_FALSE(plugin::hand_over(g_tasks_end.get(), request(), std::chrono::seconds(1)).ok());
  ASSERT_TRUE(server_->start().ok());  // too late: the request is there, the task is not
  EXPECT_TRUE(server_->join(nullptr).ok());
  EXPECT_EQ(server_->take_log_lines().size(), 1U);
}

TEST_F(ContentServerTest, AServerThatCannotStartTurnsTasksAway) {
  g_failing_thread.arm(0);
  EXPECT_EQ(server_->start().error().err, EAGAIN);
  EXPECT_FALSE(hand_over());
  EXPECT_TRUE(server_->join(nullptr).ok());
}

TEST_F(ContentServerTest, AThreadThatCannotBeMadeLeavesTheContentsToTheTask) {
  for (int lane = 0; lane < 2; ++lane) {
    SCOPED_TRACE(lane);
    make_server();
    ASSERT_TRUE(server_->start().ok());
    g_failing_thread.arm(lane);
    EXPECT_FALSE(hand_over());
    EXPECT_TRUE(server_->join(nullptr).ok());
  }
}

TEST_F(ContentServerTest, ACancelledOneDoesNotWait) {
  ASSERT_TRUE(server_->start().ok());
  EXPECT_TRUE(hand_over());
  server_->cancel();
  EXPECT_FALSE(server_->join(nullptr).ok());
}

// What is no request costs the server a line at most, and not one without end.
TEST_F(ContentServerTest, AFloodOfMessagesStopsNobody) {
  ASSERT_TRUE(server_->start().ok());
  const std::array<char, 64> junk{};
  for (std::size_t i = 0; i < 10 * kMostWarnings; ++i) {
    const std::size_t bytes = i % 2 == 0 ? 0 : junk.size();
    ASSERT_EQ(send(g_tasks_end.get(), junk.data(), bytes, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
  }
  EXPECT_TRUE(hand_over());
  EXPECT_FALSE(server_->join(nullptr).ok()) << "what was handed over is the restore's";
  EXPECT_EQ(lines_with("receive a message of the right size"), kMostWarnings);
}

// Nor does the end of the server wait for them.
TEST_F(ContentServerTest, WhoSaysHelloAndNothingMoreKeepsNobodyWaiting) {
  ASSERT_TRUE(server_->start().ok());
  std::vector<UniqueFd> silent;
  for (std::size_t i = 0; i < 10; ++i) silent.push_back(say_hello());
  EXPECT_TRUE(hand_over());
  EXPECT_FALSE(server_->join(nullptr).ok()) << "what was handed over is the restore's";
  EXPECT_EQ(server_->take_finished().size(), 1U);
  EXPECT_EQ(lines_with("it had not said all"), silent.size());
}

TEST_F(ContentServerTest, OfTooManyWhoAskTheOldestIsGivenUp) {
  ASSERT_TRUE(server_->start().ok());
  std::vector<UniqueFd> silent;
  for (std::size_t i = 0; i <= kMostAsking; ++i) silent.push_back(say_hello());
  wait_until_given_up(silent.front());
  EXPECT_TRUE(hand_over());
}

// Each is a thread of CRIU's, from the moment that somebody asks.
TEST_F(ContentServerTest, TheLanesOfTooManyAreTheTasksOwn) {
  ASSERT_TRUE(server_->start().ok());
  for (std::size_t lanes = 4; lanes <= kMostLanes; lanes += 2) ASSERT_TRUE(hand_over()) << lanes;
  UniqueFd another = ask();
  EXPECT_FALSE(hand_over());
  another.reset();
  EXPECT_TRUE(hand_over()) << "who has asked, and ended, has none";
  EXPECT_FALSE(hand_over());
  EXPECT_FALSE(server_->join(nullptr).ok()) << "what was handed over is the restore's";
  EXPECT_EQ(server_->take_finished().size(), kMostLanes / 2);
  EXPECT_EQ(lines_with("add another lane"), 2U);
}

TEST_F(ContentServerTest, WhoSaysNothingForTooLongIsGivenUp) {
  make_server(std::chrono::seconds(0));
  ASSERT_TRUE(server_->start().ok());
  wait_until_given_up(say_hello());
  EXPECT_TRUE(server_->join(nullptr).ok());
  EXPECT_EQ(lines_with("silent for too long"), 1U);
}

// The task, which asks in time, learns that it is too late.
TEST_F(ContentServerTest, WhoDoesNotHandOverForTooLongIsGivenUp) {
  make_server(std::chrono::seconds(0));
  const std::vector<RecordedMessage> messages = record_request(request());
  const auto channel = std::move(make_content_sockets()).value();
  for (std::size_t i = 1; i < messages.size(); ++i) ASSERT_TRUE(messages[i].send(channel.second.get()));
  const int servers[] = {channel.first.get()};
  ASSERT_GT(test::send_with_fds(g_tasks_end.get(), &kChannelMagic, sizeof kChannelMagic, servers), 0);
  ASSERT_TRUE(server_->start().ok());
  wait_until_given_up(channel.second);
  std::array<char, 1024> reply{};
  EXPECT_GT(recv(channel.second.get(), reply.data(), reply.size(), 0), 0);
  EXPECT_EQ(send(channel.second.get(), &kChannelMagic, sizeof kChannelMagic, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
  EXPECT_TRUE(server_->join(nullptr).ok()) << "contents have begun that nobody has handed over";
}

TEST_F(ContentServerTest, ASocketThatATaskShutsDownIsTheServersEndAndIsTold) {
  ASSERT_TRUE(server_->start().ok());
  ASSERT_EQ(::shutdown(g_tasks_end.get(), SHUT_RDWR), 0);
  EXPECT_FALSE(hand_over());
  EXPECT_TRUE(server_->join(nullptr).ok()) << "nothing was handed over";
  const LogLines lines = server_->take_log_lines();
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].text.find("[SL-R38]"), std::string::npos) << lines[0].text;
}

TEST_F(ContentServerTest, ItsEndNeedsNoMemory) {
  ASSERT_TRUE(server_->start().ok());
  EXPECT_TRUE(hand_over());
  ASSERT_FALSE(server_->join(nullptr).ok());
  std::thread([this] {  // this thread's own allocations do not fail
    test::failing_allocation().arm(0);
    server_.reset();
    (void)test::failing_allocation().disarm();
  })
      .join();
}

// Wherever memory runs out once: the contents are either handed over and the server's, or they are not and
// have not begun.
TEST_F(ContentServerTest, EveryAllocation) {
  bool all_tried = false;
  for (int nth = 0; !all_tried; ++nth) {
    SCOPED_TRACE(nth);
    make_server();
    ASSERT_TRUE(server_->start().ok());
    test::failing_allocation().arm(nth);
    const bool handed = hand_over();
    EXPECT_NE(handed, server_->join(nullptr).ok());
    all_tried = test::failing_allocation().disarm();
  }
}

}  // namespace
}  // namespace sluice::plugin
