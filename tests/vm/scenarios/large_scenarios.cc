// SPDX-License-Identifier: MIT
// Many BOs, and one that is larger than what memory could buffer.
#include <fstream>

#include "scenario.h"

namespace sluice::vm_test {
namespace {

constexpr std::uint64_t kMiBytes = 1024 * 1024;

// MemAvailable of /proc/meminfo, in bytes.
std::uint64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    unsigned long long kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %llu kB", &kib) == 1) return kib * 1024;
  }
  return 0;
}

std::size_t descriptors_of(pid_t pid) {
  const std::filesystem::directory_iterator entries("/proc/" + std::to_string(pid) + "/fd");
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

class Large : public Scenario {};

TEST_F(Large, TenThousandBosComeBackWhole) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject({"--gpus", "2", "--bos", "count:10000", "--gtt", "1M"}));
  ASSERT_GE(number_in(subject_->ask("check"), "bos"), 10000);
  const std::size_t descriptors = descriptors_of(subject_->pid());
  ASSERT_NO_FATAL_FAILURE(dump());
  ASSERT_NO_FATAL_FAILURE(restore());
  const std::string answer = subject_->ask("check");
  ASSERT_EQ(answer.rfind("ok check", 0), 0U) << answer;
  EXPECT_EQ(descriptors_of(subject_->pid()), descriptors);
  EXPECT_EQ(subject_->quit(), 0);
}

TEST_F(Large, ABoLargerThanFreeMemoryComesBackWhole) {
  // The virtual VRAM is the guest's own memory: with three fifths of it taken, the rest cannot hold the BO.
  // Without zeros: a page filled with one value takes no memory where an engine writes it (pool.c).
  const std::uint64_t vram = available_memory() * 3 / 5 / kMiBytes;
  const std::uint64_t bo = vram - 16;
  load({.number = 1, .vram_mib = static_cast<unsigned>(vram), .gtt_mib = 32});
  ASSERT_NO_FATAL_FAILURE(
      start_subject({"--one-bo", std::to_string(bo) + "M", "--zero", "0", "--no-queues"}));
  ASSERT_LT(available_memory(), bo * kMiBytes) << "a dump could buffer the whole BO";
  ASSERT_NO_FATAL_FAILURE(dump());
  ASSERT_LT(available_memory(), 2 * bo * kMiBytes) << "a restore could buffer the whole BO";
  ASSERT_NO_FATAL_FAILURE(restore());
  ASSERT_LT(available_memory(), bo * kMiBytes) << "the restored BO takes less memory than its bytes";
  const std::string answer = subject_->ask("check");
  ASSERT_EQ(answer.rfind("ok check", 0), 0U) << answer;
  EXPECT_EQ(subject_->quit(), 0);
}

TEST_F(Large, ABoWithHolesComesBackWhole) {
  load({.number = 1, .vram_mib = 160, .gtt_mib = 32, .more_do_not_matter = true});
  ASSERT_NO_FATAL_FAILURE(start_subject({"--one-bo", "128M", "--zero", "50", "--no-queues"}));
  ASSERT_NO_FATAL_FAILURE(expect_survives());
  EXPECT_EQ(subject_->quit(), 0);
}

}  // namespace
}  // namespace sluice::vm_test
