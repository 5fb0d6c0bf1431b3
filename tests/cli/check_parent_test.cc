// SPDX-License-Identifier: MIT
// `sluice check --parent`: what a dump on a checkpoint would write, as far as that is known while the job
// runs, and what makes it write everything.
#include "cli/check/check_parent.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "images_test.h"

namespace sluice::cli_test {
namespace {

using ::testing::IsSupersetOf;

class CheckParentTest : public ImagesTest {
 protected:
  // Of this process, which uses no GPU. The command's verdict on the dump itself is another test's.
  static json check_on(const std::string& parent, const Strings& more = {}, const Strings& settings = {}) {
    Strings arguments = {"check", "--json", "--pid", std::to_string(::getpid()), "--parent", parent};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return object_of(sluice(arguments, &images_->machine(), settings));
  }
  static std::vector<std::string> codes(const json& object) {
    std::vector<std::string> codes;
    for (const json& finding : object["findings"]) codes.push_back(finding["code"]);
    return codes;
  }
};

TEST_F(CheckParentTest, ToldIsWhatTheParentHasAndWhatItsDumpTook) {
  const json object = check_on(plain());
  const json& parent = object["parent"];
  std::uint64_t contents = total_size(plain(), "amdgpu-pages-");
  contents -= 8 * names(plain(), "amdgpu-pages-").size();  // their lengths
  EXPECT_EQ(parent["gpu_bytes"], contents);
  EXPECT_EQ(parent["most_bytes"], contents);
  EXPECT_EQ(parent["new_bytes"], 0);
  EXPECT_GT(parent["frozen_seconds_of_parent"], 0.0);
  EXPECT_TRUE(parent["frozen_seconds"].is_null());
  EXPECT_THAT(codes(object), IsSupersetOf({"parent", "changes", "frozen"}));
}

// The disks set the pace where all has changed; where nothing has, they have nothing to do.
TEST_F(CheckParentTest, ADescribedMachineForetellsHowLongQueuesAreStopped) {
  const std::string machine = images_->directory("machine.json").string();
  std::ofstream(machine) << R"({"gpus": [{"bytes": "1G", "copy": 50}], "disks": [{"write": 1, "read": 1}],)"
                         << R"( "cpus": 4, "checksum": 10})";
  const json seconds = check_on(plain(), {"--machine", machine})["parent"]["frozen_seconds"];
  EXPECT_GT(seconds["unchanged"], 0.0);
  EXPECT_GT(seconds["changed"].get<double>(), 5 * seconds["unchanged"].get<double>());
  const Ended none = sluice({"check", "--pid", "1", "--parent", plain(), "--machine", plain()});
  EXPECT_EQ(none.status, kFailed);
  EXPECT_THAT(none.err, HasSubstr("docs/measurements/planning.md"));
}

TEST_F(CheckParentTest, WhatMakesADumpWriteEverythingIsSaid) {
  const std::string directory = damaged_copy();
  remove_sums(directory);
  const json without_sums = check_on(directory);
  EXPECT_THAT(codes(without_sums), ::testing::Contains("parent-unusable"));
  EXPECT_TRUE(without_sums["parent"].is_null());
  EXPECT_THAT(codes(check_on(directory + "/nowhere")), ::testing::Contains("parent-unusable"));
  EXPECT_THAT(codes(check_on(plain(), {}, {"SLUICE_CHECKSUM=off"})), ::testing::Contains("parent-no-sums"));
}

// Anybody may have written the statistics.
TEST_F(CheckParentTest, WhatTheParentsDumpTookIsToldByItsStatistics) {
  const std::string directory = damaged_copy();
  remove_files(directory, "sluice-stats-");
  const std::string machine = images_->directory("rates.json").string();
  std::ofstream(machine) << R"({"gpus": [{"bytes": "1G", "copy": 50}], "disks": [{"write": 1, "read": 1}],)"
                         << R"( "cpus": 4, "checksum": 10})";
  const auto told = [&](const Strings& more = {}) {
    const json object = check_on(directory, more);
    EXPECT_THAT(codes(object), ::testing::Contains("frozen"));
    return object["parent"];
  };
  EXPECT_TRUE(told()["frozen_seconds_of_parent"].is_null());
  const json with_rates = told({"--machine", machine});
  EXPECT_TRUE(with_rates["frozen_seconds_of_parent"].is_null());
  EXPECT_GT(with_rates["frozen_seconds"]["changed"], 0.0);
  const std::vector<std::pair<std::string, json>> cases = {
      {R"({"gpus": []})", {}},
      {R"({"gpus": [], "frozen_seconds": "12"})", {}},
      {R"({"gpus": [], "frozen_seconds": 0})", {}},
      {R"({"gpus": [], "frozen_seconds": 0.5})", 0.5},
      {R"({"gpus": [], "frozen_seconds": 12.5})", 12.5},
  };
  for (const auto& [text, seconds] : cases) {
    std::ofstream(directory + "/sluice-stats-dump-1.json") << text;
    EXPECT_EQ(told()["frozen_seconds_of_parent"], seconds) << text;
  }
}

TEST_F(CheckParentTest, BuffersOfRenderFilesAreOfTheParent) {
  ASSERT_EQ(images_->dump("rendered", {"--gem-handles", "1,3"}), "");
  const std::string directory = images_->directory("rendered").string();
  std::uint64_t contents = 0;
  for (const char* kind : {"amdgpu-pages-", "amdgpu-drm-pages-"})
    contents += total_size(directory, kind) - 8 * names(directory, kind).size();  // without their lengths
  EXPECT_EQ(check_on(directory)["parent"]["gpu_bytes"], contents);
}

// A restore by CRIU before 4.2 does not follow it.
TEST_F(CheckParentTest, AnAbsoluteWayIsAMatterOfTheVersion) {
  struct Case {
    std::string path;
    std::optional<cli::CriuVersion> criu;
    bool warned;
  };
  const std::string relative = std::filesystem::relative(plain()).string();
  const std::vector<Case> cases = {
      {plain(), cli::CriuVersion{4, 1, 1}, true},
      {plain(), cli::CriuVersion{4, 2, 0}, false},
      {plain(), std::nullopt, true},
      {relative, cli::CriuVersion{4, 1, 1}, false},
      {relative, cli::CriuVersion{4, 2, 0}, false},
  };
  cli::ProcessCheck processes;
  processes.tasks = {{::getpid(), ::getpid()}};
  const std::optional<kfd::Topology> no_gpus;
  const std::optional<cli::Machine> no_rates;
  for (const Case& one : cases) {
    const cli::ParentCheck check = cli::check_parent(
        {one.path, processes, no_gpus, one.criu, settings::Config(), ImageKeys(), no_rates});
    ASSERT_TRUE(check.json) << one.path;
    EXPECT_EQ((*check.json)["mapped_buffers_not_in_parent"], 0U);
    const bool warned =
        std::any_of(check.findings.begin(), check.findings.end(),
                    [](const cli::Finding& finding) { return finding.code == "parent-absolute"; });
    EXPECT_EQ(warned, one.warned) << one.path;
  }
}

TEST_F(CheckParentTest, WhereOthersMayWriteNothingIsRead) {
  const std::string directory = damaged_copy();
  std::filesystem::permissions(directory, std::filesystem::perms::all);
  EXPECT_THAT(codes(check_on(directory)), ::testing::Contains("parent-unusable"));
}

// A process that nothing keeps from being dumped.
class Idle {
 public:
  Idle() {
    std::array<int, 2> ready{};
    if (::pipe2(ready.data(), O_CLOEXEC) != 0)
      throw std::system_error(errno, std::generic_category(), "pipe2");
    pid_ = ::fork();
    if (pid_ == 0) {
      (void)::setsid();
      (void)::close_range(0, ~0U, 0);  // which the other end sees
      for (;;) (void)::pause();
    }
    (void)::close(ready[1]);
    char none = 0;
    EXPECT_EQ(::read(ready[0], &none, 1), 0);
    (void)::close(ready[0]);
  }
  ~Idle() {
    (void)::kill(pid_, SIGKILL);
    (void)::waitpid(pid_, nullptr, 0);
  }
  Idle(const Idle&) = delete;
  Idle& operator=(const Idle&) = delete;
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

TEST_F(CheckParentTest, TheCommandHasTheWayFromTheNewDirectory) {
  if (::geteuid() != 0) GTEST_SKIP() << "a dump will work for root only";
  const std::filesystem::path criu = images_->directory("criu");
  std::ofstream(criu) << "#!/bin/sh\necho 'Version: 4.2'\n";
  std::filesystem::permissions(criu, std::filesystem::perms::owner_all);
  std::filesystem::create_directory(images_->directory("later"));
  const Idle idle;
  const Ended ended =
      sluice({"check", "--json", "--pid", std::to_string(idle.pid()), "--parent", plain(), "--dir",
              images_->directory("later").string()},
             &images_->machine(),
             {"PATH=" + criu.parent_path().string() + ":/usr/bin:/bin",
              "CRIU_LIBS_DIR=" + std::filesystem::path(SLUICE_PLUGIN).parent_path().string()});
  const json object = object_of(ended);
  ASSERT_TRUE(object["criu_command"].is_array()) << ended.out;
  const std::vector<std::string> words = object["criu_command"];
  const auto option = std::find(words.begin(), words.end(), "--prev-images-dir");
  ASSERT_NE(option, words.end());
  EXPECT_EQ(*std::next(option), "../plain");
}

TEST_F(CheckParentTest, NeedsAProcess) {
  EXPECT_EQ(sluice({"check", "--parent", plain()}).status, kUsage);
  EXPECT_EQ(sluice({"check", "--pid", "1", "--machine", "node.json"}).status, kUsage);
}

TEST(Buffers, AreTheParentsByProcessAddressAndSize) {
  const std::set<cli::KnownBuffer> known = {{7, 0x1000, 4096}, {7, 0x9000, 8192}};
  const std::vector<proc::DeviceMap> maps = {{.address = 0x1000, .bytes = 4096},
                                             {.address = 0x9000, .bytes = 4096},
                                             {.address = 0x20000, .bytes = 100}};
  const cli::MappedBuffers found = cli::compare_buffers(maps, 7, known);
  EXPECT_EQ(found.known, 1U);
  EXPECT_EQ(found.known_bytes, 4096U);
  EXPECT_EQ(found.others, 2U);
  EXPECT_EQ(found.other_bytes, 4196U);
  EXPECT_EQ(cli::compare_buffers(maps, 8, known).known, 0U) << "of another process";
}

}  // namespace
}  // namespace sluice::cli_test
