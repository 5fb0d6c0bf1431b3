// SPDX-License-Identifier: MIT
// A process that gives memory back before it is dumped, because it is asked to
// (docs/user/smaller-checkpoints.md): the images have what is left, and the restored process goes on with
// that.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/unique_fd.h"
#include "plugin_test.h"

namespace sluice::plugin_test {
namespace {

constexpr std::uint64_t kCache = 8 * kMiB;

class SmallerCheckpointTest : public PluginTest {
 protected:
  SmallerCheckpointTest() { EXPECT_EQ(::mkfifo(told_.c_str(), 0600), 0); }

  void start_with_cache() {
    ASSERT_NO_FATAL_FAILURE(start({"--no-queues", "--zero", "0", "--cache",
                                   std::to_string(kCache >> 20) + "M", "--cache-told", told_.string()}));
  }
  // As a hook of an engine does: asks, and waits for the answer.
  void ask_to_drop() {
    ASSERT_EQ(::kill(scene_.subject_pid(), SIGUSR1), 0);
    const UniqueFd fifo(::open(told_.c_str(), O_RDONLY | O_CLOEXEC));
    std::array<char, 16> line{};
    ASSERT_GT(::read(fifo.get(), line.data(), line.size() - 1), 0);
    ASSERT_STREQ(line.data(), "dropped\n");
  }
  // Of the process' BOs.
  std::uint64_t bytes() {
    constexpr std::string_view kKey = " bytes=";
    const std::string answer = heard("check");
    const std::size_t at = answer.find(kKey);
    EXPECT_NE(at, std::string::npos) << answer;
    return at == std::string::npos ? 0 : std::stoull(answer.substr(at + kKey.size()));
  }
  std::uint64_t pages() const {
    std::uint64_t sum = 0;
    for (const std::string& name : images("amdgpu-pages-"))
      sum += std::filesystem::file_size(scene_.images() / name);
    return sum;
  }

 private:
  ScratchDirectory directory_;
  std::filesystem::path told_ = directory_.path() / "told";
};

TEST_P(SmallerCheckpointTest, WhatAProcessGivesBackBeforeTheDumpIsNotInTheImages) {
  ASSERT_NO_FATAL_FAILURE(start_with_cache());
  const std::uint64_t before = bytes();
  ASSERT_NO_FATAL_FAILURE(ask_to_drop());
  ASSERT_NO_FATAL_FAILURE(dump());
  EXPECT_LT(pages(), before - 2 * kCache + kMiB);
  ASSERT_NO_FATAL_FAILURE(restore_and_check());
  EXPECT_EQ(bytes(), before - 2 * kCache);
}

TEST_P(SmallerCheckpointTest, WhatItKeepsIsThereAgain) {
  ASSERT_NO_FATAL_FAILURE(start_with_cache());
  const std::uint64_t before = bytes();
  ASSERT_NO_FATAL_FAILURE(dump());
  EXPECT_GE(pages(), 2 * kCache);
  ASSERT_NO_FATAL_FAILURE(restore_and_check());
  EXPECT_EQ(bytes(), before);
}

INSTANTIATE_TEST_SUITE_P(Versions, SmallerCheckpointTest, ::testing::ValuesIn(kVersions), name_of_version);

}  // namespace
}  // namespace sluice::plugin_test
