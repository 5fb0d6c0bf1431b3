// SPDX-License-Identifier: MIT
// A container into which a process is restored has put something else where a device or one of its files was.
// The restored process gets nothing by it that root can open and it cannot, and nobody is waited for.
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "plugin_test.h"

namespace sluice::plugin_test {
namespace {

namespace fs = std::filesystem;

constexpr char kPrecious[] = "somebody's precious file";

class HostileContainerTest : public PluginTest {
 protected:
  HostileContainerTest() { std::ofstream(precious_) << kPrecious; }

  fs::path on_machine(const std::string& path) {
    return scene_.machine().directory() / "sysfs" / path.substr(1);
  }
  void put_a_link_in_place_of(const std::string& path) {
    fs::remove(on_machine(path));
    fs::create_symlink(precious_, on_machine(path));
  }

  void expect_refused(const std::string& path) {
    EXPECT_EQ(scene_.restore(version()), 1);
    const std::string log = scene_.log();
    EXPECT_NE(log.find(path + " is not the device"), std::string::npos) << log;
    expect_not_resumed();
    EXPECT_EQ(read_file(precious_), kPrecious);
  }

  ScratchDirectory elsewhere_;
  fs::path precious_ = elsewhere_.path() / "precious";
};

// Without a BO nothing is asked of the file before the process has it.
TEST_P(HostileContainerTest, ALinkInPlaceOfARenderNodeIsNotOpened) {
  const std::string ready = scene_.start_subject({"--render-only"});
  ASSERT_TRUE(ready.starts_with("ready")) << ready;
  ASSERT_NO_FATAL_FAILURE(dump());
  put_a_link_in_place_of("/dev/dri/renderD128");
  expect_refused("/dev/dri/renderD128");
}

TEST_P(HostileContainerTest, ALinkInPlaceOfTheKfdIsNotOpened) {
  const std::string ready = scene_.start_subject({"--kfd-only"});
  ASSERT_TRUE(ready.starts_with("ready")) << ready;
  ASSERT_NO_FATAL_FAILURE(dump());
  put_a_link_in_place_of("/dev/kfd");
  expect_refused("/dev/kfd");
}

TEST_P(HostileContainerTest, AFifoInPlaceOfAFileInSysfsIsNotWaitedFor) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  const fs::path numa_node = on_machine("/sys/class/drm/renderD128/device/numa_node");
  fs::remove(numa_node);
  ASSERT_EQ(::mkfifo(numa_node.c_str(), 0666), 0);
  restore_and_check();
}

// The one file that libdrm opens by itself.
TEST_P(HostileContainerTest, AFifoInPlaceOfTheNamesOfGpusIsNotWaitedFor) {
  const fs::path names = "/usr/share/libdrm/amdgpu.ids", fifo = elsewhere_.path() / "fifo";
  if (!fs::exists(names)) GTEST_SKIP() << names << " is not there";
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0666), 0);
  int status = -1;
  std::thread([&] {  // which alone has it there
    if (::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
        ::mount(fifo.c_str(), names.c_str(), nullptr, MS_BIND, nullptr) == 0)
      status = scene_.start_host(version(), "restore", {}).wait();
  })
      .join();
  if (status == -1) GTEST_SKIP() << "no mount namespace is to be had here";
  EXPECT_EQ(status, 1);
  const std::string log = scene_.log();
  EXPECT_NE(log.find("[SL-R04]"), std::string::npos) << log;
  expect_not_resumed();
  restore_and_check();
}

INSTANTIATE_TEST_SUITE_P(Versions, HostileContainerTest, ::testing::ValuesIn(kVersions), name_of_version);

}  // namespace
}  // namespace sluice::plugin_test
