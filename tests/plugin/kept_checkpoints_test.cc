// SPDX-License-Identifier: MIT
// contrib/keep-checkpoints, which users copy: each call leaves one more complete checkpoint of a running job,
// and the newest are kept.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "images_in_memory.h"
#include "plugin_test.h"

namespace sluice::plugin_test {
namespace {

namespace fs = std::filesystem;

using Names = std::set<std::string>;

// On a file system where extents cannot be shared, so that flatten has work to do.
class KeptCheckpointsTest : private ImagesInMemory, public PluginTest {
 protected:
  KeptCheckpointsTest() : PluginTest(machine(), images_in_memory()) {
    fs::create_directories(tools_.path());
    fs::create_symlink(sluice_, tools_.path() / "sluice");
    make_criu("");
    scene_.variables["PATH"] = tools_.path().string() + ":/usr/bin:/bin";
    scene_.variables["KEEP"] = "2";
  }

  // A pre-dump holds no more than is free: of GTT, for both GPUs what their queues save there.
  static vamdgpu::MachineOptions machine() {
    vamdgpu::MachineOptions options = small_machine();
    options.gtt_bytes = 200 * kMiB;
    return options;
  }

  // What stands for criu in the PATH: the look-alike under criu's options. `before`: shell commands.
  void make_criu(const std::string& before) {
    const fs::path path = tools_.path() / "criu";
    std::ofstream(path)
        << "#!/bin/sh\n"
        << before << "\n[ \"$1\" = dump ] || exit 2\nshift\n"
        << "while [ $# -gt 0 ]; do case $1 in\n"
           "-t) pid=$2; shift 2 ;; -D) dir=$2; shift 2 ;; -o) log=$2; shift 2 ;;\n"
           "--prev-images-dir) parent=$2; shift 2 ;; --leave-running | -v3) shift ;; *) exit 2 ;;\n"
           "esac; done\nexec '"
        << (program_directory() / ("../lookalike/criu-host-" + version())).string()
        << "' dump --leave-running --pid $pid --images $dir --log $dir/$log --libdir '"
        << shipped_plugin_directory().string() << "' ${parent:+--prev-images-dir $parent}\n";
    ASSERT_EQ(::chmod(path.c_str(), 0755), 0);
  }
  int keep() {
    Program script = scene_.start_program(
        {"/bin/sh", SLUICE_KEEP_CHECKPOINTS, std::to_string(scene_.subject_pid()), base().string()});
    while (!script.hear().empty()) {
    }
    return script.wait();
  }
  int verify(const std::string& name) {
    return scene_.start_program({sluice_.string(), "verify", (base() / name).string()}).wait();
  }
  void restore_from(const std::string& name) {
    ASSERT_EQ(::kill(scene_.subject_pid(), SIGKILL), 0);
    scene_.wait_until_subject_is_gone();
    overwrite_gpu_memory();
    fs::rename(base() / name, scene_.images());
    ASSERT_EQ(scene_.restore(version()), 0) << scene_.log();
    fs::rename(scene_.images(), base() / name);
    expect_whole();
  }
  fs::path base() const { return scene_.images().parent_path() / "job"; }
  Names kept() const {
    Names names;
    for (const auto& entry : fs::directory_iterator(base())) names.insert(entry.path().filename().string());
    return names;
  }

 private:
  ScratchDirectory tools_;
  const fs::path sluice_ = program_directory() / "../../src/cli/sluice";
};

INSTANTIATE_TEST_SUITE_P(Versions, KeptCheckpointsTest, ::testing::Values(kVersions[0], kVersions[2]),
                         name_of_version);

TEST_P(KeptCheckpointsTest, TheNewestAreKeptAndEachIsCompleteByItself) {
  start();
  for (int call = 0; call < 3; ++call) {
    ASSERT_EQ(keep(), 0) << call;
    expect_running();
    ASSERT_EQ(heard("change"), "ok change");
  }
  EXPECT_EQ(kept(), Names({".lock", "000002", "000003"}));
  for (const char* name : {"000002", "000003"}) {
    EXPECT_EQ(verify(name), 0) << name;
    EXPECT_TRUE(images_in(base() / name, "amdgpu-delta-").empty()) << name;
    EXPECT_FALSE(fs::is_symlink(base() / name / "parent")) << name;
  }
  fs::remove_all(base() / "000002");
  restore_from("000003");
}

TEST_P(KeptCheckpointsTest, ADumpThatFailsCostsNoCheckpointAndTheNextCallGoesOn) {
  start();
  ASSERT_EQ(keep(), 0);
  make_criu("exit 1");
  EXPECT_NE(keep(), 0);
  EXPECT_TRUE(kept().contains("000001"));
  EXPECT_FALSE(kept().contains("000002"));
  expect_running();
  make_criu("");
  ASSERT_EQ(keep(), 0);
  EXPECT_EQ(kept(), Names({".lock", "000001", "000002"}));
  restore_from("000001");
}

TEST_P(KeptCheckpointsTest, TwoCallsDoNotWorkAtOnce) {
  start({"--no-queues"});
  fs::create_directories(base());
  const UniqueFd lock(::open((base() / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  EXPECT_NE(keep(), 0);
  EXPECT_EQ(kept(), Names({".lock"}));
}

}  // namespace
}  // namespace sluice::plugin_test
