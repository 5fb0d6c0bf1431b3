// SPDX-License-Identifier: MIT
// The BOs of one open file on one GPU, as their pages files have them: the files' names, each BO's place, and
// the sums. A KFD process' BOs are in one file, a render file's in one file each.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "images/files/files.h"
#include "images/files/image_source.h"
#include "images/kfd_image.h"
#include "images/metadata.h"
#include "images/sums.h"
#include "pipeline/layout.h"

namespace sluice {

// "GPU 0x5759".
std::string gpu_name(std::uint32_t gpu_id);

// The owner of contents, and the names that follow from it. `id` is CRIU's of the open file, `bo` a BO's
// number in its table. A render file has a pages file per BO, a KFD process one for all.
struct PagesOwner {
  std::uint32_t gpu_id = 0;                // user gpu_id
  std::optional<std::uint32_t> drm_minor;  // of a render file: its minor in the image
  bool predump = false;                    // of a pre-dump, whose files have their own names

  // "GPU 0x5759" or "renderD128".
  std::string describe() const;
  std::string pages_name(int id, std::uint32_t bo, Lacks lacks = Lacks::Nothing) const;
  // While the id is unknown: `number` is the file's in its dump.
  std::string unnamed_pages_name(unsigned number, std::uint32_t bo) const;
  std::string sums_name(int id) const;
  std::string metadata_name(int id) const;

  bool operator==(const PagesOwner&) const = default;

 private:
  std::string name_of(const std::string& in_dump) const;
};

// One BO with contents. Sizes in bytes.
struct PagesBo {
  std::uint64_t bytes = 0;
  std::uint64_t va = 0;      // for messages
  std::uint32_t number = 0;  // in the BO table of its image
  std::uint64_t key = 0;     // identifies it among the owner's, in other dumps too: address or GEM handle
  bool in_vram = false;      // where the kernel may have it
  bool in_gtt = false;
};

// The contents of a range of a pages file.
struct PagesPlace {
  std::optional<PagesBo> bo;    // the first; nothing: the range has only the file's length
  std::uint64_t bo_offset = 0;  // where the range begins in it
  std::uint64_t more_bos = 0;   // after the first

  // "BO 3 (VA 0x7f0000000000, 4096 bytes) from its byte 0 and 2 more BOs", or "its length".
  std::string describe() const;
};

struct PagesSet : PagesOwner {
  std::vector<PagesBo> bos;  // in the order of the BO table
  Sum128 bo_table_digest{};
  bool has_sums = false;  // the dump wrote sums: if they are missing, they were lost
  std::uint32_t pid = 0;  // the owning process', in its own pid namespace; 0: unknown

  // Errors: those of ImageLayout::make.
  Result<ImageLayout> layout(std::uint64_t chunk_bytes) const;

  // One name per file of the layout.
  std::size_t file_count() const { return drm_minor ? bos.size() : 1; }
  std::string pages_name(int id, std::uint32_t file, Lacks lacks = Lacks::Nothing) const;
  std::vector<std::string> pages_names(int id) const;
  // Names of the files that the sidecar has sums of.
  std::vector<std::string> names_with(int id, const Sidecar& sidecar) const;

  // REQUIRES for both: `its_layout` is this set's.
  PagesPlace place(const ImageLayout& its_layout, const Chunk& range) const;
  // The same in words, with the file and the owner.
  using PagesOwner::describe;
  std::string describe(int id, const ImageLayout& its_layout, const Chunk& range) const;
};

// Whether a GPU has BOs with contents, and the image has the contents.
bool has_contents(const KfdImage& image, std::uint32_t gpu_id);
// One per GPU of the image that has BOs with contents. Empty for an alias.
std::vector<PagesSet> pages_of(const KfdImage& image);
// Without BOs if the file has none with contents.
PagesSet pages_of(const RenderImage& image);

// The sums of the pages files, from the payload of sums_name(); nothing if that was ENOENT and the dump wrote
// none. `dump_id`: the metadata image's; all zero if it has none, and then no sidecar belongs to it. Errors:
// other errors of reading it; those of unpack_sidecar(); EBADMSG for a sidecar that was lost, or is of
// another dump or BO table.
Result<std::optional<Sidecar>> take_sidecar(Result<std::vector<std::uint8_t>> payload, int id,
                                            const PagesSet& set, const ImageLayout& layout,
                                            const DumpId& dump_id, const ImageKeys& keys);
// The same from an image source.
Result<std::optional<Sidecar>> read_sidecar(const ImageSource& source, int id, const PagesSet& set,
                                            const ImageLayout& layout, const DumpId& dump_id);

}  // namespace sluice
