// SPDX-License-Identifier: MIT
// `sluice map`: which GPUs of a machine would stand for those of the images, or why none do.
#include "images_test.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "base/units.h"
#include "images/files/files.h"
#include "images/metadata.h"
#include "lookalike/harness.h"
#include "sysfs_tree.h"

namespace sluice::cli_test {
namespace {

using ::testing::Matcher;
using ::testing::UnorderedElementsAreArray;

// What was said, before long lines were broken.
std::string unbroken(std::string text) {
  for (std::size_t at = 0; (at = text.find("\n    ")) != std::string::npos;) text.replace(at, 5, " ");
  return text;
}

TEST_F(ImagesTest, MapFindsTheMachineItself) {
  const Ended ended = sluice({"map", plain()}, &images_->machine());
  EXPECT_EQ(ended.status, kDone) << ended.out << ended.err;
  EXPECT_THAT(ended.out, StartsWith(names(plain(), std::string(kKfdPrefix)).at(0) + ": "));
  const json object = object_of(sluice({"map", "--json", plain()}, &images_->machine()));
  EXPECT_EQ(object["result"], "fits");
  EXPECT_EQ(object["mappings"][0]["gpus"].size(), 2U);
  EXPECT_EQ(object["mappings"][0]["identity"], true);
}

// What nobody has there, what the images need, and what is left; of a copied topology nobody knows.
TEST_F(ImagesTest, MapShowsRoomAndNeedOfEachGpu) {
  const json object = object_of(sluice({"map", "--json", plain()}, &images_->machine()));
  ASSERT_EQ(object["local"].size(), 2U);
  for (const json& gpu : object["local"]) {
    EXPECT_EQ(gpu["vram_bytes"], small_machine().vram_bytes);
    EXPECT_EQ(gpu["room_bytes"], small_machine().vram_bytes);
    EXPECT_EQ(gpu["pci"].get<std::string>().size(), std::string("0000:c1:00.0").size());
  }
  for (const json& pair : object["mappings"][0]["gpus"]) {
    EXPECT_GE(pair["need_bytes"], 4 * kMiB);
    EXPECT_LT(pair["need_bytes"], pair["room_bytes"]);
  }
  EXPECT_THAT(sluice({"map", plain()}, &images_->machine()).out,
              AllOf(HasSubstr("VRAM needed"), HasSubstr("24.0 MiB of 24.0 MiB")));

  const lookalike::ScratchDirectory sysfs;
  vamdgpu::write_topology(sysfs.path(), vamdgpu::describe(small_machine()).tree.topology);
  const json copied = object_of(sluice({"map", "--json", plain(), "--sysfs", sysfs.path().string()}));
  EXPECT_EQ(copied["result"], "fits");
  EXPECT_TRUE(copied["local"][0]["room_bytes"].is_null());
  EXPECT_THAT(sluice({"map", plain(), "--sysfs", sysfs.path().string()}).out, HasSubstr("not known"));
}

// As the restore does.
TEST_F(ImagesTest, MapRefusesImagesOfAnotherDriver) {
  vamdgpu::MachineOptions options = small_machine();
  options.out_of_tree = "6.14.14";
  const vamdgpu::Machine amds = vamdgpu::Machine::create(options);
  const Ended ended = sluice({"map", plain()}, &amds);
  EXPECT_EQ(ended.status, kRefused);
  EXPECT_THAT(unbroken(ended.out),
              AllOf(HasSubstr("keeps 272 bytes per BO where this one keeps 296"), HasSubstr("[SL-R05]")));
  const json object = object_of(sluice({"map", "--json", plain()}, &amds));
  EXPECT_EQ(object["result"], "refused");
  EXPECT_EQ(object["bo_record_bytes"], 296);
  EXPECT_EQ(object["foreign_images"].size(), 1U);
  const json same = object_of(sluice({"map", "--json", plain()}, &images_->machine()));
  EXPECT_EQ(same["bo_record_bytes"], 272);
  EXPECT_TRUE(same["foreign_images"].empty());
}

// Nobody knows the records, and a GPU more would have to be written into them.
TEST_F(ImagesTest, MapRefusesMoreGpusForRecordsThatNobodyKnows) {
  const std::string directory = images_->copy("plain", "nobodys").string();
  change_kfd_image(directory, [](KfdImage& image) {
    image.priv_data.push_back(0);
    image.bo_record_bytes = 0;
  });
  vamdgpu::MachineOptions more = small_machine();
  more.gpus = 3;
  const lookalike::ScratchDirectory two, three;
  vamdgpu::write_topology(two.path(), vamdgpu::describe(small_machine()).tree.topology);
  vamdgpu::write_topology(three.path(), vamdgpu::describe(more).tree.topology);
  EXPECT_EQ(sluice({"map", directory, "--sysfs", two.path().string()}).status, kDone);
  const Ended ended = sluice({"map", directory, "--sysfs", three.path().string()});
  EXPECT_EQ(ended.status, kRefused);
  EXPECT_THAT(unbroken(ended.out), HasSubstr("[SL-G45]"));
}

TEST_F(ImagesTest, MapTriesAMapAndRefusesOneThatNamesNoGpu) {
  const json as_it_is = object_of(sluice({"map", "--json", plain()}, &images_->machine()));
  const auto id = [&](std::size_t gpu) { return as_it_is["local"][gpu]["gpu_id"].get<std::uint32_t>(); };
  const std::string exchanged =
      std::to_string(id(0)) + "=" + std::to_string(id(1)) + "," + std::to_string(id(1)) + "=renderD128";
  const auto expect_exchanged = [&](const Ended& ended) {
    const json object = object_of(ended);
    EXPECT_EQ(object["mappings"][0]["identity"], false);
    for (const json& pair : object["mappings"][0]["gpus"])
      EXPECT_EQ(pair["local_gpu_id"], pair["gpu_id"] == id(0) ? id(1) : id(0));
  };
  expect_exchanged(sluice({"map", "--json", plain(), "--gpu-map", exchanged}, &images_->machine()));
  expect_exchanged(sluice({"map", "--json", plain()}, &images_->machine(), {"SLUICE_GPU_MAP=" + exchanged}));
  // The option overrules the setting; an empty one is none.
  const json none = object_of(sluice({"map", "--json", plain(), "--gpu-map", ""}, &images_->machine(),
                                     {"SLUICE_GPU_MAP=" + exchanged}));
  EXPECT_EQ(none["mappings"][0]["identity"], true);

  struct Case {
    const char* map;
    const char* id;
  };
  for (const Case& bad :
       {Case{"nonsense", "[SL-G25]"}, Case{"0x1=renderD128", "[SL-G27]"}, Case{"renderD128=0x1", "[SL-G29]"},
        Case{"renderD128=renderD128,renderD129=128", "[SL-G32]"}}) {
    const Ended ended = sluice({"map", plain(), "--gpu-map", bad.map}, &images_->machine());
    EXPECT_EQ(ended.status, kRefused) << bad.map;
    EXPECT_THAT(ended.err, HasSubstr(bad.id)) << bad.map;
  }
}

TEST_F(ImagesTest, MapNamesThePropertyAndTheSwitch) {
  const lookalike::ScratchDirectory sysfs;
  vamdgpu::MachineOptions other = small_machine();
  other.vram_bytes = 16 * kMiB;
  vamdgpu::write_topology(sysfs.path(), vamdgpu::describe(other).tree.topology);
  const Strings command = {"map", plain(), "--sysfs", sysfs.path().string()};
  const Ended ended = sluice(command);
  EXPECT_EQ(ended.status, kRefused) << ended.out << ended.err;
  const std::string said = unbroken(ended.out);
  EXPECT_THAT(said, AllOf(HasSubstr("vram_size 25165824"), HasSubstr("KFD_VRAM_SIZE_CHECK=0")));
  // Told once for all GPUs.
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 3) << ended.out;
  Strings as_json = command;
  as_json.emplace_back("--json");
  const json object = object_of(sluice(as_json));
  EXPECT_EQ(object["result"], "refused");
  EXPECT_EQ(object["message"],
            "the image's GPUs cannot be matched to local ones; see the table above [SL-R14]");
  EXPECT_EQ(object["remedy"], "see the differences below");
  EXPECT_THAT(object["mappings"][0]["message"].get<std::string>(), HasSubstr("[SL-G36]"));
  EXPECT_EQ(object["mappings"][0]["remedy"], object["remedy"]);
  EXPECT_EQ(object["mappings"][0]["candidates"].size(), 4U);
  const json& mismatch = object["mappings"][0]["candidates"][0]["mismatches"][0];
  EXPECT_EQ(mismatch["property"], "vram_size");
  EXPECT_EQ(mismatch["image"], std::to_string(small_machine().vram_bytes));
  EXPECT_EQ(mismatch["here"], std::to_string(other.vram_bytes));
  EXPECT_EQ(mismatch["switch"], "KFD_VRAM_SIZE_CHECK");
  EXPECT_EQ(sluice(command, nullptr, {"KFD_VRAM_SIZE_CHECK=0"}).status, kDone);
}

TEST_F(ImagesTest, MapSaysWhatFitsByItselfAndWhatNoSwitchAllows) {
  const lookalike::ScratchDirectory sysfs;
  // The second GPU here is smaller: each of the image fits the first, and both need one of their own.
  vamdgpu::Topology topology = vamdgpu::describe(small_machine()).tree.topology;
  topology.nodes.back().memory_banks.at(0).size_bytes = 16 * kMiB;
  vamdgpu::write_topology(sysfs.path(), topology);
  const Ended ended = sluice({"map", "--json", plain(), "--sysfs", sysfs.path().string()});
  EXPECT_EQ(ended.status, kRefused);
  std::set<json> fit;  // GPUs of the image that fit some GPU here
  const json refused = object_of(ended);
  EXPECT_EQ(refused["mappings"][0]["result"], "refused");
  for (const json& pair : refused["mappings"][0]["candidates"])
    if (pair["mismatches"].empty()) fit.insert(pair["gpu_id"]);
  EXPECT_EQ(fit.size(), 2U) << refused;
  const Ended text = sluice({"map", plain(), "--sysfs", sysfs.path().string()});
  EXPECT_EQ(text.status, kRefused);
  EXPECT_THAT(unbroken(text.out), HasSubstr("vram_size 25165824"));

  const lookalike::ScratchDirectory others;
  vamdgpu::MachineOptions other = small_machine();
  other.preset = vamdgpu::Preset::Mi300x;
  vamdgpu::write_topology(others.path(), vamdgpu::describe(other).tree.topology);
  const json never = object_of(sluice({"map", "--json", plain(), "--sysfs", others.path().string()}));
  const json& mismatches = never["mappings"][0]["candidates"][0]["mismatches"];
  EXPECT_GT(mismatches.size(), 1U);
  const auto device = std::find_if(mismatches.begin(), mismatches.end(),
                                   [](const json& each) { return each["property"] == "device_id"; });
  ASSERT_NE(device, mismatches.end()) << mismatches;
  EXPECT_EQ((*device)["image"], "29711");
  EXPECT_TRUE((*device)["switch"].is_null());
  EXPECT_THAT(unbroken(sluice({"map", plain(), "--sysfs", others.path().string()}).out),
              HasSubstr("device_id 29711"));
}

TEST_F(ImagesTest, MapWithTooFewGpusSaysSoInASentence) {
  const lookalike::ScratchDirectory sysfs;
  vamdgpu::MachineOptions smaller = small_machine();
  smaller.gpus = 1;
  vamdgpu::write_topology(sysfs.path(), vamdgpu::describe(smaller).tree.topology);
  const Ended ended = sluice({"map", plain(), "--sysfs", sysfs.path().string()});
  EXPECT_EQ(ended.status, kRefused);
  const std::string said = unbroken(ended.out);
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 2) << ended.out;
  EXPECT_THAT(ended.out, AllOf(HasSubstr("[SL-G40]"), HasSubstr("[SL-R14]")));
}

// Without a KFD process nobody says how GPUs are joined: each file wants the GPU that it had.
TEST_F(ImagesTest, MapFindsTheGpusOfRenderFiles) {
  ASSERT_EQ(images_->dump("render", {"--render-only", "--gem-handles", "1"}), "");
  const std::string directory = images_->directory("render").string();
  const Ended here = sluice({"map", "--json", directory}, &images_->machine());
  EXPECT_EQ(here.status, kDone) << here.err;
  EXPECT_EQ(object_of(here)["result"], "fits");
  EXPECT_EQ(object_of(here)["render_files"], json::array());
  EXPECT_EQ(sluice({"map", directory}, &images_->machine()).status, kDone);

  const lookalike::ScratchDirectory sysfs;
  vamdgpu::MachineOptions other = small_machine();
  other.gpu_ids = {11, 12};
  vamdgpu::write_topology(sysfs.path(), vamdgpu::describe(other).tree.topology);
  const Ended there = sluice({"map", directory, "--sysfs", sysfs.path().string()});
  EXPECT_EQ(there.status, kRefused);
  const json object = object_of(sluice({"map", "--json", directory, "--sysfs", sysfs.path().string()}));
  EXPECT_EQ(object["result"], "refused");
  std::vector<Matcher<std::string>> files;
  for (const std::string& name : names(directory, std::string(kRenderPrefix))) {
    EXPECT_THAT(unbroken(there.out), HasSubstr("REFUSED: " + name + ": "));
    files.push_back(StartsWith(name + ": "));
  }
  EXPECT_EQ(files.size(), 2U);
  EXPECT_THAT(object["message"].get<std::string>(), HasSubstr("[SL-R16]"));
  EXPECT_EQ(object["remedy"], "restore where that GPU is");
  EXPECT_THAT(object["render_files"].get<Strings>(), UnorderedElementsAreArray(files));
}

// As if another process of the same dump had been there, which has no memory of its own.
void add_process(const std::string& directory, const std::function<void(KfdImage&)>& change) {
  const UniqueFd dir(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::string first = list_kfd_images(dir.get()).value().at(0);
  KfdImage image = unpack_kfd_image(read_image(dir.get(), first).value(), first, {}).value();
  const int id = *id_of_image(first) + 900;
  image.id = static_cast<std::uint32_t>(id);
  image.pid += 1;
  image.bos.clear();
  image.num_objects = 0;
  change(image);
  image.priv_data.assign(8 + 8 * image.topology.gpu_count() + image.bo_record_bytes * image.bos.size(), 0);
  ASSERT_TRUE(write_image(dir.get(), kfd_image_name(id), pack_kfd_image(image, {}), false).ok());
}

// The one that sees the most decides.
TEST_F(ImagesTest, MapOfProcessesThatSeeDifferentGpusAgrees) {
  const std::string directory = damaged_copy();
  add_process(directory, [](KfdImage& image) {
    image.topology.nodes.pop_back();
    image.topology.listing.clear();
  });
  const json object = object_of(sluice({"map", "--json", directory}, &images_->machine()));
  EXPECT_EQ(object["result"], "fits");
  ASSERT_EQ(object["mappings"].size(), 2U) << object;
  const json& all = object["mappings"][0]["gpus"];
  const json& one = object["mappings"][1]["gpus"];
  ASSERT_EQ(all.size(), 2U);
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(one[0]["local_gpu_id"], all[0]["local_gpu_id"]);
}

void add_shared_bo(KfdImage& image) {
  BoEntry bo{};
  bo.gpu_id = image.topology.nodes.back().gpu_id;
  bo.bytes = 4096;
  bo.alloc_flags = kfd::kAllocVram;
  bo.shared = 7;
  image.bos.push_back(bo);
}

// One that shares no memory may have GPUs of its own; here none fits, and the others' do all the same.
TEST_F(ImagesTest, MapOfProcessesOfWhichOneFitsNoGpuIsRefused) {
  const lookalike::ScratchDirectory sysfs;
  vamdgpu::MachineOptions smaller = small_machine();
  smaller.vram_bytes = 16 * kMiB;
  vamdgpu::write_topology(sysfs.path(), vamdgpu::describe(smaller).tree.topology);
  for (const bool shares : {false, true}) {
    const std::string directory = images_->copy("plain", shares ? "unfit-shares" : "unfit").string();
    add_process(directory, [&](KfdImage& image) {
      image.topology.nodes.back().vram_size *= 2;
      if (shares) add_shared_bo(image);
    });
    const json object = object_of(sluice({"map", "--json", directory}, &images_->machine()));
    EXPECT_EQ(object["result"], "refused");
    ASSERT_EQ(object["mappings"].size(), 2U) << object;
    EXPECT_EQ(object["mappings"][0]["result"], "fits");
    EXPECT_EQ(object["mappings"][1]["result"], "refused");
    const json there = object_of(sluice({"map", "--json", directory, "--sysfs", sysfs.path().string()}));
    for (const json& mapping : there["mappings"]) EXPECT_EQ(mapping["result"], "refused");
  }
}

TEST_F(ImagesTest, MapOfProcessesThatShareMemoryIsOne) {
  const std::string directory = damaged_copy();
  change_kfd_image(directory, add_shared_bo);
  add_process(directory, [](KfdImage& image) {
    add_shared_bo(image);
    image.bos.back().imports = true;
  });
  const json object = object_of(sluice({"map", "--json", directory}, &images_->machine()));
  EXPECT_EQ(object["result"], "fits");
  ASSERT_EQ(object["mappings"].size(), 1U);
  EXPECT_EQ(object["mappings"][0]["images"].size(), 2U);
}

TEST_F(ImagesTest, MapOfAProcessWithoutMemoryNeedsNone) {
  const std::string directory = damaged_copy();
  remove_files(directory, "amdgpu-pages-");
  remove_files(directory, "amdgpu-sums-");
  change_kfd_image(directory, [](KfdImage& image) { image.bos.clear(); });
  const json object = object_of(sluice({"map", "--json", directory}, &images_->machine()));
  EXPECT_EQ(object["result"], "fits");
  for (const json& pair : object["mappings"][0]["gpus"]) EXPECT_EQ(pair["need_bytes"], 0);
}

// It would be refused where it is tried: here it is told.
TEST_F(ImagesTest, MapTellsWhatIsMissingWhereVramIsFull) {
  const vamdgpu::Machine machine = vamdgpu::Machine::create(small_machine());
  const lookalike::Program other = start_subject(machine, {"--vram", "22M", "--gtt", "1M", "--no-queues"});
  const Ended ended = sluice({"map", "--json", plain()}, &machine);
  EXPECT_EQ(ended.status, kDone) << ended.err;
  EXPECT_EQ(sluice({"map", plain()}, &machine).status, kDone);
  const json object = object_of(ended);
  ASSERT_EQ(object["mappings"][0]["gpus"].size(), 2U) << object;
  for (const json& pair : object["mappings"][0]["gpus"]) EXPECT_LT(pair["room_bytes"], pair["need_bytes"]);
}

// Of a part of a card sysfs tells the card's use, and the KFD its own.
TEST_F(ImagesTest, MapAsksTheKfdForTheRoomOfAPartition) {
  const vamdgpu::Machine machine = vamdgpu::Machine::create(small_machine());
  const json whole = object_of(sluice({"map", "--json", plain()}, &machine));
  std::ofstream(machine.directory() / "sysfs/sys/class/drm/renderD128/device/current_compute_partition")
      << "CPX\n";
  const json object = object_of(sluice({"map", "--json", plain()}, &machine));
  ASSERT_EQ(object["local"].size(), 2U);
  EXPECT_EQ(object["local"], whole["local"]);
}

// Two pairs of GPUs, each joined as the images' are.
vamdgpu::Topology two_pairs() {
  vamdgpu::MachineOptions larger = small_machine();
  larger.gpus = 4;
  vamdgpu::Topology topology = vamdgpu::describe(larger).tree.topology;
  constexpr std::uint32_t kFirstGpu = 1;
  for (std::uint32_t i = kFirstGpu; i < topology.nodes.size(); ++i) {
    vamdgpu::TopologyNode& gpu = topology.nodes[i];
    std::erase_if(gpu.io_links, [&](const vamdgpu::Link& link) {
      return link.node_to >= kFirstGpu && (link.node_to - kFirstGpu) / 2 != (i - kFirstGpu) / 2;
    });
    for (vamdgpu::Property& property : gpu.properties) {
      if (property.name == "io_links_count") property.value = gpu.io_links.size();
    }
  }
  return topology;
}

TEST_F(ImagesTest, MapListsWhichGpusAreLeft) {
  const lookalike::ScratchDirectory sysfs;
  vamdgpu::Topology topology = two_pairs();
  vamdgpu::write_topology(sysfs.path(), topology);
  const Ended ended = sluice({"map", plain(), "--sysfs", sysfs.path().string()});
  EXPECT_EQ(ended.status, kDone) << ended.out << ended.err;
  EXPECT_THAT(ended.out, AllOf(HasSubstr("not chosen"), HasSubstr("renderD130"), HasSubstr("renderD131")));

  // One of each pair has too little memory: the reason names these.
  const lookalike::ScratchDirectory smaller;
  for (const std::size_t node : {2U, 4U}) topology.nodes.at(node).memory_banks.at(0).size_bytes = 16 * kMiB;
  vamdgpu::write_topology(smaller.path(), topology);
  const Ended refused = sluice({"map", plain(), "--sysfs", smaller.path().string()});
  EXPECT_EQ(refused.status, kRefused) << refused.out;
  EXPECT_THAT(
      unbroken(refused.out),
      ::testing::ContainsRegex("on local GPU 0x[0-9a-f]+, 0x[0-9a-f]+: vram_size 25165824 in the image"));
}

// Where GPUs stand in, where several differ in several properties, and of many processes.
TEST_F(ImagesTest, NoLineOfMapIsLongerThanAHundredColumns) {
  const std::string many = images_->copy("plain", "many").string();
  const UniqueFd dir(::open(many.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::string first = list_kfd_images(dir.get()).value().at(0);
  for (int id = 900; id < 908; ++id) {
    KfdImage image = unpack_kfd_image(read_image(dir.get(), first).value(), first, {}).value();
    image.id = static_cast<std::uint32_t>(id);
    image.pid += static_cast<std::uint32_t>(id);
    image.bos.clear();
    ASSERT_TRUE(write_image(dir.get(), kfd_image_name(id), pack_kfd_image(image, {}), false).ok());
  }
  const lookalike::ScratchDirectory twice, other;
  vamdgpu::write_topology(twice.path(), two_pairs());
  vamdgpu::MachineOptions mi300x = small_machine();
  mi300x.preset = vamdgpu::Preset::Mi300x;
  mi300x.gpus = 4;
  vamdgpu::write_topology(other.path(), vamdgpu::describe(mi300x).tree.topology);
  vamdgpu::MachineOptions smaller = small_machine();
  smaller.vram_bytes = 22 * kMiB;
  const vamdgpu::Machine full = vamdgpu::Machine::create(smaller);
  for (const std::string& images : {plain(), many}) {
    std::istringstream out(sluice({"map", images}, &images_->machine()).out +
                           sluice({"map", images}, &full).out +
                           sluice({"map", images}, &full, {"KFD_VRAM_SIZE_CHECK=0"}).out +
                           sluice({"map", images, "--sysfs", twice.path().string()}).out +
                           sluice({"map", images, "--sysfs", other.path().string()}).out);
    for (std::string line; std::getline(out, line);) EXPECT_LE(line.size(), 100U) << line;
  }
}

TEST_F(ImagesTest, MapWarnsOfSettingsThatAreNone) {
  const Ended ended = sluice({"map", plain()}, &images_->machine(), {"KFD_VRAM_SIZE_CHECK=perhaps"});
  EXPECT_EQ(ended.status, kDone);
  EXPECT_THAT(ended.err,
              AllOf(StartsWith("sluice map: "), HasSubstr("KFD_VRAM_SIZE_CHECK"), HasSubstr("[SL-S01]")));
}

TEST_F(ImagesTest, MapWithoutATopologySaysWhatToDo) {
  if (::access("/sys/class/kfd", F_OK) != 0) {
    const Ended ended = sluice({"map", plain()});
    EXPECT_EQ(ended.status, kFailed);
    EXPECT_THAT(ended.err,
                HasSubstr("this machine has no KFD: load the amdgpu driver, or name with --sysfs"));
  }
  const lookalike::ScratchDirectory nothing;
  const Ended ended = sluice({"map", plain(), "--sysfs", nothing.path().string()});
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_THAT(ended.err, HasSubstr("cp -rL"));
}

}  // namespace
}  // namespace sluice::cli_test
