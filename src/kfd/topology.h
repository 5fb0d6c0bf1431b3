// SPDX-License-Identifier: MIT
// The KFD topology as a value: nodes (CPUs and GPUs), the properties that matching compares, links between
// nodes.
//
// read_topology makes one from a sysfs tree (or from a folder of the same text, in tests), images/kfd_image.h
// from an image. Text is untrusted: every number is bounded, every file at most a page. Value types,
// thread-compatible.
//
// Source of names and formats: the kernel's kfd_topology.c, Linux 6.1 to 7.2.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice::kfd {

// The kinds of link that are kept. Other kinds join CPUs with CPUs.
inline constexpr std::uint32_t kLinkPcie = 2;
inline constexpr std::uint32_t kLinkXgmi = 11;

struct IoLink {
  std::uint32_t type = 0;  // kLinkPcie or kLinkXgmi
  std::uint32_t node_to = 0;

  bool operator==(const IoLink&) const = default;
};

// Members carry the kernel's property names. A CPU node has gpu_id 0 and zeros in the GPU members.
struct Node {
  std::uint32_t node_id = 0;
  std::uint32_t gpu_id = 0;  // local: the actual gpu_id; from an image: the user gpu_id
  std::uint32_t cpu_cores_count = 0;
  std::uint32_t simd_count = 0;
  std::uint32_t mem_banks_count = 0;
  std::uint32_t caches_count = 0;
  std::uint32_t io_links_count = 0;
  std::uint32_t max_waves_per_simd = 0;
  std::uint32_t lds_size_in_kb = 0;
  std::uint32_t gds_size_in_kb = 0;
  std::uint32_t num_gws = 0;
  std::uint32_t wave_front_size = 0;
  std::uint32_t array_count = 0;
  std::uint32_t simd_arrays_per_engine = 0;
  std::uint32_t cu_per_simd_array = 0;
  std::uint32_t simd_per_cu = 0;
  std::uint32_t max_slots_scratch_cu = 0;
  std::uint32_t vendor_id = 0;
  std::uint32_t device_id = 0;
  std::uint32_t domain = 0;
  std::uint32_t drm_render_minor = 0;  // /dev/dri/renderD<this>
  std::uint64_t hive_id = 0;
  std::uint32_t num_sdma_engines = 0;
  std::uint32_t num_sdma_xgmi_engines = 0;
  std::uint32_t num_sdma_queues_per_engine = 0;
  std::uint32_t num_cp_queues = 0;
  std::uint32_t fw_version = 0;
  std::uint32_t capability = 0;
  std::uint32_t sdma_fw_version = 0;
  std::uint32_t vram_public = 0;  // 1: the CPU sees all of VRAM
  std::uint64_t vram_size = 0;    // bytes; 0 for an APU without its own memory

  // For messages; 0 or empty if the kernel or the image has none.
  std::uint32_t gfx_target_version = 0;  // 90010 = gfx90a
  std::uint32_t num_xcc = 0;             // dies (XCCs); 0: not known, as in images
  std::uint32_t location_id = 0;         // PCI bus << 8 | device << 3 | function
  std::uint64_t unique_id = 0;
  std::string name;

  std::vector<IoLink> links;  // of the two kinds, in the order of the tree or image

  bool is_gpu() const { return gpu_id != 0; }
  bool operator==(const Node&) const = default;
};

// One GPU under its two names. The user gpu_id never changes; the actual one changes when restored on another
// GPU.
struct DeviceIds {
  std::uint32_t user_gpu_id = 0;    // the process' name for it
  std::uint32_t actual_gpu_id = 0;  // the local topology's name for it

  bool operator==(const DeviceIds&) const = default;
};

// A gpu_id for messages: "0x5759".
std::string gpu_id_text(std::uint32_t gpu_id);

// A u32 member of Node with its name in sysfs.
struct NodeField {
  std::string_view name;
  std::uint32_t Node::*member;
};

// The u32 properties that every GPU node of a supported kernel has, in the kernel's order.
extern const std::array<NodeField, 26> kGpuFields;

// A node that exists but cannot be read: a GPU hidden by a device cgroup.
struct HiddenNode {
  std::uint32_t node_id = 0;
  int err = 0;  // from reading its gpu_id: EPERM for a hidden GPU

  bool operator==(const HiddenNode&) const = default;
};

// The kernel's limit of GPUs per process. No machine has more CPU nodes that are matched, and a node has a
// link or two to each other one. Images with more are refused.
inline constexpr std::size_t kGpusMax = 64;
inline constexpr std::size_t kCpuNodesMax = 64;
inline constexpr std::size_t kLinksMax = 256;  // of one node

// A node as its directory lists it: the kernel hashes the names of directory entries.
struct ListedNode {
  std::uint32_t node_id = 0;
  std::vector<IoLink> links;  // the node's links, in its directory's order
};

struct Topology {
  std::vector<Node> nodes;  // ascending node_id; node_ids and gpu_ids (except 0) are unique
  std::vector<HiddenNode> hidden;
  // The nodes in the order of the tree or image; an image written from this has the same order. May include
  // hidden nodes; nodes that are missing here come last, ascending.
  std::vector<ListedNode> listing;

  std::size_t gpu_count() const;
  // nullptr if there is none.
  const Node* find_node(std::uint32_t node_id) const;
  const Node* find_gpu(std::uint32_t gpu_id) const;  // REQUIRES: gpu_id != 0
  const Node* find_render_minor(std::uint32_t minor) const;

  // A link is valid if the node it leads to is in this topology.
  bool valid(const IoLink& link) const { return find_node(link.node_to) != nullptr; }
  // Valid, and the peer has a link of the same type back to `from`.
  bool bidirectional(const Node& from, const IoLink& link) const;
};

inline constexpr char kTopologyPath[] = "/sys/class/kfd/kfd/topology";

// Reads the tree below `path`, again if the kernel changed it meanwhile (generation_id). Of a CPU node only
// cpu_cores_count and the links are read. A GPU whose gpu_id cannot be read goes to `hidden`; links to it
// stay, but are not valid. p2p_links and caches are not read. Errors name the file: ENOENT and others of the
// file system; EBADMSG (missing property, not a number, out of range, longer than a page, a duplicate
// number).
Result<Topology> read_topology(const std::string& path = kTopologyPath);

}  // namespace sluice::kfd
