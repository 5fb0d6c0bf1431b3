// SPDX-License-Identifier: MIT
// What the tests of the shipped plugin share: a small machine, the versions as parameters, a subject that is
// ready.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lookalike/harness.h"
#include "pipeline/checksum/checksum.h"

namespace sluice::plugin_test {

using lookalike::FifoSubject;
using lookalike::Program;
using lookalike::program_directory;
using lookalike::read_file;
using lookalike::Scene;
using lookalike::ScratchDirectory;
using lookalike::shipped_plugin_directory;
using lookalike::Strings;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

inline vamdgpu::MachineOptions small_machine(unsigned gpus = 2) {
  vamdgpu::MachineOptions options;
  options.gpus = gpus;
  options.vram_bytes = 24 * kMiB;
  options.gtt_bytes = 80 * kMiB;  // a context save area alone has some 60 MiB
  return options;
}

struct Version {
  const char* name;
  unsigned hooks;
};
inline constexpr Version kVersions[] = {{"3.17.1", 10}, {"4.1.1", 12}, {"4.2", 13}, {"dev", 15}};
// For suites that take minutes: without 4.1.1, the criu of Debian 13's guest.
inline constexpr Version kVersionsOfLongSuites[] = {kVersions[0], kVersions[2], kVersions[3]};
// Have the hooks of 3.17.1 and of 4.1.1. What they do otherwise is in criu_3_19_test.cc and criu_4_0_test.cc;
// the other suites are spared them, except dump_restore_test 4.0.
inline constexpr Version kCriu319 = {"3.19", 10}, kCriu40 = {"4.0", 12};

inline void PrintTo(const Version& version, std::ostream* out) {
  *out << version.name;
}

inline std::string name_of_version(const ::testing::TestParamInfo<Version>& tested) {
  std::string name = tested.param.name;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

// A scene with the shipped plugin.
class SceneTest : public ::testing::Test {
 protected:
  explicit SceneTest(const vamdgpu::MachineOptions& options = small_machine(),
                     const std::filesystem::path& images = {})
      : scene_(options, shipped_plugin_directory(), images) {
    // What a small machine has needs no more; the pages of the usual staging memory would be most of the
    // work.
    scene_.variables["SLUICE_STAGING_SIZE"] = "8M";
    scene_.variables["SLUICE_CHUNK_SIZE"] = "1M";
  }

  void start(const Strings& more = {}) {
    Strings arguments = {"--vram", "4M", "--gtt", "1M"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const std::string ready = scene_.start_subject(arguments);
    ASSERT_TRUE(ready.starts_with("ready")) << ready;
  }

  void dump_with(const std::string& version) {
    ASSERT_EQ(scene_.dump(version), 0) << scene_.log();
    (void)scene_.log();
    scene_.wait_until_subject_is_gone();
  }

  // Restores and has the restored process check itself, work on, check again.
  void restore_and_check_with(const std::string& version) {
    ASSERT_EQ(scene_.restore(version), 0) << scene_.log();
    expect_whole();
  }

  void expect_whole() {
    EXPECT_TRUE(heard("check").starts_with("ok check")) << last_;
    EXPECT_EQ(heard("work"), "ok work");
    EXPECT_TRUE(heard("check").starts_with("ok check")) << last_;
  }

  // The queues of a process run on as if nothing had happened, and the plugin has let go of it.
  void expect_queues_run(pid_t pid) {
    const auto process = scene_.control().process(pid);
    ASSERT_TRUE(process.has_value());
    EXPECT_FALSE(process->queues_paused);
    EXPECT_TRUE(process->queues_run());
    EXPECT_EQ(process->process_infos, process->unpauses);
  }
  // And so does the whole subject.
  void expect_running() {
    ASSERT_NO_FATAL_FAILURE(expect_queues_run(scene_.subject_pid()));
    expect_whole();
  }

  // A restore that was refused: no process is left that uses a GPU, none was resumed.
  void expect_not_resumed() {
    EXPECT_TRUE(scene_.control().processes().empty());
    EXPECT_EQ(scene_.control().criu_calls(kResume), 0U);
    EXPECT_EQ(scene_.control().counts(), vamdgpu::Counts());
  }

  // What GPUs keep of one restore shall not pass for the contents that another has brought.
  void overwrite_gpu_memory() {
    for (const std::filesystem::path& pool : gpu_memory()) {
      static const std::vector<char> bytes(kMiB, '\x5a');
      std::fstream file(pool, std::ios::in | std::ios::out | std::ios::binary);
      const std::uint64_t size = std::filesystem::file_size(pool);
      for (std::uint64_t at = 0; at < size; at += bytes.size())
        file.write(bytes.data(),
                   static_cast<std::streamsize>(std::min<std::uint64_t>(bytes.size(), size - at)));
      ASSERT_TRUE(file.good());
    }
  }

  // Whether any GPU has these bytes somewhere in its memory, whosever it is.
  // Bytes that are in one place and nowhere else. Whether they are.
  bool replace_in_gpu_memory(const std::string& bytes, const std::string& by) {
    if (bytes.find_first_not_of(bytes.front()) == std::string::npos) return false;
    for (const std::filesystem::path& pool : gpu_memory()) {
      const std::string all = read_file(pool);
      const std::size_t at = all.find(bytes);
      if (at == std::string::npos) continue;
      if (all.find(bytes, at + 1) != std::string::npos) return false;
      std::fstream file(pool, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(at));
      file.write(by.data(), static_cast<std::streamsize>(by.size()));
      return file.good();
    }
    return false;
  }
  bool gpu_memory_has(std::string_view bytes) {
    std::string part(kMiB + bytes.size(), '\0');  // what lies across two parts is whole in the first
    for (const std::filesystem::path& pool : gpu_memory()) {
      std::ifstream file(pool, std::ios::binary);
      for (std::uint64_t at = 0; at < std::filesystem::file_size(pool); at += kMiB) {
        file.clear();
        file.seekg(static_cast<std::streamoff>(at));
        file.read(part.data(), static_cast<std::streamsize>(part.size()));
        const std::string_view got(part.data(), static_cast<std::size_t>(file.gcount()));
        if (got.find(bytes) != std::string_view::npos) return true;
      }
    }
    return false;
  }

  // A block of a pages file of which no other place has a part.
  static void overwrite_block(const std::filesystem::path& pages) {
    std::string block;
    while (block.size() < kSumBlockBytes) block += kFoundNowhereElse;
    block.resize(kSumBlockBytes);
    std::fstream file(pages, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(kSumBlockBytes);
    ASSERT_TRUE(file.write(block.data(), static_cast<std::streamsize>(block.size())).flush());
    ASSERT_GE(std::filesystem::file_size(pages), 3 * kSumBlockBytes) << "it was no whole block";
  }
  static constexpr const char* kFoundNowhereElse = "a damaged block, which is to reach no GPU; ";

  std::string heard(const std::string& command) { return last_ = scene_.subject().ask(command); }

  // How many of the last device calls were these.
  std::size_t traced(const std::string& name) {
    const auto trace = scene_.control().trace();
    return static_cast<std::size_t>(std::count_if(
        trace.begin(), trace.end(), [&](const vamdgpu::TracedCall& call) { return call.name == name; }));
  }

  // Names of image files, with a beginning.
  std::set<std::string> images(const std::string& prefix) const { return images_in(scene_.images(), prefix); }
  static std::set<std::string> images_in(const std::filesystem::path& place, const std::string& prefix) {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(place)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(prefix)) names.insert(name);
    }
    return names;
  }

  static constexpr std::uint32_t kCriuNr = 0x22;
  static constexpr std::uint32_t kProcessInfo = 0, kCheckpoint = 1, kUnpause = 2, kRestoreOp = 3, kResume = 4;

  Scene scene_;
  std::string last_;

 private:
  // What the machine has in place of VRAM and GTT.
  std::vector<std::filesystem::path> gpu_memory() {
    std::vector<std::filesystem::path> pools;
    for (const auto& entry : std::filesystem::directory_iterator(scene_.machine().directory())) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("vram-") || name.starts_with("gtt-")) pools.push_back(entry.path());
    }
    return pools;
  }
};

// The same for each version.
class PluginTest : public SceneTest, public ::testing::WithParamInterface<Version> {
 protected:
  using SceneTest::SceneTest;

  std::string version() const { return GetParam().name; }
  unsigned hooks() const { return GetParam().hooks; }

  void dump() { dump_with(version()); }
  void restore_and_check() { restore_and_check_with(version()); }
};

}  // namespace sluice::plugin_test
