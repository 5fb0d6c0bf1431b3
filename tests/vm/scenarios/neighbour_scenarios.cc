// SPDX-License-Identifier: MIT
// CRIU's other ways and other users: pre-dump, a plugin of another vendor, processes and machines without a
// GPU, and the list of plugins that an image needs.
#include <sys/mount.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>

#include "scenario.h"

namespace sluice::vm_test {
namespace {

constexpr const char* kOtherDevice = "/dev/cpu_dma_latency";

std::size_t occurrences(const std::string& text, const std::string& word) {
  std::size_t count = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

Strings small_subject() {
  return {"--gpus", "2", "--vram", "4M", "--gtt", "1M", "--run-queues"};
}

class PreDump : public Scenario {
 protected:
  // Names of the images in a directory, with a beginning.
  static bool has(const std::filesystem::path& directory, const std::string& prefix) {
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      if (entry.path().filename().string().starts_with(prefix)) return true;
    }
    return false;
  }
  void expect_dump_writes_the_change(const Strings& dump_options) {
    EXPECT_EQ(subject_->ask("change"), "ok change");
    ASSERT_TRUE(std::filesystem::is_directory(images()));
    ASSERT_NO_FATAL_FAILURE(expect_survives(dump_options));
    EXPECT_TRUE(has(images(), "amdgpu-delta-"));
    EXPECT_EQ(subject_->quit(), 0);
  }
};

TEST_F(PreDump, FollowedByADumpComesBackWhole) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(small_subject()));
  ASSERT_TRUE(criu_->pre_dump(subject_->pid(), images("before"), {"--track-mem"}).good());
  EXPECT_EQ(machine().criu_calls(kProcessInfo), 1U);
  EXPECT_EQ(machine().criu_calls(kUnpause), machine().criu_calls(kProcessInfo) + 1)
      << "one asks for an older pause";
  EXPECT_TRUE(has(images("before"), "amdgpu-predump.img"));
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  ASSERT_NO_FATAL_FAILURE(expect_dump_writes_the_change({"--track-mem", "--prev-images-dir", "../before"}));
}

TEST_F(PreDump, TwoOfThemAndADumpAreAChain) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(small_subject()));
  ASSERT_TRUE(criu_->pre_dump(subject_->pid(), images("first"), {"--track-mem"}).good());
  EXPECT_EQ(subject_->ask("change"), "ok change");
  const CriuRun second =
      criu_->pre_dump(subject_->pid(), images("second"), {"--track-mem", "--prev-images-dir", "../first"});
  ASSERT_TRUE(second.good());
  EXPECT_TRUE(has(images("second"), "amdgpu-predump-delta-"));
  ASSERT_NO_FATAL_FAILURE(expect_dump_writes_the_change({"--track-mem", "--prev-images-dir", "../second"}));
}

// Without CRIU, and without memory tracking.
TEST_F(PreDump, ByTheCommandIsFollowedByADump) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(small_subject()));
  Launch command;
  command.arguments = {(settings().programs / "sluice").string(), "predump", std::to_string(subject_->pid()),
                       "--images-dir", images("before").string()};
  ASSERT_EQ(run(command), 0);
  EXPECT_TRUE(has(images("before"), "amdgpu-predump.img"));
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  ASSERT_NO_FATAL_FAILURE(expect_dump_writes_the_change({"--prev-images-dir", "../before"}));
}

// The KFD charges the job for what the pre-dump holds, also when the job has freed it.
TEST_F(PreDump, LeavesTheJobTheMemoryThatItFrees) {
  load({.number = 1, .vram_mib = 64, .small = true});
  if (!kfd_exports())
    GTEST_SKIP() << "this guest's KFD exports no dma-bufs: the subject has a CPU map of each BO";
  const std::string vram = std::to_string(machine().vram_bytes() * 63 / 100 >> 20) + "M";
  ASSERT_NO_FATAL_FAILURE(start_subject({"--gpus", "1", "--vram", vram, "--gtt", "1M", "--no-queues"}));
  Launch command;
  command.arguments = {(settings().programs / "sluice").string(), "predump", std::to_string(subject_->pid()),
                       "--images-dir", images("before").string()};
  command.environment = {{"SLUICE_PREDUMP_RATE", "16M"}};
  const pid_t predump = vm_test::start(command);
  ASSERT_TRUE(eventually([this] { return has(images("before"), "amdgpu-predump-pages-"); }));
  std::optional<int> status;
  for (unsigned replaced = 0; !status; ++replaced) {
    ASSERT_EQ(subject_->ask("replace"), "ok replace") << replaced;
    status = wait_for(predump, Seconds(0));
  }
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(has(images("before"), "amdgpu-predump.img"));
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
}

enum class Order { OursFirst, OtherFirst };

class BesideAnotherPlugin : public Scenario, public testing::WithParamInterface<Order> {};

// A directory of tmpfs lists what was made last first: criu loads plugins in that order.
TEST_P(BesideAnotherPlugin, EachDumpsAndRestoresItsOwnFiles) {
  load();
  const std::filesystem::path plugins = scratch() / "both";
  std::filesystem::create_directories(plugins);
  std::filesystem::path order[] = {settings().other_plugin, settings().plugin};
  if (GetParam() == Order::OtherFirst) std::swap(order[0], order[1]);
  for (const std::filesystem::path& plugin : order)
    std::filesystem::create_symlink(plugin, plugins / plugin.filename());
  criu_->use_plugins(plugins);
  struct stat device {};
  ASSERT_EQ(::stat(kOtherDevice, &device), 0);
  // The subject's parent holds the other device.
  Launch shell;
  shell.arguments = {"sh", "-c", std::string("exec 9<>") + kOtherDevice + "; \"$@\"; exit $?", "sh"};
  shell.output = "/dev/null";
  ASSERT_NO_FATAL_FAILURE(start_subject(small_subject(), shell));
  ASSERT_NE(subject_->root(), subject_->pid());
  ASSERT_NO_FATAL_FAILURE(expect_survives());
  struct stat restored {};
  ASSERT_EQ(::stat(("/proc/" + std::to_string(subject_->root()) + "/fd/9").c_str(), &restored), 0);
  EXPECT_EQ(restored.st_rdev, device.st_rdev);
  EXPECT_EQ(subject_->quit(), 0);
}

INSTANTIATE_TEST_SUITE_P(Loaded, BesideAnotherPlugin, testing::Values(Order::OursFirst, Order::OtherFirst),
                         [](const testing::TestParamInfo<Order>& order) {
                           return std::string(order.param == Order::OursFirst ? "OursFirst" : "OtherFirst");
                         });

// This machine has none, while this lives.
class HiddenKfd {
 public:
  HiddenKfd() {
    std::filesystem::rename(kKfd, kAway);
    if (::mount("none", kClass, "tmpfs", 0, nullptr) != 0)
      throw std::system_error(errno, std::generic_category(), kClass);
  }
  ~HiddenKfd() {
    (void)::umount(kClass);
    std::filesystem::rename(kAway, kKfd);
  }
  HiddenKfd(const HiddenKfd&) = delete;
  HiddenKfd& operator=(const HiddenKfd&) = delete;

 private:
  static constexpr const char *kKfd = "/dev/kfd", *kAway = "/dev/kfd-away", *kClass = "/sys/class/kfd";
};

class WithoutGpu : public Scenario {
 protected:
  void expect_silent_round() {
    ASSERT_NO_FATAL_FAILURE(start_subject({"--plain"}));
    const CriuRun dumped = criu_->dump(subject_->pid(), images());
    ASSERT_TRUE(dumped.good());
    EXPECT_EQ(dumped.plugin_lines(), Strings());
    ASSERT_TRUE(subject_->reap_dumped());
    const CriuRun restored = criu_->restore(images());
    ASSERT_TRUE(restored.good());
    EXPECT_EQ(restored.plugin_lines(), Strings());
    ASSERT_NO_FATAL_FAILURE(expect_whole());
    EXPECT_EQ(subject_->quit(), 0);
  }
};

TEST_F(WithoutGpu, AProcessOnAMachineWithGpusIsDumpedWithoutAWord) {
  load();
  expect_silent_round();
}

TEST_F(WithoutGpu, AProcessOnAMachineWithoutKfdIsDumpedWithoutAWord) {
  load();
  const HiddenKfd hidden;
  expect_silent_round();
}

TEST_F(WithoutGpu, AMachineWithoutKfdRefusesAGpuProcessAndSaysWhy) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(small_subject()));
  ASSERT_NO_FATAL_FAILURE(dump());
  {
    const HiddenKfd hidden;
    const CriuRun run = criu_->restore(images());
    EXPECT_NE(run.status.value_or(0), 0);
    EXPECT_TRUE(run.said("[SL-R33]")) << "the reason is not said";
  }
  // On the machine it came from it still restores.
  ASSERT_NO_FATAL_FAILURE(restore());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
}

class Inventory : public Scenario {
 protected:
  // A directory of plugins that holds none.
  void use_no_plugins() {
    std::filesystem::create_directories(scratch() / "none");
    criu_->use_plugins(scratch() / "none");
  }
};

TEST_F(Inventory, AnImageWithGpusNamesThePluginOnce) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(small_subject()));
  ASSERT_NO_FATAL_FAILURE(dump());
  EXPECT_EQ(occurrences(read_file(images() / "inventory.img"), "amdgpu_plugin"),
            criu_traits().inventory_of_plugins ? 1U : 0U);
  const std::filesystem::path plugins = scratch() / "plugins";
  use_no_plugins();
  const CriuRun refused = criu_->restore(images());
  EXPECT_NE(refused.status.value_or(0), 0);
  if (criu_traits().inventory_of_plugins) {
    EXPECT_TRUE(refused.said("Missing required plugin")) << "criu does not miss the plugin";
  }
  criu_->use_plugins(plugins);
  ASSERT_NO_FATAL_FAILURE(restore());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
}

TEST_F(Inventory, AnImageWithoutGpusNamesNoPluginAndNeedsNone) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject({"--plain"}));
  ASSERT_NO_FATAL_FAILURE(dump());
  EXPECT_EQ(occurrences(read_file(images() / "inventory.img"), "amdgpu_plugin"), 0U);
  use_no_plugins();
  ASSERT_NO_FATAL_FAILURE(restore());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
}

}  // namespace
}  // namespace sluice::vm_test
