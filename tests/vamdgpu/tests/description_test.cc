// SPDX-License-Identifier: MIT
// The file that vamdgpu-load gives to the kernel module: what a machine's description becomes, and that the
// module's check, built here from the same source, takes it and refuses it when it is damaged. Also the
// options from which both programs make a machine. No kernel involved.
#include "kernel/description.h"

#include <getopt.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "kernel/description_file.h"
#include "machine_options.h"

namespace vamdgpu {
namespace {

MachineOptions two_cpus(unsigned gpus) {
  MachineOptions options;
  options.gpus = gpus;
  options.cpu_nodes = 2;
  return options;
}

// A file in memory, aligned as the module has it.
class File {
 public:
  explicit File(const std::string& bytes) : words_(bytes.size() / 8 + 1), size_(bytes.size()) {
    std::memcpy(words_.data(), bytes.data(), bytes.size());
  }
  char* bytes() { return reinterpret_cast<char*>(words_.data()); }
  std::size_t size() const { return size_; }
  vamdgpu_description* header() { return reinterpret_cast<vamdgpu_description*>(words_.data()); }
  vamdgpu_text* first_text() { return reinterpret_cast<vamdgpu_text*>(header() + 1); }
  const char* wrong() { return vamdgpu_description_wrong(words_.data(), size_); }

 private:
  std::vector<std::uint64_t> words_;
  std::size_t size_;
};

File file_of(const MachineOptions& options) {
  return File(description_bytes(describe(options)));
}

TEST(Description, HoldsTheWholeTopology) {
  const MachineDescription machine = describe(two_cpus(3));
  File file(description_bytes(machine));
  ASSERT_EQ(file.wrong(), nullptr);
  std::map<std::string, std::string> found;
  std::map<std::string, std::uint32_t> guards;
  const vamdgpu_text* text = nullptr;
  while ((text = vamdgpu_text_next(file.header(), text)) != nullptr) {
    found[vamdgpu_text_path(text)] = vamdgpu_text_contents(text);
    guards[vamdgpu_text_path(text)] = text->gpu;
  }
  const std::vector<TopologyText> wanted = topology_texts(machine.tree.topology);
  EXPECT_EQ(found.size(), wanted.size());
  for (const TopologyText& one : wanted) EXPECT_EQ(found[one.path], one.text) << one.path;
  EXPECT_EQ(found["nodes/2/gpu_id"], std::to_string(machine.config.gpus[0].gpu_id) + "\n");
  EXPECT_EQ(guards["nodes/1/properties"], 0u);
  EXPECT_EQ(guards["nodes/2/properties"], 1u);
  EXPECT_EQ(guards["nodes/4/mem_banks/0/properties"], 3u);
  EXPECT_EQ(file.header()->pci[1].bus, machine.tree.gpus[1].bus);
  EXPECT_EQ(file.header()->pci[1].unique_id, machine.tree.gpus[1].unique_id);
}

TEST(Description, BiggestMachineFits) {
  MachineOptions options = two_cpus(16);
  options.preset = Preset::Mi300x;
  options.cpu_nodes = 16;
  EXPECT_EQ(file_of(options).wrong(), nullptr);
}

TEST(Description, DirectoriesComeBeforeWhatLiesInThem) {
  std::map<std::string, bool> seen = {{"", true}};
  for (const TopologyText& text : topology_texts(describe(two_cpus(2)).tree.topology)) {
    std::string path = text.path;
    const bool directory = path.back() == '/';
    if (directory) path.pop_back();
    const std::size_t slash = path.rfind('/');
    EXPECT_TRUE(seen[slash == std::string::npos ? "" : path.substr(0, slash)]) << text.path;
    seen[path] = directory;
  }
}

TEST(Description, CutFileIsRefused) {
  const std::string bytes = description_bytes(describe(two_cpus(1)));
  for (std::size_t size = 0; size < bytes.size(); size += 7) {
    File file(bytes.substr(0, size));
    EXPECT_NE(file.wrong(), nullptr) << size;
    if (size < sizeof(vamdgpu_description)) continue;
    file.header()->bytes = size;  // one that does not even admit it
    EXPECT_NE(file.wrong(), nullptr) << size;
  }
  EXPECT_NE(File(bytes + std::string(8, '\0')).wrong(), nullptr);
}

TEST(Description, HeaderThatLiesIsRefused) {
  const auto refused = [](void (*damage)(vamdgpu_description*)) {
    File file = file_of(two_cpus(2));
    damage(file.header());
    return file.wrong() != nullptr;
  };
  EXPECT_TRUE(refused([](vamdgpu_description* d) { d->magic ^= 1; }));
  EXPECT_TRUE(refused([](vamdgpu_description* d) { d->version += 1; }));
  EXPECT_TRUE(refused([](vamdgpu_description* d) { d->layout += 1; }));
  EXPECT_TRUE(refused([](vamdgpu_description* d) { d->num_texts += 1; }));
  EXPECT_TRUE(refused([](vamdgpu_description* d) { d->num_texts -= 1; }));
  EXPECT_TRUE(refused([](vamdgpu_description* d) { d->num_texts = 0xffffffff; }));
  EXPECT_TRUE(refused([](vamdgpu_description* d) { d->config.num_gpus = 0; }));
  EXPECT_TRUE(refused([](vamdgpu_description* d) { d->config.num_gpus = 1; }));  // texts name the second
  EXPECT_TRUE(refused([](vamdgpu_description* d) { d->config.num_gpus = 17; }));
  EXPECT_TRUE(refused([](vamdgpu_description* d) { d->pci[1].bus = 256; }));
  EXPECT_TRUE(refused([](vamdgpu_description* d) { d->pci[1].bus = d->pci[0].bus; }));
  EXPECT_TRUE(refused([](vamdgpu_description* d) { d->pci[0].vendor_id = 0xffff; }));
  EXPECT_TRUE(refused([](vamdgpu_description* d) { d->pci[0].class_code = 1 << 24; }));
}

TEST(Description, TextThatLiesIsRefused) {
  const auto refused = [](void (*damage)(vamdgpu_text*, char* path)) {
    File file = file_of(two_cpus(2));
    damage(file.first_text(), reinterpret_cast<char*>(file.first_text() + 1));
    return file.wrong() != nullptr;
  };
  EXPECT_TRUE(refused([](vamdgpu_text* text, char*) { text->path_bytes = 0; }));
  EXPECT_TRUE(refused([](vamdgpu_text* text, char*) { text->path_bytes -= 1; }));
  EXPECT_TRUE(refused([](vamdgpu_text* text, char*) { text->path_bytes = 0xffffffff; }));
  EXPECT_TRUE(refused([](vamdgpu_text* text, char*) { text->text_bytes = 0; }));
  EXPECT_TRUE(refused([](vamdgpu_text* text, char*) { text->text_bytes = 0xffffffff; }));
  EXPECT_TRUE(refused([](vamdgpu_text* text, char*) { text->gpu = 3; }));
  EXPECT_TRUE(refused([](vamdgpu_text*, char* path) { path[0] = '/'; }));
  EXPECT_TRUE(refused([](vamdgpu_text*, char* path) { path[0] = '.'; }));
  EXPECT_TRUE(refused([](vamdgpu_text*, char* path) { path[2] = '\0'; }));
  EXPECT_TRUE(refused([](vamdgpu_text*, char* path) { path[1] = path[2] = '/'; }));
}

// Whatever a byte is changed to, the check says something or nothing, and reads nothing outside the file.
TEST(Description, AnyDamagedByteIsSurvived) {
  const std::string bytes = description_bytes(describe(two_cpus(1)));
  for (std::size_t at = 0; at < bytes.size(); at += at < 4096 ? 1 : 61) {
    File file(bytes);
    file.bytes()[at] = static_cast<char>(file.bytes()[at] ^ 0x81);
    if (file.wrong() != nullptr) continue;
    std::uint32_t texts = 0;
    const vamdgpu_text* text = nullptr;
    while ((text = vamdgpu_text_next(file.header(), text)) != nullptr) ++texts;
    EXPECT_EQ(texts, file.header()->num_texts) << at;
  }
}

// ---- options

// The machine that a command line makes; nothing when an option is refused.
std::optional<MachineOptions> parsed(std::vector<std::string> arguments) {
  std::string program = "program";
  std::vector<char*> pointers = {program.data()};
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  MachineOptions machine;
  optind = 0;  // start anew
  const int count = static_cast<int>(pointers.size()) - 1;
  if (parse_options(count, pointers.data(), {}, &machine) != count) return std::nullopt;
  return machine;
}

TEST(MachineOptions, ListsGoToTheGpusInOrder) {
  const auto machine = parsed({"--gpus", "2", "--minors", "140,130", "--gpu-ids=7,9", "--node-order", "1,0"});
  ASSERT_TRUE(machine.has_value());
  const MachineDescription description = describe(*machine);
  EXPECT_EQ(description.config.gpus[0].render_minor, 140u);
  EXPECT_EQ(description.config.gpus[1].render_minor, 130u);
  EXPECT_EQ(description.config.gpus[0].gpu_id, 7u);
  EXPECT_EQ(description.tree.topology.nodes[1].gpu_id, 9u);
  EXPECT_EQ(description.tree.topology.nodes[2].gpu_id, 7u);
  for (const char* list : {"", ",", "1,", ",1", "1,,2", "1;2", "-1", "4294967296"})
    EXPECT_FALSE(parsed({"--minors", list}).has_value()) << list;
}

TEST(MachineOptions, ReleaseDecidesTheFormats) {
  EXPECT_EQ(describe(*parsed({"--linux", "6.1"})).config.bo_record_bytes, 80u);
  EXPECT_EQ(describe(*parsed({"--linux", "6.12"})).config.bo_record_bytes, 272u);
  EXPECT_EQ(describe(*parsed({"--linux", "7.2"})).config.list_handles, 1u);
  EXPECT_EQ(describe(*parsed({"--linux", "6.1", "--out-of-tree", "6.0.5"})).config.bo_record_bytes, 104u);
  const MachineDescription amd = describe(*parsed({"--out-of-tree", "6.10.5"}));
  EXPECT_EQ(amd.config.bo_record_bytes, 296u);
  EXPECT_EQ(amd.tree.driver_version, "6.10.5");
  EXPECT_FALSE(parsed({"--out-of-tree", ""}).has_value());
  EXPECT_FALSE(parsed({"--linux", "5.10"}).has_value());
}

TEST(MachineOptions, SizesHaveUnitsAndBounds) {
  EXPECT_EQ(parsed({"--vram", "3M"})->vram_bytes, std::uint64_t{3} << 20);
  EXPECT_EQ(parsed({"--gtt", "4096"})->gtt_bytes, 4096u);
  for (const char* size : {"", "M", "1X", "99999999999G", "-1"})
    EXPECT_FALSE(parsed({"--vram", size}).has_value()) << size;
}

TEST(MachineOptions, AnOlderKernelMayBeMadeToListBos) {
  EXPECT_EQ(describe(*parsed({"--linux", "6.1"})).config.list_handles, 0u);
  EXPECT_EQ(describe(*parsed({"--linux", "6.1", "--list-handles"})).config.list_handles, 1u);
}

TEST(MachineOptions, ChangeHandleIsOffUnlessAskedFor) {
  EXPECT_EQ(describe(*parsed({})).config.change_handle, 0u);
  EXPECT_EQ(describe(*parsed({"--change-handle"})).config.change_handle, 1u);
}

}  // namespace
}  // namespace vamdgpu
