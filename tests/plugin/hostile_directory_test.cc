// SPDX-License-Identifier: MIT
// An image directory into which somebody else may write, too: links, FIFOs and directories under the names of
// images, and files that he holds open. The shipped plugin writes nothing there but into new files that only
// its user can open, reads nothing but regular files, and waits for nobody.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "plugin_test.h"

namespace sluice::plugin_test {
namespace {

namespace fs = std::filesystem;

constexpr char kPrecious[] = "somebody's precious file";

class HostileDirectoryTest : public PluginTest {
 protected:
  HostileDirectoryTest() { std::ofstream(precious_) << kPrecious; }

  // What the plugin has written there.
  std::set<std::string> ours() const {
    std::set<std::string> names = images("amdgpu-");
    names.merge(images("sluice-"));
    return names;
  }

  void expect_private_files() const {
    for (const std::string& name : ours()) {
      const fs::file_status status = fs::symlink_status(scene_.images() / name);
      EXPECT_EQ(status.type(), fs::file_type::regular) << name;
      EXPECT_EQ(status.permissions(), fs::perms::owner_read | fs::perms::owner_write) << name;
      EXPECT_EQ(fs::hard_link_count(scene_.images() / name), 1U) << name;
    }
  }

  void expect_precious() const { EXPECT_EQ(read_file(precious_), kPrecious); }

  void dump_under_umask(mode_t mask) {
    const mode_t before = ::umask(mask);
    dump();
    (void)::umask(before);
  }

  ScratchDirectory elsewhere_;
  fs::path precious_ = elsewhere_.path() / "precious";
};

TEST_P(HostileDirectoryTest, ADumpWritesThroughNoLink) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  std::set<std::string> names = ours();
  for (const std::string& name : images("amdgpu-pages-1-"))
    names.insert("amdgpu-pages-unnamed0" + name.substr(name.rfind('-')));
  for (const char* reuse : {"off", "on"}) {
    SCOPED_TRACE(reuse);
    for (const std::string& name : names) {
      fs::remove(scene_.images() / name);
      fs::create_symlink(precious_, scene_.images() / name);
      fs::create_hard_link(precious_, scene_.images() / (name + ".tmp"));
    }
    scene_.variables["SLUICE_REUSE"] = reuse;
    ASSERT_NO_FATAL_FAILURE(start());
    ASSERT_NO_FATAL_FAILURE(dump());
    expect_precious();
    expect_private_files();
  }
  restore_and_check();
}

// Puts links in the place of files, and takes them away, as fast as it can while it lives: to a file that is
// there, and to one that is not.
class NameSwapper {
 public:
  NameSwapper(fs::path directory, std::set<std::string> names, fs::path there, fs::path missing)
      : directory_(std::move(directory)),
        names_(std::move(names)),
        targets_{std::move(there), std::move(missing)},
        thread_([this] { swap(); }) {}
  ~NameSwapper() {
    stop_ = true;
    thread_.join();
    for (const std::string& name : names_) {
      if (fs::is_symlink(directory_ / name)) fs::remove(directory_ / name);
    }
  }
  NameSwapper(const NameSwapper&) = delete;
  NameSwapper& operator=(const NameSwapper&) = delete;

  std::size_t swaps() const { return swaps_; }

 private:
  void swap() {
    const fs::path link = directory_ / "link";
    while (!stop_) {
      for (const std::string& name : names_) {
        const fs::path& target = targets_[swaps_++ % targets_.size()];
        (void)::symlink(target.c_str(), link.c_str());
        (void)::rename(link.c_str(), (directory_ / name).c_str());
        if (swaps_ % 3 == 0) (void)::unlink((directory_ / name).c_str());
      }
    }
  }

  const fs::path directory_;
  const std::set<std::string> names_;
  const std::array<fs::path, 2> targets_;
  std::atomic<std::size_t> swaps_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Whatever comes between the plugin's looking and writing. A dump in such a directory may fail; then the
// process runs on.
TEST_P(HostileDirectoryTest, NamesThatAreSwappedDuringADumpLeadItNowhere) {
  constexpr int kDumps = 4;
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(scene_.dump(version(), {"--leave-running"}), 0) << scene_.log();
  std::set<std::string> names;
  for (const std::string& name : ours()) names.merge(std::set<std::string>{name, name + ".tmp"});
  for (const std::string& name : images("amdgpu-pages-1-")) {
    const std::string ending = name.substr(name.rfind('-'));
    for (const char* begin : {"amdgpu-pages-unnamed0", "amdgpu-pages-old0", "amdgpu-pages-old1"})
      names.merge(std::set<std::string>{begin + ending, begin + ending + ".tmp"});
  }
  for (int done = 0; done < kDumps; ++done) {
    scene_.variables["SLUICE_REUSE"] = done % 2 == 0 ? "off" : "on";
    const NameSwapper swapper(scene_.images(), names, precious_, elsewhere_.path() / "missing");
    const std::size_t before = swapper.swaps();
    const int status = scene_.dump(version(), {"--leave-running"});
    EXPECT_TRUE(status == 0 || status == 1) << scene_.log();
    EXPECT_GT(swapper.swaps(), before);
    (void)scene_.log();
    expect_precious();
    EXPECT_FALSE(fs::exists(elsewhere_.path() / "missing")) << "made through a link";
    expect_running();
  }
  ASSERT_NO_FATAL_FAILURE(dump());
  restore_and_check();
}

TEST_P(HostileDirectoryTest, ARestoreReadsRegularFilesOnly) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  for (const char* prefix : {"amdgpu-kfd-", "amdgpu-pages-", "amdgpu-sums-", "amdgpu-renderD-"}) {
    const std::string name = *images(prefix).begin();
    SCOPED_TRACE(name);
    const fs::path image = scene_.images() / name;
    fs::rename(image, elsewhere_.path() / name);
    const auto expect_no_file = [&] {
      scene_.control().clear_trace();
      EXPECT_EQ(scene_.restore(version()), 1);
      const std::string log = scene_.log();
      EXPECT_NE(log.find(name + " is not a regular file"), std::string::npos) << log;
      expect_not_resumed();
      fs::remove(image);
    };
    fs::create_symlink(elsewhere_.path() / name, image);
    expect_no_file();
    ASSERT_EQ(::mkfifo(image.c_str(), 0600), 0);
    expect_no_file();
    fs::create_directory(image);
    expect_no_file();
    fs::rename(elsewhere_.path() / name, image);
  }
  restore_and_check();
}

TEST_P(HostileDirectoryTest, ADirectoryInPlaceOfAnImageFailsTheDump) {
  ASSERT_NO_FATAL_FAILURE(start());
  fs::create_directories(scene_.images() / "amdgpu-kfd-1.img");
  EXPECT_EQ(scene_.dump(version()), 1);
  EXPECT_NE(scene_.log().find("amdgpu-kfd-1.img"), std::string::npos);
  expect_running();
}

TEST_P(HostileDirectoryTest, EveryFileIsPrivateWhateverTheUmask) {
  for (const mode_t mask : {0U, 077U}) {
    SCOPED_TRACE(mask);
    ASSERT_NO_FATAL_FAILURE(start());
    ASSERT_NO_FATAL_FAILURE(dump_under_umask(mask));
    EXPECT_GE(ours().size(), 7U);
    expect_private_files();
  }
  restore_and_check();
  expect_private_files();
}

// Whoever holds the file open would read the GPU memory that is written into it.
TEST_P(HostileDirectoryTest, AFileThatOthersMayHaveOpenedIsNotReused) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  std::map<std::string, UniqueFd> held;
  for (const std::string& name : images("amdgpu-pages-1-")) {
    const fs::path file = scene_.images() / name;
    std::ofstream(file) << kPrecious;
    fs::permissions(file, fs::perms::group_read | fs::perms::others_read, fs::perm_options::add);
    held[name] = UniqueFd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  }
  scene_.variables["SLUICE_REUSE"] = "on";
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  for (const auto& [name, fd] : held) {
    std::string text(2 * sizeof kPrecious, '\0');
    text.resize(static_cast<std::size_t>(::pread(fd.get(), text.data(), text.size(), 0)));
    EXPECT_EQ(text, kPrecious) << name;
  }
  expect_private_files();
  restore_and_check();
}

// They are written at a restore, into a directory that has been anywhere meanwhile.
TEST_P(HostileDirectoryTest, StatisticsAreWrittenThroughNoLinkAndWaitForNobody) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  const fs::path statistics = scene_.images() / "sluice-stats-restore-1.json";
  fs::create_hard_link(precious_, statistics);
  restore_and_check();
  expect_precious();
  expect_private_files();
  EXPECT_EQ(heard("quit"), "ok quit");
  scene_.wait_until_subject_is_gone();
  fs::remove(statistics);
  ASSERT_EQ(::mkfifo(statistics.c_str(), 0600), 0);
  restore_and_check();
  expect_private_files();
}

INSTANTIATE_TEST_SUITE_P(Versions, HostileDirectoryTest, ::testing::ValuesIn(kVersionsOfLongSuites),
                         name_of_version);

}  // namespace
}  // namespace sluice::plugin_test
