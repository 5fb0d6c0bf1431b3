// SPDX-License-Identifier: MIT
// The look-alike itself, with a plugin that writes down what happens to it. In each of the six versions:
// symbols, hook counts, order and place of every call. And its checks for leftovers can fail.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <sstream>

#include "lookalike/harness.h"

namespace sluice::plugin_test {
namespace {

using lookalike::probe_plugin_directory;
using lookalike::read_file;
using lookalike::Scene;
using lookalike::ScratchDirectory;
using lookalike::Strings;

struct Version {
  const char* name;
  unsigned hooks;
  bool checkpoint_in_freezing = false;
};

void PrintTo(const Version& version, std::ostream* out) {
  *out << version.name;
}

class HostTest : public ::testing::TestWithParam<Version> {
 protected:
  HostTest() : scene_(small_machine(), probe_plugin_directory()) {
    scene_.variables["PROBE_LOG"] = (calls_.path() / "calls").string();
  }

  static vamdgpu::MachineOptions small_machine() {
    vamdgpu::MachineOptions options;
    options.gpus = 2;
    options.vram_bytes = 32 << 20;
    options.gtt_bytes = 80 << 20;  // a context save area alone has some 60 MiB
    return options;
  }

  std::string version() const { return GetParam().name; }
  unsigned hooks() const { return GetParam().hooks; }
  // 4.0 has the hooks of 4.1.1, but not its list of plugins.
  bool lists_plugins() const { return hooks() >= 12 && !GetParam().checkpoint_in_freezing; }

  // The calls since the last look, one per line.
  Strings calls() {
    Strings lines;
    std::istringstream text(read_file(calls_.path() / "calls"));
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    std::filesystem::remove(calls_.path() / "calls");
    return lines;
  }

  // The first words of calls ("main PAUSE_DEVICES"), repeats in a row told once, symbol lines left out.
  static Strings order(const Strings& lines) {
    Strings result;
    for (const std::string& line : lines) {
      std::istringstream words(line);
      std::string where, what;
      words >> where >> what;
      if (what == "symbol" || what == "inventory") continue;
      const std::string entry = where + " " + what;
      if (result.empty() || result.back() != entry) result.push_back(entry);
    }
    return result;
  }

  static bool has(const Strings& lines, const std::string& line) {
    return std::find(lines.begin(), lines.end(), line) != lines.end();
  }

  void start() {
    const std::string ready = scene_.start_subject({"--vram", "8M", "--gtt", "1M"});
    ASSERT_EQ(ready.substr(0, 5), "ready") << ready;
  }

  ScratchDirectory calls_;
  Scene scene_;
};

TEST_P(HostTest, DumpCallsHooksInOrderAndKillsTheTask) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(scene_.dump(version()), 0) << scene_.log();
  const Strings lines = calls();
  Strings expected = {"main init"};
  if (hooks() >= 12) expected.insert(expected.end(), {"main PAUSE_DEVICES", "main CHECKPOINT_DEVICES"});
  expected.insert(expected.end(), {"main HANDLE_DEVICE_VMA", "main DUMP_EXT_FILE"});
  if (hooks() >= 15) expected.push_back("main DUMP_DEVICES_LATE");
  expected.push_back("main exit");
  EXPECT_EQ(order(lines), expected);
  EXPECT_TRUE(has(lines, "main init 0 hooks " + std::to_string(hooks())));
  EXPECT_TRUE(has(lines, "main exit 0 0"));
  // One call per open file: /dev/kfd and two render nodes, ids from 1 in the order of descriptors.
  EXPECT_TRUE(has(lines, "main DUMP_EXT_FILE 1 /dev/kfd"));
  EXPECT_TRUE(has(lines, "main DUMP_EXT_FILE 2 /dev/dri/renderD128"));
  EXPECT_TRUE(has(lines, "main DUMP_EXT_FILE 3 /dev/dri/renderD129"));
  EXPECT_EQ(scene_.subject().wait(), 128 + 9);
}

TEST_P(HostTest, TheAlarmRunsWhileTasksAreFrozen) {
  if (hooks() < 12) GTEST_SKIP() << "no hook is called meanwhile";
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(scene_.dump(version()), 0) << scene_.log();
  const Strings lines = calls();
  EXPECT_TRUE(has(lines, "main PAUSE_DEVICES under the alarm"));
  EXPECT_EQ(has(lines, "main CHECKPOINT_DEVICES under the alarm"), GetParam().checkpoint_in_freezing);
}

TEST_P(HostTest, TheAlarmEndsAHostWhoseHookHangs) {
  if (hooks() < 12) GTEST_SKIP() << "no hook is called meanwhile";
  scene_.variables["PROBE_HANG"] = GetParam().checkpoint_in_freezing ? "CHECKPOINT_DEVICES" : "PAUSE_DEVICES";
  ASSERT_NO_FATAL_FAILURE(start());
  EXPECT_EQ(scene_.dump(version(), {"--timeout-ms", "100"}), 128 + SIGABRT);
  EXPECT_FALSE(has(calls(), "main exit 0 -1"));
}

TEST_P(HostTest, SymbolsAreThoseOfTheVersion) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(scene_.dump(version()), 0) << scene_.log();
  const Strings lines = calls();
  EXPECT_TRUE(has(lines, "main symbol fdstore_add yes"));
  EXPECT_TRUE(has(lines, "main symbol opts yes"));
  const bool since_41 = lists_plugins();
  EXPECT_TRUE(has(lines, std::string("main symbol add_inventory_plugin ") + (since_41 ? "yes" : "no")));
  EXPECT_TRUE(has(lines, std::string("main symbol dump_criu_run_id ") + (since_41 ? "yes" : "no")));
  EXPECT_TRUE(has(lines, std::string("main symbol dont_use_freeze_cgroup ") +
                             (GetParam().checkpoint_in_freezing ? "yes" : "no")));
  EXPECT_TRUE(has(lines, std::string("main symbol has_children ") + (hooks() >= 13 ? "yes" : "no")));
}

TEST_P(HostTest, DuplicatedDescriptorsAreOneFile) {
  ASSERT_EQ(scene_.start_subject({"--vram", "8M", "--gtt", "1M", "--dup-kfd"}).substr(0, 5), "ready");
  ASSERT_EQ(scene_.dump(version()), 0) << scene_.log();
  const Strings lines = calls();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "main DUMP_EXT_FILE 1 /dev/kfd"), 1);
  EXPECT_FALSE(has(lines, "main DUMP_EXT_FILE 4 /dev/kfd"));
}

TEST_P(HostTest, RestoreCallsHooksInOrderAndPlace) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(scene_.dump(version()), 0) << scene_.log();
  (void)calls();
  // The probe restores no GPU state, so device maps fail at the end: after every hook of the task.
  EXPECT_EQ(scene_.restore(version()), 1);
  const Strings lines = calls();
  Strings in_main, in_task;
  // Each in its own order: from criu 4.2 the host's hook runs at the same time as the task's.
  for (const std::string& line : lines) (line.starts_with("main") ? in_main : in_task).push_back(line);
  in_main = order(in_main);
  in_task = order(in_task);
  Strings expected_main = {"main init"};
  if (hooks() >= 15) expected_main.push_back("main RESTORE_INIT");
  if (hooks() >= 13) expected_main.push_back("main POST_FORKING");
  expected_main.push_back("main exit");
  EXPECT_EQ(in_main, expected_main);
  EXPECT_TRUE(has(lines, "main exit 2 -1"));
  EXPECT_TRUE(has(lines, "task RESTORE_EXT_FILE 1 /dev/kfd"));
  EXPECT_EQ(in_task, (Strings{"task RESTORE_EXT_FILE", "task UPDATE_VMA_MAP"}));
  if (lists_plugins()) {
    EXPECT_TRUE(has(lines, "main inventory yes"));
  }
}

TEST_P(HostTest, MoreHooksThanTheHostKnowsAreRefused) {
  ASSERT_NO_FATAL_FAILURE(start());
  scene_.variables["PROBE_HOOKS"] = std::to_string(hooks() + 1);
  EXPECT_EQ(scene_.dump(version()), 1);
  EXPECT_NE(scene_.log().find("has " + std::to_string(hooks() + 1) + " assigned while max " +
                              std::to_string(hooks())),
            std::string::npos);
  EXPECT_TRUE(calls().empty());  // neither init() nor exit()
  EXPECT_EQ(scene_.subject().ask("check").substr(0, 8), "ok check");
}

TEST_P(HostTest, AFailedInitIsNotFollowedByExit) {
  ASSERT_NO_FATAL_FAILURE(start());
  scene_.variables["PROBE_FAIL"] = "init";
  EXPECT_EQ(scene_.dump(version()), 1);
  EXPECT_EQ(order(calls()), Strings{"main init"});
}

TEST_P(HostTest, AFailedDumpLetsTheTaskRunOnAfterExit) {
  ASSERT_NO_FATAL_FAILURE(start());
  scene_.variables["PROBE_FAIL"] = "DUMP_EXT_FILE";
  EXPECT_EQ(scene_.dump(version()), 1);
  const Strings lines = calls();
  EXPECT_TRUE(has(lines, "main exit 0 -1"));
  EXPECT_EQ(lines.back(), "main exit 0 -1");
  EXPECT_EQ(scene_.subject().ask("check").substr(0, 8), "ok check");
}

TEST_P(HostTest, PreDumpNeverCallsExit) {
  ASSERT_NO_FATAL_FAILURE(start());
  EXPECT_EQ(scene_.start_host(version(), "pre-dump", {}).wait(), 0) << scene_.log();
  Strings expected = {"main init"};
  if (hooks() >= 12) expected.push_back("main PAUSE_DEVICES");
  if (GetParam().checkpoint_in_freezing) expected.push_back("main CHECKPOINT_DEVICES");
  expected.push_back("main HANDLE_DEVICE_VMA");
  EXPECT_EQ(order(calls()), expected);
  EXPECT_EQ(scene_.subject().ask("check").substr(0, 8), "ok check");
}

TEST_P(HostTest, AThreadLeftInTheTaskIsAViolation) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(scene_.dump(version()), 0) << scene_.log();
  (void)scene_.log();
  scene_.variables["PROBE_THREAD"] = "1";
  EXPECT_EQ(scene_.restore(version()), 3);
  EXPECT_NE(scene_.log().find("lives in the restored task"), std::string::npos);
}

TEST_P(HostTest, ADescriptorLeftInTheTaskIsAViolation) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(scene_.dump(version()), 0) << scene_.log();
  (void)scene_.log();
  scene_.variables["PROBE_FD"] = "1";
  EXPECT_EQ(scene_.restore(version()), 3);
  EXPECT_NE(scene_.log().find("is left in the restored task"), std::string::npos);
}

TEST_P(HostTest, AFailedPostForkingFailsTheRestoreWhereItExists) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(scene_.dump(version()), 0) << scene_.log();
  (void)scene_.log();
  scene_.variables["PROBE_FAIL"] = "POST_FORKING";
  EXPECT_EQ(scene_.restore(version()), 1);
  const std::string log = scene_.log();
  EXPECT_EQ(log.find("step post_forking") == std::string::npos, hooks() >= 13) << log;
  EXPECT_TRUE(has(calls(), "main exit 2 -1"));
}

INSTANTIATE_TEST_SUITE_P(Versions, HostTest,
                         ::testing::Values(Version{"3.17.1", 10}, Version{"3.19", 10},
                                           Version{"4.0", 12, true}, Version{"4.1.1", 12}, Version{"4.2", 13},
                                           Version{"dev", 15}),
                         [](const auto& tested) {
                           std::string name = tested.param.name;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

}  // namespace
}  // namespace sluice::plugin_test
