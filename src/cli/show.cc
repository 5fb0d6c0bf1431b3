// SPDX-License-Identifier: MIT
// sluice show IMAGES: what is in a checkpoint. From its metadata images, the sizes and holes of its pages
// files, and the statistics beside them; contents are not read.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/image_directory.h"
#include "cli/text.h"
#include "images/files.h"
#include "images/pages.h"
#include "kfd/uapi.h"
#include "pipeline/file_store.h"
#include "pipeline/image_file.h"
#include "pipeline/printable.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string images;
  bool bos = false;
  bool stats = false;
  bool json = false;
};

// What kind of memory a BO is.
const char* kind_of(const kfd::BoEntry& bo) {
  if ((bo.alloc_flags & kfd::kAllocVram) != 0) return "VRAM";
  if ((bo.alloc_flags & kfd::kAllocGtt) != 0) return "GTT";
  if ((bo.alloc_flags & kfd::kAllocUserptr) != 0) return "userptr";
  if ((bo.alloc_flags & kfd::kAllocDoorbell) != 0) return "doorbell";
  return (bo.alloc_flags & kfd::kAllocMmioRemap) != 0 ? "MMIO" : "other";
}

// amdgpu_drm.h's AMDGPU_GEM_DOMAIN_*.
const char* kind_of(const drm::GemBo& bo) {
  constexpr std::uint64_t kCpu = 1;
  constexpr std::uint64_t kGtt = 2;
  constexpr std::uint64_t kVram = 4;
  if ((bo.domains & kVram) != 0) return "VRAM";
  if ((bo.domains & kGtt) != 0) return "GTT";
  return (bo.domains & kCpu) != 0 ? "CPU" : "other";
}

std::string hex4(std::uint32_t gpu_id) {
  std::array<char, 16> text{};
  (void)std::snprintf(text.data(), text.size(), "0x%04x", gpu_id);
  return text.data();
}

std::string gfx_name(std::uint32_t version) {
  if (version == 0) return "";
  std::array<char, 32> text{};
  (void)std::snprintf(text.data(), text.size(), "gfx%u%x%x", version / 10000, version / 100 % 100,
                      version % 100);
  return text.data();
}

std::string pci_name(const kfd::Node& node) {
  if (node.location_id == 0) return "";
  std::array<char, 32> text{};
  (void)std::snprintf(text.data(), text.size(), "%04x:%02x:%02x.%x", node.domain,
                      (node.location_id >> 8) & 0xffU, (node.location_id >> 3) & 0x1fU,
                      node.location_id & 7U);
  return text.data();
}

std::string hex_of(const DumpId& id) {
  std::string text;
  for (const std::uint8_t byte : id) {
    std::array<char, 3> digits{};
    (void)std::snprintf(digits.data(), digits.size(), "%02x", byte);
    text += digits.data();
  }
  return text;
}

// BOs of one kind.
struct Sum {
  std::uint64_t bos = 0;
  std::uint64_t bytes = 0;
};
using Kinds = std::map<std::string, Sum>;

// Cells of a table: BOs, VRAM, GTT, and what else.
std::vector<std::string> cells_of(const Kinds& kinds) {
  std::uint64_t bos = 0;
  std::string others;
  for (const auto& [kind, sum] : kinds) {
    bos += sum.bos;
    if (kind == "VRAM" || kind == "GTT") continue;
    others += (others.empty() ? "" : ", ") + bytes_text(sum.bytes) + " " + kind;
  }
  const auto bytes = [&](const char* kind) {
    const auto sum = kinds.find(kind);
    return sum == kinds.end() ? "" : bytes_text(sum->second.bytes);
  };
  return {std::to_string(bos), bytes("VRAM"), bytes("GTT"), others};
}

Json json_of(const Kinds& kinds) {
  Json object = Json::object();
  for (const auto& [kind, sum] : kinds) object[kind] = {{"bos", sum.bos}, {"bytes", sum.bytes}};
  return object;
}

// One pages file, as it lies there.
struct PagesFile {
  std::string name;
  std::string owner;
  std::uint64_t expected_bytes = 0;
  std::uint64_t bytes = 0;
  std::uint64_t disk_bytes = 0;
  std::uint64_t zero_bytes = 0;
  bool has_sums = false;
  std::string fault;  // empty: none that can be seen without reading it
};

// Bytes in holes. A file system without holes says: none.
std::uint64_t hole_bytes(int fd, std::uint64_t file_bytes) {
  std::uint64_t holes = 0;
  off_t at = 0;
  const auto end = static_cast<off_t>(file_bytes);
  while (at < end) {
    off_t data = ::lseek(fd, at, SEEK_DATA);
    if (data < 0 && errno != ENXIO) return 0;
    if (data < 0 || data > end) data = end;
    holes += static_cast<std::uint64_t>(data - at);
    if (data == end) break;
    at = ::lseek(fd, data, SEEK_HOLE);
    if (at <= data) break;
  }
  return holes;
}

// Bytes in blocks whose sums are those of zeros: what a copy that filled the holes still shows.
std::uint64_t zero_block_bytes(const SumTable& table) {
  const Sum128 zeros = sum_of(std::vector<std::byte>(static_cast<std::size_t>(table.block_bytes)));
  const auto blocks = static_cast<std::uint64_t>(std::count(table.sums.begin(), table.sums.end(), zeros));
  return std::min(blocks * table.block_bytes, table.file_bytes);
}

std::vector<PagesFile> look_at_pages(int dir_fd, int id, const PagesSet& set, const DumpId& dump_id,
                                     std::vector<std::string>& faults) {
  std::vector<PagesFile> files;
  const auto layout = set.layout(kSumBlockBytes);
  if (!layout) {
    faults.push_back(set.metadata_name(id) + ": " + layout.error().what);
    return files;
  }
  auto sums = read_sidecar(dir_fd, id, set, *layout, dump_id);
  if (!sums) faults.push_back(sums.error().what);
  for (std::uint32_t i = 0; i < layout->file_count(); ++i) {
    PagesFile file{
        .name = set.pages_name(id, i), .owner = set.words(), .expected_bytes = layout->file_bytes(i)};
    file.has_sums = sums && *sums;
    const auto opened = open_image_file(dir_fd, file.name);
    if (!opened) {
      file.fault = opened.error().what;
    } else {
      const auto good = check_pages_file(file.name, opened->status, file.expected_bytes);
      if (!good) file.fault = good.error().what;
      file.bytes = static_cast<std::uint64_t>(opened->status.st_size);
      file.disk_bytes = static_cast<std::uint64_t>(opened->status.st_blocks) * 512;
      if (good) file.zero_bytes = hole_bytes(opened->fd.get(), file.bytes);
      if (file.has_sums) file.zero_bytes = std::max(file.zero_bytes, zero_block_bytes((**sums).tables[i]));
    }
    if (!file.fault.empty()) faults.push_back(file.fault);
    files.push_back(std::move(file));
  }
  return files;
}

// What several have: by its number in the dump.
struct SharedMemory {
  std::uint64_t bytes = 0;
  std::string maker;
  std::vector<std::string> holders;  // the others
};

// The checkpoint as it is told, whether as text or as JSON.
struct Summary {
  std::vector<PagesFile> files;
  std::vector<std::string> faults;
  Kinds all;
  std::map<std::uint32_t, SharedMemory> shared;
  std::uint64_t bytes = 0, disk_bytes = 0, zero_bytes = 0;
  bool all_have_sums = true;
};

Kinds kinds_of(const kfd::KfdImage& image) {
  Kinds kinds;
  for (const kfd::BoEntry& bo : image.bos) {
    Sum& sum = kinds[kind_of(bo)];
    ++sum.bos;
    sum.bytes += bo.bytes;
  }
  return kinds;
}

Kinds kinds_of(const RenderImage& image) {
  Kinds kinds;
  for (const RenderBo& bo : image.bos) {
    Sum& sum = kinds[bo.imports ? "imported" : kind_of(bo.gem)];
    ++sum.bos;
    sum.bytes += bo.gem.bytes;
  }
  return kinds;
}

void add_kinds(Kinds& all, const Kinds& more) {
  for (const auto& [kind, sum] : more) {
    all[kind].bos += sum.bos;
    all[kind].bytes += sum.bytes;
  }
}

std::map<std::uint32_t, SharedMemory> shared_in(const Checkpoint& checkpoint) {
  std::map<std::uint32_t, SharedMemory> shared;
  for (const auto& [id, image] : checkpoint.kfd) {
    for (std::size_t i = 0; i < image.bos.size(); ++i) {
      const kfd::BoEntry& bo = image.bos[i];
      if (bo.shared == 0) continue;
      shared[bo.shared].bytes = bo.bytes;
      shared[bo.shared].maker =
          "process " + std::to_string(image.pid) + ", " + gpu_words(bo.gpu_id) + " BO " + std::to_string(i);
    }
  }
  for (const auto& [id, image] : checkpoint.render) {
    for (const RenderBo& bo : image.bos) {
      if (bo.shared == 0) continue;
      const std::string holder = "renderD" + std::to_string(image.minor) + " file " + std::to_string(id) +
                                 ", GEM handle " + std::to_string(bo.gem.handle);
      SharedMemory& memory = shared[bo.shared];
      memory.bytes = bo.gem.bytes;
      if (bo.imports) {
        memory.holders.push_back(holder);
      } else {
        memory.maker = holder;
      }
    }
  }
  for (const auto& [id, image] : checkpoint.dmabufs)
    shared[image.shared].holders.push_back("open dma-buf, file " + std::to_string(id));
  return shared;
}

Summary summary_of(const ImageDirectory& directory) {
  Summary summary;
  const auto take = [&](int id, const PagesSet& set, const std::optional<DumpId>& dump_id) {
    const auto files = look_at_pages(directory.fd.get(), id, set, dump_id.value_or(DumpId{}), summary.faults);
    summary.files.insert(summary.files.end(), files.begin(), files.end());
  };
  for (const Error& error : directory.checkpoint.unreadable) summary.faults.push_back(error.what);
  for (const auto& [id, image] : directory.checkpoint.kfd) {
    for (const PagesSet& set : pages_of(image)) take(id, set, image.dump_id);
    add_kinds(summary.all, kinds_of(image));
  }
  for (const auto& [id, image] : directory.checkpoint.render) {
    if (image.has_contents()) take(id, pages_of(image), image.dump_id);
    add_kinds(summary.all, kinds_of(image));
  }
  for (const PagesFile& file : summary.files) {
    summary.bytes += file.bytes;
    summary.disk_bytes += file.disk_bytes;
    summary.zero_bytes += file.zero_bytes;
    summary.all_have_sums = summary.all_have_sums && file.has_sums;
  }
  summary.shared = shared_in(directory.checkpoint);
  return summary;
}

// The GPUs of all processes, each once: every KFD image describes the same machine.
std::vector<std::pair<const kfd::Node*, const kfd::Topology*>> gpus_of(const Checkpoint& checkpoint) {
  std::vector<std::pair<const kfd::Node*, const kfd::Topology*>> gpus;
  std::set<std::uint32_t> known;
  for (const auto& [id, image] : checkpoint.kfd) {
    for (const kfd::Node& node : image.topology.nodes) {
      if (node.is_gpu() && known.insert(node.gpu_id).second) gpus.emplace_back(&node, &image.topology);
    }
  }
  return gpus;
}

const char* link_name(std::uint32_t type) {
  return type == kfd::kLinkXgmi ? "XGMI" : "PCIe";
}

// "XGMI 0x5759 0x575a, PCIe CPU 0".
std::string links_text(const kfd::Node& gpu, const kfd::Topology& topology) {
  std::map<std::string, std::string> peers;
  for (const kfd::IoLink& link : gpu.links) {
    const kfd::Node* peer = topology.find_node(link.node_to);
    if (peer == nullptr) continue;
    peers[link_name(link.type)] +=
        peer->is_gpu() ? " " + hex4(peer->gpu_id) : " CPU" + std::to_string(peer->node_id);
  }
  std::string text;
  for (const auto& [type, names] : peers) text.append(text.empty() ? "" : ", ").append(type).append(names);
  return text;
}

std::string gpus_text(const Checkpoint& checkpoint) {
  Table table({"gpu_id", "name", "", "PCI", "render node", ">VRAM", "links"});
  for (const auto& [gpu, topology] : gpus_of(checkpoint)) {
    table.add({hex4(gpu->gpu_id), gpu->name, gfx_name(gpu->gfx_target_version), pci_name(*gpu),
               "renderD" + std::to_string(gpu->drm_render_minor), bytes_text(gpu->vram_size),
               links_text(*gpu, *topology)});
  }
  return table.empty() ? "" : "\nGPUs\n" + table.text();
}

std::string processes_text(const Checkpoint& checkpoint) {
  const auto row = [](std::vector<std::string> begin, const Kinds& kinds, const std::string& end) {
    const std::vector<std::string> cells = cells_of(kinds);
    begin.insert(begin.end(), cells.begin(), cells.end());
    begin.push_back(end);
    return begin;
  };
  Table table({"image", ">process", ">BOs", ">VRAM", ">GTT", "other memory", "queues, events, ranges"});
  for (const auto& [id, image] : checkpoint.kfd) {
    table.add(row({kfd_image_name(id), std::to_string(image.pid)}, kinds_of(image),
                  image.alias_of ? "those of " + kfd_image_name(static_cast<int>(*image.alias_of))
                                 : std::to_string(image.num_objects)));
  }
  std::string text = table.empty() ? "" : "\nProcesses\n" + table.text();
  Table files({"image", ">process", ">BOs", ">VRAM", ">GTT", "other memory", "device"});
  for (const auto& [id, image] : checkpoint.render) {
    files.add(
        row({render_image_name(id), image.pid ? std::to_string(*image.pid) : ""}, kinds_of(image),
            "renderD" + std::to_string(image.minor) + (image.kfd_acquired.value_or(false) ? ", KFD's" : "")));
  }
  if (!files.empty()) text += "\nRender files\n" + files.text();
  return text;
}

std::string files_text(const Summary& summary) {
  Table table({"file", "of", ">bytes", ">on disk", ">zero", "sums"});
  for (const PagesFile& file : summary.files) {
    table.add({file.name, file.owner, bytes_text(file.bytes), bytes_text(file.disk_bytes),
               share_text(file.zero_bytes, file.bytes), file.has_sums ? "yes" : "none"});
  }
  return table.empty() ? "" : "\nContents\n" + table.text();
}

std::string shared_text(const Summary& summary) {
  std::string text;
  for (const auto& [number, memory] : summary.shared) {
    text += "  " + std::to_string(number) + ": " + bytes_text(memory.bytes) + " of " +
            (memory.maker.empty() ? "nobody in these images" : memory.maker);
    for (const std::string& holder : memory.holders) text += "; " + holder;
    text += '\n';
  }
  return text.empty() ? "" : "\nShared memory\n" + text;
}

std::string bos_text(const Checkpoint& checkpoint) {
  Table table({"image", "GPU", ">BO", "kind", "address", ">bytes", "flags", ">handle", "shared"});
  const auto number = [](std::uint32_t value) { return value == 0 ? "" : std::to_string(value); };
  for (const auto& [id, image] : checkpoint.kfd) {
    for (std::size_t i = 0; i < image.bos.size(); ++i) {
      const kfd::BoEntry& bo = image.bos[i];
      table.add({kfd_image_name(id), hex4(bo.gpu_id), std::to_string(i), kind_of(bo), hex(bo.addr),
                 std::to_string(bo.bytes), hex(bo.alloc_flags),
                 bo.handle == kfd::kNoHandle ? "" : std::to_string(bo.handle), number(bo.shared)});
    }
  }
  for (const auto& [id, image] : checkpoint.render) {
    for (std::size_t i = 0; i < image.bos.size(); ++i) {
      const RenderBo& bo = image.bos[i];
      table.add({render_image_name(id), hex4(image.gpu_id), std::to_string(i),
                 std::string(kind_of(bo.gem)) + (bo.imports ? ", imported" : ""),
                 bo.gem.mappings.empty() ? "" : hex(bo.gem.mappings.front().address),
                 std::to_string(bo.gem.bytes), hex(bo.gem.alloc_flags), std::to_string(bo.gem.handle),
                 number(bo.shared)});
    }
  }
  return table.empty() ? "" : "\nBOs\n" + table.text();
}

Json bos_json(const Checkpoint& checkpoint) {
  Json list = Json::array();
  for (const auto& [id, image] : checkpoint.kfd) {
    for (std::size_t i = 0; i < image.bos.size(); ++i) {
      const kfd::BoEntry& bo = image.bos[i];
      list.push_back({{"image", kfd_image_name(id)},
                      {"gpu_id", bo.gpu_id},
                      {"bo", i},
                      {"kind", kind_of(bo)},
                      {"address", bo.addr},
                      {"bytes", bo.bytes},
                      {"alloc_flags", bo.alloc_flags},
                      {"handle", bo.handle == kfd::kNoHandle ? Json() : Json(bo.handle)},
                      {"imported", false},
                      {"shared", bo.shared}});
    }
  }
  for (const auto& [id, image] : checkpoint.render) {
    for (std::size_t i = 0; i < image.bos.size(); ++i) {
      const RenderBo& bo = image.bos[i];
      list.push_back({{"image", render_image_name(id)},
                      {"gpu_id", image.gpu_id},
                      {"bo", i},
                      {"kind", kind_of(bo.gem)},
                      {"address", bo.gem.mappings.empty() ? 0 : bo.gem.mappings.front().address},
                      {"bytes", bo.gem.bytes},
                      {"alloc_flags", bo.gem.alloc_flags},
                      {"handle", bo.gem.handle},
                      {"imported", bo.imports},
                      {"shared", bo.shared}});
    }
  }
  return list;
}

// One statistics file, sluice-stats-<run>.json: its name and what it says.
struct Statistics {
  std::string name;
  Json content;
};

std::vector<Statistics> read_statistics(int dir_fd, std::vector<std::string>& faults) {
  constexpr std::size_t kMostBytes = 16 << 20;
  constexpr int kDeepest = 8;
  std::vector<Statistics> all;
  const auto names = list_stats(dir_fd);
  if (!names) {
    faults.push_back(names.error().what);
    return all;
  }
  for (const std::string& name : *names) {
    const auto file = open_image_file(dir_fd, name);
    const auto text =
        file ? read_whole(*file, kMostBytes, name) : Result<std::vector<std::uint8_t>>(file.error());
    Json content;
    if (text) {  // what is nested deeper than ours would overflow the stack when it is printed
      content = Json::parse(
          *text, [](int depth, Json::parse_event_t, Json&) { return depth <= kDeepest; }, false);
    }
    if (!content.is_object() || !content.contains("gpus") || !content["gpus"].is_array()) {
      faults.push_back(name + " cannot be read as statistics");
      continue;
    }
    all.push_back({name, std::move(content)});
  }
  return all;
}

// Untrusted: a member that is missing, or of another type, is 0 or "".
template <class Value>
Value member(const Json& object, const char* name) {
  if (!object.is_object() || !object.contains(name)) return {};
  const Json& value = object[name];
  if constexpr (std::is_same_v<Value, std::string>) {
    return value.is_string() ? value.get<std::string>() : "";
  } else if constexpr (std::is_same_v<Value, bool>) {
    return value.is_boolean() && value.get<bool>();
  } else {
    return value.is_number() ? value.get<Value>() : Value{};
  }
}

std::string stats_text(const std::vector<Statistics>& all) {
  Table table({"run", "GPU", ">BOs", ">bytes", ">zero", ">seconds", ">rate", "I/O", "slowest stage"});
  for (const Statistics& one : all) {
    const std::size_t begin = sizeof("sluice-stats-") - 1;
    const std::string run = one.name.substr(begin, one.name.rfind('.') - begin);  // "dump-1"
    for (const Json& gpu : one.content["gpus"]) {
      const auto bytes = member<std::uint64_t>(gpu, "bytes");
      const auto seconds = member<double>(gpu, "seconds");
      std::array<char, 32> time{};
      (void)std::snprintf(time.data(), time.size(), "%.3f", seconds);
      table.add({run, hex4(member<std::uint32_t>(gpu, "gpu_id")),
                 std::to_string(member<std::uint64_t>(gpu, "bos")), bytes_text(bytes),
                 share_text(member<std::uint64_t>(gpu, "zero_bytes"), bytes), time.data(),
                 rate_text(member<std::uint64_t>(gpu, "io_bytes"), seconds),
                 std::string(member<bool>(gpu, "direct_io") ? "direct" : "buffered") +
                     (member<bool>(gpu, "verified") ? ", verified" : ""),
                 printable(member<std::string>(gpu, "slowest_stage"))});
    }
  }
  return table.empty()
             ? "no statistics beside these images: a dump or restore by CRIU's own plugin leaves none\n"
             : table.text("");
}

Json gpus_json(const Checkpoint& checkpoint) {
  Json list = Json::array();
  for (const auto& [gpu, topology] : gpus_of(checkpoint)) {
    Json links = Json::array();
    for (const kfd::IoLink& link : gpu->links) {
      const kfd::Node* peer = topology->find_node(link.node_to);
      if (peer == nullptr) continue;
      links.push_back({{"type", link_name(link.type)},
                       {"gpu_id", peer->is_gpu() ? Json(peer->gpu_id) : Json()},
                       {"cpu_node", peer->is_gpu() ? Json() : Json(peer->node_id)}});
    }
    list.push_back({{"gpu_id", gpu->gpu_id},
                    {"name", gpu->name},
                    {"gfx", gfx_name(gpu->gfx_target_version)},
                    {"pci", pci_name(*gpu)},
                    {"render_minor", gpu->drm_render_minor},
                    {"vram_bytes", gpu->vram_size},
                    {"links", std::move(links)}});
  }
  return list;
}

Json json_of(const ImageDirectory& directory, const Summary& summary, const Options& options) {
  const Checkpoint& checkpoint = directory.checkpoint;
  Json object = {{"command", "show"}, {"images", directory.path}, {"gpus", gpus_json(checkpoint)}};
  Json processes = Json::array();
  for (const auto& [id, image] : checkpoint.kfd) {
    processes.push_back({{"image", kfd_image_name(id)},
                         {"pid", image.pid},
                         {"alias_of", image.alias_of ? Json(*image.alias_of) : Json()},
                         {"memory", json_of(kinds_of(image))},
                         {"objects", image.num_objects},
                         {"sluice_version", image.sluice_version},
                         {"kernel_release", image.kernel_release},
                         {"kfd_minor_version", image.kfd_minor_version},
                         {"bo_record_bytes", record_bytes_of(image)},
                         {"dump_id", image.dump_id ? Json(hex_of(*image.dump_id)) : Json()}});
  }
  object["processes"] = std::move(processes);
  Json render = Json::array();
  for (const auto& [id, image] : checkpoint.render) {
    render.push_back({{"image", render_image_name(id)},
                      {"pid", image.pid ? Json(*image.pid) : Json()},
                      {"gpu_id", image.gpu_id},
                      {"render_minor", image.minor},
                      {"kfd_acquired", image.kfd_acquired ? Json(*image.kfd_acquired) : Json()},
                      {"memory", json_of(kinds_of(image))}});
  }
  object["render_files"] = std::move(render);
  Json files = Json::array();
  for (const PagesFile& file : summary.files) {
    files.push_back({{"file", file.name},
                     {"of", file.owner},
                     {"bytes", file.bytes},
                     {"expected_bytes", file.expected_bytes},
                     {"disk_bytes", file.disk_bytes},
                     {"zero_bytes", file.zero_bytes},
                     {"sums", file.has_sums}});
  }
  object["files"] = std::move(files);
  Json shared = Json::array();
  for (const auto& [number, memory] : summary.shared) {
    shared.push_back(
        {{"number", number}, {"bytes", memory.bytes}, {"made_by", memory.maker}, {"also", memory.holders}});
  }
  object["shared"] = std::move(shared);
  object["memory"] = json_of(summary.all);
  object["bytes"] = summary.bytes;
  object["disk_bytes"] = summary.disk_bytes;
  object["zero_bytes"] = summary.zero_bytes;
  if (options.bos) object["bos"] = bos_json(checkpoint);
  object["faults"] = summary.faults;
  return object;
}

// "made by sluice 0.1.0 under Linux 6.12.0, KFD 1.17, 272 bytes per BO record".
std::string origin_text(const Checkpoint& checkpoint) {
  std::set<std::string> origins;
  for (const auto& [id, image] : checkpoint.kfd) {
    std::string text = image.sluice_version.empty() ? "made by CRIU's own plugin, or one that does not say"
                                                    : "made by sluice " + image.sluice_version;
    if (!image.kernel_release.empty()) text += " under Linux " + image.kernel_release;
    if (image.kfd_minor_version != 0) text += ", KFD 1." + std::to_string(image.kfd_minor_version);
    if (const std::uint32_t bytes = record_bytes_of(image); bytes != 0)
      text += ", " + std::to_string(bytes) + " bytes per BO record";
    if (!image.alias_of) origins.insert(text);
  }
  std::string text;
  for (const std::string& origin : origins) text += origin + '\n';
  return text;
}

std::string text_of(const ImageDirectory& directory, const Summary& summary, const Options& options) {
  const Checkpoint& checkpoint = directory.checkpoint;
  std::set<std::uint32_t> pids;
  for (const auto& [id, image] : checkpoint.kfd) pids.insert(image.pid);
  for (const auto& [id, image] : checkpoint.render) {
    if (image.pid) pids.insert(*image.pid);
  }
  std::string text = directory.path + ": ";
  text += pids.size() == 1 ? "1 process" : std::to_string(pids.size()) + " processes";
  text += ", " + count_text(gpus_of(checkpoint).size(), "GPU") + ", " + bytes_text(summary.bytes) +
          " of contents (" + share_text(summary.zero_bytes, summary.bytes) + " zero), " +
          bytes_text(summary.disk_bytes) + " on disk, " +
          (summary.all_have_sums ? "with checksums" : "not all of it with checksums") + '\n';
  text += origin_text(checkpoint) + gpus_text(checkpoint) + processes_text(checkpoint) + files_text(summary) +
          shared_text(summary);
  if (options.bos) text += bos_text(checkpoint);
  return text;
}

// Faults are told last, where they are seen.
ExitCode tell_faults(const std::vector<std::string>& faults) {
  for (const std::string& fault : faults) (void)std::fprintf(stderr, "sluice show: %s\n", fault.c_str());
  return faults.empty() ? ExitCode::Done : ExitCode::Failed;
}

ExitCode show_statistics(const ImageDirectory& directory, const Options& options) {
  std::vector<std::string> faults;
  const std::vector<Statistics> all = read_statistics(directory.fd.get(), faults);
  if (options.json) {
    Json list = Json::array();
    for (const Statistics& one : all) list.push_back({{"file", one.name}, {"statistics", one.content}});
    print_json(
        {{"command", "show"}, {"images", directory.path}, {"stats", std::move(list)}, {"faults", faults}});
    return faults.empty() ? ExitCode::Done : ExitCode::Failed;
  }
  (void)std::fputs(stats_text(all).c_str(), stdout);
  return tell_faults(faults);
}

ExitCode show(const Options& options) {
  const auto opened = open_images(options.images);
  if (const auto* none = std::get_if<NoImages>(&opened)) return refuse("show", options.json, *none);
  const auto& directory = std::get<ImageDirectory>(opened);
  if (options.stats) return show_statistics(directory, options);
  const Summary summary = summary_of(directory);
  if (options.json) {
    print_json(json_of(directory, summary, options));
    return summary.faults.empty() ? ExitCode::Done : ExitCode::Failed;
  }
  (void)std::fputs(text_of(directory, summary, options).c_str(), stdout);
  (void)std::fflush(stdout);
  return tell_faults(summary.faults);
}

}  // namespace

void add_show(CLI::App& app, Run& run) {
  const auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("show", "What is in a checkpoint: GPUs, processes, memory, files, sharing");
  add_images_argument(*command, "IMAGES", options->images, "the image directory of a dump (criu dump -D)");
  command->add_flag("--bos", options->bos, "list every BO");
  command->add_flag("--stats", options->stats,
                    "instead: how fast the dump and the last restore were, by GPU");
  add_json_flag(*command, options->json);
  command->footer(
      "Reads metadata only and looks for missing files and wrong sizes; whether the contents are whole, "
      "sluice verify\n"
      "says.\n" +
      std::string(kExitCodesHelp));
  command->callback([options, &run] { run = [options] { return show(*options); }; });
}

}  // namespace sluice::cli
