// SPDX-License-Identifier: MIT
// What a failed dump leaves in the directory: nothing of its own; and from a signal, whatever it came on top
// of.
#include "plugin/dump/carry/image_set.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdio>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "plugin/host/image_store.h"
#include "support/failing_allocation.h"
#include "support/temp_dir.h"

namespace sluice::plugin {
namespace {

const test::Bytes kContents{std::byte{1}};

// Longer than what a string holds in itself.
std::string name_of(int number) {
  return "amdgpu-pages-" + std::to_string(number) + "-0123456789abcdef.img";
}

class ImageSetTest : public testing::Test {
 protected:
  ~ImageSetTest() override { (void)test::failing_allocation().disarm(); }

  void add(int number) {
    images_.add(name_of(number));
    dir_.write(name_of(number), kContents);
  }

  test::TempDir dir_;
  std::unique_ptr<ImageStore> store_ = ImageStore::of_directory([this] { return dir_.fd(); });
  ImageSet images_{*store_};
};

TEST_F(ImageSetTest, AFailedDumpLeavesWhatIsNotItsOwn) {
  dir_.write("core-1.img", kContents);
  images_.add_metadata("amdgpu-kfd-1.img");
  dir_.write("amdgpu-kfd-1.img", kContents);
  add(1);
  add(2);  // of which there is no file yet
  ASSERT_TRUE(remove((dir_.path() + "/" + name_of(2)).c_str()) == 0);
  images_.roll_back();
  EXPECT_EQ(dir_.names(), std::vector<std::string>{"core-1.img"});
}

TEST_F(ImageSetTest, PagesOfAnEarlierDumpAreWrittenOverOrGo) {
  const std::string old = "amdgpu-pages-7-1234.img";
  dir_.write(old, kContents);
  dir_.write("amdgpu-kfd-7.img", kContents);
  settings::Config config;
  config.io_mode = IoMode::Buffered;
  config.reuse_files = true;
  ASSERT_TRUE(images_.clear_directory(config).ok());
  EXPECT_FALSE(images_.take_old_pages("-9999.img"));
  const auto taken = images_.take_old_pages("-1234.img");
  ASSERT_TRUE(taken);
  EXPECT_EQ(dir_.names(), std::vector<std::string>{*taken});
  EXPECT_FALSE(images_.take_old_pages("-1234.img")) << "each once";
  images_.remove_old_pages();
  EXPECT_TRUE(dir_.names().empty());
}

// Files can be listed.
TEST_F(ImageSetTest, ADirectoryNeedsNoIndex) {
  ASSERT_TRUE(store_->save_index({{"amdgpu-kfd-1.img"}, {}, DumpId{5}}).ok());
  EXPECT_TRUE(dir_.names().empty());
  EXPECT_FALSE(*store_->dump_of_index());
}

TEST_F(ImageSetTest, ASignalRollsBackWithoutAnAllocation) {
  for (int i = 0; i < 100; ++i) add(i);
  test::failing_allocation().arm(0);
  images_.roll_back_from_signal();
  EXPECT_TRUE(test::failing_allocation().disarm());
  EXPECT_TRUE(dir_.names().empty());
}

TEST_F(ImageSetTest, ASignalRollsBackWhereverANameIsAdded) {
  int added = 0;
  for (int nth = 0, failures = 1; failures > 0; ++nth) {
    failures = 0;
    for (int i = 0; i < 100; ++i) {  // some of which make the set grow
      std::string name = name_of(added);
      dir_.write(name_of(added), kContents);
      test::failing_allocation().arm(nth);
      try {
        images_.add_metadata(std::move(name));
        ++added;
      } catch (const std::bad_alloc&) {
        ++failures;
        (void)remove((dir_.path() + "/" + name_of(added)).c_str());
      }
      (void)test::failing_allocation().disarm();
      images_.roll_back_from_signal();
      ASSERT_TRUE(dir_.names().empty());
    }
  }
}

}  // namespace
}  // namespace sluice::plugin
