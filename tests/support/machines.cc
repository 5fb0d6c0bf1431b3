// SPDX-License-Identifier: MIT
#include "support/machines.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace sluice::test {

namespace fs = std::filesystem;
using kfd::IoLink;
using kfd::kLinkPcie;
using kfd::kLinkXgmi;
using kfd::Node;
using kfd::Topology;

Folder::Folder() {
  // Thousands of small files: in memory if possible.
  const bool memory = ::access("/dev/shm", W_OK) == 0;
  std::string name =
      ((memory ? fs::path("/dev/shm") : fs::temp_directory_path()) / "sluice-kfd-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp " + name);
  path_ = name;
}

Folder::~Folder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void write_text(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << text;
  if (!out.flush()) throw std::runtime_error("write " + file.string());
}

std::string read_whole(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

Node mi210(std::uint32_t node_id, std::uint32_t gpu_id, std::uint32_t render_minor) {
  Node node;
  node.node_id = node_id;
  node.gpu_id = gpu_id;
  node.simd_count = 416;
  node.mem_banks_count = 1;
  node.caches_count = 217;
  node.max_waves_per_simd = 8;
  node.lds_size_in_kb = 64;
  node.num_gws = 64;
  node.wave_front_size = 64;
  node.array_count = 8;
  node.simd_arrays_per_engine = 1;
  node.cu_per_simd_array = 14;
  node.simd_per_cu = 4;
  node.max_slots_scratch_cu = 32;
  node.gfx_target_version = 90010;
  node.vendor_id = 4098;
  node.device_id = 29711;
  node.location_id = 25344;
  node.drm_render_minor = render_minor;
  node.hive_id = 12609507387757274807U;
  node.num_sdma_engines = 2;
  node.num_sdma_xgmi_engines = 3;
  node.num_sdma_queues_per_engine = 8;
  node.num_cp_queues = 24;
  node.fw_version = 92;
  node.capability = 746037888;
  node.sdma_fw_version = 9;
  node.unique_id = 1801979520617338022U + node_id;
  node.vram_public = 1;
  node.vram_size = 68702699520;
  node.name = "aldebaran";
  return node;
}

Node mi300x(std::uint32_t node_id, std::uint32_t gpu_id, std::uint32_t render_minor) {
  Node node = mi210(node_id, gpu_id, render_minor);
  node.simd_count = 1216;
  node.caches_count = 626;
  node.array_count = 32;
  node.cu_per_simd_array = 10;
  node.gfx_target_version = 90402;
  node.device_id = 29857;
  node.hive_id = 15188982192727901047U;
  node.num_sdma_xgmi_engines = 14;
  node.fw_version = 192;
  node.sdma_fw_version = 25;
  node.capability = 2893521536;
  node.vram_size = 205822885888;
  node.name = "ip discovery";
  return node;
}

Node mi300x_cpx(std::uint32_t node_id, std::uint32_t gpu_id, std::uint32_t render_minor) {
  Node node = mi300x(node_id, gpu_id, render_minor);
  node.simd_count = 152;
  node.caches_count = 80;
  node.array_count = 4;
  node.num_sdma_xgmi_engines = 0;
  node.fw_version = 177;
  node.sdma_fw_version = 24;
  node.vram_size = 205822885888 / 8;
  return node;
}

Node cpu(std::uint32_t node_id) {
  Node node;
  node.node_id = node_id;
  node.cpu_cores_count = 64;
  return node;
}

void join(Topology& topology, std::uint32_t node_a, std::uint32_t node_b, std::uint32_t type) {
  const auto add = [&](std::uint32_t from, std::uint32_t to) {
    for (Node& node : topology.nodes) {
      if (node.node_id != from) continue;
      node.links.push_back({type, to});
      if (node.is_gpu()) node.io_links_count++;
    }
  };
  add(node_a, node_b);
  add(node_b, node_a);
}

Topology mi210_machine(std::size_t gpus, bool hive, std::uint32_t first_gpu_id) {
  Topology topology;
  topology.nodes.push_back(cpu(0));
  for (std::uint32_t i = 0; i < gpus; i++) topology.nodes.push_back(mi210(1 + i, first_gpu_id + i, 128 + i));
  for (std::uint32_t i = 1; i <= gpus; i++) {
    join(topology, i, 0, kLinkPcie);
    for (std::uint32_t j = i + 1; hive && j <= gpus; j++) join(topology, i, j, kLinkXgmi);
  }
  return topology;
}

Topology mi300x_machine() {
  Topology topology;
  topology.nodes = {cpu(0), cpu(1)};
  for (std::uint32_t i = 0; i < 8; i++) topology.nodes.push_back(mi300x(2 + i, 0x3000 + i, 128 + 8 * i));
  for (std::uint32_t i = 2; i < 10; i++) {
    join(topology, i, i < 6 ? 0 : 1, kLinkPcie);
    for (std::uint32_t j = i + 1; j < 10; j++) join(topology, i, j, kLinkXgmi);
  }
  return topology;
}

Topology cpx_machine(std::uint32_t first_gpu_id) {
  Topology topology;
  topology.nodes = {cpu(0), cpu(1)};
  for (std::uint32_t i = 0; i < 64; i++)
    topology.nodes.push_back(mi300x_cpx(2 + i, first_gpu_id + i, 128 + i));
  for (std::uint32_t i = 2; i < 66; i++) {
    join(topology, i, i < 34 ? 0 : 1, kLinkPcie);
    for (std::uint32_t j = i + 1; j < 66; j++) join(topology, i, j, kLinkXgmi);
  }
  return topology;
}

namespace {

std::string line(const char* name, std::uint64_t value) {
  return std::string(name) + " " + std::to_string(value) + "\n";
}

std::string properties_text(const Node& node) {
  std::string text =
      line("cpu_cores_count", node.cpu_cores_count) + line("simd_count", node.simd_count) +
      line("mem_banks_count", node.is_gpu() ? node.mem_banks_count : 1) +
      line("caches_count", node.caches_count) +
      line("io_links_count", node.is_gpu() ? node.io_links_count : node.links.size()) +
      line("p2p_links_count", 0) + line("cpu_core_id_base", 0) +
      line("simd_id_base", node.is_gpu() ? 2147487744U : 0) +
      line("max_waves_per_simd", node.max_waves_per_simd) + line("lds_size_in_kb", node.lds_size_in_kb) +
      line("gds_size_in_kb", node.gds_size_in_kb) + line("num_gws", node.num_gws) +
      line("wave_front_size", node.wave_front_size) + line("array_count", node.array_count) +
      line("simd_arrays_per_engine", node.simd_arrays_per_engine) +
      line("cu_per_simd_array", node.cu_per_simd_array) + line("simd_per_cu", node.simd_per_cu) +
      line("max_slots_scratch_cu", node.max_slots_scratch_cu) +
      line("gfx_target_version", node.gfx_target_version) + line("vendor_id", node.vendor_id) +
      line("device_id", node.device_id) + line("location_id", node.location_id) +
      line("domain", node.domain) + line("drm_render_minor", node.drm_render_minor) +
      line("hive_id", node.hive_id) + line("num_sdma_engines", node.num_sdma_engines) +
      line("num_sdma_xgmi_engines", node.num_sdma_xgmi_engines) +
      line("num_sdma_queues_per_engine", node.num_sdma_queues_per_engine) +
      line("num_cp_queues", node.num_cp_queues);
  if (node.is_gpu()) {
    text += line("max_engine_clk_fcompute", 1700) + line("local_mem_size", 0) +
            line("fw_version", node.fw_version) + line("capability", node.capability) +
            line("debug_prop", 470) + line("sdma_fw_version", node.sdma_fw_version) +
            line("unique_id", node.unique_id) + line("num_xcc", 1);
  }
  return text + line("max_engine_clk_ccompute", 2450);
}

}  // namespace

void write_tree(const fs::path& root, const Topology& topology) {
  write_text(root / "generation_id", "2\n");
  write_text(root / "system_properties",
             "platform_oem 35498446626881\nplatform_id 71791775140929\nplatform_rev 2\n");
  for (const Node& node : topology.nodes) {
    const fs::path directory = root / "nodes" / std::to_string(node.node_id);
    for (const char* name : {"mem_banks", "caches", "io_links", "p2p_links", "perf"}) {
      fs::create_directories(directory / name);
    }
    write_text(directory / "gpu_id", std::to_string(node.gpu_id) + "\n");
    write_text(directory / "name", node.name + "\n");
    write_text(directory / "properties", properties_text(node));
    const bool gpu = node.is_gpu();
    write_text(directory / "mem_banks/0/properties",
               line("heap_type", !gpu                    ? 0
                                 : node.vram_public != 0 ? 1
                                                         : 2) +
                   line("size_in_bytes", gpu ? node.vram_size : 1081864880128) + line("flags", 0) +
                   line("width", 4096) + line("mem_clk_max", 1600));
    for (std::size_t i = 0; i < node.links.size(); i++) {
      const IoLink& link = node.links[i];
      write_text(directory / "io_links" / std::to_string(i) / "properties",
                 line("type", link.type) + line("version_major", 0) + line("version_minor", 0) +
                     line("node_from", node.node_id) + line("node_to", link.node_to) +
                     line("weight", link.type == kLinkXgmi ? 15 : 20) + line("min_latency", 0) +
                     line("max_latency", 0) + line("min_bandwidth", 312) + line("max_bandwidth", 32000) +
                     line("recommended_transfer_size", 0) + line("recommended_sdma_engine_id_mask", 3) +
                     line("flags", 1));
    }
  }
}

}  // namespace sluice::test
