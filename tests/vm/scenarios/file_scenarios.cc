// SPDX-License-Identifier: MIT
// Device files in all shapes: several opens, dups, inherited descriptors, descriptors that are gone while
// their maps are not, and what cannot be dumped and says so.
#include <linux/kcmp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/unique_fd.h"
#include "scenario.h"

namespace sluice::vm_test {
namespace {

class Files : public Scenario {
 protected:
  static Strings with(const Strings& more) {
    Strings options = {"--gpus", "2", "--vram", "4M", "--gtt", "1M"};
    options.insert(options.end(), more.begin(), more.end());
    return options;
  }

  // Descriptors of the subject for files whose name starts so.
  std::vector<int> descriptors(pid_t pid, const std::string& prefix) const {
    std::vector<int> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
      std::error_code error;
      const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
      if (target.starts_with(prefix)) found.push_back(std::atoi(entry.path().filename().c_str()));
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  static pid_t child_of(pid_t pid) {
    const std::string id = std::to_string(pid);
    return static_cast<pid_t>(std::atoi(read_file("/proc/" + id + "/task/" + id + "/children").c_str()));
  }

  bool same_file(pid_t a, int fd_a, pid_t b, int fd_b) const {
    return ::syscall(SYS_kcmp, a, b, KCMP_FILE, static_cast<unsigned long>(fd_a),
                     static_cast<unsigned long>(fd_b)) == 0;
  }

  void expect_refused(const std::string& because) {
    const CriuRun run = criu_->dump(subject_->pid(), images());
    ASSERT_TRUE(run.status.has_value());
    EXPECT_NE(run.status, 0);
    EXPECT_TRUE(run.said(because)) << "criu's log does not say: " << because;
    ASSERT_TRUE(subject_->alive());
    const std::string answer = subject_->ask("check");
    EXPECT_EQ(answer.rfind("ok check", 0), 0U) << answer;
  }
};

TEST_F(Files, TwoOpensOfKfdAreOneProcess) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(with({"--second-kfd", "--run-queues"})));
  const std::vector<int> before = descriptors(subject_->pid(), "/dev/kfd");
  ASSERT_EQ(before.size(), 2U);
  ASSERT_NO_FATAL_FAILURE(expect_survives());
  EXPECT_EQ(descriptors(subject_->pid(), "/dev/kfd"), before);
  EXPECT_FALSE(same_file(subject_->pid(), before[0], subject_->pid(), before[1]));
  EXPECT_EQ(subject_->quit(), 0);
}

TEST_F(Files, QueuesRunAfterADumpOfTwoOpens) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(with({"--second-kfd", "--run-queues"})));
  ASSERT_TRUE(criu_->dump(subject_->pid(), images(), {"--leave-running"}).good());
  EXPECT_EQ(machine().criu_calls(kProcessInfo), 1U);
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  EXPECT_EQ(subject_->quit(), 0);
}

TEST_F(Files, DupStaysADup) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(with({"--dup-kfd"})));
  const std::vector<int> before = descriptors(subject_->pid(), "/dev/kfd");
  ASSERT_EQ(before.size(), 2U);
  ASSERT_NO_FATAL_FAILURE(expect_survives());
  EXPECT_EQ(descriptors(subject_->pid(), "/dev/kfd"), before);
  EXPECT_TRUE(same_file(subject_->pid(), before[0], subject_->pid(), before[1]));
  EXPECT_EQ(subject_->quit(), 0);
}

TEST_F(Files, OfTwoRenderFilesTheAcquiredOneComesBackAsSuch) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(with({"--second-render"})));
  const std::vector<int> before = descriptors(subject_->pid(), "/dev/dri/renderD");
  ASSERT_EQ(before.size(), 4U);
  ASSERT_NO_FATAL_FAILURE(expect_survives());
  EXPECT_EQ(descriptors(subject_->pid(), "/dev/dri/renderD"), before);
  EXPECT_EQ(subject_->quit(), 0);
}

// CRIU dumps and restores files by their descriptors: the KFD's process comes last.
TEST_F(Files, RenderFilesThatWereOpenedBeforeTheKfdComeBack) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(with({"--render-first", "--run-queues"})));
  const std::vector<int> kfd = descriptors(subject_->pid(), "/dev/kfd");
  const std::vector<int> render = descriptors(subject_->pid(), "/dev/dri/renderD");
  ASSERT_EQ(kfd.size(), 1U);
  ASSERT_EQ(render.size(), 2U);
  ASSERT_LT(render.back(), kfd.front());
  ASSERT_NO_FATAL_FAILURE(expect_survives());
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  EXPECT_EQ(subject_->quit(), 0);
}

TEST_F(Files, TheAcquiredFileIsFoundWithoutSideEffects) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(with({"--second-render"})));
  // KFD keeps the dma-buf of a BO that was exported once (kfd_mem_export_dmabuf).
  ASSERT_TRUE(criu_->dump(subject_->pid(), images("first"), {"--leave-running"}).good());
  const Usage before = machine().usage();
  ASSERT_TRUE(criu_->dump(subject_->pid(), images(), {"--leave-running"}).good());
  Usage after;
  EXPECT_TRUE(eventually([&] { return (after = machine().usage()).is_within(before); }, Seconds(20)))
      << "before: " << describe(before) << "\nafter: " << describe(after);
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
}

TEST_F(Files, ChildThatInheritedTheFilesHasThemAgain) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(with({"--fork-child"})));
  const pid_t child = child_of(subject_->pid());
  ASSERT_GT(child, 0);
  const std::vector<int> before = descriptors(child, "/dev/");
  ASSERT_FALSE(descriptors(child, "/dev/kfd").empty());
  ASSERT_NO_FATAL_FAILURE(dump());
  ASSERT_NO_FATAL_FAILURE(restore());
  EXPECT_EQ(child_of(subject_->pid()), child);
  EXPECT_EQ(descriptors(child, "/dev/"), before);
  const int kfd = descriptors(child, "/dev/kfd").at(0);
  EXPECT_TRUE(same_file(subject_->pid(), kfd, child, kfd));
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
}

TEST_F(Files, MapsWhoseRenderFileWasClosedComeBack) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(with({"--close-render-after-map"})));
  ASSERT_TRUE(descriptors(subject_->pid(), "/dev/dri/renderD").empty());
  ASSERT_NO_FATAL_FAILURE(expect_survives());
  EXPECT_EQ(subject_->quit(), 0);
}

// Whether its parent's files are seen in advance or come one by one.
TEST_F(Files, AChildThatHasNothingButMapsIsRefusedByName) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(with({"--mapping-child", "--no-queues"})));
  const std::string says = "process " + std::to_string(child_of(subject_->pid())) + " maps at ";
  expect_refused(says);
  criu_->prepare = take_no_descriptors;
  expect_refused(says);
  EXPECT_EQ(subject_->quit(), 0);
}

TEST_F(Files, MapsOfKfdWithoutADescriptorAreRefusedByName) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(with({"--no-kfd-fd"})));
  ASSERT_TRUE(descriptors(subject_->pid(), "/dev/kfd").empty());
  expect_refused("process " + std::to_string(subject_->pid()) + " maps /dev/kfd but has closed it");
}

TEST_F(Files, InheritedFileOfAProcessThatIsGoneIsRefusedByName) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(with({"--inherited-kfd"})));
  ASSERT_EQ(descriptors(subject_->pid(), "/dev/kfd").size(), 2U);
  expect_refused("was opened by a process that is gone");
  EXPECT_EQ(subject_->quit(), 0);
}

// What no plugin can mend.
TEST_F(Files, AMappedDmaBufIsNamed) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(with({"--map-dmabuf"})));
  expect_refused("process " + std::to_string(subject_->pid()) + " maps a dma-buf");
  EXPECT_EQ(subject_->quit(), 0);
}

// It would be two memories afterwards.
TEST_F(Files, AnOpenDmaBufThatAnotherProcessHasIsNamed) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(with({"--dmabuf-fd"})));
  const std::vector<int> dmabufs = descriptors(subject_->pid(), "/dmabuf:");
  ASSERT_EQ(dmabufs.size(), 1U);
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, subject_->pid(), 0U)));
  UniqueFd ours(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), dmabufs.front(), 0U)));
  ASSERT_TRUE(ours);
  expect_refused("a process that is not dumped has it, too [SL-D28] [SL-D24]");
  ours.reset();
  ASSERT_NO_FATAL_FAILURE(expect_survives());
  EXPECT_EQ(subject_->quit(), 0);
}

// Its maker has closed it.
TEST_F(Files, MemoryThatADmaBufAloneHasComesBack) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(with({"--dmabuf-fd"})));
  for (int generation = 0; generation < 2; ++generation) ASSERT_NO_FATAL_FAILURE(expect_survives());
  EXPECT_EQ(subject_->quit(), 0);
}

// No render file has it. Where the KFD exports nothing, it has imported the memory.
TEST_F(Files, AnOpenDmaBufOfTheKfdComesBack) {
  load();
  Strings options = with({"--share-fd", "--share-alone", "--share"});
  if (kfd_exports()) {
    options.push_back("kfd");
  } else {
    options.insert(options.end(), {"gem", "--kfd-import"});
  }
  ASSERT_NO_FATAL_FAILURE(start_subject(options));
  for (const char* value : {"4711", "815"}) {
    EXPECT_EQ(subject_->ask(std::string("poke ") + value), std::string("ok poke ") + value);
    ASSERT_NO_FATAL_FAILURE(expect_survives());
    EXPECT_EQ(subject_->ask("peek"), std::string("ok peek ") + value);
  }
  EXPECT_EQ(subject_->quit(), 0);
}

}  // namespace
}  // namespace sluice::vm_test
