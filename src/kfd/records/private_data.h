// SPDX-License-Identifier: MIT
// The private data of a checkpoint: opaque to everything else, and passed back to RESTORE unchanged, with two
// exceptions that RESTORE needs. Imported BOs have no record, because RESTORE would make independent ones,
// and every visible GPU must have one.
//
// Layout (kfd_chardev.c, kfd_priv.h, kfd_svm.c): one record of the process, one per GPU, one per BO, then
// objects that begin with their type. Records of SVM ranges have an attribute per GPU. A BO's record begins
// alike in every driver that was read, but its size differs under one version number: 80 bytes in Linux 6.1,
// 272 since 6.12; 104 and 296 in AMD's out-of-tree driver, which keeps IPC handles in it. So the size is
// found: the only one with which counts, objects and beginnings of records agree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "kfd/uapi.h"

namespace sluice::kfd {

// What a checkpoint says outside its private data, and by which the records are recognised.
struct PrivateOwners {
  struct Bo {
    std::uint32_t gpu_id = 0;  // user gpu_id
    bool is_userptr = false;
  };
  std::vector<std::uint32_t> gpu_ids;  // user gpu_ids of all GPUs that the process saw
  std::vector<Bo> bos;                 // in the order of their records
  std::size_t objects = 0;
};

// Where the BOs' records begin. Bytes.
std::size_t bo_records_begin(std::size_t gpus);

class PrivateData {
 public:
  // `bytes`: borrowed. `bo_record_bytes`: a BO's record has this size, or 0: find it. Errors: EBADMSG if the
  // bytes fit no size of a record, or several.
  static Result<PrivateData> read(std::span<const std::uint8_t> bytes, PrivateOwners owners,
                                  std::uint32_t bo_record_bytes = 0);

  // Size of a BO's record; 0 without BOs.
  std::uint32_t bo_record_bytes() const { return bo_record_bytes_; }

  // The record of BO `index`.
  struct BoRecord {
    std::uint32_t handle = 0;  // lower half of its handle; the upper is its GPU's user gpu_id
    std::vector<std::uint32_t> mapped_gpu_ids;  // user gpu_ids
    // AMD's out-of-tree driver: processes share the memory by this handle, and this one has imported it.
    struct Ipc {
      IpcHandle handle{};
      bool is_imported = false;

      bool operator==(const Ipc&) const = default;
    };
    std::optional<Ipc> ipc;
  };
  // REQUIRES: index < number of BOs.
  BoRecord bo(std::size_t index) const;

  // The records of queues, events and SVM ranges. Each begins with its type and is as long as that needs.
  const std::vector<std::span<const std::uint8_t>>& objects() const { return *objects_; }

  // For RESTORE: without the records of the BOs `left_out` (indices, ascending), and with records of further
  // GPUs at the end (user gpu_ids). No SVM range can be reached from these.
  std::vector<std::uint8_t> edit(std::span<const std::size_t> left_out,
                                 std::span<const std::uint32_t> more_gpu_ids) const;

 private:
  using Bytes = std::span<const std::uint8_t>;
  PrivateData(Bytes bytes, PrivateOwners owners) : bytes_(bytes), owners_(std::move(owners)) {}

  Bytes record(std::size_t bo, std::uint32_t record_bytes) const;
  bool fits_bo(std::size_t bo, Bytes record) const;
  bool fits_bos(std::uint32_t record_bytes) const;
  std::uint64_t object_bytes(Bytes at, std::uint64_t copies) const;
  std::optional<std::vector<Bytes>> split_objects(Bytes bytes, std::uint64_t copies) const;
  bool take(std::uint32_t record_bytes);

  Bytes bytes_;
  PrivateOwners owners_;
  std::uint32_t bo_record_bytes_ = 0;
  std::optional<std::vector<Bytes>> objects_;
};

}  // namespace sluice::kfd
