// SPDX-License-Identifier: MIT
// Image directories on real file systems, each made for the test: what was dumped there comes back. A disk
// that is full, read-only, beyond its quota or broken fails the dump, which names the cause. It leaves the
// process running, and nothing that looks complete.
//
// Needs root, loop devices and the file systems' mkfs; what cannot be had here is skipped by name. Mounts are
// in a mount namespace of this program's own.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/quota.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <linux/capability.h>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "mounted_images.h"
#include "plugin_test.h"
#include "support/plugin_statistics.h"

namespace sluice::plugin_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr char kNoSpace[] = "No space left on device";

// xfs and btrfs refuse smaller ones.
const Kind kKinds[] = {
    {"ext4", {"mkfs.ext4", "-q"}, 512 * kMiB},
    {"xfs", {"mkfs.xfs", "-q"}, 512 * kMiB},
    {"btrfs", {"mkfs.btrfs", "-q"}, 512 * kMiB},  // the last one in a file
    {"tmpfs", {}, 0},
    {"overlay", {}, 0},
};

constexpr std::size_t kKindsInAFile = 3;

// The plugin says what failed on its files.
auto in_contents(const std::string& error) {
  return ContainsRegex("amdgpu_plugin: [^\n]*amdgpu-pages-[^\n]*: " + error);
}

// What a failed dump must leave, whatever the disk does.
class DiskTest : public MountedImages, public SceneTest {
 protected:
  explicit DiskTest(const Kind& kind, const std::string& options = "")
      : MountedImages(kind, options), SceneTest(small_machine(), place_) {}

  void SetUp() override {
    if (!missing_.empty()) GTEST_SKIP() << missing_;
  }

  // A newer host writes its own images while contents flow, and may be the one who fails.
  void expect_refused_and_running(const ::testing::Matcher<const std::string&>& why) {
    EXPECT_NE(scene_.dump("3.17.1"), 0);
    const std::string log = scene_.log();
    EXPECT_THAT(log, why) << log;
    EXPECT_EQ(images("amdgpu-"), std::set<std::string>()) << "they take room, or look complete";
    expect_running();
  }
  void expect_dumped_and_back() {
    ASSERT_NO_FATAL_FAILURE(dump_with("4.2"));
    ASSERT_NO_FATAL_FAILURE(restore_and_check_with("4.2"));
  }
  std::uint64_t free_bytes(const fs::path& place) const {
    struct statvfs space {};
    EXPECT_EQ(::statvfs(place.c_str(), &space), 0);
    return space.f_bavail * space.f_frsize;
  }
  // Takes all room there but `spare` bytes.
  static void fill_up(const fs::path& place, std::uint64_t spare) {
    const fs::path spared = place / "spared";
    const UniqueFd kept(::open(spared.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_EQ(::posix_fallocate(kept.get(), 0, static_cast<off_t>(spare)), 0);
    const UniqueFd filler(::open((place / "filler").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    off_t end = 0;
    for (off_t step = 16 << 20; step >= 4096;) {
      if (::posix_fallocate(filler.get(), end, step) == 0) {
        end += step;
      } else {
        step /= 2;
      }
    }
    ASSERT_GT(end, 0);
    fs::remove(spared);
    ASSERT_EQ(::syncfs(filler.get()), 0);  // what was removed is free from now on
  }
};

class FileSystemTest : public DiskTest, public ::testing::WithParamInterface<Kind> {
 protected:
  FileSystemTest() : DiskTest(GetParam()) {}
};

TEST_P(FileSystemTest, WhatWasDumpedComesBack) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(expect_dumped_and_back());
  const test::PluginStatistics statistics = test::plugin_statistics(scene_.images(), "dump");
  ASSERT_EQ(statistics.size(), 1U);
  std::printf("shown: images on %s: %s I/O\n", GetParam().name,
              statistics[0].at("gpus").at(0).at("direct_io").get<bool>() ? "direct" : "buffered");
}

TEST_P(FileSystemTest, AFullDiskFailsTheDumpAndTheNextOneFindsRoom) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(fill_up(scene_.images(), 4 * kMiB));
  ASSERT_NO_FATAL_FAILURE(expect_refused_and_running(in_contents(kNoSpace)));
  fs::remove(scene_.images() / "filler");
  ASSERT_NO_FATAL_FAILURE(expect_dumped_and_back());
}

// The plugin is the first to write there: it removes what an earlier dump has left.
TEST_P(FileSystemTest, AReadOnlyOneFailsTheDumpAndKeepsTheEarlierOne) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(scene_.dump("4.2", {"--leave-running"}), 0) << scene_.log();
  const std::set<std::string> earlier = images("amdgpu-");
  (void)scene_.log();
  ASSERT_EQ(::mount(nullptr, place_.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
  EXPECT_NE(scene_.dump("4.2"), 0);
  const std::string log = scene_.log();
  EXPECT_THAT(log, ContainsRegex("amdgpu_plugin: [^\n]*amdgpu-kfd-[^\n]*: Read-only file system"));
  EXPECT_EQ(images("amdgpu-"), earlier);
  expect_running();
}

INSTANTIATE_TEST_SUITE_P(On, FileSystemTest, ::testing::ValuesIn(kKinds),
                         [](const auto& tested) { return std::string(tested.param.name); });

// In memory and nothing else: there is no direct I/O.
class BufferedDiskTest : public DiskTest {
 protected:
  BufferedDiskTest() : DiskTest({"ramfs", {}, 0}) {}
};

TEST_F(BufferedDiskTest, WhoWantsDirectIoIsRefusedAndKeepsTheEarlierCheckpoint) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(scene_.dump("4.2", {"--leave-running"}), 0) << scene_.log();
  const std::set<std::string> earlier = images("amdgpu-");
  (void)scene_.log();
  scene_.variables["SLUICE_IO_MODE"] = "direct";
  EXPECT_NE(scene_.dump("4.2"), 0);
  const std::string log = scene_.log();
  EXPECT_THAT(log, HasSubstr("[SL-C10]"));
  EXPECT_EQ(images("amdgpu-"), earlier);
  expect_running();
}

// A disk that turns out to be broken when contents are written: a loop device whose file finds no room.
class BrokenDiskTest : public DiskTest, public ::testing::WithParamInterface<Kind> {
 protected:
  BrokenDiskTest() : DiskTest({"tmpfs", {}, 0}) {
    if (!missing_.empty()) return;
    // The image directory moves onto a file system that is in the one that was mounted.
    below_ = mounts_.directory("below");
    if (!mounts_.add("tmpfs", below_, "size=256M") ||
        !mounts_.add_loop(GetParam().make, below_ / "image", GetParam().bytes, place_, ""))
      missing_ = std::string(GetParam().name) + " cannot be made or mounted here";
  }

  fs::path below_;
};

TEST_P(BrokenDiskTest, ALateErrorFailsTheDump) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(fill_up(below_, 4 * kMiB));
  ASSERT_GT(free_bytes(place_), 64 * kMiB) << "the file system itself has room";
  ASSERT_NO_FATAL_FAILURE(
      expect_refused_and_running(AnyOf(HasSubstr("Input/output error"), HasSubstr(kNoSpace))));
}

INSTANTIATE_TEST_SUITE_P(On, BrokenDiskTest, ::testing::ValuesIn(kKinds, kKinds + kKindsInAFile),
                         [](const auto& tested) { return std::string(tested.param.name); });

// A disk that does not answer for a while: whoever writes to a frozen file system waits.
class FrozenDiskTest : public DiskTest {
 protected:
  FrozenDiskTest() : DiskTest(kKinds[0]) {}

  class Freeze {
   public:
    explicit Freeze(const fs::path& place)
        : place_(::open(place.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
      frozen_ = ::ioctl(place_.get(), FIFREEZE, 0) == 0;
    }
    ~Freeze() {
      if (frozen_) (void)::ioctl(place_.get(), FITHAW, 0);
    }
    Freeze(const Freeze&) = delete;
    Freeze& operator=(const Freeze&) = delete;
    bool done() const { return frozen_; }

   private:
    UniqueFd place_;
    bool frozen_;
  };

  // Whether an io-wq worker of `pid` is in a wait that nothing interrupts. Where all is frozen, what was
  // written before has ended, so that it waits for the file system.
  static bool any_writer_waits(pid_t pid) {
    std::error_code gone;
    for (const auto& task : fs::directory_iterator("/proc/" + std::to_string(pid) + "/task", gone)) {
      std::string text;
      std::ifstream stat(task.path() / "stat");
      std::getline(stat, text);  // number (name) state ...
      if (text.find("(iou-wrk") != std::string::npos && text.find(") D ") != std::string::npos) return true;
    }
    return false;
  }
};

// What a disk has been given cannot be taken back: the queues run before it has answered.
TEST_F(FrozenDiskTest, DoesNotKeepTheQueuesOfAProcessWhenSomebodyEndsTheHost) {
  ASSERT_NO_FATAL_FAILURE(start());
  for (const unsigned gpu : {0U, 1U}) scene_.control().set_engine_rate(gpu, 8 * kMiB);
  Program host = scene_.start_host("4.2", "dump", {});
  while (!scene_.has_logged("dump: ")) (void)::sched_yield();
  {
    const Freeze freeze(place_);
    ASSERT_TRUE(freeze.done()) << std::strerror(errno);
    for (const unsigned gpu : {0U, 1U}) scene_.control().set_engine_rate(gpu, 0);
    while (!any_writer_waits(host.pid())) (void)::sched_yield();
    ASSERT_EQ(::kill(host.pid(), SIGTERM), 0);
    while (scene_.control().process(scene_.subject_pid())->queues_paused) (void)::sched_yield();
  }
  EXPECT_EQ(host.wait(), 128 + SIGTERM);
  EXPECT_TRUE(images("amdgpu-kfd").empty()) << "it looks complete";
  expect_running();
  ASSERT_NO_FATAL_FAILURE(expect_dumped_and_back());
}

// ext4's quotas are for root, too, when he has no CAP_SYS_RESOURCE, as in many containers.
class QuotaTest : public DiskTest {
 protected:
  QuotaTest()
      : DiskTest({"ext4", {"mkfs.ext4", "-q", "-O", "quota", "-E", "quotatype=usrquota"}, 512 * kMiB},
                 ",usrquota") {}

  // Of root, on the mounted file system.
  bool limit(std::uint64_t bytes) const {
    constexpr std::uint64_t kQuotaBlock = 1024;
    dqblk quota{};
    quota.dqb_bhardlimit = bytes / kQuotaBlock;
    quota.dqb_valid = QIF_BLIMITS;
    return ::quotactl(QCMD(Q_SETQUOTA, USRQUOTA), device().c_str(), 0, reinterpret_cast<caddr_t>(&quota)) ==
           0;
  }

 private:
  std::string device() const {
    std::ifstream mounts("/proc/self/mounts");
    for (std::string device, at, rest; mounts >> device >> at && std::getline(mounts, rest);) {
      if (at == place_) return device;
    }
    return "";
  }
};

TEST_F(QuotaTest, FailsTheDumpAndAHigherOneDoesNot) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_TRUE(limit(8 * kMiB)) << std::strerror(errno);
  ASSERT_EQ(::prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE, 0, 0, 0), 0);  // of what this program starts
  ASSERT_NO_FATAL_FAILURE(expect_refused_and_running(in_contents("Disk quota exceeded")));
  ASSERT_TRUE(limit(400 * kMiB));
  ASSERT_NO_FATAL_FAILURE(expect_dumped_and_back());
}

// btrfs' are for everybody.
class GroupQuotaTest : public DiskTest {
 protected:
  GroupQuotaTest() : DiskTest({"btrfs", {"mkfs.btrfs", "-q"}, 512 * kMiB}) {}

  bool limit(const std::string& bytes) const {
    return run_to_its_end({"btrfs", "qgroup", "limit", bytes, place_.string()});
  }
};

TEST_F(GroupQuotaTest, FailsTheDumpAndAHigherOneDoesNot) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_TRUE(run_to_its_end({"btrfs", "quota", "enable", place_.string()}));
  ASSERT_TRUE(limit("8M"));
  ASSERT_NO_FATAL_FAILURE(expect_refused_and_running(in_contents("Disk quota exceeded")));
  ASSERT_TRUE(limit("none"));
  ASSERT_NO_FATAL_FAILURE(expect_dumped_and_back());
}

}  // namespace
}  // namespace sluice::plugin_test
