// SPDX-License-Identifier: MIT
// The programs as they are started beside a guest: amdgpu-card from QEMU's connection to its end, and
// amdgpu-card-files.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "boot/vbios.h"
#include "bus_kit.h"
#include "control/mailbox.h"
#include "support/temp_dir.h"

namespace sluice::card::tests {
namespace {

class Program {
 public:
  // What it writes to standard output and error goes into `log`.
  Program(const char* variable, std::vector<std::string> words, const std::string& log) {
    const char* const path = std::getenv(variable);
    if (path == nullptr) throw std::runtime_error(std::string(variable) + " is not set");
    words.insert(words.begin(), path);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      (void)::dup2(out, STDOUT_FILENO);
      (void)::dup2(out, STDERR_FILENO);
      ::execv(path, argv.data());
      ::_exit(127);
    }
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (pid_ <= 0) return;
    (void)::kill(pid_, SIGKILL);
    (void)wait();
  }

  // Its exit status; -1: a signal ended it.
  int wait() {
    int status = 0;
    (void)::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
};

std::string contents(const std::string& path) {
  std::stringstream all;
  all << std::ifstream(path, std::ios::binary).rdbuf();
  return all.str();
}

// tests/vm/cards.py waits for this line.
const std::string kListening = "listening\n";

class CardProgramTest : public testing::Test {
 protected:
  // Starts it and connects, as soon as its socket has its name.
  void connect(std::vector<std::string> more = {}) {
    const UniqueFd names(::inotify_init1(IN_CLOEXEC));
    ASSERT_GE(::inotify_add_watch(names.get(), directory_.path().c_str(), IN_MOVED_TO), 0);
    std::vector<std::string> words = {"--socket", path_, "--vram", "32M"};
    words.insert(words.end(), more.begin(), more.end());
    program_.emplace("AMDGPU_CARD", words, log_);
    while (!directory_.exists("card")) {
      char event[sizeof(inotify_event) + NAME_MAX + 1];
      ASSERT_GT(::read(names.get(), event, sizeof event), 0);
    }
    qemu_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.c_str(), path_.size() + 1);
    ASSERT_EQ(::connect(qemu_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    say(kVersion, version_body());
  }

  // The body of the reply.
  Bytes say(std::uint16_t command, const Bytes& body) {
    const Bytes bytes = message(1, command, body);
    EXPECT_EQ(::send(qemu_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    VfioUserHeader header;
    EXPECT_EQ(::recv(qemu_.get(), &header, sizeof header, MSG_WAITALL), static_cast<ssize_t>(sizeof header));
    EXPECT_EQ(header.error, 0U);
    Bytes reply(header.bytes - sizeof header);
    if (!reply.empty()) {
      EXPECT_GT(::recv(qemu_.get(), reply.data(), reply.size(), MSG_WAITALL), 0);
    }
    return reply;
  }
  std::uint32_t read32(std::uint64_t offset, std::uint32_t region) {
    return value_at<std::uint32_t>(say(kRegionRead, access_body(offset, region, 4)), 16);
  }
  int usage(std::vector<std::string> words) { return Program("AMDGPU_CARD", std::move(words), log_).wait(); }

  const test::TempDir directory_;
  const std::string path_ = directory_.path() + "/card";
  const std::string log_ = directory_.path() + "/log";
  std::optional<Program> program_;
  UniqueFd qemu_;
};

TEST_F(CardProgramTest, ItIsAnMi210UntilQemuGoes) {
  connect({"--trace", directory_.path() + "/trace"});
  EXPECT_EQ(read32(0, 7), 0x740f1002U);
  EXPECT_EQ(read32(0x378c, 5), 32U) << "RCC_CONFIG_MEMSIZE, MiB";
  EXPECT_EQ(read32(0, 6) & 0xffff, 0xaa55U) << "its ROM";
  EXPECT_EQ(read32(mailbox::kPage, 5), mailbox::kMagic);
  qemu_.reset();
  EXPECT_EQ(program_->wait(), 0);
  EXPECT_EQ(contents(log_), kListening);
  EXPECT_NE(contents(directory_.path() + "/trace").find("RCC_CONFIG_MEMSIZE"), std::string::npos);
}

TEST_F(CardProgramTest, WhatIsNoMessageIsSaidWithTheCardsName) {
  connect({"--name", "the third"});
  const Bytes nothing(16);
  ASSERT_EQ(::send(qemu_.get(), nothing.data(), nothing.size(), MSG_NOSIGNAL), 16);
  EXPECT_EQ(program_->wait(), 1);
  EXPECT_EQ(contents(log_).rfind(kListening + "the third: ", 0), 0U) << contents(log_);
}

TEST_F(CardProgramTest, WrongUsageIsTwo) {
  EXPECT_EQ(usage({}), 2) << "no socket";
  for (const char* vram : {"300M", "8M", "512G", "much", "0", ""}) {
    EXPECT_EQ(usage({"--socket", path_, "--vram", vram}), 2) << vram;
  }
  EXPECT_EQ(usage({"--socket", path_, "--peers", directory_.path() + "/nowhere"}), 2);
  EXPECT_EQ(usage({"--socket", path_, "--no-such-option"}), 2);
  EXPECT_EQ(usage({"--help"}), 0);
  EXPECT_EQ(usage({"--socket", directory_.path() + "/no/such/folder/card"}), 1);
}

TEST_F(CardProgramTest, FilesAreWritten) {
  const std::string boot = directory_.path() + "/made/here";
  for (int time = 0; time < 2; ++time) {
    ASSERT_EQ(Program("AMDGPU_CARD_FILES", {boot}, log_).wait(), 0) << contents(log_);
    const std::string rom = contents(boot + "/vbios.rom");
    ASSERT_EQ(rom.size(), kVbiosBytes);
    EXPECT_EQ(std::memcmp(rom.data(), make_vbios(mi210()).data(), rom.size()), 0);
    for (const char* name : {"mec", "mec2", "rlc", "sdma"}) {
      EXPECT_GT(contents(boot + "/firmware/amdgpu/aldebaran_" + name + ".bin").size(), 256U) << name;
    }
  }
  EXPECT_EQ(Program("AMDGPU_CARD_FILES", {}, log_).wait(), 2);
  EXPECT_EQ(Program("AMDGPU_CARD_FILES", {log_ + "/below"}, log_).wait(), 1);
}

}  // namespace
}  // namespace sluice::card::tests
