// SPDX-License-Identifier: MIT
// Images that one suite made, in the others: restored, or refused for a reason that is said.
//
// criu wants the very files that a process mapped, and suites have different libraries. So the process runs
// on a copy of its program, libraries and loader in a directory of its own, and that goes with the images.
#include <set>

#include "container.h"
#include "scenario.h"

namespace sluice::vm_test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBox = "box";
constexpr const char* kImages = "images";
constexpr const char* kRecordBytes = "record-bytes";
constexpr const char* kDies = "dies";
// Above what a guest has reached when the images are restored there.
constexpr const char* kLastPid = "20000";

class WithBox : public Scenario {
 protected:
  void SetUp() override {
    Scenario::SetUp();
    home_ = settings().images / "travelling";
    fs::remove_all(home_);
    fs::create_directories(home_);
  }
  void TearDown() override {
    Scenario::TearDown();
    fs::remove_all(home_);
  }

  static std::string dies() { return Card::have_dies() ? "several" : "one"; }

  // Same paths in every guest.
  fs::path home_;
};

class Travelling : public WithBox {};

TEST_F(Travelling, ImagesAreLeftForTheOtherSuites) {
  load();
  const fs::path program = settings().programs / "gpu-subject";
  copy_below(home_ / kBox, files_of_program(program));
  fs::path loader;
  std::set<std::string> folders;
  for (const fs::path& file : files_of_program(program)) {
    if (file.filename().string().starts_with("ld-linux")) loader = file;
    folders.insert((home_ / kBox / file.parent_path().relative_path()).string());
  }
  std::string library_path;
  for (const std::string& folder : folders) library_path += (library_path.empty() ? "" : ":") + folder;
  Launch launch;
  launch.arguments = {(home_ / kBox / loader.relative_path()).string(), "--library-path", library_path};
  write_file("/proc/sys/kernel/ns_last_pid", kLastPid);
  subject_.emplace(home_ / "control");
  subject_->use_program(home_ / kBox / program.relative_path());
  const std::string ready = subject_->start(
      with_common_options({"--gpus", "2", "--vram", "4M", "--gtt", "1M", "--run-queues"}), launch);
  ASSERT_EQ(ready.rfind("ready", 0), 0U) << ready;
  const CriuRun run = criu_->dump(subject_->pid(), home_ / kImages);
  ASSERT_TRUE(run.good());
  ASSERT_TRUE(subject_->reap_dumped());
  write_file(home_ / kRecordBytes, std::to_string(bo_record_bytes()));
  write_file(home_ / kDies, dies());
  if (!settings().out.empty()) {
    const fs::path left = settings().out.parent_path() / "images";
    fs::create_directories(left);
    for (const char* name : {kBox, kImages, kRecordBytes, kDies})
      fs::copy(home_ / name, left / name, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  }
  // Here they restore.
  ASSERT_TRUE(criu_->restore(home_ / kImages).good());
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
}

// Where the images come from.
struct Source {
  const char* suite;
  // The kernel lays out the vDSO's data in a way that a criu of another kernel must know.
  bool new_vdso_layout;
};

void PrintTo(const Source& source, std::ostream* out) {
  *out << source.suite;
}

class Foreign : public WithBox, public testing::WithParamInterface<Source> {};

TEST_P(Foreign, ImagesRestoreOrAreRefusedForAReason) {
  const fs::path source = settings().foreign / GetParam().suite;
  if (settings().foreign.empty() || !fs::exists(source / kRecordBytes))
    GTEST_SKIP() << "no images of " << GetParam().suite << " here";
  load();
  for (const char* name : {kBox, kImages}) fs::copy(source / name, home_ / name, fs::copy_options::recursive);
  subject_.emplace(home_ / "control");
  const std::string recorded = read_file(source / kRecordBytes);
  const std::string here = std::to_string(bo_record_bytes());
  // A newer driver knows more of the same GPU: SVM, resets of a queue.
  criu_->environment.insert_or_assign("KFD_CAPABILITY_CHECK", "0");
  const CriuRun run = criu_->restore(home_ / kImages, {"--pidfile", (scratch() / "pid").string()});
  ASSERT_TRUE(run.status.has_value());
  if (recorded != here) {
    EXPECT_NE(run.status, 0);
    EXPECT_TRUE(run.said("keeps " + recorded + " bytes per BO where this one keeps " + here))
        << "the reason is not said";
    EXPECT_EQ(machine().criu_calls(kRestore), 0U) << "RESTORE was tried";
    return;
  }
  if (read_file(source / kDies) != dies()) {
    EXPECT_NE(run.status, 0);
    EXPECT_TRUE(run.plugin_said("[SL-R14]")) << "the reason is not said";
    EXPECT_EQ(machine().criu_calls(kRestore), 0U) << "RESTORE was tried";
    return;
  }
  if (GetParam().new_vdso_layout && !criu_traits().new_vdso_layout) {
    EXPECT_NE(run.status, 0);
    // AMD's driver is asked first: Linux 6.12 takes no queue whose control stack 7.2 has not saved.
    EXPECT_TRUE(run.said("vdso: ELF header magic mismatch") || run.said("[SL-G13]"))
        << "the reason is not said";
    forgive_kernel_log();  // which has it, too
    return;
  }
  ASSERT_TRUE(run.good());
  subject_->adopt(std::atoi(read_file(scratch() / "pid").c_str()));
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    From, Foreign, testing::Values(Source{"bookworm", false}, Source{"trixie", false}, Source{"forky", true}),
    [](const testing::TestParamInfo<Source>& source) { return std::string(source.param.suite); });

}  // namespace
}  // namespace sluice::vm_test
