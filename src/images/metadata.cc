// SPDX-License-Identifier: MIT
#include "images/metadata.h"

#include <endian.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>

#include "base/format.h"
#include "criu-amdgpu.pb-c.h"
#include "images/files/digest.h"
#include "images/files/files.h"
#include "kfd/uapi.h"
#include "repeated.h"
#include "unpack_memory.h"

namespace sluice {

namespace {

constexpr std::uint32_t kMostMinor = (1U << 20) - 1;  // Linux

struct FreeRenderNode {
  void operator()(CriuRenderNode* node) const { criu_render_node__free_unpacked(node, nullptr); }
};

bool is_dump_id(protobuf_c_boolean has, const ProtobufCBinaryData& bytes) {
  return has == 0 || bytes.len == sizeof(DumpId);
}

// REQUIRES: is_dump_id().
std::optional<DumpId> dump_id_of(protobuf_c_boolean has, const ProtobufCBinaryData& bytes) {
  if (has == 0) return std::nullopt;
  DumpId id{};
  std::copy_n(bytes.data, id.size(), id.begin());
  return id;
}

// Borrows the data, which packing only reads.
DrmBoMetadata packable(const drm::GemMetadata& metadata) {
  DrmBoMetadata message = DRM_BO_METADATA__INIT;
  message.has_tiling_info = metadata.tiling_info != 0 ? 1 : 0;
  message.tiling_info = metadata.tiling_info;
  message.has_flags = metadata.flags != 0 ? 1 : 0;
  message.flags = metadata.flags;
  message.has_data = metadata.data.empty() ? 0 : 1;
  message.data = {metadata.data.size(), const_cast<std::uint8_t*>(metadata.data.data())};
  return message;
}

struct FreeDmaBufNode {
  void operator()(CriuDmabufNode* node) const { criu_dmabuf_node__free_unpacked(node, nullptr); }
};

}  // namespace

bool RenderImage::has_mappable_bos() const {
  return std::any_of(bos.begin(), bos.end(), [](const RenderBo& bo) { return bo.mmap_offset != 0; });
}

bool RenderImage::has_contents() const {
  return std::any_of(bos.begin(), bos.end(), [](const RenderBo& bo) { return !bo.imports; });
}

std::string RenderImage::node_words() const {
  return minor != kUnknownMinor ? "renderD" + std::to_string(minor)
                                : "the render node of GPU " + kfd::gpu_id_text(gpu_id);
}

std::vector<std::uint8_t> pack_render_image(const RenderImage& image, const ImageKeys& keys) {
  CriuRenderNode node = CRIU_RENDER_NODE__INIT;
  node.gpu_id = image.gpu_id;
  node.has_id = 1;
  node.id = image.id;
  node.has_drm_render_minor = 1;
  node.drm_render_minor = image.minor;
  node.has_num_of_bos = 1;
  node.num_of_bos = image.bos.size();
  node.has_kfd_acquired = image.kfd_acquired.has_value() ? 1 : 0;
  node.kfd_acquired = image.kfd_acquired.value_or(false) ? 1 : 0;
  DumpId id = image.dump_id.value_or(DumpId{});
  node.has_dump_id = image.dump_id.has_value() ? 1 : 0;
  node.dump_id = {id.size(), id.data()};
  node.has_pid = image.pid.has_value() ? 1 : 0;
  node.pid = image.pid.value_or(0);
  node.has_has_sums = image.has_sums ? 1 : 0;
  node.has_sums = image.has_sums ? 1 : 0;

  Repeated<DrmBoEntry> bos(image.bos.size());
  std::vector<Repeated<DrmVmEntry>> vms;
  Repeated<DrmBoMetadata> metadata(image.bos.size());
  for (const RenderBo& bo : image.bos) {
    const drm::GemBo& gem = bo.gem;
    DrmBoEntry& entry = bos.add(DRM_BO_ENTRY__INIT);
    entry.addr = gem.mappings.empty() ? 0 : gem.mappings.front().address;
    entry.size = gem.bytes;
    entry.offset = bo.mmap_offset;
    entry.alloc_flags = gem.alloc_flags;
    entry.alignment = gem.alignment_bytes;
    entry.preferred_domains = static_cast<std::uint32_t>(gem.domains);
    entry.handle = gem.handle;
    entry.is_import = bo.imports ? 1 : 0;
    entry.has_shared = bo.shared != 0 ? 1 : 0;
    entry.shared = bo.shared;
    entry.num_of_vms = static_cast<std::uint32_t>(gem.mappings.size());
    Repeated<DrmVmEntry>& its_vms = vms.emplace_back(gem.mappings.size());
    for (const drm::GemMapping& mapping : gem.mappings) {
      DrmVmEntry& vm = its_vms.add(DRM_VM_ENTRY__INIT);
      vm.addr = mapping.address;
      vm.size = mapping.bytes;
      vm.offset = mapping.bo_offset;
      vm.flags = mapping.flags;
    }
    its_vms.put(entry.n_vm_entries, entry.vm_entries);
    if (gem.metadata != drm::GemMetadata{}) entry.metadata = &metadata.add(packable(gem.metadata));
  }
  bos.put(node.n_bo_entries, node.bo_entries);
  std::vector<std::uint8_t> payload(criu_render_node__get_packed_size(&node));
  (void)criu_render_node__pack(&node, payload.data());
  return with_digest(std::move(payload), MessageKind::RenderNode, keys);
}

namespace {

Error damaged(const std::string& what) {
  return Error{EBADMSG, what + ": the image is damaged; use another checkpoint [SL-I23]"};
}

// Why it could not be made again, in words; empty if it can.
std::string fault_of(const DrmBoEntry& entry, std::uint32_t handle_before) {
  if (entry.handle <= handle_before || entry.handle > INT32_MAX) return "a handle out of order";
  if (entry.size == 0 || entry.size > INT64_MAX) return "an impossible size";
  if (entry.num_of_vms != entry.n_vm_entries) return "mappings that contradict their number";
  for (const DrmVmEntry* const vm : std::span(entry.vm_entries, entry.n_vm_entries)) {
    if (vm->size == 0 || vm->size > entry.size || vm->offset > entry.size - vm->size ||
        vm->addr > UINT64_MAX - vm->size || vm->flags > UINT32_MAX)
      return "an impossible mapping";
  }
  if (entry.metadata != nullptr && entry.metadata->data.len > drm::kMostMetadataBytes)
    return "metadata of an impossible size";
  return "";
}

// A released plugin of upstream's writes only the GPU's id; a plugin that writes more writes everything.
bool contradicts_itself(const CriuRenderNode& node) {
  const int told = (node.has_id != 0 ? 1 : 0) + (node.has_drm_render_minor != 0 ? 1 : 0) +
                   (node.has_num_of_bos != 0 ? 1 : 0);
  const bool all = told == 3;
  const bool released = told == 0 && node.n_bo_entries == 0 && node.has_dump_id == 0;
  return (!all && !released) || !is_dump_id(node.has_dump_id, node.dump_id) || node.gpu_id == 0 ||
         node.gpu_id > kfd::kGpuIdMax ||
         (all && (node.num_of_bos != node.n_bo_entries || node.drm_render_minor > kMostMinor));
}

// criu-dev marks every BO as imported whose handle is also a handle of the KFD or of another file: too many.
// But memory from elsewhere has no place in VRAM here (amdgpu_dma_buf_create_obj gives it GTT). So a BO with
// VRAM is this GPU's, and its contents are in the dump. Its place tells whether another file has it, too
// (UndeclaredSharing).
bool is_imported(const DrmBoEntry& entry, bool ours) {
  constexpr std::uint32_t kDomainVram = 4;  // AMDGPU_GEM_DOMAIN_VRAM
  return entry.is_import != 0 && (ours || (entry.preferred_domains & kDomainVram) == 0);
}

RenderBo bo_of(const DrmBoEntry& entry, bool ours) {
  RenderBo bo;
  bo.gem = {entry.handle, entry.size, entry.alignment, entry.preferred_domains, entry.alloc_flags, {}, {}};
  for (const DrmVmEntry* const vm : std::span(entry.vm_entries, entry.n_vm_entries))
    bo.gem.mappings.push_back({vm->addr, vm->size, vm->offset, vm->flags});
  if (const DrmBoMetadata* const metadata = entry.metadata; metadata != nullptr) {
    const ProtobufCBinaryData& data = metadata->data;
    bo.gem.metadata = {metadata->tiling_info, metadata->flags, {data.data, data.data + data.len}};
  }
  bo.mmap_offset = entry.offset;
  bo.shared = entry.has_shared != 0 ? entry.shared : 0;
  bo.imports = is_imported(entry, ours);
  return bo;
}

}  // namespace

Result<RenderImage> unpack_render_image(std::span<const std::uint8_t> payload, const std::string& name,
                                        const ImageKeys& keys) {
  SLUICE_TRY_ASSIGN(const bool has_digest, check_digest(payload, MessageKind::RenderNode, name, keys));
  UnpackMemory memory(payload.size());
  const std::unique_ptr<CriuRenderNode, FreeRenderNode> node(
      criu_render_node__unpack(memory.allocator(), payload.size(), payload.data()));
  memory.throw_if_process_had_none();
  if (!node) return damaged(name + " cannot be parsed");
  if (contradicts_itself(*node)) return damaged(name + " contradicts itself");
  RenderImage image;
  image.gpu_id = node->gpu_id;
  image.id = node->has_id != 0 ? node->id : static_cast<std::uint32_t>(id_of_image(name).value_or(0));
  image.minor = node->has_drm_render_minor != 0 ? node->drm_render_minor : RenderImage::kUnknownMinor;
  const bool ours = node->has_dump_id != 0;
  std::uint32_t handle = 0;
  for (std::size_t i = 0; i < node->n_bo_entries; ++i) {
    const DrmBoEntry& entry = *node->bo_entries[i];
    const auto at = [&] { return formatted("{}: BO {} (GEM handle {})", name, i, entry.handle); };
    if (is_imported(entry, ours) && (entry.has_shared == 0 || entry.shared == 0))
      return Error{
          ENOSYS,
          at() +
              " is imported, and the image does not say whose memory it is; restore it with upstream's "
              "plugin [SL-I15]"};
    if (const std::string fault = fault_of(entry, handle); !fault.empty())
      return damaged(formatted("{} has {}", at(), fault));
    handle = entry.handle;
    image.bos.push_back(bo_of(entry, ours));
  }
  if (node->has_kfd_acquired != 0) image.kfd_acquired = node->kfd_acquired != 0;
  if (node->has_pid != 0) image.pid = node->pid;
  image.has_sums = node->has_has_sums != 0 && node->has_sums != 0;
  image.dump_id = dump_id_of(node->has_dump_id, node->dump_id);
  if (image.dump_id && !has_digest) return lost_digest(name);
  return image;
}

std::vector<std::uint8_t> pack_dmabuf_image(const DmaBufImage& image, const ImageKeys& keys) {
  CriuDmabufNode node = CRIU_DMABUF_NODE__INIT;
  node.gem_handle = image.gem_handle;
  node.has_shared = 1;
  node.shared = image.shared;
  node.has_pid = image.pid.has_value() ? 1 : 0;
  node.pid = image.pid.value_or(0);
  DumpId id = image.dump_id.value_or(DumpId{});
  node.has_dump_id = image.dump_id.has_value() ? 1 : 0;
  node.dump_id = {id.size(), id.data()};
  node.has_id = image.id.has_value() ? 1 : 0;
  node.id = image.id.value_or(0);
  std::vector<std::uint8_t> payload(criu_dmabuf_node__get_packed_size(&node));
  (void)criu_dmabuf_node__pack(&node, payload.data());
  return with_digest(std::move(payload), MessageKind::DmaBuf, keys);
}

Result<DmaBufImage> unpack_dmabuf_image(std::span<const std::uint8_t> payload, const std::string& name,
                                        const ImageKeys& keys) {
  SLUICE_TRY_ASSIGN(const bool has_digest, check_digest(payload, MessageKind::DmaBuf, name, keys));
  UnpackMemory memory(payload.size());
  const std::unique_ptr<CriuDmabufNode, FreeDmaBufNode> node(
      criu_dmabuf_node__unpack(memory.allocator(), payload.size(), payload.data()));
  memory.throw_if_process_had_none();
  if (!node || !is_dump_id(node->has_dump_id, node->dump_id)) return damaged(name + " cannot be parsed");
  if (node->has_shared == 0 || node->shared == 0)
    return Error{
        ENOSYS,
        name + " does not say whose memory the dma-buf is; restore it with upstream's plugin [SL-I16]"};
  DmaBufImage image{node->gem_handle, node->shared, std::nullopt, std::nullopt, std::nullopt};
  if (node->has_pid != 0) image.pid = node->pid;
  image.dump_id = dump_id_of(node->has_dump_id, node->dump_id);
  if (node->has_id != 0) image.id = node->id;
  if (!has_digest) return lost_digest(name);
  return image;
}

namespace {

// Our notes on each GPU come before the kernel's data. A dump's id and the digest come after it. So a torn
// end, or bytes that are no message, could make the image look like upstream's.
bool says_more_than_upstream(const KfdImage& image) {
  return std::any_of(image.topology.nodes.begin(), image.topology.nodes.end(),
                     [](const kfd::Node& node) { return node.gfx_target_version != 0; });
}

}  // namespace

std::vector<std::uint8_t> pack_kfd_image(const KfdImage& image, const ImageKeys& keys) {
  return with_digest(encode_kfd_image(image), MessageKind::Kfd, keys);
}

Result<KfdImage> unpack_kfd_image(std::span<const std::uint8_t> payload, const std::string& name,
                                  const ImageKeys& keys) {
  SLUICE_TRY_ASSIGN(const bool has_digest, check_digest(payload, MessageKind::Kfd, name, keys));
  auto image = decode_kfd_image(payload);
  if (!image) return explain(name, image.error());
  if (!has_digest && (image->dump_id || says_more_than_upstream(*image))) return lost_digest(name);
  return image;
}

Result<void> SameDump::add(const std::string& name, const std::optional<DumpId>& dump_id,
                           std::optional<std::uint32_t> id) {
  const std::optional<int> named = id_of_image(name);
  if (dump_id && id && named && *id != static_cast<std::uint32_t>(*named)) {
    return Error{
        EBADMSG,
        formatted("{} is the image of open file {}; give the files of the image directory their names back "
                  "[SL-I17]",
                  name, *id)};
  }
  if (first_.empty()) {
    first_ = name;
    dump_id_ = dump_id;
  }
  if (dump_id == dump_id_) return {};
  return Error{
      EBADMSG,
      formatted("{} belongs to another dump than {}; restore from a directory with one dump [SL-I18]", name,
                first_)};
}

Sum128 bo_table_digest(std::span<const BoEntry> bos, std::uint32_t gpu_id) {
  std::vector<std::uint64_t> words;
  for (const BoEntry& bo : bos) {
    if (bo.gpu_id != gpu_id || !kfd::has_contents(bo.alloc_flags)) continue;
    for (const std::uint64_t word :
         {bo.addr, bo.bytes, std::uint64_t{bo.alloc_flags}, std::uint64_t{bo.gpu_id}}) {
      words.push_back(htole64(word));
    }
  }
  return sum_of(std::as_bytes(std::span<const std::uint64_t>(words)));
}

Sum128 bo_table_digest(std::span<const RenderBo> bos) {
  std::vector<std::uint64_t> words;
  for (const RenderBo& bo : bos) {
    for (const std::uint64_t word : {std::uint64_t{bo.gem.handle}, bo.gem.bytes, bo.gem.alloc_flags})
      words.push_back(htole64(word));
  }
  return sum_of(std::as_bytes(std::span<const std::uint64_t>(words)));
}

namespace {

kfd::PrivateOwners owners_of(const KfdImage& image) {
  kfd::PrivateOwners owners;
  for (const kfd::Node& node : image.topology.nodes) {
    if (node.is_gpu()) owners.gpu_ids.push_back(node.gpu_id);
  }
  for (const BoEntry& bo : image.bos)
    owners.bos.push_back({bo.gpu_id, (bo.alloc_flags & kfd::kAllocUserptr) != 0});
  owners.objects = image.num_objects;
  return owners;
}

}  // namespace

Result<kfd::PrivateData> private_records(const KfdImage& image) {
  return kfd::PrivateData::read(image.priv_data, owners_of(image), image.bo_record_bytes);
}

DriverRecords driver_records_of(const KfdImage& image) {
  DriverRecords driver{image.bo_record_bytes, image.kernel_release};
  if (driver.bo_bytes != 0) return driver;
  if (const auto records = private_records(image)) driver.bo_bytes = records->bo_record_bytes();
  return driver;
}

Result<void> check_record_bytes(const DriverRecords& image, std::uint32_t local_bytes) {
  if (local_bytes == 0 || image.bo_bytes == 0 || local_bytes == image.bo_bytes) return {};
  return Error{EINVAL,
               formatted("the image was made under Linux {}, whose driver keeps {} bytes per BO where this "
                         "one keeps {}; restore it under the same driver [SL-R05]",
                         image.kernel_release.empty() ? "(not recorded)" : image.kernel_release,
                         image.bo_bytes, local_bytes)};
}

Result<void> check_private_data(const KfdImage& image, std::size_t gpus_seen, std::uint32_t local_bytes) {
  SLUICE_TRY(check_record_bytes(driver_records_of(image), local_bytes));
  const auto import =
      std::find_if(image.bos.begin(), image.bos.end(), [](const BoEntry& bo) { return bo.imports; });
  const std::size_t had = image.topology.gpu_count();
  if (import == image.bos.end() && gpus_seen <= had) return {};
  const auto records = private_records(image);
  if (records) return {};
  return explain(import != image.bos.end()
                     ? formatted("restore the BO at {:#x} as one that is shared by dma-buf", import->addr)
                     : formatted("restore where {} GPUs are visible, and not {}", gpus_seen, had),
                 records.error());
}

}  // namespace sluice
