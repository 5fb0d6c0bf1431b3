// SPDX-License-Identifier: MIT
// Machines for the tests of sluice::kfd, as topologies and as trees of text, and a folder for them. Property
// values come from real captures (MI210 in a hive; MI300X whole and as CPX partitions).
#pragma once

#include <filesystem>
#include <string>

#include "kfd/topology.h"

namespace sluice::test {

// A folder that is removed with its owner.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

void write_text(const std::filesystem::path& file, const std::string& text);
std::string read_whole(const std::filesystem::path& file);

// GPU nodes without links.
kfd::Node mi210(std::uint32_t node_id, std::uint32_t gpu_id, std::uint32_t render_minor);
kfd::Node mi300x(std::uint32_t node_id, std::uint32_t gpu_id, std::uint32_t render_minor);
kfd::Node mi300x_cpx(std::uint32_t node_id, std::uint32_t gpu_id, std::uint32_t render_minor);
kfd::Node cpu(std::uint32_t node_id);

// Adds a link in both directions.
void join(kfd::Topology& topology, std::uint32_t node_a, std::uint32_t node_b, std::uint32_t type);

// One CPU node and `gpus` MI210 on it, all in one hive if `hive`. gpu_ids count from `first_gpu_id`.
kfd::Topology mi210_machine(std::size_t gpus, bool hive, std::uint32_t first_gpu_id = 0x2000);
// Two CPU nodes, four MI300X on each, all eight in one hive.
kfd::Topology mi300x_machine();
// Two CPU nodes and 64 CPX partitions, eight to a GPU, all joined.
kfd::Topology cpx_machine(std::uint32_t first_gpu_id = 0x4000);

// Writes `topology` as sysfs shows it: the kernel's files, in the kernel's order of properties.
void write_tree(const std::filesystem::path& root, const kfd::Topology& topology);

}  // namespace sluice::test
