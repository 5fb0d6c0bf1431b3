// SPDX-License-Identifier: MIT
// Many BOs, and one that is larger than what memory could buffer.
#include <sys/mman.h>

#include <cerrno>
#include <fstream>
#include <system_error>

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

// Memory that nobody else can have.
class TakenMemory {
 public:
  explicit TakenMemory(std::size_t bytes)
      : bytes_(bytes),
        memory_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1,
                       0)) {
    if (memory_ == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  }
  ~TakenMemory() { (void)::munmap(memory_, bytes_); }
  TakenMemory(const TakenMemory&) = delete;
  TakenMemory& operator=(const TakenMemory&) = delete;

 private:
  std::size_t bytes_;
  void* memory_;
};

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
  if (Card::have_dies()) GTEST_SKIP() << "no die of these cards has so much VRAM";
  constexpr std::uint64_t kBo = 400 * kMiBytes, kFree = 240 * kMiBytes;
  load({.number = 1, .vram_mib = 512});
  ASSERT_NO_FATAL_FAILURE(start_subject({"--one-bo", "400M", "--zero", "0", "--no-queues"}));
  ASSERT_GT(available_memory(), kFree);
  const TakenMemory taken(available_memory() - kFree);
  ASSERT_LT(available_memory(), kBo) << "a dump could buffer the whole BO";
  ASSERT_NO_FATAL_FAILURE(dump());
  ASSERT_LT(available_memory(), kBo) << "a restore could buffer the whole BO";
  ASSERT_NO_FATAL_FAILURE(restore());
  const std::string answer = subject_->ask("check");
  ASSERT_EQ(answer.rfind("ok check", 0), 0U) << answer;
  EXPECT_EQ(subject_->quit(), 0);
}

TEST_F(Large, ABoWithHolesComesBackWhole) {
  load({.number = 1, .vram_mib = 160});
  ASSERT_NO_FATAL_FAILURE(start_subject({"--one-bo", "128M", "--zero", "50", "--no-queues"}));
  ASSERT_NO_FATAL_FAILURE(expect_survives());
  EXPECT_EQ(subject_->quit(), 0);
}

}  // namespace
}  // namespace sluice::vm_test
