// SPDX-License-Identifier: MIT
// The shipped plugin in a host without hooks of its own and on a machine without /dev/kfd: it loads, owns
// nothing, says nothing, and leaves every object to the next plugin. This program is the host: it exports two
// of CRIU's symbols.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/unique_fd.h"
#include "plugin/host/criu_host.h"
#include "support/temp_dir.h"

namespace {

int g_image_dir = -1;
int g_lines = 0;

}  // namespace

extern "C" {

[[gnu::visibility("default")]] int criu_get_image_dir();
int criu_get_image_dir() {
  return g_image_dir;
}

[[gnu::visibility("default")]] void print_on_level(unsigned int level, const char* format, ...);
void print_on_level(unsigned int /*level*/, const char* /*format*/, ...) {
  ++g_lines;
}
}

namespace sluice::plugin_test {
namespace {

using namespace plugin;  // hooks and stages by name

class QuietTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (access("/dev/kfd", F_OK) == 0) GTEST_SKIP() << "this machine has a /dev/kfd";
    g_image_dir = dir_.fd();
    g_lines = 0;
    library_ = dlopen(SLUICE_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << dlerror();
    plugin_ = static_cast<PluginDescriptor*>(dlsym(library_, "CR_PLUGIN_DESC"));
    ASSERT_NE(plugin_, nullptr);
  }
  void TearDown() override {
    if (library_ != nullptr) dlclose(library_);
  }

  template <class Function, class... Arguments>
  int call(Hook hook, Arguments... arguments) {
    return reinterpret_cast<Function*>(plugin_->hooks[hook])(arguments...);
  }

  test::TempDir dir_;
  void* library_ = nullptr;
  PluginDescriptor* plugin_ = nullptr;
};

TEST_F(QuietTest, DescriptorFitsTheOldestHost) {
  EXPECT_STREQ(plugin_->name, "amdgpu_plugin");
  EXPECT_EQ(plugin_->version, 0x000200U);
  EXPECT_EQ(plugin_->max_hooks, 10U);  // no cr_plugin_ctl here to count by
}

// As in a host that goes on after an init() that failed, and asks for everything.
TEST_F(QuietTest, NothingIsOursWithoutInit) {
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  struct stat st {};
  ASSERT_EQ(fstat(null.get(), &st), 0);
  for (const int stage : {kStageDump, kStagePreDump, kStageRestore}) {
    SCOPED_TRACE(stage);
    EXPECT_EQ((call<int(int, const struct stat*)>(kHookHandleDeviceVma, null.get(), &st)), -ENOTSUP);
    EXPECT_EQ((call<int(int, int)>(kHookDumpExtFile, null.get(), 1)), -ENOTSUP);
    for (const Hook hook :
         {kHookPauseDevices, kHookCheckpointDevices, kHookDumpDevicesLate, kHookResumeDevicesLate})
      EXPECT_EQ(call<int(int)>(hook, 1), -ENOTSUP) << hook;
    bool retry = true;
    EXPECT_EQ((call<int(int, bool*)>(kHookRestoreExtFile, 1, &retry)), -ENOTSUP);
    std::uint64_t offset = 0;
    int fd = -1;
    EXPECT_EQ((call<int(const char*, std::uint64_t, std::uint64_t, std::uint64_t*, int*)>(
                  kHookUpdateVmaMap, "/dev/null", std::uint64_t{0}, std::uint64_t{0}, &offset, &fd)),
              -ENOTSUP);
    EXPECT_EQ(call<int()>(kHookPostForking), -ENOTSUP);
    plugin_->exit(stage, 0);
  }
  EXPECT_EQ(g_lines, 0);
  EXPECT_TRUE(dir_.names().empty());
}

TEST_F(QuietTest, NothingIsOursInADump) {
  ASSERT_EQ(plugin_->init(kStageDump), 0);
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  struct stat st {};
  ASSERT_EQ(fstat(null.get(), &st), 0);
  EXPECT_EQ((call<int(int, const struct stat*)>(kHookHandleDeviceVma, null.get(), &st)), -ENOTSUP);
  EXPECT_EQ((call<int(int, int)>(kHookDumpExtFile, null.get(), 1)), -ENOTSUP);
  EXPECT_EQ((call<int(int)>(kHookDumpDevicesLate, 1)), -ENOTSUP);
  plugin_->exit(kStageDump, -1);
  EXPECT_EQ(g_lines, 0);
  EXPECT_TRUE(dir_.names().empty());
}

TEST_F(QuietTest, NothingIsOursInAPreDump) {
  ASSERT_EQ(plugin_->init(kStagePreDump), 0);
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  struct stat st {};
  ASSERT_EQ(fstat(null.get(), &st), 0);
  EXPECT_EQ(call<int(int)>(kHookPauseDevices, getpid()), -ENOTSUP);
  EXPECT_EQ((call<int(int, const struct stat*)>(kHookHandleDeviceVma, null.get(), &st)), -ENOTSUP);
  const pid_t child = fork();
  if (child == 0) ::exit(7);  // the pre-dump is not the child's
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
  EXPECT_EQ(g_lines, 0);
  library_ = nullptr;  // CRIU neither calls exit() nor closes it after a pre-dump
}

TEST_F(QuietTest, NothingIsOursInARestore) {
  ASSERT_EQ(plugin_->init(kStageRestore), 0);
  EXPECT_EQ((call<int(int)>(kHookRestoreExtFile, 1)), -ENOTSUP);
  std::uint64_t offset = 0;
  int fd = -1;
  EXPECT_EQ((call<int(const char*, std::uint64_t, std::uint64_t, std::uint64_t*, int*)>(
                kHookUpdateVmaMap, "/dev/null", std::uint64_t{0}, std::uint64_t{0}, &offset, &fd)),
            -ENOTSUP);
  EXPECT_EQ(call<int()>(kHookPostForking), -ENOTSUP);
  EXPECT_EQ((call<int(int)>(kHookResumeDevicesLate, 1)), -ENOTSUP);
  plugin_->exit(kStageRestore, 0);
  EXPECT_EQ(g_lines, 0);
}

TEST_F(QuietTest, AnImageOfAGpuProcessIsRefusedAloud) {
  dir_.write("amdgpu-kfd-1.img", test::Bytes(8));
  ASSERT_EQ(plugin_->init(kStageRestore), 0);
  EXPECT_EQ((call<int(int)>(kHookRestoreExtFile, 1)), -ENODEV);
  EXPECT_EQ(g_lines, 1);
  plugin_->exit(kStageRestore, -1);
}

TEST_F(QuietTest, ExportsItsDescriptorAndNothingElse) {
  const std::string command = std::string("nm -D --defined-only ") + SLUICE_PLUGIN;
  FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string text;
  for (std::array<char, 256> line{}; fgets(line.data(), line.size(), pipe) != nullptr;) text += line.data();
  ASSERT_EQ(pclose(pipe), 0);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_NE(text.find(" CR_PLUGIN_DESC"), std::string::npos) << text;
}

}  // namespace
}  // namespace sluice::plugin_test
