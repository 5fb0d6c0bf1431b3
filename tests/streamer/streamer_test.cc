// SPDX-License-Identifier: MIT
// The test streamer, as CRIU meets it: what is captured comes back, and its limits are those of the real one.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>
#include <utility>

#include "streamer/command.h"
#include "streamer/wire.h"
#include "support/rng.h"
#include "support/temp_dir.h"

namespace sluice::streamer {
namespace {

using test::Bytes;

// A running test-streamer. Without an image it is given no pipe.
class Program {
 public:
  Program(const std::string& operation, const test::TempDir& dir, const std::string& image) {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) return;
    const UniqueFd reader(ends[0]);
    UniqueFd writer(ends[1]);
    const std::string bare = dying_with_shell(command(TEST_STREAMER, dir.path(), writer.get(), operation));
    const std::string words =
        image.empty() ? bare + " < /dev/null > /dev/null" : with_file(bare, operation, image);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::execl("/bin/bash", "bash", "-o", "pipefail", "-c", words.c_str(), nullptr);
      ::_exit(127);
    }
    writer.reset();
    (void)wait_until_ready(reader.get());
  }
  ~Program() {
    if (pid_ > 0) (void)::kill(pid_, SIGKILL);
    (void)wait();
  }
  int wait() {
    int status = 0;
    if (pid_ <= 0 || ::waitpid(std::exchange(pid_, -1), &status, 0) < 0) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
};

struct StreamerTest : public ::testing::Test {
  StreamerTest() { (void)::signal(SIGPIPE, SIG_IGN); }

  std::string image() const { return dir.path() + "/image"; }
  static void put(int fd, const Bytes& bytes) {
    for (std::size_t at = 0; at < bytes.size();) {
      const ssize_t done = ::write(fd, &bytes[at], bytes.size() - at);
      ASSERT_GT(done, 0);
      at += static_cast<std::size_t>(done);
    }
  }
  static Bytes drain(int fd) {
    Bytes all;
    std::array<std::byte, 65536> some;
    ssize_t got = 0;
    while ((got = ::read(fd, some.data(), some.size())) > 0)
      all.insert(all.end(), some.begin(), some.begin() + got);
    return all;
  }
  // Two files that interleave, and an empty one.
  void capture() {
    Program program("capture", dir, image());
    UniqueFd socket = connect_to(dir.path(), kCaptureSocket);
    ASSERT_TRUE(socket);
    UniqueFd first(open_stream(socket.get(), "first", true));
    UniqueFd second(open_stream(socket.get(), "second", true));
    UniqueFd empty(open_stream(socket.get(), "empty", true));
    ASSERT_TRUE(first && second && empty);
    const Bytes half(big.begin(), big.begin() + 2'000'000);
    put(first.get(), half);
    put(second.get(), small);
    put(first.get(), Bytes(big.begin() + 2'000'000, big.end()));
    first.reset();
    second.reset();
    socket.reset();
    empty.reset();
    ASSERT_EQ(program.wait(), 0);
  }

  test::TempDir dir;
  Bytes big = [] {
    Bytes bytes(5'000'000);
    test::Rng(3).fill(bytes);
    return bytes;
  }();
  Bytes small = Bytes(100, std::byte{7});
};

TEST_F(StreamerTest, WhatWasCapturedIsServedInAnyOrderOnce) {
  ASSERT_NO_FATAL_FAILURE(capture());
  Program program("serve", dir, image());
  const UniqueFd socket = connect_to(dir.path(), kServeSocket);
  ASSERT_TRUE(socket);
  EXPECT_EQ(open_stream(socket.get(), "unknown", false), -ENOENT);
  for (const auto& [name, bytes] :
       {std::pair("second", small), std::pair("first", big), std::pair("empty", Bytes())}) {
    const UniqueFd pipe(open_stream(socket.get(), name, false));
    ASSERT_TRUE(pipe) << name;
    EXPECT_EQ(drain(pipe.get()), bytes) << name;
  }
  EXPECT_LT(open_stream(socket.get(), "first", false), 0) << "a file is served once";
  EXPECT_EQ(program.wait(), 0) << "an error, and yet";
}

TEST_F(StreamerTest, AReaderThatClosesEarlyEndsTheServer) {
  ASSERT_NO_FATAL_FAILURE(capture());
  Program program("serve", dir, image());
  const UniqueFd socket = connect_to(dir.path(), kServeSocket);
  UniqueFd pipe(open_stream(socket.get(), "first", false));
  ASSERT_TRUE(pipe);
  pipe.reset();
  EXPECT_LT(open_stream(socket.get(), "second", false), 0);
}

TEST_F(StreamerTest, ExtractedFilesAreTheCapturedOnes) {
  ASSERT_NO_FATAL_FAILURE(capture());
  Program program("extract", dir, image());
  ASSERT_EQ(program.wait(), 0);
  EXPECT_EQ(dir.read("first"), big);
  EXPECT_EQ(dir.read("second"), small);
  EXPECT_EQ(dir.read("empty"), Bytes());
}

TEST_F(StreamerTest, ADeadCaptureIsABrokenPipe) {
  UniqueFd pipe;
  UniqueFd socket;
  {
    const Program program("capture", dir, image());
    socket = connect_to(dir.path(), kCaptureSocket);
    pipe.reset(open_stream(socket.get(), "first", true));
    ASSERT_TRUE(pipe);
    ASSERT_EQ(::write(pipe.get(), "x", 1), 1);
  }
  ssize_t done = 0;
  while ((done = ::write(pipe.get(), big.data(), 4096)) > 0) {
  }
  EXPECT_EQ(errno, EPIPE);
  // The kernel closes what a program had one after the other.
  while (UniqueFd(open_stream(socket.get(), "second", true))) {
  }
}

TEST_F(StreamerTest, ADamagedImageIsNotServed) {
  ASSERT_NO_FATAL_FAILURE(capture());
  Bytes bytes = dir.read("image");
  bytes.resize(bytes.size() / 2);
  dir.write("image", bytes);
  Program program("serve", dir, image());
  EXPECT_EQ(program.wait(), 0);
  EXPECT_FALSE(dir.exists(kServeSocket));
}

TEST_F(StreamerTest, AnImageThatIsNoPipeIsRefused) {
  for (const auto& [operation, socket] : {std::pair("capture", kCaptureSocket), {"serve", kServeSocket}}) {
    Program program(operation, dir, "");
    EXPECT_EQ(program.wait(), 0) << "an error, and yet";
    EXPECT_FALSE(connect_to(dir.path(), socket)) << operation;
  }
}

}  // namespace
}  // namespace sluice::streamer
