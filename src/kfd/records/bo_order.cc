// SPDX-License-Identifier: MIT
#include "kfd/records/bo_order.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kfd/records/private_data.h"

namespace sluice::kfd {

std::vector<std::size_t> bo_order(std::span<const std::uint64_t> bo_bytes, std::uint64_t block_bytes) {
  std::vector<std::size_t> order(bo_bytes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_partition(order.begin(), order.end(),
                        [&](std::size_t bo) { return bo_bytes[bo] % block_bytes == 0; });
  return order;
}

void put_in_order(Checkpoint& checkpoint, std::uint32_t bo_record_bytes, std::uint64_t block_bytes) {
  if (bo_record_bytes == 0) return;
  std::vector<std::uint64_t> bo_bytes;
  bo_bytes.reserve(checkpoint.bos.size());
  for (const KfdBo& bo : checkpoint.bos) bo_bytes.push_back(bo.bytes);
  std::vector<KfdBo> bos;
  bos.reserve(checkpoint.bos.size());
  std::vector<UniqueFd> dmabufs;
  dmabufs.reserve(checkpoint.dmabufs.size());
  const std::vector<std::uint8_t> old_data = checkpoint.priv_data;
  auto record =
      checkpoint.priv_data.begin() + static_cast<std::ptrdiff_t>(bo_records_begin(checkpoint.devices.size()));
  for (const std::size_t bo : bo_order(bo_bytes, block_bytes)) {
    bos.push_back(checkpoint.bos[bo]);
    dmabufs.push_back(std::move(checkpoint.dmabufs[bo]));
    const auto old_record =
        old_data.begin() +
        static_cast<std::ptrdiff_t>(bo_records_begin(checkpoint.devices.size()) + bo * bo_record_bytes);
    record = std::copy_n(old_record, bo_record_bytes, record);
  }
  checkpoint.bos = std::move(bos);
  checkpoint.dmabufs = std::move(dmabufs);
}

}  // namespace sluice::kfd
