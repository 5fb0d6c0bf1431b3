// SPDX-License-Identifier: MIT
// The commands that look at images: show, verify, map, on images that the plugin made, whole and damaged.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>

#include "cli/text.h"
#include "images/files.h"
#include "images/metadata.h"
#include "kfd/uapi.h"
#include "made_images.h"
#include "pipeline/unique_fd.h"
#include "pipeline/units.h"
#include "support/flip_byte.h"
#include "sysfs_tree.h"

namespace sluice::cli_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// "plain": one process with a KFD, dumped and restored once. "shared": its memory is in render files, too.
class ImagesTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    images_ = new MadeImages;
    ASSERT_EQ(images_->dump("plain", {}), "");
    ASSERT_EQ(images_->restore("plain"), "");
    ASSERT_EQ(images_->dump("shared", {"--svm-context", "--share", "kfd", "--gem-handles", "1,3"}), "");
  }
  static void TearDownTestSuite() { delete images_; }

  // Each test has a copy of its own to damage.
  std::string damaged_copy() const {
    return images_->copy("plain", ::testing::UnitTest::GetInstance()->current_test_info()->name()).string();
  }
  static std::string plain() { return images_->directory("plain").string(); }
  static std::string shared() { return images_->directory("shared").string(); }

  static std::vector<std::string> names(const std::string& directory, const std::string& prefix) {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      if (const std::string name = entry.path().filename().string(); name.starts_with(prefix))
        found.insert(name);
    }
    return {found.begin(), found.end()};
  }
  static std::uint64_t total_size(const std::string& directory, const std::string& prefix) {
    std::uint64_t sum = 0;
    for (const std::string& name : names(directory, prefix))
      sum += std::filesystem::file_size(std::filesystem::path(directory) / name);
    return sum;
  }

  // Changes each image of this kind, as a disk or another plugin might have made it. `from`, `to`: its bytes
  // to a value and back.
  template <class From, class Change, class To>
  static void change_image(const std::string& directory, std::string_view prefix, From from, Change change,
                           To to) {
    for (const std::string& name : names(directory, std::string(prefix))) {
      const UniqueFd dir(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      auto image = from(read_image(dir.get(), name).value(), name).value();
      change(image);
      ASSERT_TRUE(write_image(dir.get(), name, to(image), false).ok());
    }
  }
  static void change_kfd_image(const std::string& directory,
                               const std::function<void(kfd::KfdImage&)>& change) {
    change_image(directory, kKfdPrefix, unpack_kfd_image, change, pack_kfd_image);
  }
  static void change_render_image(const std::string& directory,
                                  const std::function<void(RenderImage&)>& change) {
    change_image(directory, kRenderPrefix, unpack_render_image, change, pack_render_image);
  }
  // The first BO in VRAM.
  static kfd::BoEntry& vram_bo(kfd::KfdImage& image) {
    return *std::find_if(image.bos.begin(), image.bos.end(),
                         [](const kfd::BoEntry& bo) { return (bo.alloc_flags & kfd::kAllocVram) != 0; });
  }
  static void remove_files(const std::string& directory, const std::string& prefix) {
    for (const std::string& name : names(directory, prefix)) std::filesystem::remove(directory + "/" + name);
  }
  // As if the dump had written none.
  static void remove_sums(const std::string& directory) {
    remove_files(directory, "amdgpu-sums-");
    change_kfd_image(directory, [](kfd::KfdImage& image) { image.has_sums = false; });
    change_render_image(directory, [](RenderImage& image) { image.has_sums = false; });
  }

  static MadeImages* images_;
};
MadeImages* ImagesTest::images_ = nullptr;

TEST_F(ImagesTest, ShowTellsWhatIsThere) {
  const Ended ended = sluice({"show", plain()});
  EXPECT_EQ(ended.status, kDone) << ended.err;
  EXPECT_EQ(ended.err, "");
  for (const char* part : {"1 process, 2 GPUs", "with checksums", "made by sluice", "gfx90a", "renderD128",
                           "amdgpu-kfd-", "amdgpu-pages-", "XGMI"})
    EXPECT_THAT(ended.out, HasSubstr(part));
  EXPECT_THAT(ended.out, Not(HasSubstr("\x1b")));  // no colour in a pipe
}

TEST_F(ImagesTest, ShowAsJsonAddsUp) {
  const Ended ended = sluice({"show", "--json", "--bos", plain()});
  ASSERT_EQ(ended.status, kDone);
  const json shown = object_of(ended);
  EXPECT_EQ(shown["gpus"].size(), 2U);
  EXPECT_EQ(shown["processes"].size(), 1U);
  EXPECT_EQ(shown["processes"][0]["bo_record_bytes"], 272);
  EXPECT_EQ(shown["bytes"], total_size(plain(), "amdgpu-pages-"));
  EXPECT_GT(shown["zero_bytes"], 0);
  EXPECT_LT(shown["zero_bytes"], shown["bytes"]);
  EXPECT_EQ(shown["faults"], json::array());
  std::uint64_t contents = 0;
  std::uint64_t bos = 0;
  for (const json& bo : shown["bos"]) {
    ++bos;
    if (bo["kind"] == "VRAM" || bo["kind"] == "GTT") contents += bo["bytes"].get<std::uint64_t>();
  }
  EXPECT_EQ(contents + 8 * shown["files"].size(), shown["bytes"]);
  std::uint64_t of_kinds = 0;
  for (const json& kind : shown["memory"]) of_kinds += kind["bos"].get<std::uint64_t>();
  EXPECT_EQ(bos, of_kinds);
}

TEST_F(ImagesTest, ShowTellsWhoSharesMemory) {
  const json shown = object_of(sluice({"show", "--json", shared()}));
  ASSERT_GE(shown["shared"].size(), 1U);
  EXPECT_THAT(shown["shared"][0]["made_by"].get<std::string>(), HasSubstr("process"));
  EXPECT_GE(shown["shared"][0]["also"].size(), 1U);
  EXPECT_THAT(sluice({"show", shared()}).out, HasSubstr("Shared memory"));
}

// The KFD has the memory twice: once as its own, once imported.
TEST_F(ImagesTest, ShowTellsWhatAKfdImports) {
  ASSERT_EQ(images_->dump("imported", {"--svm-context", "--share", "kfd", "--kfd-import"}), "");
  const json shown = object_of(sluice({"show", "--json", "--bos", images_->directory("imported").string()}));
  std::vector<std::string> imported;  // how they are called
  for (const json& bo : shown["bos"]) {
    if (bo["imported"].get<bool>() && bo["image"].get<std::string>().starts_with("amdgpu-kfd-"))
      imported.push_back(" BO " + std::to_string(bo["bo"].get<int>()));
  }
  ASSERT_EQ(imported.size(), 1U) << shown["bos"];
  ASSERT_EQ(shown["shared"].size(), 1U);
  EXPECT_THAT(shown["shared"][0]["made_by"].get<std::string>(),
              AllOf(HasSubstr("process "), Not(EndsWith(imported[0]))));
  EXPECT_THAT(shown["shared"][0]["also"].get<std::vector<std::string>>(), Contains(EndsWith(imported[0])));
}

// A line for each BO, with what JSON says of it.
TEST_F(ImagesTest, ShowListsBosAsText) {
  const json shown = object_of(sluice({"show", "--json", "--bos", shared()}));
  const Ended ended = sluice({"show", "--bos", shared()});
  EXPECT_EQ(ended.status, kDone) << ended.err;
  const std::size_t begin = ended.out.find("\nBOs\n  image ");
  ASSERT_NE(begin, std::string::npos) << ended.out;
  std::istringstream lines(ended.out.substr(begin + std::strlen("\nBOs\n")));
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  std::size_t imported = 0;
  for (const json& bo : shown["bos"]) {
    ASSERT_TRUE(std::getline(lines, line));
    const std::string kind = bo["kind"].get<std::string>() + (bo["imported"] ? ", imported " : " ");
    EXPECT_THAT(line, AllOf(StartsWith("  " + bo["image"].get<std::string>()),
                            HasSubstr(" " + bo["bo"].dump() + "  " + kind),
                            HasSubstr(" " + hex(bo["address"].get<std::uint64_t>()) + " "),
                            HasSubstr(" " + bo["bytes"].dump() + " ")));
    if (bo["handle"].is_number()) {
      EXPECT_THAT(line, HasSubstr(" " + bo["handle"].dump()));
    }
    if (bo["shared"] != 0) {
      EXPECT_THAT(line, EndsWith(" " + bo["shared"].dump()));
    }
    imported += bo["imported"] ? 1 : 0;
  }
  EXPECT_FALSE(std::getline(lines, line)) << line;
  EXPECT_GT(imported, 0U);
}

// They tell neither who made them nor which process they are of, and have no checksums.
TEST_F(ImagesTest, ShowOfImagesOfCriusOwnPlugin) {
  const std::string directory = damaged_copy();
  remove_sums(directory);
  const auto as_upstream = [](kfd::KfdImage& image) {
    image.sluice_version.clear();
    image.kernel_release.clear();
    image.kfd_minor_version = 0;
    image.bo_record_bytes = 0;
    image.priv_data.clear();
    image.dump_id.reset();
    for (kfd::Node& node : image.topology.nodes) {
      node.gfx_target_version = 0;
      node.location_id = 0;
    }
  };
  change_image(directory, kKfdPrefix, unpack_kfd_image, as_upstream, kfd::encode_kfd_image);
  for (const std::string& name : names(directory, std::string(kRenderPrefix))) {
    change_image(
        directory, name, unpack_render_image,
        [](RenderImage& image) {
          image.kfd_acquired.reset();
          image.pid.reset();
          image.dump_id.reset();
        },
        pack_render_image);
  }
  const Ended ended = sluice({"show", directory});
  EXPECT_EQ(ended.status, kDone) << ended.err;
  EXPECT_THAT(ended.out, AllOf(HasSubstr(": 1 process, 2 GPUs, "), HasSubstr("not all of it with checksums"),
                               HasSubstr("\nmade by CRIU's own plugin, or one that does not say\n"),
                               HasSubstr(" none\n"), HasSubstr(" renderD128\n"), Not(HasSubstr("KFD's"))));
  const json shown = object_of(sluice({"show", "--json", directory}));
  EXPECT_EQ(shown["processes"][0]["sluice_version"], "");
  EXPECT_EQ(shown["processes"][0]["bo_record_bytes"], 0);
  EXPECT_TRUE(shown["processes"][0]["dump_id"].is_null());
  EXPECT_TRUE(shown["render_files"][0]["pid"].is_null());
  EXPECT_TRUE(shown["render_files"][0]["kfd_acquired"].is_null());
  EXPECT_EQ(shown["gpus"][0]["gfx"], "");
  EXPECT_EQ(shown["gpus"][0]["pci"], "");
  EXPECT_FALSE(shown["files"][0]["sums"]);
}

// Two open files of one process: the second has nothing of its own.
TEST_F(ImagesTest, ASecondFileOfAProcessIsTheFirst) {
  ASSERT_EQ(images_->dump("alias", {"--second-kfd"}), "");
  const std::string directory = images_->directory("alias").string();
  const json processes = object_of(sluice({"show", "--json", directory}))["processes"];
  ASSERT_EQ(processes.size(), 2U);
  ASSERT_TRUE(processes[0]["alias_of"].is_null());
  EXPECT_TRUE(processes[1]["pid"].is_null());
  EXPECT_EQ(kfd_image_name(processes[1]["alias_of"]), processes[0]["image"]);
  EXPECT_THAT(
      sluice({"show", directory}).out,
      AllOf(HasSubstr(": 1 process, "), HasSubstr(" those of " + processes[0]["image"].get<std::string>())));
  const json mapped = object_of(sluice({"map", "--json", directory}, &images_->machine()));
  EXPECT_EQ(mapped["mappings"].size(), 1U);
  EXPECT_EQ(mapped["mappings"][0]["images"], json::array({processes[0]["image"]}));
}

TEST_F(ImagesTest, TwoProcessesOfOneMachineAreMappedTogether) {
  const std::string directory = damaged_copy();
  const std::string first = names(directory, std::string(kKfdPrefix)).at(0);
  const std::string second = kfd_image_name(*id_of_image(first) + 900);
  std::filesystem::copy(directory + "/" + first, directory + "/" + second);
  change_image(
      directory, second, unpack_kfd_image,
      [](kfd::KfdImage& image) {
        image.pid += 1;
        image.bos.clear();
      },
      pack_kfd_image);
  EXPECT_THAT(sluice({"show", directory}).out, HasSubstr(": 2 processes, 2 GPUs, "));
  const Ended ended = sluice({"map", directory}, &images_->machine());
  EXPECT_EQ(ended.status, kDone) << ended.err;
  EXPECT_THAT(ended.out, StartsWith(first + ", " + second + ": every GPU is the one it was\n"));
}

// What no kernel of today has is shown, not taken for something else.
TEST_F(ImagesTest, ShowNamesMemoryOfEveryKind) {
  const std::string directory = images_->copy("shared", "kinds").string();
  change_kfd_image(directory, [](kfd::KfdImage& image) {
    for (kfd::BoEntry& bo : image.bos) bo.alloc_flags &= ~kfd::kAllocDoorbell;
  });
  change_render_image(directory, [](RenderImage& image) {
    ASSERT_GE(image.bos.size(), 3U);
    image.bos[0].gem.domains = 0;
    image.bos[1].gem.domains = 1;  // AMDGPU_GEM_DOMAIN_CPU
    image.bos[2].gem.domains = 2;  // AMDGPU_GEM_DOMAIN_GTT
    image.bos[2].gem.mappings.clear();
  });
  const json shown = object_of(sluice({"show", "--json", "--bos", directory}));
  std::vector<json> of_render;
  std::set<std::string> of_kfd;
  const std::string render = names(directory, std::string(kRenderPrefix)).at(0);
  for (const json& bo : shown["bos"]) {
    if (bo["image"] == render) of_render.push_back(bo);
    if (bo["image"].get<std::string>().starts_with(kKfdPrefix)) of_kfd.insert(bo["kind"]);
  }
  EXPECT_THAT(of_kfd, AllOf(Contains("VRAM"), Contains("GTT"), Contains("userptr"), Contains("MMIO"),
                            Contains("other")));
  ASSERT_GE(of_render.size(), 3U);
  EXPECT_EQ(of_render[0]["kind"], "other");
  EXPECT_EQ(of_render[1]["kind"], "CPU");
  EXPECT_EQ(of_render[2]["kind"], "GTT");
  EXPECT_EQ(of_render[2]["address"], 0);
  EXPECT_THAT(sluice({"show", "--bos", directory}).out, AllOf(HasSubstr("  CPU"), HasSubstr("  other")));
}

TEST_F(ImagesTest, ShowTellsOfSharedMemoryThatNobodyMakes) {
  ASSERT_EQ(images_->dump("open", {"--svm-context", "--share", "kfd", "--share-fd"}), "");
  const std::string directory = images_->directory("open").string();
  EXPECT_THAT(sluice({"show", directory}).out, HasSubstr("; open dma-buf, file "));
  change_kfd_image(directory, [](kfd::KfdImage& image) {
    for (kfd::BoEntry& bo : image.bos) bo.shared = 0;
  });
  EXPECT_THAT(sluice({"show", directory}).out, HasSubstr(" of nobody in these images; "));
}

TEST_F(ImagesTest, BosThatNoFileCanHoldAreTold) {
  const std::string directory = damaged_copy();
  change_kfd_image(directory, [](kfd::KfdImage& image) { vram_bo(image).bytes = INT64_MAX; });
  for (const Strings& command :
       {Strings{"show", directory}, Strings{"verify", directory}, Strings{"diff", plain(), directory}}) {
    const Ended ended = sluice(command);
    EXPECT_EQ(ended.status, kFailed) << command[0];
    EXPECT_THAT(ended.err, HasSubstr("the BO sizes add up to more than a file can hold")) << command[0];
  }
  EXPECT_THAT(object_of(sluice({"show", "--json", directory}))["faults"][0].get<std::string>(),
              StartsWith(names(directory, std::string(kKfdPrefix)).at(0)));
}

// A file system without holes does not tell where zeros are.
TEST_F(ImagesTest, WithoutHolesAndSumsNothingIsKnownToBeZero) {
  const std::string directory = damaged_copy();
  remove_sums(directory);
  const UniqueFd file(::open((directory + "/" + names(directory, "amdgpu-pages-")[0]).c_str(), O_RDWR));
  ASSERT_EQ(::fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kMiB), 0);
  EXPECT_EQ(object_of(sluice({"show", "--json", directory}))["zero_bytes"], kMiB);
  static_assert(SEEK_DATA == 3);  // both bits, and nothing else that lseek is asked for
  const auto no_holes = [] {
    refuse_system_call(SYS_lseek, EINVAL, {{.argument = 2, .bits = 1}, {.argument = 2, .bits = 2}});
  };
  EXPECT_EQ(object_of(sluice({"show", "--json", directory}, nullptr, {}, no_holes))["zero_bytes"], 0);
}

TEST_F(ImagesTest, ShowHasTheStatisticsOfDumpAndRestore) {
  const Ended ended = sluice({"show", "--stats", plain()});
  EXPECT_EQ(ended.status, kDone);
  EXPECT_THAT(ended.out, HasSubstr("dump-"));
  EXPECT_THAT(ended.out, HasSubstr("restore-"));
  EXPECT_THAT(ended.out, HasSubstr("verified"));
  const json shown = object_of(sluice({"show", "--stats", "--json", plain()}));
  EXPECT_EQ(shown["stats"].size(), 2U);
  EXPECT_EQ(shown["stats"][0]["statistics"]["gpus"].size(), 2U);
}

TEST_F(ImagesTest, ShowSaysWhereThereAreNoStatistics) {
  const std::string directory = damaged_copy();
  remove_files(directory, "sluice-stats-");
  const Ended ended = sluice({"show", "--stats", directory});
  EXPECT_EQ(ended.status, kDone);
  EXPECT_EQ(ended.out,
            "no statistics beside these images: a dump or restore by CRIU's own plugin leaves none\n");
}

TEST_F(ImagesTest, ShowNamesStatisticsThatAreNone) {
  const std::string directory = damaged_copy();
  const std::string file = directory + "/sluice-stats-dump-1.json";
  for (const char* text : {"{\"gpus\": 7", "", "[]", "{}", "{\"gpus\": 7}"}) {
    std::ofstream(file) << text;
    const Ended ended = sluice({"show", "--stats", directory});
    EXPECT_EQ(ended.status, kFailed) << text;
    EXPECT_THAT(ended.err, HasSubstr("sluice-stats-dump-1.json cannot be read")) << text;
  }
  std::filesystem::remove(file);
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  const Ended ended = sluice({"show", "--stats", "--json", directory});
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_EQ(object_of(ended)["faults"].size(), 1U);
}

TEST_F(ImagesTest, StatisticsOfAnotherTypeCountAsNothing) {
  const std::string directory = damaged_copy();
  remove_files(directory, "sluice-stats-");
  std::ofstream(directory + "/sluice-stats-dump-1.json")
      << R"({"gpus": [7, {"gpu_id": "all", "bos": -1, "bytes": "many",
      "seconds": "short", "io_bytes": null, "direct_io": 1, "verified": "yes", "slowest_stage": 5}]})";
  const Ended ended = sluice({"show", "--stats", directory});
  EXPECT_EQ(ended.status, kDone) << ended.err;
  const std::string nothing = "dump-1  0x0000    0    0 B   0 %    0.000        buffered\n";
  EXPECT_THAT(ended.out, EndsWith(nothing + nothing));
}

// Root looks at what somebody else has written.
TEST_F(ImagesTest, HostileStatisticsNeitherCommandTheTerminalNorCrash) {
  const std::string directory = damaged_copy();
  std::ofstream(directory + "/sluice-stats-dump-1.json")
      << R"({"gpus": [{"slowest_stage": "\u001b[2J\nmade up", "bytes": 1e300}], "deep": )"
      << std::string(1'000'000, '[') << std::string(1'000'000, ']') << "}";
  const Ended ended = sluice({"show", "--stats", directory});
  EXPECT_EQ(ended.status, kDone) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("?[2J?made up"));
  EXPECT_THAT(ended.out, HasSubstr(" 0 B "));
  EXPECT_EQ(sluice({"show", "--stats", "--json", directory}).status, kDone);
}

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
        EXPECT_THAT(ended.out + ended.err, HasSubstr(name + " is not a regular file")) << command;
      }
      std::filesystem::remove(file);
    }
    std::filesystem::rename(directory + "/elsewhere", file);
  }
}

TEST_F(ImagesTest, VerifyFindsWholeImagesWhole) {
  for (const std::string& directory : {plain(), shared()}) {
    const Ended ended = sluice({"verify", directory});
    EXPECT_EQ(ended.status, kDone) << ended.out << ended.err;
    EXPECT_THAT(ended.out, HasSubstr("verified: all"));
    const json object = object_of(sluice({"verify", "--json", directory}));
    EXPECT_EQ(object["result"], "verified");
    EXPECT_EQ(object["bytes"],
              total_size(directory, "amdgpu-pages-") + total_size(directory, "amdgpu-drm-pages-"));
    EXPECT_EQ(object["bad_blocks"], 0);
  }
}

// Several bad blocks in several files: all are told, with their places.
TEST_F(ImagesTest, VerifyNamesEveryBadBlockAndGoesOn) {
  const std::string directory = damaged_copy();
  const auto files = names(directory, "amdgpu-pages-");
  ASSERT_EQ(files.size(), 2U);
  test::flip_byte(directory + "/" + files[0], 3);
  test::flip_byte(directory + "/" + files[0], 2 * kMiB + 17);
  test::flip_byte(directory + "/" + files[1], 3 * kMiB);
  const Ended text = sluice({"verify", directory});
  EXPECT_EQ(text.status, kFailed);
  EXPECT_THAT(text.out, HasSubstr("bad block: " + files[0] + " [0, 1048576): GPU 0x"));
  EXPECT_THAT(text.out, HasSubstr("bad block: " + files[0] + " [2097152, 3145728): GPU 0x"));
  EXPECT_THAT(text.out, HasSubstr("bad block: " + files[1] + " [3145728, 4194304): GPU 0x"));
  EXPECT_THAT(text.out, HasSubstr("3 bad blocks"));
  const Ended ended = sluice({"verify", "--json", directory});
  EXPECT_EQ(ended.status, kFailed);
  const json object = object_of(ended);
  EXPECT_EQ(object["result"], "damaged");
  EXPECT_EQ(object["bad_blocks"], 3);
  ASSERT_EQ(object["problems"].size(), 3U);
  EXPECT_EQ(object["problems"][1]["kind"], "bad-block");
  EXPECT_EQ(object["problems"][1]["file"], files[0]);
  EXPECT_EQ(object["problems"][1]["file_offset"], 2 * kMiB);
  EXPECT_TRUE(object["problems"][1]["bo"].is_number());
}

// Where there are more processors than files are read at once, the others hash.
TEST_F(ImagesTest, VerifyFindsTheSameWithManyProcessors) {
  const std::vector<std::string> many = {"VAMDGPU_CPUS=16"};
  const Ended whole = sluice({"verify", plain()}, &images_->machine(), many);
  EXPECT_EQ(whole.status, kDone) << whole.out << whole.err;
  const std::string directory = damaged_copy();
  const auto files = names(directory, "amdgpu-pages-");
  test::flip_byte(directory + "/" + files.at(1), 3 * kMiB);
  const Ended damaged = sluice({"verify", directory}, &images_->machine(), many);
  EXPECT_EQ(damaged.status, kFailed);
  EXPECT_THAT(damaged.out, AllOf(HasSubstr("bad block: " + files[1] + " [3145728, 4194304): GPU 0x"),
                                 HasSubstr("1 bad block")));
}

// What stands on a terminal's line after all this, and how wide it was at most.
struct Screen {
  std::string line;
  std::size_t widest = 0;
};
Screen screen_after(std::string_view text) {
  constexpr std::string_view kErase = "\x1b[K";
  Screen screen;
  for (std::size_t at = 0; !text.empty(); text.remove_prefix(1)) {
    if (text.front() == '\r') {
      at = 0;
    } else if (text.starts_with(kErase)) {
      screen.line.resize(at);
      text.remove_prefix(kErase.size() - 1);
    } else {
      screen.line.resize(std::max(screen.line.size(), at + 1));
      screen.line[at++] = text.front();
      screen.widest = std::max(screen.widest, at);
    }
  }
  return screen;
}

TEST_F(ImagesTest, VerifyShowsItsProgressOnATerminalAndLeavesNothingThere) {
  const Ended ended = run_on_terminal({SLUICE, "verify", plain()}, {}, {});
  EXPECT_EQ(ended.status, kDone);
  EXPECT_THAT(ended.out, AllOf(HasSubstr("verified: all"), Not(HasSubstr("\r"))));
  EXPECT_THAT(ended.err, AllOf(HasSubstr("] "), HasSubstr(" % of "), Not(HasSubstr("\n"))));
  const Screen screen = screen_after(ended.err);
  EXPECT_EQ(screen.line, "");
  EXPECT_LT(screen.widest, 80U);
}

TEST_F(ImagesTest, ProgressFitsANarrowTerminal) {
  const Ended ended = run_on_terminal({SLUICE, "verify", plain()}, {}, {.columns = 12});
  EXPECT_EQ(ended.status, kDone);
  EXPECT_THAT(ended.err, HasSubstr(" %"));
  EXPECT_LT(screen_after(ended.err).widest, 12U);
}

TEST_F(ImagesTest, ATerminalThatDoesNotTellItsWidthHas80Columns) {
  const Ended ended = run_on_terminal({SLUICE, "verify", plain()}, {}, {.columns = 0});
  EXPECT_EQ(screen_after(ended.err).line, "");
  EXPECT_GT(screen_after(ended.err).widest, 12U);
  EXPECT_LT(screen_after(ended.err).widest, 80U);
}

TEST_F(ImagesTest, NoProgressWhereNobodyWatchesIt) {
  EXPECT_EQ(sluice({"verify", plain()}, nullptr, {"TERM=xterm"}).err, "");
  for (const char* kind : {"dumb", ""})
    EXPECT_EQ(run_on_terminal({SLUICE, "verify", plain()}, {}, {.kind = kind}).err, "");
  EXPECT_EQ(run_on_terminal({SLUICE, "verify", "--json", plain()}, {}, {}).err, "");
}

// Past their first MiB files cannot be read: all of that is told, and what comes before it is looked at.
TEST_F(ImagesTest, VerifyGoesOnAfterWhatCannotBeRead) {
  const auto bad_disk = [] {
    constexpr std::uint32_t kBehindOneMiB = ~(static_cast<std::uint32_t>(kMiB) - 1);
    refuse_system_call(SYS_io_uring_setup, EPERM);
    refuse_system_call(SYS_pread64, EIO, {{.argument = 3, .bits = kBehindOneMiB}});
  };
  const Ended ended = sluice({"verify", plain()}, nullptr, {}, bad_disk);
  EXPECT_EQ(ended.status, kFailed);
  std::istringstream lines(ended.out);
  std::size_t unreadable = 0;
  for (std::string line; std::getline(lines, line) && line.starts_with("read amdgpu-pages-"); ++unreadable)
    EXPECT_THAT(line, HasSubstr("): Input/output error: GPU 0x"));
  EXPECT_GE(unreadable, 2U);
  EXPECT_THAT(ended.out, AllOf(HasSubstr("DAMAGED: 0 bad blocks of "),
                               HasSubstr(", " + cli::count_text(unreadable, "other fault") + "; ")));
  EXPECT_THAT(ended.err, AllOf(HasSubstr("sluice verify: GPU 0x"), HasSubstr("io_uring")));

  const json object = json::parse(sluice({"verify", "--json", plain()}, nullptr, {}, bad_disk).out);
  EXPECT_EQ(object["result"], "damaged");
  EXPECT_EQ(object["bad_blocks"], 0);
  std::set<std::string> files;
  for (const json& problem : object["problems"]) {
    EXPECT_EQ(problem["kind"], "unreadable");
    EXPECT_GT(problem["length"], 0);
    files.insert(problem["file"]);
  }
  EXPECT_EQ(files.size(), 2U);
}

TEST_F(ImagesTest, VerifySaysWhatCameThroughThePageCache) {
  const auto no_direct_io = [] {
    refuse_system_call(SYS_fcntl, EINVAL,
                       {{.argument = 1, .bits = F_SETFL}, {.argument = 2, .bits = O_DIRECT}});
  };
  const Ended ended = sluice({"verify", plain()}, nullptr, {}, no_direct_io);
  EXPECT_EQ(ended.status, kDone) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr(", partly through the page cache\n"));
  EXPECT_EQ(object_of(sluice({"verify", "--json", plain()}, nullptr, {}, no_direct_io))["direct_io"], false);
}

TEST_F(ImagesTest, VerifyWithoutThreadsFails) {
  const Ended ended = sluice({"verify", plain()}, nullptr, {"ASAN_OPTIONS=detect_leaks=0"}, [] {
    for (const int number : {SYS_clone, SYS_clone3}) refuse_system_call(number, EAGAIN);
  });
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_EQ(ended.out, "");
  EXPECT_THAT(ended.err, AllOf(StartsWith("sluice verify: "), HasSubstr("Resource temporarily unavailable")));
}

TEST_F(ImagesTest, VerifyPrintsAHundredProblemsAndCountsTheRest) {
  ASSERT_EQ(images_->dump("many", {"--render-only", "--gem-handles", "count:60"}), "");
  const std::string directory = images_->directory("many").string();
  const auto files = names(directory, "amdgpu-drm-pages-");
  ASSERT_EQ(files.size(), 120U);
  for (const std::string& name : files) std::filesystem::remove(directory + "/" + name);
  const Ended ended = sluice({"verify", directory});
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_THAT(ended.out, HasSubstr("\n... and 20 more: --json lists all\n"));
  EXPECT_THAT(ended.out, HasSubstr(", 120 other faults; "));
  EXPECT_EQ(std::count(ended.out.begin(), ended.out.end(), '\n'), 100 + 3);
  EXPECT_EQ(object_of(sluice({"verify", "--json", directory}))["problems"].size(), 120U);
}

TEST_F(ImagesTest, VerifyClearsItsProgressBeforeAProblem) {
  const std::string directory = damaged_copy();
  test::flip_byte(directory + "/" + names(directory, "amdgpu-pages-")[0], 3);
  const Ended ended = run_on_terminal({SLUICE, "verify", directory}, {}, {});
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_EQ(screen_after(ended.err).line, "");
}

TEST_F(ImagesTest, VerifyFindsDamageInRenderFiles) {
  const std::string directory = images_->copy("shared", "shared-damaged").string();
  const auto files = names(directory, "amdgpu-drm-pages-");
  ASSERT_GE(files.size(), 2U);
  test::flip_byte(directory + "/" + files[0], 100);
  std::filesystem::remove(directory + "/" + files[1]);
  const json object = object_of(sluice({"verify", "--json", directory}));
  ASSERT_EQ(object["problems"].size(), 2U) << object;
  EXPECT_EQ(object["problems"][0]["kind"], "bad-block");
  EXPECT_EQ(object["problems"][1]["kind"], "bad-file");
  EXPECT_THAT(object["problems"][0]["of"].get<std::string>(), HasSubstr("renderD"));
}

TEST_F(ImagesTest, MissingAndCutFilesAreTold) {
  const std::string directory = damaged_copy();
  const auto files = names(directory, "amdgpu-pages-");
  std::filesystem::remove(directory + "/" + files[0]);
  std::filesystem::resize_file(directory + "/" + files[1], 100'000);
  const Ended ended = sluice({"verify", directory});
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_THAT(ended.out, HasSubstr(files[0] + ": No such file"));
  EXPECT_THAT(ended.out, HasSubstr(files[1] + " has 100000 bytes"));
  const Ended shown = sluice({"show", directory});
  EXPECT_EQ(shown.status, kFailed);
  EXPECT_THAT(shown.err, HasSubstr(files[1] + " has 100000 bytes"));
}

TEST_F(ImagesTest, WithoutSumsNothingIsCalledVerified) {
  const std::string directory = damaged_copy();
  remove_sums(directory);
  const Ended ended = sluice({"verify", directory});
  EXPECT_EQ(ended.status, kRefused);
  EXPECT_THAT(ended.out, HasSubstr("NOT VERIFIED"));
  EXPECT_EQ(object_of(sluice({"verify", "--json", directory}))["result"], "unverifiable");
}

TEST_F(ImagesTest, ADamagedSidecarIsTold) {
  const std::string directory = damaged_copy();
  const std::string name = names(directory, "amdgpu-sums-")[0];
  std::filesystem::resize_file(directory + "/" + name, 50);
  const Ended shown = sluice({"show", directory});
  EXPECT_EQ(shown.status, kFailed);
  EXPECT_THAT(shown.err, HasSubstr(name));
  const json object = object_of(sluice({"verify", "--json", directory}));
  EXPECT_EQ(object["result"], "damaged");
  EXPECT_EQ(object["problems"][0]["kind"], "bad-sums");
}

TEST_F(ImagesTest, DamagedMetadataIsTold) {
  const std::string directory = damaged_copy();
  const std::string name = names(directory, "amdgpu-kfd-")[0];
  std::filesystem::resize_file(directory + "/" + name, 20);
  for (const char* command : {"show", "verify", "map"}) {
    const Ended ended = sluice({command, directory});
    EXPECT_EQ(ended.status, kFailed) << command;
    EXPECT_THAT(ended.out + ended.err, HasSubstr(name)) << command;
  }
}

TEST_F(ImagesTest, MapFindsTheMachineItself) {
  const Ended ended = sluice({"map", plain()}, &images_->machine());
  EXPECT_EQ(ended.status, kDone) << ended.out << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("every GPU is the one it was"));
  const json object = object_of(sluice({"map", "--json", plain()}, &images_->machine()));
  EXPECT_EQ(object["result"], "fits");
  EXPECT_EQ(object["mappings"][0]["gpus"].size(), 2U);
  EXPECT_EQ(object["mappings"][0]["identity"], true);
}

TEST_F(ImagesTest, MapNamesThePropertyAndTheSwitch) {
  const host_test::ScratchDirectory sysfs;
  vamdgpu::MachineOptions other = small_machine();
  other.vram_bytes = 16 * kMiB;
  vamdgpu::write_topology(sysfs.path(), vamdgpu::describe(other).tree.topology);
  const Strings command = {"map", plain(), "--sysfs", sysfs.path().string()};
  const Ended ended = sluice(command);
  EXPECT_EQ(ended.status, kRefused) << ended.out << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("vram_size 25165824 -> 16777216 (KFD_VRAM_SIZE_CHECK=0 allows this)"));
  Strings as_json = command;
  as_json.emplace_back("--json");
  const json object = object_of(sluice(as_json));
  EXPECT_EQ(object["result"], "refused");
  EXPECT_EQ(object["mappings"][0]["candidates"].size(), 4U);
  EXPECT_EQ(object["mappings"][0]["candidates"][0]["mismatches"][0]["switch"], "KFD_VRAM_SIZE_CHECK");
  EXPECT_EQ(sluice(command, nullptr, {"KFD_VRAM_SIZE_CHECK=0"}).status, kDone);
}

TEST_F(ImagesTest, MapSaysWhatFitsByItselfAndWhatNoSwitchAllows) {
  const host_test::ScratchDirectory sysfs;
  // The second GPU here is smaller: each of the image fits the first, and both need one of their own.
  vamdgpu::Topology topology = vamdgpu::describe(small_machine()).tree.topology;
  topology.nodes.back().memory_banks.at(0).size_bytes = 16 * kMiB;
  vamdgpu::write_topology(sysfs.path(), topology);
  const Ended ended = sluice({"map", plain(), "--sysfs", sysfs.path().string()});
  EXPECT_EQ(ended.status, kRefused);
  EXPECT_THAT(ended.out, AllOf(HasSubstr(": REFUSED: every GPU of the image fits some local GPU"),
                               HasSubstr("  fits by itself\n")));

  const host_test::ScratchDirectory others;
  vamdgpu::MachineOptions other = small_machine();
  other.preset = vamdgpu::Preset::Mi300x;
  vamdgpu::write_topology(others.path(), vamdgpu::describe(other).tree.topology);
  const Strings command = {"map", plain(), "--sysfs", others.path().string()};
  EXPECT_THAT(sluice(command).out, AllOf(HasSubstr("device_id 29711 -> "), HasSubstr("; ")));
  Strings as_json = command;
  as_json.emplace_back("--json");
  EXPECT_TRUE(
      object_of(sluice(as_json))["mappings"][0]["candidates"][0]["mismatches"][0]["switch"].is_null());
}

TEST_F(ImagesTest, MapWithTooFewGpusSaysSoInASentence) {
  const host_test::ScratchDirectory sysfs;
  vamdgpu::MachineOptions smaller = small_machine();
  smaller.gpus = 1;
  vamdgpu::write_topology(sysfs.path(), vamdgpu::describe(smaller).tree.topology);
  const Ended ended = sluice({"map", plain(), "--sysfs", sysfs.path().string()});
  EXPECT_EQ(ended.status, kRefused);
  EXPECT_THAT(ended.out, HasSubstr(": REFUSED: "));
  EXPECT_EQ(std::count(ended.out.begin(), ended.out.end(), '\n'), 1) << ended.out;
}

// Without a KFD process nobody says how GPUs are joined: each file wants the GPU that it had.
TEST_F(ImagesTest, MapFindsTheGpusOfRenderFiles) {
  ASSERT_EQ(images_->dump("render", {"--render-only", "--gem-handles", "1"}), "");
  const std::string directory = images_->directory("render").string();
  const Ended here = sluice({"map", directory}, &images_->machine());
  EXPECT_EQ(here.status, kDone) << here.err;
  EXPECT_EQ(here.out, "every render file has its GPU here\n");

  const host_test::ScratchDirectory sysfs;
  vamdgpu::MachineOptions other = small_machine();
  other.gpu_ids = {11, 12};
  vamdgpu::write_topology(sysfs.path(), vamdgpu::describe(other).tree.topology);
  const Ended there = sluice({"map", directory, "--sysfs", sysfs.path().string()});
  EXPECT_EQ(there.status, kRefused);
  for (const std::string& name : names(directory, std::string(kRenderPrefix)))
    EXPECT_THAT(there.out, HasSubstr("REFUSED: " + name + " belongs to GPU 0x"));
  const json object = object_of(sluice({"map", "--json", directory, "--sysfs", sysfs.path().string()}));
  EXPECT_EQ(object["result"], "refused");
  EXPECT_EQ(object["render_files"].size(), 2U);
}

TEST_F(ImagesTest, MapWarnsOfSettingsThatAreNone) {
  const Ended ended = sluice({"map", plain()}, &images_->machine(), {"KFD_VRAM_SIZE_CHECK=perhaps"});
  EXPECT_EQ(ended.status, kDone);
  EXPECT_THAT(ended.err, AllOf(StartsWith("sluice map: "), HasSubstr("KFD_VRAM_SIZE_CHECK")));
}

TEST_F(ImagesTest, MapWithoutATopologySaysWhatToDo) {
  if (::access("/sys/class/kfd", F_OK) != 0) {
    const Ended ended = sluice({"map", plain()});
    EXPECT_EQ(ended.status, kFailed);
    EXPECT_THAT(ended.err,
                HasSubstr("this machine has no KFD: load the amdgpu driver, or name with --sysfs"));
  }
  const host_test::ScratchDirectory nothing;
  const Ended ended = sluice({"map", plain(), "--sysfs", nothing.path().string()});
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_THAT(ended.err, HasSubstr("cp -rL"));
}

TEST_F(ImagesTest, DiffOfACopyIsEqual) {
  for (const std::string& directory : {plain(), shared()}) {
    const json object = object_of(sluice({"diff", "--json", directory, directory}));
    EXPECT_EQ(object["result"], "equal") << object;
    EXPECT_GT(object["equal"], 0);
    for (const json& set : object["sets"]) EXPECT_EQ(set["by_sums"], true);
  }
  EXPECT_THAT(sluice({"diff", plain(), plain()}).out, HasSubstr("it saves 100 %"));
}

// By sums and by contents the same byte is found in the same BO.
TEST_F(ImagesTest, DiffFindsWhatChanged) {
  const std::string directory = damaged_copy();
  remove_sums(directory);
  const std::string file = names(directory, "amdgpu-pages-")[0];
  test::flip_byte(directory + "/" + file, 2 * kMiB + 17);
  const Ended ended = sluice({"diff", "--json", plain(), directory});
  EXPECT_EQ(ended.status, kDone);
  const json object = object_of(ended);
  EXPECT_EQ(object["result"], "changed");
  EXPECT_GT(object["changed"], 0);
  EXPECT_LE(object["changed"], kMiB);
  std::size_t changed_bos = 0;
  for (const json& set : object["sets"]) {
    EXPECT_EQ(set["by_sums"], false);
    for (const json& bo : set["bos"]) changed_bos += bo["changed"] > 0 ? 1 : 0;
  }
  EXPECT_EQ(changed_bos, 1U);
  EXPECT_EQ(object["bytes"], total_size(plain(), "amdgpu-pages-") - 8 * object["sets"].size());
}

// Of other processes nothing is the same: all is new, and what the older one had is gone.
TEST_F(ImagesTest, DiffOfOtherProcessesIsAllNew) {
  const json object = object_of(sluice({"diff", "--json", plain(), shared()}));
  EXPECT_EQ(object["equal"], 0);
  std::uint64_t gone = 0;
  for (const json& set : object["sets"]) gone += set["gone_bytes"].get<std::uint64_t>();
  EXPECT_EQ(gone, total_size(plain(), "amdgpu-pages-") - 16);
}

TEST_F(ImagesTest, DiffAsTextSaysHowItWasComparedAndWhatIsGone) {
  EXPECT_THAT(sluice({"diff", plain(), plain()}).out, HasSubstr(" sums\n"));
  const std::string directory = damaged_copy();
  remove_sums(directory);
  change_kfd_image(directory, [](kfd::KfdImage& image) {
    vram_bo(image).addr += std::uint64_t{1} << 40;  // freed, and another in its place
  });
  const Ended ended = sluice({"diff", "--bos", plain(), directory});
  EXPECT_EQ(ended.status, kDone) << ended.err;
  EXPECT_THAT(ended.out, AllOf(HasSubstr(" contents\n"), HasSubstr("\nBOs\n"), HasSubstr("  new\n")));
  const json object = object_of(sluice({"diff", "--json", plain(), directory}));
  std::size_t bos = 0;
  for (const json& set : object["sets"]) {
    bos += set["bos"].size();
    if (set["gone_bytes"] == 0) continue;
    EXPECT_THAT(ended.out, HasSubstr("  " + cli::bytes_text(set["gone_bytes"]) + "  contents\n"));
  }
  const std::string list = ended.out.substr(ended.out.find("\nBOs\n"));
  EXPECT_EQ(std::count(list.begin(), list.end(), '\n'), static_cast<std::ptrdiff_t>(bos) + 5);
  // Nothing is left of the older one's in another's images.
  EXPECT_THAT(sluice({"diff", plain(), shared()}).out, HasSubstr(" MiB\n"));
}

TEST_F(ImagesTest, DiffWithoutContentsSavesNothing) {
  ASSERT_EQ(images_->dump("empty", {"--render-only"}), "");
  const std::string directory = images_->directory("empty").string();
  const Ended ended = sluice({"diff", directory, directory});
  EXPECT_EQ(ended.status, kDone) << ended.err;
  EXPECT_THAT(ended.out, EndsWith("\nA dump of what changed would write 0 B instead of 0 B\n"));
  EXPECT_THAT(sluice({"show", "--bos", directory}).out, Not(HasSubstr("\nBOs\n")));
}

TEST_F(ImagesTest, DiffNeedsTwoCheckpointsThatCanBeRead) {
  const host_test::ScratchDirectory empty;
  const std::string nothing = empty.path().string();
  EXPECT_EQ(sluice({"diff", nothing, plain()}).status, kRefused);
  EXPECT_EQ(sluice({"diff", plain(), nothing}).status, kRefused);
  const std::string directory = damaged_copy();
  const std::string name = names(directory, std::string(kKfdPrefix)).at(0);
  std::filesystem::resize_file(directory + "/" + name, 20);
  for (const Strings& command : {Strings{"diff", plain(), directory}, Strings{"diff", directory, plain()}}) {
    const Ended ended = sluice(command);
    EXPECT_EQ(ended.status, kFailed);
    EXPECT_THAT(ended.err, AllOf(HasSubstr(directory + ": "), HasSubstr(name),
                                 HasSubstr("sluice verify tells what else")));
  }
}

TEST_F(ImagesTest, DiffOfDamagedImagesFails) {
  const std::string directory = damaged_copy();
  remove_sums(directory);
  std::filesystem::resize_file(directory + "/" + names(directory, "amdgpu-pages-")[0], 100);
  const Ended ended = sluice({"diff", plain(), directory});
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_THAT(ended.err, HasSubstr("has 100 bytes"));
  EXPECT_EQ(sluice({"diff", plain()}).status, kUsage);
}

TEST_F(ImagesTest, DirectoriesWithoutImagesAreRefused) {
  const host_test::ScratchDirectory empty;
  for (const char* command : {"show", "verify", "map"}) {
    const Ended ended = sluice({command, empty.path().string()});
    EXPECT_EQ(ended.status, kRefused) << command;
    EXPECT_THAT(ended.err, HasSubstr("has no images of GPU processes")) << command;
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
  EXPECT_EQ(ended.err, "sluice: std::bad_alloc\n");
}

}  // namespace
}  // namespace sluice::cli_test
