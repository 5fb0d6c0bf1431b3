// SPDX-License-Identifier: MIT
#include "kfd/topology.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "base/format.h"
#include "base/printable.h"
#include "base/unique_fd.h"
#include "kfd/uapi.h"
#include "proc/directory.h"

namespace sluice::kfd {

const std::array<NodeField, 26> kGpuFields = {{
    {"cpu_cores_count", &Node::cpu_cores_count},
    {"simd_count", &Node::simd_count},
    {"mem_banks_count", &Node::mem_banks_count},
    {"caches_count", &Node::caches_count},
    {"io_links_count", &Node::io_links_count},
    {"max_waves_per_simd", &Node::max_waves_per_simd},
    {"lds_size_in_kb", &Node::lds_size_in_kb},
    {"gds_size_in_kb", &Node::gds_size_in_kb},
    {"num_gws", &Node::num_gws},
    {"wave_front_size", &Node::wave_front_size},
    {"array_count", &Node::array_count},
    {"simd_arrays_per_engine", &Node::simd_arrays_per_engine},
    {"cu_per_simd_array", &Node::cu_per_simd_array},
    {"simd_per_cu", &Node::simd_per_cu},
    {"max_slots_scratch_cu", &Node::max_slots_scratch_cu},
    {"vendor_id", &Node::vendor_id},
    {"device_id", &Node::device_id},
    {"domain", &Node::domain},
    {"drm_render_minor", &Node::drm_render_minor},
    {"num_sdma_engines", &Node::num_sdma_engines},
    {"num_sdma_xgmi_engines", &Node::num_sdma_xgmi_engines},
    {"num_sdma_queues_per_engine", &Node::num_sdma_queues_per_engine},
    {"num_cp_queues", &Node::num_cp_queues},
    {"fw_version", &Node::fw_version},
    {"capability", &Node::capability},
    {"sdma_fw_version", &Node::sdma_fw_version},
}};

namespace {

constexpr std::uint64_t kU32Max = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint64_t kU64Max = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kNodesMax = 4096;
constexpr std::size_t kNameBytesMax = 64;

// The kernel's CPU and its two kinds of GPU memory bank: system, VRAM visible to the CPU, VRAM that is not.
constexpr std::uint64_t kHeapFbPublic = 1;
constexpr std::uint64_t kHeapFbPrivate = 2;

Error unreadable(const std::string& what) {
  return Error{EBADMSG,
               what + "; give this process the host's /sys, or use a sluice that knows this kernel [SL-G46]"};
}

// A sysfs attribute is at most one page of any size.
Result<std::string> read_text(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return make_error(errno, "open " + path);
  const auto bytes_max = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::string text(bytes_max + 1, '\0');
  std::size_t length = 0;
  while (length < text.size()) {
    const ssize_t got = ::read(fd.get(), text.data() + length, text.size() - length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return make_error(errno, "read " + path);
    if (got == 0) break;
    length += static_cast<std::size_t>(got);
  }
  if (length > bytes_max) return unreadable(path + " is longer than a page");
  text.resize(length);
  return text;
}

std::optional<std::uint64_t> parse_u64(std::string_view text, std::uint64_t max) {
  constexpr std::size_t kDigitsMax = 20;  // of 2^64 - 1
  if (text.size() > kDigitsMax) return std::nullopt;
  std::uint64_t value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end != text.data() + text.size() || value > max) return std::nullopt;
  return value;
}

// As much of a text as a message shows.
std::string shown(std::string_view text) {
  return printable(text.substr(0, kNameBytesMax));
}

// A file of lines "name value". Lines of other names may contain anything.
class PropertyFile {
 public:
  static Result<PropertyFile> load(std::string path) {
    SLUICE_TRY_ASSIGN(std::string text, read_text(path));
    return PropertyFile(std::move(path), std::move(text));
  }

  // The value of property `name`; `max` bounds it.
  Result<std::uint64_t> get(std::string_view name, std::uint64_t max) const {
    SLUICE_TRY_ASSIGN(const std::optional<std::uint64_t> value, find(name, max));
    if (!value) return unreadable(formatted("{} has no property {}", path_, name));
    return *value;
  }

  // As get, but returns nothing instead of an error if the property is missing.
  Result<std::optional<std::uint64_t>> find(std::string_view name, std::uint64_t max) const {
    std::optional<std::uint64_t> found;
    for (std::string_view rest = text_; !rest.empty();) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(line.size() + 1, rest.size()));
      if (line.size() <= name.size() || line[name.size()] != ' ' || !line.starts_with(name)) continue;
      const std::string_view digits = line.substr(name.size() + 1);
      const auto value = parse_u64(digits, max);
      if (!value || found) {
        return unreadable(formatted("property {} of {} {}", name, path_,
                                    value ? "is there twice" : "is '" + shown(digits) + "'"));
      }
      found = value;
    }
    return found;
  }

 private:
  PropertyFile(std::string path, std::string text) : path_(std::move(path)), text_(std::move(text)) {}

  std::string path_;
  std::string text_;
};

bool not_permitted(int err) {
  return err == EPERM || err == EACCES;
}

// VRAM is the first bank of either VRAM kind; the driver makes one.
Result<void> read_memory_banks(const std::string& directory, Node& node) {
  SLUICE_TRY_ASSIGN(const std::vector<int> banks, proc::numbered_entries(directory));
  for (const int bank : banks) {
    SLUICE_TRY_ASSIGN(const PropertyFile properties,
                      PropertyFile::load(directory + "/" + std::to_string(bank) + "/properties"));
    SLUICE_TRY_ASSIGN(const std::uint64_t heap, properties.get("heap_type", kU32Max));
    SLUICE_TRY_ASSIGN(const std::uint64_t bytes, properties.get("size_in_bytes", kU64Max));
    if (heap != kHeapFbPublic && heap != kHeapFbPrivate) continue;
    node.vram_size = bytes;
    node.vram_public = heap == kHeapFbPublic ? 1 : 0;
    break;
  }
  return {};
}

// `listed`: the links, in the directory's order.
Result<void> read_links(const std::string& directory, Node& node, std::vector<IoLink>& listed) {
  auto links = proc::listed_numbers(directory);
  if (!links) {
    // A tree without the directory has no links.
    if (links.error().err == ENOENT) return {};
    return std::move(links).error();
  }
  std::map<int, IoLink> by_number;
  for (const int link : *links) {
    auto properties = PropertyFile::load(directory + "/" + std::to_string(link) + "/properties");
    if (!properties) {
      if (not_permitted(properties.error().err)) continue;  // leads to a hidden GPU
      return std::move(properties).error();
    }
    SLUICE_TRY_ASSIGN(const std::uint64_t type, properties->get("type", kU32Max));
    SLUICE_TRY_ASSIGN(const std::uint64_t node_to, properties->get("node_to", kU32Max));
    if (type != kLinkPcie && type != kLinkXgmi) continue;
    listed.push_back({static_cast<std::uint32_t>(type), static_cast<std::uint32_t>(node_to)});
    by_number.emplace(link, listed.back());
  }
  for (const auto& [number, link] : by_number) node.links.push_back(link);
  return {};
}

Result<void> read_gpu_properties(const PropertyFile& properties, Node& node) {
  for (const NodeField& field : kGpuFields) {
    SLUICE_TRY_ASSIGN(const std::uint64_t value, properties.get(field.name, kU32Max));
    node.*field.member = static_cast<std::uint32_t>(value);
  }
  SLUICE_TRY_ASSIGN(node.hive_id, properties.get("hive_id", kU64Max));
  SLUICE_TRY_ASSIGN(const auto gfx, properties.find("gfx_target_version", kU32Max));
  SLUICE_TRY_ASSIGN(const auto xccs, properties.find("num_xcc", kU32Max));
  SLUICE_TRY_ASSIGN(const auto location, properties.find("location_id", kU32Max));
  SLUICE_TRY_ASSIGN(const auto unique_id, properties.find("unique_id", kU64Max));
  node.gfx_target_version = static_cast<std::uint32_t>(gfx.value_or(0));
  node.num_xcc = static_cast<std::uint32_t>(xccs.value_or(0));
  node.location_id = static_cast<std::uint32_t>(location.value_or(0));
  node.unique_id = unique_id.value_or(0);
  return {};
}

// Adds node `node_id` to `topology`, or to its hidden nodes. `listed`: its links, in the directory's order.
Result<void> read_node(const std::string& directory, std::uint32_t node_id, Topology& topology,
                       std::vector<IoLink>& listed) {
  auto gpu_id_text = read_text(directory + "/gpu_id");
  if (!gpu_id_text) {
    const int err = gpu_id_text.error().err;
    if (!not_permitted(err) && err != ENOENT && err != ENODEV) return std::move(gpu_id_text).error();
    topology.hidden.push_back({node_id, err});
    return {};
  }
  std::string_view digits = *gpu_id_text;
  if (digits.ends_with('\n')) digits.remove_suffix(1);
  const auto gpu_id = parse_u64(digits, kGpuIdMax);
  if (!gpu_id) return unreadable(formatted("{}/gpu_id is '{}'", directory, shown(digits)));

  Node node;
  node.node_id = node_id;
  node.gpu_id = static_cast<std::uint32_t>(*gpu_id);
  if (node.is_gpu() && topology.find_gpu(node.gpu_id) != nullptr) {
    return unreadable(formatted("{}/gpu_id has GPU {} twice", directory, node.gpu_id));
  }
  SLUICE_TRY_ASSIGN(const PropertyFile properties, PropertyFile::load(directory + "/properties"));
  if (node.is_gpu()) {
    SLUICE_TRY(read_gpu_properties(properties, node));
    SLUICE_TRY(read_memory_banks(directory + "/mem_banks", node));
    if (auto name = read_text(directory + "/name"); name) {
      node.name = shown(std::string_view(*name).substr(0, name->find('\n')));
    }
  } else {
    SLUICE_TRY_ASSIGN(const std::uint64_t cores, properties.get("cpu_cores_count", kU32Max));
    node.cpu_cores_count = static_cast<std::uint32_t>(cores);
  }
  SLUICE_TRY(read_links(directory + "/io_links", node, listed));
  topology.nodes.push_back(std::move(node));
  return {};
}

Result<Topology> read_nodes(const std::string& directory) {
  SLUICE_TRY_ASSIGN(const std::vector<int> ids, proc::listed_numbers(directory));
  if (ids.size() > kNodesMax) return unreadable(formatted("{} has {} nodes", directory, ids.size()));
  Topology topology;
  std::map<std::uint32_t, std::vector<IoLink>*> ascending;  // each node's place in the listing
  topology.listing.reserve(ids.size());
  for (const int id : ids) {
    ListedNode& listed = topology.listing.emplace_back();
    listed.node_id = static_cast<std::uint32_t>(id);
    if (!ascending.emplace(listed.node_id, &listed.links).second)
      return unreadable(directory + " has a node number twice");
  }
  for (const auto& [node_id, links] : ascending)
    SLUICE_TRY(read_node(directory + "/" + std::to_string(node_id), node_id, topology, *links));
  return topology;
}

// The kernel counts changes of its topology; a tree without the file does not change.
std::string read_generation(const std::string& path) {
  auto text = read_text(path + "/generation_id");
  return text ? std::move(text).value() : std::string();
}

}  // namespace

std::string gpu_id_text(std::uint32_t gpu_id) {
  std::array<char, 16> text{};
  (void)std::snprintf(text.data(), text.size(), "0x%04" PRIx32, gpu_id);
  return text.data();
}

std::size_t Topology::gpu_count() const {
  return static_cast<std::size_t>(
      std::count_if(nodes.begin(), nodes.end(), [](const Node& node) { return node.is_gpu(); }));
}

const Node* Topology::find_node(std::uint32_t node_id) const {
  const auto at = std::lower_bound(nodes.begin(), nodes.end(), node_id,
                                   [](const Node& node, std::uint32_t id) { return node.node_id < id; });
  return at != nodes.end() && at->node_id == node_id ? &*at : nullptr;
}

const Node* Topology::find_gpu(std::uint32_t gpu_id) const {
  const auto at =
      std::find_if(nodes.begin(), nodes.end(), [gpu_id](const Node& node) { return node.gpu_id == gpu_id; });
  return at != nodes.end() ? &*at : nullptr;
}

const Node* Topology::find_render_minor(std::uint32_t minor) const {
  const auto at = std::find_if(nodes.begin(), nodes.end(), [minor](const Node& node) {
    return node.is_gpu() && node.drm_render_minor == minor;
  });
  return at != nodes.end() ? &*at : nullptr;
}

bool Topology::bidirectional(const Node& from, const IoLink& link) const {
  const Node* peer = find_node(link.node_to);
  if (peer == nullptr) return false;
  return std::find(peer->links.begin(), peer->links.end(), IoLink{link.type, from.node_id}) !=
         peer->links.end();
}

Result<Topology> read_topology(const std::string& path) {
  constexpr int kAttempts = 10;
  for (int attempt = 0; attempt < kAttempts; attempt++) {
    const std::string before = read_generation(path);
    auto topology = read_nodes(path + "/nodes");
    // A half-made change may look like damage, so the result counts only if nothing changed meanwhile.
    if (read_generation(path) == before) return topology;
  }
  return Error{EBUSY, path + " keeps changing while it is read; try again [SL-G47]"};
}

}  // namespace sluice::kfd
