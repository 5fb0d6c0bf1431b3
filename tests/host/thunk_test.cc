// SPDX-License-Identifier: MIT
// libhsakmt's shared memory file and semaphore: noted at dump, made again at restore where they are missing.
#include <fcntl.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <unistd.h>

#include "pipeline/unique_fd.h"
#include "plugin_test.h"

namespace sluice::host_test {
namespace {

// The thunk's memory that all GPU processes of a machine share, and its semaphore.
class ThunkSharedMemory {
 public:
  static constexpr const char* kMemory = "/hsakmt_shared_mem";
  static constexpr const char* kSemaphore = "/hsakmt_semaphore";
  static constexpr off_t kBytes = 4096;
  static bool exists() { return UniqueFd(::shm_open(kMemory, O_RDONLY, 0)).valid(); }
  static bool semaphore_exists() {
    sem_t* semaphore = ::sem_open(kSemaphore, 0);
    if (semaphore == SEM_FAILED) return false;
    (void)::sem_close(semaphore);
    return true;
  }
  ThunkSharedMemory() {
    const UniqueFd fd(::shm_open(kMemory, O_RDWR | O_CREAT, 0600));
    made_ = fd.valid() && ::ftruncate(fd.get(), kBytes) == 0;
    sem_t* semaphore = ::sem_open(kSemaphore, O_CREAT, 0600, 1);
    made_ = made_ && semaphore != SEM_FAILED;
    if (semaphore != SEM_FAILED) (void)::sem_close(semaphore);
  }
  ~ThunkSharedMemory() { remove(); }
  ThunkSharedMemory(const ThunkSharedMemory&) = delete;
  ThunkSharedMemory& operator=(const ThunkSharedMemory&) = delete;
  bool made() const { return made_; }
  static void remove() {
    (void)::shm_unlink(kMemory);
    (void)::sem_unlink(kSemaphore);
  }

 private:
  bool made_ = false;
};

// A /dev/shm of this program's own: what the machine's GPU processes have there is not touched.
class ThunkTest : public PluginTest {
 protected:
  static void SetUpTestSuite() {
    private_shm_ = ::unshare(CLONE_NEWNS) == 0 &&
                   ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                   ::mount("tmpfs", "/dev/shm", "tmpfs", 0, nullptr) == 0;
  }
  static inline bool private_shm_ = false;
};

TEST_P(ThunkTest, TheThunksSharedMemoryIsMadeAgain) {
  if (ThunkSharedMemory::exists())
    GTEST_SKIP() << "a GPU process of this machine uses " << ThunkSharedMemory::kMemory;
  const ThunkSharedMemory memory;
  ASSERT_TRUE(memory.made());
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  ThunkSharedMemory::remove();
  ASSERT_EQ(scene_.restore(version()), 0) << scene_.log();
  EXPECT_TRUE(ThunkSharedMemory::exists());
  EXPECT_TRUE(ThunkSharedMemory::semaphore_exists());
}

INSTANTIATE_TEST_SUITE_P(Versions, ThunkTest, ::testing::ValuesIn(kVersions), name_of_version);

}  // namespace
}  // namespace sluice::host_test
