// SPDX-License-Identifier: MIT
// The files that a machine with AMD GPUs shows of itself: KFD's topology, the PCI devices with their DRM
// children, the device nodes' directories. A description (plain structs, any values a test wants) is written
// below one root directory with the kernel's own names, so that "/sys/class/kfd/kfd/topology" of the virtual
// machine is ROOT/sys/class/kfd/kfd/topology. Formats: kfd_topology.c and the PCI, DRM and device core of
// Linux 6.1 to 7.2, whose formats and order of lines programs parse.
//
// Nothing here knows a GPU model (presets.h does). The writer is one-threaded and throws std::system_error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace vamdgpu {

// One "name value" line of a properties file. Values are unsigned decimal.
struct Property {
  std::string name;
  std::uint64_t value = 0;
};

// nodes/N/mem_banks/I. heap_type: 0 system memory, 1 frame buffer visible to the CPU, 2 frame buffer not
// visible.
struct MemoryBank {
  std::uint32_t heap_type = 0;
  std::uint64_t size_bytes = 0;
  std::uint32_t flags = 0;
  std::uint32_t width_bits = 0;
  std::uint32_t clock_max_mhz = 0;
};

// nodes/N/caches/I. type: 1 data, 2 instruction, 8 GPU compute units.
struct Cache {
  std::uint32_t processor_id_low = 0;
  std::uint32_t level = 0;
  std::uint32_t size_kib = 0;
  std::uint32_t line_bytes = 0;
  std::uint32_t type = 0;
  std::uint32_t siblings = 1;  // leading ones of sibling_map
};

// nodes/N/io_links/I or p2p_links/I. type: 1 HyperTransport, 2 PCIe, 5 QPI, 11 XGMI; bandwidths in MB/s.
// flags: 1 enabled, 2 non-coherent, 4 and 8 no 32 and 64-bit atomics, 16 no peer-to-peer DMA.
struct Link {
  std::uint32_t type = 0;
  std::uint32_t node_to = 0;
  std::uint32_t weight = 0;
  std::uint32_t min_bandwidth = 0;
  std::uint32_t max_bandwidth = 0;
  std::uint32_t sdma_engine_id_mask = 0;
  std::uint32_t flags = 1;
};

constexpr std::uint32_t kLinkHyperTransport = 1;
constexpr std::uint32_t kLinkPcie = 2;
constexpr std::uint32_t kLinkXgmi = 11;

// A GPU as a PCI device and its two DRM nodes.
struct PciGpu {
  std::uint32_t domain = 0;
  std::uint32_t bus = 0;  // device and function are 0
  std::uint32_t vendor_id = 0;
  std::uint32_t device_id = 0;
  std::uint32_t subsystem_vendor_id = 0;
  std::uint32_t subsystem_device_id = 0;
  std::uint32_t revision = 0;
  std::uint32_t class_code = 0;
  std::uint32_t card_minor = 0;
  std::uint32_t render_minor = 0;
  std::uint32_t numa_node = 0;
  std::uint64_t unique_id = 0;
  std::uint64_t vram_bytes = 0;
  std::uint64_t visible_vram_bytes = 0;
  std::uint64_t gtt_bytes = 0;
  bool hidden = false;  // refused by the device cgroup: open(2) of its render node gives EPERM
};

// nodes/N, a CPU (gpu_id 0) or a GPU. The properties are written as they stand here, counts included.
struct TopologyNode {
  std::uint32_t gpu_id = 0;
  std::string name;  // empty for a CPU
  std::vector<Property> properties;
  std::vector<MemoryBank> memory_banks;
  std::vector<Cache> caches;
  std::vector<Link> io_links;
  std::vector<Link> p2p_links;
  bool hidden = false;  // refused by the device cgroup: reading its files gives EPERM
};

struct Topology {
  std::uint32_t generation_id = 1;
  std::uint64_t platform_oem = 0;
  std::uint64_t platform_id = 0;
  std::uint64_t platform_rev = 0;
  bool link_sdma_masks = true;      // link files have recommended_sdma_engine_id_mask (Linux 6.12 and later)
  std::vector<TopologyNode> nodes;  // index = node number
};

// Everything the names half of the front needs to know about a machine.
struct SystemTree {
  Topology topology;
  std::vector<PciGpu> gpus;
  std::uint32_t kfd_major = 0;
  std::string driver_version;  // only an out-of-tree driver has a file with one
};

// The text of single files, newline at the end of each line as in the kernel.
std::string properties_text(const std::vector<Property>& properties);
std::string memory_bank_text(const MemoryBank& bank);
std::string cache_text(const Cache& cache);
std::string link_properties_text(const Link& link, std::uint32_t node_from, bool sdma_mask);
std::string system_properties_text(const Topology& topology);

// "0000:63:00.0"
std::string pci_address(const PciGpu& gpu);

// One file of KFD's topology, or, with a slash at the end of its path, a directory.
struct TopologyText {
  std::string path;  // below .../kfd/topology
  std::string text;
  std::uint32_t gpu_id = 0;  // the GPU to whose node it belongs; 0: to none
};

// All of a topology, every directory before what lies in it.
std::vector<TopologyText> topology_texts(const Topology& topology);

// Writes generation_id, system_properties and nodes/ into `directory` (made if missing): what a topology
// parser takes as its root. Hidden nodes are written in full; the front refuses them by `write_hidden_list`.
void write_topology(const std::filesystem::path& directory, const Topology& topology);

// Writes the whole tree below `root`: sys/class/kfd, sys/devices, sys/dev/char, sys/class/drm, sys/bus/pci,
// sys/module/amdgpu, dev/kfd, dev/dri, dev/char, and an empty run/sluice, so that what programs keep there of
// this machine's GPUs is nobody else's. The PCI devices that the real machine has are kept in
// sys/bus/pci/devices as links to the real ones.
void write_system_tree(const std::filesystem::path& root, const SystemTree& tree);

// Writes the file in which the front reads what the device cgroup refuses: lines "node N" and "render M".
void write_hidden_list(const std::filesystem::path& file, const SystemTree& tree);

}  // namespace vamdgpu
