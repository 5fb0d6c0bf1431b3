// SPDX-License-Identifier: MIT
// The virtual machine's description and files: formats, the presets' values, and that counts, links and
// directories agree. Reads the tree as plain files; nothing is preloaded.
#include "sysfs_tree.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>

#include "presets.h"

namespace vamdgpu::tests {
namespace {

namespace fs = std::filesystem;

class Directory {
 public:
  Directory() {
    // Hundreds of small files: in memory where there is such a place.
    const fs::path parent = fs::is_directory("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path();
    std::string name = parent / "sysfs-tree-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path_ = name;
  }
  ~Directory() { fs::remove_all(path_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::string text_of(const fs::path& path) {
  std::ifstream stream(path);
  EXPECT_TRUE(stream.is_open()) << path;
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

std::size_t entries(const fs::path& path) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(path), fs::directory_iterator()));
}

MachineOptions with_gpus(unsigned gpus, Preset preset = Preset::Mi210) {
  MachineOptions options;
  options.gpus = gpus;
  options.preset = preset;
  return options;
}

// The capture of the first GPU of a real machine with eight MI210 and two CPU nodes, and the two sizes that
// its kernel did not tell yet and Linux 6.12 does.
TEST(Mi210, GpuNodeIsTheCapturedOne) {
  MachineOptions options = with_gpus(8);
  options.cpu_nodes = 2;
  options.kfd_minor_version = kKfdLinux612;
  const MachineDescription machine = describe(options);
  EXPECT_EQ(
      properties_text(machine.tree.topology.nodes.at(2).properties),
      "cpu_cores_count 0\nsimd_count 416\nmem_banks_count 1\ncaches_count 217\nio_links_count 4\n"
      "p2p_links_count 5\ncpu_core_id_base 0\nsimd_id_base 2147487744\nmax_waves_per_simd 8\n"
      "lds_size_in_kb 64\ngds_size_in_kb 0\nnum_gws 64\nwave_front_size 64\narray_count 8\n"
      "simd_arrays_per_engine 1\ncu_per_simd_array 14\nsimd_per_cu 4\nmax_slots_scratch_cu 32\n"
      "gfx_target_version 90010\nvendor_id 4098\ndevice_id 29711\nlocation_id 25344\ndomain 0\n"
      "drm_render_minor 128\nhive_id 12609507387757274807\nnum_sdma_engines 2\nnum_sdma_xgmi_engines 3\n"
      "num_sdma_queues_per_engine 8\nnum_cp_queues 24\ncwsr_size 63508480\nctl_stack_size 36864\n"
      "max_engine_clk_fcompute 1700\nlocal_mem_size 0\n"
      "fw_version 92\ncapability 746037888\ndebug_prop 470\nsdma_fw_version 9\n"
      "unique_id 1801979520617338022\nnum_xcc 1\nmax_engine_clk_ccompute 2450\n");
}

TEST(Mi210, CpuNodeIsTheCapturedOne) {
  MachineOptions options = with_gpus(8);
  options.cpu_nodes = 2;
  options.kfd_minor_version = kKfdLinux612;
  const MachineDescription machine = describe(options);
  EXPECT_EQ(properties_text(machine.tree.topology.nodes.at(1).properties),
            "cpu_cores_count 64\nsimd_count 0\nmem_banks_count 1\ncaches_count 0\nio_links_count 5\n"
            "p2p_links_count 4\ncpu_core_id_base 64\nsimd_id_base 0\nmax_waves_per_simd 0\nlds_size_in_kb 0\n"
            "gds_size_in_kb 0\nnum_gws 0\nwave_front_size 0\narray_count 0\nsimd_arrays_per_engine 0\n"
            "cu_per_simd_array 0\nsimd_per_cu 0\nmax_slots_scratch_cu 0\ngfx_target_version 0\nvendor_id 0\n"
            "device_id 0\nlocation_id 0\ndomain 0\ndrm_render_minor 0\nhive_id 0\nnum_sdma_engines 0\n"
            "num_sdma_xgmi_engines 0\nnum_sdma_queues_per_engine 0\nnum_cp_queues 0\n"
            "cwsr_size 0\nctl_stack_size 0\n"
            "max_engine_clk_ccompute 2450\n");
}

TEST(Mi210, LinksAreTheCapturedOnes) {
  MachineOptions options = with_gpus(8);
  options.cpu_nodes = 2;
  const MachineDescription machine = describe(options);
  const TopologyNode& gpu = machine.tree.topology.nodes.at(2);
  ASSERT_EQ(gpu.io_links.size(), 4U);
  EXPECT_EQ(link_properties_text(gpu.io_links[0], 2, true),
            "type 2\nversion_major 0\nversion_minor 0\nnode_from 2\nnode_to 0\nweight 20\nmin_latency 0\n"
            "max_latency 0\nmin_bandwidth 312\nmax_bandwidth 32000\nrecommended_transfer_size 0\n"
            "recommended_sdma_engine_id_mask 3\nflags 1\n");
  EXPECT_EQ(link_properties_text(gpu.io_links[1], 2, true),
            "type 11\nversion_major 0\nversion_minor 0\nnode_from 2\nnode_to 3\nweight 15\nmin_latency 0\n"
            "max_latency 0\nmin_bandwidth 50000\nmax_bandwidth 50000\nrecommended_transfer_size 0\n"
            "recommended_sdma_engine_id_mask 28\nflags 1\n");
  ASSERT_EQ(gpu.p2p_links.size(), 5U);
  EXPECT_EQ(gpu.p2p_links[0].node_to, 1U);
  EXPECT_EQ(gpu.p2p_links[0].weight, 52U);
  EXPECT_EQ(gpu.p2p_links[0].flags, 1U);
  EXPECT_EQ(gpu.p2p_links[4].node_to, 9U);
  EXPECT_EQ(gpu.p2p_links[4].weight, 72U);
  EXPECT_EQ(gpu.p2p_links[4].flags, 3U);

  const TopologyNode& cpu = machine.tree.topology.nodes.at(0);
  ASSERT_EQ(cpu.io_links.size(), 5U);
  EXPECT_EQ(cpu.io_links[0].type, kLinkHyperTransport);
  EXPECT_EQ(cpu.io_links[0].node_to, 1U);
  EXPECT_EQ(cpu.io_links[1].node_to, 2U);
  EXPECT_EQ(cpu.io_links[1].flags, 3U);
}

TEST(Mi300x, HasTheValuesOfTheWholeCard) {
  const MachineDescription machine = describe(with_gpus(8, Preset::Mi300x));
  const TopologyNode& gpu = machine.tree.topology.nodes.at(8);
  EXPECT_EQ(gpu.name, "ip discovery");
  EXPECT_EQ(property_value(gpu, "simd_count"), 1216U);
  EXPECT_EQ(property_value(gpu, "caches_count"), 626U);
  EXPECT_EQ(property_value(gpu, "array_count"), 32U);
  EXPECT_EQ(property_value(gpu, "num_xcc"), 8U);
  EXPECT_EQ(property_value(gpu, "gfx_target_version"), 90402U);
  EXPECT_EQ(property_value(gpu, "device_id"), 29857U);
  EXPECT_EQ(property_value(gpu, "num_sdma_xgmi_engines"), 14U);
  EXPECT_EQ(property_value(gpu, "capability"), 2893521536U);
  EXPECT_EQ(property_value(gpu, "fw_version"), 177U);
  EXPECT_EQ(property_value(gpu, "sdma_fw_version"), 24U);
  EXPECT_EQ(property_value(gpu, "location_id"), 0xE500U);
  EXPECT_EQ(gpu.io_links.size(), 8U);  // one CPU, seven peers of the one hive
  EXPECT_EQ(machine.config.gpus[0].sdma_instances, 16U);
}

TEST(Presets, ModelNumbersAndTreeAgree) {
  for (const Preset preset : {Preset::Mi210, Preset::Mi300x}) {
    MachineOptions options = with_gpus(16, preset);
    options.cpu_nodes = 4;
    options.vram_bytes = std::uint64_t{3} << 30;
    const MachineDescription machine = describe(options);
    ASSERT_EQ(machine.config.num_gpus, 16U);
    ASSERT_EQ(machine.tree.topology.nodes.size(), 20U);
    std::set<std::uint64_t> ids;
    std::set<std::string> addresses;
    for (unsigned i = 0; i < 16; ++i) {
      const vamdgpu_gpu_config& gpu = machine.config.gpus[i];
      const TopologyNode& node = machine.tree.topology.nodes.at(4 + i);
      EXPECT_EQ(gpu.gpu_id, node.gpu_id);
      EXPECT_GE(gpu.gpu_id, 1U);
      EXPECT_LE(gpu.gpu_id, 65535U);
      EXPECT_TRUE(ids.insert(gpu.gpu_id).second);
      EXPECT_TRUE(addresses.insert(pci_address(machine.tree.gpus[i])).second);
      EXPECT_EQ(gpu.render_minor, property_value(node, "drm_render_minor"));
      EXPECT_EQ(gpu.render_minor, machine.tree.gpus[i].render_minor);
      EXPECT_EQ(gpu.card_minor, machine.tree.gpus[i].card_minor);
      EXPECT_EQ(gpu.cwsr_bytes, property_value(node, "cwsr_size"));
      EXPECT_EQ(gpu.ctl_stack_bytes, property_value(node, "ctl_stack_size"));
      EXPECT_EQ(gpu.vram_bytes, node.memory_banks.at(0).size_bytes);
      EXPECT_EQ(property_value(node, "caches_count"), node.caches.size());
      EXPECT_EQ(property_value(node, "io_links_count"), node.io_links.size());
      EXPECT_EQ(property_value(node, "p2p_links_count"), node.p2p_links.size());
    }
  }
}

// Every link has its way back, of the same type: what matching calls bi-directional.
TEST(Presets, LinksGoBothWays) {
  MachineOptions options = with_gpus(7);
  options.cpu_nodes = 3;
  for (const Fabric fabric : {Fabric::Xgmi, Fabric::Pcie}) {
    options.fabric = fabric;
    const MachineDescription machine = describe(options);
    const auto& nodes = machine.tree.topology.nodes;
    for (std::uint32_t from = 0; from < nodes.size(); ++from)
      for (const Link& link : nodes[from].io_links) {
        ASSERT_LT(link.node_to, nodes.size());
        ASSERT_NE(link.node_to, from);
        int back = 0;
        for (const Link& other : nodes[link.node_to].io_links)
          if (other.node_to == from && other.type == link.type) ++back;
        EXPECT_EQ(back, 1) << from << " to " << link.node_to;
      }
  }
}

TEST(Presets, PcieMachineHasNoHive) {
  MachineOptions options = with_gpus(2);
  options.fabric = Fabric::Pcie;
  const MachineDescription machine = describe(options);
  const TopologyNode& gpu = machine.tree.topology.nodes.at(1);
  EXPECT_EQ(property_value(gpu, "hive_id"), 0U);
  ASSERT_EQ(gpu.io_links.size(), 1U);
  EXPECT_EQ(gpu.io_links[0].type, kLinkPcie);
  ASSERT_EQ(gpu.p2p_links.size(), 1U);
  EXPECT_EQ(gpu.p2p_links[0].node_to, 2U);
  EXPECT_EQ(gpu.p2p_links[0].weight, 40U);
}

TEST(Presets, HiveSizeSplitsTheMesh) {
  MachineOptions options = with_gpus(4);
  options.hive_size = 2;
  const MachineDescription machine = describe(options);
  const auto& nodes = machine.tree.topology.nodes;
  EXPECT_EQ(property_value(nodes[1], "hive_id"), property_value(nodes[2], "hive_id"));
  EXPECT_NE(property_value(nodes[1], "hive_id"), property_value(nodes[3], "hive_id"));
  ASSERT_EQ(nodes[1].io_links.size(), 2U);
  EXPECT_EQ(nodes[1].io_links[1].node_to, 2U);
}

TEST(Presets, OldKernelsLackTheNewLines) {
  MachineOptions options = with_gpus(1);
  options.kfd_minor_version = kKfdLinux61;
  const MachineDescription machine = describe(options);
  const std::string text = properties_text(machine.tree.topology.nodes.at(1).properties);
  for (const char* line : {"cwsr_size", "ctl_stack_size", "capability2", "debug_prop", "num_xcc"})
    EXPECT_EQ(text.find(line), std::string::npos) << line;
  EXPECT_FALSE(machine.tree.topology.link_sdma_masks);
  EXPECT_EQ(machine.config.bo_record_bytes, 80U);
  EXPECT_EQ(machine.config.list_handles, 0U);

  options.kfd_minor_version = kKfdLinux72;
  const MachineDescription newer = describe(options);
  const std::string newer_text = properties_text(newer.tree.topology.nodes.at(1).properties);
  EXPECT_NE(
      newer_text.find("num_cp_queues 24\ncwsr_size 63508480\nctl_stack_size 36864\nmax_engine_clk_fcompute"),
      std::string::npos)
      << newer_text;
  EXPECT_NE(newer_text.find("capability 746037888\ncapability2 0\ndebug_prop"), std::string::npos);
  EXPECT_EQ(newer.config.bo_record_bytes, 272U);
}

TEST(Presets, IdsMinorsAndNodeOrderCanBeChosen) {
  MachineOptions options = with_gpus(3);
  options.gpu_ids = {4711, 42};
  options.minors = {131, 140};
  options.node_order = {2, 0, 1};
  options.hidden = {1};
  const MachineDescription machine = describe(options);
  EXPECT_EQ(machine.config.gpus[0].gpu_id, 4711U);
  EXPECT_EQ(machine.config.gpus[1].gpu_id, 42U);
  EXPECT_EQ(machine.config.gpus[0].render_minor, 131U);
  EXPECT_EQ(machine.config.gpus[1].render_minor, 140U);
  EXPECT_EQ(machine.config.gpus[2].render_minor, 130U);
  const auto& nodes = machine.tree.topology.nodes;
  EXPECT_EQ(nodes.at(1).gpu_id, machine.config.gpus[2].gpu_id);
  EXPECT_EQ(nodes.at(2).gpu_id, 4711U);
  EXPECT_EQ(nodes.at(3).gpu_id, 42U);
  EXPECT_EQ(property_value(nodes.at(3), "drm_render_minor"), 140U);
  EXPECT_TRUE(nodes.at(3).hidden);
  EXPECT_FALSE(nodes.at(2).hidden);
  EXPECT_TRUE(machine.tree.gpus.at(1).hidden);
}

TEST(Presets, GpuIdsStayTheSame) {
  const MachineDescription first = describe(with_gpus(4));
  const MachineDescription second = describe(with_gpus(8));
  for (unsigned i = 0; i < 4; ++i) EXPECT_EQ(first.config.gpus[i].gpu_id, second.config.gpus[i].gpu_id);
}

TEST(Presets, WhatCannotBeIsRefused) {
  const auto refused = [](auto change) {
    MachineOptions options;
    change(options);
    EXPECT_THROW(describe(options), std::invalid_argument);
  };
  refused([](MachineOptions& options) { options.gpus = 0; });
  refused([](MachineOptions& options) { options.gpus = 17; });
  refused([](MachineOptions& options) { options.cpu_nodes = 0; });
  refused([](MachineOptions& options) { options.vram_bytes = 4097; });
  refused([](MachineOptions& options) { options.gpu_ids = {1, 1}; });
  refused([](MachineOptions& options) { options.gpu_ids = {65536}; });
  refused([](MachineOptions& options) { options.minors = {127}; });
  refused([](MachineOptions& options) { options.minors = {129}; });  // the second GPU's default
  refused([](MachineOptions& options) { options.hidden = {2}; });
  refused([](MachineOptions& options) { options.node_order = {0, 0}; });
  refused([](MachineOptions& options) { options.kfd_major = 226; });
}

TEST(Formats, MemoryBank) {
  EXPECT_EQ(memory_bank_text({1, 51539607552, 0, 8192, 1300}),
            "heap_type 1\nsize_in_bytes 51539607552\nflags 0\nwidth 8192\nmem_clk_max 1300\n");
}

TEST(Formats, CacheEndsWithAListThatIsNoNumber) {
  EXPECT_EQ(cache_text({2147487744, 1, 32, 0, 9, 2}),
            "processor_id_low 2147487744\nlevel 1\nsize 32\ncache_line_size 0\ncache_lines_per_tag 0\n"
            "association 0\nlatency 0\ntype 9\n"
            "sibling_map 1,1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0\n");
}

TEST(Tree, TopologyHasTheKernelsFiles) {
  const Directory directory;
  MachineOptions options = with_gpus(2);
  options.large_bar = false;
  options.vram_bytes = std::uint64_t{1} << 30;
  const MachineDescription machine = describe(options);
  write_topology(directory.path(), machine.tree.topology);
  EXPECT_EQ(text_of(directory.path() / "generation_id"), "3\n");
  EXPECT_EQ(text_of(directory.path() / "system_properties"),
            "platform_oem 4777524452235890003\nplatform_id 85015745549651\nplatform_rev 2\n");
  ASSERT_EQ(entries(directory.path() / "nodes"), 3U);
  const fs::path cpu = directory.path() / "nodes/0";
  EXPECT_EQ(text_of(cpu / "gpu_id"), "0\n");
  EXPECT_EQ(text_of(cpu / "name"), "\n");
  EXPECT_EQ(entries(cpu / "caches"), 0U);
  EXPECT_EQ(entries(cpu / "io_links"), 2U);
  EXPECT_TRUE(fs::is_directory(cpu / "perf"));
  const fs::path gpu = directory.path() / "nodes/2";
  EXPECT_EQ(text_of(gpu / "gpu_id"), std::to_string(machine.config.gpus[1].gpu_id) + "\n");
  EXPECT_EQ(text_of(gpu / "name"), "aldebaran\n");
  EXPECT_EQ(text_of(gpu / "mem_banks/0/properties"),
            "heap_type 2\nsize_in_bytes 1073741824\nflags 0\nwidth 4096\nmem_clk_max 1600\n");
  EXPECT_EQ(entries(gpu / "caches"), 217U);
  EXPECT_TRUE(fs::is_directory(gpu / "p2p_links"));
  EXPECT_LT(text_of(gpu / "properties").size(), 4096U);
}

TEST(Tree, SystemTreeLinksLeadWhereTheKernelsDo) {
  const Directory directory;
  const MachineDescription machine = describe(with_gpus(2));
  write_system_tree(directory.path(), machine.tree);
  const fs::path root = fs::canonical(directory.path());
  EXPECT_EQ(fs::canonical(root / "sys/class/kfd/kfd"), root / "sys/devices/virtual/kfd/kfd");
  EXPECT_EQ(fs::canonical(root / "sys/dev/char/226:129/device"),
            root / "sys/devices/pci0000:43/0000:43:00.0");
  EXPECT_EQ(fs::canonical(root / "sys/dev/char/226:0/device/subsystem"), root / "sys/bus/pci");
  EXPECT_EQ(fs::canonical(root / "sys/class/drm/renderD128/device/driver"),
            root / "sys/bus/pci/drivers/amdgpu");
  EXPECT_EQ(fs::canonical(root / "sys/bus/pci/devices/0000:63:00.0/drm/card0/subsystem"),
            root / "sys/class/drm");
  EXPECT_EQ(text_of(root / "sys/dev/char/226:128/device/uevent"),
            "DRIVER=amdgpu\nPCI_CLASS=38000\nPCI_ID=1002:740F\nPCI_SUBSYS_ID=1002:0C34\n"
            "PCI_SLOT_NAME=0000:63:00.0\n");
  EXPECT_EQ(text_of(root / "sys/dev/char/226:128/device/vendor"), "0x1002\n");
  EXPECT_EQ(text_of(root / "sys/dev/char/226:128/dev"), "226:128\n");
  EXPECT_EQ(text_of(root / "sys/class/kfd/kfd/dev"), "235:0\n");
  EXPECT_EQ(entries(root / "dev/dri"), 4U);
  EXPECT_EQ(entries(root / "sys/dev/char/226:129/device/drm"), 2U);
  for (const char* driver_link : {"0000:63:00.0", "0000:43:00.0"})
    EXPECT_TRUE(fs::is_directory(root / "sys/bus/pci/drivers/amdgpu" / driver_link));
}

TEST(Tree, HiddenListNamesNodesAndMinors) {
  const Directory directory;
  MachineOptions options = with_gpus(3);
  options.hidden = {2};
  options.node_order = {2, 1, 0};
  write_hidden_list(directory.path() / "hidden", describe(options).tree);
  EXPECT_EQ(text_of(directory.path() / "hidden"), "node 1\nrender 130\n");
}

}  // namespace
}  // namespace vamdgpu::tests
