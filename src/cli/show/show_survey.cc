// SPDX-License-Identifier: MIT
#include "cli/show/show_survey.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "base/format.h"
#include "images/chain/chain.h"
#include "images/files/digest.h"
#include "images/files/files.h"
#include "images/pages.h"
#include "kfd/uapi.h"
#include "pipeline/extents/extent_reader.h"
#include "pipeline/store/file_reader.h"

namespace sluice::cli {
namespace {

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

// Every KFD image describes the same machine.
std::vector<Gpu> gpus_of(const Checkpoint& checkpoint) {
  std::vector<Gpu> gpus;
  std::set<std::uint32_t> known;
  for (const auto& [id, image] : checkpoint.kfd) {
    for (const kfd::Node& node : image.topology.nodes) {
      if (!node.is_gpu() || !known.insert(node.gpu_id).second) continue;
      Gpu gpu{.gpu_id = node.gpu_id,
              .name = node.name,
              .gfx = gfx_name(node.gfx_target_version),
              .pci = pci_name(node),
              .render_minor = node.drm_render_minor,
              .vram_bytes = node.vram_size,
              .links = {}};
      for (const kfd::IoLink& link : node.links) {
        const kfd::Node* peer = image.topology.find_node(link.node_to);
        if (peer == nullptr) continue;
        gpu.links.push_back({link.type == kfd::kLinkXgmi ? "XGMI" : "PCIe", peer->is_gpu(),
                             peer->is_gpu() ? peer->gpu_id : peer->node_id});
      }
      gpus.push_back(std::move(gpu));
    }
  }
  return gpus;
}

// Bytes in whole units with the sum of zeros: still recognisable in a copy whose holes were filled.
std::uint64_t zero_bytes_by_sums(const SumTable& table, ZeroSums& zero_sums) {
  const Sum128& zeros = zero_sums.of(table.method, kSumUnitBytes);
  const auto sums = static_cast<std::uint64_t>(std::count(table.sums.begin(), table.sums.end(), zeros));
  return std::min(sums * kSumUnitBytes, table.file_bytes);
}

// The ancestors of a checkpoint, whose sidecars all follow the same links. What is wrong with one of them is
// a single fault, however many sidecars need it.
class Ancestors {
 public:
  explicit Ancestors(const ImageSource& source) : source_(source) {}

  // Whether they have the contents that the sidecar's files lack, in files of the right sizes.
  void check(const ImageLayout& layout, const Sidecar& sums, std::vector<Error>& faults) {
    const auto [known, is_new] = chains_.try_emplace(sums.needs());
    if (is_new) {
      auto opened = open(sums.needs());
      if (!opened) return faults.push_back(beside_signed(opened.error()));
      known->second = *opened;
    }
    if (const auto& chain = known->second) look(*chain, layout, sums, faults);
  }

 private:
  Result<std::shared_ptr<const Chain>> open(const Needs& needs) const {
    const auto directory = source_.directory();
    if (!directory)
      return Error{
          ENOSYS,
          "other files have a part of the contents; show the directory instead of an archive [SL-T35]"};
    return Chain::open(*directory, needs, source_.keys());
  }
  void look(const Chain& chain, const ImageLayout& layout, const Sidecar& sums, std::vector<Error>& faults) {
    const int directory = *source_.directory();
    const auto maps = chain.resolve(directory, chain.directories(), layout, sums);
    if (!maps) return faults.push_back(maps.error());
    for (const ExtentMap& map : *maps) {
      for (const ExtentFile& file : map.files) {
        if (file.dir_fd == directory || !seen_.insert(file.words).second) continue;
        const auto found = DirectorySource(file.dir_fd).look(file.name);
        const auto good = found ? check_pages_size(file.words, found->bytes, file.bytes)
                                : Result<void>(explain(file.words, found.error()));
        if (!good) faults.push_back(good.error());
      }
    }
  }

  const ImageSource& source_;
  std::map<Needs, std::shared_ptr<const Chain>> chains_;  // null: it could not be opened, which was told
  std::set<std::string> seen_;                            // files of ancestors
};

std::vector<PagesFile> look_at_pages(const ImageSource& source, int id, const PagesSet& set,
                                     const DumpId& dump_id, Ancestors& ancestors,
                                     std::vector<Error>& faults) {
  std::vector<PagesFile> files;
  const auto layout = set.layout(kSumBlockBytes);
  if (!layout) {
    faults.push_back(explain(set.metadata_name(id), layout.error()));
    return files;
  }
  auto sums = read_sidecar(source, id, set, *layout, dump_id);
  if (!sums) faults.push_back(sums.error());
  ZeroSums zero_sums;
  for (std::uint32_t i = 0; i < layout->file_count(); ++i) {
    const bool has_sidecar = sums && *sums;
    const bool is_partial = has_sidecar && (*sums)->is_partial(i);
    PagesFile file{.name = has_sidecar ? (*sums)->pages_files[i] : set.pages_name(id, i),
                   .owner = set.describe(),
                   .expected_bytes = layout->file_bytes(i),
                   .has_parent = has_sidecar && (*sums)->needs_parent(i),
                   .has_replicas = has_sidecar && (*sums)->needs_others(i)};
    if (sums) file.has_sums = sums->has_value();
    const auto found = source.look(file.name);
    if (!found) {
      faults.push_back(found.error());
    } else {
      const auto good = check_pages_size(file.name, found->bytes, file.expected_bytes);
      if (!good) faults.push_back(good.error());
      file.bytes = found->bytes;
      file.disk_bytes = found->stored_bytes;
      if (good && !is_partial) file.zero_bytes = source.hole_bytes(file.name);
      if (file.has_sums.value_or(false))
        file.zero_bytes = std::max(file.zero_bytes, zero_bytes_by_sums((**sums).tables[i], zero_sums));
    }
    files.push_back(std::move(file));
  }
  if (sums && *sums && (*sums)->needs().any()) ancestors.check(*layout, **sums, faults);
  return files;
}

void add_kinds(Kinds& all, const Kinds& more) {
  for (const auto& [kind, sum] : more) {
    all[kind].bos += sum.bos;
    all[kind].bytes += sum.bytes;
  }
}

std::map<std::uint32_t, SharedMemory> shared_in(const Checkpoint& checkpoint) {
  std::map<std::uint32_t, SharedMemory> shared;
  const auto add = [&](std::uint32_t number, std::uint64_t bytes, bool imports, std::string holder) {
    if (number == 0) return;
    SharedMemory& memory = shared[number];
    memory.bytes = bytes;
    if (imports) {
      memory.holders.push_back(std::move(holder));
    } else {
      memory.maker = std::move(holder);
    }
  };
  for (const auto& [id, image] : checkpoint.kfd) {
    for (std::size_t i = 0; i < image.bos.size(); ++i) {
      const BoEntry& bo = image.bos[i];
      add(bo.shared, bo.bytes, bo.imports,
          formatted("process {}, {} BO {}", image.pid, gpu_name(bo.gpu_id), i));
    }
  }
  for (const auto& [id, image] : checkpoint.render) {
    const std::string node = "renderD" + std::to_string(image.minor);
    for (const RenderBo& bo : image.bos) {
      add(bo.shared, bo.gem.bytes, bo.imports,
          is_memory_of_dmabuf(id)
              ? "no file (" + node + ")"
              : node + " file " + std::to_string(id) + ", GEM handle " + std::to_string(bo.gem.handle));
    }
  }
  for (const auto& [id, image] : checkpoint.dmabufs)
    shared[image.shared].holders.push_back("open dma-buf, file " + std::to_string(id));
  return shared;
}

}  // namespace

const char* kind_of(const BoEntry& bo) {
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

Kinds kinds_of(const KfdImage& image) {
  Kinds kinds;
  for (const BoEntry& bo : image.bos) {
    KindTotal& sum = kinds[bo.imports ? "imported" : kind_of(bo)];
    ++sum.bos;
    sum.bytes += bo.bytes;
  }
  return kinds;
}

Kinds kinds_of(const RenderImage& image) {
  Kinds kinds;
  for (const RenderBo& bo : image.bos) {
    KindTotal& sum = kinds[bo.imports ? "imported" : kind_of(bo.gem)];
    ++sum.bos;
    sum.bytes += bo.gem.bytes;
  }
  return kinds;
}

bool Survey::all_have_sums() const {
  return !files.empty() && std::all_of(files.begin(), files.end(),
                                       [](const PagesFile& file) { return file.has_sums.value_or(false); });
}

Survey survey(const ImageDirectory& directory) {
  Survey all;
  all.gpus = gpus_of(directory.checkpoint);
  Ancestors ancestors(*directory.source);
  all.faults = directory.checkpoint.faults();
  for (const NumberedPages& pages : pages_of(directory.checkpoint)) {
    const auto files =
        look_at_pages(*directory.source, pages.id, pages.set, pages.dump_id, ancestors, all.faults);
    all.files.insert(all.files.end(), files.begin(), files.end());
  }
  for (const auto& [id, image] : directory.checkpoint.kfd) add_kinds(all.memory, kinds_of(image));
  for (const auto& [id, image] : directory.checkpoint.render) add_kinds(all.memory, kinds_of(image));
  for (const PagesFile& file : all.files) {
    all.bytes += file.bytes;
    all.disk_bytes += file.disk_bytes;
    all.zero_bytes += file.zero_bytes;
  }
  all.shared = shared_in(directory.checkpoint);
  return all;
}

}  // namespace sluice::cli
