// SPDX-License-Identifier: MIT
// What two GPUs have alike, on a disk whose file system does not share extents: one file has it, by the real
// criu on AMD's driver. And the child of such a dump.
#include <sys/vfs.h>

#include <filesystem>

#include "scenario.h"

namespace sluice::vm_test {
namespace {

namespace fs = std::filesystem;

constexpr long kExt4Magic = 0xEF53;  // statfs(2)

class Replicas : public Scenario {
 protected:
  std::size_t files_in(const std::string& name, const std::string& prefix) {
    std::size_t count = 0;
    for (const auto& entry : fs::directory_iterator(images(name)))
      count += entry.path().filename().string().starts_with(prefix) ? 1 : 0;
    return count;
  }
};

TEST_F(Replicas, OnExt4OneFileHasThemAndAChildOfItComesBack) {
  load();
  struct statfs file_system {};
  ASSERT_EQ(::statfs(images("first").c_str(), &file_system), 0);
  ASSERT_EQ(file_system.f_type, kExt4Magic);
  ASSERT_NO_FATAL_FAILURE(start_subject(
      {"--gpus", "2", "--vram", "16M", "--gtt", "1M", "--run-queues", "--zero", "0", "--replicas"}));
  criu_->environment["SLUICE_DEDUP"] = "on";
  ASSERT_TRUE(criu_->dump(subject_->pid(), images("first"), {"--track-mem"}).good());
  ASSERT_TRUE(subject_->reap_dumped());
  EXPECT_TRUE(criu_->last_run().plugin_said("are the same on other GPUs"));
  EXPECT_EQ(files_in("first", "amdgpu-pages-"), 1U);
  EXPECT_EQ(files_in("first", "amdgpu-kfd-"), 0U);
  ASSERT_TRUE(criu_->restore(images("first")).good());
  ASSERT_NO_FATAL_FAILURE(expect_whole());

  ASSERT_EQ(subject_->ask("change-largest"), "ok change-largest");
  ASSERT_TRUE(criu_->dump(subject_->pid(), images("second"), {"--prev-images-dir", "../first"}).good());
  ASSERT_TRUE(subject_->reap_dumped());
  EXPECT_TRUE(criu_->last_run().plugin_said("are the same in the parent"));
  EXPECT_TRUE(criu_->last_run().plugin_said("are the same on other GPUs"));
  EXPECT_EQ(files_in("second", "amdgpu-pages-"), 0U);
  ASSERT_TRUE(criu_->restore(images("second")).good());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
}

}  // namespace
}  // namespace sluice::vm_test
