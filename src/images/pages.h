// SPDX-License-Identifier: MIT
// The BOs of one open file on one GPU, as their pages files have them: the names of the files, where each BO
// lies, and the sums beside them. Those of a KFD process lie in one file, those of a render file in one each.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "images/image_source.h"
#include "images/kfd_image.h"
#include "images/metadata.h"
#include "images/sums.h"
#include "pipeline/layout.h"

namespace sluice {

// "GPU 0x5759".
std::string gpu_words(std::uint32_t gpu_id);

// One BO with contents. Sizes in bytes.
struct PagesBo {
  std::uint64_t bytes = 0;
  std::uint64_t va = 0;      // for messages
  std::uint32_t number = 0;  // in the BO table of its image
};

// What lies in a range of a pages file.
struct PagesPlace {
  std::optional<PagesBo> bo;    // the first; nothing: the range has the file's length only
  std::uint64_t bo_offset = 0;  // where the range begins in it
  std::uint64_t more_bos = 0;   // behind the first

  // "BO 3 (VA 0x7f0000000000, 4096 bytes) from its byte 0 and 2 more BOs", or "its length".
  std::string words() const;
};

struct PagesSet {
  std::uint32_t gpu_id = 0;                // user gpu_id
  std::optional<std::uint32_t> drm_minor;  // of a render file: its minor in the image
  std::vector<PagesBo> bos;                // in the order of the BO table
  Sum128 bo_table_digest{};
  bool has_sums = false;  // the dump has written sums: where they are not, they were lost

  // Whose BOs: "GPU 0x5759" or "renderD128".
  std::string words() const;
  // Errors: those of ImageLayout::make.
  Result<ImageLayout> layout(std::uint64_t chunk_bytes) const;

  // Names, where `id` is CRIU's of the open file. `file`: of the layout.
  std::string pages_name(int id, std::uint32_t file) const;
  std::vector<std::string> pages_names(int id) const;
  std::string sums_name(int id) const;
  std::string metadata_name(int id) const;

  // REQUIRES for both: `its_layout` is this set's.
  PagesPlace place(const ImageLayout& its_layout, const Chunk& range) const;
  // The same in words, with the file and whose BOs they are.
  std::string describe(int id, const ImageLayout& its_layout, const Chunk& range) const;
};

// Of every GPU of the image on which there are BOs with contents. None of an image that is an alias.
std::vector<PagesSet> pages_of(const kfd::KfdImage& image);
// No BOs where the file has none with contents.
PagesSet pages_of(const RenderImage& image);

// The sums beside the pages files, out of the payload of sums_name(); nothing where that was ENOENT and the
// dump has written none. `dump_id`: of the metadata image; all zero where it has none, which no sidecar is
// beside. Errors: other ones of reading it; those of unpack_sidecar(); EBADMSG for a sidecar that was lost,
// or is of another dump or BO table.
Result<std::optional<Sidecar>> take_sidecar(const Result<std::vector<std::uint8_t>>& payload, int id,
                                            const PagesSet& set, const ImageLayout& layout,
                                            const DumpId& dump_id);
// The same from where the images lie.
Result<std::optional<Sidecar>> read_sidecar(const ImageSource& source, int id, const PagesSet& set,
                                            const ImageLayout& layout, const DumpId& dump_id);

}  // namespace sluice
