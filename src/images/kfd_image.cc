// SPDX-License-Identifier: MIT
#include "images/kfd_image.h"

#include <criu-amdgpu.pb-c.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "base/format.h"
#include "base/printable.h"
#include "kfd/uapi.h"
#include "repeated.h"
#include "unpack_memory.h"

namespace sluice {
namespace {

using kfd::IoLink;
using kfd::Node;
using kfd::Topology;

// A u32 field of a node in the message and its place in Node. (sysfs has no vram_public.)
struct EntryField {
  std::uint32_t KfdDeviceEntry::*stored;
  std::uint32_t Node::*member;
};

constexpr EntryField kEntryFields[] = {
    {&KfdDeviceEntry::node_id, &Node::node_id},
    {&KfdDeviceEntry::gpu_id, &Node::gpu_id},
    {&KfdDeviceEntry::cpu_cores_count, &Node::cpu_cores_count},
    {&KfdDeviceEntry::simd_count, &Node::simd_count},
    {&KfdDeviceEntry::mem_banks_count, &Node::mem_banks_count},
    {&KfdDeviceEntry::caches_count, &Node::caches_count},
    {&KfdDeviceEntry::io_links_count, &Node::io_links_count},
    {&KfdDeviceEntry::max_waves_per_simd, &Node::max_waves_per_simd},
    {&KfdDeviceEntry::lds_size_in_kb, &Node::lds_size_in_kb},
    {&KfdDeviceEntry::gds_size_in_kb, &Node::gds_size_in_kb},
    {&KfdDeviceEntry::num_gws, &Node::num_gws},
    {&KfdDeviceEntry::wave_front_size, &Node::wave_front_size},
    {&KfdDeviceEntry::array_count, &Node::array_count},
    {&KfdDeviceEntry::simd_arrays_per_engine, &Node::simd_arrays_per_engine},
    {&KfdDeviceEntry::cu_per_simd_array, &Node::cu_per_simd_array},
    {&KfdDeviceEntry::simd_per_cu, &Node::simd_per_cu},
    {&KfdDeviceEntry::max_slots_scratch_cu, &Node::max_slots_scratch_cu},
    {&KfdDeviceEntry::vendor_id, &Node::vendor_id},
    {&KfdDeviceEntry::device_id, &Node::device_id},
    {&KfdDeviceEntry::domain, &Node::domain},
    {&KfdDeviceEntry::drm_render_minor, &Node::drm_render_minor},
    {&KfdDeviceEntry::num_sdma_engines, &Node::num_sdma_engines},
    {&KfdDeviceEntry::num_sdma_xgmi_engines, &Node::num_sdma_xgmi_engines},
    {&KfdDeviceEntry::num_sdma_queues_per_engine, &Node::num_sdma_queues_per_engine},
    {&KfdDeviceEntry::num_cp_queues, &Node::num_cp_queues},
    {&KfdDeviceEntry::fw_version, &Node::fw_version},
    {&KfdDeviceEntry::capability, &Node::capability},
    {&KfdDeviceEntry::sdma_fw_version, &Node::sdma_fw_version},
    {&KfdDeviceEntry::vram_public, &Node::vram_public},
};

// protobuf-c does not write through the pointers that it packs from.
ProtobufCBinaryData borrowed(const std::uint8_t* data, std::size_t size) {
  return {size, const_cast<std::uint8_t*>(data)};
}
char* borrowed(const std::string& text) {
  return const_cast<char*>(text.c_str());
}

// A node of the image, with its links in stored order.
struct StoredNode {
  const Node* node = nullptr;
  std::span<const IoLink> links;
};

// Upstream's plugin takes the first arrangement of GPUs that fits. It tries the image's GPUs in their order
// against the local ones in the order of the topology's directories. Among equal GPUs on the dump's machine
// it finds the identity first if, and only if, nodes and links are in that order. Nodes matter because GPUs
// outside a hive are paired one by one; links, because they order the GPUs within a hive, and the CPU nodes.
std::vector<StoredNode> in_stored_order(const Topology& topology) {
  std::vector<StoredNode> stored;
  stored.reserve(topology.nodes.size());
  std::unordered_set<std::uint32_t> listed_ids;
  for (const kfd::ListedNode& listed : topology.listing) {
    const Node* const node = topology.find_node(listed.node_id);
    if (node != nullptr && listed_ids.insert(listed.node_id).second) stored.push_back({node, listed.links});
  }
  for (const Node& node : topology.nodes) {
    if (!listed_ids.contains(node.node_id)) stored.push_back({&node, node.links});
  }
  return stored;
}

void fill_entry(const Topology& topology, const StoredNode& stored_node, KfdDeviceEntry& entry,
                Repeated<DevIolink>& links) {
  const Node& node = *stored_node.node;
  for (const EntryField& field : kEntryFields) entry.*field.stored = node.*field.member;
  // Upstream's reader treats a node with cores as a CPU only. The single node of an APU is both.
  if (node.is_gpu()) entry.cpu_cores_count = 0;
  entry.hive_id = node.hive_id;
  entry.vram_size = node.vram_size;
  if (node.is_gpu()) {
    if (!node.name.empty()) entry.name = borrowed(node.name);
    entry.has_gfx_target_version = 1;
    entry.gfx_target_version = node.gfx_target_version;
    entry.has_location_id = 1;
    entry.location_id = node.location_id;
    entry.has_unique_id = 1;
    entry.unique_id = node.unique_id;
  }
  for (const IoLink& link : stored_node.links) {
    if (!topology.valid(link)) continue;
    DevIolink& stored = links.add(DEV_IOLINK__INIT);
    stored.type = link.type;
    stored.node_to_id = link.node_to;
  }
  links.put(entry.n_iolinks, entry.iolinks);
}

struct FreeMessage {
  void operator()(CriuKfd* message) const { criu_kfd__free_unpacked(message, nullptr); }
};

// A text that is only shown in messages. Null: none.
std::string text_of(const char* text) {
  constexpr std::size_t kMostShown = 64;
  return text == nullptr ? "" : printable(std::string_view(text).substr(0, kMostShown));
}

Error damaged_kfd(const std::string& why) {
  return Error{EBADMSG, formatted("the KFD image is damaged: {}; use another checkpoint [SL-I14]", why)};
}

Result<Node> decode_node(const KfdDeviceEntry& entry) {
  Node node;
  for (const EntryField& field : kEntryFields) node.*field.member = entry.*field.stored;
  node.hive_id = entry.hive_id;
  node.vram_size = entry.vram_size;
  if (node.gpu_id > kfd::kGpuIdMax)
    return damaged_kfd(formatted("gpu_id {} has more than 16 bits", node.gpu_id));
  if (node.vram_public > 1) return damaged_kfd(formatted("vram_public is {}", node.vram_public));
  node.name = text_of(entry.name);
  if (entry.has_gfx_target_version) node.gfx_target_version = entry.gfx_target_version;
  if (entry.has_location_id) node.location_id = entry.location_id;
  if (entry.has_unique_id) node.unique_id = entry.unique_id;
  if (entry.n_iolinks > kfd::kLinksMax)
    return damaged_kfd(formatted("node {} has {} links", node.node_id, entry.n_iolinks));
  node.links.reserve(entry.n_iolinks);
  for (const DevIolink* const link : std::span(entry.iolinks, entry.n_iolinks)) {
    if (link->type != kfd::kLinkPcie && link->type != kfd::kLinkXgmi) {
      return damaged_kfd(formatted("node {} has a link of type {}", node.node_id, link->type));
    }
    node.links.push_back({link->type, link->node_to_id});
  }
  return node;
}

Result<Topology> decode_topology(const CriuKfd& message) {
  const std::uint64_t promised = std::uint64_t{message.num_of_gpus} + message.num_of_cpus;
  if (message.n_device_entries != promised) {
    return damaged_kfd(formatted("it has {} nodes and announces {}", message.n_device_entries, promised));
  }
  if (message.num_of_gpus > kfd::kGpusMax || message.num_of_cpus > kfd::kCpuNodesMax) {
    return damaged_kfd(formatted("{} GPUs and {} CPU nodes are more than a process can have",
                                 message.num_of_gpus, message.num_of_cpus));
  }
  Topology topology;
  topology.nodes.reserve(message.n_device_entries);
  std::unordered_set<std::uint32_t> gpu_ids;
  for (const KfdDeviceEntry* const entry : std::span(message.device_entries, message.n_device_entries)) {
    SLUICE_TRY_ASSIGN(Node node, decode_node(*entry));
    if (node.is_gpu() && !gpu_ids.insert(node.gpu_id).second) {
      return damaged_kfd(formatted("it has GPU {} twice", node.gpu_id));
    }
    topology.listing.push_back({node.node_id, node.links});
    topology.nodes.push_back(std::move(node));
  }
  const auto by_id = [](const Node& a, const Node& b) { return a.node_id < b.node_id; };
  std::stable_sort(topology.nodes.begin(), topology.nodes.end(), by_id);
  const auto twice = std::adjacent_find(topology.nodes.begin(), topology.nodes.end(),
                                        [](const Node& a, const Node& b) { return a.node_id == b.node_id; });
  if (twice != topology.nodes.end()) return damaged_kfd(formatted("it has node {} twice", twice->node_id));
  if (gpu_ids.size() != message.num_of_gpus) {
    return damaged_kfd(formatted("it has {} GPUs and announces {}", gpu_ids.size(), message.num_of_gpus));
  }
  return topology;
}

// `ours`: the image says that we have made it; then it has the handle.
Result<BoEntry> decode_bo(const KfdBoEntry& entry, const std::string& name, const Topology& topology,
                          bool ours) {
  if (ours && entry.has_handle == 0) return damaged_kfd(name + " has no handle");
  if (entry.gpu_id == 0 || topology.find_gpu(entry.gpu_id) == nullptr) {
    return damaged_kfd(formatted("{} is on GPU {}, which the image does not have", name, entry.gpu_id));
  }
  if (entry.size == 0) return damaged_kfd(name + " has no size");
  if (entry.addr + entry.size < entry.addr) return damaged_kfd(name + " is longer than the address space");
  return BoEntry{{entry.addr, entry.size, entry.offset, entry.gpu_id, entry.alloc_flags},
                 entry.has_handle != 0 ? entry.handle : kNoHandle,
                 entry.has_shared != 0 ? entry.shared : 0,
                 false};
}

// Imported BOs say where among the others they belong.
Result<std::vector<BoEntry>> decode_bos(const CriuKfd& message, const Topology& topology) {
  if (message.n_bo_entries != message.num_of_bos) {
    return damaged_kfd(formatted("it has {} BOs and announces {}", message.n_bo_entries, message.num_of_bos));
  }
  const bool ours = message.has_dump_id != 0;
  std::vector<BoEntry> bos;
  bos.reserve(message.n_bo_entries + message.n_imported_bos);
  std::size_t next = 0;
  for (std::size_t i = 0; i <= message.n_imported_bos; i++) {
    const KfdImportedBo* imported = i < message.n_imported_bos ? message.imported_bos[i] : nullptr;
    for (; next < message.n_bo_entries && (imported == nullptr || bos.size() < imported->index); ++next) {
      SLUICE_TRY_ASSIGN(BoEntry bo, decode_bo(*message.bo_entries[next], "BO " + std::to_string(bos.size()),
                                              topology, ours));
      bos.push_back(bo);
    }
    if (imported == nullptr) break;
    const std::string name = "imported BO " + std::to_string(imported->index);
    if (imported->index != bos.size()) return damaged_kfd(name + " is out of order");
    SLUICE_TRY_ASSIGN(BoEntry bo, decode_bo(*imported->bo, name, topology, ours));
    if (bo.shared == 0) return damaged_kfd(name + " does not say whose memory it is");
    bo.imports = true;
    bos.push_back(bo);
  }
  return bos;
}

void fill_bo(const BoEntry& bo, KfdBoEntry& entry) {
  entry.addr = bo.addr;
  entry.size = bo.bytes;
  entry.offset = bo.offset;
  entry.alloc_flags = bo.alloc_flags;
  entry.gpu_id = bo.gpu_id;
  entry.has_handle = 1;
  entry.handle = bo.handle;
  entry.has_shared = bo.shared != 0 ? 1 : 0;
  entry.shared = bo.shared;
}

}  // namespace

bool KfdImage::operator==(const KfdImage& other) const {
  const auto all = [](const KfdImage& image) {
    return std::tie(image.pid, image.topology.nodes, image.bos, image.num_objects, image.shm, image.priv_data,
                    image.sluice_version, image.kernel_release, image.kfd_minor_version,
                    image.bo_record_bytes, image.alias_of, image.dump_id, image.has_sums, image.id,
                    image.replica_files);
  };
  return all(*this) == all(other);
}

Result<Topology> topology_of_process(const Topology& local, std::span<const kfd::DeviceIds> devices) {
  std::unordered_map<std::uint32_t, std::uint32_t> user_id_of;
  for (const kfd::DeviceIds& device : devices) {
    if (!user_id_of.emplace(device.actual_gpu_id, device.user_gpu_id).second) {
      return make_error(EIO, formatted("the KFD names GPU {} of the process twice", device.actual_gpu_id));
    }
  }
  Topology known;
  known.listing = local.listing;
  for (const Node& node : local.nodes) {
    const auto at = node.is_gpu() ? user_id_of.find(node.gpu_id) : user_id_of.end();
    if (node.is_gpu() && at == user_id_of.end()) continue;  // hidden from the process
    known.nodes.push_back(node);
    if (node.is_gpu()) known.nodes.back().gpu_id = at->second;
  }
  if (known.gpu_count() != devices.size()) {
    return Error{
        ENODEV,
        formatted("the process has {} GPUs, the topology in sysfs shows {} of them; give criu the host's "
                  "/sys and all GPUs [SL-D03]",
                  devices.size(), known.gpu_count())};
  }
  return known;
}

std::vector<std::uint8_t> encode_kfd_image(const KfdImage& image) {
  CriuKfd message;
  criu_kfd__init(&message);
  message.pid = image.pid;
  message.num_of_gpus = static_cast<std::uint32_t>(image.topology.gpu_count());
  message.num_of_cpus = static_cast<std::uint32_t>(image.topology.nodes.size()) - message.num_of_gpus;
  message.num_of_objects = image.num_objects;
  message.shared_mem_size = image.shm.bytes;
  message.shared_mem_magic = image.shm.magic;
  message.priv_data = borrowed(image.priv_data.data(), image.priv_data.size());

  const std::vector<StoredNode> nodes = in_stored_order(image.topology);
  Repeated<KfdDeviceEntry> entries(nodes.size());
  std::vector<Repeated<DevIolink>> links;
  for (const StoredNode& node : nodes) {
    fill_entry(image.topology, node, entries.add(KFD_DEVICE_ENTRY__INIT),
               links.emplace_back(node.links.size()));
  }
  entries.put(message.n_device_entries, message.device_entries);

  Repeated<KfdBoEntry> bos(image.bos.size());
  Repeated<KfdBoEntry> bos_of_imports(image.bos.size());
  Repeated<KfdImportedBo> imports(image.bos.size());
  for (std::size_t i = 0; i < image.bos.size(); ++i) {
    const BoEntry& bo = image.bos[i];
    KfdBoEntry& entry = (bo.imports ? bos_of_imports : bos).add(KFD_BO_ENTRY__INIT);
    fill_bo(bo, entry);
    if (!bo.imports) continue;
    KfdImportedBo& imported = imports.add(KFD_IMPORTED_BO__INIT);
    imported.index = static_cast<std::uint32_t>(i);
    imported.bo = &entry;
  }
  bos.put(message.n_bo_entries, message.bo_entries);
  message.num_of_bos = static_cast<std::uint32_t>(message.n_bo_entries);
  imports.put(message.n_imported_bos, message.imported_bos);

  if (!image.sluice_version.empty()) message.sluice_version = borrowed(image.sluice_version);
  if (!image.kernel_release.empty()) message.kernel_release = borrowed(image.kernel_release);
  message.has_kfd_minor_version = image.kfd_minor_version != 0;
  message.kfd_minor_version = image.kfd_minor_version;
  message.has_bo_record_bytes = image.bo_record_bytes != 0;
  message.bo_record_bytes = image.bo_record_bytes;
  message.has_alias_of = image.alias_of.has_value();
  message.alias_of = image.alias_of.value_or(0);
  message.has_dump_id = image.dump_id.has_value();
  if (image.dump_id) message.dump_id = borrowed(image.dump_id->data(), image.dump_id->size());
  message.has_has_sums = image.has_sums;
  message.has_sums = image.has_sums;
  message.has_id = image.id.has_value();
  message.id = image.id.value_or(0);
  std::vector<char*> replica_files = pointers_to(image.replica_files);
  message.n_replica_files = replica_files.size();
  message.replica_files = replica_files.data();

  std::vector<std::uint8_t> bytes(criu_kfd__get_packed_size(&message));
  criu_kfd__pack(&message, bytes.data());
  return bytes;
}

Result<KfdImage> decode_kfd_image(std::span<const std::uint8_t> bytes) {
  UnpackMemory memory(bytes.size());
  const std::unique_ptr<CriuKfd, FreeMessage> message(
      criu_kfd__unpack(memory.allocator(), bytes.size(), bytes.data()));
  memory.throw_if_process_had_none();
  if (message == nullptr) return damaged_kfd("it is not a criu_kfd message");

  KfdImage image;
  SLUICE_TRY_ASSIGN(image.topology, decode_topology(*message));
  SLUICE_TRY_ASSIGN(image.bos, decode_bos(*message, image.topology));
  image.pid = message->pid;
  image.num_objects = message->num_of_objects;
  image.shm = {message->shared_mem_size, message->shared_mem_magic};
  image.priv_data.assign(message->priv_data.data, message->priv_data.data + message->priv_data.len);
  image.sluice_version = text_of(message->sluice_version);
  image.kernel_release = text_of(message->kernel_release);
  if (message->has_kfd_minor_version) image.kfd_minor_version = message->kfd_minor_version;
  if (message->has_bo_record_bytes) image.bo_record_bytes = message->bo_record_bytes;
  if (message->has_alias_of) image.alias_of = message->alias_of;
  if (message->has_dump_id) {
    DumpId id{};
    if (message->dump_id.len != id.size()) {
      return damaged_kfd(formatted("dump_id has {} bytes", message->dump_id.len));
    }
    std::copy_n(message->dump_id.data, id.size(), id.begin());
    image.dump_id = id;
  }
  image.has_sums = message->has_has_sums && message->has_sums;
  if (message->has_id) image.id = message->id;
  image.replica_files.assign(message->replica_files, message->replica_files + message->n_replica_files);
  return image;
}

}  // namespace sluice
