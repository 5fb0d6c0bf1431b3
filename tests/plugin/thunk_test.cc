// SPDX-License-Identifier: MIT
// libhsakmt's shared memory file and semaphore: noted at dump, made again at restore where they are missing.
#include "plugin_test.h"
#include "thunk_memory.h"

namespace sluice::plugin_test {
namespace {

class ThunkTest : public PluginTest {
 protected:
  static void SetUpTestSuite() { (void)make_private_shm(); }
};

TEST_P(ThunkTest, TheThunksSharedMemoryIsMadeAgain) {
  if (ThunkMemory::exists()) GTEST_SKIP() << "a GPU process of this machine uses " << ThunkMemory::kMemory;
  const ThunkMemory memory;
  ASSERT_TRUE(memory.made());
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  ThunkMemory::remove();
  ASSERT_EQ(scene_.restore(version()), 0) << scene_.log();
  EXPECT_TRUE(ThunkMemory::exists());
  EXPECT_TRUE(ThunkMemory::semaphore_exists());
}

INSTANTIATE_TEST_SUITE_P(Versions, ThunkTest, ::testing::ValuesIn(kVersions), name_of_version);

}  // namespace
}  // namespace sluice::plugin_test
