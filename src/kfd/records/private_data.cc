// SPDX-License-Identifier: MIT
#include "kfd/records/private_data.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <set>
#include <utility>

#include "base/format.h"
#include "kfd/records/private_record.h"
#include "kfd/uapi.h"

namespace sluice::kfd {
namespace {

using Bytes = std::span<const std::uint8_t>;

// A BO's record begins so everywhere. What follows the list, a driver may have added.
constexpr std::size_t kBoHandleAt = 8;     // before it: the CPU's address of a userptr BO
constexpr std::size_t kBoMappedAt = 12;    // gpu_ids, up to the first 0
constexpr std::uint32_t kBoAlignment = 8;  // the first member is 64 bits wide
constexpr std::uint32_t kLeastBoRecordBytes = 16;
constexpr std::uint32_t kMostBoRecordBytes = 4096;  // a bound for the search: a list of a thousand GPUs

// AMD's records, for 16 and for 64 GPUs, end with: imported or not, flags, the handle or zeros, padding
// (struct kfd_criu_bo_priv_data of amdgpu-dkms 6.0.5, 6.7.0 and 6.12.12).
constexpr std::uint32_t kAmdsRecordBytes[] = {104, 296};
constexpr std::size_t kIpcBytes = 28;
constexpr std::size_t kIpcHandleAt = 8;

enum ObjectType : std::uint32_t { kQueue = 0, kEvent = 1, kSvmRange = 2 };
constexpr std::size_t kObjectPadAt = 4;  // between the type and 64 bits; the driver clears it
constexpr std::size_t kEventRecordBytes = 64;
constexpr std::size_t kLeastObjectBytes = kEventRecordBytes;
constexpr std::size_t kEventIdAt = 16;
constexpr std::size_t kEventFlagsAt[] = {20, 28};  // resets itself; is signaled
constexpr std::size_t kSvmHeaderBytes = 24;
constexpr std::size_t kSvmAttributeBytes = 8;
constexpr std::size_t kSvmCommonAttributes = 4;     // then one for each GPU
constexpr std::uint32_t kSvmAttributeNoAccess = 4;  // KFD_IOCTL_SVM_ATTR_NO_ACCESS; its value is a gpu_id

constexpr std::uint32_t kMostHandle = std::numeric_limits<std::int32_t>::max();  // of BOs and of events

// Kernels that checkpoint partitions store each queue's state once per XCC.
constexpr std::uint64_t kQueueStateCopies[] = {1, 2, 3, 4, 6, 8};

bool all_zero(Bytes bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::uint8_t byte) { return byte == 0; });
}

bool has(std::span<const std::uint32_t> gpu_ids, std::uint32_t gpu_id) {
  return std::find(gpu_ids.begin(), gpu_ids.end(), gpu_id) != gpu_ids.end();
}

// REQUIRES: as long as one.
bool is_event(Bytes at) {
  return load_u32(at, kEventIdAt) <= kMostHandle &&
         std::all_of(std::begin(kEventFlagsAt), std::end(kEventFlagsAt),
                     [&](std::size_t flag) { return load_u32(at, flag) <= 1; });
}

// The list of GPUs in a record. A process maps a BO on as many GPUs as it sees, at most.
std::vector<std::uint32_t> mapped_by(Bytes record, std::size_t gpus) {
  std::vector<std::uint32_t> gpu_ids;
  for (Bytes rest = record.subspan(kBoMappedAt); gpu_ids.size() < gpus && rest.size() >= sizeof gpu_ids[0];
       rest = rest.subspan(sizeof gpu_ids[0])) {
    const std::uint32_t gpu_id = load_u32(rest, 0);
    if (gpu_id == 0) break;
    gpu_ids.push_back(gpu_id);
  }
  return gpu_ids;
}

// Nothing if the driver keeps none, or the memory has none.
std::optional<PrivateData::BoRecord::Ipc> ipc_of(Bytes record) {
  if (std::find(std::begin(kAmdsRecordBytes), std::end(kAmdsRecordBytes), record.size()) ==
      std::end(kAmdsRecordBytes))
    return std::nullopt;
  const Bytes bytes = record.last(kIpcBytes);
  PrivateData::BoRecord::Ipc ipc{{}, load_u32(bytes, 0) != 0};
  for (std::size_t i = 0; i < ipc.handle.size(); ++i)
    ipc.handle[i] = load_u32(bytes, kIpcHandleAt + i * sizeof ipc.handle[i]);
  if (ipc.handle == IpcHandle{}) return std::nullopt;
  return ipc;
}

// Bytes that are written one after the other. REQUIRES: there is room.
class Writer {
 public:
  explicit Writer(std::span<std::uint8_t> room) : room_(room) {}
  void put(Bytes bytes) {
    std::copy(bytes.begin(), bytes.end(), room_.begin());
    skip(bytes.size());
  }
  void put_u32(std::uint32_t value) {
    std::memcpy(room_.data(), &value, sizeof value);
    skip(sizeof value);
  }
  void skip(std::size_t bytes) { room_ = room_.subspan(bytes); }

 private:
  std::span<std::uint8_t> room_;
};

}  // namespace

std::size_t bo_records_begin(std::size_t gpus) {
  return kProcessRecordBytes + kDeviceRecordBytes * gpus;
}

// REQUIRES: the bytes have it.
Bytes PrivateData::record(std::size_t bo, std::uint32_t record_bytes) const {
  return bytes_.subspan(bo_records_begin(owners_.gpu_ids.size()) + bo * record_bytes, record_bytes);
}

// Whether the record can be this BO's.
bool PrivateData::fits_bo(std::size_t bo, Bytes record) const {
  if (!owners_.bos[bo].is_userptr && !all_zero(record.first(kBoHandleAt))) return false;
  if (load_u32(record, kBoHandleAt) > kMostHandle) return false;
  std::vector<std::uint32_t> mapped = mapped_by(record, owners_.gpu_ids.size());
  std::sort(mapped.begin(), mapped.end());
  return std::adjacent_find(mapped.begin(), mapped.end()) == mapped.end() &&
         std::all_of(mapped.begin(), mapped.end(),
                     [&](std::uint32_t gpu_id) { return has(owners_.gpu_ids, gpu_id); });
}

bool PrivateData::fits_bos(std::uint32_t record_bytes) const {
  std::set<std::pair<std::uint32_t, std::uint32_t>> handles;
  for (std::size_t i = 0; i < owners_.bos.size(); ++i) {
    const Bytes bytes = record(i, record_bytes);
    if (!fits_bo(i, bytes)) return false;
    if (!handles.emplace(owners_.bos[i].gpu_id, load_u32(bytes, kBoHandleAt)).second) return false;
  }
  return true;
}

// 0 if it is no object that RESTORE could take, else its size, which may exceed the data.
std::uint64_t PrivateData::object_bytes(Bytes at, std::uint64_t copies) const {
  if (at.size() < kLeastObjectBytes || load_u32(at, kObjectPadAt) != 0) return 0;
  switch (load_u32(at, 0)) {
    case kQueue:
      if (at.size() < queue_record::kHeaderBytes ||
          !has(owners_.gpu_ids, load_u32(at, queue_record::kGpuIdAt)))
        return 0;
      return queue_record::kHeaderBytes + copies * (std::uint64_t{load_u32(at, queue_record::kMqdBytesAt)} +
                                                    load_u32(at, queue_record::kCtlStackBytesAt));
    case kEvent:
      return is_event(at) ? kEventRecordBytes : 0;
    case kSvmRange:
      return kSvmHeaderBytes + kSvmAttributeBytes * (kSvmCommonAttributes + owners_.gpu_ids.size());
    default:
      return 0;
  }
}

// The objects, if `bytes` is exactly these.
std::optional<std::vector<Bytes>> PrivateData::split_objects(Bytes bytes, std::uint64_t copies) const {
  std::vector<Bytes> objects;
  for (std::size_t i = 0; i < owners_.objects; i++) {
    const std::uint64_t size = object_bytes(bytes, copies);
    if (size == 0 || size > bytes.size()) return std::nullopt;
    objects.push_back(bytes.first(static_cast<std::size_t>(size)));
    bytes = bytes.subspan(static_cast<std::size_t>(size));
  }
  if (!bytes.empty()) return std::nullopt;
  return objects;
}

// Notes the objects, if they fit records of this size. False: they fit in another way, too.
bool PrivateData::take(std::uint32_t record_bytes) {
  if (!fits_bos(record_bytes)) return true;
  const Bytes rest =
      bytes_.subspan(bo_records_begin(owners_.gpu_ids.size()) + record_bytes * owners_.bos.size());
  for (const std::uint64_t copies : kQueueStateCopies) {
    auto objects = split_objects(rest, copies);
    if (!objects) continue;
    const auto same = [](Bytes a, Bytes b) { return a.data() == b.data() && a.size() == b.size(); };
    if (objects_ && !std::equal(objects->begin(), objects->end(), objects_->begin(), objects_->end(), same))
      return false;
    bo_record_bytes_ = record_bytes;
    objects_ = std::move(objects);
  }
  return true;
}

Result<PrivateData> PrivateData::read(Bytes bytes, PrivateOwners owners, std::uint32_t bo_record_bytes) {
  PrivateData data(bytes, std::move(owners));
  const std::size_t gpus = data.owners_.gpu_ids.size(), bos = data.owners_.bos.size();
  const Error misfit{
      EBADMSG,
      formatted("private data of {} bytes does not fit {} GPUs, {} BOs and {} objects; restore under the "
                "driver that wrote it, where as many GPUs are visible, or use a sluice that knows this "
                "driver [SL-G45]",
                bytes.size(), gpus, bos, data.owners_.objects)};
  const std::size_t begin = bo_records_begin(gpus);
  if (begin > bytes.size() || data.owners_.objects > (bytes.size() - begin) / kLeastObjectBytes)
    return misfit;
  if (bos == 0) {
    if (!data.take(0) || !data.objects_) return misfit;
    return data;
  }
  const std::uint64_t most = std::min<std::uint64_t>(
      kMostBoRecordBytes, (bytes.size() - begin - data.owners_.objects * kLeastObjectBytes) / bos);
  for (std::uint32_t size = kLeastBoRecordBytes; size <= most; size += kBoAlignment) {
    if (bo_record_bytes != 0 && size != bo_record_bytes) continue;
    if (!data.take(size)) return misfit;
  }
  if (!data.objects_) return misfit;
  return data;
}

PrivateData::BoRecord PrivateData::bo(std::size_t index) const {
  const Bytes bytes = record(index, bo_record_bytes_);
  return {load_u32(bytes, kBoHandleAt), mapped_by(bytes, owners_.gpu_ids.size()), ipc_of(bytes)};
}

std::vector<std::uint8_t> PrivateData::edit(std::span<const std::size_t> left_out,
                                            std::span<const std::uint32_t> more_gpu_ids) const {
  const auto is_svm = [](Bytes object) { return load_u32(object, 0) == kSvmRange; };
  const auto ranges = static_cast<std::size_t>(std::count_if(objects_->begin(), objects_->end(), is_svm));
  std::vector<std::uint8_t> edited(bytes_.size() - left_out.size() * bo_record_bytes_ +
                                   more_gpu_ids.size() * (kDeviceRecordBytes + ranges * kSvmAttributeBytes));
  Writer to(edited);
  to.put(bytes_.first(bo_records_begin(owners_.gpu_ids.size())));
  to.skip(kDeviceRecordBytes * more_gpu_ids.size());
  for (std::size_t i = 0; i < owners_.bos.size(); ++i) {
    if (!std::binary_search(left_out.begin(), left_out.end(), i)) to.put(record(i, bo_record_bytes_));
  }
  for (const Bytes object : *objects_) {
    to.put(object);
    if (!is_svm(object)) continue;
    for (const std::uint32_t gpu_id : more_gpu_ids) {
      to.put_u32(kSvmAttributeNoAccess);
      to.put_u32(gpu_id);
    }
  }
  return edited;
}

}  // namespace sluice::kfd
