// SPDX-License-Identifier: MIT
// The pages file as the serial algorithm writes it: what every dump is compared with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

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

}  // namespace sluice::test
