// SPDX-License-Identifier: MIT
// `sluice show`: what images tell of themselves, intact, strange and hostile.
#include "images_test.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/printable.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "cli/text.h"
#include "images/files/files.h"
#include "images/metadata.h"
#include "images/sums.h"
#include "kfd/uapi.h"
#include "pipeline/checksum/checksum.h"

namespace sluice::cli_test {
namespace {

using ::testing::Contains;

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
    EXPECT_THAT(line, AllOf(StartsWith("  " + bo["image"].get<std::string>()),
                            HasSubstr(" " + bo["bo"].dump() + "  " + bo["kind"].get<std::string>() + " "),
                            HasSubstr(" " + hex(bo["address"].get<std::uint64_t>()) + " "),
                            HasSubstr(" " + cli::bytes_text(bo["bytes"].get<std::uint64_t>()) + " ")));
    if (bo["handle"].is_number()) {
      EXPECT_THAT(line, HasSubstr(" " + bo["handle"].dump()));
    }
    if (bo["shared"] != 0) {
      EXPECT_THAT(line, EndsWith((bo["imported"] ? " from " : " ") + bo["shared"].dump()));
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
  const auto as_upstream = [](KfdImage& image) {
    image.sluice_version.clear();
    image.kernel_release.clear();
    image.kfd_minor_version = 0;
    image.bo_record_bytes = 0;
    image.priv_data.clear();
    image.dump_id.reset();
    image.id.reset();
    for (kfd::Node& node : image.topology.nodes) {
      node.gfx_target_version = 0;
      node.location_id = 0;
    }
  };
  change_image(directory, kKfdPrefix, unpack_kfd_image, as_upstream, encode_kfd_image);
  for (const std::string& name : names(directory, std::string(kRenderPrefix))) {
    change_image(
        directory, name, unpack_render_image,
        [](RenderImage& image) {
          image.kfd_acquired.reset();
          image.pid.reset();
          image.dump_id.reset();
        },
        [](const RenderImage& image) { return pack_render_image(image, {}); });
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

// A dump with a parent: what it lacks is there or not.
class ShowParentTest : public ImagesTest {
 protected:
  // A pre-dump and the dump that follows it, side by side.
  static void SetUpTestSuite() {
    images_ = new MadeImages;
    lookalike::Program subject =
        start_subject(images_->machine(), {"--vram", "4M", "--gtt", "1M", "--zero", "20", "--no-queues"});
    const std::string pid = std::to_string(subject.pid());
    ASSERT_EQ(sluice({"predump", pid, "--images-dir", before()}, &images_->machine()).status, kDone);
    ASSERT_EQ(images_->run_host("dump", {"dump", "--pid", pid, "--prev-images-dir", "../before"}), "");
    (void)subject.wait();
  }
  static std::string dump() { return images_->directory("dump").string(); }
  static std::string before() { return images_->directory("before").string(); }
  static Ended show() { return sluice({"show", "--json", dump()}); }
};

TEST_F(ShowParentTest, WhatAParentHasIsTold) {
  const json shown = object_of(show());
  EXPECT_EQ(shown["faults"], json::array());
  ASSERT_EQ(shown["files"].size(), 2U);
  for (const json& file : shown["files"]) {
    EXPECT_TRUE(file["has_parent"].get<bool>());
    EXPECT_THAT(file["file"].get<std::string>(), StartsWith("amdgpu-delta-"));
  }
  EXPECT_THAT(sluice({"show", dump()}).out, HasSubstr("yes, and a parent"));
}

TEST_F(ShowParentTest, AnArchiveLeavesTheParentOut) {
  const std::string archive = images_->directory("dump.tar").string();
  ASSERT_EQ(std::system(("tar -C " + dump() + " -cf " + archive + " .").c_str()), 0);
  const Ended ended = sluice({"show", "--json", archive});
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_THAT(object_of(ended)["faults"].get<Strings>(), ElementsAre(HasSubstr("[SL-T35]")));
}

// Two GPUs have contents in it; it is told once.
TEST_F(ShowParentTest, AParentThatIsLostOrHasLostAFileIsAFault) {
  for (const std::string& lost : {before(), before() + "/" + names(before(), "amdgpu-predump-sums").at(0),
                                  before() + "/" + names(before(), "amdgpu-predump-pages").at(0)}) {
    std::filesystem::rename(lost, lost + "-moved");
    const Ended ended = show();
    std::filesystem::rename(lost + "-moved", lost);
    EXPECT_EQ(ended.status, kFailed) << lost;
    const json shown = object_of(ended);
    EXPECT_EQ(shown["faults"].size(), 1U) << lost << shown["faults"];
  }
  EXPECT_EQ(show().status, kDone);
}

// As of the dump's own file, and as `sluice verify` tells it.
TEST_F(ShowParentTest, APagesFileOfAParentThatWasCutIsAFault) {
  const std::string name = names(before(), "amdgpu-predump-pages").at(0);
  const std::string file = before() + "/" + name;
  std::filesystem::copy_file(file, file + "-whole");
  std::filesystem::resize_file(file, 100'000);
  const Ended ended = show();
  const Ended verified = sluice({"verify", dump()});
  std::filesystem::rename(file + "-whole", file);
  EXPECT_EQ(ended.status, kFailed);
  const json shown = object_of(ended);
  EXPECT_EQ(shown["result"], "damaged");
  EXPECT_THAT(shown["faults"].get<Strings>(),
              ElementsAre(AllOf(StartsWith("parent/" + name + " "), EndsWith(" [SL-I04]"))));
  EXPECT_EQ(verified.status, kFailed);
  EXPECT_THAT(verified.out, HasSubstr(shown["faults"][0].get<std::string>()));
  EXPECT_EQ(show().status, kDone);
}

// As if another dump had been written over it.
TEST_F(ShowParentTest, AParentWithOtherContentsIsAFault) {
  const std::string sums = before() + "/" + names(before(), "amdgpu-predump-sums").at(0);
  const std::string known = before() + "/known";
  std::filesystem::copy_file(sums, known);
  change_image(
      before(), names(before(), "amdgpu-predump-sums").at(0), unpack_sidecar,
      [](Sidecar& sidecar) {
        for (SumTable& table : sidecar.tables) {
          for (Sum128& sum : table.sums) sum.front() ^= 1;
        }
      },
      [](const Sidecar& sidecar) { return pack_sidecar(sidecar, {}); });
  const Ended ended = show();
  std::filesystem::rename(known, sums);
  EXPECT_EQ(ended.status, kFailed);
  const json shown = object_of(ended);
  EXPECT_EQ(shown["result"], "damaged");
  EXPECT_EQ(shown["faults"].size(), 1U) << shown["faults"];
  EXPECT_EQ(show().status, kDone);
}

// A link to a node that this process did not see, and a process that has nothing in its GPUs.
TEST_F(ImagesTest, ShowOfLinksThatLeadNowhereAndOfNoContents) {
  const std::string directory = damaged_copy();
  change_kfd_image(directory, [](KfdImage& image) {
    for (kfd::Node& node : image.topology.nodes) {
      if (node.is_gpu() && !node.links.empty()) node.links.front().node_to = 99;
    }
    image.topology.listing.clear();  // which would have them as they were
  });
  const json shown = object_of(sluice({"show", "--json", directory}));
  const json known = object_of(sluice({"show", "--json", plain()}));
  EXPECT_EQ(shown["gpus"][0]["links"].size() + 1, known["gpus"][0]["links"].size()) << shown["gpus"];

  remove_files(directory, "amdgpu-pages-");
  remove_files(directory, "amdgpu-sums-");
  change_kfd_image(directory, [](KfdImage& image) { image.bos.clear(); });
  const Ended none = sluice({"show", directory});
  EXPECT_EQ(none.status, kDone) << none.err;
  EXPECT_EQ(object_of(sluice({"show", "--json", directory}))["files"], json::array());
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
  const UniqueFd dir(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  KfdImage image = unpack_kfd_image(read_image(dir.get(), first).value(), first, {}).value();
  image.id = static_cast<std::uint32_t>(*id_of_image(second));
  image.pid += 1;
  image.bos.clear();
  ASSERT_TRUE(write_image(dir.get(), second, pack_kfd_image(image, {}), false).ok());
  EXPECT_THAT(sluice({"show", directory}).out, HasSubstr(": 2 processes, 2 GPUs, "));
  const Ended ended = sluice({"map", directory}, &images_->machine());
  EXPECT_EQ(ended.status, kDone) << ended.err;
  EXPECT_THAT(ended.out, StartsWith(first + ", " + second + ": every GPU is the same\n"));
}

// What no kernel of today has is shown, not taken for something else.
TEST_F(ImagesTest, ShowNamesMemoryOfEveryKind) {
  const std::string directory = images_->copy("shared", "kinds").string();
  change_kfd_image(directory, [](KfdImage& image) {
    for (BoEntry& bo : image.bos) bo.alloc_flags &= ~kfd::kAllocDoorbell;
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
  EXPECT_THAT(sluice({"show", directory}).out, HasSubstr("\n     open dma-buf, file "));
  change_kfd_image(directory, [](KfdImage& image) {
    for (BoEntry& bo : image.bos) bo.shared = 0;
  });
  EXPECT_THAT(sluice({"show", directory}).out, HasSubstr(" of no process in these images\n     "));
}

TEST_F(ImagesTest, BosThatNoFileCanHoldAreTold) {
  const std::string directory = damaged_copy();
  change_kfd_image(directory, [](KfdImage& image) { vram_bo(image).bytes = INT64_MAX; });
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

// As in a copy whose holes were filled.
TEST_F(ImagesTest, SumsTellOfZerosToo) {
  const std::string directory = damaged_copy();
  make_sums_of_zeros(directory);
  const json shown = object_of(sluice({"show", "--json", directory}));
  EXPECT_EQ(shown["zero_bytes"], shown["bytes"]);
}

// The directory aside, whose name is the user's.
TEST_F(ImagesTest, NoLineIsLongerThanAHundredColumns) {
  const std::string other = damaged_copy();
  make_sums_of_zeros(other);  // all of it is damaged
  for (const Strings& command :
       {Strings{"show", plain()}, Strings{"show", "--bos", shared()}, Strings{"show", "--stats", plain()},
        Strings{"verify", plain()}, Strings{"verify", other}, Strings{"diff", plain(), other}}) {
    std::istringstream out(sluice(command).out);
    for (std::string line; std::getline(out, line);) {
      const std::size_t name = line.starts_with(command.back()) ? command.back().size() : 0;
      EXPECT_LE(line.size() - name, 100U) << command[0] << ": " << line;
    }
  }
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
    EXPECT_THAT(ended.err, AllOf(HasSubstr("sluice-stats-dump-1.json "), HasSubstr("[SL-T34]"))) << text;
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
  const std::string nothing = "dump-1  0x0000    0    0 B    0 %     0 %     0 %  0.000        buffered\n";
  EXPECT_THAT(ended.out, EndsWith(nothing + nothing));
}

// Root looks at what somebody else has written.
TEST_F(ImagesTest, HostileStatisticsNeitherCommandTheTerminalNorCrash) {
  const std::string directory = damaged_copy();
  std::ofstream(directory + "/sluice-stats-dump-1.json")
      << R"({"gpus": [{"slowest_stage": "\u001b[2J\nmade up", "bytes": 1e300}], "deep": )"
      << std::string(30'000, '[') << std::string(30'000, ']') << "}";
  const Ended ended = sluice({"show", "--stats", directory});
  EXPECT_EQ(ended.status, kDone) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("?[2J?made up"));
  EXPECT_THAT(ended.out, HasSubstr(" 0 B "));
  EXPECT_EQ(sluice({"show", "--stats", "--json", directory}).status, kDone);
}

// A list of empty objects, which take the parser a time that grows by the square: hours, of 16 MiB.
TEST_F(ImagesTest, StatisticsThatAreLongerThanAnyDumpsAreNotParsed) {
  const std::string directory = damaged_copy();
  std::string objects;
  while (objects.size() < 80'000) objects += "{},";
  std::ofstream(directory + "/sluice-stats-dump-1.json") << R"({"gpus": [)" << objects << "{}]}";
  const Ended ended = sluice({"show", "--stats", directory});
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("sluice-stats-dump-1.json "), HasSubstr("[SL-T34]")));
}

// Some terminals obey characters above ASCII.
TEST_F(ImagesTest, HostileStatisticsDoNotCommandTheTerminalThroughJsonEither) {
  const std::string directory = damaged_copy();
  std::ofstream(directory + "/sluice-stats-dump-1.json")
      << R"({"gpus": [{"slowest_stage": "\u001b[2J\u009b2J\u007f"}]})";
  const Ended ended = sluice({"show", "--stats", "--json", directory});
  EXPECT_EQ(ended.status, kDone) << ended.err;
  ASSERT_TRUE(ended.out.ends_with("\n"));
  const std::string line = ended.out.substr(0, ended.out.size() - 1);
  EXPECT_EQ(line, printable(line));
  EXPECT_EQ(json::parse(line).at("/stats/0/statistics/gpus/0/slowest_stage"_json_pointer),
            "\x1b[2J\xc2\x9b"
            "2J\x7f");
}

}  // namespace
}  // namespace sluice::cli_test
