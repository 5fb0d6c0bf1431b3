// SPDX-License-Identifier: MIT
#include "support/upstream_images.h"

#include <fcntl.h>

#include <algorithm>
#include <map>
#include <span>
#include <string>

#include "base/unique_fd.h"
#include "images/files/files.h"
#include "kfd/uapi.h"

namespace sluice::test {
namespace {

using Bytes = std::vector<std::uint8_t>;

// A protobuf message. Fields are added in ascending order, as protobuf-c packs them.
class Message {
 public:
  Message& number(std::uint32_t field, std::uint64_t value) {
    varint(std::uint64_t{field} << 3U);
    varint(value);
    return *this;
  }
  Message& bytes(std::uint32_t field, std::span<const std::uint8_t> value) {
    varint(std::uint64_t{field} << 3U | 2U);
    varint(value.size());
    bytes_.insert(bytes_.end(), value.begin(), value.end());
    return *this;
  }
  const Bytes& octets() const { return bytes_; }

 private:
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7U) bytes_.push_back(static_cast<std::uint8_t>(value | 0x80U));
    bytes_.push_back(static_cast<std::uint8_t>(value));
  }

  Bytes bytes_;
};

// Of a CPU node upstream's plugin knows the number, the cores and the links.
Bytes device_entry(const kfd::Topology& topology, const kfd::ListedNode& listed) {
  const kfd::Node& node = *topology.find_node(listed.node_id);
  const std::uint64_t fields[] = {
      node.node_id,
      node.gpu_id,
      node.is_gpu() ? 0 : node.cpu_cores_count,
      node.simd_count,
      node.mem_banks_count,
      node.caches_count,
      node.io_links_count,
      node.max_waves_per_simd,
      node.lds_size_in_kb,
      0,  // gds_size_in_kb: upstream does not read it
      node.num_gws,
      node.wave_front_size,
      node.array_count,
      node.simd_arrays_per_engine,
      node.cu_per_simd_array,
      node.simd_per_cu,
      node.max_slots_scratch_cu,
      node.vendor_id,
      node.device_id,
      node.domain,
      node.drm_render_minor,
      node.hive_id,
      node.num_sdma_engines,
      node.num_sdma_xgmi_engines,
      node.num_sdma_queues_per_engine,
      node.num_cp_queues,
      node.fw_version,
      node.capability,
      node.sdma_fw_version,
      node.vram_public,
      node.vram_size,
  };
  Message entry;
  std::uint32_t number = 0;
  for (const std::uint64_t value : fields) entry.number(++number, value);
  for (const kfd::IoLink& link : listed.links) {
    if (topology.valid(link))
      entry.bytes(32, Message().number(1, link.type).number(2, link.node_to).octets());
  }
  return entry.octets();
}

// criu-dev imports each BO's dma-buf, if it has one, into its own render file, which counts handles from 1 on
// each GPU.
Bytes bo_entry(const BoEntry& bo, UpstreamForm form, std::map<std::uint32_t, std::uint32_t>& handles) {
  Message entry;
  entry.number(1, bo.addr).number(2, bo.bytes).number(3, bo.offset).number(4, bo.alloc_flags);
  entry.number(5, bo.gpu_id);
  if (form == UpstreamForm::Dev)
    entry.number(6, kfd::has_contents(bo.alloc_flags) ? ++handles[bo.gpu_id] : UINT32_MAX);
  return entry.octets();
}

// As the kernel lists it: alignment in pages, addresses without the bits above the page tables'. `is_import`:
// also true for some that are not, see upstream_render_image().
Bytes drm_bo_entry(const RenderBo& bo, bool is_import) {
  constexpr std::uint64_t kAddressBits = (std::uint64_t{1} << 48U) - 1;
  constexpr std::uint64_t kPage = 4096;
  const std::vector<drm::GemMapping>& mappings = bo.gem.mappings;
  Message entry;
  entry.number(1, mappings.empty() ? 0 : mappings.back().address & kAddressBits).number(2, bo.gem.bytes);
  entry.number(3, bo.mmap_offset).number(4, bo.gem.alloc_flags).number(5, bo.gem.alignment_bytes / kPage);
  entry.number(6, bo.gem.domains)
      .number(7, bo.gem.handle)
      .number(8, is_import ? 1 : 0)
      .number(9, mappings.size());
  for (const drm::GemMapping& mapping : mappings) {
    entry.bytes(10, Message()
                        .number(1, mapping.address & kAddressBits)
                        .number(2, mapping.bytes)
                        .number(3, mapping.bo_offset)
                        .number(4, mapping.flags)
                        .octets());
  }
  return entry.octets();
}

// Each image of a kind.
template <class Unpack, class Pack>
Result<void> rewrite(int dir_fd, const Result<std::vector<std::string>>& names, Unpack unpack, Pack pack) {
  if (!names) return names.error();
  for (const std::string& name : *names) {
    SLUICE_TRY_ASSIGN(const Bytes payload, read_image(dir_fd, name));
    SLUICE_TRY_ASSIGN(const auto image, unpack(payload, name, ImageKeys()));
    SLUICE_TRY(write_image(dir_fd, name, pack(image), false));
  }
  return {};
}

}  // namespace

Bytes upstream_kfd_image(const KfdImage& image, UpstreamForm form) {
  const std::size_t gpus = image.topology.gpu_count();
  Message message;
  message.number(1, image.pid).number(2, gpus).number(3, image.topology.nodes.size() - gpus);
  for (const kfd::ListedNode& listed : image.topology.listing)
    message.bytes(4, device_entry(image.topology, listed));
  std::vector<Bytes> bos;
  std::map<std::uint32_t, std::uint32_t> handles;
  for (const BoEntry& bo : image.bos) {
    if (!bo.imports) bos.push_back(bo_entry(bo, form, handles));
  }
  message.number(5, bos.size());
  for (const Bytes& bo : bos) message.bytes(6, bo);
  message.number(7, image.num_objects).number(8, image.shm.bytes).number(9, image.shm.magic);
  message.bytes(10, image.priv_data);
  return message.octets();
}

Bytes upstream_render_image(const RenderImage& image, UpstreamForm form, std::uint32_t kfd_handles) {
  Message message;
  message.number(1, image.gpu_id);
  if (form == UpstreamForm::Released) return message.octets();
  std::vector<Bytes> bos;
  for (const RenderBo& bo : image.bos) {
    const bool is_import = kfd_handles != 0 && bo.gem.handle <= kfd_handles;
    if (!bo.imports) bos.push_back(drm_bo_entry(bo, is_import));
  }
  message.number(2, image.id).number(3, image.minor).number(4, bos.size());
  for (const Bytes& bo : bos) message.bytes(5, bo);
  return message.octets();
}

Result<void> make_upstreams(const std::filesystem::path& directory, UpstreamForm form) {
  const UniqueFd dir(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!dir) return make_error(errno, "open " + directory.string());
  std::map<std::uint32_t, std::uint32_t> bos;  // the KFD's, by GPU
  SLUICE_TRY(rewrite(dir.get(), list_kfd_images(dir.get()), unpack_kfd_image, [&](const KfdImage& image) {
    for (const BoEntry& bo : image.bos) bos[bo.gpu_id] += kfd::has_contents(bo.alloc_flags) ? 1 : 0;
    return upstream_kfd_image(image, form);
  }));
  std::uint32_t most = 0;
  for (const auto& [gpu_id, count] : bos) most = std::max(most, count);
  SLUICE_TRY(
      rewrite(dir.get(), list_render_images(dir.get()), unpack_render_image,
              [form, most](const RenderImage& image) { return upstream_render_image(image, form, most); }));
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("amdgpu-sums-") || name.starts_with("sluice-"))
      std::filesystem::remove(entry.path());
  }
  return {};
}

}  // namespace sluice::test
