// SPDX-License-Identifier: MIT
#include "cli/show/show_text.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "base/printable.h"
#include "cli/text.h"
#include "images/files/files.h"
#include "images/metadata.h"
#include "kfd/topology.h"

namespace sluice::cli {
namespace {

// Cells of a table: BOs, VRAM, GTT, and the sum of other kinds, which --bos and the JSON name.
std::vector<std::string> cells_of(const Kinds& kinds) {
  std::uint64_t bos = 0, others = 0;
  for (const auto& [kind, sum] : kinds) {
    bos += sum.bos;
    if (kind != "VRAM" && kind != "GTT") others += sum.bytes;
  }
  const auto bytes = [&](const char* kind) {
    const auto sum = kinds.find(kind);
    return sum == kinds.end() ? "" : bytes_text(sum->second.bytes);
  };
  return {std::to_string(bos), bytes("VRAM"), bytes("GTT"), others == 0 ? "" : bytes_text(others)};
}

// "made by sluice 0.1.0 under Linux 6.12.0, KFD 1.17, 272 bytes per BO record".
std::string origin_text(const Checkpoint& checkpoint) {
  std::set<std::string> origins;
  for (const auto& [id, image] : checkpoint.kfd) {
    std::string text = image.sluice_version.empty() ? "made by CRIU's own plugin, or one that does not say"
                                                    : "made by sluice " + image.sluice_version;
    if (!image.kernel_release.empty()) text += " under Linux " + image.kernel_release;
    if (image.kfd_minor_version != 0) text += ", KFD 1." + std::to_string(image.kfd_minor_version);
    if (const std::uint32_t bytes = driver_records_of(image).bo_bytes; bytes != 0)
      text += ", " + std::to_string(bytes) + " bytes per BO record";
    if (!image.alias_of) origins.insert(text);
  }
  std::string text;
  for (const std::string& origin : origins) text += origin + '\n';
  return text;
}

// "PCIe CPU0, XGMI 0x5759 0x575a", "PCIe CPU0, XGMI 7 others".
std::string links_text(const Gpu& gpu) {
  constexpr std::size_t kMostNames = 3;  // more make a line too long; the JSON has all
  std::map<std::string, std::vector<std::string>> peers;
  for (const GpuLink& link : gpu.links)
    peers[link.type].push_back(link.to_gpu ? kfd::gpu_id_text(link.peer) : "CPU" + std::to_string(link.peer));
  std::string text;
  for (const auto& [type, names] : peers) {
    text.append(text.empty() ? "" : ", ").append(type);
    if (names.size() > kMostNames) text += " " + std::to_string(names.size()) + " others";
    if (names.size() <= kMostNames)
      for (const std::string& name : names) text += " " + name;
  }
  return text;
}

std::string gpus_text(const Survey& survey) {
  Table table({"gpu_id", "name", "", "PCI", "render node", ">VRAM", "links"});
  for (const Gpu& gpu : survey.gpus) {
    table.add({kfd::gpu_id_text(gpu.gpu_id), gpu.name, gpu.gfx, gpu.pci,
               "renderD" + std::to_string(gpu.render_minor), bytes_text(gpu.vram_bytes), links_text(gpu)});
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
  Table table({"image", ">process", ">BOs", ">VRAM", ">GTT", ">other", "queues, events, SVM ranges"});
  for (const auto& [id, image] : checkpoint.kfd) {
    table.add(row({checkpoint.name_of(kfd_image_name(id)), image.alias_of ? "" : std::to_string(image.pid)},
                  kinds_of(image),
                  image.alias_of
                      ? "those of " + checkpoint.name_of(kfd_image_name(static_cast<int>(*image.alias_of)))
                      : std::to_string(image.num_objects)));
  }
  std::string text = table.empty() ? "" : "\nProcesses\n" + table.text();
  Table files({"image", ">process", ">BOs", ">VRAM", ">GTT", ">other", "device"});
  for (const auto& [id, image] : checkpoint.render) {
    files.add(row({checkpoint.name_of(render_image_name(id)), image.pid ? std::to_string(*image.pid) : ""},
                  kinds_of(image),
                  image.node_words() + (image.kfd_acquired.value_or(false) ? ", KFD's" : "")));
  }
  if (!files.empty()) text += "\nRender files\n" + files.text();
  return text;
}

bool is_archive(const ImageDirectory& directory) {
  return !directory.source->directory();
}

std::string files_text(const ImageDirectory& directory, const Survey& survey) {
  Table table({"file", "of", ">bytes", is_archive(directory) ? ">stored" : ">on disk", ">zero", "sums"});
  for (const PagesFile& file : survey.files) {
    table.add({file.name, file.owner, bytes_text(file.bytes), bytes_text(file.disk_bytes),
               share_text(file.zero_bytes, file.bytes),
               !file.has_sums      ? "?"
               : file.has_parent   ? "yes, and a parent"
               : file.has_replicas ? "yes, and replicas"
               : *file.has_sums    ? "yes"
                                   : "none"});
  }
  return table.empty() ? "" : "\nContents\n" + table.text();
}

// Ignores files that were not examined.
std::string sums_text(const Survey& survey) {
  const bool unknown = std::any_of(survey.files.begin(), survey.files.end(),
                                   [](const PagesFile& file) { return !file.has_sums; });
  if (survey.files.empty() || unknown) return "";
  return survey.all_have_sums() ? ", with checksums" : ", not all of it with checksums";
}

std::string shared_text(const Survey& survey) {
  std::string text;
  for (const auto& [number, memory] : survey.shared) {
    text += "  " + std::to_string(number) + ": " + bytes_text(memory.bytes) + " of " +
            (memory.maker.empty() ? "no process in these images" : memory.maker) + '\n';
    for (const std::string& holder : memory.holders) text += "     " + holder + '\n';
  }
  return text.empty() ? "" : "\nShared memory\n" + text;
}

std::string bos_text(const Checkpoint& checkpoint) {
  Table table({"image", "GPU", ">BO", "kind", "address", ">bytes", "flags", ">handle", "shared"});
  const auto number = [](std::uint32_t value) { return value == 0 ? "" : std::to_string(value); };
  // "2" of who makes the memory, "from 2" of who imports it.
  const auto sharing = [&](std::uint32_t memory, bool imports) {
    return (imports ? "from " : "") + number(memory);
  };
  for (const auto& [id, image] : checkpoint.kfd) {
    for (std::size_t i = 0; i < image.bos.size(); ++i) {
      const BoEntry& bo = image.bos[i];
      table.add({checkpoint.name_of(kfd_image_name(id)), kfd::gpu_id_text(bo.gpu_id), std::to_string(i),
                 kind_of(bo), hex(bo.addr), bytes_text(bo.bytes), hex(bo.alloc_flags),
                 bo.handle == kNoHandle ? "" : std::to_string(bo.handle), sharing(bo.shared, bo.imports)});
    }
  }
  for (const auto& [id, image] : checkpoint.render) {
    for (std::size_t i = 0; i < image.bos.size(); ++i) {
      const RenderBo& bo = image.bos[i];
      table.add({checkpoint.name_of(render_image_name(id)), kfd::gpu_id_text(image.gpu_id), std::to_string(i),
                 kind_of(bo.gem), bo.gem.mappings.empty() ? "" : hex(bo.gem.mappings.front().address),
                 bytes_text(bo.gem.bytes), hex(bo.gem.alloc_flags), std::to_string(bo.gem.handle),
                 sharing(bo.shared, bo.imports)});
    }
  }
  return table.empty() ? "" : "\nBOs\n" + table.text();
}

}  // namespace

std::string show_text(const ImageDirectory& directory, const Survey& survey, bool list_bos) {
  const Checkpoint& checkpoint = directory.checkpoint;
  std::set<std::uint32_t> pids;
  for (const auto& [id, image] : checkpoint.kfd) {
    if (!image.alias_of)
      pids.insert(image.pid);  // an alias belongs to the same process and does not say which
  }
  for (const auto& [id, image] : checkpoint.render) {
    if (image.pid) pids.insert(*image.pid);
  }
  std::string text = printable(directory.path) + ": ";
  text += pids.size() == 1 ? "1 process" : std::to_string(pids.size()) + " processes";
  text += ", " + count_text(survey.gpus.size(), "GPU") + ", " + bytes_text(survey.bytes) + " of contents (" +
          share_text(survey.zero_bytes, survey.bytes) + " zero), " + bytes_text(survey.disk_bytes) +
          (is_archive(directory) ? " in the archive" : " on disk") + sums_text(survey) + '\n';
  if (checkpoint.is_predump())
    text += "a pre-dump: a dump can be built on it, and nothing is restored from it\n";
  text += origin_text(checkpoint) + gpus_text(survey) + processes_text(checkpoint) +
          files_text(directory, survey) + shared_text(survey);
  if (list_bos) text += bos_text(checkpoint);
  return text;
}

}  // namespace sluice::cli
