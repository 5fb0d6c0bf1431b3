// SPDX-License-Identifier: MIT
// Through which file of a restored task its GPU is mapped. Run by vamdgpu-run on a machine with one GPU;
// skipped where there is no such machine. This program is the host, and the task.
#include "plugin/restore/device_maps.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <libdrm/amdgpu_drm.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <set>

#include "base/units.h"
#include "drm/gem_restore.h"
#include "drm/target_file.h"
#include "support/pid_namespace.h"
#include "support/temp_dir.h"
#include "target.h"

namespace {

int host_proc = -1;
constexpr int kFirstUnused = 100;  // no number that the test gives the task is as high

}  // namespace

extern "C" {
int get_service_fd(int type);
int find_unused_fd_pid(int pid);

int get_service_fd(int type) {
  return type == 4 ? host_proc : -1;
}

int find_unused_fd_pid(int /*pid*/) {
  return kFirstUnused;
}
}

namespace sluice::plugin {
namespace {

constexpr std::uint32_t kMinor = drm::test::kFirstMinor;
constexpr std::uint64_t kAddress = 0x7f0000000000, kOldOffset = 0x100000, kBytes = 8 * kKiB;

// A task that has been given the file KFD acquired, in which a BO of the KFD lies, at a number that the host
// has chosen.
class Task {
 public:
  Task() {
    maps_.meet(static_cast<std::uint32_t>(::getpid()));
    const int acquired = maps_.acquire(kMinor).value();
    drm::GemRestore bos(acquired);
    EXPECT_TRUE(bos.create({1, kBytes, 4 * kKiB, AMDGPU_GEM_DOMAIN_GTT, 0, {}}).ok());
    offset_ = drm::mmap_offset_of(acquired, 1).value();
    maps_.kfd_has_files({kMinor});
    file_.reset(::fcntl(maps_.hand_out(kMinor).value().get(), F_DUPFD_CLOEXEC, 0));
  }

  int file() const { return file_.get(); }
  DeviceMaps& maps() { return maps_; }
  void add_bo() { maps_.add({false, kMinor, kMinor, kOldOffset, kBytes, offset_, std::nullopt}); }

  // Gives it a second descriptor of the file, and maps the BO.
  void expect_both_work() {
    const auto second = maps_.hand_out(kMinor);
    ASSERT_TRUE(second.ok()) << second.error().what;
    EXPECT_GE(second->get(), kFirstUnused);
    EXPECT_EQ(drm::may_map(second->get(), offset_).value(), drm::MapAccess::Allowed);
    std::uint64_t offset = 0;
    int fd = -1;
    const auto answer = update(offset, fd);
    ASSERT_TRUE(answer.ok()) << answer.error().what;
    EXPECT_EQ(offset, offset_);
    EXPECT_EQ(fd, file());
  }

  Result<Answer> update(std::uint64_t& offset, int& fd) {
    return maps_.update(drm::test::kFirstNode.c_str(), kAddress, kOldOffset, offset, fd);
  }

 private:
  drm::test::TargetFile other_;  // of the same GPU, lower, and may not map the BO
  UniqueFd file_;
  DeviceMaps maps_;
  std::uint64_t offset_ = 0;
};

class DeviceMapsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!drm::test::on_virtual_machine()) GTEST_SKIP() << "needs a virtual machine";
    host_proc = -1;
  }

  // In place of the host's /proc: lists these.
  void list(const std::set<int>& descriptors) {
    const std::filesystem::path directory = std::filesystem::path(proc_.path()) / "self/fd";
    std::filesystem::create_directories(directory);
    for (const int fd : descriptors) std::ofstream(directory / std::to_string(fd)) << "\n";
    host_proc = proc_.fd();
  }

  const UniqueFd outer_proc_{::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC)};
  const UniqueFd null_{::open("/dev/null", O_RDWR | O_CLOEXEC)};
  const test::TempDir proc_;
};

// Where /proc/1 is another process.
TEST_F(DeviceMapsTest, FilesOfTheTaskAreFoundUnderTheProcOfAnotherPidNamespace) {
  for (const int proc : {-1, outer_proc_.get()}) {
    const int status = test::in_new_pid_namespace([proc] {
      host_proc = proc;
      Task task;
      task.add_bo();
      task.expect_both_work();
      return HasFailure() ? 1 : 0;
    });
    if (status == test::kNoNamespace) GTEST_SKIP() << "no pid namespace is to be had here";
    EXPECT_EQ(status, 0) << "/proc of the host: " << proc;
  }
}

TEST_F(DeviceMapsTest, WhatIsListedIsTheDeviceOrNotTaken) {
  Task task;
  list({null_.get(), task.file(), kFirstUnused - 1});
  const auto copy = task.maps().hand_out(kMinor);  // of whichever file of the GPU, while it has no BO
  ASSERT_TRUE(copy.ok()) << copy.error().what;
  EXPECT_EQ(drm::driver_name(copy->get()).value(), "amdgpu");
  task.add_bo();
  task.expect_both_work();
}

TEST_F(DeviceMapsTest, WhereNoneIsTheDeviceThatIsSaid) {
  Task task;
  list({null_.get()});
  const auto none = task.maps().hand_out(kMinor);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().err, EBADF);
  EXPECT_EQ(none.error().what,
            "no descriptor of the task is /dev/dri/renderD128; use another checkpoint [SL-R12]");
  task.add_bo();
  std::uint64_t offset = 0;
  int fd = -1;
  EXPECT_EQ(task.update(offset, fd).error().err, EBADF);
}

TEST_F(DeviceMapsTest, WhereThereIsNoProcThatIsSaid) {
  Task task;
  host_proc = proc_.fd();
  const auto none = task.maps().hand_out(kMinor);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().err, ENOENT);
  EXPECT_NE(none.error().what.find("[SL-R08]"), std::string::npos) << none.error().what;
}

}  // namespace
}  // namespace sluice::plugin
