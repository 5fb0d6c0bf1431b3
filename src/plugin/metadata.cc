// SPDX-License-Identifier: MIT
#include "plugin/metadata.h"

#include <endian.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "criu-amdgpu.pb-c.h"
#include "kfd/uapi.h"

namespace sluice::plugin {

namespace {

// MAX_GPU_INSTANCE gpu_ids of four bytes and 16 bytes more. Read in Linux 6.1 (KFD 1.11), 6.12 (1.17) and 7.2
// (1.23); which of the versions between changed it is not known to us.
constexpr std::uint32_t kOldRecordBytes = 80;
constexpr std::uint32_t kNewRecordBytes = 272;
constexpr std::uint32_t kLastKnownOldMinor = 11;
constexpr std::uint32_t kFirstKnownNewMinor = 17;

struct FreeRenderNode {
  void operator()(CriuRenderNode* node) const { criu_render_node__free_unpacked(node, nullptr); }
};

}  // namespace

std::vector<std::uint8_t> pack_render_image(const RenderImage& image, const DumpId& dump_id) {
  DumpId id = dump_id;
  CriuRenderNode node = CRIU_RENDER_NODE__INIT;
  node.gpu_id = image.gpu_id;
  node.id = image.id;
  node.drm_render_minor = image.minor;
  node.num_of_bos = image.num_bos;
  node.has_kfd_acquired = image.kfd_acquired.has_value() ? 1 : 0;
  node.kfd_acquired = image.kfd_acquired.value_or(false) ? 1 : 0;
  node.has_dump_id = 1;
  node.dump_id = {id.size(), id.data()};
  std::vector<std::uint8_t> payload(criu_render_node__get_packed_size(&node));
  (void)criu_render_node__pack(&node, payload.data());
  return payload;
}

Result<RenderImage> unpack_render_image(std::span<const std::uint8_t> payload, const std::string& name) {
  const std::unique_ptr<CriuRenderNode, FreeRenderNode> node(
      criu_render_node__unpack(nullptr, payload.size(), payload.data()));
  if (!node) return make_error(EBADMSG, name + " cannot be parsed; the image is damaged");
  if (node->num_of_bos != node->n_bo_entries || node->gpu_id > kfd::kGpuIdMax) {
    return make_error(EBADMSG, name + " contradicts itself; the image is damaged");
  }
  RenderImage image{node->gpu_id, node->id, node->drm_render_minor, node->num_of_bos, std::nullopt};
  if (node->has_kfd_acquired != 0) image.kfd_acquired = node->kfd_acquired != 0;
  return image;
}

Result<kfd::KfdImage> unpack_kfd_image(std::span<const std::uint8_t> payload, const std::string& name) {
  auto image = kfd::decode_kfd_image(payload);
  if (!image) return Error{image.error().err, name + ": " + image.error().what};
  return image;
}

Sum128 bo_table_digest(std::span<const kfd::BoEntry> bos, std::uint32_t gpu_id) {
  std::vector<std::uint64_t> words;
  for (const kfd::BoEntry& bo : bos) {
    if (bo.gpu_id != gpu_id || !kfd::has_contents(bo.alloc_flags)) continue;
    for (const std::uint64_t word :
         {bo.addr, bo.bytes, std::uint64_t{bo.alloc_flags}, std::uint64_t{bo.gpu_id}}) {
      words.push_back(htole64(word));
    }
  }
  return sum_of(std::as_bytes(std::span<const std::uint64_t>(words)));
}

std::uint32_t known_record_bytes(std::uint32_t minor) {
  if (minor <= kLastKnownOldMinor) return kOldRecordBytes;
  return minor >= kFirstKnownNewMinor ? kNewRecordBytes : 0;
}

std::uint32_t record_bytes_of(const kfd::KfdImage& image) {
  if (image.bo_record_bytes != 0) return image.bo_record_bytes;
  return kfd::derive_bo_record_bytes(image.topology.gpu_count(), image.bos.size(), image.num_objects,
                                     image.priv_data);
}

Result<void> check_private_data(const kfd::KfdImage& image, std::uint32_t local_record_bytes) {
  const std::uint32_t recorded = record_bytes_of(image);
  if (local_record_bytes == 0 || recorded == 0 || local_record_bytes == recorded) return {};
  return Error{
      EINVAL, "the image was made under Linux " +
                  (image.kernel_release.empty() ? std::string("(not recorded)") : image.kernel_release) +
                  ", whose driver keeps " + std::to_string(recorded) + " bytes per BO where this one keeps " +
                  std::to_string(local_record_bytes) + "; restore it under a kernel of the same kind"};
}

}  // namespace sluice::plugin
