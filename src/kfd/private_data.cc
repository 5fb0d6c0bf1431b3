// SPDX-License-Identifier: MIT
#include "kfd/private_data.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "base/format.h"
#include "kfd/uapi.h"

namespace sluice::kfd {
namespace {

using Bytes = std::span<const std::uint8_t>;

constexpr std::uint32_t kBoRecordCandidates[] = {80, 272};
constexpr std::size_t kBoHandleAt = 8;
constexpr std::size_t kBoMappedAt = 12;  // gpu_ids, up to the first 0

enum ObjectType : std::uint32_t { kQueue = 0, kEvent = 1, kSvmRange = 2 };
constexpr std::size_t kEventRecordBytes = 64;
constexpr std::size_t kQueueHeaderBytes = 120;
constexpr std::size_t kQueueCtlStackSizeAt = 108;
constexpr std::size_t kQueueMqdSizeAt = 112;
constexpr std::size_t kQueueHeaderFieldsEnd = 116;
constexpr std::size_t kSvmHeaderBytes = 24;
constexpr std::size_t kSvmAttributeBytes = 8;
constexpr std::size_t kSvmCommonAttributes = 4;     // then one for each GPU
constexpr std::uint32_t kSvmAttributeNoAccess = 4;  // KFD_IOCTL_SVM_ATTR_NO_ACCESS; its value is a gpu_id

// Kernels that checkpoint partitions store each queue's state once per XCC.
constexpr std::uint64_t kQueueStateCopies[] = {1, 2, 3, 4, 6, 8};

std::uint32_t load_u32(Bytes bytes, std::size_t at) {
  std::uint32_t value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// 0 if it is no object, else its size, which may exceed the data.
std::uint64_t object_bytes(Bytes at, std::size_t devices, std::uint64_t copies) {
  if (at.size() < sizeof(std::uint32_t)) return 0;
  switch (load_u32(at, 0)) {
    case kQueue:
      if (at.size() < kQueueHeaderFieldsEnd) return 0;
      return kQueueHeaderBytes +
             copies * (std::uint64_t{load_u32(at, kQueueMqdSizeAt)} + load_u32(at, kQueueCtlStackSizeAt));
    case kEvent:
      return kEventRecordBytes;
    case kSvmRange:
      return kSvmHeaderBytes + kSvmAttributeBytes * (kSvmCommonAttributes + devices);
    default:
      return 0;
  }
}

// The objects, if `bytes` is exactly `counts.objects` of them.
std::optional<std::vector<Bytes>> split_objects(Bytes bytes, const PrivateCounts& counts,
                                                std::uint64_t copies) {
  std::vector<Bytes> objects;
  for (std::size_t i = 0; i < counts.objects; i++) {
    const std::uint64_t size = object_bytes(bytes, counts.devices, copies);
    if (size == 0 || size > bytes.size()) return std::nullopt;
    objects.push_back(bytes.first(static_cast<std::size_t>(size)));
    bytes = bytes.subspan(static_cast<std::size_t>(size));
  }
  if (!bytes.empty()) return std::nullopt;
  return objects;
}

std::optional<std::vector<Bytes>> split_objects(Bytes bytes, const PrivateCounts& counts) {
  for (const std::uint64_t copies : kQueueStateCopies) {
    if (auto objects = split_objects(bytes, counts, copies)) return objects;
  }
  return std::nullopt;
}

std::uint64_t bytes_before_objects(const PrivateCounts& counts, std::uint32_t record_bytes) {
  return bo_records_begin(counts) + std::uint64_t{record_bytes} * counts.bos;
}

void append(std::vector<std::uint8_t>& to, Bytes bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

void append_u32(std::vector<std::uint8_t>& to, std::uint32_t value) {
  std::uint8_t bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  append(to, bytes);
}

}  // namespace

std::size_t bo_records_begin(const PrivateCounts& counts) {
  return kProcessRecordBytes + kDeviceRecordBytes * counts.devices;
}

std::uint32_t derive_bo_record_bytes(const PrivateCounts& counts, Bytes priv_data) {
  if (counts.bos == 0) return 0;
  std::uint32_t found = 0;
  for (const std::uint32_t candidate : kBoRecordCandidates) {
    const std::uint64_t before_objects = bytes_before_objects(counts, candidate);
    if (before_objects > priv_data.size()) continue;
    if (!split_objects(priv_data.subspan(static_cast<std::size_t>(before_objects)), counts)) continue;
    if (found != 0) return 0;  // unreached: a guard
    found = candidate;
  }
  return found;
}

Result<PrivateData> PrivateData::parse(Bytes bytes, const PrivateCounts& counts,
                                       std::uint32_t bo_record_bytes) {
  PrivateData data(bytes, counts, bo_record_bytes);
  const std::uint64_t before_objects = bytes_before_objects(counts, bo_record_bytes);
  const bool has_records = counts.bos == 0 || bo_record_bytes > kBoMappedAt;
  auto objects = has_records && before_objects <= bytes.size()
                     ? split_objects(bytes.subspan(static_cast<std::size_t>(before_objects)), counts)
                     : std::nullopt;
  if (!objects) {
    return Error{
        EBADMSG,
        formatted("private data of {} bytes does not fit {} GPUs, {} BOs and {} objects; use a sluice "
                  "that knows this kernel, or another checkpoint [SL-G45]",
                  bytes.size(), counts.devices, counts.bos, counts.objects)};
  }
  data.objects_ = std::move(*objects);
  return data;
}

PrivateData::BoRecord PrivateData::bo(std::size_t index) const {
  const Bytes record = bytes_.subspan(bo_records_begin(counts_) + index * bo_record_bytes_, bo_record_bytes_);
  BoRecord bo{load_u32(record, kBoHandleAt), {}};
  for (std::size_t at = kBoMappedAt; at + sizeof(std::uint32_t) <= record.size();
       at += sizeof(std::uint32_t)) {
    const std::uint32_t gpu_id = load_u32(record, at);
    if (gpu_id == 0) break;
    bo.mapped_gpu_ids.push_back(gpu_id);
  }
  return bo;
}

std::vector<std::uint8_t> PrivateData::edit(std::span<const std::size_t> left_out,
                                            std::span<const std::uint32_t> more_gpu_ids) const {
  std::vector<std::uint8_t> edited;
  append(edited, bytes_.first(bo_records_begin(counts_)));
  edited.resize(edited.size() + kDeviceRecordBytes * more_gpu_ids.size());
  for (std::size_t i = 0; i < counts_.bos; ++i) {
    if (std::binary_search(left_out.begin(), left_out.end(), i)) continue;
    append(edited, bytes_.subspan(bo_records_begin(counts_) + i * bo_record_bytes_, bo_record_bytes_));
  }
  for (const Bytes object : objects_) {
    append(edited, object);
    if (load_u32(object, 0) != kSvmRange) continue;
    for (const std::uint32_t gpu_id : more_gpu_ids) {
      append_u32(edited, kSvmAttributeNoAccess);
      append_u32(edited, gpu_id);
    }
  }
  return edited;
}

}  // namespace sluice::kfd
