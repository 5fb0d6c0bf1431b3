// SPDX-License-Identifier: MIT
// What belongs to images/kfd_image.h: the image of a render file, the tie between BO table and sidecar, and
// whether a KFD image fits this kernel.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "drm/gem.h"
#include "images/files/key.h"
#include "images/kfd_image.h"
#include "images/sums.h"
#include "kfd/records/private_data.h"
#include "pipeline/checksum/checksum.h"

namespace sluice {

// Memory shared by several files of a dump is numbered from 1. A restore accepts no more than this: each is a
// descriptor in the host's fdstore.
inline constexpr std::uint32_t kMostSharedBos = 65'536;

// A BO of a render file.
struct RenderBo {
  drm::GemBo gem;
  std::uint64_t mmap_offset = 0;  // at the time of the dump, 0 = not mappable by a CPU
  std::uint32_t shared = 0;       // number of the memory in the dump if it is shared
  bool imports = false;           // another file makes it and has its contents

  bool operator==(const RenderBo&) const = default;
};

// amdgpu-renderD-<id>.img.
struct RenderImage {
  // `minor` in an image of CRIU 3.17 to 4.2: the KFD image knows the GPU by its gpu_id. Such an image has no
  // BOs.
  static constexpr std::uint32_t kUnknownMinor = 0;  // of no render node: theirs begin at 128

  std::uint32_t gpu_id = 0;  // user gpu_id
  std::uint32_t id = 0;
  std::uint32_t minor = kUnknownMinor;  // at the time of the dump
  std::vector<RenderBo> bos;            // its own GEM BOs, by handle
  std::optional<bool> kfd_acquired;     // KFD uses this file as the GPU's VM; unknown in upstream's images
  std::optional<DumpId> dump_id;        // not in upstream's images
  std::optional<std::uint32_t> pid;     // in its own pid namespace: the process that restores the file
  bool has_sums = false;                // the dump wrote checksums of the contents

  bool has_mappable_bos() const;
  bool has_contents() const;
  // "renderD128", or a substitute if the minor is unknown.
  std::string node_words() const;
};

std::vector<std::uint8_t> pack_render_image(const RenderImage& image, const ImageKeys& keys);

// Errors: EBADMSG if it contradicts itself or its digest; ENOSYS for BOs that are, or may be, imported from
// an unknown place, as in upstream's images. `name` is for the message.
Result<RenderImage> unpack_render_image(std::span<const std::uint8_t> payload, const std::string& name,
                                        const ImageKeys& keys);

// amdgpu-dmabuf_<id>.img: a descriptor of a dma-buf.
struct DmaBufImage {
  std::uint32_t gem_handle = 0;
  std::uint32_t shared = 0;
  std::optional<std::uint32_t> pid;  // as in RenderImage
  std::optional<DumpId> dump_id;     // as in RenderImage
  std::optional<std::uint32_t> id;   // CRIU's of the descriptor
};
std::vector<std::uint8_t> pack_dmabuf_image(const DmaBufImage& image, const ImageKeys& keys);
// Errors: EBADMSG; ENOSYS for upstream's images, which do not say whose memory it is.
Result<DmaBufImage> unpack_dmabuf_image(std::span<const std::uint8_t> payload, const std::string& name,
                                        const ImageKeys& keys);

// encode_kfd_image() with its digest.
std::vector<std::uint8_t> pack_kfd_image(const KfdImage& image, const ImageKeys& keys);
// decode_kfd_image() after checking the digest, with the file's name in messages. Errors: EBADMSG.
Result<KfdImage> unpack_kfd_image(std::span<const std::uint8_t> payload, const std::string& name,
                                  const ImageKeys& keys);

// Checks that images are of one dump, as all in a directory must be, and that each bears its own name. The
// second is not checked for upstream's, which have no dump_id.
class SameDump {
 public:
  // `id`: from the image itself. EBADMSG, naming both, for an image of another dump than the first, or if
  // only one of them has a dump id. EBADMSG, naming one, for an image under another's name.
  Result<void> add(const std::string& name, const std::optional<DumpId>& dump_id,
                   std::optional<std::uint32_t> id);
  // No image was added.
  bool empty() const { return first_.empty(); }

 private:
  std::string first_;
  std::optional<DumpId> dump_id_;
};

// Ties a sidecar to the BO table: XXH3-128 of the GPU's entries that have contents (see
// docs/reference/image-format.md).
Sum128 bo_table_digest(std::span<const BoEntry> bos, std::uint32_t gpu_id);
Sum128 bo_table_digest(std::span<const RenderBo> bos);

// The records of the image's private data, which is borrowed. Errors: EBADMSG.
Result<kfd::PrivateData> private_records(const KfdImage& image);

// The driver that made an image. Drivers differ under one version number, and RESTORE of a driver that gets
// another's private data fails half-way.
struct DriverRecords {
  std::uint32_t bo_bytes = 0;  // size of a BO's record; 0: unknown
  std::string kernel_release;  // empty: unknown
};
DriverRecords driver_records_of(const KfdImage& image);

// EINVAL, naming both sizes, if the driver here has others. `local_bytes`: kfd::ask_bo_record_bytes(). Both
// must be known.
Result<void> check_record_bytes(const DriverRecords& image, std::uint32_t local_bytes);

// Whether the driver here can RESTORE this image's private data, before anything is created; `sluice map`
// asks what a restore asks. `gpus_seen`: GPUs visible to the task. For more than the image has, and for BOs
// that are imported, the records must be known. Errors: check_record_bytes()'s; EBADMSG.
Result<void> check_private_data(const KfdImage& image, std::size_t gpus_seen, std::uint32_t local_bytes);

}  // namespace sluice
