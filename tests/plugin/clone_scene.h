// SPDX-License-Identifier: MIT
// A scene whose images are on a file system, made for the test, that shares extents.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "mounted_images.h"
#include "plugin_test.h"

namespace sluice::plugin_test {

inline const Kind kSharingKinds[] = {
    {"xfs", {"mkfs.xfs", "-q", "-m", "reflink=1"}, 1024 * kMiB},
    {"btrfs", {"mkfs.btrfs", "-q"}, 1024 * kMiB},
};

inline std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class CloneScene : public MountedImages, public SceneTest, public ::testing::WithParamInterface<Kind> {
 protected:
  explicit CloneScene(const vamdgpu::MachineOptions& machine = small_machine(), Strings subject = {})
      : MountedImages(GetParam()), SceneTest(machine, place_ / "images"), subject_(std::move(subject)) {}

  void SetUp() override {
    if (!missing_.empty()) GTEST_SKIP() << missing_;
    ASSERT_EQ(::chmod(place_.c_str(), 0700), 0);
    ASSERT_NO_FATAL_FAILURE(start(subject_));
  }
  // Dumps into the scene's directory, lets the subject run on, and calls that `name`.
  void dump_as(const std::string& name, const Strings& more = {}) {
    Strings arguments = {"--leave-running"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    ASSERT_EQ(scene_.dump("4.2", arguments), 0) << scene_.log();
    std::filesystem::rename(scene_.images(), place_ / name);
    log_ = scene_.log();
  }
  void dump_on(const std::string& parent, const std::string& name) {
    ASSERT_NO_FATAL_FAILURE(dump_as(name, {"--prev-images-dir", "../" + parent}));
  }
  void work() { ASSERT_EQ(heard("work"), "ok work"); }
  void end_subject() {
    ASSERT_EQ(::kill(scene_.subject_pid(), SIGKILL), 0);
    scene_.wait_until_subject_is_gone();
    overwrite_gpu_memory();
  }
  void restore_from(const std::string& name) {
    std::filesystem::rename(place_ / name, scene_.images());
    const int status = scene_.restore("4.2");
    log_ = scene_.log();
    std::filesystem::rename(scene_.images(), place_ / name);
    ASSERT_EQ(status, 0) << log_;
  }
  std::uint64_t bytes_used() const {
    const UniqueFd fd(::open(place_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    EXPECT_EQ(::syncfs(fd.get()), 0);
    struct statvfs space {};
    EXPECT_EQ(::fstatvfs(fd.get(), &space), 0);
    return (space.f_blocks - space.f_bfree) * space.f_frsize;
  }
  void expect_complete(const std::string& name) {
    EXPECT_THAT(images_in(place_ / name, "amdgpu-delta-"), ::testing::IsEmpty()) << log_;
    EXPECT_THAT(images_in(place_ / name, "amdgpu-pages-"), ::testing::Not(::testing::IsEmpty())) << log_;
  }

  const Strings subject_;  // its options
  std::string log_;
};

}  // namespace sluice::plugin_test
