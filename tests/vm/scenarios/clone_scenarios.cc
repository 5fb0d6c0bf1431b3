// SPDX-License-Identifier: MIT
// Dumps with a parent, by the real criu, on a disk whose file system shares extents: each is complete by
// itself.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "base/unique_fd.h"
#include "scenario.h"

namespace sluice::vm_test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModules = "/usr/lib/xfs-modules";
constexpr const char* kDisk = "/dev/vdc";

// Loads what XFS wants of the kernel; what is there already is no failure.
void load_xfs() {
  std::ifstream order(std::string(kModules) + "/order");
  for (std::string name; std::getline(order, name);) {
    const UniqueFd file(::open((std::string(kModules) + "/" + name).c_str(), O_RDONLY | O_CLOEXEC));
    (void)::syscall(SYS_finit_module, file.get(), "", 0);
  }
}

class SharedExtents : public Scenario {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(Scenario::SetUp());
    if (::access(kDisk, F_OK) != 0) GTEST_SKIP() << "no disk with XFS: the host has no mkfs.xfs";
    load_xfs();
    // A newer mkfs makes what an older kernel does not know.
    if (::mount(kDisk, images().c_str(), "xfs", 0, nullptr) != 0)
      GTEST_SKIP() << "this kernel does not mount the host's XFS: " << std::strerror(errno);
    ASSERT_EQ(::chmod(images().c_str(), 0700), 0);
  }
  void TearDown() override {
    (void)::umount2(images().c_str(), MNT_DETACH);
    Scenario::TearDown();
  }

  fs::path place(const std::string& name) const {
    fs::create_directories(images() / name);
    return images() / name;
  }
  void dump_running(const std::string& name, Strings more) {
    more.push_back("--leave-running");
    ASSERT_TRUE(criu_->dump(subject_->pid(), place(name), more).good());
  }
  std::uint64_t bytes_used() const {
    const UniqueFd fd(::open(images().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    struct statvfs space {};
    EXPECT_TRUE(::syncfs(fd.get()) == 0 && ::fstatvfs(fd.get(), &space) == 0);
    return (space.f_blocks - space.f_bfree) * space.f_frsize;
  }
  std::size_t files_in(const std::string& name, const std::string& prefix) const {
    std::size_t count = 0;
    for (const auto& entry : fs::directory_iterator(images() / name))
      count += entry.path().filename().string().starts_with(prefix) ? 1 : 0;
    return count;
  }
};

TEST_F(SharedExtents, ThreeDumpsOnXfsAreCompleteAndTheLastComesBackAlone) {
  load();
  ASSERT_NO_FATAL_FAILURE(
      start_subject({"--gpus", "2", "--vram", "8M", "--gtt", "1M", "--run-queues", "--zero", "10"}));
  const std::uint64_t before = bytes_used();
  // criu takes as a parent what was dumped with --track-mem (detect_pid_reuse() of criu/mem.c); the last one
  // goes without, and so leaves no CPU memory to its parent either.
  ASSERT_NO_FATAL_FAILURE(dump_running("first", {"--track-mem"}));
  const std::uint64_t after_first = bytes_used();
  ASSERT_EQ(subject_->ask("work"), "ok work");
  ASSERT_NO_FATAL_FAILURE(dump_running("second", {"--track-mem", "--prev-images-dir", "../first"}));
  const std::uint64_t after_second = bytes_used();
  EXPECT_EQ(files_in("second", "amdgpu-delta-"), 0U);
  EXPECT_LT(after_second - after_first, after_first - before);
  ASSERT_EQ(subject_->ask("work"), "ok work");
  dumped_pid_ = subject_->root();
  ASSERT_TRUE(criu_->dump(dumped_pid_, place("third"), {"--prev-images-dir", "../second"}).good());
  ASSERT_TRUE(subject_->reap_dumped());
  EXPECT_TRUE(criu_->last_run().plugin_said("share its extents"));
  EXPECT_EQ(files_in("third", "amdgpu-delta-"), 0U);
  EXPECT_GT(files_in("third", "amdgpu-pages-"), 0U);
  std::printf("shown: on XFS the first dump takes %llu KiB, the second %llu\n",
              static_cast<unsigned long long>((after_first - before) / 1024),
              static_cast<unsigned long long>((after_second - after_first) / 1024));
  fs::remove_all(images() / "first");
  fs::remove_all(images() / "second");
  // criu follows the link, if there is one, although nothing of this dump is there (open_parent() of
  // criu/image.c).
  fs::remove(images() / "third" / "parent");
  ASSERT_TRUE(criu_->restore(images() / "third").good());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
}

// The same memory dumped twice: what two GPUs have alike is on the disk once, or twice.
TEST_F(SharedExtents, WhatTwoGpusHaveAlikeIsWrittenOnceAndComesBack) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(
      {"--gpus", "2", "--vram", "16M", "--gtt", "1M", "--run-queues", "--zero", "0", "--replicas"}));
  const std::uint64_t before = bytes_used();
  criu_->environment["SLUICE_DEDUP"] = "off";
  ASSERT_NO_FATAL_FAILURE(dump_running("twice", {}));
  EXPECT_FALSE(criu_->last_run().plugin_said("on other GPUs"));
  const std::uint64_t twice = bytes_used() - before;
  criu_->environment.erase("SLUICE_DEDUP");
  dumped_pid_ = subject_->root();
  ASSERT_TRUE(criu_->dump(dumped_pid_, place("once"), {}).good());
  ASSERT_TRUE(subject_->reap_dumped());
  EXPECT_TRUE(criu_->last_run().plugin_said("are the same on other GPUs, and share their extents"));
  const std::uint64_t once = bytes_used() - before - twice;
  EXPECT_LT(once, twice * 3 / 4);
  std::printf("shown: on XFS two equal GPUs take %llu KiB, sharing off %llu\n",
              static_cast<unsigned long long>(once / 1024), static_cast<unsigned long long>(twice / 1024));
  ASSERT_TRUE(criu_->restore(images() / "once").good());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
}

}  // namespace
}  // namespace sluice::vm_test
