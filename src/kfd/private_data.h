// SPDX-License-Identifier: MIT
// The private data of a checkpoint: opaque to everything else, and passed back to RESTORE unchanged, with two
// exceptions that RESTORE needs. Imported BOs have no record, because RESTORE would make independent ones,
// and every visible GPU must have one.
//
// Layout, Linux 6.1 to 7.2 (kfd_chardev.c, kfd_priv.h, kfd_svm.c): one record of the process, one per GPU,
// one per BO, then objects that begin with their type. BO records have changed their size without a version
// change; those of SVM ranges have an attribute per GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace sluice::kfd {

// What PROCESS_INFO counted.
struct PrivateCounts {
  std::size_t devices = 0;
  std::size_t bos = 0;
  std::size_t objects = 0;
};

// Size in bytes of a BO's record: 80 before about 6.12, 272 since. Derived from the counts and the
// self-describing objects; 0 without BOs, or if the data fits neither or both.
std::uint32_t derive_bo_record_bytes(const PrivateCounts& counts, std::span<const std::uint8_t> priv_data);

// Where the BOs' records begin. Bytes.
std::size_t bo_records_begin(const PrivateCounts& counts);

class PrivateData {
 public:
  // `bytes`: borrowed. Errors: EBADMSG if bytes and counts disagree.
  static Result<PrivateData> parse(std::span<const std::uint8_t> bytes, const PrivateCounts& counts,
                                   std::uint32_t bo_record_bytes);

  // The record of BO `index`, in the order of the buckets.
  struct BoRecord {
    std::uint32_t handle = 0;  // lower half of its handle; the upper is its GPU's user gpu_id
    std::vector<std::uint32_t> mapped_gpu_ids;  // user gpu_ids
  };
  // REQUIRES: index < counts.bos.
  BoRecord bo(std::size_t index) const;

  // The records of queues, events and SVM ranges. Each begins with its type and is as long as that needs.
  const std::vector<std::span<const std::uint8_t>>& objects() const { return objects_; }

  // For RESTORE: without the records of the BOs `left_out` (indices, ascending), and with records of further
  // GPUs at the end (user gpu_ids). No SVM range can be reached from these.
  std::vector<std::uint8_t> edit(std::span<const std::size_t> left_out,
                                 std::span<const std::uint32_t> more_gpu_ids) const;

 private:
  PrivateData(std::span<const std::uint8_t> bytes, const PrivateCounts& counts, std::uint32_t bo_record_bytes)
      : bytes_(bytes), counts_(counts), bo_record_bytes_(bo_record_bytes) {}

  std::span<const std::uint8_t> bytes_;
  PrivateCounts counts_;
  std::uint32_t bo_record_bytes_;
  std::vector<std::span<const std::uint8_t>> objects_;
};

}  // namespace sluice::kfd
