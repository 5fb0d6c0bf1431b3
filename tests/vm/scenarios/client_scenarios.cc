// SPDX-License-Identifier: MIT
// Clients that nobody here wrote: AMD's own runtime (libhsa-runtime64 with its thunk, as Debian builds it)
// and its tools on the virtual GPUs. What they ask of a driver is what a driver must have.
#include "scenario.h"

namespace sluice::vm_test {
namespace {

// Times that `text` occurs in `in`.
std::size_t count(const std::string& in, const std::string& text) {
  std::size_t times = 0;
  for (std::size_t at = in.find(text); at != std::string::npos; at = in.find(text, at + text.size())) ++times;
  return times;
}

class Client : public Scenario {
 protected:
  static bool has_runtime() {
    return std::filesystem::exists("/usr/bin/rocminfo") &&
           std::filesystem::exists(settings().programs / "hsa-client");
  }

  // rocminfo finds `gpus` GPUs of this instruction set, and comes to its end.
  void expect_listed(std::size_t gpus, const std::string& isa) {
    Launch launch;
    launch.arguments = {"/usr/bin/rocminfo"};
    launch.output = scratch() / "rocminfo.log";
    EXPECT_EQ(run(launch), 0);
    const std::string text = read_file(launch.output);
    EXPECT_EQ(count(text, "Device Type:             GPU"), gpus) << text;
    EXPECT_EQ(count(text, isa), gpus) << text;
    EXPECT_NE(text.find("*** Done ***"), std::string::npos) << text;
  }

  void start_client() {
    subject_.emplace(scratch() / "client");
    Launch launch;
    launch.arguments = {(settings().programs / "hsa-client").string(), subject_->directory().string()};
    launch.output = scratch() / "client.log";
    const std::string ready = subject_->start_program(launch);
    ASSERT_EQ(ready.rfind("ready gpus=2 ", 0), 0U) << ready << "\n" << read_file(launch.output);
  }

  void expect_client_whole() {
    const std::string checked = subject_->ask("check");
    EXPECT_EQ(checked.rfind("ok check ", 0), 0U) << checked;
    const std::string worked = subject_->ask("work");
    EXPECT_EQ(worked.rfind("ok work ", 0), 0U) << worked;
    const std::string checked_again = subject_->ask("check");
    EXPECT_EQ(checked_again.rfind("ok check ", 0), 0U) << checked_again;
  }
};

#define NEEDS_RUNTIME() \
  if (!has_runtime()) GTEST_SKIP() << "this suite's Debian has no ROCm runtime in the guest"

TEST_F(Client, RocminfoListsEveryGpu) {
  NEEDS_RUNTIME();
  load({.number = 3});
  // Whether its memory has ECC is a card's own.
  expect_listed(3,
                std::string("amdgcn-amd-amdhsa--") + (Card::have_dies() ? "gfx942" : "gfx90a") + ":sramecc");
}

TEST_F(Client, RuntimesMemorySignalsAndQueuesComeBack) {
  NEEDS_RUNTIME();
  load({.vram_mib = 128});
  ASSERT_NO_FATAL_FAILURE(start_client());
  ASSERT_NO_FATAL_FAILURE(expect_client_whole());
  ASSERT_NO_FATAL_FAILURE(dump());
  ASSERT_NO_FATAL_FAILURE(restore());
  ASSERT_NO_FATAL_FAILURE(expect_client_whole());
  EXPECT_EQ(subject_->quit(), 0);
}

TEST_F(Client, RuntimeGoesOnAfterADumpThatLeavesItRunning) {
  NEEDS_RUNTIME();
  load({.vram_mib = 128});
  ASSERT_NO_FATAL_FAILURE(start_client());
  for (int i = 0; i < 3; ++i) {
    const CriuRun run =
        criu_->dump(subject_->pid(), images("images" + std::to_string(i)), {"--leave-running"});
    ASSERT_TRUE(run.good()) << run.log;
    ASSERT_NO_FATAL_FAILURE(expect_client_whole());
  }
  EXPECT_EQ(subject_->quit(), 0);
}

}  // namespace
}  // namespace sluice::vm_test
