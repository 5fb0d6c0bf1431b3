// SPDX-License-Identifier: MIT
// What tests of dumps with a parent share: checkpoints with names, side by side.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <string>

#include "images/chain/chain.h"
#include "images_in_memory.h"
#include "plugin_test.h"

namespace sluice::plugin_test {

namespace fs = std::filesystem;

class ParentTest : private ImagesInMemory, public PluginTest {
 protected:
  explicit ParentTest(const vamdgpu::MachineOptions& machine = small_machine())
      : PluginTest(machine, images_in_memory()) {}

  // Dumps into the scene's directory and moves that to `name`, next to it.
  void dump_as(const std::string& name, const Strings& more = {}) {
    ASSERT_EQ(scene_.dump(version(), more), 0) << scene_.log();
    scene_.wait_until_subject_is_gone();
    fs::remove_all(place(name));
    fs::rename(scene_.images(), place(name));
    dump_log_ = scene_.log();
  }
  // On the parent of that name.
  void dump_on(const std::string& parent, const std::string& name) {
    ASSERT_NO_FATAL_FAILURE(dump_as(name, {"--prev-images-dir", "../" + parent}));
  }
  void restore_from(const std::string& name) {
    overwrite_gpu_memory();
    fs::rename(place(name), scene_.images());
    const int status = scene_.restore(version());
    restore_log_ = scene_.log();
    fs::rename(scene_.images(), place(name));
    ASSERT_EQ(status, 0) << restore_log_;
  }
  void expect_refused(const std::string& name, const std::string& why) {
    scene_.control().clear_trace();
    fs::rename(place(name), scene_.images());
    const int status = scene_.restore(version());
    restore_log_ = scene_.log();
    fs::rename(scene_.images(), place(name));
    EXPECT_EQ(status, 1);
    EXPECT_NE(restore_log_.find(why), std::string::npos) << "not said: " << why << "\n" << restore_log_;
    expect_not_resumed();
  }
  // The same, before there was anything of a GPU.
  void expect_refused_at_once(const std::string& name, const std::string& why) {
    expect_refused(name, why);
    EXPECT_EQ(scene_.control().criu_calls(kRestoreOp), 0U);
  }
  // Once for the subject and once for what has come back, each on the one before.
  void expect_chain_of_three() {
    ASSERT_NO_FATAL_FAILURE(dump_as("first"));
    ASSERT_NO_FATAL_FAILURE(restore_from("first"));
    expect_whole();
    for (const auto& [parent, name] : {std::pair("first", "second"), std::pair("second", "third")}) {
      ASSERT_NO_FATAL_FAILURE(dump_on(parent, name));
      EXPECT_TRUE(is_delta(name)) << dump_log_;
      ASSERT_NO_FATAL_FAILURE(restore_from(name));
      expect_whole();
    }
  }
  // What a checkpoint is: each file, with its bytes.
  std::map<std::string, std::string> bytes_of(const std::string& name) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(place(name)))
      files[entry.path().filename().string()] = entry.is_regular_file() ? read_file(entry.path()) : "";
    return files;
  }
  fs::path place(const std::string& name) const { return scene_.images().parent_path() / name; }
  // Files with contents, part of which is the parent's.
  std::set<std::string> deltas(const std::string& name) const {
    std::set<std::string> names = images_in(place(name), "amdgpu-delta-");
    std::erase_if(names, [](const std::string& each) {
      return each.starts_with("amdgpu-delta-kfd-") || each.starts_with("amdgpu-delta-renderD-");
    });
    return names;
  }
  bool is_delta(const std::string& name) const { return !deltas(name).empty(); }
  std::uint64_t bytes_on_disk(const std::string& name) const {
    std::uint64_t bytes = 0;
    for (const auto& entry : fs::directory_iterator(place(name))) {
      struct stat status {};
      const std::string file = entry.path().filename().string();
      if ((file.starts_with("amdgpu-pages") || file.starts_with("amdgpu-delta")) &&
          ::stat(entry.path().c_str(), &status) == 0)
        bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
    }
    return bytes;
  }
  void expect_full(const std::string& name, const std::string& warning) {
    EXPECT_FALSE(is_delta(name));
    EXPECT_NE(dump_log_.find(warning), std::string::npos) << "not said: " << warning << "\n" << dump_log_;
  }

  std::string dump_log_, restore_log_;
};

}  // namespace sluice::plugin_test
