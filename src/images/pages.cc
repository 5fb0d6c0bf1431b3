// SPDX-License-Identifier: MIT
#include "images/pages.h"

#include <libdrm/amdgpu_drm.h>

#include <algorithm>

#include "base/format.h"
#include "images/files/digest.h"
#include "images/files/files.h"
#include "images/files/key.h"
#include "kfd/uapi.h"

namespace sluice {

std::string gpu_name(std::uint32_t gpu_id) {
  return "GPU " + kfd::gpu_id_text(gpu_id);
}

std::string PagesOwner::describe() const {
  return drm_minor ? "renderD" + std::to_string(*drm_minor) : gpu_name(gpu_id);
}

std::string PagesOwner::name_of(const std::string& in_dump) const {
  return predump ? predump_name(in_dump) : in_dump;
}

std::string PagesOwner::pages_name(int id, std::uint32_t bo, Lacks lacks) const {
  return name_of(drm_minor ? drm_pages_image_name(id, *drm_minor, bo, lacks)
                           : pages_image_name(id, gpu_id, lacks));
}

std::string PagesOwner::unnamed_pages_name(unsigned number, std::uint32_t bo) const {
  return name_of(drm_minor ? unnamed_drm_pages_image(number, *drm_minor, bo)
                           : unnamed_pages_image(number, gpu_id));
}

std::string PagesOwner::sums_name(int id) const {
  return name_of(drm_minor ? drm_sums_image_name(id, *drm_minor) : sums_image_name(id, gpu_id));
}

std::string PagesOwner::metadata_name(int id) const {
  return name_of(drm_minor ? render_image_name(id) : kfd_image_name(id));
}

Result<ImageLayout> PagesSet::layout(std::uint64_t chunk_bytes) const {
  std::vector<std::uint64_t> sizes;
  sizes.reserve(bos.size());
  for (const PagesBo& bo : bos) sizes.push_back(bo.bytes);
  return drm_minor ? ImageLayout::make_file_per_bo(sizes, chunk_bytes)
                   : ImageLayout::make(sizes, chunk_bytes);
}

std::string PagesSet::pages_name(int id, std::uint32_t file, Lacks lacks) const {
  return PagesOwner::pages_name(id, bos[file].number, lacks);
}

std::vector<std::string> PagesSet::pages_names(int id) const {
  std::vector<std::string> names;
  for (std::uint32_t file = 0; file < file_count(); ++file) names.push_back(pages_name(id, file));
  return names;
}

std::vector<std::string> PagesSet::names_with(int id, const Sidecar& sidecar) const {
  std::vector<std::string> names = pages_names(id);
  for (std::uint32_t file = 0; file < names.size(); ++file) {
    if (sidecar.is_partial(file))
      names[file] = pages_name(id, file, sidecar.needs_parent(file) ? Lacks::Parents : Lacks::Replicas);
  }
  return names;
}

std::string PagesPlace::describe() const {
  if (!bo) return "its length";
  std::string text =
      formatted("BO {} (VA {:#x}, {} bytes) from its byte {}", bo->number, bo->va, bo->bytes, bo_offset);
  if (more_bos > 0) text += formatted(" and {} more BOs", more_bos);
  return text;
}

PagesPlace PagesSet::place(const ImageLayout& its_layout, const Chunk& range) const {
  PagesPlace found;
  ImageLayout::PieceCursor pieces = its_layout.pieces(range);
  for (Piece piece; pieces.next(piece);) {
    if (piece.is_header()) continue;
    if (found.bo) {
      ++found.more_bos;
    } else {
      found.bo = bos[piece.bo];
      found.bo_offset = piece.bo_offset;
    }
  }
  return found;
}

std::string PagesSet::describe(int id, const ImageLayout& its_layout, const Chunk& range) const {
  return pages_name(id, range.file) + ", " + describe() + " " + place(its_layout, range).describe();
}

bool has_contents(const KfdImage& image, std::uint32_t gpu_id) {
  return std::any_of(image.bos.begin(), image.bos.end(), [gpu_id](const BoEntry& bo) {
    return bo.gpu_id == gpu_id && kfd::has_contents(bo.alloc_flags) && !bo.imports;
  });
}

std::vector<PagesSet> pages_of(const KfdImage& image) {
  std::vector<PagesSet> sets;
  if (image.alias_of) return sets;
  for (const kfd::Node& node : image.topology.nodes) {
    if (!node.is_gpu()) continue;
    PagesSet set{
        {node.gpu_id, std::nullopt}, {}, bo_table_digest(image.bos, node.gpu_id), image.has_sums, image.pid};
    for (std::uint32_t i = 0; i < image.bos.size(); ++i) {
      const BoEntry& bo = image.bos[i];
      if (bo.gpu_id != node.gpu_id || !kfd::has_contents(bo.alloc_flags) || bo.imports) continue;
      set.bos.push_back({bo.bytes, bo.addr, i, bo.addr, (bo.alloc_flags & kfd::kAllocVram) != 0,
                         (bo.alloc_flags & kfd::kAllocGtt) != 0});
    }
    if (!set.bos.empty()) sets.push_back(std::move(set));
  }
  return sets;
}

PagesSet pages_of(const RenderImage& image) {
  PagesSet set{
      {image.gpu_id, image.minor}, {}, bo_table_digest(image.bos), image.has_sums, image.pid.value_or(0)};
  for (std::uint32_t i = 0; i < image.bos.size(); ++i) {
    const drm::GemBo& gem = image.bos[i].gem;
    if (!image.bos[i].imports) {
      set.bos.push_back({gem.bytes, gem.mappings.empty() ? 0 : gem.mappings.front().address, i, gem.handle,
                         (gem.domains & AMDGPU_GEM_DOMAIN_VRAM) != 0,
                         (gem.domains & AMDGPU_GEM_DOMAIN_GTT) != 0});
    }
  }
  return set;
}

namespace {

// Whether its tables fit the layout's files.
bool fits(const Sidecar& sidecar, int id, const PagesSet& set, const ImageLayout& layout) {
  if (sidecar.tables.size() != layout.file_count()) return false;
  const SumTable& first = sidecar.tables.front();
  if (sidecar.pages_files != set.names_with(id, sidecar)) return false;
  const UnitIndex units(layout, first.block_bytes);
  for (std::uint32_t file = 0; file < layout.file_count(); ++file) {
    const SumTable& table = sidecar.tables[file];
    if (table.block_bytes != first.block_bytes || table.sums.size() != units.count(file) ||
        table.file_bytes != layout.file_bytes(file))
      return false;
  }
  return true;
}

}  // namespace

Result<std::optional<Sidecar>> take_sidecar(Result<std::vector<std::uint8_t>> payload, int id,
                                            const PagesSet& set, const ImageLayout& layout,
                                            const DumpId& dump_id, const ImageKeys& keys) {
  const std::string name = set.sums_name(id);
  if (!payload) {
    if (payload.error().err != ENOENT) return payload.error();
    if (!set.has_sums && !keys.any()) return std::optional<Sidecar>();
    const std::string other = set.pages_name(id, 0);
    return Error{
        EBADMSG,
        formatted("{} is missing, the checksums of the dump, so {} may be of another dump; bring it back{} "
                  "[SL-I19]",
                  name, other, keys.any() ? "" : ", or restore unverified with SLUICE_CHECKSUM=off")};
  }
  auto unpacked = unpack_sidecar(std::move(*payload), name, keys);
  if (!unpacked) return beside_signed(unpacked.error());
  Sidecar& sidecar = *unpacked;
  if (sidecar.dump_id != dump_id || sidecar.bo_table_digest != set.bo_table_digest ||
      !fits(sidecar, id, set, layout)) {
    return Error{
        EBADMSG,
        formatted("{} belongs to another dump than {}; restore from a directory with one dump [SL-I20]", name,
                  set.metadata_name(id))};
  }
  return std::optional(std::move(sidecar));
}

Result<std::optional<Sidecar>> read_sidecar(const ImageSource& source, int id, const PagesSet& set,
                                            const ImageLayout& layout, const DumpId& dump_id) {
  return take_sidecar(read_image(source, set.sums_name(id)), id, set, layout, dump_id, source.keys());
}

}  // namespace sluice
