// SPDX-License-Identifier: MIT
// The pages file as the serial algorithm writes it, and its sums: every dump is compared with it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "pipeline/checksum/checksum.h"

namespace sluice::test {

using Bytes = std::vector<std::byte>;
using BoList = std::vector<Bytes>;

inline Bytes serial_file(const BoList& bos) {
  std::uint64_t payload_bytes = 0;
  for (const Bytes& bo : bos) payload_bytes += bo.size();
  Bytes file(sizeof payload_bytes);
  std::memcpy(file.data(), &payload_bytes, sizeof payload_bytes);
  for (const Bytes& bo : bos) file.insert(file.end(), bo.begin(), bo.end());
  return file;
}

// Sums of 64 KiB of a BO each from its begin, cut where a block of the file ends.
inline SumTable serial_sums(const BoList& bos, std::uint64_t block_bytes) {
  const Bytes file = serial_file(bos);
  SumTable table{block_bytes, file.size(), {sum_of(std::span(file).first(8))}, {}};
  std::size_t begin = 8;
  for (const Bytes& bo : bos) {
    for (std::size_t at = begin; at < begin + bo.size();) {
      std::size_t end = at + 65536 - (at - begin) % 65536;
      end = std::min({end, at + block_bytes - at % block_bytes, begin + bo.size()});
      table.sums.push_back(sum_of(std::span(file).subspan(at, end - at)));
      at = end;
    }
    begin += bo.size();
  }
  return table;
}

}  // namespace sluice::test
