// SPDX-License-Identifier: MIT
// Topologies read from folders of text: as the kernel writes them, and as it never should.
#include "kfd/topology.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "support/machines.h"

namespace sluice::kfd {
namespace {

using test::cpx_machine;
using test::Folder;
using test::mi210_machine;
using test::mi300x_machine;
using test::read_whole;
using test::write_text;
using test::write_tree;

namespace fs = std::filesystem;

Topology read_or_die(const fs::path& root) {
  auto topology = read_topology(root.string());
  EXPECT_TRUE(topology.ok()) << topology.error().what;
  return topology ? std::move(topology).value() : Topology();
}

// What matching never looks at is not read from CPU nodes.
Topology as_read(Topology topology) {
  for (Node& node : topology.nodes) {
    if (node.is_gpu()) {
      node.num_xcc = 1;  // as write_tree() says of every GPU
    } else {
      node.name.clear();
    }
  }
  return topology;
}

TEST(KfdTopology, reads_the_folder_of_two_mi210) {
  const Topology topology = read_or_die(fs::path(KFD_TEST_DATA) / "mi210x2");
  ASSERT_EQ(topology.nodes.size(), 3U);
  EXPECT_EQ(topology.gpu_count(), 2U);
  EXPECT_EQ(topology.nodes[0].cpu_cores_count, 64U);
  const Node& gpu = topology.nodes[1];
  EXPECT_EQ(gpu.gpu_id, 25921U);
  EXPECT_EQ(gpu.simd_count, 416U);
  EXPECT_EQ(gpu.device_id, 29711U);
  EXPECT_EQ(gpu.gfx_target_version, 90010U);
  EXPECT_EQ(gpu.hive_id, 12609507387757274807U);
  EXPECT_EQ(gpu.capability, 746037888U);
  EXPECT_EQ(gpu.vram_size, 68702699520U);
  EXPECT_EQ(gpu.vram_public, 1U);
  EXPECT_EQ(gpu.name, "aldebaran");
  EXPECT_EQ(gpu.unique_id, 1801979520617338022U);
  EXPECT_EQ(gpu.links, (std::vector<IoLink>{{kLinkPcie, 0}, {kLinkXgmi, 2}}));
  EXPECT_TRUE(topology.bidirectional(gpu, gpu.links[1]));
  EXPECT_EQ(topology.find_render_minor(129), &topology.nodes[2]);
  EXPECT_EQ(topology.find_gpu(25921), &gpu);
  EXPECT_EQ(topology.find_gpu(1), nullptr);
  EXPECT_TRUE(topology.hidden.empty());
}

TEST(KfdTopology, reads_the_folder_of_eight_mi300x) {
  const Topology topology = read_or_die(fs::path(KFD_TEST_DATA) / "mi300x8");
  EXPECT_EQ(topology.nodes.size(), 10U);
  EXPECT_EQ(topology.gpu_count(), 8U);
  for (const Node& node : topology.nodes) {
    if (!node.is_gpu()) continue;
    EXPECT_EQ(node.links.size(), 8U);
    EXPECT_EQ(node.num_sdma_xgmi_engines, 14U);
    for (const IoLink& link : node.links) EXPECT_TRUE(topology.bidirectional(node, link));
  }
}

TEST(KfdTopology, a_tree_reads_as_what_it_was_written_from) {
  for (const Topology& machine : {mi210_machine(4, true), mi300x_machine(), cpx_machine()}) {
    const Folder dir;
    write_tree(dir.path(), machine);
    EXPECT_EQ(read_or_die(dir.path()).nodes, as_read(machine).nodes);
  }
}

std::vector<std::uint32_t> numbers_as_listed(const fs::path& directory) {
  std::vector<std::uint32_t> numbers;
  for (const auto& entry : fs::directory_iterator(directory))
    numbers.push_back(static_cast<std::uint32_t>(std::stoul(entry.path().filename())));
  return numbers;
}

// Which is no order of numbers on most file systems, and none in sysfs.
TEST(KfdTopology, keeps_the_order_in_which_directories_list_nodes_and_links) {
  const Folder dir;
  write_tree(dir.path(), mi300x_machine());
  const Topology topology = read_or_die(dir.path());
  const std::vector<std::uint32_t> nodes = numbers_as_listed(dir.path() / "nodes");
  ASSERT_EQ(topology.listing.size(), nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    EXPECT_EQ(topology.listing[i].node_id, nodes[i]) << i;
    const Node& node = *topology.find_node(nodes[i]);
    std::vector<IoLink> links;
    for (const std::uint32_t link :
         numbers_as_listed(dir.path() / "nodes" / std::to_string(nodes[i]) / "io_links"))
      links.push_back(node.links.at(link));
    EXPECT_EQ(topology.listing[i].links, links) << i;
  }
}

TEST(KfdTopology, more_nodes_than_any_machine_has_are_refused) {
  const Folder dir;
  for (int id = 0; id <= 4096; id++) fs::create_directories(dir.path() / "nodes" / std::to_string(id));
  const auto topology = read_topology(dir.path().string());
  ASSERT_FALSE(topology.ok());
  EXPECT_EQ(topology.error().err, EBADMSG);
  EXPECT_NE(topology.error().what.find("4097 nodes"), std::string::npos) << topology.error().what;
}

TEST(KfdTopology, a_gpu_that_may_not_be_looked_at_is_noted_and_its_links_are_not_valid) {
  const Folder dir;
  write_tree(dir.path(), mi210_machine(2, true));
  fs::remove(dir.path() / "nodes/2/gpu_id");
  const Topology topology = read_or_die(dir.path());
  EXPECT_EQ(topology.gpu_count(), 1U);
  EXPECT_EQ(topology.hidden, (std::vector<HiddenNode>{{2, ENOENT}}));
  EXPECT_EQ(topology.find_node(2), nullptr);
  ASSERT_EQ(topology.nodes[1].links.size(), 2U);
  EXPECT_TRUE(topology.valid(topology.nodes[1].links[0]));
  EXPECT_FALSE(topology.valid(topology.nodes[1].links[1]));
  EXPECT_FALSE(topology.bidirectional(topology.nodes[1], topology.nodes[1].links[1]));
}

// Root reads what it likes; with another effective user id permissions count.
class OrdinaryUser {
 public:
  OrdinaryUser() : is_one_(::geteuid() != 0 || ::seteuid(65534) == 0) {}
  ~OrdinaryUser() {
    if (::getuid() == 0) (void)!::seteuid(0);
  }
  OrdinaryUser(const OrdinaryUser&) = delete;
  OrdinaryUser& operator=(const OrdinaryUser&) = delete;
  bool is_one() const { return is_one_; }

 private:
  bool is_one_;
};

TEST(KfdTopology, permission_decides_what_is_hidden) {
  const OrdinaryUser user;
  if (!user.is_one()) GTEST_SKIP() << "cannot become an ordinary user";
  const Folder dir;
  write_tree(dir.path(), mi210_machine(2, true));
  ASSERT_EQ(::chmod((dir.path() / "nodes/1/gpu_id").c_str(), 0), 0);
  const Topology topology = read_or_die(dir.path());
  EXPECT_EQ(topology.hidden, (std::vector<HiddenNode>{{1, EACCES}}));
  EXPECT_EQ(topology.gpu_count(), 1U);
}

TEST(KfdTopology, an_unreadable_link_is_one_to_a_hidden_gpu) {
  const OrdinaryUser user;
  if (!user.is_one()) GTEST_SKIP() << "cannot become an ordinary user";
  const Folder dir;
  write_tree(dir.path(), mi210_machine(2, true));
  ASSERT_EQ(::chmod((dir.path() / "nodes/1/io_links/1/properties").c_str(), 0), 0);
  EXPECT_EQ(read_or_die(dir.path()).nodes[1].links, (std::vector<IoLink>{{kLinkPcie, 0}}));
}

TEST(KfdTopology, node_numbers_are_ordered_as_numbers) {
  const Folder dir;
  write_tree(dir.path(), mi210_machine(12, false));
  const Topology topology = read_or_die(dir.path());
  for (std::size_t i = 0; i < topology.nodes.size(); i++) EXPECT_EQ(topology.nodes[i].node_id, i);
}

TEST(KfdTopology, small_bar_and_no_vram) {
  const Folder dir;
  write_tree(dir.path(), mi210_machine(2, false));
  write_text(dir.path() / "nodes/1/mem_banks/0/properties", "heap_type 2\nsize_in_bytes 4294967296\n");
  write_text(dir.path() / "nodes/2/mem_banks/0/properties", "heap_type 0\nsize_in_bytes 4294967296\n");
  const Topology topology = read_or_die(dir.path());
  EXPECT_EQ(topology.nodes[1].vram_public, 0U);
  EXPECT_EQ(topology.nodes[1].vram_size, 4294967296U);
  EXPECT_EQ(topology.nodes[2].vram_size, 0U);
}

TEST(KfdTopology, p2p_links_caches_and_unknown_properties_are_passed_over) {
  const Folder dir;
  write_tree(dir.path(), mi210_machine(1, false));
  write_text(dir.path() / "nodes/1/p2p_links/0/properties", "garbage");
  write_text(dir.path() / "nodes/1/caches/0/properties", "sibling_map 1,0,1,\n");
  const fs::path file = dir.path() / "nodes/1/properties";
  write_text(file, read_whole(file) + "a_new_one maybe\nsimd_count_of_the_future 3\n\n");
  EXPECT_EQ(read_or_die(dir.path()).nodes, as_read(mi210_machine(1, false)).nodes);
}

TEST(KfdTopology, links_between_cpus_and_of_other_kinds_are_dropped) {
  const Folder dir;
  write_tree(dir.path(), mi210_machine(1, false));
  write_text(dir.path() / "nodes/0/io_links/1/properties", "type 5\nnode_to 1\n");
  EXPECT_EQ(read_or_die(dir.path()).nodes[0].links, (std::vector<IoLink>{{kLinkPcie, 1}}));
}

struct Junk {
  const char* name;
  const char* file;
  const char* find;  // replaced; nullptr: the whole file
  const char* by;
  const char* complaint;  // in the error's text
};

class KfdTopologyJunk : public ::testing::TestWithParam<Junk> {};

TEST_P(KfdTopologyJunk, is_refused_and_named) {
  const Junk& junk = GetParam();
  const Folder dir;
  write_tree(dir.path(), mi210_machine(2, true));
  const fs::path file = dir.path() / junk.file;
  std::string text = read_whole(file);
  if (junk.find == nullptr) {
    text = junk.by;
  } else {
    const std::size_t at = text.find(junk.find);
    ASSERT_NE(at, std::string::npos);
    text.replace(at, std::string(junk.find).size(), junk.by);
  }
  write_text(file, text);
  const auto topology = read_topology(dir.path().string());
  ASSERT_FALSE(topology.ok());
  EXPECT_EQ(topology.error().err, EBADMSG);
  EXPECT_NE(topology.error().what.find(junk.complaint), std::string::npos) << topology.error().what;
  EXPECT_NE(topology.error().what.find(junk.file), std::string::npos) << topology.error().what;
}

INSTANTIATE_TEST_SUITE_P(
    Table, KfdTopologyJunk,
    ::testing::Values(
        Junk{"negative", "nodes/1/properties", "simd_count 416", "simd_count -1", "is '-1'"},
        Junk{"signed", "nodes/1/properties", "simd_count 416", "simd_count +416", "is '+416'"},
        Junk{"text", "nodes/1/properties", "simd_count 416", "simd_count many", "is 'many'"},
        Junk{"empty_value", "nodes/1/properties", "simd_count 416", "simd_count ", "is ''"},
        Junk{"hexadecimal", "nodes/1/properties", "simd_count 416", "simd_count 0x1a0", "is '0x1a0'"},
        Junk{"trailing", "nodes/1/properties", "simd_count 416", "simd_count 416 417", "is '416 417'"},
        Junk{"two_blanks", "nodes/1/properties", "simd_count 416", "simd_count  416", "is ' 416'"},
        Junk{"over_u32", "nodes/1/properties", "simd_count 416", "simd_count 4294967296", "4294967296"},
        Junk{"over_u64", "nodes/1/properties", "hive_id 12609507387757274807", "hive_id 18446744073709551616",
             "18446744073709551616"},
        Junk{"overlong", "nodes/1/properties", "simd_count 416",
             "simd_count "
             "00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000",
             "simd_count"},
        Junk{"escape", "nodes/1/properties", "simd_count 416", "simd_count \x1b[2J", "is '?[2J'"},
        Junk{"missing", "nodes/1/properties", "simd_count 416\n", "", "no property simd_count"},
        Junk{"missing_blank", "nodes/1/properties", "simd_count 416", "simd_count", "no property simd_count"},
        Junk{"twice", "nodes/1/properties", "simd_count 416\n", "simd_count 416\nsimd_count 4\n", "twice"},
        Junk{"missing_hive", "nodes/1/properties", "hive_id 12609507387757274807\n", "",
             "no property hive_id"},
        Junk{"bad_optional", "nodes/1/properties", "unique_id 1", "unique_id x1", "unique_id"},
        Junk{"empty", "nodes/1/properties", nullptr, "", "no property"},
        Junk{"cpu_empty", "nodes/0/properties", nullptr, "", "no property cpu_cores_count"},
        Junk{"gpu_id_text", "nodes/1/gpu_id", nullptr, "gpu\n", "is 'gpu'"},
        Junk{"gpu_id_empty", "nodes/1/gpu_id", nullptr, "", "is ''"},
        Junk{"gpu_id_negative", "nodes/1/gpu_id", nullptr, "-5\n", "is '-5'"},
        Junk{"gpu_id_17_bits", "nodes/1/gpu_id", nullptr, "65536\n", "is '65536'"},
        Junk{"gpu_id_two_lines", "nodes/1/gpu_id", nullptr, "1\n2\n", "gpu_id is"},
        Junk{"gpu_id_twice", "nodes/2/gpu_id", nullptr, "8192\n", "GPU 8192 twice"},
        Junk{"bank_without_heap", "nodes/1/mem_banks/0/properties", "heap_type 1\n", "",
             "no property heap_type"},
        Junk{"bank_without_size", "nodes/1/mem_banks/0/properties", "size_in_bytes 68702699520\n", "",
             "no property size_in_bytes"},
        Junk{"link_without_type", "nodes/1/io_links/0/properties", "type 2\n", "", "no property type"},
        Junk{"link_without_peer", "nodes/1/io_links/0/properties", "node_to 0\n", "", "no property node_to"},
        Junk{"link_to_nowhere", "nodes/1/io_links/0/properties", "node_to 0", "node_to -1", "is '-1'"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(KfdTopology, a_file_longer_than_a_page_is_refused) {
  const Folder dir;
  write_tree(dir.path(), mi210_machine(1, false));
  const fs::path file = dir.path() / "nodes/1/properties";
  write_text(file, read_whole(file) + std::string(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)), 'x'));
  const auto topology = read_topology(dir.path().string());
  ASSERT_FALSE(topology.ok());
  EXPECT_EQ(topology.error().err, EBADMSG);
  EXPECT_NE(topology.error().what.find("longer than a page"), std::string::npos);
}

TEST(KfdTopology, missing_parts_are_errors_that_name_them) {
  for (const char* part :
       {"nodes", "nodes/1/properties", "nodes/1/mem_banks", "nodes/1/mem_banks/0/properties"}) {
    const Folder dir;
    write_tree(dir.path(), mi210_machine(1, false));
    fs::remove_all(dir.path() / part);
    const auto topology = read_topology(dir.path().string());
    ASSERT_FALSE(topology.ok()) << part;
    EXPECT_EQ(topology.error().err, ENOENT) << part;
    EXPECT_NE(topology.error().what.find(part), std::string::npos) << topology.error().what;
  }
}

TEST(KfdTopology, the_same_node_number_twice_is_refused) {
  const Folder dir;
  write_tree(dir.path(), mi210_machine(2, false));
  fs::rename(dir.path() / "nodes/2", dir.path() / "nodes/01");
  const auto topology = read_topology(dir.path().string());
  ASSERT_FALSE(topology.ok());
  EXPECT_EQ(topology.error().err, EBADMSG);
}

TEST(KfdTopology, a_folder_where_a_file_should_be_is_an_error) {
  const Folder dir;
  write_tree(dir.path(), mi210_machine(1, false));
  fs::remove(dir.path() / "nodes/1/properties");
  fs::create_directory(dir.path() / "nodes/1/properties");
  const auto topology = read_topology(dir.path().string());
  ASSERT_FALSE(topology.ok());
  EXPECT_EQ(topology.error().err, EISDIR);
}

// Random damage: any answer but a crash, and what is accepted keeps the promises of Topology.
TEST(KfdTopology, survives_random_bytes) {
  std::mt19937 random(7);
  const Folder dir;
  write_tree(dir.path(), mi210_machine(2, true));
  const fs::path files[] = {dir.path() / "nodes/1/properties", dir.path() / "nodes/1/gpu_id",
                            dir.path() / "nodes/1/io_links/1/properties",
                            dir.path() / "nodes/2/mem_banks/0/properties"};
  for (int round = 0; round < 400; round++) {
    const fs::path& file = files[random() % std::size(files)];
    const std::string text = read_whole(file);
    std::string damaged = text;
    for (int i = 0; i < 3; i++) damaged[random() % damaged.size()] = static_cast<char>(random());
    write_text(file, damaged);
    if (const auto topology = read_topology(dir.path().string())) {
      for (const Node& node : topology->nodes) EXPECT_LE(node.gpu_id, 0xFFFFU);
      EXPECT_EQ(topology->nodes.size(), 3U);
    } else {
      EXPECT_NE(topology.error().err, 0);
      EXPECT_FALSE(topology.error().what.empty());
    }
    write_text(file, text);
  }
}

}  // namespace
}  // namespace sluice::kfd
