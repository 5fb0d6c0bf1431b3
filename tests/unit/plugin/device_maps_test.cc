// SPDX-License-Identifier: MIT
// Through which file of a restored task its GPU is mapped. Run by vamdgpu-run on a machine with one GPU;
// skipped where there is no such machine. This program is the host, and the task.
#include "plugin/restore/task/device_maps.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <libdrm/amdgpu_drm.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/units.h"
#include "criu-mm.pb-c.h"
#include "drm/gem_restore.h"
#include "drm/target_file.h"
#include "kfd/uapi.h"
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

constexpr std::uint32_t kMinor = drm::kFirstMinor;
constexpr std::uint64_t kAddress = 0x7f0000000000, kOldOffset = 0x100000, kBytes = 8 * kKiB;

// The image of a task's memory, with maps of one device file, 4 KiB each, one beside the other.
test::Bytes mm_image(unsigned maps) {
  std::vector<VmaEntry> entries(maps, VMA_ENTRY__INIT);
  std::vector<VmaEntry*> pointers;
  for (unsigned i = 0; i < maps; ++i) {
    entries[i].start = kAddress + i * 4 * kKiB;
    entries[i].pgoff = kOldOffset + i * 4 * kKiB;
    entries[i].shmid = 7;
    entries[i].status = 1U << 0 | 1U << 7 | 1U << 27;  // regular, shared, a plugin's
    pointers.push_back(&entries[i]);
  }
  MmEntry mm = MM_ENTRY__INIT;
  mm.n_vmas = pointers.size();
  mm.vmas = pointers.data();
  const std::size_t length = mm_entry__get_packed_size(&mm);
  test::Bytes bytes(12 + length);
  const std::array<std::uint32_t, 3> header{0x54564319, 0x57492820, static_cast<std::uint32_t>(length)};
  std::memcpy(bytes.data(), header.data(), 12);
  (void)mm_entry__pack(&mm, reinterpret_cast<std::uint8_t*>(bytes.data() + 12));
  return bytes;
}

// A task that has been given the file KFD acquired, in which a BO of the KFD lies, at a number that the host
// has chosen.
class Task {
 public:
  Task() {
    maps_.set_task(static_cast<std::uint32_t>(::getpid()));
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
    return maps_.update(drm::kFirstNode.c_str(), kAddress, kOldOffset, offset, fd);
  }

 private:
  drm::TargetFile other_;  // of the same GPU, lower, and may not map the BO
  UniqueFd file_;
  DeviceMaps maps_;
  std::uint64_t offset_ = 0;
};

class DeviceMapsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!drm::on_virtual_machine()) GTEST_SKIP() << "needs a virtual machine";
    host_proc = -1;
  }

  // In place of the host's /proc: lists these.
  void list(const std::set<int>& descriptors) {
    const std::filesystem::path directory = std::filesystem::path(proc_.path()) / "self/fd";
    std::filesystem::create_directories(directory);
    for (const int fd : descriptors) std::ofstream(directory / std::to_string(fd)) << "\n";
    host_proc = proc_.fd();
  }

  std::string mm_name() const { return "mm-" + std::to_string(::getpid()) + ".img"; }

  const test::TempDir images_;
  const std::unique_ptr<ImageStore> store_ = ImageStore::of_directory([this] { return images_.fd(); });
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
  EXPECT_NE(none.error().what.find("[SL-R03]"), std::string::npos) << none.error().what;
}

// CRIU asks for every map of a device that no other plugin has taken.
TEST_F(DeviceMapsTest, MapsOfOtherFilesAreLeftToOtherPlugins) {
  Task task;
  task.add_bo();
  std::uint64_t offset = 0;
  int fd = -1;
  for (const char* path : {"", "/dev/null", "/dev/dri/card0", "/dev/dri/renderD", "/dev/dri/renderDx",
                           "/dev/dri/renderD128x", "/dev/dri/renderD99999999999"}) {
    const auto answer = task.maps().update(path, kAddress, kOldOffset, offset, fd);
    ASSERT_TRUE(answer.ok()) << answer.error().what;
    EXPECT_FALSE(answer->has_value()) << path;
  }
  const std::uint64_t events = kfd::encode_mmap_offset({kfd::MmapType::Events, 0, 0});
  const auto answer = task.maps().update("/dev/kfd", kAddress, events, offset, fd);
  ASSERT_TRUE(answer.ok()) << answer.error().what;
  EXPECT_FALSE(answer->has_value()) << "events are where they were";
  EXPECT_EQ(fd, -1);
}

TEST_F(DeviceMapsTest, AMapOfNoBoIsAnError) {
  struct Place {
    const char* path;
    std::uint64_t offset;
  };
  Task task;
  task.add_bo();
  std::uint64_t offset = 0;
  int fd = -1;
  for (const Place& place :
       {Place{"/dev/dri/renderD128", kOldOffset - 1}, Place{"/dev/dri/renderD128", kOldOffset + kBytes},
        Place{"/dev/dri/renderD129", kOldOffset}, Place{"/dev/kfd", kOldOffset}}) {
    const auto answer = task.maps().update(place.path, kAddress, place.offset, offset, fd);
    ASSERT_FALSE(answer.ok()) << place.path << " at " << place.offset;
    EXPECT_EQ(answer.error().err, EINVAL);
    EXPECT_NE(answer.error().what.find("[SL-R11]"), std::string::npos) << answer.error().what;
  }
}

TEST_F(DeviceMapsTest, APathMayHaveDoubledSlashes) {
  Task task;
  task.add_bo();
  std::uint64_t offset = 0;
  int fd = -1;
  const auto answer =
      task.maps().update("//dev///dri//renderD128", kAddress, kOldOffset + 4 * kKiB, offset, fd);
  ASSERT_TRUE(answer.ok()) << answer.error().what;
  EXPECT_EQ(*answer, 1);
  EXPECT_EQ(fd, task.file());
}

// CRIU opens it itself.
TEST_F(DeviceMapsTest, AMapOfTheKfdNeedsNoDescriptor) {
  Task task;
  task.maps().add({true, kMinor, kMinor, kOldOffset, kBytes, 0x5000, std::nullopt});
  std::uint64_t offset = 0;
  int fd = -1;
  const auto answer = task.maps().update("/dev/kfd", kAddress, kOldOffset + 0x1000, offset, fd);
  ASSERT_TRUE(answer.ok()) << answer.error().what;
  EXPECT_EQ(*answer, 1);
  EXPECT_EQ(offset, 0x6000U);
  EXPECT_EQ(fd, -1);
}

// Which say nothing about the file that KFD has.
TEST_F(DeviceMapsTest, BosOfOthersAreNotLookedFor) {
  Task task;
  task.maps().add({true, kMinor, kMinor, kOldOffset, kBytes, 0x5000, std::nullopt});
  task.maps().add({false, kMinor, kMinor, kOldOffset, kBytes, 0x6000, 7});
  task.maps().add({false, kMinor + 1, kMinor + 1, kOldOffset, kBytes, 0x7000, std::nullopt});
  const auto copy = task.maps().hand_out(kMinor);
  ASSERT_TRUE(copy.ok()) << copy.error().what;
  EXPECT_EQ(drm::driver_name(copy->get()).value(), "amdgpu");
}

TEST_F(DeviceMapsTest, OnlyTheFirstMapOfARunGetsADescriptor) {
  Task task;
  task.add_bo();
  images_.write(mm_name(), mm_image(2));
  ASSERT_TRUE(task.maps().read_runs(*store_).ok());
  std::array<int, 2> fds{-1, -1};
  for (unsigned i = 0; i < fds.size(); ++i) {
    std::uint64_t offset = 0;
    const auto answer = task.maps().update("/dev/dri/renderD128", kAddress + i * 4 * kKiB,
                                           kOldOffset + i * 4 * kKiB, offset, fds[i]);
    ASSERT_TRUE(answer.ok()) << answer.error().what;
    EXPECT_EQ(*answer, 1);
  }
  EXPECT_EQ(fds[0], task.file());
  EXPECT_EQ(fds[1], -1);
}

// A task without one that is known: then any map may come.
TEST_F(DeviceMapsTest, WithoutAnImageOfTheTasksMemoryEveryMapMayCome) {
  DeviceMaps stranger;  // whose pid is unknown
  EXPECT_TRUE(stranger.read_runs(*store_).ok());
  EXPECT_TRUE(stranger.maps(0, 1));
  const auto read = [this] {
    DeviceMaps maps;
    maps.set_task(static_cast<std::uint32_t>(::getpid()));
    const auto result = maps.read_runs(*store_);
    EXPECT_TRUE(!result || maps.maps(0, 1));
    return result ? 0 : result.error().err;
  };
  EXPECT_EQ(read(), 0) << "none";
  images_.write(mm_name(), test::Bytes(12));
  EXPECT_EQ(read(), 0) << "of another form";
  images_.write(mm_name(), test::Bytes(3));
  EXPECT_EQ(read(), EBADMSG) << "damaged";
}

// Unless its file is still to come.
TEST_F(DeviceMapsTest, ATaskWithoutMapsKeepsNoneOfOurFiles) {
  images_.write(mm_name(), mm_image(0));
  for (const bool comes : {false, true}) {
    DeviceMaps maps;
    maps.set_task(static_cast<std::uint32_t>(::getpid()));
    ASSERT_TRUE(maps.read_runs(*store_).ok());
    EXPECT_FALSE(maps.maps(0, kOldOffset));
    EXPECT_GE(maps.acquire(kMinor).value(), kFirstUnused);
    maps.kfd_has_files(comes ? std::set<std::uint32_t>{kMinor} : std::set<std::uint32_t>());
    EXPECT_EQ(maps.acquire(kMinor).value() >= 0, comes);
  }
}

// While the task has no descriptor of it.
TEST_F(DeviceMapsTest, AMapMayBeMadeThroughOurOwnFile) {
  DeviceMaps maps;
  maps.set_task(static_cast<std::uint32_t>(::getpid()));
  const int file = maps.acquire(kMinor).value();
  maps.add({false, kMinor, kMinor, kOldOffset, kBytes, 0x5000, std::nullopt});
  std::uint64_t offset = 0;
  int fd = -1;
  ASSERT_TRUE(maps.update("/dev/dri/renderD128", kAddress, kOldOffset, offset, fd).ok());
  EXPECT_EQ(fd, file);
  EXPECT_EQ(offset, 0x5000U);
}

TEST_F(DeviceMapsTest, ANodeThatIsMissingIsNamedWithWhatIsToBeDone) {
  DeviceMaps maps;
  maps.set_task(static_cast<std::uint32_t>(::getpid()));
  const auto file = maps.acquire(kMinor + 60);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().err, ENOENT);
  EXPECT_NE(file.error().what.find("[SL-R09]"), std::string::npos) << file.error().what;
}

}  // namespace
}  // namespace sluice::plugin
