// SPDX-License-Identifier: MIT
#include "images/pages.h"

#include <algorithm>

#include "images/files.h"
#include "images/key.h"
#include "kfd/uapi.h"

namespace sluice {

std::string gpu_words(std::uint32_t gpu_id) {
  return "GPU " + kfd::gpu_id_text(gpu_id);
}

std::string PagesSet::words() const {
  return drm_minor ? "renderD" + std::to_string(*drm_minor) : gpu_words(gpu_id);
}

Result<ImageLayout> PagesSet::layout(std::uint64_t chunk_bytes) const {
  std::vector<std::uint64_t> sizes;
  sizes.reserve(bos.size());
  for (const PagesBo& bo : bos) sizes.push_back(bo.bytes);
  return drm_minor ? ImageLayout::make_file_per_bo(sizes, chunk_bytes)
                   : ImageLayout::make(sizes, chunk_bytes);
}

std::string PagesSet::pages_name(int id, std::uint32_t file) const {
  return drm_minor ? drm_pages_image_name(id, *drm_minor, bos[file].number) : pages_image_name(id, gpu_id);
}

std::vector<std::string> PagesSet::pages_names(int id) const {
  const std::size_t files = drm_minor ? bos.size() : 1;
  std::vector<std::string> names;
  for (std::uint32_t file = 0; file < files; ++file) names.push_back(pages_name(id, file));
  return names;
}

std::string PagesSet::sums_name(int id) const {
  return drm_minor ? drm_sums_image_name(id, *drm_minor) : sums_image_name(id, gpu_id);
}

std::string PagesSet::metadata_name(int id) const {
  return drm_minor ? render_image_name(id) : kfd_image_name(id);
}

std::string PagesPlace::words() const {
  if (!bo) return "its length";
  std::string text = "BO " + std::to_string(bo->number) + " (VA " + hex(bo->va) + ", " +
                     std::to_string(bo->bytes) + " bytes) from its byte " + std::to_string(bo_offset);
  if (more_bos > 0) text += " and " + std::to_string(more_bos) + " more BOs";
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
  return pages_name(id, range.file) + ", " + words() + " " + place(its_layout, range).words();
}

std::vector<PagesSet> pages_of(const kfd::KfdImage& image) {
  std::vector<PagesSet> sets;
  if (image.alias_of) return sets;
  for (const kfd::Node& node : image.topology.nodes) {
    if (!node.is_gpu()) continue;
    PagesSet set{node.gpu_id, std::nullopt, {}, bo_table_digest(image.bos, node.gpu_id), image.has_sums};
    for (std::uint32_t i = 0; i < image.bos.size(); ++i) {
      const kfd::BoEntry& bo = image.bos[i];
      if (bo.gpu_id == node.gpu_id && kfd::has_contents(bo.alloc_flags) && !bo.imports)
        set.bos.push_back({bo.bytes, bo.addr, i});
    }
    if (!set.bos.empty()) sets.push_back(std::move(set));
  }
  return sets;
}

PagesSet pages_of(const RenderImage& image) {
  PagesSet set{image.gpu_id, image.minor, {}, bo_table_digest(image.bos), image.has_sums};
  for (std::uint32_t i = 0; i < image.bos.size(); ++i) {
    const drm::GemBo& gem = image.bos[i].gem;
    if (!image.bos[i].imports) {
      set.bos.push_back({gem.bytes, gem.mappings.empty() ? 0 : gem.mappings.front().address, i});
    }
  }
  return set;
}

Result<std::optional<Sidecar>> take_sidecar(const Result<std::vector<std::uint8_t>>& payload, int id,
                                            const PagesSet& set, const ImageLayout& layout,
                                            const DumpId& dump_id) {
  const std::string name = set.sums_name(id);
  if (!payload) {
    if (payload.error().err != ENOENT) return payload.error();
    if (!set.has_sums && !has_image_key()) return std::optional<Sidecar>();
    const std::string other = set.pages_name(id, 0);
    return make_error(
        EBADMSG,
        name + " is missing, the checksums that the dump has written: " + other +
            (has_image_key() ? " may be of another dump"
                             : " may be of another dump (SLUICE_CHECKSUM=off restores it as it is)"));
  }
  SLUICE_TRY_ASSIGN(Sidecar sidecar, unpack_sidecar(*payload, name));
  bool fits = sidecar.dump_id == dump_id && sidecar.bo_table_digest == set.bo_table_digest &&
              sidecar.tables.size() == layout.file_count();
  for (std::uint32_t file = 0; fits && file < layout.file_count(); ++file) {
    fits = sidecar.tables[file].file_bytes == layout.file_bytes(file) &&
           sidecar.pages_files[file] == set.pages_name(id, file);
  }
  if (!fits) {
    return make_error(EBADMSG, name + " belongs to another dump than " + set.metadata_name(id) +
                                   "; the image directory mixes two dumps");
  }
  return std::optional(std::move(sidecar));
}

Result<std::optional<Sidecar>> read_sidecar(const ImageSource& source, int id, const PagesSet& set,
                                            const ImageLayout& layout, const DumpId& dump_id) {
  return take_sidecar(read_image(source, set.sums_name(id)), id, set, layout, dump_id);
}

}  // namespace sluice
