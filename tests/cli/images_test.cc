// SPDX-License-Identifier: MIT
// What all commands that look at images answer where there are none, or none that they can read.
#include "images_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "base/units.h"
#include "images/files/files.h"

namespace sluice::cli_test {
namespace {

TEST_F(ImagesTest, WhatIsNoRegularFileIsToldAndNotWaitedFor) {
  const std::string directory = damaged_copy();
  for (const char* prefix : {"amdgpu-pages-", "amdgpu-kfd-"}) {
    const std::string name = names(directory, prefix)[0];
    const std::string file = directory + "/" + name;
    std::filesystem::rename(file, directory + "/elsewhere");
    for (const bool fifo : {false, true}) {
      if (fifo) {
        ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
      } else {
        std::filesystem::create_symlink("elsewhere", file);
      }
      for (const char* command : {"show", "verify"}) {
        const Ended ended = sluice({command, directory});
        EXPECT_EQ(ended.status, kFailed) << command;
        EXPECT_THAT(ended.out + ended.err, AllOf(HasSubstr(name + " "), HasSubstr("[SL-I01]"))) << command;
      }
      std::filesystem::remove(file);
    }
    std::filesystem::rename(directory + "/elsewhere", file);
  }
}

// As a copy that lost one file. What is left is as it was written, and no job comes back from it.
TEST_F(ImagesTest, AnImageThatIsLostIsToldByWhatNeedsIt) {
  ASSERT_EQ(images_->dump("open",
                          {"--svm-context", "--share", "kfd", "--share-fd", "--kfd-import", "--second-kfd"}),
            "");
  const auto expect_told = [](const std::string& directory, const std::string& fault) {
    for (const char* command : {"show", "verify", "map"}) {
      const Ended ended = sluice({command, directory}, &images_->machine());
      EXPECT_EQ(ended.status, kFailed) << command;
      EXPECT_THAT(ended.out + ended.err, HasSubstr(fault)) << command;
    }
  };
  const auto lose = [&](const std::string& name) {
    const std::string directory = images_->copy("open", "lost-" + name).string();
    std::filesystem::remove(directory + "/" + name);
    return directory;
  };
  const std::string open = images_->directory("open").string();
  for (const char* command : {"show", "verify", "map"})
    ASSERT_EQ(sluice({command, open}, &images_->machine()).status, kDone) << command;

  const std::string kfd = names(open, std::string(kKfdPrefix)).at(0);
  const std::string without_kfd = lose(kfd);
  expect_told(without_kfd,
              names(open, std::string(kKfdPrefix)).at(1) + " is of " + kfd + ", which is not here");
  const json verified = object_of(sluice({"verify", "--json", without_kfd}));
  EXPECT_EQ(verified["result"], "incomplete");
  for (const std::string& name : names(without_kfd, std::string(kKfdPrefix)))
    std::filesystem::remove(without_kfd + "/" + name);
  expect_told(without_kfd, names(open, "amdgpu-pages-").at(0) + " is of " + kfd + ", which is not here");
  remove_files(without_kfd, "amdgpu-pages-");
  remove_files(without_kfd, "amdgpu-sums-" + std::to_string(*id_of_image(kfd)) + "-");
  expect_told(without_kfd, " is of a KFD process whose image is not here");

  const std::string dmabuf = names(open, "amdgpu-dmabuf_").at(0);
  const std::string memory = images_->copy("open", "lost-memory").string();
  change_kfd_image(memory, [](KfdImage& image) {
    for (BoEntry& bo : image.bos) {
      if (!bo.imports) bo.shared = 0;
    }
  });
  expect_told(memory, " shares memory with an image that is not here");
  const std::string told = sluice({"verify", memory}).out;
  EXPECT_THAT(told,
              AllOf(HasSubstr(kfd + " shares memory"), HasSubstr(", and so do "), Not(HasSubstr(dmabuf))));
}

// All that a lost file leaves behind is one loss.
TEST_F(ImagesTest, OneLostImageIsOneLoss) {
  const std::string directory = images_->copy("shared", "one-lost").string();
  ASSERT_GE(names(directory, std::string(kRenderPrefix)).size(), 2U);
  std::filesystem::remove(directory + "/" + names(directory, std::string(kKfdPrefix)).at(0));
  const json object = object_of(sluice({"verify", "--json", directory}));
  std::size_t missing = 0;
  for (const json& problem : object["problems"]) missing += problem["kind"] == "missing" ? 1 : 0;
  EXPECT_EQ(missing, 1U) << object;
  EXPECT_THAT(sluice({"verify", directory}).out, HasSubstr("INCOMPLETE: 1 file is missing"));
}

// One typing error away from a name that is known.
TEST_F(ImagesTest, EveryCommandWarnsOfASettingThatIsNone) {
  for (const Strings& command :
       {Strings{"show", plain()}, Strings{"verify", plain()}, Strings{"map", plain()},
        Strings{"diff", plain(), plain()}, Strings{"flatten", plain()}, Strings{"plan", "/nowhere"}}) {
    const Ended ended = sluice(command, &images_->machine(), {"SLUICE_CHEKSUM=off"});
    EXPECT_THAT(ended.err, AllOf(HasSubstr("sluice " + command[0] + ": "),
                                 HasSubstr("did you mean SLUICE_CHECKSUM?"), HasSubstr("[SL-S")))
        << command[0];
    EXPECT_EQ(ended.err.find("SLUICE_CHEKSUM"), ended.err.rfind("SLUICE_CHEKSUM")) << "once: " << ended.err;
  }
}

// As the BO of a render file that no process has.
TEST_F(ImagesTest, MemoryThatADmaBufAloneHasIsShown) {
  ASSERT_EQ(images_->dump("alone", {"--svm-context", "--dmabuf-fd"}), "");
  const std::string directory = images_->directory("alone").string();
  const std::string dmabuf = names(directory, "amdgpu-dmabuf_").at(0);
  const int id = *id_of_image(dmabuf);
  EXPECT_THAT(sluice({"show", directory}).out,
              ::testing::ContainsRegex("1 MiB.*no file \\(renderD[0-9]+\\).*open dma-buf, file " +
                                       std::to_string(id)));
  EXPECT_EQ(sluice({"verify", directory}).status, kDone);
  // Upstream's plugin looks a BO up by its handle: it must not find another one.
  const UniqueFd opened(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const auto image = unpack_dmabuf_image(*read_image(opened.get(), dmabuf), dmabuf, {});
  EXPECT_EQ(image->gem_handle, 0x7fffffffU);
  const std::string lost = images_->copy("alone", "alone-lost").string();
  std::filesystem::remove(lost + "/" + render_image_name(kFirstMemoryId + id));
  for (const char* command : {"show", "verify", "map"}) {
    const Ended ended = sluice({command, lost}, &images_->machine());
    EXPECT_EQ(ended.status, kFailed) << command;
    EXPECT_THAT(ended.out + ended.err, HasSubstr("is not here")) << command;
  }
}

// Somebody else may have given it to the directory.
TEST_F(ImagesTest, TheNameOfADirectoryDoesNotCommandTheTerminal) {
  const std::string directory = images_->copy("plain", "a\033[31mb").string();
  for (const Strings& command : {Strings{"show", directory}, Strings{"verify", directory + "/none"},
                                 Strings{"check", "--dir", directory}, Strings{"plan", directory}}) {
    const Ended ended = sluice(command);
    EXPECT_EQ(ended.out.find('\033'), std::string::npos) << command[0];
    EXPECT_EQ(ended.err.find('\033'), std::string::npos) << command[0];
    EXPECT_THAT(ended.out + ended.err, HasSubstr("a?[31mb")) << command[0];
  }
}

TEST_F(ImagesTest, DirectoriesWithoutImagesAreRefused) {
  const lookalike::ScratchDirectory empty;
  for (const char* command : {"show", "verify", "map"}) {
    const Ended ended = sluice({command, empty.path().string()});
    EXPECT_EQ(ended.status, kRefused) << command;
    EXPECT_THAT(ended.err, HasSubstr("[SL-T27]")) << command;
    EXPECT_EQ(object_of(sluice({command, "--json", empty.path().string()}))["result"], "refused");
    EXPECT_EQ(sluice({command, "/does/not/exist"}).status, kFailed) << command;
    EXPECT_EQ(object_of(sluice({command, "--json", "/does/not/exist"}))["result"], "failed") << command;
  }
}

TEST_F(ImagesTest, ImagesOfSomebodyElseAreForRoot) {
  const std::string directory = damaged_copy();
  ASSERT_EQ(::chmod(directory.c_str(), 0), 0);
  const Ended ended = sluice({"show", directory}, nullptr, {}, [] {
    if (::geteuid() == 0) give_up_capabilities({CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH});
  });
  ASSERT_EQ(::chmod(directory.c_str(), 0700), 0);
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_THAT(ended.err, HasSubstr("images are readable by their owner only: try again as root"));
}

void refused_with(const std::string& path, const std::string& id, const std::function<void()>& before = {}) {
  const Ended ended = sluice({"show", path}, nullptr, {}, before);
  EXPECT_EQ(ended.status, kRefused) << path;
  EXPECT_THAT(ended.err, HasSubstr(id)) << path;
}

TEST_F(ImagesTest, WhatHasNoImagesIsToldByWhatItHas) {
  const lookalike::ScratchDirectory scratch;
  const auto make = [&](const std::string& name) {
    std::filesystem::create_directories(scratch.path() / name);
    return (scratch.path() / name).string();
  };
  const auto add = [](const std::string& file) { std::ofstream{file}; };

  const std::string notes = make("notes");
  add(notes + "/amdgpu-notes.txt");
  refused_with(notes, "[SL-T27]");
  // Links are not followed, whatever they lead to.
  std::filesystem::create_directory_symlink(plain(), notes + "/elsewhere");
  refused_with(notes, "[SL-T27]");
  const std::string contents = make("contents");
  add(contents + "/amdgpu-pages-1-0001.img");
  refused_with(contents, "[SL-T32]");

  // One level below, in one folder, in several, in more than are listed; but not in a whole file system.
  const std::string below = make("below");
  for (int i = 0; i < 257; ++i) std::filesystem::create_directory(below + "/" + std::to_string(i));
  add(below + "/7/amdgpu-kfd-1.img");
  refused_with(below, "[SL-T27]");
  std::filesystem::remove(below + "/256");
  const Ended one = sluice({"show", below + "/"});
  EXPECT_EQ(one.status, kFailed);
  EXPECT_THAT(one.err, HasSubstr("amdgpu-kfd-1.img"));
  add(below + "/8/amdgpu-kfd-1.img");
  refused_with(below, "folders: 7, 8 [SL-T25]");
  for (int i = 10; i < 17; ++i) add(below + "/" + std::to_string(i) + "/amdgpu-kfd-1.img");
  refused_with(below, ", ... [SL-T25]");
}

// A single file, wherever it lies.
TEST_F(ImagesTest, OneFileOfACheckpointIsNoCheckpoint) {
  const std::string kfd = names(plain(), std::string(kKfdPrefix)).at(0);
  const auto in_plain = [] {
    if (::chdir(plain().c_str()) != 0) ::_exit(126);
  };
  refused_with(plain() + "/" + kfd, "[SL-T41]");
  refused_with(kfd, "[SL-T41]", in_plain);
  const lookalike::ScratchDirectory scratch;
  const std::string core = (scratch.path() / "core-1.img").string();
  std::ofstream{core};
  refused_with(core, "[SL-T42]");
  std::ofstream{scratch.path() / "inventory.img"};
  refused_with(core, "[SL-T41]");
  // Nobody may list what is next to it.
  const auto as_others = [] {
    if (::geteuid() == 0) give_up_capabilities({CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH});
  };
  ASSERT_EQ(::chmod(scratch.path().c_str(), 0100), 0);
  refused_with(core, "[SL-T42]", as_others);
  ASSERT_EQ(::chmod(scratch.path().c_str(), 0700), 0);
  const std::string closed = (scratch.path() / "closed.tar").string();
  std::ofstream{closed};
  ASSERT_EQ(::chmod(closed.c_str(), 0), 0);
  const json object = object_of(sluice({"show", "--json", closed}, nullptr, {}, as_others));
  EXPECT_EQ(object["cause"], "not-allowed");
}

TEST_F(ImagesTest, ADirectoryThatCannotBeListedIsToldSo) {
  const auto bad_disk = [] { refuse_system_call(SYS_getdents64, EIO); };
  const json object = object_of(sluice({"show", "--json", plain()}, nullptr, {}, bad_disk));
  EXPECT_EQ(object["result"], "failed");
  EXPECT_EQ(object["cause"], "unreadable");
}

TEST_F(ImagesTest, AKeyThatCannotBeHadIsToldWithItsCause) {
  const lookalike::ScratchDirectory scratch;
  const std::string key = (scratch.path() / "key").string();
  const auto told = [&](const std::string& file, const std::function<void()>& before = {}) {
    return object_of(sluice({"show", "--json", plain()}, nullptr, {"SLUICE_KEY_FILE=" + file}, before));
  };
  EXPECT_EQ(told(key)["cause"], "missing");
  EXPECT_FALSE(told("key").contains("cause")) << "of a setting that is none";
  std::ofstream(key) << std::string(64, 'a');
  ASSERT_EQ(::chmod(key.c_str(), 0), 0);
  EXPECT_EQ(told(key,
                 [] {
                   if (::geteuid() == 0) give_up_capabilities({CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH});
                 })["cause"],
            "not-allowed");
  ASSERT_EQ(::chmod(key.c_str(), 0600), 0);
  // ELOOP, EIO and their like.
  std::filesystem::remove(key);
  std::filesystem::create_symlink("key", key);
  EXPECT_EQ(told(key)["cause"], "unreadable");
}

// An image that says it is long is not believed before there is room for it.
TEST_F(ImagesTest, WhatDoesNotFitIntoMemoryIsAFailure) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs the address space";
#endif
  const std::string directory = damaged_copy();
  std::filesystem::resize_file(directory + "/" + names(directory, std::string(kKfdPrefix)).at(0), 1 << 30);
  const Ended ended = sluice({"show", directory}, nullptr, {}, [] {
    const rlimit limit = {512 * kMiB, 512 * kMiB};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) ::_exit(126);
  });
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_EQ(ended.err, "sluice: out of memory; free memory, and try again [SL-T16]\n");
}

}  // namespace
}  // namespace sluice::cli_test
